"""LogStore, the door of this floor: append, read, and its life from `open` to `close`.

    append:  Draft ─ room (segment, sidecar, consume queue, index) ─ CommitLog.put ─ dispatch ─▶ consume queue, key
    index, subscribers read:    ConsumeQueue entries ─▶ places in the log ─▶ ReadResult

No threads and no clock of its own: what blocks is handed out as jobs (`take_jobs`), what is due is done in `tick`.
What it consists of stands in `state`, the other ways to find a message in `lookup`.
"""

# mypy: disable-error-code="no-any-return"
from __future__ import annotations

from collections.abc import Mapping

import cython

from penstock.disk.job import Job
from penstock.errors import DiskFull
from penstock.log.consumequeue import ConsumeQueue, TagCodes
from penstock.log.draft import Draft
from penstock.log.lookup import Lookup
from penstock.log.options import StoreOptions
from penstock.log.reading import ReadResult
from penstock.log.recovery import Recovery, recover
from penstock.log.subscriber import Mending
from penstock.log.upkeep import Upkeep
from penstock.octets import Readable

if cython.compiled:
    from cython.cimports.penstock import words
    from cython.cimports.penstock.log import sidelayout, status
    from cython.cimports.penstock.octets import address, be16, be32, be64, put64
    from cython.cimports.penstock.wire import layout
else:
    from penstock import words
    from penstock.log import sidelayout, status
    from penstock.octets import address, be16, be32, be64, put64
    from penstock.wire import layout


def _nothing(scanned: int, fillers: int, gone: int, waits: bool) -> int:
    """Why a read that looked at so many entries has found nothing."""
    if gone > 0:
        return status.MESSAGE_WAS_REMOVING
    if waits and scanned == 0:  # the first one is awaited: as at the end, for the moment
        return status.OFFSET_OVERFLOW_ONE
    return status.OFFSET_FOUND_NULL if fillers > 0 and fillers == scanned else status.NO_MATCHED_MESSAGE


class LogStore(Lookup):
    """A log that is written and read: one writer, many readers, all in one loop."""

    # ---- writing

    def take_options(self, options: StoreOptions) -> None:
        """Others from now on; those that files were made by must be the same."""
        self.options = options

    def begin_turn(self, now_ms: int) -> None:
        """Until `end_turn`, appended records get this store time (or the last one, if that is later): one look at the
        clock.
        """
        self._now_ms = now_ms
        self._in_turn = True

    def catch_up(self, now_ms: int) -> None:
        """What is appended from here on, until `end_turn`, gets this store time: the turn has lasted."""
        self._now_ms = now_ms

    def end_turn(self) -> None:
        """From here each append asks the clock again. What was gathered is settled."""
        self._in_turn = False
        self.settle()

    def settle(self) -> None:
        """Hand what `gather` has appended to the system: whoever is answered now finds it after a kill."""
        if self.log is not None and self.log.settled_end() < self.log.end:
            self.log.settle()
            put64(self._live, sidelayout.LIVE_END, self.log.end)

    def append(self, d: Draft) -> int:
        """Append the draft to the log and to all that is derived from it; 0, or why not (`status`). Never raises."""
        outcome = self.gather(d)
        self.settle()
        return outcome

    def gather(self, d: Draft) -> int:
        """As `append`, but the record is with the system only after `settle`: nothing may be answered before."""
        if self.refusal != status.OK:
            return self.refusal
        size = self.log.record_size(d)
        if size < 0:
            return status.TOO_LARGE
        d.size = size
        queue = d.queue
        room = queue.room()
        if room == status.OK and d.indexed and self.index is not None:
            room = self.index.room(2 + d.keys_len // 2)
        if room == status.OK:
            room = self.log.room(size, 1)
        if room != status.OK:
            return room
        if not self._in_turn:
            self._now_ms = self.clock.now_ms()
        self.announce(size)
        if d.sys_flag & layout.SYS_HALF:  # half and rollback records stand in no consume queue
            self.log.put(d, 0, self._now_ms)
        else:
            self.log.put(d, queue.max_offset, self._now_ms)
        self.dispatch(d)
        return status.OK

    def gather_batch(self, d: Draft, b: Readable, pos: int, end: int) -> int:
        """Append each message of a RocketMQ batch body b[pos:end] with the draft's other fields: all or none, in one
        segment. They are with the system only after `settle`.

        The draft's own properties are left alone, its tail goes behind each message's. Returns the count, or minus a
        status; the draft then says where the first one is (physical, queue_offset, store_ms) and how many bytes all
        have (size).

            total size (4) | magic (4) | body CRC (4) | flag (4) | body length (4) | body | properties length (2) |
            properties
        """
        if self.refusal != status.OK:
            return -self.refusal
        queue = d.queue
        e = self._element
        count = self._weigh(d, b, pos, end)
        if count < 0:
            return count
        total = d.size
        room = queue.room_for(count)
        if room == status.OK and d.indexed and self.index is not None and not self.index.holds(self._batch_keys):
            room = self.index.room(self._keys_of(b, pos, end))
        if room == status.OK:
            room = self.log.room(total, count)
        if room != status.OK:
            return -room
        if not self._in_turn:
            self._now_ms = self.clock.now_ms()
        d.physical = self.log.end
        d.queue_offset = queue.max_offset
        d.size = total
        self.announce(total)
        p = pos
        while p < end:
            self._next_element(b, p, end)
            e.scan()
            e.size = self.log.record_size(e)
            queue.room()
            self.log.put(e, queue.max_offset, self._now_ms)
            self.dispatch(e)
            p += be32(b, p)
        d.store_ms = e.store_ms
        return count

    def _weigh(self, d: Draft, b: Readable, pos: int, end: int) -> int:
        """How many messages b[pos:end] holds, or minus a status; the draft's size is what they take in the log. They have
        no more keys than `_batch_keys`, and mostly far fewer.
        """
        e = self._element
        self._take_over(d)
        p = pos
        count = 0
        total = 0
        keys = 0
        while p < end:
            found = self._next_element(b, p, end)
            if found != status.OK:
                return -found
            size = self.log.record_size(e)
            if size < 0:
                return -status.TOO_LARGE
            total += size
            keys += 2 + e.props_len // 2
            count += 1
            p += be32(b, p)
        d.size = total
        self._batch_keys = keys
        return count if count > 0 else -status.ILLEGAL

    def _keys_of(self, b: Readable, pos: int, end: int) -> int:
        """How many keys the messages of a weighed batch b[pos:end] have at most."""
        e = self._element
        keys = 0
        while pos < end:
            self._next_element(b, pos, end)
            e.scan()
            keys += 2 + e.keys_len // 2
            pos += be32(b, pos)
        return keys

    def weigh_batch(self, d: Draft, body: bytes) -> int:
        """What append_batch_bytes would answer if there is room; nothing is appended, the draft's size is set."""
        return self._weigh(d, address(body), 0, len(body))

    def announce(self, size: int) -> None:
        """Say in the live page from where to where the log goes now: a process killed midway has lost nothing."""
        put64(self._live, sidelayout.LIVE_END, self.log.settled_end())
        put64(self._live, sidelayout.LIVE_NEXT, self.log.end + size)

    def derived_to(self, position: int) -> None:
        """Everything is derived below that position, and not from there on; -1: of the whole log."""
        self.underived = position

    def append_batch_bytes(self, d: Draft, body: bytes) -> int:
        """As gather_batch, for a whole object, and settled."""
        count = self.gather_batch(d, address(body), 0, len(body))
        self.settle()
        return count

    def begin_queues(self, begins: Mapping[tuple[bytes, int], int]) -> None:
        """These queues of a copy go on at these offsets, though nothing of them is in the log (`Upkeep`). StoreError."""
        self.entry_count += self.upkeep.begin_queues(begins)

    def _take_over(self, d: Draft) -> None:
        e = self._element
        e.queue = d.queue
        e.born = d.born
        e.born_len = d.born_len
        e.born_ms = d.born_ms
        e.sys_flag = d.sys_flag & ~layout.SYS_TRANSACTION
        e.reconsume_times = d.reconsume_times
        e.prepared = 0
        e.indexed = d.indexed
        e.tail = d.tail
        e.tail_pos = d.tail_pos
        e.tail_len = d.tail_len

    def _next_element(self, b: Readable, p: int, end: int) -> int:
        """Let the element draft be the batch's message at p, not yet scanned; ILLEGAL when its lengths do not add up."""
        e = self._element
        if end - p < layout.BATCH_FIXED_BYTES:
            return status.ILLEGAL
        total = be32(b, p)
        body_len = be32(b, p + layout.BATCH_BODY_LENGTH)
        if (
            total < layout.BATCH_FIXED_BYTES
            or total > end - p
            or body_len < 0
            or body_len > total - layout.BATCH_FIXED_BYTES
        ):
            return status.ILLEGAL
        props_len = be16(b, p + layout.BATCH_BODY + body_len)
        if layout.BATCH_FIXED_BYTES + body_len + props_len != total:
            return status.ILLEGAL
        e.flag = be32(b, p + layout.BATCH_FLAG)
        e.body = b
        e.body_pos = p + layout.BATCH_BODY
        e.body_len = body_len
        e.props = b
        e.props_pos = p + layout.BATCH_FIXED_BYTES + body_len
        e.props_len = props_len
        return status.OK

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

        At least one message is found if there is one. A place whose record is gone, damaged or not there is passed over.
        """
        result.begin(self.log)
        limit = queue.visible_end()
        if 0 <= end_offset < limit:
            limit = end_offset
        result.min_offset = queue.min_offset
        result.max_offset = limit
        result.next_offset = offset
        if limit == 0:
            result.next_offset = 0
            return status.NO_MESSAGE_IN_QUEUE
        if offset < queue.min_offset:
            result.next_offset = queue.min_offset
            return status.OFFSET_TOO_SMALL
        if offset == limit:
            return status.OFFSET_OVERFLOW_ONE
        if offset > limit:
            result.next_offset = limit
            return status.OFFSET_OVERFLOW_BADLY
        max_count = max(max_count, 1)
        scan_max = max(max_count, status.SCAN_MIN)
        scanned = fillers = gone = at = end = 0
        waits = False
        base = cython.NULL
        while offset < limit and scanned < scan_max and result.count < max_count:
            if at >= end:
                segment = queue.file.at(offset * layout.ENTRY_BYTES)
                if segment is None:
                    break
                base = segment.base
                at = offset * layout.ENTRY_BYTES - segment.first
                end = segment.size
            physical = be64(base, at)
            size = be32(base, at + layout.ENTRY_SIZE)
            if at + status.READ_AHEAD < end:
                self.log.file.expect(be64(base, at + status.READ_AHEAD), status.READ_AHEAD_BYTES)
            if size == layout.FILLER_SIZE and physical == 0 and be64(base, at + layout.ENTRY_TAGS) == 0:
                waits = self._awaits(queue, offset, -1)
                fillers += 1
            elif size <= 0 or size == layout.FILLER_SIZE:
                if self.mend(queue, offset):
                    continue
                waits = self._lost(queue, offset, physical, -1)
                fillers += 1
            elif codes is None or codes.match(be64(base, at + layout.ENTRY_TAGS)):
                if result.count > 0 and result.bytes_ + size > max_bytes:
                    break
                if physical < self.log.file.first:
                    if self.mend(queue, offset):
                        continue
                    gone += 1
                elif (physical >= self.trusted_from and self.log.size_at(physical) == size) or self._sound(
                    queue, offset, physical, size
                ):
                    result.add(physical, size)
                elif self.mend(queue, offset):
                    continue
                else:
                    waits = self._lost(queue, offset, physical, physical)
                    fillers += 1
            if waits:
                break
            at += layout.ENTRY_BYTES
            offset += 1
            scanned += 1
        result.next_offset = offset
        return status.FOUND if result.count > 0 else _nothing(scanned, fillers, gone, waits)

    def repair_by(self, repair: Mending) -> None:
        """Who may get sound copies of what is damaged."""
        self.repair = repair

    def _lost(self, queue: ConsumeQueue, offset: int, physical: int, position: int) -> bool:
        """Note that a message is damaged; whether readers wait for it."""
        self.damaged_entries[physical] = (queue.topic, queue.queue_id, offset)
        return self._awaits(queue, offset, position)

    def _awaits(self, queue: ConsumeQueue, offset: int, physical: int) -> bool:
        """Whether readers wait for a message that is damaged here: a sound copy of it may come."""
        return self.repair is not None and self.repair.awaits(queue.topic, queue.queue_id, offset, physical)

    def _sound(self, queue: ConsumeQueue, offset: int, physical: int, size: int) -> bool:
        """Whether a record of a former run is whole and stands for the entry: the disk may have changed either."""
        return (
            physical < self.trusted_from
            and self.log.check(physical) == size
            and self.log.stands_for(physical, queue.queue_id, offset)
        )

    # ---- time

    def take_jobs(self, mono_ms: int) -> list[Job]:
        """What blocks and is due now. Run each in a thread, then call its `finish` here. Free to ask in every turn."""
        if mono_ms == self._looked_ms or not self.is_open:
            return []
        self._looked_ms = mono_ms
        return self.upkeep.take_jobs(mono_ms)

    def take_flush(self, mono_ms: int) -> list[Job]:
        """Of what `take_jobs` gives, the flush that somebody waits for."""
        return self.upkeep.take_flush(mono_ms) if self.is_open else []

    def tick(self, now_ms: int, mono_ms: int) -> int:
        """Do what is due; returns when to call again, in monotonic ms."""
        return self.upkeep.tick(now_ms, mono_ms) if self.is_open else mono_ms + words.MS_A_SECOND

    # ---- opening and closing

    def open(self) -> Recovery:
        """Take the folder, bring everything derived up to the log's end, and say what that took.

        Raises Locked when another process has it, Corrupt when a newer version wrote it, StoreError when the disk
        fails.
        """
        self.upkeep: Upkeep = Upkeep(self)
        self.healthy = True
        self.appended = self.damaged = self.skipped = 0
        self.arrived.clear()
        self.dirty_queues.clear()
        self.short_queues.clear()
        self.fillers.clear()
        self.damaged_entries.clear()
        self._unmended.clear()
        self.durability = None  # type: ignore[assignment]
        try:
            report = recover(self, self.upkeep)
        except BaseException:
            self.upkeep.release()
            self._drop()
            raise
        self.is_open = True
        self.refuse(status.OK)
        return report

    def close(self, clean: bool = True) -> None:
        """Flush and note that all is well; without `clean` leave everything as a killed process would."""
        if not self.is_open:
            return
        self.is_open = False
        self.refusal = status.NOT_WRITABLE
        try:
            if clean:
                self.settle()
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
