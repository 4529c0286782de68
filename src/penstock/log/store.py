"""LogStore, the door of this floor: append, read, query, offset by time.

    append:  Draft ─ room (segment, sidecar, consume queue) ─ CommitLog.put ─ dispatch ─▶ consume queue, key index, subscribers
    read:    ConsumeQueue entries ─▶ places in the log ─▶ ReadResult

No threads and no clock of its own: what blocks is handed out as jobs (`take_jobs`), what is due is done in `tick`. The commit log is
the only truth; `dispatch` derives everything else from it, the same way for live traffic and for recovery.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cython

from penstock.clock import Clock
from penstock.disk.files import Files, number_names
from penstock.disk.segments import Segment, SegmentedFile
from penstock.log.checksums import Checksums
from penstock.log.commitlog import CommitLog
from penstock.log.consumequeue import ConsumeQueue, TagCodes
from penstock.log.draft import Draft
from penstock.log.options import StoreOptions, delay_levels
from penstock.log.reading import ReadResult

if cython.compiled:
    from cython.cimports.penstock.octets import be32, be64
else:
    from penstock.octets import be32, be64

FILLER_SIZE = 0x7FFFFFFF


class LogStore:
    """One commit log with everything derived from it. `queues` maps topic to {queue id: ConsumeQueue}."""

    def __init__(
        self, folder: Path, options: StoreOptions | None = None, *, files: Files | None = None, clock: Clock | None = None
    ) -> None:
        self.folder = Path(folder)
        self.options = options or StoreOptions()
        self.files = files or Files()
        self.clock = clock or Clock()
        self.queues: dict[bytes, dict[int, ConsumeQueue]] = {}
        self.arrived: list[ConsumeQueue] = []
        self.dirty_queues: list[ConsumeQueue] = []
        self.healthy = True
        self.is_open = False
        self.refusal = 2
        self.appended = 0
        self.damaged = 0
        self.delays = delay_levels(self.options.message_delay_level)
        self.log: CommitLog = None  # type: ignore[assignment]
        self._now_ms = 0
        self._in_turn = False
        self._element = Draft()

    # ---- writing

    def begin_turn(self, now_ms: int) -> None:
        """Until `end_turn`, appended records get this store time (or the last one, if that is later): one look at the clock."""
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
            folder = self.folder / "consumequeue" / topic.decode() / str(queue_id)
            queue = ConsumeQueue(folder, topic, queue_id, self.options.mapped_file_size_consume_queue, self.files)
            by_id[queue_id] = queue
        return queue

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
        if status == 0:
            status = self.log.room(size, 1)
        if status != 0:
            return status
        if not self._in_turn:
            self._now_ms = self.clock.now_ms()
        if d.sys_flag & 4:  # half and rollback records (4, 12) stand in no consume queue
            self.log.put(d, 0, self._now_ms)
        else:
            self.log.put(d, queue.max_offset, self._now_ms)
        self._dispatch(d)
        return 0

    def _dispatch(self, d: Draft) -> None:
        """Derive everything from one record of the log: live, recovered or copied from a master."""
        queue = d.queue
        if not d.sys_flag & 4:
            queue.put(d.queue_offset, d.physical, d.size, d.tags_code)
            if not queue.in_dirty:
                queue.in_dirty = True
                self.dirty_queues.append(queue)
            if queue.watched and not queue.arrived:
                queue.arrived = True
                self.arrived.append(queue)
        self.appended += 1

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

        At least one message is found if there is one, however large and whatever max_count. A place whose record is gone,
        damaged or was never written is passed over.
        """
        result.clear()
        result.log = self.log
        limit = queue.max_offset
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
            if size == 0x7FFFFFFF:
                fillers += 1
            elif codes is None or codes.match(be64(base, at + 12)):
                if result.count > 0 and result.bytes_ + size > max_bytes:
                    break
                if physical < self.log.file.first:
                    gone += 1
                elif self.log.size_at(physical) != size:
                    fillers += 1
                else:
                    result.add(physical, size)
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

    # ---- opening and closing

    def open(self) -> None:
        options = self.options
        self.files.make_folder(self.folder / "commitlog")
        file = SegmentedFile(self.folder / "commitlog", options.mapped_file_size_commit_log, self.files)
        sums = Checksums(self.folder / "checksums", options.mapped_file_size_commit_log, self.files)
        self.log = CommitLog(file, sums, options.store_host)
        file.load()
        position = file.first
        while True:
            size = self.log.check(position)
            if size < 0:
                break
            if size == 0:
                position = (position // file.size + 1) * file.size
                continue
            segment = file.at(position)
            self._element.load(segment.base, position - segment.first)
            self._element.queue = self.queue(self._element.topic_name(), self._element.queue_id)
            self._element.queue.room()
            self._dispatch(self._element)
            position += size
        self.log.seek(position)
        self.is_open = True
        self.refusal = 0

    def close(self, clean: bool = True) -> None:
        self.is_open = False
        self.refusal = 2
        for by_id in self.queues.values():
            for queue in by_id.values():
                queue.close()
        self.log.close()
