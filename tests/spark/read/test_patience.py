"""A broker that is away for a while, under a query that plans and reads."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from spark_fakes import Log

from penstock.client.routes import MessageQueue
from penstock.errors import BrokerRefused, ClientError, ConnectionLost, NoRoute
from penstock.spark.read import planning, source
from penstock.spark.read.options import parse
from penstock.spark.read.patience import asked
from penstock.spark.read.source import Source

if TYPE_CHECKING:
    from client.conftest import Cluster
else:
    Cluster = object

A0 = MessageQueue("t", "a", 0)
AWAY = [ConnectionLost("refused"), NoRoute("t"), ConnectionLost("refused"), NoRoute("t"), ConnectionLost("refused")]


class Away(Log):
    """Raises what it is given, whatever is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: list[ClientError] = []

    def offsets(self, queue: MessageQueue, *, durable: bool = True) -> tuple[int, int]:
        if self.errors:
            raise self.errors.pop(0)
        return super().offsets(queue, durable=durable)


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Away:
    made = Away()
    made.put(A0, 10)
    monkeypatch.setattr(source, "connection", lambda options: made)
    monkeypatch.setattr(source, "FLUSH_WAIT_S", 0)
    monkeypatch.setattr(source.time, "sleep", lambda seconds: None)
    return made


def stream(**given: str) -> Any:
    return Source({"subscribe": "t", "startingOffsets": "earliest", **given}).stream_reader("offset bigint")  # type: ignore[arg-type]


def test_planning_waits_for_a_broker_that_is_away(log: Away, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.spark.schema.check", lambda wanted: None)
    made = stream()
    log.errors = AWAY[::2]
    assert made.latestOffset({}, made.getDefaultReadLimit())["+from"]["t"] == planning.to_json({A0: 0})["t"]
    log.errors = list(AWAY)
    end = made.latestOffset({"t": {"a": {"0": 4}}}, made.getDefaultReadLimit())
    assert planning.from_json(end) == {A0: 10}
    assert log.errors == []
    log.errors = list(AWAY[::2])
    made.prepareForTriggerAvailableNow()
    assert log.errors == []
    batch = Source({"subscribe": "t"})
    batch.loaded = None
    log.errors = list(AWAY[::2])
    assert batch.reader("offset bigint").loaded == {A0: (0, 10)}  # type: ignore[arg-type]


def test_reading_waits_for_a_broker_that_is_away(log: Away, monkeypatch: pytest.MonkeyPatch) -> None:
    log.fail = list(AWAY)
    made = Source({"subscribe": "t", "columns": "offset"})
    from pyspark.sql.types import LongType, StructField, StructType

    reader = made.reader(StructType([StructField("offset", LongType())]))
    (part,) = reader.partitions()
    assert [n for batch in reader.read(part) for n in batch.column("offset").to_pylist()] == list(range(10))


@pytest.mark.parametrize(
    ("error", "options"),
    [
        (NoRoute("t"), {}),  # nobody knows whether a new query's topic was ever there
        (ConnectionLost("x"), {"fetchRetries": "0"}),
        (ConnectionLost("x"), {"fetchTimeoutMs": "1", "fetchRetries": "2"}),
        (BrokerRefused(16, "forbidden"), {}),
    ],
)
def test_patience_ends(log: Away, error: ClientError, options: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.spark.schema.check", lambda wanted: None)
    made = stream(**options)
    log.errors = [error] * 1_000_000
    with pytest.raises(type(error)):
        made.latestOffset(made.initialOffset(), made.getDefaultReadLimit())


# -- a real broker


@pytest.fixture
def own_cluster(tmp_path: Path) -> Any:
    from client.conftest import SMALL
    from client.conftest import Cluster as Made

    cluster = Made(tmp_path / "data", SMALL).start()
    yield cluster
    cluster.stop()


def test_what_was_deleted_is_not_waited_for(log: Away) -> None:
    options, waits = parse({"subscribe": "t"}), []

    def ask() -> int:
        waits.append(1)
        if len(waits) < 3:
            raise NoRoute("t")
        return 5

    assert asked(options, log, A0, ask) == 5  # type: ignore[arg-type]
    waits.clear()
    del log.records[A0]
    assert asked(options, log, A0, ask) is None  # type: ignore[arg-type]
    assert len(waits) == 1


@pytest.mark.spark
@pytest.mark.filterwarnings("ignore")
def test_a_query_goes_on_over_a_restart_of_its_broker(spark: Any, own_cluster: Cluster, tmp_path: Path) -> None:
    """Stopped while a micro-batch is planned, started again later, twice; the sink is at the same broker."""
    from fronts.raw_peer import RawPeer
    from penstock.client.reader import LogReader
    from penstock.wire.record import iter_records

    def send(first: int, count: int) -> None:
        with RawPeer(own_cluster.broker) as peer:
            for n in range(first, first + count):
                assert peer.send("onwards", b"%d" % n).code == 0

    def arrived() -> list[int]:
        found = []
        with LogReader(own_cluster.registry) as reader:
            if "onwards-copy" not in reader.topics():
                return []
            for queue in reader.queues("onwards-copy"):
                at, end = reader.offsets(queue, durable=False)
                while at < end:
                    got = reader.fetch(queue, at, durable=False)
                    found += [int(m.body) for m in iter_records(got.records)]
                    at = got.next_offset
        return sorted(found)

    def wait_for(count: int) -> None:
        stop = threading.Event()
        for _ in range(600):
            if len(arrived()) >= count or query.exception() is not None:
                break
            stop.wait(0.1)
        assert query.exception() is None
        assert arrived() == list(range(count))

    send(0, 20)
    query = (
        spark.readStream.format("penstock")
        .options(registry=own_cluster.registry, subscribe="onwards", startingOffsets="earliest")
        .load()
        .selectExpr("value")
        .writeStream.format("penstock")
        .options(registry=own_cluster.registry, topic="onwards-copy", checkpointLocation=str(tmp_path / "checkpoint"))
        .trigger(processingTime="100 milliseconds")
        .start()
    )
    try:
        wait_for(20)
        for part in (1, 2):
            own_cluster.stop()
            for _ in range(20):  # long enough for many triggers, each of which plans
                assert query.isActive
                query.awaitTermination(0.1)
            own_cluster.start()
            send(20 * part, 20)
            wait_for(20 * part + 20)
    finally:
        query.stop()
