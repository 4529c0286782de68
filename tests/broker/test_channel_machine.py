"""Channels over every source beside a model made of dictionaries, with clean stops and kills among the steps."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from broker.queueside import Reader, Side
from penstock.errors import Refused

CHANNELS = (b"a", b"b")
KINDS = ("os", "disk", "memory", "log")


class Model:
    """What one channel owes: body → when it may come (monotonic ms)."""

    def __init__(self) -> None:
        self.owed: dict[bytes, int] = {}
        self.deferred: set[bytes] = set()
        self.in_flight: dict[bytes, tuple[Reader, int]] = {}
        self.finished: set[bytes] = set()


class ChannelMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.number = 0
        self.sent: set[bytes] = set()
        self.coming: set[bytes] = set()  # published to a log with a delay: they are the topic's until they are due

    @initialize(kind=st.sampled_from(KINDS))
    def begin(self, kind: str) -> None:
        self.kind = kind
        rules = ({"name": "t", "kind": "log", "queues": 2},) if kind == "log" else ()
        self.side = Side(self.folder, level="os" if kind == "log" else kind, topic=rules)
        self.models = {name: Model() for name in CHANNELS}
        self.readers: dict[bytes, list[Reader]] = {name: [] for name in CHANNELS}
        for name in CHANNELS:
            self.side.queueing.topic(b"t").channel(name)
        self.side.turn()

    @property
    def now(self) -> int:
        return self.side.clock.monotonic_ms()

    def channel(self, name: bytes):
        return self.side.queueing.topic(b"t").channel(name)

    def settle(self, ms: int = 0) -> None:
        """A turn, and what it delivered is compared with the model."""
        self.side.turn(ms)
        for name, readers in self.readers.items():
            model = self.models[name]
            for body, (_, deadline) in list(model.in_flight.items()):
                if deadline <= self.now:
                    del model.in_flight[body]
                    model.owed[body] = self.now
            for reader in readers:
                for message in reader.deliveries():
                    body = message.body
                    assert body in self.sent, "a message that nobody sent"
                    assert body not in model.finished, "a finished message came again"
                    assert body not in model.in_flight, "in flight twice"
                    assert body in model.owed, "not owed to this channel"
                    assert model.owed[body] <= self.now, "before its time"
                    assert message.attempts >= 1
                    del model.owed[body]
                    model.deferred.discard(body)
                    model.in_flight[body] = (reader, self.now + reader.msg_timeout_ms)
                    self.ids[name, body] = message.id

    ids: dict[tuple[bytes, bytes], int]

    @initialize()
    def no_ids(self) -> None:
        self.ids = {}

    @rule(count=st.integers(1, 6), size=st.integers(0, 3000), defer_ms=st.sampled_from([0, 0, 0, 700, 5000]))
    def publish(self, count: int, size: int, defer_ms: int) -> None:
        bodies = []
        for _ in range(count if not defer_ms else 1):
            self.number += 1
            bodies.append(b"%d " % self.number + b"x" * size)
        topic = self.side.queueing.topic(b"t")
        if topic.paused and defer_ms:
            return
        ticket = self.side.queueing.publish(topic, bodies, defer_ms)
        answered: list[bool] = [] if ticket else [True]
        if ticket:
            ticket.then(answered.append)
        self.sent.update(bodies)
        if defer_ms and self.kind == "log":
            self.coming.update(bodies)
        for model in self.models.values():
            for body in bodies:
                model.owed[body] = self.now + defer_ms
                if defer_ms:
                    model.deferred.add(body)
        self.settle()
        assert answered == [True]

    @rule(name=st.sampled_from(CHANNELS), ready=st.integers(1, 20))
    def subscribe(self, name: bytes, ready: int) -> None:
        reader = Reader()
        reader.ready_count = ready
        reader.msg_timeout_ms = 3000
        channel = self.channel(name)
        channel.add(reader)
        self.readers[name].append(reader)
        self.side.queueing.mark_channel(channel)
        self.settle()

    def _some(self, name: bytes, which: int):
        flying = self.models[name].in_flight
        if not flying:
            return None
        body = list(flying)[which % len(flying)]
        return body, flying[body][0], self.ids[name, body]

    @rule(name=st.sampled_from(CHANNELS), which=st.integers(0, 100))
    def finish(self, name: bytes, which: int) -> None:
        found = self._some(name, which)
        if found is None:
            return
        body, reader, message_id = found
        channel = self.channel(name)
        assert channel.finish(reader, message_id, self.side.broker.now_ns, self.now) == 0
        assert channel.finish(reader, message_id, self.side.broker.now_ns, self.now) == 1
        del self.models[name].in_flight[body]
        self.models[name].finished.add(body)
        self.side.queueing.mark_channel(channel)
        self.settle()

    @rule(name=st.sampled_from(CHANNELS), which=st.integers(0, 100), delay_ms=st.sampled_from([0, 0, 400, 4000]))
    def requeue(self, name: bytes, which: int, delay_ms: int) -> None:
        found = self._some(name, which)
        if found is None:
            return
        body, reader, message_id = found
        channel = self.channel(name)
        assert channel.requeue(reader, message_id, delay_ms, self.now) == 0
        model = self.models[name]
        del model.in_flight[body]
        model.owed[body] = self.now + delay_ms
        if delay_ms:
            model.deferred.add(body)
        self.side.queueing.mark_channel(channel)
        self.settle()

    @rule(name=st.sampled_from(CHANNELS), which=st.integers(0, 100))
    def touch(self, name: bytes, which: int) -> None:
        found = self._some(name, which)
        if found is not None:
            body, reader, message_id = found
            assert self.channel(name).touch(reader, message_id, self.now) == 0
            self.models[name].in_flight[body] = (reader, self.now + 3000)

    @rule(ms=st.sampled_from([1, 100, 500, 1500, 6000]))
    def wait(self, ms: int) -> None:
        self.settle(ms)
        if self.kind == "disk":
            # Of several that came due at once, a copy is finished ahead for the channels it is not owed to before its own
            # flush lets it be counted: for that long depths are too low.
            for _ in range(3):
                self.settle()

    @rule(name=st.sampled_from(CHANNELS))
    def leave(self, name: bytes) -> None:
        if self.readers[name]:
            self.channel(name).remove(self.readers[name].pop(0))
            self.settle()

    @rule(name=st.sampled_from(CHANNELS), paused=st.booleans())
    def pause_channel(self, name: bytes, paused: bool) -> None:
        topic = self.side.queueing.topic(b"t")
        topic.pause_channel(self.channel(name), paused)
        self.settle()

    @precondition(lambda self: self.kind != "log")
    @rule(paused=st.booleans())
    def pause_topic(self, paused: bool) -> None:
        topic = self.side.queueing.topic(b"t")
        if paused:
            topic.pause()
        else:
            topic.unpause()
        self.settle()

    @rule(name=st.sampled_from(CHANNELS))
    def empty(self, name: bytes) -> None:
        topic = self.side.queueing.topic(b"t")
        if topic.paused:
            return
        topic.empty_channel(self.channel(name))
        model = self.models[name]
        kept = {body: due for body, due in model.owed.items() if body in self.coming and due > self.now}
        model.finished.update(body for body in (*model.owed, *model.in_flight) if body not in kept)
        model.owed = kept
        model.deferred.clear()
        model.in_flight.clear()
        self.settle()
        assert self.channel(name).depth() == 0
        assert self.channel(name).deferred_count == 0

    @rule(clean=st.booleans())
    def stop_and_start(self, clean: bool) -> None:
        if self.kind == "memory" and not clean:
            return
        self.side.reopen(clean)
        for name, model in self.models.items():
            self.readers[name] = []
            for body in list(model.in_flight):
                model.owed[body] = self.now
            model.in_flight.clear()
            if self.kind == "memory":  # a clean stop puts what was deferred in memory into the queue
                for body in model.deferred:
                    model.owed[body] = self.now
                model.deferred.clear()
        self.settle()

    @invariant()
    def counts_agree(self) -> None:
        if not hasattr(self, "side"):
            return
        topic = self.side.queueing.topic(b"t")
        for name, model in self.models.items():
            channel = topic.channels[name]
            channel.check()
            assert channel.in_flight_count == len(model.in_flight)
            if not topic.paused:
                total = channel.depth() + channel.in_flight_count + channel.deferred_count
                if self.kind != "log":  # a log's DPUB waits outside its channels
                    assert total == len(model.owed) + len(model.in_flight), "depth, in flight and deferred"

    def teardown(self) -> None:
        if hasattr(self, "side"):
            try:
                self.drain()
            finally:
                self.side.close()
        shutil.rmtree(self.folder)

    def drain(self) -> None:
        """In the end everything that is owed comes, and nothing else."""
        topic = self.side.queueing.topic(b"t")
        if self.kind != "log":
            topic.unpause()
        for name in CHANNELS:
            topic.pause_channel(self.channel(name), False)
            self.subscribe(name, 2000)
        for _ in range(8):
            self.settle(6000)
            for name in CHANNELS:
                while found := self._some(name, 0):
                    body, reader, message_id = found
                    assert self.channel(name).finish(reader, message_id, self.side.broker.now_ns, self.now) == 0
                    del self.models[name].in_flight[body]
                    self.models[name].finished.add(body)
        for model in self.models.values():
            assert not model.owed, "lost"


def test_refused_names(tmp_path: Path) -> None:
    side = Side(tmp_path)
    for name in (b"", b"a/b", b"a b", b"x" * 65, b"#ephemeral", b"a\n"):
        with pytest.raises(Refused) as caught:
            side.queueing.topic(name)
        assert caught.value.nsq == "E_BAD_TOPIC"
    side.close()


# -- what the search found ---------------------------------------------------------------------------------------------


def owed_by(side: Side, name: bytes) -> list[bytes]:
    """What a channel gives in the end, everything finished."""
    reader = Reader()
    reader.ready_count = 2000
    channel = side.queueing.topic(b"t").channel(name)
    channel.add(reader)
    found = []
    for _ in range(4):
        side.queueing.mark_channel(channel)
        side.turn(6000)
        for message in reader.deliveries():
            found.append(message.body)
            assert channel.finish(reader, message.id, side.broker.now_ns, side.broker.mono_ms) == 0
    return found


@pytest.mark.parametrize("level", ["os", "disk", "memory"])
@pytest.mark.parametrize("count", [1, 40])
def test_a_paused_topic_owes_every_channel_after_a_clean_stop(tmp_path: Path, level: str, count: int) -> None:
    side = Side(tmp_path, level=level)
    topic = side.queueing.topic(b"t")
    for name in CHANNELS:
        topic.channel(name)
    side.turn()
    topic.pause()
    bodies = [b"%d" % n for n in range(count)]
    side.queueing.publish(topic, bodies)
    side.turn()
    side.reopen(clean=True)
    topic = side.queueing.topic(b"t")
    assert topic.paused
    assert topic.depth() == count
    topic.unpause()
    for name in CHANNELS:
        assert sorted(owed_by(side, name)) == sorted(bodies), name
    side.close()


@pytest.mark.parametrize("which", range(6))
@pytest.mark.parametrize("level", ["os", "disk", "memory"])
def test_finished_out_of_order_stays_finished_over_a_clean_stop(tmp_path: Path, level: str, which: int) -> None:
    """Of what came from the disk part of a memory queue, the older ones are still in hand."""
    side = Side(tmp_path, level=level)
    topic = side.queueing.topic(b"t")
    channel = topic.channel(b"b")
    reader = Reader()
    reader.ready_count = 6
    channel.add(reader)
    side.turn()
    bodies = [b"%d" % n for n in range(8)]
    side.queueing.publish(topic, bodies)
    side.turn()
    flying = list(reader.deliveries())
    assert len(flying) == 6
    assert channel.finish(reader, flying[which].id, side.broker.now_ns, side.broker.mono_ms) == 0
    side.reopen(clean=True)
    again = side.queueing.topic(b"t").channel(b"b")
    assert again.depth() == 7
    assert sorted(owed_by(side, b"b")) == sorted(body for body in bodies if body != flying[which].body)
    side.close()


TestChannels = ChannelMachine.TestCase
TestChannels.settings = settings(
    max_examples=100,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
