"""How the history measures topics, groups and channels: counters that are there anyway, read once a second at most."""

from __future__ import annotations

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

    def every(self) -> dict[Key, Probe]:
        """Every topic, group and channel there is now."""
        core, found = self._core, dict[Key, Probe]()
        reads: dict[bytes, list[GetCounts]] = {}
        groups: dict[tuple[str, str], GetCounts | None] = dict.fromkeys(core.offsets.table)
        for group in core.groups.by_name.values():
            for name, counts in group.get_counts.items():
                reads.setdefault(name, []).append(counts)
                groups[name.decode(), group.name] = counts
        queues = self._queueing.topics
        for name, stored in core.topics.by_name.items():
            text = name.decode()
            if not is_system_topic(core.config, text):
                found[Key("topic", text)] = self._log_topic(stored, queues.get(name), reads.get(name, []))
        for name, topic in queues.items():
            text = name.decode()
            if Key("topic", text) not in found and name not in core.topics.by_name:
                found[Key("topic", text)] = self._queue_topic(topic)
            for channel in topic.channels.values():
                found[Key("channel", text, channel.name.decode())] = self._channel(channel)
        for (text, group_name), got in groups.items():
            log_topic = core.topics.by_name.get(text.encode())
            own = Key("channel", text, group_name)
            if log_topic is not None and own not in found and not is_system_topic(core.config, text):
                found[Key("group", text, group_name)] = self._group(log_topic, text, group_name, got)
        return found

    def disk(self) -> list[float]:
        """The values of `history.DISK_FIELDS`."""
        store = self._core.store
        behind = store.end_position - store.flushed_position
        held = store.end_position - store.min_position
        retention = store.upkeep.retention
        used = 0.0 if retention is None else retention.used_ratio
        return [used, float(held), float(behind), float(len(self._core.schedule))]

    @staticmethod
    def _log_topic(stored: LogTopic, topic: Topic | None, reads: list[GetCounts]) -> Probe:
        def counts() -> Counts:
            out = 0
            for got in reads:
                out += got[0]
            if topic is not None:
                for channel in topic.channels.values():
                    out += channel.finish_count
            return stored.message_count, out, stored.put_bytes, 0

        return Probe(counts, _nothing)

    @staticmethod
    def _queue_topic(topic: Topic) -> Probe:
        def counts() -> Counts:
            out = 0
            for channel in topic.channels.values():
                out += channel.finish_count
            return topic.message_count, out, topic.message_bytes, topic.depth()

        return Probe(counts, _unknown)

    def _channel(self, channel: Channel) -> Probe:
        time = self._core.time

        def counts() -> Counts:
            lag = channel.depth() + channel.in_flight_count + channel.deferred_count
            return channel.message_count, channel.finish_count, 0, lag

        return Probe(counts, lambda: channel_lag_ms(channel, time.now_ms))

    def _group(self, stored: LogTopic, topic: str, group: str, got: GetCounts | None) -> Probe:
        core, table, key = self._core, self._core.offsets.table, (topic, group)

        def counts() -> Counts:
            lag = group_lag(stored.queues[: stored.read_queues], table.get(key, {}))
            return (stored.message_count, 0, 0, lag) if got is None else (stored.message_count, got[0], got[1], lag)

        def age_ms() -> float:
            queues = stored.queues[: stored.read_queues]
            return group_oldest_ms(core.store, queues, table.get(key, {}), core.time.now_ms)

        return Probe(counts, age_ms)


def _nothing() -> float:
    return 0.0


def _unknown() -> None:
    """How old the messages of a topic are that no channel has taken is not looked for."""
