"""How the history measures topics, groups and channels: counters that are there anyway, read once a second at most.

A list of all there is may be gone on with in later turns, and nothing of it outlives the next step but the probes themselves: of
a hundred thousand, what is made and kept until the end is something for the collector to go by.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.broker.core import Core
from penstock.broker.groups import lag as group_lag
from penstock.broker.groups import oldest_ms as group_oldest_ms
from penstock.broker.history import Counts, Key, Probe
from penstock.broker.nsq.queueing import Queueing
from penstock.broker.nsq.sources import lag_ms as channel_lag_ms
from penstock.broker.nsq.topics import Topic
from penstock.broker.systemtopics import is_system_topic
from penstock.broker.topics import LogTopic
from penstock.delivery.channel import Channel

GetCounts = list[int]  # of a group and a topic: messages, bytes, …


class Probes:
    """What there is to be measured at one broker."""

    def __init__(self, core: Core, queueing: Queueing) -> None:
        self._core = core
        self._queueing = queueing

    def shape(self) -> tuple[int, ...]:
        """Cheap to ask, and another one when something has come or gone; almost: a minute may pass before the rest is seen."""
        core, queues = self._core, self._queueing.topics
        reads = sum([len(group.get_counts) for group in core.groups.by_name.values()])
        channels = sum([len(topic.channels) for topic in queues.values()])
        return len(core.topics.by_name), len(queues), channels, len(core.offsets.table), reads

    def every(self) -> Iterator[tuple[Key, Probe] | None]:
        """Every topic, group and channel there is now. It may be gone on with in later turns; None is a step of the way."""
        core = self._core
        reads: dict[bytes, list[GetCounts]] = {}
        for group in list(core.groups.by_name.values()):
            for name, counts in group.get_counts.items():
                reads.setdefault(name, []).append(counts)
            yield None
        queues = dict(self._queueing.topics)
        for name, stored in list(core.topics.by_name.items()):
            text = name.decode()
            if is_system_topic(core.config, text):
                yield None
            else:
                yield Key("topic", text), LogTopicProbe(stored, queues.get(name), reads.get(name, []))
        for name, topic in queues.items():
            text = name.decode()
            if name not in core.topics.by_name:
                yield Key("topic", text), QueueTopicProbe(topic)
            for channel in list(topic.channels.values()):
                yield Key("channel", text, channel.name.decode()), ChannelProbe(core, channel)
        for text, group_name in list(core.offsets.table):
            yield self._group(text, group_name)
        for group in list(core.groups.by_name.values()):
            for name in list(group.get_counts):
                text = name.decode()
                yield None if (text, group.name) in core.offsets.table else self._group(text, group.name)

    def _group(self, topic: str, name: str) -> tuple[Key, Probe] | None:
        """A group on a topic; a channel of the same name is told already."""
        core, at = self._core, topic.encode()
        stored, face = core.topics.by_name.get(at), self._queueing.topics.get(at)
        if stored is None or is_system_topic(core.config, topic) or (face and name.encode() in face.channels):
            return None
        group = core.groups.by_name.get(name)
        return Key("group", topic, name), GroupProbe(
            core, stored, (topic, name), None if group is None else group.get_counts.get(at)
        )

    def disk(self) -> list[float]:
        """The values of `history.DISK_FIELDS`."""
        store = self._core.store
        behind = store.end_position - store.flushed_position
        held = store.end_position - store.min_position
        retention = store.upkeep.retention
        used = 0.0 if retention is None else retention.used_ratio
        return [used, float(held), float(behind), float(len(self._core.schedule))]


class LogTopicProbe:
    """A log topic, its channels and the groups that read it."""

    __slots__ = ("_reads", "_stored", "_topic")

    def __init__(self, stored: LogTopic, topic: Topic | None, reads: list[GetCounts]) -> None:
        self._stored = stored
        self._topic = topic
        self._reads = reads

    def counts(self) -> Counts:
        out = 0
        for got in self._reads:
            out += got[0]
        if self._topic is not None:
            for channel in self._topic.channels.values():
                out += channel.finish_count
        return self._stored.message_count, out, self._stored.put_bytes, 0

    def lag_ms(self) -> float | None:
        return 0.0


class QueueTopicProbe:
    """A queue topic."""

    __slots__ = ("_topic",)

    def __init__(self, topic: Topic) -> None:
        self._topic = topic

    def counts(self) -> Counts:
        out = 0
        for channel in self._topic.channels.values():
            out += channel.finish_count
        return self._topic.message_count, out, self._topic.message_bytes, self._topic.depth()

    def lag_ms(self) -> float | None:
        """How old the messages are that no channel has taken is not looked for."""
        return None


class ChannelProbe:
    """A channel of either kind of topic."""

    __slots__ = ("_channel", "_core")

    def __init__(self, core: Core, channel: Channel) -> None:
        self._core = core
        self._channel = channel

    def counts(self) -> Counts:
        channel = self._channel
        lag = channel.depth() + channel.in_flight_count + channel.deferred_count
        return channel.message_count, channel.finish_count, 0, lag

    def lag_ms(self) -> float | None:
        return channel_lag_ms(self._channel, self._core.time.now_ms)


class GroupProbe:
    """A group on a topic, and what it was given of it since the start, if anything."""

    __slots__ = ("_core", "_got", "_key", "_stored")

    def __init__(self, core: Core, stored: LogTopic, key: tuple[str, str], got: GetCounts | None) -> None:
        self._core = core
        self._stored = stored
        self._key = key
        self._got = got

    def counts(self) -> Counts:
        stored, got = self._stored, self._got
        lag = group_lag(stored.queues[: stored.read_queues], self._core.offsets.table.get(self._key, {}))
        return (stored.message_count, 0, 0, lag) if got is None else (stored.message_count, got[0], got[1], lag)

    def lag_ms(self) -> float | None:
        stored, core = self._stored, self._core
        queues = stored.queues[: stored.read_queues]
        return group_oldest_ms(core.store, queues, core.offsets.table.get(self._key, {}), core.time.now_ms)
