"""What was derived from a log, held against it when it is opened: the key index and the consume queues.

What cannot be right is set aside and derived again; queue offsets that somebody may have seen are not given out twice.
"""

from __future__ import annotations

from penstock.disk import tables
from penstock.disk.files import wipe
from penstock.log import checkpoint as marks
from penstock.log.consumequeue import ConsumeQueue
from penstock.log.contents import Contents, Recovery
from penstock.log.state import LogState
from penstock.log.tail import resync
from penstock.wire import layout

_JOINT = 100
_NOT_VOUCHED_FOR = "an index that no checkpoint of ours vouches for: it is made again from the log"


class Derived:
    """The index and the queues of one log. `damaged_queues`: a run before found them so; `rebuild`: all are suspect."""

    def __init__(self, store: LogState, report: Recovery, contents: Contents) -> None:
        self.store = store
        self.report = report
        self.contents = contents
        self.files = store.files
        self.folder = store.folder
        self.rebuild = False
        self.cut_back = False  # the log is cut on purpose: where queues ended before says nothing
        self.damaged_queues: set[tuple[bytes, int]] = set()
        self._offsets: dict[str, object] | None = None

    def end_early(self) -> None:
        """The log is cut on purpose."""
        self.cut_back = True

    def read_blame(self) -> None:
        """Read which queues are to be derived again, whatever they look like."""
        self.damaged_queues = set(_flat(tables.load(self.files, self.folder / marks.DAMAGED_QUEUES)))

    def index_joins(self) -> bool:
        """Whether no record with a key stands before the first index file or between two of them, looking at a few records
        in each place: mostly the first of them has a key.
        """
        store = self.store
        assert store.index is not None
        position = store.log.file.first
        for first, last in store.index.ranges():
            while position < first:
                position = store.next_indexed(position, first, _JOINT)
                if 0 <= position < first:
                    return False
                if position < 0:
                    following = resync(store.log, -1 - position)
                    position = first if following < 0 else following
            position = max(position, last + max(0, store.log.check(last)))
        return True

    def ends(self) -> dict[tuple[bytes, int], int]:
        """Where each queue ended at the last clean stop."""
        return {} if self.cut_back else _flat(self._offsets_table().get("ends"))

    def begins(self) -> dict[tuple[bytes, int], int]:
        """Where queues of a copy go on of which it has held nothing."""
        return _flat(self._offsets_table().get("begins"))

    def _offsets_table(self) -> dict[str, object]:
        path = self.folder / "offsets.json"
        if self._offsets is None:
            without = "queue offsets that were reserved are those of the log and a step more"
            self._offsets = tables.take(self.files, self.folder, path, lambda table: "reserved" in table, without) or {}
        return self._offsets

    def _reserved(self) -> dict[tuple[bytes, int], int]:
        return _flat(self._offsets_table().get("reserved"))

    def bad_queues(self, below: int) -> list[ConsumeQueue]:
        """Queues whose last entry leads nowhere, or that are shorter than they were."""
        bad = []
        ends = self.ends()
        for (topic, queue_id), end in ends.items():
            queue = self.store.queue(topic, queue_id)
            if queue.max_offset < end:
                bad.append(queue)
        for by_id in self.store.queues.values():
            for queue in by_id.values():
                if queue not in bad and not self._last_entry_is_sound(queue, queue.max_offset, below):
                    bad.append(queue)
        return bad

    def _last_entry_is_sound(self, queue: ConsumeQueue, end: int, below: int) -> bool:
        """Whether the entry before the offset `end` leads to its own record, below that place in the log."""
        if end * layout.ENTRY_BYTES <= queue.file.first:
            return True
        entry = queue.entry(end - 1)
        if entry is None:
            return False
        physical, size, _ = entry
        if size == layout.FILLER_SIZE or physical < self.store.log.file.first:
            return True
        return physical < below and self._matches(queue, end - 1, physical, size)

    def _matches(self, queue: ConsumeQueue, offset: int, physical: int, size: int) -> bool:
        log = self.store.log
        segment = log.file.at(physical)
        if segment is None:
            return False
        if log.check(physical) <= 0:
            return True  # the record is damaged: that is not the queue's fault
        record = log.bytes_at(physical, log.check(physical))
        mine = log.stands_for(physical, queue.queue_id, offset)
        return len(record) == size and mine and queue.topic in record

    def prepare_index(self, known: marks.Checkpoint | None, start: int) -> int:
        store = self.store
        if store.index is None:
            return start
        gone = None
        # A newer file than the checkpoint's falls away, read or not: a process that is killed while it makes one leaves it empty.
        if known is not None and all(number > known.index_file for number in self.contents.odd_index):
            gone = store.index.cut(known.index_file, known.index_count, known.derived)
            if gone is not None and not (store.index.is_sound() and self.index_joins()):
                for path in gone:
                    self.files.unlink(path)
                gone = None
        if gone is None:
            had = bool(store.index.index_files or self.contents.odd_index) or (
                known is not None and known.index_file > 0
            )
            why = _NOT_VOUCHED_FOR if known is None else "an index that does not fit the log"
            for path in store.index.forget():
                self.contents.quarantine(path, why)
            if had:
                self.report.rebuilt.append("index")
            return store.log.file.first
        for path in gone:
            self.files.unlink(path)
        return start

    def prepare_queues(self, start: int, known: marks.Checkpoint | None) -> int:
        """Cut the queues back to the records below start; those that cannot be right are emptied. Returns from where
        the log is to be dispatched: for the sake of emptied ones from its first segment.
        """
        store = self.store
        first = store.log.file.first
        queues = [queue for by_id in store.queues.values() for queue in by_id.values()]
        if known is not None and start == known.derived and self._as_counted(queues, known):
            for queue in queues:
                self._cut_queue(queue, start)
            return start
        bad = []
        for queue in queues:
            if (queue.topic, queue.queue_id) in self.damaged_queues or not queue.survey(start) or self.headless(queue):
                bad.append(queue)
            else:
                self._cut_queue(queue, start)
        if start > first:
            bad += [queue for queue in self.bad_queues(start) if queue not in bad]
        if known is not None and start == known.derived and not bad and known.entries >= 0:
            queues = [queue for by_id in store.queues.values() for queue in by_id.values()]
            self.rebuild = self.rebuild or sum(queue.max_offset for queue in queues) != known.entries
        for queue in queues if self.rebuild else bad:
            self.report.rebuilt.append(f"consumequeue/{queue.topic.decode()}/{queue.queue_id}")
            folder = queue.file.folder
            queue.close()
            queue.seek(0)
            if folder.is_dir():
                self.contents.quarantine(folder, "entries that do not fit the log")
        return first if bad or self.rebuild else start

    def _as_counted(self, queues: list[ConsumeQueue], known: marks.Checkpoint) -> bool:
        """Whether the queues have as many entries as the checkpoint has counted, with a good one at each end: those it found
        flushed are not looked at again.
        """
        if self.damaged_queues or self.rebuild:
            return False
        ends = self.ends()
        count = 0
        for queue in queues:
            below = queue.count_below(known.derived)
            if below < ends.pop((queue.topic, queue.queue_id), 0) or self.headless(queue):
                return False
            if not self._last_entry_is_sound(queue, below, known.derived):
                return False
            count += below
        return count == known.entries and not any(ends.values())

    def headless(self, queue: ConsumeQueue) -> bool:
        """Whether the first file of the queue may be missing: those that retention takes end below the log."""
        if queue.file.first == 0 or not queue.max_offset * layout.ENTRY_BYTES > queue.file.first:
            return False
        entry = queue.entry(queue.file.first // layout.ENTRY_BYTES)
        return entry is not None and entry[1] != layout.FILLER_SIZE and entry[0] > self.store.log.file.first

    def _cut_queue(self, queue: ConsumeQueue, start: int) -> None:
        for segment in queue.cut(start):
            self.files.unlink(segment.path)  # their records, if there are any, are dispatched again
        if queue.is_dirty():
            self.mark_dirty(queue)

    def shed_fillers(self) -> bool:
        """Let the queues of a copy end behind their last messages; whether one did not. The offsets behind, which this broker
        has left out as a master, are its master's to give out now. Done half, it is done again.
        """
        queues = [queue for by_id in self.store.queues.values() for queue in by_id.values()]
        shed = [self._shed(queue) for queue in queues]
        return any(shed)

    def _shed(self, queue: ConsumeQueue) -> bool:
        low, offset = queue.file.first // layout.ENTRY_BYTES, queue.max_offset
        while offset > low and queue.entry(offset - 1) == (0, layout.FILLER_SIZE, 0):
            offset -= 1
        if offset == queue.max_offset:
            return False
        end = offset * layout.ENTRY_BYTES
        for segment in reversed(queue.file.segments):
            if segment.first >= end:
                self.files.unlink(segment.path)
            elif segment.first + segment.size > end:
                wipe(self.files, segment.path, segment.map, end - segment.first, segment.size)
                segment.datasync()
        queue.close()
        queue.load()
        return True

    def mark_dirty(self, queue: ConsumeQueue) -> None:
        self.store.mark_dirty(queue)

    def close_gaps(self) -> None:
        """After a power cut, queue offsets that somebody may have seen are not given out again."""
        store = self.store
        reserved = self._reserved()
        for topic, queue_id in reserved:
            store.queue(topic, queue_id)
        for by_id in store.queues.values():
            for queue in by_id.values():
                key = (queue.topic, queue.queue_id)
                target = max(reserved.get(key, 0), queue.max_offset + store.options.reserve_offsets)
                queue.fill_to(target)
                queue.reserve(target + store.options.reserve_offsets)
                self.mark_dirty(queue)
                self.report.gap_queues += 1


def _flat(table: object) -> dict[tuple[bytes, int], int]:
    """{topic: {queue id: offset}} with its keys joined; what is of another shape is left out."""
    found: dict[tuple[bytes, int], int] = {}
    if not isinstance(table, dict):
        return found
    for topic, by_id in table.items():
        if not isinstance(by_id, dict):
            continue
        for queue_id, offset in by_id.items():
            if queue_id.isdecimal() and len(queue_id) < 10 and isinstance(offset, int) and 0 <= offset < 1 << 58:
                found[topic.encode(), int(queue_id)] = offset
    return found
