"""Options and columns that no other test here needs: each does what its line in the documentation says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from spark_fakes import Log
from spark_logs import write_log
from spark_records import Record

from penstock.client.routes import MessageQueue
from penstock.errors import ConfigError, PenstockError, TimedOut
from penstock.spark import schema
from penstock.spark.log import files as logfiles
from penstock.spark.log import options as logoptions
from penstock.spark.log import source as logsource
from penstock.spark.read import options, source
from penstock.spark.read.planning import Range
from penstock.spark.read.source import RangePartition, Source
from penstock.spark.write import options as sinkoptions
from penstock.spark.write import sink

A0, A1, B0 = MessageQueue("t", "a", 0), MessageQueue("t", "a", 1), MessageQueue("t", "b", 0)
RETRIED = b"TAGS\1odd\2KEYS\1k1 k2\2RETRY_TOPIC\1orders\2REAL_TOPIC\1orders\2REAL_QID\0012\2n\1v"


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    made = Log()
    made.put(A0, 10)
    made.put(A1, 4)
    monkeypatch.setattr(source, "connection", lambda options: made)
    monkeypatch.setattr(source, "FLUSH_WAIT_S", 0)
    monkeypatch.setattr(source.time, "sleep", lambda seconds: None)
    return made


def reader(**given: str) -> Any:
    from pyspark.sql.pandas.types import from_arrow_schema

    made = Source({"subscribe": "t", **given})
    return made.reader(from_arrow_schema(schema.arrow_of(made.columns())))


def rows(made: Any) -> list[dict[str, Any]]:
    return [row for part in made.partitions() for batch in made.read(part) for row in batch.to_pylist()]


# -- the source


def test_records_per_partition(log: Log) -> None:
    ranges = [part.range for part in reader(maxRecordsPerPartition="4").partitions()]
    assert max(r.end - r.start for r in ranges) <= 4
    assert sorted((r.queue, n) for r in ranges for n in range(r.start, r.end)) == [
        *((A0, n) for n in range(10)),
        *((A1, n) for n in range(4)),
    ]
    assert len(reader().partitions()) == 2


def test_headers_are_the_properties_but_keys_and_tags(log: Log) -> None:
    log.records[A0] = [Record(0, b"b", 0, b"t", RETRIED)]
    row = rows(reader(includeHeaders="true", subscribe="t"))[0]
    assert list(row) == [*schema.BASE[:7], "headers", "tags"]
    assert [(pair["key"], pair["value"]) for pair in row["headers"]] == [
        ("RETRY_TOPIC", b"orders"),
        ("REAL_TOPIC", b"orders"),
        ("REAL_QID", b"2"),
        ("n", b"v"),
    ]
    assert "headers" not in rows(reader())[0]


def test_the_topic_before_a_retry(log: Log) -> None:
    log.records[A0] = [Record(0, b"b", 0, b"%RETRY%g", RETRIED)]
    assert rows(reader(realTopic="true"))[0]["topic"] == "orders"
    assert rows(reader())[0]["topic"] == "%RETRY%g"


def test_what_the_broker_sees_of_a_fetch(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []
    fetch = log.fetch
    monkeypatch.setattr(log, "fetch", lambda *at, **how: asked.append(how) or fetch(*at, **how))
    rows(reader(groupIdPrefix="mine", fetchBytes="64k"))
    assert {(how["group"], how["max_bytes"]) for how in asked} == {("mine", 64 << 10)}
    asked.clear()
    rows(reader(fetchBytes="4m"))
    assert {(how["group"], how["max_bytes"]) for how in asked} == {("spark-penstock-source", 4 << 20)}
    with pytest.raises(ConfigError, match="option fetchBytes = '1g': at most 4194304 bytes"):
        reader(fetchBytes="1g")


def test_a_failed_fetch_is_tried_so_often(log: Log) -> None:
    log.fail = [TimedOut("away")] * 2
    assert len(rows(reader(fetchRetries="2"))) == 14
    log.fail = [TimedOut("away")] * 2
    with pytest.raises(PenstockError, match="away"):
        rows(reader(fetchRetries="1"))


def test_positions_with_several_brokers(log: Log) -> None:
    log.put(B0, 6)
    given = {"t": {"a": {"0": 7, "1": -1}, "b": {"0": -2}}}
    found = {part.range.queue: part.range.start for part in reader(startingOffsets=json.dumps(given)).partitions()}
    assert found == {A0: 7, B0: 0}
    assert len(rows(reader(startingOffsets='{"t": "earliest"}', endingOffsets='{"t": "latest"}'))) == 20
    ends = reader(endingOffsets=json.dumps({"t": {"a": {"0": 1, "1": 0}, "b": {"0": 2}}}))
    assert len(rows(ends)) == 3
    with pytest.raises(ConfigError):
        reader(startingOffsets='{"t": "sometime"}')


def test_moments_per_queue_and_where_there_is_none(log: Log) -> None:
    late = {"t": {"0": 1008, "1": 99_999}}
    with pytest.raises(PenstockError):
        rows(reader(startingOffsetsByTimestamp=json.dumps(late)))
    found = rows(reader(startingOffsetsByTimestamp=json.dumps(late), startingOffsetsByTimestampStrategy="latest"))
    assert [(row["partition"], row["offset"]) for row in found] == [(0, 8), (0, 9)]
    ended = rows(reader(endingOffsetsByTimestamp='{"t": {"0": 1002, "1": 1001}}'))
    assert [(row["partition"], row["offset"]) for row in ended] == [(0, 0), (0, 1), (1, 0)]
    # A moment for all wins over moments per queue, and those over offsets.
    both = {"startingTimestamp": "1009", "startingOffsetsByTimestamp": '{"t": {"0": 1000, "1": 1000}}'}
    assert [row["offset"] for row in rows(reader(**both, startingOffsetsByTimestampStrategy="latest"))] == [9]


def test_every_alias_and_any_case(log: Log) -> None:
    for known in (options.OPTIONS, logoptions.OPTIONS, sinkoptions.SINK_OPTIONS):
        for option in known:
            for spelling in (option.name, *option.aliases):
                with pytest.raises(ConfigError, match=f"did you mean {spelling}") as error:
                    options.read(known, {spelling + "x": "1"})
                assert spelling in error.value.hint
    assert len(rows(reader(STARTINGoffsets="earliest"))) == 14


def test_timeouts_are_the_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "_connections", {})
    monkeypatch.setattr(sink, "_clients", {})
    cluster = source.connection(options.parse({"subscribe": "t", "fetchTimeoutMs": "1500"}))
    assert cluster._timeout_s == 1.5
    client = sink.client_of(sinkoptions.parse({"topic": "t", "sendTimeoutMs": "300", "nameServer": "127.0.0.1:1"}))
    assert client.patience_s == 0.3
    with pytest.raises(PenstockError):
        client.patiently(client.topics)


def test_requests_on_their_way(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, Any]] = []

    class Stager:
        layout: dict[str, list[str]] = {}

        def __init__(self, *_: Any, **how: Any) -> None:
            given.append(how)

        def over(self) -> bool:
            return True

        def seal(self) -> Any:
            return "sealed"

        def close(self) -> None:
            pass

    monkeypatch.setattr(sink, "Stager", Stager)
    monkeypatch.setattr(sink, "client_of", lambda options: None)
    for options_ in ({}, {"inflight": "3", "level": "os"}):
        sink.stage(sinkoptions.parse({"topic": "t", **options_}), None, 0, 0, iter(()))  # type: ignore[arg-type]
    assert given == [{"inflight": 8, "level": "disk"}, {"inflight": 3, "level": "os"}]


def test_a_query_may_have_a_name() -> None:
    """Spark hands it to the sink as an option, as it does the checkpoint."""
    found = sinkoptions.parse({"topic": "t", "queryName": "copy", "checkpointLocation": "/c"})
    assert found == sinkoptions.parse({"topic": "t"})


# -- the bulk reader


def bulk(folder: Path, **given: str) -> list[dict[str, Any]]:
    made = logsource.LogSource({"path": str(folder), **given})
    arrow = schema.arrow_of(made.columns())
    runs = logsource.plan(made.options, made.segments)
    return [row for run in runs for batch in logsource.batches(made.options, arrow, run) for row in batch.to_pylist()]


def test_the_bulk_readers_columns(tmp_path: Path) -> None:
    write_log(tmp_path / "shop", [Record(0, b"b", 0, b"%RETRY%g", RETRIED), Record(1, b"c", 0, b"%RETRY%g")])
    row = bulk(tmp_path / "shop", includeMetadata="true", broker="b-1")[0]
    assert list(row) == [*schema.BY_NAME, "segment"]
    assert (row["broker"], Path(row["segment"]).name, row["keys"]) == ("b-1", "0" * 20, ["k1", "k2"])
    assert bulk(tmp_path / "shop", columns="broker")[0] == {"broker": "shop"}
    assert bulk(tmp_path / "shop", columns="topic", realTopic="true")[0]["topic"] == "orders"
    headers = bulk(tmp_path / "shop", includeHeaders="true")
    assert (headers[0]["headers"][-1], headers[1]["headers"]) == ({"key": "n", "value": b"v"}, [])


def test_bytes_per_split(tmp_path: Path) -> None:
    write_log(tmp_path, [Record(n, b"x" * 100) for n in range(200)])
    segments = logfiles.find(str(tmp_path))
    total = sum(segment.end for segment in segments)
    for size in (1000, 10_000, 1 << 20):
        found = logsource.plan(logoptions.parse({"path": str(tmp_path), "splitBytes": str(size)}), segments)
        assert len(found) >= total // size
        assert all(sum(piece.end - piece.begin for piece in run) <= size for run in found)
    assert len(bulk(tmp_path, splitBytes="1000")) == 200


def test_every_column_is_in_the_table_once() -> None:
    assert len(schema.BY_NAME) == len(schema.COLUMNS)
    assert set(schema.BASE) <= set(schema.BY_NAME)
    part = RangePartition(Range(A0, 0, 1), ("a",))
    assert (part.range.queue, part.tags) == (A0, ("a",))
