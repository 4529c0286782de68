"""Replay: each message once, and on from where an archive grew."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from spark_logs import counted, read_log

from penstock.client.routes import MessageQueue
from penstock.errors import ConfigError
from penstock.spark.pipelines import archive, replay

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
    replay.run(spark, **{**asked, "renamed": {"born": "samequeue"}, "keep_queue": True})
    rows = spark.read.format("penstock").options(registry=registry).load("samequeue").collect()
    assert {(int(bytes(row["value"]).rstrip(b".")) % 2, row["partition"]) for row in rows} == {(0, 0), (1, 1)}
    publish("born", 10, queues=2, first=30)
    archive.run(spark, "born", tmp_path, registry=registry)
    replay.run(spark, **asked)
    rows = spark.read.format("penstock").options(registry=registry).load("reborn").collect()
    assert Counter(int(bytes(row["value"]).rstrip(b".")) for row in rows) == Counter(range(40))
    for row in rows:
        n = int(bytes(row["value"]).rstrip(b"."))
        assert (bytes(row["key"]).decode(), row["tags"]) == (f"k{n}", "odd" if n % 2 else "even")


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


SELECTION = replay.Selection(since=None, until=None, renamed={}, keep_queue=False, job="")


def names(folder: Path, **asked: Any) -> list[str]:
    """The job names of the files of an archive."""
    return [replay.job_name(unit, {**SELECTION, **asked}) for unit in replay._files(folder, ())]  # type: ignore[typeddict-item]


def test_what_is_no_part_of_a_file_s_name(tmp_path: Path) -> None:
    """Other topics of the same command, and the folder; what is: the bytes, for another archive has files of the same names."""
    for folder, text in (("a", b"1"), ("moved", b"1"), ("another", b"2")):
        for topic in ("orders", "users"):
            place = tmp_path / folder / f"topic={topic}" / "broker=b" / "queue=0"
            place.mkdir(parents=True)
            (place / "0-9.parquet").write_bytes(text)
    one = names(tmp_path / "a")
    assert len(set(one)) == 2
    assert names(tmp_path / "moved") == one
    assert not set(names(tmp_path / "another")) & set(one)
    assert names(tmp_path / "a", renamed={"users": "u"})[0] == one[0]
    assert names(tmp_path / "a", renamed={"users": "u"})[1] != one[1]
    assert not set(names(tmp_path / "a", job="again")) & set(one)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"renamed": {"rear": "other"}}, "there is no topic 'rear' to send"),
        ({"renamed": {"rare": ""}}, "rare cannot be sent to ''"),
        ({"topics": ("rare",), "renamed": {"orders": "o"}}, "there is no topic 'orders' to send"),
        ({"rate": -1}, "rate -1 is none"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_is_sent(store: Path, asked: dict[str, Any], said: str) -> None:
    """With a name mistyped in `--map` the messages went to the topic they came from."""
    with pytest.raises(ConfigError, match=said):
        replay.run(None, path=store, **{"topics": ("rare", "orders"), **asked})  # type: ignore[arg-type]


def test_a_queue_that_is_kept_is_the_brokers_own() -> None:
    queues = [MessageQueue("t", broker, n) for broker in ("broker-a", "broker-b") for n in range(4)]
    for broker, queue, number in (("broker-a", 1, 1), ("broker-b", 1, 5), ("elsewhere", 3, 3), ("broker-b", 9, 9)):
        path = Path(f"/archive/topic=t/broker={broker}/queue={queue}/0-9.parquet")
        assert replay.number_of(path, queues) == number


@pytest.mark.spark
@pytest.mark.filterwarnings("ignore")
def test_topics_of_a_log_change_names(spark: SparkSession) -> None:
    frame = spark.createDataFrame([("a", b"1"), ("b", b"2"), ("c", b"3")], "topic string, value binary")
    chosen = replay._chosen(frame, "", {**SELECTION, "renamed": {"a": "b", "b": "a"}})
    assert sorted((row["topic"], bytes(row["value"])) for row in chosen.collect()) == [
        ("a", b"2"), ("b", b"1"), ("c", b"3"),
    ]  # fmt: skip
