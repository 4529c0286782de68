"""How long single log topics keep their messages, by time and by size, where that is not as long as the broker's log.

Shorter: what is too old or too much goes out of sight as by a purge; the log is shared, and its segments stay as long as
ever. Longer: the segments from the topic's oldest message on stay, whosever messages they hold, unless the disk is too full.
Topics that stand in place of queue topics keep what a channel of theirs has not finished, in the same way.
Looked at once a minute, so many messages a turn.
"""

from __future__ import annotations

import logging

from penstock.broker.core import Core
from penstock.broker.nsq.logchannels import LogChannels
from penstock.broker.nsq.queueing import Queueing
from penstock.broker.nsq.sources import queue_lanes
from penstock.broker.topics import LogTopic
from penstock.delivery.channel import Channel
from penstock.log.consumequeue import ConsumeQueue
from penstock.wire.layout import FILLER_SIZE

log = logging.getLogger("penstock.broker")

EVERY_MS = 60_000
COUNT_MAX = 20_000  # messages whose sizes are looked at in one turn


class _Sum:
    """How many bytes the messages of a queue have, from one offset to another."""

    def __init__(self, offset: int) -> None:
        self.begin = self.end = offset
        self.bytes = 0


class Keeping:
    """See the module. `tick` in each turn that comes anyway."""

    def __init__(self, core: Core, queueing: Queueing) -> None:
        self._core = core
        self._queueing = queueing
        self._due_ms = 0
        self._left: list[LogTopic] = []  # of this minute
        self._sums: dict[ConsumeQueue, _Sum] = {}

    def open(self) -> None:
        """The store is open."""
        retention = self._core.store.upkeep.retention
        if retention is not None:
            retention.protect(self.protected)

    def tick(self, mono_ms: int, now_ms: int) -> int:
        """Look at some topics; when to come again."""
        if mono_ms < self._due_ms:
            return self._due_ms
        if self._core.store.following:  # its master says where the queues begin
            self._due_ms = mono_ms + EVERY_MS
            return self._due_ms
        if not self._left:
            self._left = [topic for topic in self._core.topics.by_name.values() if topic.keep_ms or topic.keep_bytes]
            live = {queue for topic in self._left if topic.keep_bytes for queue in topic.queues}
            self._sums = {queue: found for queue, found in self._sums.items() if queue in live}
        budget = COUNT_MAX
        while self._left and budget > 0:
            budget -= self._look(self._left[-1], now_ms, budget)
        self._due_ms = mono_ms + (1 if self._left else EVERY_MS)
        return self._due_ms

    def _look(self, topic: LogTopic, now_ms: int, budget: int) -> int:
        """Let go of what one topic keeps too long; what that cost. It is off the list when all of it was counted."""
        places = {queue.queue_id: queue.min_offset for queue in topic.queues}
        if topic.keep_ms and self._trusts(now_ms):
            for queue in topic.queues:
                found = self._core.store.offset_by_time(queue, now_ms - topic.keep_ms, lower=True)
                places[queue.queue_id] = max(places[queue.queue_id], found)
        cost = 1
        if topic.keep_bytes:
            for queue in topic.queues:
                cost += self._count(queue, places[queue.queue_id], budget - cost)
            if cost <= budget:
                cost += self._cut(topic, places)
        if cost <= budget:
            self._left.pop()
        moved = {n: place for n, place in places.items() if place > topic.queues[n].min_offset}
        if moved and topic.open:
            self._core.topics.purge(topic, moved, now_ms)
            face = self._queueing.topics.get(topic.name)
            if isinstance(face, LogChannels):
                face.purge(moved)
            log.debug("topic kept shorter name=%s queues=%d", topic.name.decode(), len(moved))
        return cost

    def _trusts(self, now_ms: int) -> bool:
        """Whether the clock is right, as far as anybody can tell: a wrong one hides what should be seen."""
        core = self._core
        retention = core.store.upkeep.retention
        return retention is None or retention.trusts(now_ms, core.time.mono_ms)

    def _count(self, queue: ConsumeQueue, begin: int, budget: int) -> int:
        """Bring the sum of a queue up to date, as far as the budget goes; how many entries were looked at."""
        found = self._sums.setdefault(queue, _Sum(begin))
        cost = 0
        if begin >= found.end:
            found.begin = found.end = begin
            found.bytes = 0
        while found.begin < begin and cost < budget:
            found.bytes -= _size(queue, found.begin)
            found.begin += 1
            cost += 1
        end = queue.visible_end()
        while found.end < end and cost < budget:
            found.bytes += _size(queue, found.end)
            found.end += 1
            cost += 1
        return cost + (found.end < end or found.begin < begin)

    def _cut(self, topic: LogTopic, places: dict[int, int]) -> int:
        """The oldest messages of all queues, until what is left is not too much."""
        sums = [self._sums[queue] for queue in topic.queues]
        cost = 0
        while sum(found.bytes for found in sums) > topic.keep_bytes:
            heads = [
                (queue.entry(found.begin) or (0,))[0] if found.begin < found.end else 1 << 62
                for queue, found in zip(topic.queues, sums, strict=True)
            ]
            oldest = heads.index(min(heads))
            found, queue = sums[oldest], topic.queues[oldest]
            found.bytes -= _size(queue, found.begin)
            found.begin += 1
            places[queue.queue_id] = found.begin
            cost += len(heads)
        return cost

    def protected(self) -> int:
        """From where on the log is kept for topics that keep their messages longer than the broker does, or for channels."""
        core = self._core
        limit, now_ms = core.store.log.end, core.time.now_ms
        for topic in core.topics.by_name.values():
            if topic.keep_ms > core.store.options.file_reserved_time_ms:
                for queue in topic.queues:
                    place = core.store.offset_by_time(queue, now_ms - topic.keep_ms, lower=True)
                    entry = queue.entry(place) if place < queue.visible_end() else None
                    if entry is not None:
                        limit = min(limit, entry[0])
            if topic.owed:
                for queue in topic.queues:
                    limit = min(limit, _position(queue, self._owed_from(topic, queue), limit))
        return limit

    def _owed_from(self, topic: LogTopic, queue: ConsumeQueue) -> int:
        """The first offset of a queue that some channel has not finished; all is owed to one that does not read it yet, and to
        the first channel there will be.
        """
        face = self._queueing.topics.get(topic.name)
        if not isinstance(face, LogChannels):
            return 0
        places = [_place(channel, queue) for channel in face.channels.values() if not channel.ephemeral]
        return min(places, default=face.holding.first(queue))


def _place(channel: Channel, queue: ConsumeQueue) -> int:
    """The first offset of a queue that a channel has not finished; 0 when it does not read the queue."""
    here = queue_lanes(channel)
    return here[queue.queue_id].file.committed if queue.queue_id < len(here) else 0


def _position(queue: ConsumeQueue, offset: int, otherwise: int) -> int:
    """Where in the log the first message from an offset on lies."""
    for place in range(max(offset, queue.min_offset), queue.max_offset):
        entry = queue.entry(place)
        if entry is not None and entry[1] != FILLER_SIZE:
            return int(entry[0])
    return otherwise


def _size(queue: ConsumeQueue, offset: int) -> int:
    entry = queue.entry(offset)
    return 0 if entry is None or entry[1] == FILLER_SIZE else entry[1]
