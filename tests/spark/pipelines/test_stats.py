"""Statistics, search, replay and redrive: exact answers, each message once; their commands and pages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from spark_logs import made, read_log, write_log
from spark_records import Record

from penstock.cli.spark import spark as command
from penstock.errors import ConfigError
from penstock.spark.pipelines import audit, reindex, replay, search, stats, statspage
from penstock.spark.pipelines.statspage import stats_page

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


live = [pytest.mark.spark, pytest.mark.filterwarnings("ignore")]


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
    with pytest.raises(ConfigError, match="longer than a hundred years"):
        stats.run(None, path=tmp_path, window="99999999999999d")
    with pytest.raises(ConfigError, match="no topics and no path"):
        stats.run(None)
    with pytest.raises(ConfigError, match="nothing to search in"):
        search.run(None)
    with pytest.raises(ConfigError, match="an archive or a log"):
        replay.run(None)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="none is no folder"):
        search.run(None, archive=tmp_path / "none")


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
    for since, count in (("2020-01-01", 50), ("2999-01-01", 0)):  # queues without messages of that time are no error
        asked = ("stats", live, "--registry", registry, "--from", since, "--by", "topic,topic")
        assert told(*asked)["messages"] == count
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
