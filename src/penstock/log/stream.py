"""LogStream: one message queue of a log topic as a channel's cursor reads it; an ordinal is a queue offset.

A message's NSQ id is its place in the commit log, plus one, its timestamp the moment it was stored.
"""

# mypy: disable-error-code="no-any-return"
from __future__ import annotations

import cython

from penstock.disk.stream import Stream
from penstock.wire.record import decode_record

if cython.compiled:
    from cython.cimports.penstock.disk.segments import Segment
    from cython.cimports.penstock.log.consumequeue import ConsumeQueue
    from cython.cimports.penstock.log.store import LogStore
    from cython.cimports.penstock.octets import address, be32, be64
else:
    from penstock.disk.segments import Segment
    from penstock.log.consumequeue import ConsumeQueue
    from penstock.log.store import LogStore
    from penstock.octets import address, be32, be64

# rocketmq.md §5.1: total size 0, magic 4, CRC 8, queue id 12, flag 16, queue offset 20, physical offset 28, sys flag 36,
# born time 40, born host 48 (8 or 20), store time, store host, reconsume times, prepared offset, body length, body.
# Bits of the sys flag: 1 the body is compressed, 16 and 32 the hosts have 20 bytes.


class LogStream(Stream):
    """See the module. `durable`: only what is flushed may be read."""

    def __init__(self, store: LogStore, queue: ConsumeQueue, durable: bool) -> None:
        Stream.__init__(self)
        self.store = store
        self.queue = queue
        self.durable = durable
        self._segment: Segment | None = None
        self._held = b""

    def begin(self) -> int:
        return self.queue.min_offset

    def end(self) -> int:
        end = self.queue.visible_end()
        if self.durable:
            flushed = self.queue.durable_end(self.store.durability.flushed)
            if flushed < end:
                end = flushed
        return end

    def next(self, ordinal: int) -> int:
        return ordinal if ordinal >= self.queue.min_offset else self.queue.min_offset

    def count(self, ordinal: int) -> int:
        begin = self.next(ordinal)
        end = self.end()
        return end - begin if end > begin else 0

    def find(self, ordinal: int) -> int:
        entry = self.queue.entry(ordinal)
        if entry is None:
            return 0
        physical = entry[0]
        size = entry[1]
        log = self.store.log
        if size <= 88 or log.check(physical) != size or not log.stands_for(physical, self.queue.queue_id, ordinal):
            return self.find(ordinal) if self.store.mend(self.queue, ordinal) else 0
        segment = log.file.at(physical)
        if segment is None:
            return 0
        self._segment = segment  # keeps the mapping while the record is shown
        at = physical - segment.first
        base = segment.base
        flags = be32(base, at + 36)
        born = 20 if flags & 16 else 8
        host = 20 if flags & 32 else 8
        self.stamp_ns = be64(base, at + 48 + born) * 1000000
        self.attempts = be32(base, at + 56 + born + host)
        start = at + 68 + born + host
        self.length = be32(base, start)
        self.message_id = physical + 1  # never 0
        self.base = base
        self.at = start + 4
        if flags & 1:
            return self._inflate(physical)
        return 1

    def _inflate(self, physical: int) -> int:
        record = self.store.record_at(physical)
        message = None if record is None else decode_record(record)
        if message is None:
            return 0
        body = message.body
        self._held = body
        self.base = address(body) if body else self.base
        self.at = 0
        self.length = len(body)
        return 1
