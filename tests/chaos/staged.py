"""Sinks that stage, seal and publish batches while the power goes, by the Spark sink's own client, and the oracle:

S1  what an answered PUBLISH held is there, at every level, and so is what a durable reader saw
S2  once, and of one attempt only
S3  a batch is there wholly or not at all; what nobody asked to publish is not there
S4  what an answered SEAL of level `disk` held can be published after the cut
S5  a PUBLISH said again says `already`, counts the same rows and adds none
"""

from __future__ import annotations

import contextlib
import itertools
import random
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from fronts.raw_peer import RawPeer
from penstock.client.staging import Sealed, SinkRun, StageClient, StagedLost, Stager
from penstock.errors import BrokerRefused, ClientError, WireError
from penstock.wire.codes import ResponseCode
from penstock.wire.record import BatchItem, encode_batch, iter_records

TOPIC, LATER = "Staged", "StagedLater"
QUEUES = 4
SINKS = ("sink-1", "sink-2")
BROKER = "broker-a"
WAIT_S = 10.0  # what is delayed may take its time


def piece(topic: str, queue_id: int, bodies: list[bytes], delay_ms: int = 0) -> bytes:
    properties = b"TIMER_DELAY_MS\x01%d\x02" % delay_ms if delay_ms else b""
    messages = encode_batch(BatchItem(body, properties) for body in bodies)
    rest = struct.pack(">BB", delay_ms > 0, len(topic)) + topic.encode()
    rest += struct.pack(">iiqI", queue_id, 0, time.time_ns() // 1_000_000, len(bodies))
    return struct.pack(">I", len(rest) + len(messages)) + rest + messages


@dataclass
class Batch:
    """One batch of one sink, as its newest driver knows it."""

    number: int
    level: str
    sealed: list[Sealed] = field(default_factory=list)
    bodies: set[bytes] = field(default_factory=set)
    shown: set[bytes] = field(default_factory=set)  # those of them that are not delayed
    asked: bool = False  # PUBLISH was sent


@dataclass
class Sink:
    """`last` was answered, `pending` was not. `attempts` numbers the tasks, so that the rows of each are their own."""

    name: str
    run: SinkRun
    last: Batch | None = None
    pending: Batch | None = None
    attempts: Iterator[int] = field(default_factory=itertools.count)


class StagedLoad:
    """Two sinks and a durable reader, until the connection ends."""

    topics = (TOPIC, LATER)

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.sinks = [Sink(name, SinkRun(name, "query", f"{name}-0")) for name in SINKS]
        self.published: set[bytes] = set()  # their PUBLISH was answered
        self.asked: set[bytes] = set()  # was sent
        self.seen: set[bytes] = set()  # by the durable reader
        self.at = dict.fromkeys(range(QUEUES), 0)  # how far it has read
        self.batches = 0
        self.fault = ""
        self.is_cut = False
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    # -- while the broker lives

    def start(self, address: str, registry: str) -> None:
        self.is_cut = False
        works = [(self._write, (registry, sink, random.Random(self.chance.random()))) for sink in self.sinks]
        self._threads = [threading.Thread(target=work, args=args, daemon=True) for work, args in works]
        self._threads.append(threading.Thread(target=self._watch, args=(address,), daemon=True))
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()

    def object(self, rule: str, text: str) -> None:
        self.fault = self.fault or f"{rule}: {text}"

    def _write(self, registry: str, sink: Sink, chance: random.Random) -> None:
        try:
            with StageClient(registry, patience_s=0) as client:
                while True:
                    self.one_batch(client, sink, chance)
        except (ClientError, WireError, OSError) as error:
            if not self.is_cut:
                self.object("answer", f"{error!r} to {sink.name}")

    def one_batch(self, client: StageClient, sink: Sink, chance: random.Random) -> None:
        """Stage, seal, publish; sometimes say it again."""
        number = 0 if sink.last is None else sink.last.number + 1
        batch = sink.pending = Batch(number, chance.choice(("os", "disk", "disk")))
        for _ in range(chance.choice((1, 1, 3))):
            self._task(client, sink, batch, chance)
        self._publish(client, sink, batch)
        if chance.random() < 0.2:
            self._again(client, sink)

    def _task(self, client: StageClient, sink: Sink, batch: Batch, chance: random.Random) -> None:
        attempt = next(sink.attempts)
        stager = Stager(client, sink.run, batch.number, inflight=2, level=batch.level)
        bodies: set[bytes] = set()
        shown: set[bytes] = set()
        try:
            for chunk in range(chance.choice((1, 2, 4))):
                delayed = chance.random() < 0.15
                rows = [
                    b"%s/%d/%d/%d.%d|" % (sink.name.encode(), batch.number, attempt, chunk, n)
                    + chance.randbytes(chance.choice((4, 100, 800)))
                    for n in range(chance.choice((1, 10, 40)))
                ]
                delay_ms = chance.choice((50, 400)) if delayed else 0
                queue_id = 0 if delayed else chance.randrange(QUEUES)
                stager.add(BROKER, piece(LATER if delayed else TOPIC, queue_id, rows, delay_ms), len(rows))
                bodies.update(rows)
                shown.update(() if delayed else rows)
            sealed = stager.seal()
        finally:
            stager.close()
        if sealed.brokers:  # else the batch was published before
            batch.bodies |= bodies
            batch.shown |= shown
            batch.sealed.append(sealed)

    def _publish(self, client: StageClient, sink: Sink, batch: Batch, *, again: bool = False) -> None:
        with self._lock:
            self.asked |= batch.bodies
            batch.asked = True
        told = client.publish(sink.run, batch.number, batch.sealed)
        if (told.already and not again) or sum(told.rows.values()) != len(batch.bodies):
            self.object(
                "S5", f"batch {batch.number} of {sink.name}, {len(batch.bodies)} rows, was answered with {told}"
            )
        self.batches += 1
        self.published |= batch.bodies
        sink.last, sink.pending = batch, None

    def _again(self, client: StageClient, sink: Sink) -> None:
        batch = sink.last
        assert batch is not None
        told = client.publish(sink.run, batch.number, batch.sealed)
        counts = {len(batch.bodies)}
        if sink.pending is not None and sink.pending.asked:
            counts.add(0)  # the broker counts the rows of its newest batch only, and that may be the pending one
        if not told.already or sum(told.rows.values()) not in counts:
            self.object("S5", f"batch {batch.number} of {len(batch.bodies)} rows, said again, was answered with {told}")
        if not Stager(client, sink.run, batch.number).over():
            self.object("S5", f"{sink.name} may stage its published batch {batch.number}")

    def _watch(self, address: str) -> None:
        """Durable reads: what is seen was asked for, and the rest of its batch is there by the next sweep."""
        partial: set[frozenset[bytes]] = set()
        with contextlib.suppress(OSError, EOFError, KeyError), RawPeer(address) as peer:
            while True:
                for queue_id in range(QUEUES):
                    fresh, self.at[queue_id] = _pulled(peer, TOPIC, queue_id, self.at[queue_id], durable="true")
                    self.seen.update(fresh)
                with self._lock:
                    unasked = self.seen - self.asked - {b"first"}
                if unasked:
                    self.object("S3", f"rows seen that nobody published: {_name(unasked)}")
                partial -= {batch for batch in partial if batch <= self.seen}
                if partial:
                    self.object("S3", f"a reader saw a part of a batch: {_name(next(iter(partial)))}")
                recent = [batch for sink in self.sinks for batch in (sink.last, sink.pending) if batch is not None]
                shown = {frozenset(batch.shown) for batch in recent if batch.asked}
                partial = {batch for batch in shown if batch & self.seen and not batch <= self.seen}
                time.sleep(0.01)

    # -- after the cut

    def check(self, address: str, registry: str) -> str:
        """The objection, or nothing. Batches that were not answered are published again, or staged anew by a new run."""
        self._look(address)
        if not self.fault:
            with StageClient(registry, patience_s=10) as client:
                for sink in self.sinks:
                    self._resume(client, sink)
        if not self.fault:
            self._look(address)
        return self.fault

    def _resume(self, client: StageClient, sink: Sink) -> None:
        chance, batch = self.chance, sink.pending
        if sink.last is not None:
            self._again(client, sink)
        renewed = chance.random() < 0.5
        if renewed:
            sink.run = SinkRun(sink.name, "query", f"{sink.name}-{next(sink.attempts)}")
        if batch is None:
            return
        if batch.sealed and not (renewed and chance.random() < 0.5):
            try:
                self._publish(client, sink, batch, again=True)
                return
            except (StagedLost, BrokerRefused) as error:
                lost = isinstance(error, StagedLost) or error.code == ResponseCode.STAGE_LOST
                if not lost or batch.level == "disk":
                    self.object("S4", f"batch {batch.number} of {sink.name}, sealed at {batch.level}: {error}")
                    return
        fresh = sink.pending = Batch(batch.number, "disk")
        self._task(client, sink, fresh, chance)
        if fresh.sealed:  # what was staged before must not be seen any more
            self._publish(client, sink, fresh)
        else:
            self._publish(client, sink, batch, again=True)

    def _look(self, address: str) -> None:
        deadline = time.monotonic() + WAIT_S
        while True:
            found = Counter(body for topic in self.topics for body in _bodies(address, topic) if body != b"first")
            rule, text = self._judge(found)
            if not rule or rule == "S2" or time.monotonic() > deadline:
                break
            time.sleep(0.1)  # it falls due
        if rule:
            self.object(rule, text)

    def _judge(self, found: Counter[bytes]) -> tuple[str, str]:
        twice = [body for body, count in found.items() if count > 1]
        if twice:
            return "S2", f"{len(twice)} rows twice: {_name(twice)}"
        missing = self.published - found.keys()
        if missing:
            return "S1", f"{len(missing)} of {len(self.published)} published rows are lost: {_name(missing)}"
        gone = self.seen - found.keys() - {b"first"}
        if gone:
            return "S1", f"{len(gone)} rows that a durable reader saw are lost: {_name(gone)}"
        allowed = set(self.published)
        for sink in self.sinks:
            batch = sink.pending
            if batch is not None and batch.asked:
                allowed |= batch.bodies
                there = len(batch.bodies & found.keys())
                if there not in (0, len(batch.bodies)):
                    return "S3", f"{there} of {len(batch.bodies)} rows of a batch: {_name(batch.bodies)}"
        strange = found.keys() - allowed
        if strange:
            return "S3", f"{len(strange)} rows that were not published: {_name(strange)}"
        return "", ""


def _name(bodies: Iterable[bytes]) -> str:
    return min(bodies).split(b"|")[0].decode()


def _pulled(peer: RawPeer, topic: str, queue_id: int, offset: int, **how: str) -> tuple[list[bytes], int]:
    """The bodies from an offset to the end of a queue, and where that is."""
    found = []
    while True:
        answer = peer.pull(topic, queue_id, offset, maxBytes=1 << 20, maxMsgNums=4096, **how)
        at = int(answer.ext["nextBeginOffset"])
        if answer.code == 0:
            found += [message.body for message in iter_records(answer.body, check=True)]
        if answer.code in (17, 19) or at <= offset:
            return found, offset
        offset = at


def _bodies(address: str, topic: str) -> list[bytes]:
    with RawPeer(address) as peer:
        return [body for queue_id in range(QUEUES) for body in _pulled(peer, topic, queue_id, 0)[0]]
