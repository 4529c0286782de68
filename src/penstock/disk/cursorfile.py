"""CursorFile: which records of a stream a channel has finished; written through a mapping, so that kill -9 forgets none.

    page 0        "PCUR" (4) | version (4) | pages of bits (8) | committed: every ordinal below is finished (8) | 0 …
    page 1 …      first ordinal (8) | 32,704 bits: bit n of byte k is ordinal first + 8 k + n

An ordinal's page is (ordinal / 32,704) modulo the number of pages. A page says itself which ordinals it is about: an
old page, left by a power cut, is not taken for a new one, and none has to be cleared. Pages are added when a record
that is not finished lies far behind; the limit is `WINDOW_MAX`. A page that the durable `committed` still needs is not
used anew: a power cut may keep the new page and the old number.
"""

# mypy: disable-error-code="no-any-return"
from __future__ import annotations

from pathlib import Path
from typing import Any

import cython

from penstock.disk.files import Files
from penstock.errors import StoreError

if cython.compiled:
    from cython.cimports.penstock.octets import address, be32, be64, copy, put32, put64, zero
else:
    from penstock.octets import address, be32, be64, copy, put32, put64, zero

MAGIC = 0x50435552
VERSION = 1
PAGE = 4096
PAGE_BITS = (PAGE - 8) * 8
PAGES_MIN, PAGES_MAX = 2, 32
WINDOW_MAX = (PAGES_MAX - 2) * PAGE_BITS  # a channel runs at most so far past its oldest unfinished record


class CursorFile:
    """The finished records of one channel in one stream."""

    def __init__(self, path: Path, files: Files) -> None:
        self.path = path
        self.files = files
        self.committed = 0
        self.durable = 0  # `committed` as of the last flush that is over
        self.beyond = 0  # finished ordinals past `committed`
        self.pages = PAGES_MIN
        self.dirty = False
        self.named = False
        self.map: Any = None
        self.base: Any = cython.NULL

    def open(self, begin: int) -> None:
        """Take up the file, or make one for a channel that begins at `begin`. StoreError, DiskFull."""
        if self.path.is_file():
            fd = self.files.open(self.path)
            try:
                size = self.files.size(fd)
                if size >= PAGE and size % PAGE == 0:
                    self.files.allocate(fd, 0, size)
                    self.map = self.files.map(fd, size)
                    self.base = address(self.map)
                    if be32(self.base, 0) == MAGIC and be64(self.base, 8) == size // PAGE - 1:
                        self.pages = size // PAGE - 1
                        self.committed = self.durable = be64(self.base, 16)
                        self.named = True
                        return
                    self.map = None
            finally:
                self.files.close(fd)
        self.committed = self.durable = begin
        self._make(PAGES_MIN)

    def _make(self, pages: int) -> None:
        """A file of so many pages; what the present one holds is taken along."""
        self.files.make_folder(self.path.parent)
        fresh = self.path.with_name(self.path.name + ".tmp")
        fd = self.files.open(fresh, create=True)
        try:
            self.files.allocate(fd, 0, (pages + 1) * PAGE)
            view = self.files.map(fd, (pages + 1) * PAGE)
        except StoreError:
            self.files.unlink(fresh)
            raise
        finally:
            self.files.close(fd)
        old, old_view, old_pages = self.base, self.map, self.pages
        self.base = address(view)
        zero(self.base, 0, (pages + 1) * PAGE)
        put32(self.base, 0, MAGIC)
        put32(self.base, 4, VERSION)
        put64(self.base, 8, pages)
        put64(self.base, 16, self.committed)
        if old_view is not None:
            for number in range(old_pages):
                first = be64(old, PAGE + number * PAGE)
                mine = first % PAGE_BITS == 0 and first // PAGE_BITS % old_pages == number  # one never used is not
                if mine and first + PAGE_BITS > min(self.committed, self.durable):
                    copy(self.base, PAGE + first // PAGE_BITS % pages * PAGE, old, PAGE + number * PAGE, PAGE)
        self.map = view
        self.pages = pages
        self.files.rename(fresh, self.path)
        self.dirty = True
        self.named = False

    def settle(self, end: int) -> None:
        """After opening: nothing at or behind `end`, the stream's end, is finished; count what is."""
        if self.committed > end:
            self.commit(end)
        self.beyond = 0
        for number in range(self.pages):
            at = PAGE + number * PAGE
            first = be64(self.base, at)
            if first % PAGE_BITS or first // PAGE_BITS % self.pages != number or first + PAGE_BITS <= self.committed:
                continue
            if first >= end:
                zero(self.base, at, PAGE)
                continue
            for ordinal in range(max(first, end), first + PAGE_BITS):
                bit = ordinal - first
                self.base[at + 8 + (bit >> 3)] &= ~(1 << (bit & 7)) & 255
            for ordinal in range(max(first, self.committed), min(end, first + PAGE_BITS)):
                self.beyond += self.finished(ordinal)

    def finished(self, ordinal: int) -> int:
        """Whether a record at or past `committed` is finished: 1 or 0."""
        page = ordinal // 32704
        at = 4096 + page % self.pages * 4096
        if be64(self.base, at) != page * 32704:
            return 0
        bit = ordinal - page * 32704
        return (self.base[at + 8 + (bit >> 3)] >> (bit & 7)) & 1

    def finish(self, ordinal: int) -> int:
        """A record past `committed` is finished. 0, or 1 when it cannot be remembered (the window, or the disk)."""
        page = ordinal // 32704
        at = 4096 + page % self.pages * 4096
        first = page * 32704
        if be64(self.base, at) != first:
            old = be64(self.base, at)
            if page - self.committed // 32704 >= self.pages:
                if not self._widen(page, self.committed):
                    return 1
                at = 4096 + page % self.pages * 4096
            elif (
                old % 32704 == 0
                and old < first
                and old // 32704 % self.pages == page % self.pages
                and old + 32704 > self.durable
                and self.pages < 32  # PAGES_MAX: without room for both the new page goes first
            ):
                self._widen(page, self.durable)
                at = 4096 + page % self.pages * 4096
            if be64(self.base, at) != first:
                zero(self.base, at, 4096)
                put64(self.base, at, first)
        bit = ordinal - first
        self.base[at + 8 + (bit >> 3)] |= 1 << (bit & 7)
        self.beyond += 1
        self.dirty = True
        return 0

    def _widen(self, page: int, begin: int) -> bool:
        """Have room for the pages from the one of ordinal `begin` to this one."""
        pages = self.pages
        while page - begin // PAGE_BITS >= pages:
            pages *= 2
        if pages > PAGES_MAX:
            return False
        try:
            self._make(pages)
        except StoreError:
            return False
        return True

    def commit(self, ordinal: int) -> None:
        """Every ordinal below is finished."""
        self.committed = ordinal
        put64(self.base, 16, ordinal)
        self.dirty = True

    def restart(self, ordinal: int) -> None:
        """Begin anew at an ordinal, forward or back: nothing from there on is finished."""
        zero(self.base, PAGE, self.pages * PAGE)
        self.beyond = 0
        self.commit(ordinal)

    def datasync(self) -> None:
        """Make it durable; for any thread."""
        fd = self.files.open(self.path)
        try:
            self.files.datasync(fd)
        finally:
            self.files.close(fd)

    def remove(self) -> None:
        """The channel is gone."""
        self.files.unlink(self.path)
