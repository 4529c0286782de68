"""Whole-record checksums, in a file beside each segment of the commit log.

RocketMQ's own sum covers the body only: a flipped bit in the topic or the queue offset would be served. The record's
bytes must stay as they are, so ours stand beside them, in ``checksums/<name of the segment>``:

    header  "PSUM" (4) | version 2 (4) | first position of the segment (8) | covers from (4)
            | CRC-32 of the 20 bytes before (4) | 0 (8)
    entry n, at 32 + n × 8:   start in the segment (4) | CRC-32 over the whole record (4)

Entries stand in the order of their starts; after the last there are zeros. They are flushed behind the records: up to half
a second later at level `disk`. After a power cut those behind the durable position count up to the first that is missing
(`fresh_from`); the records behind it must prove themselves, and get their sums again. Records below "covers from" (written by
RocketMQ) are unchecked. A damaged sum costs no record that is good by its own lengths and body sum: the header says
nothing that cannot be told from the segment, a sum that stands at another place or is one bit away counts, and a record
that has none is unchecked, unless a power cut may have kept its sum from the disk (`strict_from`).

The file has its greatest length from the beginning but takes room on the disk a window at a time, ahead of use.
"""

# mypy: disable-error-code="no-any-return"
from __future__ import annotations

import logging
from collections.abc import Iterator
from mmap import mmap
from pathlib import Path

import cython

from penstock.disk.files import Files, are_many, is_full, last_byte, make_pages, take_room, wipe
from penstock.disk.quarantine import quarantine, take_back
from penstock.errors import StoreError

if cython.compiled:
    from cython.cimports.penstock.log import sidelayout as layout
    from cython.cimports.penstock.log import status
    from cython.cimports.penstock.octets import address, be32, be64, crc32, put32, put64, ube32, unmap
else:
    from penstock.log import sidelayout as layout
    from penstock.log import status
    from penstock.octets import address, be32, be64, crc32, put32, put64, ube32, unmap

log = logging.getLogger("penstock.log")

SMALLEST_RECORD = 92
WINDOW_MIN, WINDOW = 16 << 10, 1 << 20


class Sidecar:
    """The sums of one segment."""

    def __init__(self, path: Path, first: int, segment_size: int, files: Files) -> None:
        self.path = path
        self.first = first
        self.size = layout.HEAD_BYTES + (segment_size // SMALLEST_RECORD + 2) * layout.ENTRY_BYTES
        self.files = files
        self.count = 0
        self.allocated = 0
        self.flushed = 0  # of `count`, or more
        self.covers_from = 0
        self.covers_to = segment_size
        self.fd = -1
        self.map: mmap = None  # type: ignore[assignment]
        self.base: memoryview = cython.NULL

    def create(self, covers_from: int = 0) -> None:
        """Make the file and take room for its first window. StoreError, DiskFull."""
        self.files.make_folder(self.path.parent)
        self.fd = self.files.open(self.path, create=True)
        try:
            self.files.grow(self.fd, self.size)
            self.allocated = min(self.size, WINDOW_MIN)
            self.files.allocate(self.fd, 0, self.allocated)
            self.map = self.files.map(self.fd, self.size, scattered=True)
        except BaseException:
            self.close()
            take_back(self.files, self.path)
            raise
        self.base = address(self.map)
        self._put_header(covers_from)

    def _put_header(self, covers_from: int) -> None:
        self.covers_from = covers_from
        put32(self.base, 0, layout.MAGIC)
        put32(self.base, layout.VERSION, layout.VERSION_NOW)
        put64(self.base, layout.FIRST, self.first)
        put32(self.base, layout.COVERS_FROM, covers_from)
        put32(self.base, layout.HEAD_SUM, crc32(self.base, 0, layout.HEAD_SUM, 0))

    def open(self, mend: bool) -> None:
        """Map the existing file. A header that is damaged or missing is told from what follows; with `mend` it is written
        anew, and the file gets its length back. StoreError when it cannot be read.
        """
        fd = self.files.open(self.path)
        try:
            if mend:
                self.files.grow(fd, self.size)
            if self.files.size(fd) < self.size:
                raise StoreError(f"{self.path} is too short")
            self.files.allocate(fd, 0, min(self.size, layout.HEAD_BYTES))
            self.map = self.files.map(fd, self.size, scattered=True)
        except BaseException:
            self.files.close(fd)
            raise
        self.fd = fd
        self.base = base = address(self.map)
        version, first = be32(base, layout.VERSION), be64(base, layout.FIRST)
        used = last_byte(self.files, self.path, self.map, layout.HEAD_BYTES, self.size)
        self.count = (used - layout.HEAD_BYTES + layout.ENTRY_BYTES - 1) // layout.ENTRY_BYTES
        summed = ube32(base, layout.HEAD_SUM) == crc32(base, 0, layout.HEAD_SUM, 0)
        whole = version == layout.VERSION_NOW and summed
        if be32(base, 0) == layout.MAGIC and first == self.first and (whole or version == layout.VERSION_OLD):
            self.covers_from = ube32(base, layout.COVERS_FROM)
        else:
            looked = min(self.count, layout.STARTS_MAX)
            starts = [self.start(n) for n in range(looked) if not self._empty(n)]
            self.covers_from = min(starts, default=0)
            log.error("sum damaged: the header of %s is told anew from what follows", self.path.name)
        self.allocated = 0
        if mend and not whole:
            self._put_header(self.covers_from)

    def cover_to(self, at: int) -> None:
        """Records behind this have no sums here."""
        self.covers_to = at

    def start(self, n: int) -> int:
        """Where in the segment record n begins."""
        return ube32(self.base, layout.START + n * layout.ENTRY_BYTES)

    def sum(self, n: int) -> int:
        """The CRC-32 of record n."""
        return ube32(self.base, layout.CRC + n * layout.ENTRY_BYTES)

    def _empty(self, n: int) -> bool:
        return be64(self.base, layout.START + n * layout.ENTRY_BYTES) == 0

    def room(self, records: int) -> int:
        """0 when so many more entries can be put; else DISK_FULL (1) or NOT_WRITABLE (2)."""
        if layout.START + (self.count + records) * layout.ENTRY_BYTES <= self.allocated:
            return status.OK
        try:
            need = layout.HEAD_BYTES + (self.count + records) * layout.ENTRY_BYTES
            have = self.allocated
            want = min(self.size, max(need, have) + max(WINDOW_MIN, min(WINDOW, have)))
            self.allocated = take_room(self.files, self.fd, 0, min(self.size, need), want)
            if have and are_many((self.count - self.flushed) * layout.ENTRY_BYTES, self.allocated - have):
                make_pages(self.files, self.fd, have, self.allocated)
        except StoreError as error:
            self.allocated = 0
            return status.DISK_FULL if is_full(self.files, error) else status.NOT_WRITABLE
        return status.OK if need <= self.size else status.NOT_WRITABLE

    def put(self, start: int, crc: int) -> None:
        """The next record's sum; `room` said 0."""
        put32(self.base, layout.START + self.count * layout.ENTRY_BYTES, start)
        put32(self.base, layout.CRC + self.count * layout.ENTRY_BYTES, crc)
        self.count += 1

    def find(self, start: int) -> int:
        """The first entry whose record begins at or after start."""
        low = 0
        high = self.count
        while low < high:
            middle = (low + high) // 2
            if self.start(middle) < start:
                low = middle + 1
            else:
                high = middle
        return low

    def seek(self, start: int, crc: int) -> int:
        """The entry of this record among damaged ones, by its start, or by its sum; -1 when there is none."""
        for n in range(self.count):
            if (
                self.start(n) == start and self.sum(n) != 0 and self.sum(n) != layout.NO_SUM
            ):  # overwritten, it is no sum
                return n
        for n in range(self.count):
            if self.sum(n) == crc:
                return n
        return -1

    def trim(self, start: int) -> None:
        """Of the sums of the records from start on, let those count that stand before the first missing one."""
        n = self.count
        while n > 0 and (self._empty(n - 1) or self.start(n - 1) >= start):
            n -= 1
        while n < self.count and not self._empty(n):
            n += 1
        self.count = n

    def cut(self, start: int) -> None:
        """Forget the records from start on. What stands behind the cut becomes zeros."""
        keep = self.count
        while keep > 0 and (self.start(keep - 1) >= start or self._empty(keep - 1)):
            keep -= 1
        wipe(self.files, self.path, self.map, layout.HEAD_BYTES + keep * layout.ENTRY_BYTES, self.size)
        self.count = keep

    def entries(self) -> Iterator[tuple[int, int]]:
        """(start, sum) of every record."""
        for n in range(self.count):
            yield self.start(n), self.sum(n)

    def datasync(self) -> None:
        """Make the sums durable; for any thread."""
        if self.fd >= 0:
            self.flushed = self.count
            self.files.datasync(self.fd)

    def unmap(self) -> None:
        """Let go of the pages before many are flushed, as a segment does; for any thread."""
        if self.base != cython.NULL:
            unmap(self.base, 0, len(self.map))

    def close(self) -> None:
        if self.fd >= 0:
            self.files.close(self.fd)
            self.fd = -1

    def __del__(self) -> None:
        self.close()
        self.files.released.add(self.map)


class Checksums:
    """The sidecars of a commit log, by the first position of the segment. A segment may have none."""

    def __init__(self, folder: Path, segment_size: int, files: Files) -> None:
        self.folder = folder
        self.segment_size = segment_size
        self.files = files
        self.sidecars: dict[int, Sidecar | None] = {}
        self.current: Sidecar | None = None
        self.strict_from = 0
        """Behind this position of the log a record without a sum is none: a power cut may have taken the sum."""
        self.fresh_from = -1
        """Behind this position the disk may have some sums and not others. -1: not known."""
        self.mend = False
        self.damaged = 0
        self.doubtful: list[int] = []  # positions of records that hold and whose sums do not, as far as they are wanted
        self._hint = 0
        self._last_used: Sidecar | None = None

    def get(self, first: int) -> Sidecar | None:
        """The sidecar of the segment that begins at first, opened; None when there is none that can be read."""
        if first not in self.sidecars:
            sidecar = self.make(first)
            found = False
            if sidecar.path.is_file():
                try:
                    sidecar.open(self.mend)
                    if 0 <= self.fresh_from < first + self.segment_size:
                        sidecar.trim(self.fresh_from - first)
                    found = True
                except StoreError:
                    found = False
            self.sidecars[first] = sidecar if found else None
        return self.sidecars[first]

    def make(self, first: int) -> Sidecar:
        """A sidecar object for the segment, not yet a file."""
        return Sidecar(self.folder / f"{first:020d}", first, self.segment_size, self.files)

    def quarantine(self, first: int) -> None:
        """Make way for new sums of a segment. Those there are, are of another life of the file, or cannot be read."""
        path = self.folder / f"{first:020d}"
        if path.is_dir():
            quarantine(self.files, self.folder.parent, path, "a folder where sums should be")
        else:
            self.files.unlink(path)

    def turn(self, sidecar: Sidecar) -> None:
        """Sums now go into this one."""
        self.sidecars[sidecar.first] = sidecar
        self.current = sidecar

    def room(self, records: int) -> int:
        sidecar = self.current
        if sidecar is None:
            return status.NOT_WRITABLE
        return sidecar.room(records)

    def put(self, start: int, crc: int) -> None:
        self.current.put(start, crc)  # type: ignore[union-attr]

    def verdict(self, segment_first: int, start: int, crc: int) -> int:
        """MATCHES, BROKEN, UNCHECKED or MISSING for a record with this sum at start of the segment."""
        sidecar = self._last_used
        if sidecar is None or sidecar.first != segment_first:
            sidecar = self.get(segment_first)
            if sidecar is None:
                return layout.UNCHECKED
            self._last_used = sidecar
            self._hint = 0
        if start < sidecar.covers_from or start >= sidecar.covers_to:
            return layout.UNCHECKED
        n = self._hint
        if n >= sidecar.count or sidecar.start(n) != start:
            n = sidecar.find(start)
        if n < sidecar.count and sidecar.start(n) == start:
            self._hint = n + 1
            if sidecar.sum(n) == crc:
                return layout.MATCHES
        if n >= sidecar.count and 0 <= self.fresh_from <= segment_first + start:
            return layout.MISSING
        return self._weigh(sidecar, segment_first, start, crc)

    def _weigh(self, sidecar: Sidecar, segment_first: int, start: int, crc: int) -> int:
        """What counts when there is no entry at once, or another sum: is it the record that is damaged, or the sum?"""
        n = sidecar.seek(start, crc)
        if n < 0:
            if segment_first + start >= self.strict_from:
                return layout.BROKEN
            self._report(sidecar, start)
            return layout.UNCHECKED
        self._hint = n + 1
        wrong = sidecar.sum(n) ^ crc
        if wrong & (wrong - 1) == 0:  # one flipped bit of the sum: no damaged record has such a sum
            self._report(sidecar, start)
            return layout.MATCHES
        return layout.BROKEN

    def _report(self, sidecar: Sidecar, start: int) -> None:
        self.damaged += 1
        if len(self.doubtful) < layout.REPORTS_MAX:
            self.doubtful.append(sidecar.first + start)
        if self.damaged < layout.REPORTS_MAX:
            log.error("sum damaged: of the record at %d of %s, which is served", start, sidecar.path.name)

    def take_doubtful(self) -> list[int]:
        """Where records hold whose sums do not, as found since."""
        doubtful, self.doubtful = self.doubtful, []
        return doubtful

    def ignore_from(self, position: int) -> None:
        """Records from this position of the log on are unchecked: another broker has written them."""
        first = position - position % self.segment_size
        sidecar = self.get(first)
        if sidecar is not None:
            sidecar.cover_to(position - first)
        for path in self.folder.glob("[0-9]*"):
            if path.name.isdigit() and int(path.name) > first:
                self.drop(int(path.name))
                self.sidecars[int(path.name)] = None

    def drop(self, first: int) -> Path:
        """Forget a segment; its sidecar file is the caller's to remove."""
        sidecar = self.sidecars.pop(first, None)
        if sidecar is not None:
            if self._last_used is sidecar:
                self._last_used = None
            sidecar.close()
        return self.folder / f"{first:020d}"

    def close(self) -> None:
        for sidecar in self.sidecars.values():
            if sidecar is not None:
                sidecar.close()
        self.sidecars = {}
        self.current = self._last_used = None
