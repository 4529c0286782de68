"""H-14 and H-15 with Spark itself: a query from a topic to a topic of a replica set, and one that reads at a slave, while masters
are killed.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import penstock
from etcd_parts import ElectedSet, Etcd
from penstock.client.reader import LogReader
from penstock.errors import PenstockError
from penstock.wire.record import iter_records
from polling import eventually

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

KILLS, ROWS_BETWEEN, A_BATCH = 3, 150, "40"
PACE_S = 0.02  # between two rows: the end waits until the query has written all of them, 40 at a time


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Etcd]:
    one = Etcd(tmp_path)
    try:
        yield one.start()
    finally:
        one.stop()


class Flow:
    """Sends numbers to `in`, each until it is stored, and keeps a query from there to `out` alive, as a user would."""

    def __init__(self, made: ElectedSet, spark: SparkSession, checkpoint: Path) -> None:
        self._made = made
        self._spark = spark
        self._checkpoint = checkpoint
        self._over = threading.Event()
        self._sent: set[bytes] = set()  # and stored: sooner or later a reader finds all of these
        self.restarts = 0
        self.query = self._start()
        self._thread = threading.Thread(target=self._send, daemon=True)
        self._thread.start()

    def _start(self) -> StreamingQuery:
        options = {"registry": self._made.name_server}
        stream = self._spark.readStream.format("penstock").options(
            subscribe="in", startingOffsets="earliest", **options
        )
        rows = stream.option("maxOffsetsPerTrigger", A_BATCH).load().select("value", "key").repartition(2)
        sink = rows.writeStream.format("penstock").options(checkpointLocation=str(self._checkpoint), **options)
        return sink.trigger(processingTime="0 seconds").start("out")

    def _send(self) -> None:
        """One number after the other. What it has begun to send it sends until that is stored: nothing comes behind its end."""
        body = b"0"
        while not (self._over.is_set() and body in self._sent):
            try:
                with penstock.Producer(self._made.name_server) as producer:
                    while not (self._over.is_set() and body in self._sent):
                        body = b"%d" % len(self._sent)
                        producer.send(penstock.Message("in", body))
                        self._sent.add(body)
                        self._over.wait(PACE_S)
            except PenstockError:
                self._over.wait(0.1)

    def look(self) -> None:
        """A query that has failed is started again on its checkpoint."""
        if not self.query.isActive:
            self.restarts += 1
            self.query = self._start()

    def bodies(self, topic: str) -> Counter[bytes]:
        """What a topic holds by now; while there is no master nothing is known."""
        found: Counter[bytes] = Counter()
        try:
            with LogReader(self._made.name_server) as reader:
                for queue in reader.queues(topic):
                    first, last = reader.offsets(queue)
                    while first < last:
                        fetched = reader.fetch(queue, first)
                        found.update(record.body for record in iter_records(fetched.records))
                        first = max(first + 1, fetched.next_offset)
        except PenstockError:
            return Counter()
        return found

    def written(self, count: int) -> bool:
        self.look()
        return sum(self.bodies("out").values()) >= count

    def is_whole(self) -> bool:
        """Each row of the one topic is in the other, once; and the one topic is all there: a query reads what is flushed, and
        the last rows may be stored for a moment before that.
        """
        sent = self.bodies("in")
        return sent.keys() >= self._sent and self.bodies("out") == sent

    def strays(self) -> dict[str, Counter[bytes]]:
        """Which rows are missing, and which came too often, as soon as a master can be asked."""
        topics: list[Counter[bytes]] = []

        def read() -> bool:
            topics[:] = [self.bodies(topic) for topic in ("in", "out")]
            return all(topics)

        eventually(read, 60, "nobody can be asked")
        sent, written = topics
        return {"missing": sent - written, "too often": written - sent}

    def no_more(self) -> None:
        self._over.set()
        self._thread.join(120)
        assert not self._thread.is_alive(), "the last message cannot be sent"

    def stop(self) -> None:
        try:
            self.no_more()
        finally:
            self.query.stop()


@pytest.mark.spark
@pytest.mark.chaos
def test_each_row_once_however_often_the_master_is_killed(tmp_path: Path, etcd: Etcd, spark: SparkSession) -> None:
    made = ElectedSet(tmp_path, etcd, "abc")
    try:
        made.start()
        with penstock.Admin(made.name_server) as admin:
            eventually(lambda: admin.create_topics(["in", "out"], 2) is None)
            eventually(lambda: {"in", "out"} <= set(admin.topics()), 60, "the topics are not registered")
        flow = Flow(made, spark, tmp_path / "checkpoint")
        try:
            written = 0
            for _ in range(KILLS):
                eventually(lambda want=written + ROWS_BETWEEN: flow.written(want), 120, "the query writes nothing")
                master = made.nodes[made.master()]
                master.kill()
                written = sum(flow.bodies("out").values())
                eventually(lambda want=written + ROWS_BETWEEN: flow.written(want), 180, "the query does not go on")
                written += ROWS_BETWEEN
                master.start()
                made.in_sync()
            flow.no_more()
            eventually(lambda: flow.written(0) and flow.is_whole(), 120, "rows are missing, or came twice")
        finally:
            flow.stop()
        for what, rows in flow.strays().items():
            assert not rows, f"{what} behind the end of the query"
    finally:
        made.stop()


class Rows:
    """What the batches of a query brought: (queue, offset) → body; a batch that is run again takes its own place."""

    def __init__(self) -> None:
        self.batches: dict[int, list[tuple[tuple[int, int], bytes]]] = {}

    def take(self, frame: DataFrame, number: int) -> None:
        self.batches[number] = [((row.partition, row.offset), bytes(row.value)) for row in frame.collect()]

    @property
    def all(self) -> list[tuple[tuple[int, int], bytes]]:
        return [row for rows in list(self.batches.values()) for row in rows]


def in_log(registry: str, topic: str) -> list[tuple[tuple[int, int], bytes]]:
    """The same of the master's log."""
    found = []
    with LogReader(registry) as reader:
        for queue in reader.queues(topic):
            first, last = reader.offsets(queue)
            while first < last:
                fetched = reader.fetch(queue, first)
                rows = list(iter_records(fetched.records))
                found += [((row.queue_id, row.queue_offset), bytes(row.body)) for row in rows]
                first = max(first + 1, fetched.next_offset)
    return found


def given(made: ElectedSet, name: str) -> int:
    """How many messages this node has given to readers."""
    with penstock.Admin(made.name_server) as admin:
        return int(admin.runtime_info(made.nodes[name].addresses["remoting"])["msgGetTotalTodayNow"])


@pytest.mark.spark
@pytest.mark.chaos
def test_a_query_reads_at_a_slave_through_a_failover(tmp_path: Path, etcd: Etcd, spark: SparkSession) -> None:
    """H-15: the bytes are the same, nothing comes twice, nothing is missing."""
    made = ElectedSet(tmp_path, etcd)
    rows = Rows()
    try:
        made.start()
        with penstock.Admin(made.name_server) as admin:
            eventually(lambda: admin.create_topics(["in"], 2) is None)
            eventually(lambda: "in" in admin.topics(), 60, "the topic is not registered")
        master = made.master()
        (slave,) = {"a", "b"} - {master}
        with penstock.Producer(made.name_server) as producer:
            for n in range(600):
                producer.send(penstock.Message("in", b"%d" % n * (n % 40 + 1)))
        stream = spark.readStream.format("penstock").options(
            registry=made.name_server, subscribe="in", startingOffsets="earliest", readFrom="slave",
            maxOffsetsPerTrigger="100", columns="partition,offset,value",
        )  # fmt: skip
        query = stream.load().writeStream.foreachBatch(rows.take).trigger(processingTime="0 seconds")
        running = query.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        try:
            eventually(lambda: len(rows.all) >= 200, 120, "the query reads nothing")
            assert given(made, slave) >= 200
            assert given(made, master) == 0
            made.nodes[master].kill()
            wanted = {b"late %d" % n for n in range(200)}
            with penstock.Producer(made.name_server, retries=50) as producer:
                for body in sorted(wanted):
                    eventually(lambda body=body: _sent(producer, body), 60, "nothing can be sent")
            made.nodes[master].start()  # it comes back as the slave
            made.in_sync()
            with penstock.Producer(made.name_server) as producer:
                for n in range(200):
                    producer.send(penstock.Message("in", b"last %d" % n))

            def whole() -> bool:
                assert running.isActive, running.exception()
                there = in_log(made.name_server, "in")  # what is durable by now
                return len(rows.all) >= len(there) >= 1_000

            eventually(whole, 120, "rows are missing")
        finally:
            running.stop()
        there = in_log(made.name_server, "in")
        assert sorted(rows.all) == sorted(there)
        bodies = {body for _, body in there}
        assert wanted <= bodies
        assert {b"last 199", b"599" * 40} <= bodies
    finally:
        made.stop()


def _sent(producer: penstock.Producer, body: bytes) -> bool:
    """Stored, if only at the new master, which is alone."""
    try:
        producer.send(penstock.Message("in", body))
    except PenstockError:
        return False
    return True
