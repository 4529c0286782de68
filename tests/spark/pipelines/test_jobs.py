"""Statistics, search, replay and redrive: exact answers, each message once; their commands and pages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from spark_logs import fill_store, read_log, write_log
from spark_records import Record

from penstock.cli.spark import spark as command
from penstock.errors import ConfigError
from penstock.spark.pipelines import archive, audit, redrive, reindex, replay, search, stats, statspage
from penstock.spark.pipelines.statspage import stats_page

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

live = [pytest.mark.spark, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fill_store(tmp_path_factory.mktemp("jobs") / "store", 300)


def made(count: int) -> list[Record]:
    """Sizes, times, retries and tags of all kinds."""
    return [
        Record(
            n // 2, b"x" * (n * 7 % 90), n % 2, b"orders" if n % 3 else b"bills", b"TAGS\1" + b"abc"[n % 3 :][:1],
            stored_ms=1_700_000_000_000 + n * 700, born_ms=1_700_000_000_000 + n * 700 - n * 13 % 101, reconsumed=n % 4,
        )
        for n in range(count)
    ]  # fmt: skip


# -- stats


@pytest.mark.parametrize(("by", "window"), [(("topic",), "30s"), (("topic", "partition", "tags"), "1m"), ((), "all")])
def test_statistics_equal_a_brute_force_count(tmp_path: Path, by: tuple[str, ...], window: str) -> None:
    write_log(tmp_path, made(400))
    result = stats.run(None, path=tmp_path, by=by, window=window)
    span = statspage.window_ms(window)
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in read_log(tmp_path):
        at = row["timestamp"] // 1000 // span * span if span else 0  # type: ignore[operator]
        groups.setdefault((at, *(row[name] for name in by)), []).append(row)
    assert len(result.rows) == len(groups)
    for found, (_, rows) in zip(result.rows, sorted(groups.items()), strict=True):
        sizes = sorted(int(row["size"]) for row in rows)
        late = sorted((row["timestamp"] - row["bornTimestamp"]) // 1000 for row in rows)
        rank = lambda values, percent: values[-(-len(values) * percent // 100) - 1]  # noqa: E731
        assert (found["messages"], found["bytes"]) == (len(rows), sum(sizes))
        assert (found["sizeP50"], found["sizeP99"]) == (rank(sizes, 50), rank(sizes, 99))
        assert (found["latencyP50"], found["latencyP99"]) == (rank(late, 50), rank(late, 99))
        assert found["retries"] == sum(row["reconsumeTimes"] for row in rows)


def test_pieces_and_merging_change_no_sum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_log(tmp_path, made(300))
    whole = stats.run(None, path=tmp_path, by=("tags",))
    monkeypatch.setattr(stats, "ROWS_AT_ONCE", 3)
    assert stats.run(None, path=tmp_path, by=("tags",)).rows == whole.rows


def test_wrong_questions_are_errors(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot group by 'colour'"):
        stats.run(None, path=tmp_path, by=("colour",))
    with pytest.raises(ConfigError, match="window '5x'"):
        stats.run(None, path=tmp_path, window="5x")
    with pytest.raises(ConfigError, match="no topics and no path"):
        stats.run(None)
    with pytest.raises(ConfigError, match="nothing to search in"):
        search.run(None)
    with pytest.raises(ConfigError, match="an archive or a log"):
        replay.run(None)  # type: ignore[arg-type]


# -- search


def test_the_index_and_a_scan_find_the_same(store: Path) -> None:
    for key in ("k77", "k9", "all", "nothing"):
        expected = sorted(
            (row["partition"], row["offset"])
            for row in read_log(store)
            if row["topic"] == "orders" and key in (row["keys"] or [])  # type: ignore[operator]
        )
        through = search.run(None, path=store, topic="orders", key=key)
        scanned = search.run(None, path=f"{store}/commitlog/0*0", topic="orders", key=key)
        assert through.indexed == len(expected)
        assert sorted((hit.partition, hit.offset) for hit in through.hits) == expected
        assert {(hit.partition, hit.offset) for hit in scanned.hits} <= set(expected)


def test_search_by_tag_body_time_and_limit(tmp_path: Path) -> None:
    write_log(tmp_path, made(100))
    odd = search.run(None, path=tmp_path, tag="b", body="x" * 50)
    assert odd.hits
    assert all(hit.tags == "b" and len(hit.value) >= 50 for hit in odd.hits)
    some = search.run(None, path=tmp_path, since="1700000007000", until="1700000014000")
    assert [hit.timestamp for hit in some.hits] == [1_700_000_000_000 + n * 700 for n in range(10, 20)]
    few = search.run(None, path=tmp_path, limit=7)
    assert (len(few.hits), few.more) == (7, True)
    json.dumps(few.as_dict())


@pytest.mark.spark
@pytest.mark.filterwarnings("ignore")
def test_log_and_archive_overlap_and_each_hit_is_once(
    spark: SparkSession, registry: str, publish: Callable[..., str], tmp_path: Path
) -> None:
    publish("seam", 40, queues=2)
    archive.run(spark, "seam", tmp_path, registry=registry)
    publish("seam", 40, queues=2, first=40)
    log = tmp_path / "log"
    with_rows = spark.read.format("penstock").option("registry", registry).load("seam").where("offset >= 10").collect()
    write_log(log, [
        Record(r["offset"], bytes(r["value"]), r["partition"], b"seam", b"KEYS\1" + bytes(r["key"]),
               stored_ms=round(r["timestamp"].timestamp() * 1000)) for r in with_rows
    ])  # fmt: skip
    both = search.run(spark, path=log, archive=tmp_path, topic="seam")
    assert Counter(int(hit.value.rstrip(b".")) for hit in both.hits) == Counter(range(80))
    one = search.run(spark, path=log, archive=tmp_path, key="k3")
    assert [(hit.value[:1], hit.as_dict()["key"]) for hit in one.hits] == [(b"3", "k3")]


# -- replay and redrive


@pytest.mark.spark
@pytest.mark.filterwarnings("ignore")
def test_an_archive_is_replayed_once_and_goes_on_where_it_grew(
    spark: SparkSession, registry: str, publish: Callable[..., str], tmp_path: Path
) -> None:
    publish("born", 30, queues=2)
    archive.run(spark, "born", tmp_path, registry=registry)
    asked: dict[str, Any] = {"archive": tmp_path, "registry": registry, "renamed": {"born": "reborn"}}
    assert replay.run(spark, **asked, dry_run=True).topics == {"reborn": 30}
    for _ in range(2):
        assert replay.run(spark, **asked).topics == {"reborn": 30}
    assert counted(spark, registry, "reborn") == Counter(range(30))
    publish("born", 10, queues=2, first=30)
    archive.run(spark, "born", tmp_path, registry=registry)
    replay.run(spark, **asked)
    rows = spark.read.format("penstock").options(registry=registry).load("reborn").collect()
    assert Counter(int(bytes(row["value"]).rstrip(b".")) for row in rows) == Counter(range(40))
    for row in rows:
        n = int(bytes(row["value"]).rstrip(b"."))
        assert (bytes(row["key"]).decode(), row["tags"]) == (f"k{n}", "odd" if n % 2 else "even")


def counted(spark: SparkSession, registry: str, topic: str) -> Counter[int]:
    rows = spark.read.format("penstock").options(registry=registry).load(topic).select("value").collect()
    return Counter(int(bytes(row["value"]).rstrip(b".")) for row in rows)


@pytest.mark.spark
@pytest.mark.filterwarnings("ignore")
def test_a_log_is_replayed_once(spark: SparkSession, registry: str, store: Path) -> None:
    for _ in range(2):
        result = replay.run(spark, path=store, topics=("rare",), renamed={"rare": "rare2"}, registry=registry)
        assert result.topics == {"rare2": 34}
    rows = spark.read.format("penstock").options(registry=registry).load("rare2").collect()
    assert Counter(bytes(row["value"]) for row in rows) == Counter(
        row["value"] for row in read_log(store) if row["topic"] == "rare"
    )


@pytest.mark.spark
@pytest.mark.filterwarnings("ignore")
def test_chosen_dead_letters_go_back_once(spark: SparkSession, registry: str, tmp_path: Path) -> None:
    dead = spark.range(20).selectExpr(
        "cast(id as string) as value", "if(id % 2 = 0, 'even', 'odd') as tags",
        "map('RETRY_TOPIC', 'shop', 'ORIGIN_MESSAGE_ID', concat('id', id)) as properties",
    )  # fmt: skip
    dead.write.format("penstock").options(registry=registry).mode("append").save("%DLQ%packers")
    asked: dict[str, Any] = {"registry": registry, "state": tmp_path}
    assert redrive.run(spark, "packers", **asked).topics == {"shop": 20}
    assert redrive.run(spark, "packers", **asked, tag="odd", dry_run=False).rows == 10
    assert redrive.run(spark, "packers", **asked, tag="odd", dry_run=False).rows == 0
    assert counted(spark, registry, "shop") == Counter(range(1, 20, 2))
    (notes,) = tmp_path.glob("*.json")
    state = json.loads(notes.read_text())
    rest = redrive.run(spark, "packers", **asked, where="tags = 'even'", dry_run=False)
    assert (rest.rows, rest.before) == (10, 10)
    after = json.loads(notes.read_text())
    chosen = [place for place in after["done"] if place not in state["done"]]
    assert counted(spark, registry, "shop") == Counter(range(20))
    rows = spark.read.format("penstock").options(registry=registry, columns="value,properties").load("shop").collect()
    assert {row["properties"]["ORIGIN_MESSAGE_ID"] for row in rows} == {f"id{n}" for n in range(20)}
    assert len(chosen) == 10
    assert redrive.run(spark, "packers", **asked).rows == 0


@pytest.mark.spark
@pytest.mark.filterwarnings("ignore")
def test_a_redrive_killed_before_its_note_sends_nothing_twice(
    spark: SparkSession, registry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = spark.range(6).selectExpr("cast(id as string) as value", "map('RETRY_TOPIC', 'mill') as properties")
    dead.write.format("penstock").options(registry=registry).mode("append").save("%DLQ%millers")
    asked: dict[str, Any] = {"registry": registry, "state": tmp_path, "dry_run": False}
    save, calls = redrive._Notes.save, []

    def killed(notes: Any) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        save(notes)

    monkeypatch.setattr(redrive._Notes, "save", killed)
    with pytest.raises(KeyboardInterrupt):
        redrive.run(spark, "millers", **asked)
    again = redrive.run(spark, "millers", **asked)
    assert (again.resumed, again.rows) == (6, 0)
    assert counted(spark, registry, "mill") == Counter(range(6))


# -- with Spark, as commands


@pytest.mark.spark
@pytest.mark.filterwarnings("ignore")
def test_the_commands_answer_as_their_functions(
    spark: SparkSession, store: Path, tmp_path: Path, registry: str, publish: Callable[..., str]
) -> None:
    def told(*words: str) -> Any:
        done = CliRunner().invoke(command, [*words, "--json"], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return json.loads(done.output)

    page = tmp_path / "audit.html"
    assert told("audit", str(store), "--split-bytes", "20000", "--report", str(page))["records"] == 300
    assert "All is well" in page.read_text()
    page = tmp_path / "stats.html"
    live = publish("counted", 50)
    assert told("stats", live, "--registry", registry, "--window", "all")["messages"] == 50
    assert told("stats", "--path", str(store), "--by", "topic,tags", "--report", str(page))["messages"] == 300
    assert page.read_text().count("<rect") >= 4
    assert len(told("search", "--path", str(store), "--topic", "orders", "--key", "k77")["hits"]) == 1
    assert told("reindex", str(store), "--to", str(tmp_path / "new"), "--split-bytes", "20000")["entries"] == 300
    for path in (p for p in (store / "consumequeue").rglob("*") if p.is_file()):
        assert (tmp_path / "new" / path.relative_to(store)).read_bytes() == path.read_bytes()
    plain = CliRunner().invoke(command, ["stats", "--path", str(store), "--window", "all"])
    assert "300 messages" in plain.output
    wrong = CliRunner().invoke(command, ["stats", "--path", str(tmp_path / "none")])
    assert wrong.exit_code == 1
    assert "no commit-log segments" in wrong.output


@pytest.mark.spark
def test_a_command_is_quiet_in_a_pipe_and_says_its_cause(store: Path, tmp_path: Path) -> None:
    """In a process of its own: nothing of log4j, plain lines, the Python cause, exit code 1 of a store that is not well."""
    bad = tmp_path / "bad"
    write_log(bad, made(50))
    path = next((bad / "commitlog").iterdir())
    raw = bytearray(path.read_bytes())
    raw[200] ^= 1
    path.write_bytes(raw)
    root = str(Path(__file__).parents[3] / "src")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "penstock.cli", "spark", "audit", str(bad), "--master", "local[2]"],
        env={**os.environ, "PYTHONPATH": root}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    first, *lines = done.stderr.splitlines()
    assert first == "starting Spark"
    assert all(
        line.startswith("audit: ") and " of " in line for line in lines
    )  # one every ten seconds, if it takes that long
    assert done.stdout.splitlines()[0].endswith(" s")
    assert done.stdout.splitlines()[-1] == "NOT well: see above"


def test_results_are_json() -> None:
    for result in (audit.AuditResult("s"), reindex.ReindexResult("s", "t", 1, 1, 1, 1, 0, 0, False, False, 0.1)):
        assert json.loads(json.dumps(result.as_dict()))["store"] == "s"


def test_a_groups_retried_and_dead_messages_are_counted_by_group(tmp_path: Path) -> None:
    made = [
        Record(n, b"x", 0, name, stored_ms=1_700_000_000_000 + n)
        for name, count in ((b"%RETRY%shop", 5), (b"%DLQ%shop", 2), (b"%RETRY%mill", 4), (b"orders", 9))
        for n in range(count)
    ]
    write_log(tmp_path, made)
    every = stats.run(None, path=tmp_path, by=("group",), window="all")
    assert {row["group"]: row["messages"] for row in every.rows} == {"shop": 7, "mill": 4, None: 9}
    assert "None" not in stats_page(every)
    one = stats.run(None, path=tmp_path, groups=("shop",), by=("group", "topic"), window="all")
    assert [(row["group"], row["topic"], row["messages"]) for row in one.rows] == [
        ("shop", "%DLQ%shop", 2),
        ("shop", "%RETRY%shop", 5),
    ]
    told = CliRunner().invoke(command, ["stats", "--help"]).output
    assert "--group" in told
