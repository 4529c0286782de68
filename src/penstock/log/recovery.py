"""What opening a store takes: lock, checkpoint, repair of the tail, and everything derived brought up to the log's end.

    clean stop     positions and counts agree: nothing is scanned but the last record of each queue
    otherwise      from the derived position forward, record by record, with all checks:
                   bad beyond the durable position   torn tail: cut there, zeros behind, later segments aside
                   bad below it                      damage: note it, go on at the next record that stands at its own
                   place
    no checkpoint  (or a RocketMQ broker wrote since) from the first segment; there a bad record is damage if a good one
                   follows
    queues, index  not after a clean stop: every entry of a queue is looked at, and whether the index files join up;
                   what cannot be right is derived again from the first segment on

Nothing that may hold a record is deleted: it moves to ``lost+found/``. Run twice, it ends in the same state.
"""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from zlib import crc32

from penstock.disk import tables
from penstock.disk.aside import set_aside
from penstock.disk.files import last_byte, number_names, wipe
from penstock.disk.segments import Segment, SegmentedFile, segment_name
from penstock.errors import Locked, StoreError
from penstock.log import checkpoint as marks
from penstock.log.checksums import Checksums
from penstock.log.commitlog import CommitLog
from penstock.log.consumequeue import ENTRY_SIZE, FILLER_SIZE
from penstock.log.keyindex import KeyIndex
from penstock.log.state import LogState

_MAGIC = b"\xda\xa3\x20\xa7"
_CHUNK = 1 << 20
_JOINT = 100
"""After a clean stop so many records are looked at where two index files meet: mostly the first of them has a key."""


@dataclass
class Recovery:
    """What opening found and did. Positions are physical offsets."""

    clean: bool = False
    power_cut: bool = False
    epoch: int = 0
    start: int = 0
    end: int = 0
    records: int = 0
    cut_bytes: int = 0
    damage: list[dict[str, Any]] = field(default_factory=list)
    rebuilt: list[str] = field(default_factory=list)
    moved: list[str] = field(default_factory=list)
    gap_queues: int = 0
    skipped: int = 0
    took_ms: int = 0

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def recover(store: LogState) -> Recovery:
    """Open everything of the store; afterwards it can append at `end`."""
    return _Recoverer(store).run()


class _Recoverer:
    def __init__(self, store: LogState) -> None:
        self.store = store
        self.files = store.files
        self.folder = store.folder
        self.upkeep = store.upkeep
        self.report = Recovery()
        self.rebuild = False
        self.odd_index = False
        self._offsets: dict[str, Any] | None = None
        self.blamed: set[tuple[bytes, int]] = set()

    def run(self) -> Recovery:
        started = time.perf_counter()
        store, report, files = self.store, self.report, self.files
        files.make_folder(self.folder)
        self._mend_names()
        self.upkeep.lock = marks.FolderLock(self.folder / "lock", files)
        identity = self._identity()
        report.epoch = self.upkeep.epoch = identity.epoch
        aborted = marks.abort_text(self.folder)
        known = self.upkeep.checkpoint.load(aborted)
        self._load(identity)
        self._trust_sums(known, aborted)
        self.blamed = set(_flat(tables.load(files, self.folder / marks.BLAMED)))
        report.clean = known is not None and known.clean and aborted is None and self._agrees(known)
        if report.clean:
            assert known is not None
            self._open_clean(known)
        elif known is None and not store.log.file.segments and not store.queues:
            report.clean = True  # a new folder
            store.log.seek(0)
        else:
            self._open_unclean(known)
        log = store.log
        for by_id in store.queues.values():
            for queue in by_id.values():
                queue.follow(log.file.first)
                queue.reserve(queue.max_offset + store.options.reserve_offsets)
        if not report.clean:
            report.power_cut = self._power_cut(aborted)
            if report.power_cut:
                self._close_gaps()
            self._flush_all()
        store.entry_count = sum(queue.max_offset for by_id in store.queues.values() for queue in by_id.values())
        self.upkeep.checkpoint.write(self.upkeep.state())
        if self.blamed:
            files.unlink(self.folder / (marks.BLAMED + ".bak"))
            files.unlink(self.folder / marks.BLAMED)
        self._write_abort()
        self.upkeep.begin(log.end)
        files.sync_folder(self.folder)
        store.trusted_from = report.start
        store.damaged += len(report.damage)
        store.appended = 0
        report.end = log.end
        report.skipped = store.skipped
        report.took_ms = int((time.perf_counter() - started) * 1000)
        return report

    # ---- what is there

    def _mend_names(self) -> None:
        """Folders where a file should be, and files where a folder should be, go to lost+found."""
        files, folder = self.files, self.folder
        for name in ("lock", "abort", "checkpoint", "live0", "live1", "damage.jsonl", "offsets.json", marks.BLAMED):
            for path in (folder / name, folder / f"{name}.bak", folder / f"{name}.tmp"):
                if path.is_dir():
                    self._aside(path, "a folder where a file should be")
        for name in ("commitlog", "checksums", "index", "consumequeue", "config", "lost+found", "queues", "schedule"):
            path = folder / name
            if path.is_file():
                self._aside(path, "a file where a folder should be")
            for inside in files.names(path) if name in ("commitlog", "checksums", "index") else ():
                if (path / inside).is_dir():
                    self._aside(path / inside, "a folder where a file should be")
        for topic in files.names(folder / "consumequeue"):
            if (folder / "consumequeue" / topic).is_file():
                self._aside(folder / "consumequeue" / topic, "a file where a folder should be")
                continue
            for queue_id in files.names(folder / "consumequeue" / topic):
                path = folder / "consumequeue" / topic / queue_id
                if path.is_file():
                    self._aside(path, "a file where a folder should be")
                for inside in files.names(path):
                    if (path / inside).is_dir():
                        self._aside(path / inside, "a folder where a file should be")

    def _identity(self) -> marks.StoreFile:
        options = self.store.options
        log_size, queue_size = options.mapped_file_size_commit_log, options.mapped_file_size_consume_queue
        if tables.load(self.files, self.folder / "store.json") is None:
            # a folder of RocketMQ's, perhaps: its files say how large they are
            log_size = self._size_on_disk(self.folder / "commitlog", log_size)
            for topic in self.files.names(self.folder / "consumequeue"):
                for queue_id in self.files.names(self.folder / "consumequeue" / topic):
                    queue_size = self._size_on_disk(self.folder / "consumequeue" / topic / queue_id, queue_size)
                    break
        path = self.folder / "store.json"
        return marks.open_store_file(
            self.files, path, log_size, queue_size, options.max_hash_slot_num, options.max_index_num
        )

    def _size_on_disk(self, folder: Path, default: int) -> int:
        names = list(number_names(self.files.names(folder)))
        if len(names) > 1:
            return names[1] - names[0]
        if names:
            return (folder / segment_name(names[0])).stat().st_size or default
        return default

    def _trust_sums(self, known: marks.Checkpoint | None, aborted: str | None) -> None:
        """From where on a record without a sum is none: where a power cut may have taken it, or the process its append."""
        sums = self.store.log.sums
        sums.mend = True
        newest = max(self.upkeep.live.seen(), key=lambda page: page[1], default=None)
        told = newest[2] if newest is not None and newest[0] == marks.LIVE else -1
        same_boot = aborted is not None and marks.boot_id() != "" and marks.boot_id() in aborted
        durable = known.durable if known is not None else 0
        sums.strict_from = max(durable, told) if same_boot else durable

    def _write_abort(self) -> None:
        path = self.folder / "abort"
        fd = self.files.open(path, create=True)
        try:
            self.files.write(fd, 0, f"pid {os.getpid()} boot {marks.boot_id()}\n".ljust(120).encode())
            self.files.datasync(fd)
        finally:
            self.files.close(fd)
        self.files.sync_folder(self.folder)

    def _load(self, identity: marks.StoreFile) -> None:
        store, options, files = self.store, self.store.options, self.files
        for name in ("commitlog", "checksums", "consumequeue"):
            files.make_folder(self.folder / name)
        file = SegmentedFile(self.folder / "commitlog", identity.log_segment_size, files)
        sums = Checksums(self.folder / "checksums", identity.log_segment_size, files)
        store.log = CommitLog(file, sums, options.store_host, options.max_message_size)
        self._mend_segments(file)
        for path in file.load():
            self._aside(path, "not a segment of this log")
        if options.message_index_enable:
            store.index = KeyIndex(self.folder / "index", identity.slots, identity.entries, files, store.clock)
            for path in store.index.load():
                self._aside(path, "not an index file that can be read")
                self.odd_index = True
        self._load_queues(identity.queue_file_size)

    def _mend_segments(self, file: SegmentedFile) -> None:
        """A segment that is missing or too short, with later ones behind it, is damage inside, not the end of the
        log.
        """
        names = [n for n in number_names(self.files.names(file.folder)) if n % file.size == 0]
        if not names:
            return
        for first in range(names[0], names[-1] + 1, file.size):
            path = file.folder / segment_name(first)
            if (names[-1] - names[0]) // file.size > 4 * len(names):
                break  # names so far apart are no run of segments
            if path.is_file() and path.stat().st_size >= file.size:
                continue
            fd = self.files.open(path, create=True)
            try:
                self.files.grow(fd, file.size)
            finally:
                self.files.close(fd)

    def _load_queues(self, queue_file_size: int) -> None:
        store, folder = self.store, self.folder / "consumequeue"
        store.queue_file_size = queue_file_size
        for topic in self.files.names(folder):
            for queue_id in self.files.names(folder / topic):
                path = folder / topic / queue_id
                if not (queue_id.isascii() and queue_id.isdigit() and len(queue_id) < 10 and path.is_dir()):
                    continue
                try:
                    queue = store.queue(topic.encode(), int(queue_id))
                    odd = queue.load()
                except StoreError:
                    self._aside(path, "not a consume queue")
                    continue
                for odd_path in odd:
                    self._aside(odd_path, "not a file of this consume queue")

    def _aside(self, path: Path, why: str) -> None:
        """Move a file or folder to lost+found, and say so in its manifest. An empty file holds nothing to keep."""
        if path.is_file() and path.stat().st_size == 0 and path.name != "lost+found":
            self.files.unlink(path)
            return
        if path.name == "lost+found":
            self.files.rename(path, path.with_name("lost+found.bad"))
            return
        set_aside(self.files, self.folder, path, why, self.store.clock.now_ms())
        self.report.moved.append(str(path.relative_to(self.folder)))

    # ---- clean

    def _agrees(self, known: marks.Checkpoint) -> bool:
        """Whether a clean checkpoint describes what lies on the disk."""
        store = self.store
        file = store.log.file
        if not file.first <= known.durable <= file.end:
            return False
        last = file.at(known.durable)
        if file.end != (known.durable if last is None else last.first + last.size):
            return False  # segments behind the end, prepared by somebody
        if store.log.check(known.durable) >= 0:
            return False  # somebody has appended since: RocketMQ, on our folder
        if store.index is not None:
            if self.odd_index or store.index.state() != (known.index_file, known.index_count):
                return False
            if not store.index.holds() or not self._index_joins(_JOINT):
                return False
        if self.blamed:
            return False
        ends = self._ends()
        queues = [queue for by_id in store.queues.values() for queue in by_id.values()]
        for queue in queues:
            if queue.max_offset != ends.get((queue.topic, queue.queue_id), 0) or self._headless(queue):
                return False
        return not self._bad_queues(known.durable)

    def _index_joins(self, most: int = 1 << 60) -> bool:
        """Whether no record with a key stands before the first index file or between two of them, looking at no more
        than so many records in each place.
        """
        store = self.store
        assert store.index is not None
        position = store.log.file.first
        for first, last in store.index.ranges():
            while position < first:
                position = store.next_indexed(position, first, most)
                if 0 <= position < first:
                    return False
                if position < 0:
                    following = self._resync(-1 - position)
                    position = first if following < 0 else following
            position = max(position, last + max(0, store.log.check(last)))
        return True

    def _ends(self) -> dict[tuple[bytes, int], int]:
        """Where each queue ended at the last clean stop."""
        return _flat(self._offsets_table().get("ends"))

    def _offsets_table(self) -> dict[str, Any]:
        path = self.folder / "offsets.json"
        if self._offsets is None:
            without = "queue offsets that were reserved are those of the log and a step more"
            self._offsets = tables.take(self.files, self.folder, path, lambda table: "reserved" in table, without) or {}
        return self._offsets

    def _reserved(self) -> dict[tuple[bytes, int], int]:
        return _flat(self._offsets_table().get("reserved"))

    def _bad_queues(self, below: int) -> list[Any]:
        """Queues whose last entry leads nowhere, or that are shorter than they were."""
        bad = []
        ends = self._ends()
        for (topic, queue_id), end in ends.items():
            queue = self.store.queue(topic, queue_id)
            if queue.max_offset < end:
                bad.append(queue)
        for by_id in self.store.queues.values():
            for queue in by_id.values():
                if queue not in bad and not self._last_holds(queue, below):
                    bad.append(queue)
        return bad

    def _last_holds(self, queue: Any, below: int) -> bool:
        if queue.max_offset * ENTRY_SIZE <= queue.file.first:
            return True
        entry = queue.entry(queue.max_offset - 1)
        if entry is None:
            return False
        physical, size, _ = entry
        if size == FILLER_SIZE or physical < self.store.log.file.first:
            return True
        return physical < below and self._matches(queue, physical, size)

    def _matches(self, queue: Any, physical: int, size: int) -> bool:
        log = self.store.log
        segment = log.file.at(physical)
        if segment is None:
            return False
        if log.check(physical) <= 0:
            return True  # the record is damaged: that is not the queue's fault
        record = log.bytes_at(physical, log.check(physical))
        numbers = (int.from_bytes(record[12:16]), int.from_bytes(record[20:28]))
        return len(record) == size and numbers == (queue.queue_id, queue.max_offset - 1) and queue.topic in record

    def _open_clean(self, known: marks.Checkpoint) -> None:
        store = self.store
        store.log.store_ms = known.store_ms
        store.index_from = known.durable
        self.report.start = known.durable
        self._scan_for_subscribers(self._behind(known.durable), known.durable)
        store.log.seek(known.durable)

    def _scan_for_subscribers(self, behind: int, end: int) -> None:
        """Those who have not taken everything get it; entries that are there are only written over with themselves."""
        position = max(behind, self.store.log.file.first)
        while position < end:
            position = self.store.replay(position)
            if position < end:
                following = self._resync(position)
                position = end if following < 0 else following

    def _behind(self, position: int) -> int:
        """Where the scan must begin for the subscribers' sake. One that has never written a position needs the whole
        log if any of its topics has messages, and nothing otherwise."""
        store = self.store
        for subscriber in store.subscribers:
            if subscriber.position >= 0:
                position = min(position, max(subscriber.position, store.log.file.first))
            elif any(q.max_offset for topic in subscriber.topics for q in store.queues.get(topic, {}).values()):
                position = store.log.file.first
        return position

    # ---- unclean

    def _open_unclean(self, known: marks.Checkpoint | None) -> None:
        store, report = self.store, self.report
        file = store.log.file
        durable = known.durable if known is not None else -1
        if not file.segments and durable > 0:
            file.start_at(durable + file.size - 1)
        start = file.first
        if known is not None and file.first <= known.derived <= file.end:
            start = known.derived
        store.index_from = max(self._prepare_index(known, start), file.first) if store.index is not None else 0
        start = self._prepare_queues(start, known)
        if store.index is not None:
            start = min(start, store.index_from)
        report.start = start
        foreign = self.upkeep.checkpoint.foreign_from
        if foreign >= 0:
            store.log.sums.ignore_from(foreign)
        end = self._scan(self._behind(start), durable)
        if foreign >= 0:
            self._adopt(foreign, end)
        self._cut_tail(end)
        store.log.seek(end)
        for subscriber in store.subscribers:
            subscriber.cut(end)
        for (topic, queue_id), offset in self._ends().items():
            queue = store.queue(topic, queue_id)
            if queue.max_offset < offset:  # given out once, and not again, whatever became of the records
                self._mark_dirty(queue)
                queue.fill_to(offset)
        report.records = store.appended
        for topic, queue_id, first, to in store.fillers:
            for entry in report.damage:
                entry.setdefault("queueOffsets", []).append([topic.decode(), queue_id, first, to])
        for entry in report.damage:
            self.upkeep.write_damage(entry)

    def _prepare_index(self, known: marks.Checkpoint | None, start: int) -> int:
        store = self.store
        if store.index is None:
            return start
        gone = None
        if known is not None and not self.odd_index:
            gone = store.index.cut(known.index_file, known.index_count)
            if gone is not None and not (store.index.holds() and self._index_joins()):
                for path in gone:
                    self.files.unlink(path)
                gone = None
        if gone is None:
            had = bool(store.index.index_files) or self.odd_index or (known is not None and known.index_file > 0)
            for path in store.index.forget():
                self._aside(path, "an index that does not fit the log")
            if had:
                self.report.rebuilt.append("index")
            return store.log.file.first
        for path in gone:
            self.files.unlink(path)
        return start

    def _prepare_queues(self, start: int, known: marks.Checkpoint | None) -> int:
        """Cut the queues back to the records below start; those that cannot be right are emptied. Returns from where
        the log is to be dispatched: for the sake of emptied ones from its first segment.
        """
        store = self.store
        first = store.log.file.first
        queues = [queue for by_id in store.queues.values() for queue in by_id.values()]
        bad = []
        for queue in queues:
            if (queue.topic, queue.queue_id) in self.blamed or not queue.survey(start) or self._headless(queue):
                bad.append(queue)
            else:
                self._cut_queue(queue, start)
        if start > first:
            bad += [queue for queue in self._bad_queues(start) if queue not in bad]
        if known is not None and start == known.derived and not bad:
            queues = [queue for by_id in store.queues.values() for queue in by_id.values()]
            self.rebuild = self.rebuild or sum(queue.max_offset for queue in queues) != known.entries
        for queue in queues if self.rebuild else bad:
            self.report.rebuilt.append(f"consumequeue/{queue.topic.decode()}/{queue.queue_id}")
            folder = queue.file.folder
            queue.close()
            queue.seek(0)
            if folder.is_dir():
                self._aside(folder, "entries that do not fit the log")
        return first if bad or self.rebuild else start

    def _headless(self, queue: Any) -> bool:
        """Whether the first file of the queue may be missing: those that retention takes end below the log."""
        if queue.file.first == 0 or not queue.max_offset * ENTRY_SIZE > queue.file.first:
            return False
        entry = queue.entry(queue.file.first // ENTRY_SIZE)
        return entry is not None and entry[1] != FILLER_SIZE and entry[0] > self.store.log.file.first

    def _cut_queue(self, queue: Any, start: int) -> None:
        for segment in queue.cut(start):
            self.files.unlink(segment.path)  # their records, if there are any, are dispatched again
        if queue.is_dirty():
            self._mark_dirty(queue)

    def _mark_dirty(self, queue: Any) -> None:
        if not queue.in_dirty:
            queue.in_dirty = True
            self.store.dirty_queues.append(queue)

    def _scan(self, position: int, durable: int) -> int:
        """Dispatch everything from position on; returns where the log ends."""
        log = self.store.log
        while True:
            position = self.store.replay(position)
            if position >= log.file.end:
                return log.file.end
            following = self._resync(position) if position < durable or durable < 0 else -1
            if following < 0:
                if position < durable:
                    self._damage(position, durable)
                    position = durable
                    if log.check(position) < 0:
                        return position
                    continue
                return position
            if durable >= 0 and following > durable:
                following = durable if self.store.log.check(durable) >= 0 else following
                if following > durable:
                    self._damage(position, durable)
                    return durable
            self._damage(position, following)
            position = following

    def _adopt(self, since: int, end: int) -> None:
        """Sums for what RocketMQ has put behind our records. Its own segments stay without."""
        log = self.store.log
        for name in number_names(self.files.names(log.sums.folder)):
            if name > since:
                self.files.unlink(log.sums.drop(name))
        segment, car = log.file.at(since), log.sums.get(since - since % log.file.size)
        if segment is None or car is None:
            return
        car.cut(since - segment.first)
        position = since
        while position < min(end, segment.first + segment.size):
            size = log.check(position)
            if size <= 0:
                position = self._resync(position) if size < 0 else end
                position = end if position < 0 else position
                continue
            at = position - segment.first
            if car.room(1):
                raise StoreError(f"no room for the sums of {segment.path.name}")
            car.put(at, crc32(segment.map[at : at + size]))
            position += size
        car.covers_to = segment.size

    def _damage(self, position: int, end: int) -> None:
        self.report.damage.append({"position": position, "end": end, "bytes": end - position})

    def _resync(self, position: int) -> int:
        """The next good record behind position; -1 when there is none."""
        log = self.store.log
        at = position + 1
        while at < log.file.end:
            segment: Any = log.file.at(at)
            offset = segment.map.find(_MAGIC, at - segment.first + 4)
            while offset >= 0:
                candidate = segment.first + offset - 4
                if log.check(candidate) > 0:
                    return int(candidate)
                offset = segment.map.find(_MAGIC, offset + 1)
            at = segment.first + segment.size
            if at < log.file.end and log.check(at) > 0:
                return int(at)
        return -1

    def _cut_tail(self, end: int) -> None:
        """Let nothing stand behind end that could be taken for a record later."""
        log = self.store.log
        file = log.file
        last: Any = file.at(end)
        for segment in reversed(file.drop_from(end + 1 if last is not None else end)):
            car = log.sums.drop(segment.first)
            if last_byte(self.files, segment.path, segment.open().map, 0, segment.size) == 0:
                self.files.unlink(segment.path)
            else:
                self.report.cut_bytes += segment.size
                self._aside(segment.path, "behind the end of the log")
            self.files.unlink(car)
            segment.close()
        if last is None:
            return
        at = end - last.first
        used = last_byte(self.files, last.path, last.map, at, last.size)
        if used > at:
            self.report.cut_bytes += used - at
            self._save_tail(last, at, used)
            wipe(self.files, last.path, last.map, at, last.size)
        sidecar = log.sums.get(last.first)
        if sidecar is not None:
            sidecar.cut(at)

    def _save_tail(self, segment: Segment, at: int, used: int) -> None:
        path = self.folder / f"tail-{segment.first + at}"
        fd = self.files.open(path, create=True)
        try:
            for piece in range(at, used, _CHUNK):
                self.files.write(fd, piece - at, bytes(segment.map[piece : min(used, piece + _CHUNK)]))
        finally:
            self.files.close(fd)
        self._aside(path, "the torn end of the log")

    # ---- afterwards

    def _power_cut(self, aborted: str | None) -> bool:
        """Whether more than the process ended: the memory that told where the log ends is gone."""
        same_boot = aborted is not None and marks.boot_id() != "" and marks.boot_id() in aborted
        pages = self.upkeep.live.seen()
        told = any(state == marks.LIVE and self.store.log.end in ends for state, _, *ends in pages)
        return aborted is not None and aborted.startswith("pid") and not (same_boot and told)

    def _close_gaps(self) -> None:
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
                self._mark_dirty(queue)
                self.report.gap_queues += 1

    def _flush_all(self) -> None:
        store = self.store
        for segment in store.log.file.segments:
            if segment.first + segment.size > self.report.start:
                segment.datasync()
                car = store.log.sums.get(segment.first)
                if car is not None:
                    car.datasync()
        self.upkeep._flush_derived(self.upkeep._dirty_derived())
        self.upkeep.write_offsets(ends=True)


def _flat(table: Any) -> dict[tuple[bytes, int], int]:
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


__all__ = ["Locked", "Recovery", "recover"]
