"""How the history measures topics, groups and channels: counters that are there anyway, read once a second at most.

All of them are listed once a minute, and when one has come or gone. What was made for the last list is taken again where it is
about the same objects: of ten thousand topics, a list that is made anew is a hundred thousand objects for the collector to go by.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from operator import is_

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
Made = tuple[tuple[object, ...], Key | None, Probe]  # what it is about; None: nobody asks about it


class Probes:
    """What there is to be measured at one broker."""

    def __init__(self, core: Core, queueing: Queueing) -> None:
        self._core = core
        self._queueing = queueing
        self._made: dict[Hashable, Made] = {}  # for the last list

    def shape(self) -> tuple[int, ...]:
        """Cheap to ask, and another one when something has come or gone; almost: a minute may pass before the rest is seen."""
        core, queues = self._core, self._queueing.topics
        reads = sum([len(group.get_counts) for group in core.groups.by_name.values()])
        channels = sum([len(topic.channels) for topic in queues.values()])
        return len(core.topics.by_name), len(queues), channels, len(core.offsets.table), reads

    def every(self) -> dict[Key, Probe]:
        """Every topic, group and channel there is now."""
        core = self._core
        reads: dict[bytes, list[GetCounts]] = {}
        groups: dict[tuple[str, str], GetCounts | None] = dict.fromkeys(core.offsets.table)
        for group in core.groups.by_name.values():
            for name, counts in group.get_counts.items():
                reads.setdefault(name, []).append(counts)
                groups[name.decode(), group.name] = counts
        by_name, queues = core.topics.by_name, self._queueing.topics
        made, fresh = self._made, dict[Hashable, Made]()
        for name, stored in by_name.items():
            about: tuple[object, ...] = (stored, queues.get(name), *reads.get(name, ()))
            kept = made.get(name)
            if kept is None or not _same(kept[0], about):
                kept = about, *self._log_topic(name, stored, queues.get(name), reads.get(name, []))
            fresh[name] = kept
        for name, queue in queues.items():
            if name not in by_name:
                kept = made.get(name)
                if kept is None or kept[0][0] is not queue:
                    kept = (queue,), *self._queue_topic(name, queue)
                fresh[name] = kept
            for channel in queue.channels.values():
                fresh[channel] = made.get(channel) or ((queue,), *self._channel(name, channel))
        for pair, got in groups.items():
            name = pair[0].encode()
            if (log_topic := by_name.get(name)) is None or (
                name in queues and pair[1].encode() in queues[name].channels
            ):
                continue
            kept = made.get(pair)
            if kept is None or kept[0][0] is not log_topic or kept[0][1] is not got:
                kept = (log_topic, got), *self._group(log_topic, *pair, got)
            fresh[pair] = kept
        self._made = fresh
        return {key: probe for _, key, probe in fresh.values() if key is not None}

    def disk(self) -> list[float]:
        """The values of `history.DISK_FIELDS`."""
        store = self._core.store
        behind = store.end_position - store.flushed_position
        held = store.end_position - store.min_position
        retention = store.upkeep.retention
        used = 0.0 if retention is None else retention.used_ratio
        return [used, float(held), float(behind), float(len(self._core.schedule))]

    def _log_topic(
        self, name: bytes, stored: LogTopic, topic: Topic | None, reads: Sequence[GetCounts]
    ) -> tuple[Key | None, Probe]:
        def counts() -> Counts:
            out = 0
            for got in reads:
                out += got[0]
            if topic is not None:
                for channel in topic.channels.values():
                    out += channel.finish_count
            return stored.message_count, out, stored.put_bytes, 0

        return self._key("topic", name.decode()), Probe(counts, _nothing)

    def _key(self, kind: str, topic: str, name: str = "") -> Key | None:
        return None if is_system_topic(self._core.config, topic) else Key(kind, topic, name)

    @staticmethod
    def _queue_topic(name: bytes, topic: Topic) -> tuple[Key | None, Probe]:
        def counts() -> Counts:
            out = 0
            for channel in topic.channels.values():
                out += channel.finish_count
            return topic.message_count, out, topic.message_bytes, topic.depth()

        return Key("topic", name.decode()), Probe(counts, _unknown)

    def _channel(self, name: bytes, channel: Channel) -> tuple[Key | None, Probe]:
        time = self._core.time

        def counts() -> Counts:
            lag = channel.depth() + channel.in_flight_count + channel.deferred_count
            return channel.message_count, channel.finish_count, 0, lag

        key = Key("channel", name.decode(), channel.name.decode())
        return key, Probe(counts, lambda: channel_lag_ms(channel, time.now_ms))

    def _group(self, stored: LogTopic, topic: str, group: str, got: GetCounts | None) -> tuple[Key | None, Probe]:
        core, table, key = self._core, self._core.offsets.table, (topic, group)

        def counts() -> Counts:
            lag = group_lag(stored.queues[: stored.read_queues], table.get(key, {}))
            return (stored.message_count, 0, 0, lag) if got is None else (stored.message_count, got[0], got[1], lag)

        def age_ms() -> float:
            queues = stored.queues[: stored.read_queues]
            return group_oldest_ms(core.store, queues, table.get(key, {}), core.time.now_ms)

        return self._key("group", topic, group), Probe(counts, age_ms)


def _nothing() -> float:
    return 0.0


def _unknown() -> None:
    """How old the messages of a topic are that no channel has taken is not looked for."""


def _same(kept: tuple[object, ...], about: tuple[object, ...]) -> bool:
    """Whether both are about the same objects."""
    return len(kept) == len(about) and all(map(is_, kept, about))
