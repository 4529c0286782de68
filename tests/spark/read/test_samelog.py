"""A broker's log that was put back to an older state, and has grown past what was read of it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import spark_putback
from pyspark.sql.streaming.datasource import ReadAllAvailable
from spark_fakes import Log

from penstock.client.routes import MessageQueue
from penstock.spark.read import planning, samelog, source
from penstock.spark.read.options import parse
from penstock.spark.read.planning import DataLoss, Range
from penstock.spark.read.source import Source

A0, A1 = MessageQueue("t", "a", 0), MessageQueue("t", "a", 1)
LOST = "t queue 0 at a is not the log that was read up to offset 10, .* begins at offset 6. With failOnDataLoss=false"


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    made = Log()
    made.put(A0, 10)
    made.put(A1, 4)
    monkeypatch.setattr(source, "connection", lambda options: made)
    return made


def stream(**given: str) -> Any:
    return Source({"subscribe": "t", "startingOffsets": "earliest", **given}).stream_reader(None)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _any_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.spark.schema.check", lambda wanted: None)


def put_back(log: Log, queue: MessageQueue, to: int, more: int) -> None:
    """The queue ends where it ended once, and others are stored behind that."""
    log.records[queue] = log.records[queue][:to]
    log.put(queue, more)
    log.records[queue] = [replace(r, stored_ms=5000 + r.offset) if r.offset >= to else r for r in log.records[queue]]


def ranges(reader: Any, start: Any, end: Any) -> list[Range]:
    return [part.range for part in reader.partitions(start, end)]


@pytest.mark.parametrize("same", [True, False])
def test_a_log_that_has_grown_past_what_was_read_is_told_from_it(log: Log, same: bool) -> None:
    """What it had stored anew up to the offset of the checkpoint was passed over."""
    running = stream()
    at = running.latestOffset({}, ReadAllAvailable())
    put_back(log, A0, 6, 9)
    log.put(A1, 1)
    for _ in range(2):  # however often
        with pytest.raises(DataLoss, match=LOST):
            (running if same else stream()).latestOffset(at, ReadAllAvailable())


def test_with_loss_allowed_a_query_goes_on_where_the_other_log_begins(
    log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    at = stream().latestOffset({}, ReadAllAvailable())
    put_back(log, A0, 6, 9)
    made = stream(failOnDataLoss="false")
    end = made.latestOffset(at, ReadAllAvailable())
    assert re.search(LOST.partition(". With")[0], caplog.text)
    assert ranges(made, at, end) == ranges(stream(), at, end) == [Range(A0, 6, 15)]
    assert made.latestOffset(end, ReadAllAvailable()) is end
    log.put(A0, 1)
    assert ranges(made, end, stream().latestOffset(end, ReadAllAvailable())) == [Range(A0, 15, 16)]


def test_with_loss_allowed_a_log_that_has_not_grown_so_far_is_read_from_there(log: Log) -> None:
    at = stream().latestOffset({}, ReadAllAvailable())
    put_back(log, A0, 6, 2)
    made = stream(failOnDataLoss="false")
    assert ranges(made, at, made.latestOffset(at, ReadAllAvailable())) == [Range(A0, 6, 8)]


def test_a_batch_that_was_planned_in_the_former_log_has_none_of_the_other(log: Log) -> None:
    """It is in the checkpoint, and not committed, when the driver starts again."""
    first = stream().latestOffset({}, ReadAllAvailable())
    log.put(A0, 4)
    log.put(A1, 2)
    end = stream().latestOffset(first, ReadAllAvailable())
    put_back(log, A0, 12, 9)
    with pytest.raises(DataLoss, match=r"up to offset 14, .* begins at offset 12"):
        stream().partitions(first, end)
    made = stream(failOnDataLoss="false")
    assert ranges(made, first, end) == [Range(A0, 10, 12), Range(A1, 4, 6)]
    assert ranges(made, end, made.latestOffset(end, ReadAllAvailable())) == [Range(A0, 12, 21)]


def test_what_cannot_be_told_is_no_loss(log: Log) -> None:
    """A checkpoint of an older version, and a message that retention took; nor is a queue asked that has nothing new."""
    log.put(A0, 5)
    old = {"t": {"a": {"0": 10, "1": 4}}}
    made = stream()
    end = made.latestOffset(old, ReadAllAvailable())
    assert ranges(made, old, end) == [Range(A0, 10, 15)]
    assert planning.noted(end) == {A0: 1014, A1: 1003}
    assert samelog.resume(parse({"subscribe": "t"}), log, end, {A0: (0, 20)}) == {}  # type: ignore[arg-type]
    log.drop(A0, 15)
    log.put(A0, 1)
    log.fetches.clear()
    assert ranges(made, end, made.latestOffset(end, ReadAllAvailable())) == [Range(A0, 15, 16)]
    assert [fetched[:2] for fetched in log.fetches] == [(A0, 15)]


def test_who_does_not_know_of_moments_passes_over_them(log: Log) -> None:
    """An older version that is given such an offset: its words for it."""
    end = stream().latestOffset({}, ReadAllAvailable())
    assert planning.from_json(end) == {A0: 10, A1: 4}
    assert planning.from_json(end[planning.FROM]) == {A0: 0, A1: 0}


def test_a_broker_that_was_put_back(tmp_path: Path) -> None:
    """A real one: its folder is replaced by a copy from before, and other messages are sent to it."""
    with spark_putback.put_back(tmp_path) as broker:
        broker.send(range(5))
        broker.copy()
        broker.send(range(5, 10))
        given = {"subscribe": spark_putback.TOPIC, "registry": broker.cluster.registry}
        at = stream(**given).latestOffset({}, ReadAllAvailable())
        broker.put_back()
        broker.send(range(100, 110))
        with pytest.raises(DataLoss, match=r"up to offset 10, .* begins at offset 5"):
            stream(**given).latestOffset(at, ReadAllAvailable())
