"""Every way to read, while a PUBLISH has got half way, and when a restart has finished it: nothing, then everything."""

from __future__ import annotations

import contextlib
import json
import re
import struct
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chaos.jobs import Peer
from fronts.raw_peer import RawPeer
from penstock.broker.publish import BatchPublish
from penstock.client.reader import LogReader
from penstock.client.staging import SinkRun, StageClient, Stager
from penstock.errors import BrokerRefused, Refused
from penstock.log.veil import Veils
from penstock.testing import Broker
from penstock.wire.codes import RequestCode
from penstock.wire.record import BatchItem, encode_batch, iter_records
from penstock.wire.remoting import RemotingCommand, encode
from polling import eventually

TOPIC, RUN, ROWS = "half", SinkRun("sink", "query", "run"), 60
SETTLED_S = 20.0


def piece(queue_id: int, count: int) -> bytes:
    messages = encode_batch(BatchItem(b"%d" % n, b"KEYS\x01staged") for n in range(count))
    rest = struct.pack(">BB4siiqI", 0, len(TOPIC), TOPIC.encode(), queue_id, 0, 1_700_000_000_000, count)
    return struct.pack(">I", len(rest) + len(messages)) + rest + messages


def stage(client: StageClient) -> list[Any]:
    """Rows for two queues, in one piece each."""
    stager = Stager(client, RUN, 0)
    for queue_id in (0, 1):
        stager.add("broker-a", piece(queue_id, ROWS), ROWS)
    return [stager.seal()]


class Views:
    """How many rows of the topic each way to read sees. One message was there before, in queue 0."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.ways: dict[str, Callable[[], int]] = {
            "pull": lambda: self.pulled(), "durable pull": lambda: self.pulled(durable="true"),
            "large pull": lambda: self.pulled(maxBytes=1 << 20), "max offset": lambda: self.ends(),
            "durable max offset": lambda: self.ends(durable="true"), "the Spark source": self.planned,
            "by key": self.by_key, "by time": self.by_time, "by id": self.by_id, "topic stats": self.topic_stats,
            "NSQ channel": self.depth,
        }  # fmt: skip

    def pulled(self, **fields: Any) -> int:
        total = 0
        with RawPeer(self.broker.remoting) as peer:
            for queue_id in range(4):
                offset = 0
                while (answer := peer.pull(TOPIC, queue_id, offset, maxMsgNums=1000, **fields)).code == 0:
                    total += len(list(iter_records(answer.body)))
                    offset = int(answer.ext["nextBeginOffset"])
        return total

    def ends(self, **fields: Any) -> int:
        with RawPeer(self.broker.remoting) as peer:
            asked = [peer.ask(30, {"topic": TOPIC, "queueId": n, **fields}) for n in range(4)]
        return sum(int(answer.ext["offset"]) for answer in asked)

    def planned(self) -> int:
        pytest.importorskip("pyspark")
        from penstock.spark.read.source import Source, connection

        source = Source({"registry": self.broker.registry, "subscribe": TOPIC})
        loaded = source.loaded
        connection(source.options).close()
        assert loaded is not None
        return sum(end - begin for begin, end in loaded.values())

    def by_key(self) -> int:
        with RawPeer(self.broker.remoting) as peer:
            span = {"maxNum": 64, "beginTimestamp": 0, "endTimestamp": 1 << 60}
            found = [peer.ask(12, {"topic": TOPIC, "key": key, **span}) for key in ("staged", "before")]
        return sum(len(list(iter_records(answer.body))) for answer in found if answer.code == 0)

    def by_time(self) -> int:
        """Behind everything: the offset that is found is the end."""
        with LogReader(self.broker.registry) as reader:
            return sum(reader.offset_at(queue, 1 << 50) for queue in reader.queues(TOPIC))

    def by_id(self) -> int:
        """Whoever guesses where a record is."""

        def places(server: Any) -> list[int]:
            queues = server.broker.store.queues[TOPIC.encode()].values()
            return [queue.entry(n)[0] for queue in queues for n in range(queue.max_offset)]

        found = 0
        with RawPeer(self.broker.remoting) as peer:
            for physical in self.broker.call(places):
                answer = peer.ask(33, {"offset": physical})
                found += answer.code == 0
        return found

    def topic_stats(self) -> int:
        with RawPeer(self.broker.remoting) as peer:
            answer = peer.ask(202, {"topic": TOPIC})
        return sum(int(end) for end in re.findall(rb'"maxOffset":(\d+)', answer.body))

    def depth(self) -> int:
        with urllib.request.urlopen(f"http://{self.broker.http}/stats?format=json&topic={TOPIC}", timeout=30) as told:
            (topic,) = json.load(told)["topics"]
        (channel,) = topic["channels"]
        return int(channel["depth"] + channel["in_flight_count"] + channel["deferred_count"])

    def all(self) -> dict[str, int]:
        return {name: look() for name, look in self.ways.items()}

    def demand(self, count: int) -> None:
        """All ways see so many rows, at last (a key gives 64 at most): what is flushed follows soon."""
        expected = {**dict.fromkeys(self.ways, count), "by key": min(count, 1 + 64)}
        with contextlib.suppress(AssertionError):
            eventually(lambda: self.all() == expected, SETTLED_S)
        assert self.all() == expected


def before(broker: Broker) -> None:
    """One message, and an NSQ channel over the topic."""
    with RawPeer(broker.remoting) as peer:
        assert peer.send(TOPIC, b"before", {"KEYS": "before"}).code == 0
    with Peer(broker.nsq) as peer_:
        assert peer_.ask(b"SUB %s c\n" % TOPIC.encode()) == b"OK"


def test_a_publish_that_stopped_half_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = BatchPublish._append_piece

    def fails(self: BatchPublish, found: Any, *more: Any) -> None:
        if found.queue_id:
            raise Refused("no room", remoting=14)
        real(self, found, *more)

    with Broker(tmp_path / "data") as broker, StageClient(broker.registry, patience_s=0) as client:
        before(broker)
        views = Views(broker)
        views.demand(1)
        staged = stage(client)
        monkeypatch.setattr(BatchPublish, "_append_piece", fails)
        with pytest.raises(BrokerRefused, match="a restart of the broker finishes it"):
            client.publish(RUN, 0, staged)
        with pytest.raises(BrokerRefused, match="a restart of the broker finishes the publish that was cut short"):
            client.publish(RUN, 0, staged)  # repeated: it is not true that nothing is published
        assert broker.call(lambda server: server.broker.store.queues[TOPIC.encode()][0].max_offset) == 1 + ROWS
        assert views.all() == dict.fromkeys(views.ways, 1)
        monkeypatch.undo()
    with Broker(tmp_path / "data") as broker:
        Views(broker).demand(1 + 2 * ROWS)


def test_a_publish_whose_offsets_are_not_all_reserved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows are in the log, and stay hidden until every queue of the batch may show its own."""
    with Broker(tmp_path / "data") as broker, StageClient(broker.registry, patience_s=5) as client:
        before(broker)
        views = Views(broker)
        staged = stage(client)
        views.demand(1)
        lift = Veils.lift
        monkeypatch.setattr(Veils, "lift", lambda self: None)
        with RawPeer(broker.remoting) as peer:
            ext = {**RUN.ext(), "coordinator": "broker-a", "batch": "0"}
            body = json.dumps({"tokens": [staged[0].token]}).encode()
            peer.write(encode(RemotingCommand(RequestCode.STAGE_PUBLISH, ext, body, opaque=77)))
            deadline = time.monotonic() + SETTLED_S
            while broker.call(lambda server: server.broker.staging.published) == 0:
                assert time.monotonic() < deadline
            assert views.all() == dict.fromkeys(views.ways, 1)
            assert peer.got == []
            monkeypatch.setattr(Veils, "lift", lift)
            views.demand(1 + 2 * ROWS)
            assert peer.read().opaque == 77
