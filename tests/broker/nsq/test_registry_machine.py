"""Topics and channels beside a model: they come and go, are paused and emptied, over clean stops and kills, at any level."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from broker.queueside import Side
from penstock.broker.nsq.topics import Topic

EPHEMERAL = b"#ephemeral"
RULES = ({"name": "disk*", "level": "disk"}, {"name": "memory*", "level": "memory"})
TOPICS = st.sampled_from([b"os", b"disk", b"memory", b"memory" + EPHEMERAL])
CHANNELS = st.sampled_from([b"a", b"b", b"c" + EPHEMERAL])


@dataclass
class Known:
    """A topic of the model: how many messages no channel has yet; for each channel how many it has; which are paused."""

    paused: bool = False
    held: int = 0
    depth: dict[bytes, int] = field(default_factory=dict)
    stopped: set[bytes] = field(default_factory=set)

    def share(self) -> None:
        """What nobody has goes to all channels."""
        if self.depth and not self.paused:
            for name in self.depth:
                self.depth[name] += self.held
            self.held = 0


class RegistryMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.known: dict[bytes, Known] = {}

    @initialize()
    def start(self) -> None:
        self.side = Side(self.folder, topic=RULES)

    def _topic(self, name: bytes) -> tuple[Topic, Known]:
        return self.side.queueing.topic(name), self.known.setdefault(name, Known())

    @rule(name=TOPICS)
    def make_topic(self, name: bytes) -> None:
        self._topic(name)
        self.side.turn()

    @rule(name=TOPICS, channel=CHANNELS)
    def make_channel(self, name: bytes, channel: bytes) -> None:
        topic, known = self._topic(name)
        topic.channel(channel)
        if channel not in known.depth:
            known.depth[channel] = 0
            if len(known.depth) == 1:
                known.share()
        self.side.turn()

    @rule(name=TOPICS, sizes=st.lists(st.sampled_from([1, 50, 3000]), min_size=1, max_size=5))
    def publish(self, name: bytes, sizes: list[int]) -> None:
        topic, known = self._topic(name)
        self.side.queueing.publish(topic, [bytes(size) for size in sizes])
        known.held += len(sizes)
        known.share()
        self.side.turn()

    @rule(name=TOPICS, channel=CHANNELS)
    def delete_channel(self, name: bytes, channel: bytes) -> None:
        if name in self.known and channel in self.known[name].depth:
            self.side.queueing.topics[name].delete_channel(channel)
            self.known[name].stopped.discard(channel)
            del self.known[name].depth[channel]
            if name.endswith(EPHEMERAL) and not self.known[name].depth:
                del self.known[name]
            self.side.turn()

    @rule(name=TOPICS)
    def delete_topic(self, name: bytes) -> None:
        if self.known.pop(name, None) is not None:
            self.side.queueing.delete(self.side.queueing.topics[name])
            self.side.turn()

    @rule(name=TOPICS, paused=st.booleans())
    def pause(self, name: bytes, paused: bool) -> None:
        if name in self.known:
            topic = self.side.queueing.topics[name]
            (topic.pause if paused else topic.unpause)()
            self.known[name].paused = paused
            self.known[name].share()
            self.side.turn()

    @rule(name=TOPICS, channel=CHANNELS, paused=st.booleans())
    def pause_channel(self, name: bytes, channel: bytes, paused: bool) -> None:
        if name in self.known and channel in self.known[name].depth:
            topic = self.side.queueing.topics[name]
            topic.pause_channel(topic.channels[channel], paused)
            (self.known[name].stopped.add if paused else self.known[name].stopped.discard)(channel)
            self.side.turn()

    @rule(name=TOPICS)
    def empty(self, name: bytes) -> None:
        if name in self.known:
            self.side.queueing.topics[name].empty()
            self.known[name].held = 0
            self.side.turn()

    @rule(name=TOPICS, channel=CHANNELS)
    def empty_channel(self, name: bytes, channel: bytes) -> None:
        if name in self.known and channel in self.known[name].depth:
            topic = self.side.queueing.topics[name]
            topic.empty_channel(topic.channels[channel])
            self.known[name].depth[channel] = 0
            self.side.turn()

    @rule(ms=st.sampled_from([1, 200, 1_000, 11_000, 60_000]))
    def time_goes_on(self, ms: int) -> None:
        self.side.turn(ms)

    @rule(clean=st.booleans())
    def start_again(self, clean: bool) -> None:
        """What is ephemeral is gone. Behind a kill, of level memory what was on the disk is there; what an only channel had is
        the topic's again where that was ephemeral.
        """
        self.side.reopen(clean)
        self.known = {name: known for name, known in self.known.items() if not name.endswith(EPHEMERAL)}
        for name, known in self.known.items():
            alone = all(channel.endswith(EPHEMERAL) for channel in known.depth)
            known.depth = {channel: n for channel, n in known.depth.items() if not channel.endswith(EPHEMERAL)}
            known.stopped &= known.depth.keys()
            topic = self.side.queueing.topics.get(name)
            if clean or topic is None:
                continue
            if name.startswith(b"memory"):
                known.depth = {channel: _depth(topic, channel, 0) for channel in known.depth}
            if alone or name.startswith(b"memory"):
                known.held = topic.depth()

    @invariant()
    def all_is_as_known(self) -> None:
        if not hasattr(self, "side"):
            return
        topics = self.side.queueing.topics
        assert topics.keys() == self.known.keys()
        for name, known in self.known.items():
            topic = topics[name]
            assert (topic.paused, topic.channels.keys()) == (known.paused, known.depth.keys()), name
            assert {channel for channel, found in topic.channels.items() if found.paused} == known.stopped, name
            if not name.endswith(EPHEMERAL):  # what does not fit its memory is dropped
                assert topic.depth() == known.held, name
                depths = {channel: _depth(topic, channel, depth) for channel, depth in known.depth.items()}
                assert depths == known.depth, name

    def teardown(self) -> None:
        if hasattr(self, "side"):
            self.side.close()
        shutil.rmtree(self.folder)


def _depth(topic: Topic, channel: bytes, known: int) -> int:
    """How many messages a channel has; of an ephemeral one, which drops what does not fit, what is known."""
    if channel.endswith(EPHEMERAL) or channel not in topic.channels:
        return known
    return int(topic.channels[channel].depth())


RegistryMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestRegistryMachine = RegistryMachine.TestCase
