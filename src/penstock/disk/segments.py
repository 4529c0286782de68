"""SegmentedFile: one long run of bytes in files of equal size, each named by the 20-digit position of its first byte.

    position 0            size              2 × size
    |                     |                 |
    00000000000000000000  000…<size>        000…<2 size>

A file has its full length from the start and takes room on the disk piece by piece, ahead of the writes (`back`): a
mapped hole on a full disk would end the process. What was never written reads as zeros.

Files are mapped when first asked for and stay mapped; they are never shrunk. A reader takes `segment.base`, an address
good for as long as it holds the segment.
"""

from __future__ import annotations

from mmap import mmap
from pathlib import Path

import cython

from penstock.disk.files import Files, are_many, make_pages, number_names, take_room
from penstock.disk.quarantine import take_back
from penstock.errors import Corrupt

if cython.compiled:
    from cython.cimports.penstock import words
    from cython.cimports.penstock.octets import address, expect, populate, unmap
else:
    from penstock import words
    from penstock.octets import address, expect, populate, unmap


PIECE, PIECE_MAX = 1 << 20, 16 << 20
PIECE_SMALL, PIECE_SMALL_MAX = 4096, 256 << 10  # of scattered files, of which there are thousands


def segment_name(position: int) -> str:
    """The file name of the segment that begins at position."""
    return f"{position:020d}"


class Segment:
    """One file: bytes `first` … `first + size` of the run. `base` is its address once `open` was called."""

    def __init__(self, path: Path, first: int, size: int, files: Files, scattered: bool = False) -> None:
        self.path = path
        self.scattered = scattered
        self.first = first
        self.size = size
        self.files = files
        self.prefaulted = 0
        self.allocated = 0  # room is taken up to here
        self.fd = -1
        self.map: mmap = None  # type: ignore[assignment]
        self.base: memoryview = cython.NULL

    def create(self) -> None:
        """Make the file, take its first room, map it. DiskFull leaves nothing behind. The name is not durable yet."""
        self.fd = self.files.open(self.path, create=True)
        try:
            self.files.grow(self.fd, self.size)
            self.back(1)
            self.map = self.files.map(self.fd, self.size, scattered=self.scattered)
        except BaseException:
            self.close()
            take_back(self.files, self.path)
            raise
        self.base = address(self.map)

    def open(self) -> Segment:
        """Map the existing file unless it is mapped; Corrupt when it has another size."""
        if self.base == cython.NULL:
            fd = self.files.open(self.path)
            try:
                if self.files.size(fd) != self.size:
                    raise Corrupt(self.path, self.files.size(fd), f"a segment of {self.size} bytes was expected")
                self.map = self.files.map(fd, self.size, scattered=self.scattered)
            finally:
                self.files.close(fd)
            self.base = address(self.map)
        return self

    def back(self, end: int, written: int = 0) -> None:
        """Take room on the disk for the bytes below `end`, and for more: twice what there is, within limits. Before they
        are written, by one thread at a time. DiskFull, StoreError.

        `written`: by whoever fills the file from front to back, and so many bytes since its last flush. If they are many,
        pages are made for the new room at once.
        """
        have = self.allocated
        if end <= have:
            return
        piece, most = (PIECE_SMALL, PIECE_SMALL_MAX) if self.scattered else (PIECE, PIECE_MAX)
        target = max(end, piece, have + min(have, most))
        target = min(self.size, (target + words.PAGE_BYTES - 1) // words.PAGE_BYTES * words.PAGE_BYTES)
        fd = self.fd if self.fd >= 0 else self.files.open(self.path)
        try:
            self.allocated = take_room(self.files, fd, have, end, target)
            if have and are_many(written, self.allocated - have):
                make_pages(self.files, fd, have, self.allocated)
        finally:
            if fd != self.fd:
                self.files.close(fd)

    def datasync(self) -> None:
        """Make the bytes durable. Thread-safe beside writers; blocks without the interpreter lock."""
        fd = self.fd
        if fd >= 0:
            self.files.datasync(fd)
        else:
            self.datasync_beside()

    def datasync_beside(self) -> None:
        """The same for whoever nobody waits for. Linux tells each descriptor once of a write that failed: whoever answers for
        these bytes is to hear it from the one that `datasync` uses.
        """
        fd = self.files.open(self.path)
        try:
            self.files.datasync(fd)
        finally:
            self.files.close(fd)

    def unmap(self) -> None:
        """Let go of the pages before many are flushed; they come back when they are asked for. For any thread."""
        if self.base != cython.NULL:
            unmap(self.base, 0, len(self.map))

    def prefault(self, at: int, length: int) -> None:
        """Let the system back the bytes with written pages now, so that appending meets no page fault. For any thread."""
        if at + length > self.size:
            length = self.size - at
        populate(self.base, at, length)
        self.prefaulted = at + length

    def open_descriptor(self) -> None:
        """Have a descriptor open. StoreError."""
        if self.fd < 0:
            self.fd = self.files.open(self.path)

    def close(self) -> None:
        """Give up the descriptor; the mapping goes with the last reference to the segment."""
        if self.fd >= 0:
            self.files.close(self.fd)
            self.fd = -1

    def __del__(self) -> None:
        self.close()
        self.files.released.add(self.map)


class SegmentedFile:
    """Segments without a hole between `first` and `end` (both positions; equal when there is no file)."""

    def __init__(self, folder: Path | str, size: int, files: Files, scattered: bool = False) -> None:
        self._folder = folder
        self.scattered = scattered
        self.size = size
        self.files = files
        self.first = 0
        self.end = 0
        self.segments: list[Segment] = []

    @property
    def folder(self) -> Path:
        """Where the files lie. A path object only when asked for: a topic may have 1,024 queues, most of them without a file."""
        return Path(self._folder)

    def load(self) -> list[Path]:
        """Find the files. Those after a hole in the numbers, or of a wrong size, are left out and returned."""
        odd: list[Path] = []
        self.segments = []
        folder = self.folder
        for first in number_names(self.files.names(folder)):
            path = folder / segment_name(first)
            fits = path.stat().st_size == self.size and first % self.size == 0
            if not fits or (self.segments and first != self.end):
                odd.append(path)
                continue
            if not self.segments:
                self.first = first
            self.segments.append(Segment(path, first, self.size, self.files, self.scattered))
            self.end = first + self.size
        if not self.segments:
            self.first = self.end = 0
        return odd

    def at(self, position: int) -> Segment | None:
        """The mapped segment that holds the byte at position; None outside."""
        if position < self.first or position >= self.end:
            return None
        segment = self.segments[(position - self.first) // self.size]
        if segment.base == cython.NULL:
            segment.open()
        return segment

    def expect(self, position: int, size: int) -> None:
        """These bytes are about to be read, or not: any numbers will do. They come from memory meanwhile."""
        if cython.compiled and self.first <= position < self.end:
            segment: Segment = self.segments[(position - self.first) // self.size]
            if segment.base != cython.NULL:
                expect(segment.base, position - segment.first, size)

    def last(self) -> Segment | None:
        """The newest segment, mapped."""
        if not self.segments:
            return None
        return self.at(self.end - self.size)

    def make_next(self, *, durable: bool = True) -> Segment:
        """A new segment after the end, its file made and mapped; `adopt` makes it part of the run.

        Without `durable` a new folder's name is not flushed either: for what can be rebuilt.
        """
        self.files.make_folder(self.folder, durable=durable)
        path = self.folder / segment_name(self.end)
        segment = Segment(path, self.end, self.size, self.files, self.scattered)
        segment.create()
        return segment

    def adopt(self, segment: Segment) -> None:
        """The run goes on in this segment; an empty run may begin at any multiple of the size."""
        if not self.segments:
            self.first = self.end = segment.first
        assert segment.first == self.end
        self.segments.append(segment)
        self.end += self.size

    def start_at(self, position: int) -> None:
        """Let an empty run begin with the segment that holds position."""
        assert not self.segments
        self.first = self.end = position // self.size * self.size

    def drop_first(self) -> Segment:
        """The run loses its oldest segment (its file is the caller's to remove)."""
        segment = self.segments.pop(0)
        self.first += self.size
        return segment

    def drop_from(self, position: int) -> list[Segment]:
        """The run loses every segment that begins at or after position."""
        gone = [segment for segment in self.segments if segment.first >= position]
        if gone:
            self.segments = self.segments[: len(self.segments) - len(gone)]
            self.end -= len(gone) * self.size
        return gone

    def is_there(self) -> bool:
        """Whether the newest file still stands where it was made: else nobody will find what is written to it."""
        last = self.segments[len(self.segments) - 1] if self.segments else None
        return last is None or last.fd < 0 or self.files.is_at(last.fd, last.path)

    def rest(self) -> None:
        """Give up descriptors and mappings of a run that nobody is expected to ask for. Whoever does maps it again; who reads in
        a segment, or flushes it in a thread, keeps that one.
        """
        self.segments = [Segment(s.path, s.first, s.size, self.files, self.scattered) for s in self.segments]

    def close(self) -> None:
        """Give up descriptors and mappings."""
        for segment in self.segments:
            segment.close()
        self.segments = []
        self.first = self.end = 0
