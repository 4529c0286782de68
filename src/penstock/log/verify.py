"""Looking into a store's files without opening it: `verify` checks a whole folder, `inspect` prints any one file.

Nothing is written and no lock is taken; of a folder in use the newest records may be in motion, and are looked at again.

    damage   bytes of the truth that cannot be right: a record is lost
    derived  a consume queue, index or settings file that does not fit the log: the next start rebuilds it
    note     worth knowing: a torn tail, segments without checksums
"""

from __future__ import annotations

import json
import mmap
import struct
from array import array
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from os import SEEK_CUR
from pathlib import Path

import msgspec

from penstock.disk import inspecting, tables
from penstock.disk.files import Files, file_of, number_names
from penstock.disk.segments import Segment, SegmentedFile, segment_name
from penstock.errors import Corrupt, StoreError
from penstock.lmdbfile import Damaged, LmdbFile
from penstock.log import checkpoint as marks
from penstock.log import sidelayout, smallfiles
from penstock.log.checksums import Checksums
from penstock.log.commitlog import CommitLog
from penstock.log.consumequeue import ConsumeQueue
from penstock.log.keyindex import is_index_name
from penstock.log.motion import comes_whole, is_begun
from penstock.log.tail import resync
from penstock.wire import layout
from penstock.wire.record import ENTRY, INDEX_ENTRY, INDEX_HEAD, decode_record

_MAGIC = layout.MAGIC_V1.to_bytes(4)
_FINDINGS_MAX = 1000
_LATE_MAX = 100_000
_LOOK_BYTES = 1 << 20


class _Reading(Files):
    """Opens for reading only, and takes no room. Where a part of the disk is bad there are zeros, and `tell` (path, from, to,
    why) hears of it: a page of a mapping that cannot be read would end the process.
    """

    def __init__(self, tell: Callable[[Path, int, int, str], None] | None = None) -> None:
        self._tell = tell

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> int:
        return super().open(path, writable=False)

    def allocate(self, fd: int, at: int, length: int) -> None:
        if self.size(fd) < at + length:
            raise StoreError(f"the file ends at {self.size(fd)}, not at {at + length}")

    def map(self, fd: int, size: int, *, writable: bool = True, scattered: bool = False) -> mmap.mmap:
        if self._tell is None or not self._look(fd, size):
            return super().map(fd, size, writable=False)
        copy = mmap.mmap(-1, size)
        for at, end in self._look(fd, size, copy):
            self._tell(file_of(fd), at, end, "cannot be read: a bad part of the disk")
        return copy

    def _look(self, fd: int, size: int, copy: mmap.mmap | None = None) -> list[tuple[int, int]]:
        """What cannot be read; all else goes into `copy`, which is zeros."""
        bad: list[tuple[int, int]] = []
        for first, last in self.data_ranges(fd, 0, size):
            at, step = first, _LOOK_BYTES
            while at < last:
                end = min(last, at + step - at % step)
                try:
                    data = self.read(fd, at, end - at)
                except StoreError:
                    if step == _LOOK_BYTES:  # some of it: a page at a time
                        step = mmap.PAGESIZE
                        continue
                    data = b""
                    begin = bad.pop()[0] if bad and bad[-1][1] == at else at
                    bad.append((begin, end))
                if copy is not None:
                    copy[at : at + len(data)] = data
                at = end
                if at % _LOOK_BYTES == 0:
                    step = _LOOK_BYTES
        return bad


@dataclass(frozen=True)
class Finding:
    """Something in a file, from byte `position` to `end` of what the file belongs to."""

    level: str
    file: str
    why: str
    position: int = 0
    end: int = 0


@dataclass
class Report:
    """What `verify` found. `ok`: no record is damaged and everything derived fits."""

    folder: str
    segments: int = 0
    bytes: int = 0
    first: int = 0
    end: int = 0
    records: int = 0
    unchecked: int = 0
    queues: int = 0
    entries: int = 0
    index_entries: int = 0
    queue_segments: int = 0
    queue_messages: int = 0
    findings: list[Finding] = field(default_factory=list)
    more_findings: int = 0

    @property
    def ok(self) -> bool:
        return not any(finding.level != "note" for finding in self.findings)

    def add(self, level: str, file: str, why: str, position: int = 0, end: int = 0) -> None:
        if len(self.findings) < _FINDINGS_MAX:
            self.findings.append(Finding(level, file, why, position, end))
        else:
            self.more_findings += 1

    def as_dict(self) -> dict[str, object]:
        return {"ok": self.ok, **asdict(self)}


def verify(folder: Path, progress: Callable[[int, int], None] | None = None) -> Report:
    """Check everything in a store's folder; `progress(done, total)` is called with bytes of the commit log.

    Raises StoreError when it is no store.
    """
    return _Verifier(Path(folder), progress or (lambda done, total: None)).run()


class _Verifier:
    def __init__(self, folder: Path, progress: Callable[[int, int], None]) -> None:
        self.folder = folder
        self.progress = progress
        self.files = _Reading(self._tell)
        self.report = Report(str(folder))
        self.queues: dict[tuple[str, int], ConsumeQueue] = {}
        self.matched: dict[tuple[str, int], int] = {}
        self.moving = marks.abort_text(self.folder) is not None  # a broker is at work there, or was killed
        self.writing = self.moving  # as far as is known
        self.late: list[tuple[tuple[str, int], int, int, int]] = []  # records to be looked for again

    def run(self) -> Report:
        if not (self.folder / "commitlog").is_dir():
            raise StoreError(f"{self.folder} is no log store: it has no folder commitlog")
        log_size, self.size = self._sizes()
        file = SegmentedFile(self.folder / "commitlog", log_size, self.files)
        for path in file.load():
            self.report.add("damage", self._name(path), "a segment of another size, or out of place")
        log = CommitLog(file, Checksums(self.folder / "checksums", log_size, self.files), bytes(8))
        try:
            self._load_queues()
            self._walk(log)
            self._look_again()
            self._check_queues(log)
            self._check_index(log)
            self._check_small(log)
        finally:
            for queue in self.queues.values():
                queue.close()
            log.close()
        self.report.queue_segments, self.report.queue_messages = inspecting.verify(self.folder, self.report.add)
        return self.report

    def _tell(self, path: Path, at: int, end: int, why: str) -> None:
        self.report.add("damage", self._name(path), why, at, end)

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self.folder))

    def _sizes(self) -> tuple[int, int]:
        table = tables.load(self.files, self.folder / "store.json") or {}
        log_size, queue_size = table.get("mappedFileSizeCommitLog"), table.get("mappedFileSizeConsumeQueue")
        names = list(number_names(self.files.names(self.folder / "commitlog")))
        if not isinstance(log_size, int) or log_size <= 0:
            log_size = 1 << 30
            if len(names) > 1:
                log_size = names[1] - names[0]
            elif names:
                log_size = (self.folder / "commitlog" / segment_name(names[0])).stat().st_size or log_size
        if not isinstance(queue_size, int) or queue_size <= 0 or queue_size % layout.ENTRY_BYTES:
            queue_size = 6_000_000
        return log_size, queue_size

    # ---- the log

    def _walk(self, log: CommitLog) -> None:
        file, report = log.file, self.report
        report.segments = len(file.segments)
        report.first, report.bytes = file.first, file.end - file.first
        checkpoint = marks.CheckpointFile(self.folder / "checkpoint", self.files)
        self.known = known = checkpoint.load(marks.abort_text(self.folder))
        durable = known.durable if known is not None else -1
        log.sums.strict_from = durable if known is not None else file.end
        log.sums.fresh_from = durable
        if checkpoint.foreign_from >= 0:
            log.sums.ignore_from(checkpoint.foreign_from)
        position = end = file.first
        reported = position
        stop = known.durable if known is not None and known.clean else file.end  # what stands behind is no message
        while position < min(file.end, stop):
            size = log.check(position)
            if size > 0:
                self._record(log, position, size)
                position += size
                end = position
                if position - reported >= 1 << 24:
                    reported = position
                    self.progress(position - file.first, report.bytes)
                continue
            if size == 0:
                position = position - position % file.size + file.size
                end = position
                continue
            if self.moving and position >= durable and comes_whole(log, position):
                continue
            following = resync(log, position)
            if following >= 0 and self.moving and position >= durable and comes_whole(log, position):
                break  # all of it was written since: here the log ended
            if following < 0:
                if position < durable:
                    self._damage(log, position, durable)
                    position = end = durable
                    if log.check(position) > 0:
                        continue
                break
            if 0 <= durable <= position:  # as a start sees it: a power cut lost a page and kept a later one
                why = "torn behind the durable position: the next start sets it aside"
                report.add("note", self._segment_name(log, position), why, position, following)
                break
            self._damage(log, position, following)
            position = end = following
        report.end = end
        log.seek_reading(end)
        self.progress(report.bytes, report.bytes)
        self._tail(log, end)

    def _damage(self, log: CommitLog, position: int, end: int) -> None:
        self.report.add("damage", self._segment_name(log, position), "no record that can be right", position, end)

    def _segment_name(self, log: CommitLog, position: int) -> str:
        return "commitlog/" + segment_name(position - position % log.file.size)

    def _tail(self, log: CommitLog, end: int) -> None:
        if is_begun(log, end) and not (self.moving and comes_whole(log, end)):
            self.report.add("note", self._segment_name(log, end), "a torn tail behind the last record", end, end)

    def _record(self, log: CommitLog, position: int, size: int) -> None:
        report = self.report
        report.records += 1
        sidecar = log.sums.get(position - position % log.file.size)
        if sidecar is None or not sidecar.covers_from <= position % log.file.size < sidecar.covers_to:
            report.unchecked += 1
        record = decode_record(log.bytes_at(position, size), decompress=False)
        if record is None or record.sys_flag & layout.SYS_HALF:
            return
        self._match((record.topic, record.queue_id), record.queue_offset, position, size, again=self.moving)
        if len(self.late) == _LATE_MAX:
            self._look_again()

    def _match(self, key: tuple[str, int], offset: int, position: int, size: int, *, again: bool) -> None:
        """Whether its queue leads to this record; `again`: it is looked for once more when the queues were read anew."""
        entry = self.queues[key].entry(offset) if key in self.queues else None
        if entry is not None and entry[:2] == (position, size):
            self.matched[key] = self.matched.get(key, 0) + 1
        elif again:
            self.late.append((key, offset, position, size))
        else:
            where, why = f"consumequeue/{key[0]}/{key[1]}", f"offset {offset} does not lead to its record"
            self.report.add("derived", where, why, position, position + size)

    def _look_again(self) -> None:
        if self.late:
            self._load_queues(again=True)
        late, self.late = self.late, []
        for found in late:
            self._match(*found, again=False)

    # ---- what is derived

    def _load_queues(self, *, again: bool = False) -> None:
        base = self.folder / "consumequeue"
        for topic in self.files.names(base):
            for queue_id in self.files.names(base / topic):
                if not (queue_id.isascii() and queue_id.isdigit() and len(queue_id) < 10):
                    continue
                queue = ConsumeQueue(base / topic / queue_id, topic.encode(), int(queue_id), self.size, self.files)
                try:
                    odd = queue.load()
                except StoreError as error:
                    self.report.add("derived", f"consumequeue/{topic}/{queue_id}", str(error))
                    continue
                for path in () if again else odd:
                    self.report.add("derived", self._name(path), "a file of another size, or out of place")
                self.queues[topic, int(queue_id)] = queue

    def _check_queues(self, log: CommitLog) -> None:
        report = self.report
        report.queues = len(self.queues)
        for (topic, queue_id), queue in self.queues.items():
            real = 0
            for offset in range(queue.min_offset, queue.max_offset):
                entry = queue.entry(offset)
                if entry is not None and entry[1] != layout.FILLER_SIZE and entry[0] >= log.file.first:
                    real += not (self.moving and entry[0] >= log.end and self._is_new(log, entry[0]))
            report.entries += real
            extra = real - self.matched.get((topic, queue_id), 0)
            damaged = any(finding.level == "damage" for finding in report.findings)
            if extra > 0 and not damaged:
                report.add("derived", f"consumequeue/{topic}/{queue_id}", f"{extra} entries lead to no record")

    def _is_new(self, log: CommitLog, at: int) -> bool:
        """Whether an entry that leads behind the end that was found is of a record that was stored meanwhile. Where one was
        awaited in vain nobody writes any more.
        """
        if at >= log.file.end or log.check(at) > 0:
            return True
        self.writing = self.writing and comes_whole(log, at, told=True)
        return self.writing

    def _check_index(self, log: CommitLog) -> None:
        for name in self.files.names(self.folder / "index"):
            path = self.folder / "index" / name
            if name == "lost+found":  # of a disk of its own
                continue
            if path.exists() and not path.is_file():  # opening a pipe would wait for a writer
                self.report.add("derived", self._name(path), "cannot be read: it is no file")
                continue
            if not is_index_name(name):  # another's, which a start leaves alone
                continue
            try:
                if not self.moving and (lost := _unlinked(path)):
                    self.report.add("derived", self._name(path), f"{lost} slots do not lead to their newest entry")
                self._check_entries(log, path)
            except OSError as error:
                self.report.add("derived", self._name(path), f"cannot be read: {error.strerror or error}")

    def _check_entries(self, log: CommitLog, path: Path) -> None:
        for entry in _inspect_index(path):
            if entry["kind"] == "bad":
                self.report.add("derived", self._name(path), str(entry["why"]))
            elif entry["kind"] == "key":
                self.report.index_entries += 1
                at = entry["physical"]
                assert isinstance(at, int)
                if log.file.first <= at < log.end and log.size_at(at) <= 0 and not self._known_damage(at):
                    self.report.add("derived", self._name(path), f"entry {entry['n']} leads to no record", at, at)

    def _known_damage(self, position: int) -> bool:
        return any(f.level == "damage" and f.position <= position < f.end for f in self.report.findings)

    def _check_small(self, log: CommitLog) -> None:
        report = self.report
        if report.unchecked:
            report.add("note", "checksums", f"{report.unchecked} records have no checksum over the whole record")
        path = self.folder / "checkpoint"
        if path.is_file():
            value = self.known  # as it was before the log was read, which may grow
            if value is None:
                report.add("note", "checkpoint", "holds no positions of ours: the next start reads the whole log")
            elif value.durable > log.end and log.file.segments:
                report.add("damage", "checkpoint", f"the log ends before its durable position {value.durable}", log.end)
        for path in sorted((self.folder / "config").glob("*.json")):
            try:
                if tables.load(self.files, path) is None:
                    report.add("derived", self._name(path), "is no JSON object, and neither is its .bak")
            except StoreError as error:
                report.add("derived", self._name(path), str(error))


# ---- one file


def inspect(path: Path) -> Iterator[dict[str, object]]:
    """What stands in one file of a store, piece by piece; the kind of file is known by its place and first bytes.

    Raises StoreError for a file that is none of a store's.
    """
    path = Path(path)
    if not path.is_file():
        raise StoreError(f"{path} is no file")
    with path.open("rb") as stream:
        head = stream.read(8)
    name = path.name
    number = len(name) == 20 and name.isdigit()
    found = inspecting.inspect(path) or smallfiles.inspect(path)
    if found is not None:
        return found
    if head[:4] == sidelayout.MAGIC.to_bytes(4) and number:
        return _inspect_sums(path)
    if head[:4] == b"PLIV" or name in ("live0", "live1"):
        return _inspect_live(path)
    if name == "checkpoint":
        return _inspect_checkpoint(path)
    if number and (path.parent.name == "commitlog" or head[layout.MAGIC : layout.BODY_CRC] == _MAGIC):
        return _inspect_log(path)
    if number:
        return _inspect_queue(path)
    if name.isdigit():
        return _inspect_index(path)
    if name.endswith(".jsonl"):
        return iter([{"kind": "line", **line} for line in _lines(path)])
    if name.endswith((".json", ".bak")):
        return iter([{"kind": "table", **_table(path)}])
    if name in ("abort", "lock"):
        return iter([{"kind": "text", "text": path.read_bytes()[:200].decode("utf-8", "replace").strip()}])
    if name == "data.mdb":
        return _inspect_schedule(path)
    if name in _ABOUTS:
        return iter([{"kind": "bytes", "size": path.stat().st_size, "about": _ABOUTS[name]}])
    raise StoreError(f"{path} is none of the files of a store")


_ABOUTS = {
    "lock.mdb": "LMDB's readers; nothing is kept in it",
    "reserve": "room for a start on a full disk",
    "unwritten": "a flush has failed; the next start writes once more what it was for",
    "history.bin": "rates and lag; the console and GET /api/history show them",
}


def _inspect_schedule(path: Path) -> Iterator[dict[str, object]]:
    """The tables of the schedule and how many entries each has; the messages themselves are in the log."""
    try:
        with LmdbFile(path) as file:
            for name in sorted(file.trees()):
                yield {
                    "kind": "tree",
                    "name": name.decode("ascii", "backslashreplace"),
                    "entries": sum(1 for _ in file.pairs(name)),
                }
    except Damaged as error:
        yield {"kind": "damage", "why": str(error)}


def _lines(path: Path) -> Iterator[dict[str, object]]:
    for line in path.read_bytes().splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            value = None
        yield value if isinstance(value, dict) else {"unreadable": line[:200].decode("utf-8", "replace")}


def _table(path: Path) -> dict[str, object]:
    try:
        return tables.parse(path.read_bytes().decode("utf-8-sig"))
    except ValueError as error:
        raise Corrupt(path, 0, str(error)) from error


def _inspect_log(path: Path) -> Iterator[dict[str, object]]:
    files = _Reading(lambda path, at, end, why: None)  # the zeros are told of as what they are
    first, size = int(path.name), path.stat().st_size
    if size == 0:
        return
    sums = Checksums(path.parent.parent / "checksums", size, files)
    file = SegmentedFile(path.parent, size, files)
    segment = Segment(path, first, size, files)
    file.first = file.end = first
    file.adopt(segment)
    log = CommitLog(file, sums, bytes(8))
    checkpoint = marks.CheckpointFile(path.parent.parent / "checkpoint", files)
    known = checkpoint.load(marks.abort_text(path.parent.parent))
    sums.strict_from = known.durable if known is not None else first + size
    sums.fresh_from = known.durable if known is not None else -1
    if checkpoint.foreign_from >= 0:
        sums.ignore_from(checkpoint.foreign_from)
    log.seek_reading(first + size)
    position = first
    end = known.durable if known is not None and known.clean else first + size
    while position < min(end, first + size):
        found = log.check(position)
        if found > 0:
            record = decode_record(log.bytes_at(position, found), decompress=False)
            assert record is not None
            yield {
                "kind": "record",
                "position": position,
                "size": found,
                "topic": record.topic,
                "queueId": record.queue_id,
                "queueOffset": record.queue_offset,
                "storeTime": record.store_ms,
                "bornTime": record.born_ms,
                "bornHost": record.born_host,
                "sysFlag": record.sys_flag,
                "flag": record.flag,
                "reconsumeTimes": record.reconsume_times,
                "preparedOffset": record.prepared_offset,
                "properties": dict(record.properties),
                "bodySize": len(record.body),
            }
            position += found
        elif found == 0:
            yield {"kind": "blank", "position": position, "size": first + size - position}
            return
        else:
            following = resync(log, position)
            if following < 0:
                rest = segment.map[position - first : size].strip(b"\0")
                kind = "torn" if rest else "free"
                yield {"kind": kind, "position": position, "size": first + size - position}
                return
            yield {"kind": "damage", "position": position, "size": following - position}
            position = following
    if position < first + size:
        yield {"kind": "end", "position": position, "clean": True}


def _inspect_queue(path: Path) -> Iterator[dict[str, object]]:
    offset = int(path.name) // layout.ENTRY_BYTES
    with path.open("rb") as stream:
        while len(data := stream.read(layout.ENTRY_BYTES)) == layout.ENTRY_BYTES:
            physical, size, code = ENTRY.unpack(data)
            if size == 0:
                return
            if size == layout.FILLER_SIZE:
                yield {"kind": "filler", "queueOffset": offset}
            else:
                yield {"kind": "entry", "queueOffset": offset, "physical": physical, "size": size, "tagsCode": code}
            offset += 1


def _inspect_index(path: Path) -> Iterator[dict[str, object]]:
    size = path.stat().st_size
    with path.open("rb") as stream:
        head = stream.read(layout.INDEX_HEAD_BYTES)
        if len(head) < layout.INDEX_HEAD_BYTES:
            yield {"kind": "bad", "why": "shorter than its header"}
            return
        begin, end, first, last, used, count = INDEX_HEAD.unpack(head)
        slots, entries = index_shape(path, size)
        yield {
            "kind": "header",
            "beginTime": begin,
            "endTime": end,
            "beginPhysical": first,
            "endPhysical": last,
            "usedSlots": used,
            "count": count,
            "slots": slots,
            "entries": entries,
        }
        if slots == 0 or not 1 <= count <= entries:
            yield {"kind": "bad", "why": f"count {count} of {entries}"}
            return
        stream.seek(layout.INDEX_HEAD_BYTES + slots * layout.INDEX_SLOT_BYTES + layout.INDEX_ENTRY_BYTES)
        for n in range(1, count):
            key_hash, physical, seconds, previous = INDEX_ENTRY.unpack(stream.read(INDEX_ENTRY.size))
            if not 0 <= previous < n:
                yield {"kind": "bad", "why": f"entry {n} links to {previous}"}
            yield {
                "kind": "key",
                "n": n,
                "hash": key_hash,
                "physical": physical,
                "seconds": seconds,
                "previous": previous,
            }


def _unlinked(path: Path) -> int:
    """How many slots of an index lead to another entry than their newest one, or to it by other links than those before."""
    slots, entries = index_shape(path, path.stat().st_size)
    if slots == 0:
        return 0
    with path.open("rb") as stream:
        count = INDEX_HEAD.unpack(stream.read(layout.INDEX_HEAD_BYTES))[-1]
        found = array("I", stream.read(slots * layout.INDEX_SLOT_BYTES))
        found.byteswap()
        stream.seek(layout.INDEX_ENTRY_BYTES, SEEK_CUR)
        newest = array("I", bytes(slots * layout.INDEX_SLOT_BYTES))
        wrong = set()
        for n in range(1, min(count, entries)):
            key_hash, _, _, previous = INDEX_ENTRY.unpack(stream.read(INDEX_ENTRY.size))
            slot = key_hash % slots
            if previous != newest[slot]:
                wrong.add(slot)
            newest[slot] = n
    return (
        len(wrong.union(slot for slot in range(slots) if found[slot] != newest[slot]))
        if found != newest
        else len(wrong)
    )


def index_shape(path: Path, size: int) -> tuple[int, int]:
    """(slots, entries) of an index file: RocketMQ's numbers when the size says so, else as many entries as four times
    the slots.
    """
    for slots, entries in ((5_000_000, 20_000_000), _shape_in_store(path)):
        if size == layout.INDEX_HEAD_BYTES + slots * layout.INDEX_SLOT_BYTES + entries * layout.INDEX_ENTRY_BYTES:
            return slots, entries
    slots, rest = divmod(size - layout.INDEX_HEAD_BYTES, 84)
    return (slots, 4 * slots) if rest == 0 else (0, 0)


def _shape_in_store(path: Path) -> tuple[int, int]:
    table = tables.load(_Reading(), path.parent.parent / "store.json") or {}
    slots, entries = table.get("maxHashSlotNum"), table.get("maxIndexNum")
    return (slots, entries) if isinstance(slots, int) and isinstance(entries, int) else (0, 0)


def _inspect_sums(path: Path) -> Iterator[dict[str, object]]:
    with path.open("rb") as stream:
        head = stream.read(sidelayout.HEAD_BYTES)
        version = int.from_bytes(head[sidelayout.VERSION : sidelayout.FIRST])
        first = int.from_bytes(head[sidelayout.FIRST : sidelayout.COVERS_FROM])
        covers = int.from_bytes(head[sidelayout.COVERS_FROM : sidelayout.HEAD_SUM])
        yield {"kind": "header", "version": version, "first": first, "coversFrom": covers}
        n = 0
        while len(data := stream.read(sidelayout.ENTRY_BYTES)) == sidelayout.ENTRY_BYTES:
            start, crc = int.from_bytes(data[:4]), int.from_bytes(data[4:])
            if start == 0 and (n > 0 or crc == 0):
                return
            yield {"kind": "sum", "position": first + start, "crc32": f"{crc:08x}"}
            n += 1


def _inspect_live(path: Path) -> Iterator[dict[str, object]]:
    _, state, generation, end, following = struct.unpack(">4sIqqq", path.read_bytes()[:32].ljust(32, b"\0"))
    names = {0: "unused", marks.RESERVED: "reserved", marks.LIVE: "live"}
    yield {"kind": "live", "state": names.get(state, state), "generation": generation, "end": end, "next": following}


def _inspect_checkpoint(path: Path) -> Iterator[dict[str, object]]:
    data = path.read_bytes()
    physic, logics, index = marks.times(data)
    yield {"kind": "times", "physicMsgTimestamp": physic, "logicsMsgTimestamp": logics, "indexMsgTimestamp": index}
    for value in marks.parse(data):
        yield {"kind": "slot", **msgspec.structs.asdict(value)}
