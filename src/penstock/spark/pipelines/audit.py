"""Every byte of a store's log looked at, and everything derived from it compared: what is wrong, by topic, queue and offset.

    tasks    walk one piece of the log each: records that are none, body sums, the sums over whole records beside the
             log, the consume-queue entry of each record, the index entries that point into the piece; back come findings
             and, of each queue, the stretches of offsets that follow one another
    driver   segments that are missing or short; gaps and doubles in those stretches; entries that lead to no record;
             the index files' own links

    damage   bytes of the truth that cannot be right: a message is lost or changed
    derived  a consume queue or index that does not fit the log: `reindex`, or the broker's next start, mends it
    note     worth knowing, and no fault: offsets the broker gave up after a crash, a topic made anew

A changed bit outside a body is found only where whole-record sums are (stores of ours; RocketMQ has body sums alone), or where it
breaks a length, a place, an offset or an entry. Nothing is written, no lock is taken.

A store at work moves on meanwhile. What is looked at is the log below the durable position at the beginning; what lies
beside the log is read after that and may be ahead of it, and segments that retention drops in between are left out.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np

from penstock.errors import ConfigError
from penstock.log.checksums import MAGIC as SUM_MAGIC
from penstock.log.options import MESSAGE_DELAY_LEVEL, delay_levels
from penstock.spark.kernel.decode import BODY
from penstock.spark.log import derive
from penstock.spark.log import files as logfiles
from penstock.spark.log.derive import Window
from penstock.spark.log.files import Damage, Piece, Segment
from penstock.spark.pipelines.parallel import SMALL_BYTES, Progress, over
from penstock.spark.pipelines.reindex import _INDEX_ENTRY, _INDEX_HEADER

if TYPE_CHECKING:
    from penstock.spark.pipelines.parallel import Spark

SPLIT_BYTES = 128 << 20
FINDINGS_MAX = 1000  # of a task, and in the result
DAY_MS = 86_400_000
_SUM = np.dtype([("start", ">u4"), ("crc", ">u4")])


@dataclass(frozen=True)
class Finding:
    """One thing: bytes `position` to `end` of the log, and the message there as far as it is known."""

    level: str
    why: str
    file: str = ""
    topic: str = ""
    queue: int = -1
    offset: int = -1
    position: int = -1
    end: int = -1


@dataclass
class Result:
    """What was looked at and found. `ok`: neither damage nor anything derived that does not fit."""

    store: str
    segments: int = 0
    bytes: int = 0
    records: int = 0
    unchecked: int = 0
    queues: int = 0
    entries: int = 0
    index_entries: int = 0
    seconds: float = 0.0
    findings: list[Finding] = field(default_factory=list)
    more_findings: int = 0
    topics: dict[str, list[int]] = field(default_factory=dict)  # messages, bytes
    per_segment: list[list[int]] = field(default_factory=list)  # first byte, records, damaged bytes

    @property
    def ok(self) -> bool:
        return self.more_findings == 0 and all(one.level == "note" for one in self.findings)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"ok": self.ok, **asdict(self)}


@dataclass
class Part:
    """What a task found in one piece. A stretch is [first offset, last offset, physical offset of the first]."""

    base: int  # of the piece's segment
    dropped: bool = False  # the segment was gone before it was read
    records: int = 0
    unchecked: int = 0
    index_entries: int = 0
    stretches: dict[tuple[str, int], list[list[int]]] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    more: int = 0
    topics: dict[str, list[int]] = field(default_factory=dict)
    segments: dict[int, list[int]] = field(default_factory=dict)

    def add(self, finding: Finding) -> None:
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(finding)
        else:
            self.more += 1


def run(
    spark: Spark,
    store: str | Path,
    *,
    split_bytes: int = SPLIT_BYTES,
    message_delay_level: str = MESSAGE_DELAY_LEVEL,
    report: str | Path = "",
    progress: Progress | None = None,
) -> Result:
    """Audit the store in this folder; `report`, when given, is where an HTML page with the result goes."""
    began = time.monotonic()
    folder = Path(store).absolute()
    if not (folder / "commitlog").is_dir():
        raise ConfigError(f"{folder} is no store folder: it has no folder commitlog")
    durable, moving = logfiles.durable_end(folder), (folder / "abort").exists()
    segments = logfiles.find(str(folder))
    delays = delay_levels(message_delay_level)
    total = sum(segment.end for segment in segments)

    def work(pieces: list[Piece]) -> Iterator[Part]:
        queues: dict[tuple[str, int], Queue] = {}
        for piece in pieces:
            yield examine(folder, piece, delays, queues)

    parts = over(spark, logfiles.cut(segments, split_bytes, None), work, progress, total, small=total <= SMALL_BYTES)
    result = Result(str(folder), len(segments), total)
    # A broker is at work, or was killed: what lies beside the log may be ahead of what was read of it.
    _Judge(folder, segments, parts, result, durable, moving or (folder / "abort").exists()).run()
    result.seconds = round(time.monotonic() - began, 3)
    if report:
        from penstock.spark.tools.report import audit_page

        Path(report).write_text(audit_page(result))
    return result


# -- in the tasks


def examine(folder: Path, piece: Piece, delays: tuple[int, ...], queues: dict[tuple[str, int], Queue]) -> Part:
    """Everything about a piece of the log that can be said from it and the files beside it."""
    base = piece.segment.base
    part = Part(base)
    try:
        sums = _sums(folder, piece.segment)
        keyed: list[Any] = []
        in_segment = part.segments.setdefault(base, [0, 0])
        for found in derive.windows(piece, delays):
            if isinstance(found, Damage):
                in_segment[1] += found.end - found.begin
                why = "no record that can be right"
                begin, end = base + found.begin, base + found.end
                part.add(Finding("damage", why, found.segment.path, position=begin, end=end))
                continue
            in_segment[0] += len(found.topic)
            _window(folder, part, found, sums, queues, piece.segment)
            rows, hashes = found.keys()
            keyed.append(_key_of(found.physical[rows] - base - piece.begin, hashes))
        _orphan_keys(folder, part, piece, keyed)
    except FileNotFoundError:
        return Part(base, dropped=True)
    return part


def _window(
    folder: Path, part: Part, w: Window, sums: Any, queues: dict[tuple[str, int], Queue], segment: Segment
) -> None:
    part.records += len(w.topic)
    for at, why in _broken(w, sums, part):
        part.add(_about(w, at, "damage", why, segment.path))
    whose = w.topic * (1 << 32) + (w.queue.astype(np.int64) & 0xFFFFFFFF)
    real = w.kind & 4 == 0
    for number in np.unique(whose[real]).tolist():
        topic = w.topics[number >> 32].decode("utf-8", "surrogateescape")
        key = (topic, int(np.int32(np.uint32(number & 0xFFFFFFFF))))
        mine = np.flatnonzero(real & (whose == number))
        counted = part.topics.setdefault(topic, [0, 0])
        counted[0] += len(mine)
        counted[1] += int(w.size[mine].sum())
        _stretch(part.stretches.setdefault(key, []), w.offset[mine], w.physical[mine])
        if key not in queues:
            queues[key] = Queue(folder / "consumequeue" / topic / str(key[1]))
        for i in queues[key].disagree(w, mine).tolist():
            part.add(_about(w, int(mine[i]), "derived", "its consume-queue entry leads elsewhere", segment.path))


def _about(w: Window, at: int, level: str, why: str, path: str) -> Finding:
    physical = int(w.physical[at])
    topic = w.topics[int(w.topic[at])].decode("utf-8", "replace")
    return Finding(level, why, path, topic, int(w.queue[at]), int(w.offset[at]), physical, physical + int(w.size[at]))


def _broken(w: Window, sums: Any, part: Part) -> Iterator[tuple[int, str]]:
    """(row, why) of records whose body or whole has another sum than stands beside it."""
    bodies = np.unpackbits(w.columns.intact(), count=len(w.topic), bitorder="little").astype(bool)
    _, lengths = w.columns.spans(BODY)
    for at in np.flatnonzero(~bodies & (lengths > 0)).tolist():
        yield at, "the body has another checksum"
    if sums is None:
        part.unchecked += len(w.topic)
        return
    covers_from, covers_to, starts, crcs = sums
    inside = w.begin + w.start
    place = np.searchsorted(starts, inside)
    view = memoryview(w.data)
    for at, (begin, size, where, n) in enumerate(
        zip(w.start.tolist(), w.size.tolist(), inside.tolist(), place.tolist(), strict=True)
    ):
        if not covers_from <= where < covers_to:
            part.unchecked += 1
        elif n >= len(starts) or starts[n] != where:
            if bodies[at]:
                yield at, "no checksum was stored for a record that begins here"
        elif crc32(view[begin : begin + size]) != crcs[n] and (bodies[at] or lengths[at] == 0):
            yield at, "the record has another checksum"


def _sums(folder: Path, segment: Segment) -> Any:
    """(first byte covered, end of that, starts, sums) from the file beside a segment; None without a good one."""
    path = folder / "checksums" / f"{segment.base:020d}"
    try:
        head = np.fromfile(path, ">u4", 8)
    except OSError:
        return None
    if len(head) < 8 or int(head[0]) != SUM_MAGIC or int(head[1]) not in (1, 2):
        return None
    if int(head[2]) << 32 | int(head[3]) != segment.base:
        return None
    held = np.fromfile(path, _SUM, offset=32)
    zero = np.flatnonzero((held["start"] == 0) & ((np.arange(len(held)) > 0) | (held["crc"] == 0)))
    held = held[: zero[0]] if len(zero) else held
    mark, counts = logfiles.last_mark(folder)
    # What RocketMQ has put behind our last record has no sums.
    until = segment.size if mark is None or counts else max(mark.durable - segment.base, 0)
    return int(head[4]), until, held["start"].astype(np.int64), held["crc"].astype(np.int64)


def _stretch(stretches: list[list[int]], offsets: Any, physical: Any) -> None:
    cuts = np.flatnonzero(np.diff(offsets) != 1) + 1
    for begin, end in zip([0, *cuts.tolist()], [*cuts.tolist(), len(offsets)], strict=True):
        first, last = int(offsets[begin]), int(offsets[end - 1])
        if stretches and stretches[-1][1] + 1 == first:
            stretches[-1][1] = last
        else:
            stretches.append([first, last, int(physical[begin])])


def _entries_of(path: Path) -> Any:
    """A consume-queue file's entries; none of a file that was dropped since it was listed."""
    try:
        return np.fromfile(path, derive.ENTRY)
    except FileNotFoundError:
        return np.empty(0, derive.ENTRY)


class Queue:
    """A consume queue's entries, mapped file by file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = [(n // 20, Path(path)) for n, path in derive.segment_files(str(folder))]
        self.held: dict[int, Any] = {}

    def entries(self, number: int) -> Any:
        if number not in self.held:
            self.held.clear()
            self.held[number] = _entries_of(self.files[number][1])
        return self.held[number]

    def disagree(self, w: Window, mine: Any) -> Any:
        """Which of these records the queue has another entry for; where it has none (deleted, not yet made) is no word.

        An entry of a delayed message says a moment, which depends on the broker's settings: any that is not past will do.
        """
        offsets, physical, sizes, codes = w.offset[mine], w.physical[mine], w.size[mine], w.code[mine]
        late, tags, stored = w.late[mine], w.tag[mine], w.stored[mine]
        wrong = np.zeros(len(offsets), bool)
        for number, (first, _) in enumerate(self.files):
            if number + 1 < len(self.files) and (offsets >= self.files[number + 1][0]).all():
                continue
            held = self.entries(number)
            inside = np.flatnonzero((offsets >= first) & (offsets < first + len(held)))
            if not len(inside):
                continue
            found = held[offsets[inside] - first]
            same = (found["physical"] == physical[inside]) & (found["size"] == sizes[inside])
            code = found["code"].astype(np.int64)
            moment = late[inside] & ((code >= stored[inside] - DAY_MS) | (code == tags[inside]))
            same &= (code == codes[inside]) | moment
            wrong[inside] = ~same & (found["size"] != 0)
        return np.flatnonzero(wrong)


def _orphan_keys(folder: Path, part: Part, piece: Piece, keyed: list[Any]) -> None:
    """Index entries that point into the piece and are no key of a record there."""
    low, high = piece.segment.base + piece.begin, piece.segment.base + piece.end
    known = np.sort(np.concatenate(keyed)) if keyed else np.empty(0, np.int64)
    for path in sorted((folder / "index").glob("[0-9]*")):
        try:
            index = Index(path)
        except FileNotFoundError:  # dropped since
            continue
        first, entries = index.between(low, high)
        part.index_entries += len(entries)
        physical, hashes = entries["physical"].astype(np.int64), entries["hash"].astype(np.int64)
        asked = _key_of(physical - low, hashes)
        place = np.minimum(np.searchsorted(known, asked), max(len(known) - 1, 0))
        wrong = (hashes < 0) | (physical < low) | (physical >= high)
        wrong |= known[place] != asked if len(known) else True
        for n in np.flatnonzero(wrong).tolist():
            why = f"index entry {first + n} is no key of a record there"
            part.add(Finding("derived", why, str(path), position=int(physical[n])))


def _key_of(inside: Any, hashes: Any) -> Any:
    """Place in the piece and hash as one number: a piece lies in one segment, and those are far below 4 GB."""
    return inside << 31 | hashes & 0x7FFFFFFF


class Index:
    """An index file, mapped."""

    def __init__(self, path: Path) -> None:
        size = path.stat().st_size
        self.path, self.count, self.slots, self.room = path, 0, 0, 0
        with open(path, "rb") as file:
            head = file.read(40)
        if len(head) == 40:
            *_, self.used, self.count = _INDEX_HEADER.unpack(head)
            from penstock.log.verify import _index_shape

            self.slots, self.room = _index_shape(path, size)
        self.whole = self.slots > 0 and 1 <= self.count <= self.room
        self.entries: Any = np.empty(0, _INDEX_ENTRY)
        if self.whole:
            self.entries = np.memmap(path, _INDEX_ENTRY, "r", 40 + self.slots * 4, self.count)

    def between(self, low: int, high: int) -> tuple[int, Any]:
        """(number of the first, entries) that point between these."""
        physical = self.entries["physical"]
        first, last = (
            bisect_left(range(1, max(self.count, 1)), bound, key=lambda n: int(physical[n])) + 1
            for bound in (low, high)
        )
        return first, np.array(self.entries[first:last])

    def find(self, hash_: int) -> list[int]:
        """Physical offsets of the entries with this hash, newest first."""
        found = []
        with open(self.path, "rb") as file:
            file.seek(40 + hash_ % self.slots * 4)
            n = int.from_bytes(file.read(4), "big")
        while 0 < n < self.count:
            if int(self.entries["hash"][n]) == hash_:
                found.append(int(self.entries["physical"][n]))
            previous = int(self.entries["previous"][n])
            n = previous if previous < n else 0  # links lead to older entries only
        return found

    def faults(self, moving: bool = False) -> Iterator[tuple[int, str]]:
        """(entry, why) of what is wrong in the file itself. `moving`: entries may be added meanwhile."""
        if not self.whole:
            yield 0, "its size or its count cannot be right"
            return
        entries = np.array(self.entries)
        physical = entries["physical"].astype(np.int64)[1:]
        for n in np.flatnonzero(np.diff(physical) < 0).tolist():
            yield n + 2, f"entry {n + 2} points before the one before it"
        hashes = entries["hash"].astype(np.int64)[1:]
        if len(hashes) and int(hashes.min()) < 0:
            yield int(np.argmin(hashes)) + 1, "a hash is negative"
            return
        slot = hashes % self.slots
        order = np.argsort(slot, kind="stable")
        same = slot[order][1:] == slot[order][:-1]
        previous = np.zeros(len(slot), np.int64)
        previous[order[1:][same]] = order[:-1][same] + 1
        for n in np.flatnonzero(entries["previous"][1:] != previous).tolist():
            yield n + 1, f"entry {n + 1} links to {int(entries['previous'][n + 1])}, not to {int(previous[n])}"
        heads = np.fromfile(self.path, ">i4", self.slots, offset=40).astype(np.int64)
        if moving:
            self._as_before(heads)
        wanted = np.zeros(self.slots, np.int64)
        wanted[slot] = np.arange(1, len(slot) + 1)
        for at in np.flatnonzero(heads != wanted).tolist():
            yield int(wanted[at]), f"slot {at} begins with entry {int(heads[at])}, not {int(wanted[at])}"

    def _as_before(self, heads: Any) -> None:
        """Take slots that begin with a newer entry than was counted back to the first that was."""
        after = np.memmap(self.path, _INDEX_ENTRY, "r", 40 + self.slots * 4, self.room)["previous"]
        for at in np.flatnonzero(heads >= self.count).tolist():
            n = int(heads[at])
            while self.count <= n < self.room:
                n = min(int(after[n]), n - 1)
            heads[at] = n


# -- on the driver


class _Judge:
    """Puts the parts together."""

    def __init__(
        self,
        folder: Path,
        segments: list[Segment],
        parts: list[Part],
        result: Result,
        durable: int | None,
        moving: bool,
    ) -> None:
        self.folder, self.result, self.durable, self.moving = folder, result, durable, moving
        self.end = segments[-1].base + segments[-1].end
        self.usual = max(segment.size for segment in segments)
        self.first = max([part.base + self.usual for part in parts if part.dropped], default=segments[0].base)
        self.segments = [segment for segment in segments if segment.base >= self.first]
        self.parts = [part for part in parts if part.base >= self.first]
        self.last = segments[-1].path
        self.findings: list[Finding] = []
        self.holes: list[tuple[int, int]] = []  # bytes of the log that are known to be lost
        self.gone: dict[tuple[str, int], set[int]] = {}

    def run(self) -> None:
        result = self.result
        if len(self.segments) < result.segments:
            why = f"{result.segments - len(self.segments)} segments were dropped while this ran"
            self.findings.append(Finding("note", why, end=self.first))
            result.segments = len(self.segments)
        for part in self.parts:
            result.records += part.records
            result.unchecked += part.unchecked
            result.index_entries += part.index_entries
            result.more_findings += part.more
            self.findings += part.findings
            for topic, (count, size) in part.topics.items():
                held = result.topics.setdefault(topic, [0, 0])
                held[0] += count
                held[1] += size
        for segment in self.segments:
            counts = [part.segments.get(segment.base, [0, 0]) for part in self.parts]
            result.per_segment.append([segment.base, *(sum(c[i] for c in counts) for i in (0, 1))])
        self._segments()
        self.holes += [(one.position, one.end) for one in self.findings if one.level == "damage"]
        self._queues()
        self._index()
        order = {"damage": 0, "derived": 1, "note": 2}
        self.findings.sort(key=lambda one: (order[one.level], one.position, one.topic, one.queue, one.offset))
        result.more_findings += max(len(self.findings) - FINDINGS_MAX, 0)
        result.findings = self.findings[:FINDINGS_MAX]

    def _segments(self) -> None:
        usual = self.usual
        for before, after in pairwise(self.segments):
            end = before.base + usual
            if before.size < usual:
                self._lost("the segment is cut short", before.path, before.base + before.size, min(end, after.base))
            if after.base > end:
                self._lost("a segment is missing", before.path, end, after.base)
            elif after.base < end:
                self._lost("the segment begins inside the one before it", after.path, after.base, end)
        if self.durable is not None and self.durable > self.end:
            self._lost("the log ends before its durable position", self.last, self.end, self.durable)

    def _lost(self, why: str, path: str, position: int, end: int) -> None:
        self.findings.append(Finding("damage", why, path, position=position, end=end))

    # queues

    def _queues(self) -> None:
        base = self.folder / "consumequeue"
        there = {
            (topic.name, int(name))
            for topic in (base.iterdir() if base.is_dir() else ())
            for name in _names(topic)
            if name.isdigit()
        }
        stretches: dict[tuple[str, int], list[list[int]]] = {}
        for part in self.parts:
            for key, found in part.stretches.items():
                stretches.setdefault(key, []).extend(found)
        self.result.queues = len(there | stretches.keys())
        for key in sorted(there | stretches.keys()):
            topic, number = key
            offsets, physical, sizes, fillers = self._entries(base / topic / str(number))
            self.result.entries += len(offsets)
            self._follow(
                key, stretches.get(key, []), dict(zip(offsets.tolist(), physical.tolist(), strict=True)), fillers
            )
            self._lead(key, stretches.get(key, []), offsets, physical, sizes)

    def _entries(self, folder: Path) -> tuple[Any, Any, Any, set[int]]:
        """(offsets, physical offsets, sizes) of the entries that should lead to a record, and the offsets given up."""
        found, fillers = [np.empty((0, 3), np.int64)], set()
        for first, path in derive.segment_files(str(folder)):
            held = _entries_of(Path(path))
            size, physical = held["size"].astype(np.int64), held["physical"].astype(np.int64)
            offsets = first // 20 + np.arange(len(held))
            given_up = (size == derive.FILLER_SIZE) & (physical == 0)
            fillers.update(offsets[given_up].tolist())
            real = ((size != 0) | (physical != 0)) & ~given_up
            found.append(np.stack([offsets[real], physical[real], size[real]], 1))
        every = np.concatenate(found)
        return every[:, 0], every[:, 1], every[:, 2], fillers

    def _follow(
        self, key: tuple[str, int], stretches: list[list[int]], entries: dict[int, int], fillers: set[int]
    ) -> None:
        """Gaps and doubles in a queue's offsets, in the order of the log."""
        topic, queue = key
        covered: list[list[int]] = []
        expected = None
        for first, last, physical in stretches:
            if expected is None or first == expected:
                pass
            elif first > expected:
                lost = [
                    offset for offset in range(expected, min(first, expected + FINDINGS_MAX)) if offset not in fillers
                ]
                why = f"offsets {expected} to {first - 1} are missing"
                if lost:
                    self.findings.append(Finding("damage", why, "", topic, queue, lost[0], physical, physical))
                else:
                    self.findings.append(Finding("note", why + ": the broker gave them up", "", topic, queue, expected))
            elif first == 0 and entries.get(0) == physical:
                self.findings.append(
                    Finding("note", "the topic was made anew", "", topic, queue, 0, physical, physical)
                )
                covered, expected = [], None
            else:
                again = (
                    f"offset {first} again" if last == first else f"offsets {first} to {min(last, expected - 1)} again"
                )
                self.findings.append(Finding("damage", again, "", topic, queue, first, physical, physical))
            covered.append([first, last])
            expected = max(last + 1, expected or 0)

    def _lead(self, key: tuple[str, int], stretches: list[list[int]], offsets: Any, physical: Any, sizes: Any) -> None:
        """Entries that lead to no record of the queue."""
        topic, queue = key
        known = np.zeros(len(offsets), bool)
        for first, last, _ in stretches:
            known[np.searchsorted(offsets, first) : np.searchsorted(offsets, last, "right")] = True
        orphans = ~known & (physical >= self.first)
        if self.moving:
            orphans &= physical < self.end
        if self.moving and orphans.any():  # an entry may have been read while it was written
            again, places, *_ = self._entries(self.folder / "consumequeue" / topic / str(queue))
            now = dict(zip(again.tolist(), places.tolist(), strict=True))
            orphans &= [now.get(n) == at for n, at in zip(offsets.tolist(), physical.tolist(), strict=True)]
        for i in np.flatnonzero(orphans).tolist():
            at = int(physical[i])
            if any(begin <= at < end for begin, end in self.holes):
                level, why = "damage", "the message is lost: its bytes are damaged or gone"
            else:
                level, why = "derived", "the consume-queue entry leads to no record of this queue and offset"
            where = f"consumequeue/{topic}/{queue}"
            self.findings.append(Finding(level, why, where, topic, queue, int(offsets[i]), at, at + int(sizes[i])))

    def _index(self) -> None:
        paths = sorted((self.folder / "index").glob("[0-9]*"))
        for path in paths:
            try:
                index = Index(path)
                faults = list(index.faults(self.moving))
            except FileNotFoundError:  # dropped since
                continue
            if self.moving and path == paths[-1] and index.count == 0:  # being made
                continue
            for n, why in faults:
                at = int(index.entries["physical"][n]) if index.whole and 0 < n < index.count else -1
                self.findings.append(Finding("derived", why, str(path), position=at, end=at))
            beyond = np.asarray(index.entries["physical"][1:], np.int64) >= self.end
            for n in [] if self.moving else np.flatnonzero(beyond).tolist():
                at = int(index.entries["physical"][n + 1])
                self.findings.append(
                    Finding("derived", f"index entry {n + 1} points beyond the log", str(path), position=at, end=at)
                )


def _names(folder: Path) -> list[str]:
    """What is in a folder; nothing in one that was dropped since it was listed."""
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
