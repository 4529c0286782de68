"""Staged writes over the wire: nothing before PUBLISH, everything after it, once."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.client.reader import LogReader
from penstock.client.staging import Sealed, SinkRun, StageClient, Stager
from penstock.errors import BrokerRefused
from penstock.testing import Broker
from penstock.wire.record import BatchItem, encode_batch, iter_records


def piece(topic: str, queue_id: int, bodies: list[bytes], *, properties: bytes = b"", delayed: bool = False) -> bytes:
    messages = encode_batch(BatchItem(body, properties) for body in bodies)
    name = topic.encode()
    rest = (
        struct.pack(">BB", delayed, len(name))
        + name
        + struct.pack(">iiqI", queue_id, 0, 1_700_000_000_000, len(bodies))
    )
    return struct.pack(">I", len(rest) + len(messages)) + rest + messages


def stage(
    client: StageClient, run: SinkRun, batch: int, bodies: list[bytes], topic: str = "T", queue_id: int = 0
) -> Sealed:
    stager = Stager(client, run, batch)
    for at in range(0, len(bodies), 10):
        stager.add("broker-a", piece(topic, queue_id, bodies[at : at + 10]), len(bodies[at : at + 10]))
    return stager.seal()


def contents(registry: str, topic: str = "T") -> list[bytes]:
    found = []
    with LogReader(registry) as reader:
        for queue in reader.queues(topic):
            at, end = reader.offsets(queue, durable=False)
            while at < end:
                got = reader.fetch(queue, at, durable=False)
                found += [message.body for message in iter_records(got.records, check=True)]
                at = got.next_offset
    return found


def rows(name: str, count: int) -> list[bytes]:
    return [f"{name}-{n}".encode() for n in range(count)]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(tmp_path / "data") as running:
        yield running


@pytest.fixture
def client(broker: Broker) -> Iterator[StageClient]:
    with StageClient(broker.registry, patience_s=5) as made:
        yield made


RUN = SinkRun("sink", "query", "run-1")


def test_rows_are_seen_when_they_are_published_and_once(broker: Broker, client: StageClient) -> None:
    one, two = stage(client, RUN, 0, rows("one", 25)), stage(client, RUN, 0, rows("two", 5))
    assert contents(broker.registry) == []
    first = client.publish(RUN, 0, [two, one])
    assert (first.already, first.rows) == (False, {"broker-a": 30})
    assert contents(broker.registry) == rows("two", 5) + rows("one", 25)
    again = client.publish(RUN, 0, [two, one])
    assert (again.already, again.rows) == (True, {"broker-a": 30})
    other = stage(client, RUN, 0, rows("late", 5))  # not even staged: the batch is over
    assert other.brokers == ()
    assert client.publish(RUN, 4, [stage(client, RUN, 4, rows("four", 3))]).rows == {"broker-a": 3}
    assert contents(broker.registry) == rows("two", 5) + rows("one", 25) + rows("four", 3)


def test_a_publish_names_what_is_there_or_nothing_happens(broker: Broker, client: StageClient) -> None:
    one = stage(client, RUN, 0, rows("one", 5))
    unknown = Sealed(uuid.uuid4().hex, 1, 1, ("broker-a",))
    with pytest.raises(BrokerRefused) as refused:
        client.publish(RUN, 0, [one, unknown])
    assert refused.value.code == 77_002
    assert contents(broker.registry) == []
    assert client.publish(RUN, 0, [one]).rows == {"broker-a": 5}
