"""Finding messages otherwise than by offset: by time, by key, by place; and the record of an entry that was damaged."""

# mypy: disable-error-code="no-any-return"
from __future__ import annotations

import logging

import cython

from penstock.errors import StoreError
from penstock.log.consumequeue import ConsumeQueue
from penstock.log.draft import Draft
from penstock.log.state import LogState

if cython.compiled:
    from cython.cimports.penstock.octets import address, be32, be64, java_hash
    from cython.cimports.penstock.wire import layout
else:
    from penstock.octets import address, be32, be64, java_hash
    from penstock.wire import layout

log = logging.getLogger("penstock.log")

_QUERY_MAX, _QUERY_PLACES = 64, 1_024  # records of a query, and how many entries of its hash are looked at
_MEND_ENTRIES, _MEND_BYTES = 1_000, 256 << 20  # how far a damaged entry's neighbour, and its record, is looked for


class Lookup(LogState):
    """A log's state with the ways to find records in it."""

    def positions(self, physical: int, count: int) -> list[int]:
        """The positions of `count` records that follow each other from `physical` on."""
        found = []
        for _ in range(count):
            found.append(physical)
            physical += self.log.size_at(physical)
        return found

    def store_time(self, queue: ConsumeQueue, offset: int) -> int:
        """Store time of the message at offset in ms; -1 when there is none."""
        if offset < queue.min_offset:
            return -1
        entry = queue.entry(offset)
        if entry is None or entry[1] <= 0 or self.log.size_at(entry[0]) != entry[1]:
            return -1
        return self._store_time_at(entry[0])

    def _store_time_at(self, physical: int) -> int:
        segment = self.log.file.at(physical)
        at = physical - segment.first  # type: ignore[union-attr]
        if be32(segment.base, at + layout.SYS_FLAG) & layout.SYS_BORN_IPV6:  # type: ignore[union-attr]
            at += layout.HOST_V6_MORE
        return be64(segment.base, at + layout.STORE_MS)  # type: ignore[union-attr]

    def _first_since(self, queue: ConsumeQueue, ms: int) -> int:
        low = queue.min_offset
        end = high = queue.visible_end()
        while low < high:
            middle = (low + high) // 2
            probe = middle
            when = -1
            while probe < high and when < 0:
                when = self.store_time(queue, probe)
                probe += 1
            if 0 <= when < ms:
                low = probe
            else:
                high = middle
        while low < end and self.store_time(queue, low) < 0:
            low += 1
        return low

    def offset_by_time(self, queue: ConsumeQueue, ms: int, lower: bool = False) -> int:
        """The offset for a moment, as RocketMQ finds it: an exact hit, else the nearer neighbour, the earlier on a
        tie; after the last message the last one, 0 for an empty queue. With `lower`: the first stored at or after ms,
        the end when there is none. Never beyond what readers see.
        """
        end = queue.visible_end()
        if end <= queue.min_offset:
            return end if lower else 0
        after = self._first_since(queue, ms)
        if lower:
            return after
        before = after - 1
        while before >= queue.min_offset and self.store_time(queue, before) < 0:
            before -= 1
        if before < queue.min_offset:
            return after
        if after >= end:
            return before
        later = self.store_time(queue, after)
        return after if later - ms < ms - self.store_time(queue, before) else before

    def query(self, topic: bytes, key: bytes, max_num: int, begin_ms: int, end_ms: int) -> list[bytes]:
        """Records of the topic that carry the key (in KEYS or as UNIQ_KEY) and were stored in begin … end, newest
        first.
        """
        if self.index is None:
            return []
        max_num = min(max_num, _QUERY_MAX)
        prefix = topic + b"#" + key
        h = java_hash(address(prefix), 0, len(prefix), 0)
        if h < 0:
            h = -h
        if h > layout.INDEX_HASH_MAX:
            h = 0
        found: list[bytes] = []
        seen: set[int] = set()
        for physical in self.index.find(h, begin_ms, end_ms, _QUERY_PLACES):
            if physical in seen or len(found) >= max_num:
                continue
            seen.add(physical)
            record = self.record_at(physical)
            if (
                record is not None
                and self._carries(record, topic, key)
                and begin_ms <= self._store_time_at(physical) <= end_ms
            ):
                found.append(record)
        return found

    def _carries(self, record: bytes, topic: bytes, key: bytes) -> bool:
        d = Draft()
        d.load(address(record), 0)
        if d.topic_name() != topic:
            return False
        start = len(record) - d.props_len
        uniq_at = start + d.uniq_pos - d.props_pos
        keys_at = start + d.keys_pos - d.props_pos
        if d.uniq_len and record[uniq_at : uniq_at + d.uniq_len] == key:
            return True
        return d.keys_len > 0 and key in record[keys_at : keys_at + d.keys_len].split(b" ")

    # ---- damaged entries

    def mend(self, queue: ConsumeQueue, offset: int) -> bool:
        """An entry that leads to no record of its own: find the record in the log, behind the one before it, and write the
        entry anew. False when the entry is right (it is the record that is damaged), or the record is not found.
        """
        if (queue.topic, queue.queue_id, offset) in self._unmended:
            return False
        self._unmended.add((queue.topic, queue.queue_id, offset))
        entry = queue.entry(offset)
        commit_log, first = self.log, self.log.file.first
        if entry is None or entry == (0, layout.FILLER_SIZE, 0) or offset < queue.min_offset:
            return False
        if entry[0] >= first and entry[1] >= layout.RECORD_FIXED_BYTES:
            size = commit_log.size_at(entry[0])
            follows = entry[0] + entry[1]
            if size < 0 and (follows == commit_log.end or commit_log.size_at(follows) >= 0):
                return False
            if size == entry[1] and commit_log.stands_for(entry[0], queue.queue_id, offset):
                return False
        position = first
        for before in range(offset - 1, max(queue.min_offset, offset - _MEND_ENTRIES) - 1, -1):
            known = queue.entry(before)
            if known is None or known[1] < layout.RECORD_FIXED_BYTES or not first <= known[0] < commit_log.end:
                continue
            if commit_log.check(known[0]) == known[1] and commit_log.stands_for(known[0], queue.queue_id, before):
                position = known[0] + known[1]
                break
        if not self._mend_from(queue, offset, position):
            return False
        self._unmended.discard((queue.topic, queue.queue_id, offset))
        return True

    def _mend_from(self, queue: ConsumeQueue, offset: int, position: int) -> bool:
        d = Draft()
        d.tail_len = 0
        stop = min(self.log.end, position + _MEND_BYTES)
        while position < stop:
            segment = self.log.file.at(position)
            if segment is None:
                return False
            size = self.log.check(position)
            if size < 0:
                return False
            if size == 0:
                position = segment.first + segment.size
                continue
            at = position - segment.first
            queue_id, queue_offset = (
                be32(segment.base, at + layout.QUEUE_ID),
                be64(segment.base, at + layout.QUEUE_OFFSET),
            )
            if queue_id == queue.queue_id and queue_offset == offset:
                d.load(segment.base, at)
                if d.topic_name() == queue.topic and not d.sys_flag & layout.SYS_HALF:
                    code = d.tags_code
                    if queue.by_level:
                        code = d.store_ms + self._delay(d.queue_id)
                    try:
                        queue.put_at(offset, position, size, code)
                    except StoreError:
                        return False
                    log.error(
                        "an entry of consumequeue/%s/%d was damaged at offset %d: written anew from the log",
                        queue.topic.decode(), queue.queue_id, offset,
                    )  # fmt: skip
                    return True
            position += size
        return False
