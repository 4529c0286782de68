"""LogStore, the door of this floor: append, read, query, offset by time.

    append:  Draft ─ room (segment, sidecar, consume queue, index) ─ CommitLog.put ─ dispatch ─▶ consume queue, key
    index, subscribers read:    ConsumeQueue entries ─▶ places in the log ─▶ ReadResult

No threads and no clock of its own: what blocks is handed out as jobs (`take_jobs`), what is due is done in `tick`.
The commit log is the only truth; `dispatch` derives everything else from it, the same way for live traffic and for
recovery.
"""

# mypy: disable-error-code="no-any-return"
from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any, Protocol

import cython

from penstock.clock import Clock
from penstock.disk.files import Files
from penstock.errors import DiskFull, StoreError
from penstock.log.commitlog import CommitLog
from penstock.log.consumequeue import ConsumeQueue, TagCodes
from penstock.log.draft import Draft
from penstock.log.durability import Durability, Job
from penstock.log.keyindex import KeyIndex
from penstock.log.options import StoreOptions, delay_levels
from penstock.log.reading import ReadResult
from penstock.log.recovery import Recovery, recover
from penstock.log.upkeep import Upkeep

if cython.compiled:
    from cython.cimports.penstock.octets import address, be16, be32, be64, java_hash, put64
else:
    from penstock.octets import address, be16, be32, be64, java_hash, put64

log = logging.getLogger("penstock.log")

_TOPIC = re.compile(rb"[%|a-zA-Z0-9_.#-]{1,127}")
_MEND_ENTRIES, _MEND_BYTES = 1_000, 256 << 20  # how far a damaged entry's neighbour, and its record, is looked for
_FAR = 10_000_000
"""A queue offset so far beyond the last one was not given out by any broker."""


class Subscriber(Protocol):
    """Derives something of its own from records of some topics; `position`: it has taken every record below."""

    @property
    def topics(self) -> frozenset[bytes]:
        """Those whose records it wants."""

    @property
    def position(self) -> int:
        """-1 when it does not know."""

    def add(self, physical: int, record: bytes, tags_code: int, store_ms: int) -> None:
        """A record of one of the topics; for delay levels `tags_code` is the moment it is due."""

    def done(self, prepared: int, physical: int) -> None:
        """The record at physical names another one as its origin."""

    def cut(self, end: int) -> None:
        """Forget what came from records at or after end: a power cut took them."""

    def take_job(self, flushed: int, end: int, mono_ms: int) -> Any:
        """Something to write down, of records below flushed only."""

    def close(self) -> None:
        """The store closes."""


class LogStore:
    """One commit log with everything derived from it. `queues` maps topic to {queue id: ConsumeQueue}."""

    def __init__(
        self,
        folder: Path,
        options: StoreOptions | None = None,
        *,
        files: Files | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.folder = Path(folder)
        self.options = options or StoreOptions()
        self.files = files or Files()
        self.clock = clock or Clock()
        self.queues: dict[bytes, dict[int, ConsumeQueue]] = {}
        self.arrived: list[ConsumeQueue] = []
        self.dirty_queues: list[ConsumeQueue] = []
        self.short_queues: list[ConsumeQueue] = []
        self.healthy = True
        self.is_open = False
        self.refusal = 2
        self.appended = 0
        self.entry_count = 0
        self.damaged = 0
        self.delays = delay_levels(self.options.message_delay_level)
        self.log: CommitLog = None  # type: ignore[assignment]
        self.index: KeyIndex = None  # type: ignore[assignment]
        self.durability: Durability = None  # type: ignore[assignment]
        self.upkeep: Any = None
        self.subscribers: list[Subscriber] = []
        self.sequences: Any = None
        self.fillers: list[tuple[bytes, int, int, int]] = []
        self.suspects: dict[int, tuple[bytes, int, int]] = {}
        self._unmended: set[tuple[bytes, int, int]] = set()
        self.queue_file_size = self.options.mapped_file_size_consume_queue
        self.trusted_from = 0
        self.index_from = 0
        self.subscribe_from = 0
        self.skipped = 0
        self._live: Any = cython.NULL
        self._live_page: Any = None
        self._now_ms = 0
        self._in_turn = False
        self._looked_ms = -1
        self._batch_keys = 0
        self._element = Draft()

    # ---- writing

    def begin_turn(self, now_ms: int) -> None:
        """Until `end_turn`, appended records get this store time (or the last one, if that is later): one look at the
        clock.
        """
        self._now_ms = now_ms
        self._in_turn = True

    def end_turn(self) -> None:
        """From here each append asks the clock again."""
        self._in_turn = False

    def queue(self, topic: bytes, queue_id: int) -> ConsumeQueue:
        """The message queue; made when it is new (its first file comes with its first message)."""
        by_id = self.queues.get(topic)
        if by_id is None:
            by_id = self.queues[topic] = {}
        queue = by_id.get(queue_id)
        if queue is None:
            if queue_id < 0 or _TOPIC.fullmatch(topic) is None or topic in (b".", b".."):
                raise StoreError(f"no name for a message queue: {topic!r} {queue_id}")
            folder = self.folder / "consumequeue" / topic.decode() / str(queue_id)
            queue = ConsumeQueue(folder, topic, queue_id, self.queue_file_size, self.files)
            queue.reserve(self.options.reserve_offsets)
            queue.subscribers = [s for s in self.subscribers if topic in s.topics] or None
            by_id[queue_id] = queue
        return queue

    def attach(self, subscriber: Subscriber) -> None:
        """Dispatch to it as well. Before `open`, which replays to it whatever it has not taken yet."""
        self.subscribers.append(subscriber)

    def append(self, d: Draft) -> int:
        """Append the draft to the log and to all that is derived from it; 0, or why not (`status`). Never raises."""
        if self.refusal != 0:
            return self.refusal
        size = self.log.record_size(d)
        if size < 0:
            return 3
        d.size = size
        queue = d.queue
        status = queue.room()
        if status == 0 and d.indexed and self.index is not None:
            status = self.index.room(2 + d.keys_len // 2)
        if status == 0:
            status = self.log.room(size, 1)
        if status != 0:
            return status
        if not self._in_turn:
            self._now_ms = self.clock.now_ms()
        self._announce(size)
        if d.sys_flag & 4:  # half and rollback records (4, 12) stand in no consume queue
            self.log.put(d, 0, self._now_ms)
        else:
            self.log.put(d, queue.max_offset, self._now_ms)
        self._dispatch(d)
        put64(self._live, 16, self.log.end)
        return 0

    def append_batch(self, d: Draft, b: Any, pos: int, end: int) -> int:
        """Append each message of a RocketMQ batch body b[pos:end] with the draft's other fields: all or none, in one
        segment.

        The draft's own properties are left alone, its tail goes behind each message's. Returns the count, or minus a
        status; the draft then says where the first one is (physical, queue_offset, store_ms) and how many bytes all
        have (size).

            total size (4) | magic (4) | body CRC (4) | flag (4) | body length (4) | body | properties length (2) |
            properties
        """
        if self.refusal != 0:
            return -self.refusal
        queue = d.queue
        e = self._element
        count = self._weigh(d, b, pos, end)
        if count < 0:
            return count
        total = d.size
        status = queue.room_for(count)
        if status == 0 and d.indexed and self.index is not None:
            status = self.index.room(self._batch_keys)
        if status == 0:
            status = self.log.room(total, count)
        if status != 0:
            return -status
        if not self._in_turn:
            self._now_ms = self.clock.now_ms()
        d.physical = self.log.end
        d.queue_offset = queue.max_offset
        d.size = total
        self._announce(total)
        p = pos
        while p < end:
            self._next_element(b, p, end)
            e.size = self.log.record_size(e)
            queue.room()
            self.log.put(e, queue.max_offset, self._now_ms)
            self._dispatch(e)
            p += be32(b, p)
        d.store_ms = e.store_ms
        put64(self._live, 16, self.log.end)
        return count

    def _weigh(self, d: Draft, b: Any, pos: int, end: int) -> int:
        """How many messages b[pos:end] holds, or minus a status; the draft's size is what they take in the log."""
        e = self._element
        self._take_over(d)
        p = pos
        count = 0
        total = 0
        keys = 0
        while p < end:
            status = self._next_element(b, p, end)
            if status != 0:
                return -status
            size = self.log.record_size(e)
            if size < 0:
                return -3
            total += size
            keys += 2 + e.keys_len // 2
            count += 1
            p += be32(b, p)
        d.size = total
        self._batch_keys = keys
        return count if count > 0 else -4

    def weigh_batch(self, d: Draft, body: bytes) -> int:
        """What append_batch_bytes would answer if there is room; nothing is appended, the draft's size is set."""
        return self._weigh(d, address(body), 0, len(body))

    def _announce(self, size: int) -> None:
        """Say in the live page from where to where the log goes now: a process killed midway has lost nothing."""
        put64(self._live, 16, self.log.end)
        put64(self._live, 24, self.log.end + size)

    def append_batch_bytes(self, d: Draft, body: bytes) -> int:
        """As append_batch, for a whole object."""
        return self.append_batch(d, address(body), 0, len(body))

    def _take_over(self, d: Draft) -> None:
        e = self._element
        e.queue = d.queue
        e.born = d.born
        e.born_len = d.born_len
        e.born_ms = d.born_ms
        e.sys_flag = d.sys_flag & ~12
        e.reconsume_times = d.reconsume_times
        e.prepared = 0
        e.indexed = d.indexed
        e.tail = d.tail
        e.tail_pos = d.tail_pos
        e.tail_len = d.tail_len

    def _next_element(self, b: Any, p: int, end: int) -> int:
        """Let the element draft be the batch's message at p; ILLEGAL when its lengths do not add up."""
        e = self._element
        if end - p < 22:
            return 4
        total = be32(b, p)
        body_len = be32(b, p + 16)
        if total < 22 or total > end - p or body_len < 0 or body_len > total - 22:
            return 4
        props_len = be16(b, p + 20 + body_len)
        if 22 + body_len + props_len != total:
            return 4
        e.flag = be32(b, p + 12)
        e.body = b
        e.body_pos = p + 20
        e.body_len = body_len
        e.props = b
        e.props_pos = p + 22 + body_len
        e.props_len = props_len
        e.scan()
        return 0

    def _dispatch(self, d: Draft) -> None:
        """Derive everything from one record of the log: live, recovered or copied from a master."""
        queue = d.queue
        tx = d.sys_flag & 12
        code = d.tags_code
        if not tx & 4:  # half and rollback records stand in no consume queue
            if queue.due_kind == 1:
                code = d.store_ms + self._delay(d.queue_id)
            if d.queue_offset == queue.max_offset and queue.ready():
                queue.put(d.queue_offset, d.physical, d.size, code)
                self.entry_count += 1
            else:
                self._dispatch_again(d, code)
            if not queue.in_dirty:
                queue.in_dirty = True
                self.dirty_queues.append(queue)
            if queue.max_offset >= queue.reserve_at:
                queue.reserve_at = 1 << 62  # until it has been reserved
                self.short_queues.append(queue)
            if queue.watched and not queue.arrived:
                queue.arrived = True
                self.arrived.append(queue)
        if d.indexed and tx != 12 and self.index is not None and d.physical >= self.index_from:
            if d.uniq_len > 0:
                self._index(d, d.uniq_pos, d.uniq_len)
            if d.keys_len > 0:
                self._index_words(d)
        if queue.subscribers is not None and not tx & 4:
            for subscriber in queue.subscribers:
                if d.physical >= subscriber.position:
                    subscriber.add(d.physical, self.log.bytes_at(d.physical, d.size), code, d.store_ms)
        if d.prepared > 0 and tx == 0:
            for subscriber in self.subscribers:
                if d.physical >= subscriber.position:
                    subscriber.done(d.prepared, d.physical)
        self.appended += 1

    def _dispatch_again(self, d: Draft, code: int) -> None:
        """The entry of a record that is not simply the next one: replay, or a hole that damage has left."""
        queue = d.queue
        offset = d.queue_offset
        if offset < 0 or offset > 1 << 58 or (queue.file.segments and offset > queue.max_offset + _FAR):
            self.skipped += 1
            return
        if offset > queue.max_offset and queue.file.segments:
            self.fillers.append((queue.topic, queue.queue_id, queue.max_offset, offset))
        before = queue.max_offset
        queue.put_at(offset, d.physical, d.size, code)
        self.entry_count += queue.max_offset - before

    def _delay(self, queue_id: int) -> int:
        delays = self.delays
        if queue_id < 0:
            return 0
        return int(delays[min(queue_id, len(delays) - 1)])

    def _index(self, d: Draft, pos: int, n: int) -> None:
        h = java_hash(d.props, pos, n, d.queue.key_hash)
        if h < 0:
            h = -h
        if h > 0x7FFFFFFF:
            h = 0  # Java's abs of the smallest integer is negative, and RocketMQ takes 0 then
        self.index.put(h, d.physical, d.store_ms)

    def _index_words(self, d: Draft) -> None:
        p = d.keys_pos
        end = p + d.keys_len
        while p < end:
            q = p
            while q < end and d.props[q] != 32:
                q += 1
            if q > p:
                self._index(d, p, q - p)
            p = q + 1

    # ---- reading

    def read(
        self,
        queue: ConsumeQueue,
        offset: int,
        max_count: int,
        max_bytes: int,
        end_offset: int,
        codes: TagCodes | None,
        result: ReadResult,
    ) -> int:
        """Find the messages from offset on, before end_offset (negative: all), and say what was found (`status`).

        At least one message is found if there is one, however large and whatever max_count. A place whose record is
        gone, damaged or was never written is passed over.
        """
        result.clear()
        result.log = self.log
        limit = queue.visible_end()
        if 0 <= end_offset < limit:
            limit = end_offset
        result.min_offset = queue.min_offset
        result.max_offset = limit
        result.next_offset = offset
        if limit == 0:
            result.next_offset = 0
            return 8
        if offset < queue.min_offset:
            result.next_offset = queue.min_offset
            return 6
        if offset == limit:
            return 5
        if offset > limit:
            result.next_offset = limit
            return 4
        if max_count < 1:
            max_count = 1
        scan_max = 800 if max_count < 800 else max_count
        scanned = fillers = gone = 0
        base = cython.NULL
        at = end = 0
        while offset < limit and scanned < scan_max and result.count < max_count:
            if at >= end:
                segment = queue.file.at(offset * 20)
                if segment is None:
                    break
                base = segment.base
                at = offset * 20 - segment.first
                end = segment.size
            physical = be64(base, at)
            size = be32(base, at + 8)
            if size == 2147483647:
                fillers += 1
            elif size <= 0:
                if self.mend(queue, offset):
                    continue
                fillers += 1
                self.suspects[physical] = (queue.topic, queue.queue_id, offset)
            elif codes is None or codes.match(be64(base, at + 12)):
                if result.count > 0 and result.bytes_ + size > max_bytes:
                    break
                if physical < self.log.file.first:
                    if self.mend(queue, offset):
                        continue
                    gone += 1
                elif physical >= self.trusted_from:
                    if self.log.size_at(physical) == size:
                        result.add(physical, size)
                    else:
                        if self.mend(queue, offset):
                            continue
                        fillers += 1
                        self.suspects[physical] = (queue.topic, queue.queue_id, offset)
                elif self.log.check(physical) == size and self.log.stands_for(physical, queue.queue_id, offset):
                    result.add(physical, size)
                else:  # written by a former run: the disk may have changed record or entry
                    if self.mend(queue, offset):
                        continue
                    fillers += 1
                    self.suspects[physical] = (queue.topic, queue.queue_id, offset)
            at += 20
            offset += 1
            scanned += 1
        result.next_offset = offset
        if result.count > 0:
            return 0
        if gone > 0:
            return 2
        if fillers > 0 and fillers == scanned:
            return 3
        return 1

    def mend(self, queue: ConsumeQueue, offset: int) -> bool:
        """An entry that leads to no record of its own: find the record in the log, behind the one before it, and write the
        entry anew. False when the entry is right (it is the record that is damaged), or the record is not found.
        """
        if (queue.topic, queue.queue_id, offset) in self._unmended:
            return False
        self._unmended.add((queue.topic, queue.queue_id, offset))
        entry = queue.entry(offset)
        commit_log, first = self.log, self.log.file.first
        if entry is None or entry[1] == 2147483647 or offset < queue.min_offset:
            return False
        if entry[0] >= first and entry[1] > 90:
            size = commit_log.size_at(entry[0])
            follows = entry[0] + entry[1]
            if size < 0 and (follows == commit_log.end or commit_log.size_at(follows) >= 0):
                return False
            if size == entry[1] and commit_log.stands_for(entry[0], queue.queue_id, offset):
                return False
        position = first
        for before in range(offset - 1, max(queue.min_offset, offset - _MEND_ENTRIES) - 1, -1):
            known = queue.entry(before)
            if known is None or known[1] <= 90 or not first <= known[0] < commit_log.end:
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
            if be32(segment.base, at + 12) == queue.queue_id and be64(segment.base, at + 20) == offset:
                d.load(segment.base, at)
                if d.topic_name() == queue.topic and not d.sys_flag & 4:
                    code = d.tags_code
                    if queue.due_kind == 1:
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

    def record_at(self, physical: int) -> bytes | None:
        """The record that begins exactly there, its sums checked; None when there is none."""
        if physical >= self.log.end:
            return None
        size = self.log.check(physical)
        return self.log.bytes_at(physical, size) if size > 0 else None

    @property
    def end_position(self) -> int:
        """The physical offset the next record gets, unless a segment ends before it."""
        return self.log.end

    @property
    def min_position(self) -> int:
        """The physical offset of the oldest segment."""
        return self.log.file.first

    def positions(self, physical: int, count: int) -> list[int]:
        """Where each of so many records begins that lie together from physical on."""
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
        if be32(segment.base, at + 36) & 0x10:  # type: ignore[union-attr]
            at += 12
        return be64(segment.base, at + 56)  # type: ignore[union-attr]

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
        max_num = min(max_num, 64)
        prefix = topic + b"#" + key
        h = java_hash(address(prefix), 0, len(prefix), 0)
        if h < 0:
            h = -h
        if h > 0x7FFFFFFF:
            h = 0
        found: list[bytes] = []
        seen: set[int] = set()
        for physical in self.index.find(h, begin_ms, end_ms, 1024):
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

    # ---- time

    @property
    def flushed_position(self) -> int:
        """Everything below is on the disk."""
        return self.durability.flushed

    def want_flush(self) -> None:
        """Somebody waits for what is appended now: flush at once, not at the next interval."""
        self.durability.wanted = True
        self._looked_ms = -1

    def blocked(self, mono_ms: int) -> bool:
        """Whether level `os` must not acknowledge now: an acknowledged byte has been unflushed for over a second."""
        return self.durability.blocked(mono_ms)

    def take_jobs(self, mono_ms: int) -> list[Job]:
        """What blocks and is due now. Run each in a thread, then call its `finish` here. Free to ask in every turn."""
        if mono_ms == self._looked_ms or not self.is_open:
            return []
        self._looked_ms = mono_ms
        return self.upkeep.take_jobs(mono_ms)

    def tick(self, now_ms: int, mono_ms: int) -> int:
        """Do what is due; returns when to call again, in monotonic ms."""
        return self.upkeep.tick(now_ms, mono_ms) if self.is_open else mono_ms + 1000

    def fail(self, error: BaseException) -> None:
        """A flush has failed: no more writing until a restart has checked the store."""
        self.healthy = False
        self.refusal = 2

    def refuse(self, status: int) -> None:
        """Refuse appends with this status, or take them again (0), as far as health allows."""
        self.refusal = status if self.healthy and self.is_open else 2

    # ---- opening and closing

    def open(self) -> Recovery:
        """Take the folder, bring everything derived up to the log's end, and say what that took.

        Raises Locked when another process has it, Corrupt when a newer version wrote it, StoreError when the disk
        fails.
        """
        self.upkeep = Upkeep(self)
        self.healthy = True
        self.appended = self.damaged = self.skipped = 0
        self.arrived.clear()
        self.dirty_queues.clear()
        self.short_queues.clear()
        self.fillers.clear()
        self.suspects.clear()
        self._unmended.clear()
        self.durability = None  # type: ignore[assignment]
        try:
            report = recover(self)
        except BaseException:
            self.upkeep.release()
            self._drop()
            raise
        self.is_open = True
        self.refusal = 0
        return report

    def set_live(self, page: Any) -> None:
        """The page whose bytes from 16 on say how far the log goes, and how far it is about to."""
        self._live_page = page
        self._live = address(page)

    def replay(self, position: int) -> int:
        """Dispatch the good records from position on; returns where the first bad one stands, or the end of the
        segments.
        """
        d = self._element
        d.tail_len = 0
        while True:
            segment = self.log.file.at(position)
            if segment is None:
                return position
            size = self.log.check(position)
            if size < 0:
                return position
            if size == 0:
                position = segment.first + segment.size
                continue
            d.load(segment.base, position - segment.first)
            position += size
            if d.store_ms > self.log.store_ms:
                self.log.store_ms = d.store_ms
            try:
                d.queue = self.queue(d.topic_name(), d.queue_id)
            except StoreError:
                self.skipped += 1
                continue
            if self.index is not None and self.index.room(2 + d.keys_len // 2):
                raise DiskFull("no room for the key index")
            self._dispatch(d)
            if d.seq_len > 0 and self.sequences is not None:
                self.sequences.again(d.sequence(), d.queue.topic, d.queue_id, d.queue_offset, d.physical, d.size)

    def next_indexed(self, position: int, end: int, most: int) -> int:
        """Where the first record in position … end stands that has a key; end when none has, or none of the first
        `most`; -1 - p for a bad record at p.
        """
        d = self._element
        d.tail_len = 0
        while position < end and most > 0:
            segment = self.log.file.at(position)
            if segment is None:
                return end
            size = self.log.check(position)
            if size < 0:
                return -1 - position
            if size == 0:
                position = segment.first + segment.size
                continue
            d.load(segment.base, position - segment.first)
            if d.sys_flag & 12 != 12 and d.uniq_len + d.keys_len > 0:
                return position
            position += size
            most -= 1
        return end

    def close(self, clean: bool = True) -> None:
        """Flush and note that all is well; without `clean` leave everything as a killed process would."""
        if not self.is_open:
            return
        self.is_open = False
        self.refusal = 2
        try:
            if clean:
                self.upkeep.close_clean()
        except DiskFull:
            pass  # no room to say that all is well: the next start looks for itself
        finally:
            self.upkeep.release()
            self._drop()

    def _drop(self) -> None:
        self._live = cython.NULL
        self._live_page = None
        self._element = Draft()
        for by_id in self.queues.values():
            for queue in by_id.values():
                queue.close()
        self.queues = {}
        if self.index is not None:
            self.index.close()
        if self.log is not None:
            self.log.close()
        for subscriber in self.subscribers:
            subscriber.close()
