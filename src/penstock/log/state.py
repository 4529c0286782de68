"""What a log consists of while it is open, and how everything else is derived from a record of it.

Opening (`recovery`), upkeep and retention work on this; `lookup` and `store` add the ways in. The commit log is the only
truth; `dispatch` derives everything else from it, the same way for live traffic and for recovery.
"""

# mypy: disable-error-code="no-any-return"
from __future__ import annotations

import logging
import re
from mmap import mmap
from pathlib import Path

import cython

from penstock.clock import Clock
from penstock.disk.files import Files
from penstock.errors import StoreError
from penstock.log.commitlog import CommitLog
from penstock.log.consumequeue import ConsumeQueue
from penstock.log.draft import Draft
from penstock.log.durability import Durability
from penstock.log.keyindex import KeyIndex, refusal
from penstock.log.options import StoreOptions, delay_levels
from penstock.log.subscriber import Mending, Remembered, Subscriber

if cython.compiled:
    from cython.cimports.penstock import words
    from cython.cimports.penstock.log import status
    from cython.cimports.penstock.octets import address, java_hash
    from cython.cimports.penstock.wire import layout
else:
    from penstock import words
    from penstock.log import status
    from penstock.octets import address, java_hash
    from penstock.wire import layout

log = logging.getLogger("penstock.log")

_TOPIC = re.compile(rb"[%|a-zA-Z0-9_.#-]{1,127}")
_OFFSET_MAX = 1 << 58
_FAR = 10_000_000
"""A queue offset so far beyond the last one was not given out by any broker."""


class LogState:
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
        self.following = False
        self.confirmed = self.confirmed_flushed = -1
        self.refusal = status.NOT_WRITABLE
        self.appended = 0
        self.entry_count = 0
        self.damaged = 0
        self.delays = delay_levels(self.options.message_delay_level)
        self.log: CommitLog = None  # type: ignore[assignment]
        self.index: KeyIndex = None  # type: ignore[assignment]
        self.durability: Durability = None  # type: ignore[assignment]
        self.subscribers: list[Subscriber] = []
        self.sequences: Remembered | None = None
        self.fillers: list[tuple[bytes, int, int, int]] = []
        self.damaged_entries: dict[int, tuple[bytes, int, int]] = {}
        self.repair: Mending | None = None
        self._unmended: set[tuple[bytes, int, int]] = set()
        self.queue_file_size = self.options.mapped_file_size_consume_queue
        self.trusted_from = 0
        self.index_from = 0
        self.skipped = 0
        self.underived = -1  # from there on nothing is derived yet: a copy, on a disk that is full; -1: all is
        self._live: memoryview = cython.NULL
        self._live_page: mmap | None = None
        self._now_ms = 0
        self._in_turn = False
        self._looked_ms = -1
        self._batch_keys = 0
        self._element = Draft()

    # ---- queues, and who else wants records

    def queue(self, topic: bytes, queue_id: int) -> ConsumeQueue:
        """The message queue; made when it is new (its first file comes with its first message)."""
        by_id = self.queues.get(topic)
        if by_id is None:
            by_id = self.queues[topic] = {}
        queue = by_id.get(queue_id)
        if queue is None:
            if queue_id < 0 or _TOPIC.fullmatch(topic) is None or topic in (b".", b".."):
                raise StoreError(f"no name for a message queue: {topic!r} {queue_id}")
            folder = f"{self.folder}/consumequeue/{topic.decode()}/{queue_id}"
            queue = ConsumeQueue(folder, topic, queue_id, self.queue_file_size, self.files)
            queue.reserve(self.options.reserve_offsets)
            queue.subscribers = [s for s in self.subscribers if topic in s.topics] or None
            by_id[queue_id] = queue
        return queue

    def attach(self, subscriber: Subscriber) -> None:
        """Dispatch to it as well. Before `open`, which replays to it whatever it has not taken yet."""
        self.subscribers.append(subscriber)

    def remember(self, sequences: Remembered) -> None:
        """Records with a sequence number go to it, too, when the log is replayed."""
        self.sequences = sequences

    def mark_dirty(self, queue: ConsumeQueue) -> None:
        """The queue has something to flush."""
        if queue.mark_dirty():
            self.dirty_queues.append(queue)

    def take_short(self) -> list[ConsumeQueue]:
        """The queues that need offsets reserved."""
        short, self.short_queues = self.short_queues, []
        return short

    def put_short(self, queues: list[ConsumeQueue]) -> None:
        """They could not be reserved: they are asked for again."""
        self.short_queues += queues

    def take_damaged(self) -> dict[int, tuple[bytes, int, int]]:
        """What reads have come across: physical offset → (topic, queue id, queue offset)."""
        damaged_entries, self.damaged_entries = self.damaged_entries, {}
        return damaged_entries

    def count_damage(self, physical: int = -1) -> None:
        """One more damaged record is known, and where."""
        self.damaged += 1
        if physical >= 0 and self.repair is not None:
            self.repair.found(physical)

    def notice(self, queue: ConsumeQueue) -> None:
        """Something of the queue can be read now that could not before."""
        if queue.arrive():
            self.arrived.append(queue)

    def take_arrived(self) -> list[ConsumeQueue]:
        """The watched queues that have something new."""
        arrived, self.arrived = self.arrived, []
        for queue in arrived:
            queue.heard()
        return arrived

    # ---- deriving

    def dispatch(self, d: Draft) -> None:
        """Derive everything from one record of the log: live, recovered or copied from a master."""
        queue = d.queue
        tx = d.sys_flag & layout.SYS_TRANSACTION
        code = d.tags_code
        if not tx & layout.SYS_HALF:  # half and rollback records stand in no consume queue
            if queue.by_level:
                code = d.store_ms + self._delay(d.queue_id)
            if d.queue_offset == queue.max_offset and queue.ready():
                queue.put(d.queue_offset, d.physical, d.size, code)
                self.entry_count += 1
            else:
                self._dispatch_again(d, code)
            if not queue.in_dirty:
                self.mark_dirty(queue)
            if queue.max_offset >= queue.reserve_at:
                queue.await_reserve()
                self.short_queues.append(queue)
            if queue.watched and queue.arrive():
                self.arrived.append(queue)
        if d.indexed and tx != layout.SYS_TRANSACTION and self.index is not None and d.physical >= self.index_from:
            if d.uniq_len > 0:
                self._index(d, d.uniq_pos, d.uniq_len)
            if d.keys_len > 0:
                self._index_words(d)
        if queue.subscribers is not None and not tx & layout.SYS_HALF:
            for subscriber in queue.subscribers:
                if d.physical >= subscriber.position:
                    subscriber.add(d.physical, self.log.bytes_at(d.physical, d.size), code, d.store_ms)
        if d.prepared > 0 and not tx & layout.SYS_HALF:  # a delivery keeps the mark of a commit that was delayed
            for subscriber in self.subscribers:
                if d.physical >= subscriber.position:
                    subscriber.done(d.prepared, d.physical)
        self.appended += 1

    def _dispatch_again(self, d: Draft, code: int) -> None:
        """The entry of a record that is not simply the next one: replay, or a hole that damage has left."""
        queue = d.queue
        offset = d.queue_offset
        if offset < 0 or offset > _OFFSET_MAX or (queue.file.segments and offset > queue.max_offset + _FAR):
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
        if h > layout.INDEX_HASH_MAX:
            h = 0  # Java's abs of the smallest integer is negative, and RocketMQ takes 0 then
        self.index.put(h, d.physical, d.store_ms)

    def _index_words(self, d: Draft) -> None:
        p = d.keys_pos
        end = p + d.keys_len
        while p < end:
            q = p
            while q < end and d.props[q] != words.SPACE:
                q += 1
            if q > p:
                self._index(d, p, q - p)
            p = q + 1

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
            if self.index is not None and (answer := self.index.room(2 + d.keys_len // 2)):
                raise refusal(answer)
            self.dispatch(d)
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
            if d.sys_flag & layout.SYS_TRANSACTION != layout.SYS_TRANSACTION and d.uniq_len + d.keys_len > 0:
                return position
            position += size
            most -= 1
        return end

    # ---- positions, flushes, health

    def record_at(self, physical: int) -> bytes | None:
        """The record that begins exactly there, its sums checked; None when there is none."""
        if physical >= self.log.end:
            return None
        size = self.log.check(physical)
        if size < 0 and self.repair is not None:
            self.repair.found(physical)
        return self.log.bytes_at(physical, size) if size > 0 else None

    @property
    def end_position(self) -> int:
        """The physical offset the next record gets, unless a segment ends before it."""
        return self.log.end

    @property
    def min_position(self) -> int:
        """The physical offset of the oldest segment."""
        return self.log.file.first

    @property
    def flushed_position(self) -> int:
        """Everything below is on the disk."""
        return self.durability.flushed

    def flush_by(self, durability: Durability) -> None:
        """Who says when to flush, and what is flushed."""
        self.durability = durability

    def want_flush(self) -> None:
        """Somebody waits for what is appended now: flush at once, not at the next interval."""
        self.durability.want()
        self._looked_ms = -1

    def confirm(self, written: int, flushed: int) -> None:
        """All in-sync members of the replica set have so much of the log, and so much of it on their disks; -1 for both
        while nobody copies it.
        """
        self.confirmed, self.confirmed_flushed = written, flushed

    def blocked(self, mono_ms: int) -> bool:
        """Whether level `os` must not acknowledge now: an acknowledged byte has been unflushed for over a second."""
        return self.durability.blocked(mono_ms)

    def fail(self, error: BaseException) -> None:
        """A flush has failed: no more writing until a restart has checked the store."""
        if self.healthy:  # who sends is told that this line says why
            log.error("nothing is stored any more, until a restart error=%s", error)
        self.healthy = False
        self.refusal = status.NOT_WRITABLE

    def refuse(self, why: int) -> None:
        """Refuse appends with this `status`, or take them again (0), as far as health allows."""
        if why == status.OK and self.following:
            why = status.NOT_MASTER
        self.refusal = why if self.healthy and self.is_open else status.NOT_WRITABLE

    def follow(self, following: bool) -> None:
        """Whether this log is a copy of another broker's: then nothing is appended but what that one has (`log.follow`)."""
        self.following = following
        if self.is_open:
            self.refuse(status.OK)

    def set_live(self, page: mmap) -> None:
        """The page whose bytes from 16 on say how far the log goes, and how far it is about to."""
        self._live_page = page
        self._live = address(page)
