"""LogStream: one message queue of a log topic as a channel's cursor reads it; an ordinal is a queue offset.

A message's NSQ id is its place in the commit log, plus one, its timestamp the moment it was stored.
"""

# mypy: disable-error-code="no-any-return"
from __future__ import annotations

import cython

from penstock.disk.stream import Stream
from penstock.wire.record import decode_record

if cython.compiled:
    from cython.cimports.penstock import words
    from cython.cimports.penstock.disk.segments import Segment
    from cython.cimports.penstock.log.consumequeue import ConsumeQueue
    from cython.cimports.penstock.log.store import LogStore
    from cython.cimports.penstock.octets import address, be32, be64
    from cython.cimports.penstock.wire import layout
else:
    from penstock import words
    from penstock.disk.segments import Segment
    from penstock.log.consumequeue import ConsumeQueue
    from penstock.log.store import LogStore
    from penstock.octets import address, be32, be64
    from penstock.wire import layout


class LogStream(Stream):
    """See the module. `level`: of the topic; only what has reached it may be read."""

    def __init__(self, store: LogStore, queue: ConsumeQueue, level: int) -> None:
        Stream.__init__(self)
        self.store = store
        self.queue = queue
        self.level = level
        self.held = words.FAR_MS  # of a paused topic: readers see nothing from here on
        self._segment: Segment | None = None
        self._body = b""

    def hold(self, end: int) -> int:
        """Readers see what lies below this ordinal. Returns 0."""
        self.held = end
        return 0

    def read_at(self, level: int) -> None:
        """The topic has another level from now on."""
        self.level = level

    def begin(self) -> int:
        return self.queue.min_offset

    def end(self) -> int:
        end = self.queue.visible_end()
        if end > self.held:
            end = self.held
        if self.level != words.LEVEL_OS:
            reached = self._reached()
            if reached < self.queue.shown:
                reached = self.queue.shown
            if reached < end:
                end = reached
        return end

    def _reached(self) -> int:
        """The first offset whose record has not reached the level."""
        store = self.store
        if self.level == words.LEVEL_DISK or store.confirmed < 0:
            return self.queue.durable_end(store.durability.flushed)
        return self.queue.durable_end(store.confirmed if self.level == words.LEVEL_PAIR else store.confirmed_flushed)

    def next(self, ordinal: int) -> int:
        return ordinal if ordinal >= self.queue.min_offset else self.queue.min_offset

    def count(self, ordinal: int) -> int:
        begin = self.next(ordinal)
        end = self.end()
        return end - begin if end > begin else 0

    def find(self, ordinal: int) -> int:
        self.awaits = False
        entry = self.queue.entry(ordinal)
        if entry is None:
            return 0
        physical = entry[0]
        size = entry[1]
        log = self.store.log
        whole = size >= layout.RECORD_FIXED_BYTES and log.check(physical) == size
        if not whole or not log.stands_for(physical, self.queue.queue_id, ordinal):
            if self.store.mend(self.queue, ordinal):
                return self.find(ordinal)
            if self.store.repair is not None:
                if size == layout.FILLER_SIZE:
                    physical = -1
                self.awaits = self.store.repair.awaits(self.queue.topic, self.queue.queue_id, ordinal, physical)
            return 0
        segment = log.file.at(physical)
        if segment is None:
            return 0
        self._segment = segment  # keeps the mapping while the record is shown
        at = physical - segment.first
        base = segment.base
        flags = be32(base, at + layout.SYS_FLAG)
        if flags & layout.SYS_BORN_IPV6:
            at += layout.HOST_V6_MORE
        self.stamp_ns = be64(base, at + layout.STORE_MS) * words.NS_A_MS
        if flags & layout.SYS_STORE_IPV6:
            at += layout.HOST_V6_MORE
        self.attempts = be32(base, at + layout.RECONSUME_TIMES)
        start = at + layout.BODY_LENGTH
        self.length = be32(base, start)
        self.message_id = physical + 1  # never 0
        self.base = base
        self.at = start + layout.LENGTH_BYTES
        if flags & layout.SYS_COMPRESSED:
            return self._inflate(physical)
        return 1

    def _inflate(self, physical: int) -> int:
        record = self.store.record_at(physical)
        message = None if record is None else decode_record(record)
        if message is None:
            return 0
        body = message.body
        self._body = body
        self.base = address(body) if body else self.base
        self.at = 0
        self.length = len(body)
        return 1
