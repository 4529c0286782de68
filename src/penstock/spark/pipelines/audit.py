"""Every byte of a store's log looked at, and everything derived from it compared: what is wrong, by topic, queue and offset.

    tasks    walk one piece of the log each: records that are none, body sums, the sums over whole records beside the
             log, the consume-queue entry of each record, the index entries that point into the piece; back come findings
             and, of each queue, the stretches of offsets that follow one another
    driver   segments that are missing or short; gaps and doubles in those stretches; entries that lead to no record;
             the index files' own links

    damage   bytes of the truth that cannot be right: a message is lost or changed
    derived  a consume queue or index that does not fit the log: `reindex`, or the broker's next start, mends it
    note     worth knowing, and no fault: offsets the broker gave up after a crash, a topic created again

A changed bit outside a body is found only where whole-record sums are (stores of ours; RocketMQ has body sums alone), or where it
breaks a length, a place, an offset or an entry. Nothing is written, no lock is taken.

A store at work moves on meanwhile. What is looked at is the log below the durable position at the beginning; what lies
beside the log is read after that and may be ahead of it, and segments that retention drops in between are left out.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

import numpy as np

from penstock.errors import ConfigError
from penstock.log import sidelayout
from penstock.log.options import MESSAGE_DELAY_LEVEL, delay_levels
from penstock.spark.kernel.buffers import Longs
from penstock.spark.kernel.rowtable import BODY
from penstock.spark.log import derive
from penstock.spark.log import files as logfiles
from penstock.spark.log.derive import LogWindow
from penstock.spark.log.files import Damage, LogSegment, Piece
from penstock.spark.log.indexfile import INDEX_NAMES, IndexFile
from penstock.spark.log.queuefile import QueueFiles
from penstock.spark.pipelines.asked import at_least
from penstock.spark.pipelines.auditpage import audit_page
from penstock.spark.pipelines.findings import AuditResult, MessageFinding, PieceAudit
from penstock.spark.pipelines.judge import Judge
from penstock.spark.pipelines.parallel import SMALL_BYTES, Progress, over

if TYPE_CHECKING:
    from penstock.spark.pipelines.parallel import Spark

SPLIT_BYTES = 128 << 20
_SUM = np.dtype([("start", ">u4"), ("crc", ">u4")])


class Sums(NamedTuple):
    """The sums over whole records that stand beside a segment, and which bytes of it they cover."""

    covers_from: int
    covers_to: int
    starts: Longs
    crcs: Longs


def run(
    spark: Spark,
    store: str | Path,
    *,
    split_bytes: int = SPLIT_BYTES,
    message_delay_level: str = MESSAGE_DELAY_LEVEL,
    report: str | Path = "",
    progress: Progress | None = None,
) -> AuditResult:
    """Audit the store in this folder; `report`, when given, is where an HTML page with the result goes."""
    began = time.monotonic()
    folder = Path(store).absolute()
    if not (folder / "commitlog").is_dir():
        raise ConfigError(f"{folder} is no store folder: it has no folder commitlog")
    at_least(1, "split_bytes", split_bytes)
    durable, moving = logfiles.durable_end(folder), (folder / "abort").exists()
    segments = logfiles.find(str(folder))
    delays = delay_levels(message_delay_level)
    total = sum(segment.end for segment in segments)

    def work(pieces: list[Piece]) -> Iterator[PieceAudit]:
        queues: dict[tuple[str, int], QueueFiles] = {}
        for piece in pieces:
            yield examine(folder, piece, delays, queues)

    parts = over(spark, logfiles.cut(segments, split_bytes, None), work, progress, total, small=total <= SMALL_BYTES)
    result = AuditResult(str(folder), len(segments), total)
    # A broker is at work, or was killed: what lies beside the log may be ahead of what was read of it.
    Judge(folder, segments, parts, result, durable, moving or (folder / "abort").exists()).run()
    result.seconds = round(time.monotonic() - began, 3)
    if report:
        Path(report).write_text(audit_page(result))
    return result


# -- in the tasks


def examine(
    folder: Path, piece: Piece, delays: tuple[int, ...], queues: dict[tuple[str, int], QueueFiles]
) -> PieceAudit:
    """Everything about a piece of the log that can be said from it and the files beside it."""
    base = piece.segment.base
    part = PieceAudit(base)
    try:
        sums = _sums(folder, piece.segment)
        keyed: list[Longs] = []
        in_segment = part.segments.setdefault(base, [0, 0])
        for found in derive.windows(piece, delays):
            if isinstance(found, Damage):
                in_segment[1] += found.end - found.begin
                why = "no record that can be right"
                begin, end = base + found.begin, base + found.end
                part.add(MessageFinding("damage", found.segment.path, why, position=begin, end=end))
                continue
            in_segment[0] += len(found.topic)
            _window(folder, part, found, sums, queues, piece.segment)
            rows, hashes = found.keys()
            keyed.append(_key_of(found.physical[rows] - base - piece.begin, hashes))
        _orphan_keys(folder, part, piece, keyed)
    except FileNotFoundError:
        return PieceAudit(base, dropped=True)
    return part


def _window(
    folder: Path,
    part: PieceAudit,
    w: LogWindow,
    sums: Sums | None,
    queues: dict[tuple[str, int], QueueFiles],
    segment: LogSegment,
) -> None:
    part.count(records=len(w.topic))
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
            queues[key] = QueueFiles(folder / "consumequeue" / topic / str(key[1]))
        for i in queues[key].disagree(w, mine).tolist():
            part.add(_about(w, int(mine[i]), "derived", "its consume-queue entry leads elsewhere", segment.path))


def _about(w: LogWindow, at: int, level: str, why: str, path: str) -> MessageFinding:
    physical = int(w.physical[at])
    topic = w.topics[int(w.topic[at])].decode("utf-8", "replace")
    return MessageFinding(
        level,
        path,
        why,
        topic=topic,
        queue=int(w.queue[at]),
        offset=int(w.offset[at]),
        position=physical,
        end=physical + int(w.size[at]),
    )


def _broken(w: LogWindow, sums: Sums | None, part: PieceAudit) -> Iterator[tuple[int, str]]:
    """(row, why) of records whose body or whole has another sum than stands beside it."""
    bodies = np.unpackbits(w.columns.intact(), count=len(w.topic), bitorder="little").astype(bool)
    _, lengths = w.columns.spans(BODY)
    for at in np.flatnonzero(~bodies & (lengths > 0)).tolist():
        yield at, "the body has another checksum"
    if sums is None:
        part.count(unchecked=len(w.topic))
        return
    covers_from, covers_to, starts, crcs = sums
    inside = w.begin + w.start
    place = np.searchsorted(starts, inside)
    view = memoryview(w.data)
    for at, (begin, size, where, n) in enumerate(
        zip(w.start.tolist(), w.size.tolist(), inside.tolist(), place.tolist(), strict=True)
    ):
        if not covers_from <= where < covers_to:
            part.count(unchecked=1)
        elif n >= len(starts) or starts[n] != where:
            if bodies[at]:
                yield at, "no checksum was stored for a record that begins here"
        elif crc32(view[begin : begin + size]) != crcs[n] and (bodies[at] or lengths[at] == 0):
            yield at, "the record has another checksum"


def _sums(folder: Path, segment: LogSegment) -> Sums | None:
    """(first byte covered, end of that, starts, sums) from the file beside a segment; None without a good one."""
    path = folder / "checksums" / f"{segment.base:020d}"
    try:
        head = np.fromfile(path, ">u4", 8)
    except OSError:
        return None
    if (
        len(head) < 8
        or int(head[0]) != sidelayout.MAGIC
        or int(head[1]) not in (sidelayout.VERSION_OLD, sidelayout.VERSION_NOW)
    ):
        return None
    if int(head[2]) << 32 | int(head[3]) != segment.base:
        return None
    held = np.fromfile(path, _SUM, offset=32)
    zero = np.flatnonzero((held["start"] == 0) & ((np.arange(len(held)) > 0) | (held["crc"] == 0)))
    held = held[: zero[0]] if len(zero) else held
    mark, counts = logfiles.last_mark(folder)
    # What RocketMQ has put behind our last record has no sums.
    until = segment.size if mark is None or counts else max(mark.durable - segment.base, 0)
    return Sums(int(head[4]), until, held["start"].astype(np.int64), held["crc"].astype(np.int64))


def _stretch(stretches: list[list[int]], offsets: Longs, physical: Longs) -> None:
    cuts = np.flatnonzero(np.diff(offsets) != 1) + 1
    for begin, end in zip([0, *cuts.tolist()], [*cuts.tolist(), len(offsets)], strict=True):
        first, last = int(offsets[begin]), int(offsets[end - 1])
        if stretches and stretches[-1][1] + 1 == first:
            stretches[-1][1] = last
        else:
            stretches.append([first, last, int(physical[begin])])


def _orphan_keys(folder: Path, part: PieceAudit, piece: Piece, keyed: list[Longs]) -> None:
    """Index entries that point into the piece and are no key of a record there."""
    low, high = piece.segment.base + piece.begin, piece.segment.base + piece.end
    known = np.sort(np.concatenate(keyed)) if keyed else np.empty(0, np.int64)
    for path in sorted((folder / "index").glob(INDEX_NAMES)):
        try:
            index = IndexFile(path)
        except FileNotFoundError:  # dropped since
            continue
        first, entries = index.between(low, high)
        part.count(index_entries=len(entries))
        physical, hashes = entries["physical"].astype(np.int64), entries["hash"].astype(np.int64)
        asked = _key_of(physical - low, hashes)
        place = np.minimum(np.searchsorted(known, asked), max(len(known) - 1, 0))
        wrong = (hashes < 0) | (physical < low) | (physical >= high)
        wrong |= known[place] != asked if len(known) else True
        for n in np.flatnonzero(wrong).tolist():
            why = f"index entry {first + n} is no key of a record there"
            part.add(MessageFinding("derived", str(path), why, position=int(physical[n])))


def _key_of(inside: Longs, hashes: Longs) -> Longs:
    """Place in the piece and hash as one number: a piece lies in one segment, and those are far below 4 GB."""
    return inside << 31 | hashes & 0x7FFFFFFF
