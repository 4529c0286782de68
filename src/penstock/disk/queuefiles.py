"""The files of a disk queue: go-diskqueue's, and sums of ours beside them.

    <name>.diskqueue.<NNNNNN>.dat    length (4) | payload            records back to back, no header
    <name>.diskqueue.meta.dat        "<depth>\\n<read file>,<read position>\\n<write file>,<write position>\\n"
    <name>.diskqueue.<NNNNNN>.sum    "PSDQ" | version (4), then for each record of the data file
                                     start × 2 + "more follows" (4) | CRC-32 over length and payload (4)

The sums of a file say which records are there; "more follows" ties those of one call together. A data file without sums
is nsqd's: its records follow one from the other, unchecked.
"""

from __future__ import annotations

import logging
import re
import struct
import sys
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from pathlib import Path

from isal.isal_zlib import crc32

from penstock.disk.files import Files
from penstock.disk.framing import cut, rise
from penstock.disk.quarantine import clear, try_quarantine
from penstock.disk.runs import Run
from penstock.errors import StoreError

log = logging.getLogger("penstock.disk")

Place = tuple[int, int]  # a file's number, and a position in it

SUMS_HEAD = b"PSDQ\0\0\0\1"
CHUNK_BYTES = 64 << 10  # a message in hand keeps the chunk it was read in
START_MAX = 1 << 31
NUMBER_MAX = 10**12
LENGTH = struct.Struct(">I")
_META = re.compile(rb"(-?\d{1,18})\n(\d{1,18}),(\d{1,18})\n(\d{1,18}),(\d{1,18})\n")
_NAME = re.compile(r"(.+)\.diskqueue\.(?:(\d{6,13})|meta)\.dat", re.DOTALL)


def queues_in(files: Files, folder: Path) -> dict[str, list[int]]:
    """The queues that have files in the folder, each with the numbers of its data files."""
    found: dict[str, list[int]] = {}
    for name in files.names(folder):
        match = _NAME.fullmatch(name)
        if match is not None:
            numbers = found.setdefault(match[1], [])
            if match[2]:
                numbers.append(int(match[2]))
    return {name: sorted(numbers) for name, numbers in found.items()}


class Paths:
    """Where the files of one queue lie."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.name = name
        self.meta = folder / f"{name}.diskqueue.meta.dat"

    def data(self, number: int) -> Path:
        return self.folder / f"{self.name}.diskqueue.{number:06d}.dat"

    def sums(self, number: int) -> Path:
        return self.folder / f"{self.name}.diskqueue.{number:06d}.sum"

    def clear_folders(self, files: Files) -> None:
        """Folders in the place of the queue's files go to lost+found."""
        for name in files.names(self.folder):
            if name.startswith(f"{self.name}.diskqueue.") and (self.folder / name).is_dir():
                try_quarantine(files, self.folder, self.folder / name, "a folder where a file should be")


# -- the meta file -----------------------------------------------------------------------------------------------------


def read_meta(files: Files, path: Path) -> tuple[int, Place, Place] | None:
    """Depth, read place and write place; None when there is no such file, or something else in it."""
    match = _META.fullmatch(_content(files, path) or b"")
    if match is None:
        return None
    depth, read_number, read_at, write_number, write_at = map(int, match.groups())
    return depth, (read_number, read_at), (write_number, write_at)


def write_meta(files: Files, path: Path, depth: int, read: Place, write: Place, *, flush: bool = True) -> None:
    """Replace the meta file. StoreError, DiskFull: the former one is still there."""
    text = f"{depth}\n{read[0]},{read[1]}\n{write[0]},{write[1]}\n"
    replace(files, path, text.encode(), flush=flush)


def plausible(meta: tuple[int, Place, Place], sizes: dict[int, int]) -> bool:
    """Whether the files bear the meta file out; `sizes` are theirs by number, without those that are `spent`."""
    depth, read, write = meta
    if depth < 0 or read > write or write[0] >= NUMBER_MAX or any(number < read[0] for number in sizes):
        return False
    if write[0] not in sizes and write[1] and read != write:
        return False
    return all(at <= sizes.get(number, at) for number, at in (read, write))


# -- sums --------------------------------------------------------------------------------------------------------------


class Sums:
    """The sums of one data file: (start × 2 + more) << 32 | CRC, in the order of the starts."""

    def __init__(self, entries: Iterable[int] = ()) -> None:
        self.entries = array("Q", entries)

    def __len__(self) -> int:
        return len(self.entries)

    def start(self, n: int) -> int:
        return self.entries[n] >> 33

    def more(self, n: int) -> bool:
        return bool(self.entries[n] >> 32 & 1)

    def sum_matches(self, n: int, record: bytes) -> bool:
        return crc32(record) == self.entries[n] & 0xFFFFFFFF

    def find(self, at: int) -> int:
        """The first entry that starts at or behind `at`."""
        return bisect_left(self.entries, at << 33)

    def encode(self) -> bytes:
        return SUMS_HEAD + entries_encode(self.entries)


def entries_encode(entries: Iterable[int]) -> bytes:
    body = array("Q", entries)
    if sys.byteorder == "little":
        body.byteswap()
    return body.tobytes()


def load_sums(files: Files, path: Path) -> Sums | None:
    """The file's sums as far as they rise; None when there are none of ours."""
    data = _content(files, path)
    if data is None or data[: len(SUMS_HEAD)] != SUMS_HEAD:
        return None
    sums = Sums()
    entries = sums.entries
    entries.frombytes(data[len(SUMS_HEAD) :][: len(data) - len(SUMS_HEAD) & ~7])
    if sys.byteorder == "little":
        entries.byteswap()
    if not rise(entries):
        sums = _mended(files, path.with_suffix(".dat"), entries)
    return sums


def _mended(files: Files, path: Path, entries: array[int]) -> Sums:
    """Sums of which some are damaged: between two that hold, records are where their lengths say."""
    known: dict[int, list[int]] = {}
    for entry in entries:
        known.setdefault(entry >> 33, []).append(entry)
    mended = Sums()
    between: list[int] = []
    if not path.is_file():
        return mended
    file = RecordFile(files, path)
    try:
        at, size = 0, file.size()
        record = file.record(at, size)
        while record is not None:
            here, crc = known.get(at, []), crc32(record)
            good = [entry for entry in here if entry & 0xFFFFFFFF == crc]
            if good:
                mended.entries.extend([*between, good[0]])
                between = []
            else:  # if a sum follows that holds: served unchecked, unless it has a sum of its own and that says no
                between.append(here[0] if here and here[0] & 0xFFFFFFFF else at << 33 | crc)
            at += len(record)
            record = file.record(at, size)
    finally:
        file.close()
    log.error("%s: damaged sums, told anew from the records where their lengths lead on", path.name)
    return mended


# -- reading -----------------------------------------------------------------------------------------------------------


class RecordFile:
    """A data file being read, a chunk at a time."""

    def __init__(self, files: Files, path: Path) -> None:
        self.files = files
        self._fd = files.open(path, writable=False)
        self._chunk = b""
        self._chunk_at = 0
        self._led = (-1, -1)  # from here, records lead to there

    def bytes_at(self, at: int, length: int) -> bytes:
        """As many of these bytes as there are."""
        begin = at - self._chunk_at
        if begin < 0 or begin + length > len(self._chunk):
            self._chunk = self.files.read(self._fd, at, max(length, CHUNK_BYTES))
            self._chunk_at, begin = at, 0
        return self._chunk[begin : begin + length]

    def record(self, at: int, end: int) -> bytes | None:
        """Length and payload of the record at `at`; None when no record fits in before `end`."""
        head = self.bytes_at(at, 4) if at + 4 <= end else b""
        if len(head) < 4:
            return None
        length = 4 + LENGTH.unpack(head)[0]
        record = self.bytes_at(at, length) if at + length <= end else b""
        return record if len(record) == length else None

    def led(self, at: int, length: int, end: int) -> bool:
        """Whether the record of so many bytes at `at` is the next of a row that leads to the end: then the one behind it is."""
        found = self._led == (at, end)
        if found:
            self._led = at + length, end
        return found

    def leads(self, at: int, end: int, least: int) -> bool:
        """Whether records with payloads of at least so many bytes lead from here to the end."""
        begin = at
        while at < end and (record := self.record(at, end)) is not None and len(record) - LENGTH.size >= least:
            at += len(record)
        if at == end:
            self._led = begin, end
        return at == end

    def run(self, sums: Sums, at: int, end: int, limit: int, sizes: tuple[int, int]) -> Run | None:
        """Up to `limit` records one behind another from `at` on, whose lengths and sums hold; as far as one look at the file
        goes, and up to the first that is odd.
        """
        if self.record(at, end) is None:  # has the chunk that it is in
            return None
        room, first = min(len(self._chunk), end - self._chunk_at), sums.find(at)
        return cut(self._chunk, self._chunk_at, room, at, sums.entries[first : first + limit], *sizes)

    def zeros(self, at: int, end: int) -> bool:
        """Whether nothing but zeros lies there."""
        return not any(any(self.bytes_at(p, min(CHUNK_BYTES, end - p))) for p in range(at, end, CHUNK_BYTES))

    def size(self) -> int:
        return self.files.size(self._fd)

    def close(self) -> None:
        self.files.close(self._fd)


def believed(file: RecordFile, record: bytes | None, at: int, end: int, sizes: tuple[int, int]) -> bool:
    """Whether what lies at `at` of a file without sums is a record. One that is longer than anybody would put today is, when
    records lead from it to the end: whoever wrote it had another limit.
    """
    least, most = sizes
    if record is None or len(record) - LENGTH.size < least:
        return False
    if file.led(at, len(record), end) or len(record) - LENGTH.size <= most:
        return True
    return file.leads(at + len(record), end, least)


def records(files: Files, folder: Path, name: str) -> Iterator[bytes]:
    """The payloads of a queue from its read position on, changing nothing; what is damaged is left out."""
    paths = Paths(folder, name)
    sizes = {number: file_size(files, paths.data(number)) for number in queues_in(files, folder).get(name, [])}
    meta = read_meta(files, paths.meta)
    left = {n: size for n, size in sizes.items() if meta is None or n >= meta[1][0] or not spent(files, paths, n)}
    begin = meta[1] if meta is not None and plausible(meta, left) else (0, 0)
    for number, size in sizes.items():
        file, sums = RecordFile(files, paths.data(number)), load_sums(files, paths.sums(number))
        try:
            at = begin[1] if number == begin[0] else 0
            if sums is None:
                record = file.record(at, size)
                while record is not None:
                    yield record[4:]
                    at += len(record)
                    record = file.record(at, size)
                continue
            for n in range(sums.find(at), len(sums)):
                record = file.record(sums.start(n), size)
                if record is not None and sums.sum_matches(n, record):
                    yield record[4:]
        finally:
            file.close()


# -- after a crash -----------------------------------------------------------------------------------------------------


def repair(files: Files, paths: Paths, number: int, start: int, sizes: tuple[int, int], *, trusted: bool) -> Place:
    """Check the file from `start` on, where nobody has vouched for it, cut off a torn end and flush; returns how many
    records were found, and where the file ends.

    A call of which a record does not hold was never flushed, if the meta file can be `trusted`, and goes as a whole. In
    a file with sums nothing counts that has none. `sizes` are the least and greatest of a payload.
    """
    data = files.open(paths.data(number))
    file = RecordFile(files, paths.data(number))
    try:
        size = file.size()
        sums = load_sums(files, paths.sums(number))
        if sums is None and paths.sums(number).is_file():
            sums = Sums()  # ours, and they did not reach the disk
        if sums is None:
            found, end = _walk(file, start, size, sizes)
        else:
            found, end, kept, holes, torn = _weigh(file, sums, start, size, trusted)
            if end < size and not torn and not file.zeros(end, size):
                holes.append((end, size))
            for hole in holes:
                quarantine(files, paths.data(number), *hole, "bytes that were never vouched for do not hold")
        if end < size:
            log.warning("%s: its end was torn; cut back from %d to %d bytes", paths.data(number), size, end)
            files.cut(data, end)
        if sums is not None and len(kept) != len(sums):
            replace(files, paths.sums(number), kept.encode())
        files.datasync(data)
        return found, end
    finally:
        file.close()
        files.close(data)


def count(files: Files, paths: Paths, number: int, end: int, sizes: tuple[int, int]) -> int:
    """How many records the file has before `end`."""
    sums = load_sums(files, paths.sums(number))
    if sums is not None:
        return sums.find(end)
    file = RecordFile(files, paths.data(number))
    try:
        return _walk(file, 0, end, sizes)[0]
    finally:
        file.close()


def _walk(file: RecordFile, at: int, size: int, sizes: tuple[int, int]) -> Place:
    """From record to record without sums. What cannot be a record is left for the reader to find, unless it is torn."""
    found = 0
    while at < size:
        record = file.record(at, size)
        if record is None or not believed(file, record, at, size, sizes):
            head = file.bytes_at(at, 4)
            short = len(head) < 4 or (sizes[0] <= LENGTH.unpack(head)[0] <= sizes[1])
            return found, at if short or file.zeros(at, size) else size
        found += 1
        at += len(record)
    return found, size


def _weigh(
    file: RecordFile, sums: Sums, start: int, size: int, trusted: bool
) -> tuple[int, int, Sums, list[tuple[int, int]], bool]:
    """Go through the calls behind `start`: how many records count, where the last one ends, the sums to keep, the parts
    between that do not count, and whether the last call was cut off.
    """
    first = sums.find(start)
    kept, holes = Sums(sums.entries[:first]), []
    n, end, torn = first, start, False
    while n < len(sums):
        stop = n + 1
        while stop < len(sums) and sums.more(stop - 1):
            stop += 1
        found = [file.record(sums.start(k), size) for k in range(n, stop)]
        whole = all(record is not None and sums.sum_matches(n + k, record) for k, record in enumerate(found))
        sound = whole and not sums.more(stop - 1)
        if not sound and (stop == len(sums) or file.zeros(sums.start(n), size)):
            torn = True  # in this call, or nothing was written from here on
            break
        if sound or not trusted:
            kept.entries.extend(sums.entries[n:stop])
            last = found[-1]
            end = sums.start(stop - 1) + len(last) if last is not None else min(size, sums.start(stop))
        else:
            holes.append((sums.start(n), sums.start(stop)))
        n = stop
    return len(kept) - first, end, kept, holes, torn


def quarantine(files: Files, path: Path, start: int, end: int, why: str) -> None:
    """Keep damaged bytes in ``<path>.bad``, behind what is there. Does not raise: they are of no use but to look at."""
    bad = path.with_name(path.name + ".bad")
    log.error("%s: %s at byte %d; the bytes up to %d are set aside in %s", path, why, start, end, bad.name)
    try:
        source, target = files.open(path, writable=False), files.open(bad, create=True)
        try:
            at = files.size(target)
            for piece in range(start, end, CHUNK_BYTES):
                files.write(target, at + piece - start, files.read(source, piece, min(CHUNK_BYTES, end - piece)))
        finally:
            files.close(source)
            files.close(target)
    except StoreError as error:
        log.error("%s: they could not be kept: %s", path, error)


# -- small ones --------------------------------------------------------------------------------------------------------


def file_size(files: Files, path: Path) -> int:
    fd = files.open(path, writable=False)
    try:
        return files.size(fd)
    finally:
        files.close(fd)


def _content(files: Files, path: Path) -> bytes | None:
    if not path.is_file():
        return None
    fd = files.open(path, writable=False)
    try:
        return files.read(fd, 0, files.size(fd))
    finally:
        files.close(fd)


def replace(files: Files, path: Path, data: bytes, *, flush: bool = True) -> None:
    """Put a file with these bytes in the place of the one that is there."""
    fresh = path.with_name(path.name + ".tmp")
    try:
        clear(files, path.parent, fresh)  # a link would be followed
        fd = files.open(fresh, create=True)
        try:
            files.write(fd, 0, data)
            if flush:
                files.datasync(fd)
        finally:
            files.close(fd)
        files.rename(fresh, path)
    except StoreError:
        try_unlink(files, fresh)
        raise
    if flush:
        files.sync_folder(path.parent)


def use_up(files: Files, paths: Paths, numbers: Iterable[int]) -> list[int]:
    """Delete data files all of whose records are done, and their sums. Where the disk keeps one, sums without a record say
    that it holds nothing (`spent`). Those that stay, to be tried again.
    """
    left: list[int] = []
    for number in numbers:
        try:
            files.discard(paths.data(number))
            files.discard(paths.sums(number))
        except StoreError as error:
            left.append(number)
            log.error("a used-up file stays for now: %s", error)
            try:
                replace(files, paths.sums(number), SUMS_HEAD, flush=False)
            except StoreError as again:
                log.error("%s: nor can it be said that it is used up: %s", paths.data(number).name, again)
    return left


def spent(files: Files, paths: Paths, number: int) -> bool:
    """Whether a file that is there holds no record any more, by its sums."""
    sums = paths.sums(number)
    return sums.is_file() and file_size(files, sums) == len(SUMS_HEAD) and load_sums(files, sums) is not None


def try_unlink(files: Files, path: Path) -> None:
    try:
        files.discard(path)
    except StoreError as error:
        log.error("%s", error)
