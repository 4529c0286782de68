"""Commit-log segments read in bulk, without a broker: which files, up to where, in which pieces, and the walk over one.

A record names its own physical offset, so a segment can be cut at any byte: a piece begins at the first record that stands
at its own place at or behind the cut. A piece owns the records that begin in it, and what stands damaged between the last
of them and the next good record. So any cutting gives the same rows.

The newest segment may be growing: it is read up to the position the store's checkpoint calls durable, without one up to
the last record there is now. Pieces are read in windows that fit a core's cache.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from penstock.errors import ConfigError
from penstock.log import checkpoint
from penstock.spark.read import planning
from penstock.wire import layout

if TYPE_CHECKING:
    from penstock.spark.kernel.buffers import RecordDecoder

WINDOW_BYTES = 1 << 20
_CHUNK = 4 << 20
_MAGICS = (layout.MAGIC_V1, layout.MAGIC_V2)
_MAGIC_BYTES = tuple(magic.to_bytes(4) for magic in _MAGICS)
_MAGIC = _MAGIC_BYTES[0][:3]  # what both begin with
_HEAD = Struct(">iI")  # size, magic
_PLACE = Struct(">q")
_FLAGS = Struct(">i")
_SMALLEST = layout.RECORD_FIXED_BYTES
_LONGEST_HEAD = layout.BODY + 2 * layout.HOST_V6_MORE  # as far as the body, with IPv6 hosts


class LogSegment(NamedTuple):
    """One file: physical offsets `base` to `base + size`, of which those below `end` are read."""

    path: str
    base: int
    size: int
    end: int


class Piece(NamedTuple):
    """Bytes `begin` to `end` of a segment, counted in the file."""

    segment: LogSegment
    begin: int
    end: int


class Framed(NamedTuple):
    """So many rows are in the decoder now, out of a window that begins here in the file."""

    number: int
    begin: int


class Damage(NamedTuple):
    """Bytes of a segment's file in which no record begins."""

    segment: LogSegment
    begin: int
    end: int


# -- which files


def find(path: str) -> list[LogSegment]:
    """The segments behind a store folder, a commitlog folder, a file or a pattern of these, by physical offset."""
    chosen: dict[str, int | None] = {}  # and up to which physical offset its store calls the log durable
    for name in sorted(glob.glob(path)) if glob.has_magic(path) else [path]:
        place = Path(name)
        if place.is_dir():
            place = place / "commitlog" if (place / "commitlog").is_dir() else place
            durable = _durable_of(place)  # asked before the list is made, and once: a log at work goes on meanwhile
            chosen.update((str(place / n), durable) for n in sorted(os.listdir(place)) if _is_name(n))
        elif place.is_file():
            chosen[str(place)] = _durable_of(place.parent)
    if not chosen:
        hint = "give a store folder, its folder commitlog, segment files, or a pattern of these"
        raise ConfigError(f"no commit-log segments at {path}", hint)
    found = [_segment(Path(name), durable) for name, durable in chosen.items()]
    segments = sorted((segment for segment in found if segment), key=lambda s: (s.base, s.path))
    if not segments:
        raise ConfigError(f"the commit-log segments at {path} were dropped while they were listed", "try again")
    while len(segments) > 1 and not segments[-1].end:  # made ahead of its use
        segments.pop()
    return segments


def store_of(segment: LogSegment) -> Path | None:
    """The store folder a segment lies in, if it lies in one."""
    folder = Path(segment.path).absolute().parent
    return folder.parent if folder.name == "commitlog" else None


def _is_name(name: str) -> bool:
    return len(name) == 20 and name.isdigit()


def _durable_of(folder: Path) -> int | None:
    return durable_end(folder.absolute().parent) if folder.absolute().name == "commitlog" else None


def _segment(path: Path, durable: int | None) -> LogSegment | None:
    """The segment in this file; None if a broker at work has dropped it since it was listed."""
    try:
        file = open(path, "rb")  # noqa: SIM115
    except FileNotFoundError:
        return None
    with file:
        size = os.fstat(file.fileno()).st_size
        # A copy under another name is known by its first record.
        head = os.pread(file.fileno(), 36, 0)
        base = (
            int(path.name)
            if _is_name(path.name)
            else _PLACE.unpack_from(head, layout.PHYSICAL)[0]
            if len(head) == 36
            else 0
        )
        whole = LogSegment(str(path), base, size, size)
        if durable is not None:
            return whole._replace(end=min(max(durable - base, 0), size))
        if any(_is_name(name) and int(name) > base and _begun(path.parent / name) for name in os.listdir(path.parent)):
            return whole
        end = _written(file.fileno(), whole)
        return whole if not end and _is_none(head, base) else whole._replace(end=end)


def _is_none(head: bytes, base: int) -> bool:
    """Whether a file without one whole record does not even begin with one that was cut short: it is a compressed copy, or one
    under another segment's name, or another file. Taken for a log that has no message yet, it had no rows, and no error.
    """
    if not head.strip(b"\0"):
        return False
    if len(head) < layout.SYS_FLAG:
        return True
    magic, place = _HEAD.unpack_from(head)[1], _PLACE.unpack_from(head, layout.PHYSICAL)[0]
    return magic != layout.MAGIC_BLANK and (magic not in _MAGICS or place != base)


def _begun(path: Path) -> bool:
    """Whether anything was written to a segment yet: brokers make the next one ahead of its use."""
    try:
        with open(path, "rb") as file:
            return bool(file.read(8).strip(b"\0"))
    except (FileNotFoundError, IsADirectoryError):
        return False


def durable_end(store: Path) -> int | None:
    """The position below which our store has said that its log is durable; None where it has not said so."""
    mark, counts = last_mark(store)
    return mark.durable if mark is not None and counts else None


def last_mark(store: Path) -> tuple[checkpoint.Checkpoint | None, bool]:
    """(what our broker last wrote about the store, whether no other broker has gone on behind it)."""
    try:
        return checkpoint.newest((store / "checkpoint").read_bytes(), checkpoint.abort_text(store))
    except OSError:
        return None, True


def _written(fd: int, segment: LogSegment) -> int:
    """Where the last record ends in a segment whose rest is zeros, or torn."""
    low, high = 0, segment.size
    while high - low > _CHUNK:  # halving is a guess (a body may be zeros), made good below
        middle = (low + high) // 2
        low, high = (middle, high) if os.pread(fd, 1 << 16, middle).strip(b"\0") else (low, middle)
    end, at = 0, next_good(fd, segment, max(low - _CHUNK, 0))
    while at >= 0:
        while at < segment.size and (length := _measure(fd, segment, at)):
            at += length
        end, at = at, next_good(fd, segment, at)
    return end


# -- pieces


def cut(segments: Sequence[LogSegment], piece_bytes: int, least: int | None) -> list[list[Piece]]:
    """The segments as runs of about equal size, in order: at least `least` of them, each `piece_bytes` at most."""
    total = sum(segment.end for segment in segments)
    count = max(min(max(-(-total // piece_bytes), least or 1), total), 1)
    planning.check_count(count, f"{total} bytes of log")
    borders = [total * n // count for n in range(count + 1)]
    runs: list[list[Piece]] = []
    first = base = 0  # the segment that a run begins in, and how many bytes are before it
    for low, high in pairwise(borders):
        run = []
        while first < len(segments) and base < high:
            segment = segments[first]
            begin, end = max(low - base, 0), min(high - base, segment.end)
            if begin < end:
                run.append(Piece(segment, begin, end))
            if high < base + segment.end:
                break  # the next run goes on in it
            base += segment.end
            first += 1
        if run:
            runs.append(run)
    return runs


# -- the walk


def walk(piece: Piece, decoder: RecordDecoder, window_bytes: int = WINDOW_BYTES) -> Iterator[Framed | Damage]:
    """The records of a piece, in order, and the damage met on the way."""
    segment, at, end = piece
    with open(segment.path, "rb", buffering=0) as file:
        fd = file.fileno()
        if at:
            at = next_good(fd, segment, at)
            if not 0 <= at < end:
                return
        longest = window_bytes
        while at < segment.end:
            if at < end:
                data = os.pread(fd, min(longest, segment.end - at), at)
                reached = decoder.sweep(data, end - at, segment.base + at)
                if decoder.count or decoder.broken:
                    yield Framed(decoder.count, at)
                longest = window_bytes
                if reached:
                    at += reached
                    continue
            length = _measure(fd, segment, at)
            if at < end and longest < length <= segment.end - at:
                longest = length
                continue
            if length or _ends(fd, segment, at):
                return
            after = next_good(fd, segment, at + 1)
            after = after if after >= 0 else segment.end
            yield Damage(segment, at, after)
            at = after


def next_good(fd: int, segment: LogSegment, at: int) -> int:
    """The first place from `at` on where a whole record stands at its own physical offset, or -1."""
    at = max(at, 0) + layout.MAGIC
    while at < segment.size:
        at = _data(fd, at)
        chunk = os.pread(fd, _CHUNK + 3, at)
        if len(chunk) < 4:
            return -1
        found = chunk.find(_MAGIC)
        while found >= 0:
            if chunk[found : found + 4] in _MAGIC_BYTES and _measure(fd, segment, at + found - layout.MAGIC):
                return at + found - layout.MAGIC
            found = chunk.find(_MAGIC, found + 1)
        at += _CHUNK
    return -1


def _data(fd: int, at: int) -> int:
    """Where written bytes go on: a segment that is not full is mostly a hole."""
    try:
        return max(os.lseek(fd, at, os.SEEK_DATA), at)
    except (OSError, AttributeError):
        return at


def _ends(fd: int, segment: LogSegment, at: int) -> bool:
    """Whether the blank record stands here that fills the rest of a segment."""
    return os.pread(fd, 8, at) == _HEAD.pack(segment.size - at, layout.MAGIC_BLANK)


def _measure(fd: int, segment: LogSegment, at: int) -> int:
    """The size of the record at this place of the file; 0 when none that is whole, at its own place, begins there."""
    head = os.pread(fd, _LONGEST_HEAD, at)
    if len(head) < _SMALLEST:
        return 0
    total, magic = _HEAD.unpack_from(head)
    if magic not in _MAGICS or not _SMALLEST <= total <= segment.size - at:
        return 0
    if _PLACE.unpack_from(head, layout.PHYSICAL)[0] != segment.base + at:
        return 0
    flags = _FLAGS.unpack_from(head, layout.SYS_FLAG)[0]
    fixed = layout.BODY_LENGTH
    fixed += layout.HOST_V6_MORE if flags & layout.SYS_BORN_IPV6 else 0
    fixed += layout.HOST_V6_MORE if flags & layout.SYS_STORE_IPV6 else 0
    body = int.from_bytes(head[fixed : fixed + layout.LENGTH_BYTES], "big", signed=True)
    wide = 1 + (magic == layout.MAGIC_V2)
    topic = fixed + layout.LENGTH_BYTES + body
    if body < 0 or topic + wide + 2 > total:
        return 0
    properties = topic + wide + int.from_bytes(os.pread(fd, wide, at + topic), "big")
    if properties + 2 > total:
        return 0
    return total if properties + 2 + int.from_bytes(os.pread(fd, 2, at + properties), "big") == total else 0
