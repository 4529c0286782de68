"""Queue topics and channels of log topics beside a model, through clean stops, kills, and power cuts, one behind the other,
too. The disk keeps what was flushed and any subset of the rest.

What was answered before a kill is there, and what was answered a second before a power cut. The start behind a kill flushes what
it finds before anything is answered.
"""

from __future__ import annotations

import random
import tempfile
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.queueside import Reader, Side
from disk.queue_parts import KeepingFiles
from penstock.clock import FakeClock
from penstock.log import checkpoint

CHANNELS = (b"a", b"b")
RULES = ({"name": "lg", "kind": "log", "queues": 2},)
WINDOW_MS = 1_101  # the promised second, and the longest turn
STEPS = 60
Key = tuple[bytes, bytes]  # topic and channel


class Life:
    """`topics`: those it publishes to, of `level`."""

    def __init__(self, seed: int, root: Path, topics: tuple[bytes, ...], level: str, patch: pytest.MonkeyPatch) -> None:
        self.cuts = 0
        patch.setattr(checkpoint, "boot_id", lambda: f"boot {self.cuts}")
        self.chance = random.Random(seed)
        self.root = root
        self.topics = topics
        self.level = level
        self.clock = FakeClock()
        self.ms = self.number = self.life = 0
        self.durable_ms = 0  # what was answered before is on the disk
        self.sent: dict[
            tuple[bytes, bytes], int
        ] = {}  # topic, body → when it was answered; -1: it was not, or is in doubt
        self.due: dict[bytes, int] = {}
        self.finished: dict[Key, dict[bytes, int]] = defaultdict(dict)
        self.told: dict[Key, set[bytes]] = defaultdict(set)  # FIN was sent at some time
        self.readers: dict[Key, Reader] = {}
        self.in_hand: dict[Key, dict[int, bytes]] = {}
        self.start_on(root / "0")
        for topic in topics:
            for name in CHANNELS:
                self.side.queueing.topic(topic).channel(name)
        self.side.broker.save_tables()
        self.pass_time(1_300)

    def start_on(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        files = KeepingFiles(folder, self.chance.randrange(1 << 30))
        files.adopt()
        self.side = Side(folder, self.clock, files, level=self.level, topic=RULES)

    def pass_time(self, ms: int) -> None:
        while ms > 0:
            step = min(ms, self.chance.choice((1, 20, 90)))
            ms -= step
            self.ms += step
            self.side.turn(step)
            self.receive()

    def publish(self) -> None:
        topic = self.chance.choice(self.topics)
        delay_ms = self.chance.choice((0, 0, 0, 1, 50, 300, 1_500))
        bodies = []
        for _ in range(1 if delay_ms else self.chance.choice((1, 1, 3, 10))):
            self.number += 1
            bodies.append(b"%d|" % self.number + self.chance.randbytes(self.chance.choice((3, 60, 700, 5_000))))
        self.sent.update({(topic, body): -1 for body in bodies})
        self.due.update(dict.fromkeys(bodies, self.ms + delay_ms))
        ticket = self.side.queueing.publish(self.side.queueing.topic(topic), bodies, delay_ms)
        life = self.life

        def answered(good: bool) -> None:
            if good and life == self.life:
                self.sent.update({(topic, body): self.ms for body in bodies})

        if ticket is None:
            answered(True)
        else:
            ticket.then(answered)

    def subscribe(self, key: Key, ready: int) -> None:
        if key not in self.readers:
            channel, reader = self.side.queueing.topic(key[0]).channel(key[1]), Reader()
            reader.msg_timeout_ms = 2_000
            channel.add(reader)
            self.readers[key], self.in_hand[key] = reader, {}
        self.readers[key].ready_count = ready
        self.side.queueing.mark_channel(self.side.queueing.topic(key[0]).channel(key[1]))
        self.side.turn()
        self.receive()

    def receive(self) -> None:
        for key, reader in self.readers.items():
            for delivery in reader.deliveries():
                body = delivery.body
                assert (key[0], body) in self.sent
                assert body not in self.finished[key], f"{body[:9]!r} was finished on {key}, and came at {self.ms}"
                assert self.ms >= self.due[body] - 1, f"{body[:9]!r} came early"
                self.in_hand[key][delivery.id] = body

    def consume(self, key: Key, finishes: float) -> None:
        channel, reader = self.side.queueing.topic(key[0]).channel(key[1]), self.readers[key]
        mono_ms = self.side.broker.mono_ms
        for message_id, body in list(self.in_hand[key].items()):
            if self.chance.random() < finishes:
                if channel.finish(reader, message_id, self.side.broker.now_ns, mono_ms) == 0:
                    self.finished[key][body] = self.ms
                    self.told[key].add(body)
            elif self.chance.random() < 0.5:
                channel.requeue(reader, message_id, self.chance.choice((0, 30, 400, 1_500)), mono_ms)
            else:
                continue
            del self.in_hand[key][message_id]
        self.side.queueing.mark_channel(channel)
        self.side.turn()
        self.receive()

    def restart(self, clean: bool) -> None:
        self.side.broker.close(clean)
        self._began()
        self.side.open()
        self.side.turn()
        self.durable_ms = self.ms

    def cut_power(self) -> None:
        """What was answered just now may be there, or not."""
        bound = max(self.ms - WINDOW_MS, self.durable_ms)
        old, folder = self.side.files, self.root / str(self.life + 1)
        old.power_cut(folder)
        self.side.broker.close(False)
        old.let_go()
        if self.level != "disk":
            self.sent.update({sent: -1 for sent, at in self.sent.items() if at >= bound})
        for finished in self.finished.values():
            for body in [body for body, at in finished.items() if at >= bound]:
                del finished[body]
        self.cuts += 1
        self._began()
        self.start_on(folder)
        self.side.turn()
        self.durable_ms = self.ms

    def _began(self) -> None:
        self.readers, self.in_hand = {}, {}
        self.life += 1
        self.ms += 50  # ids are times: no machine starts within a millisecond
        self.clock.advance(50)

    def drain(self) -> None:
        keys = [(topic, name) for topic in self.topics for name in CHANNELS]
        for _ in range(40):
            for key in keys:
                self.subscribe(key, 100)
                self.consume(key, 1)
            self.pass_time(100)
        for key in keys:
            lost = [
                body[:9]
                for (topic, body), at in self.sent.items()
                if topic == key[0] and at >= 0 and body not in self.told[key]
            ]
            assert not lost, f"{key} lost {lost}"
            channel = self.side.queueing.topic(key[0]).channel(key[1])
            self.side.queueing.topic(key[0]).refresh()
            channel.check()
            assert (channel.depth(), channel.in_flight_count, channel.deferred_count) == (0, 0, 0)

    def step(self) -> None:
        luck = self.chance.random()
        if luck < 0.37:
            self.publish()
        elif luck < 0.47:
            self.subscribe(
                (self.chance.choice(self.topics), self.chance.choice(CHANNELS)), self.chance.choice((1, 5, 100))
            )
        elif luck < 0.70:
            for key in self.readers:
                self.consume(key, 0.7)
        elif luck < 0.91:
            self.pass_time(self.chance.choice((1, 5, 30, 200, 700)))
        elif luck < 0.95:
            self.restart(self.chance.random() < 0.3)
        else:
            if luck > 0.97:
                self.restart(clean=False)
            self.cut_power()


@pytest.mark.parametrize(
    ("topics", "level"), [((b"t",), "os"), ((b"t",), "disk"), pytest.param((b"t", b"lg"), "os", marks=pytest.mark.once)]
)
@settings(max_examples=4)
@given(seed=st.integers(0, 1 << 32))
def test_what_was_answered_outlives_kills_and_power_cuts(topics: tuple[bytes, ...], level: str, seed: int) -> None:
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        life = Life(seed, Path(name), topics, level, patch)
        for _ in range(STEPS):
            life.step()
        life.drain()
        life.side.broker.close(True)
        life.side.files.let_go()
