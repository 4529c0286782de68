"""CursorFile: which records of a stream a channel has finished; written through a mapping, so that kill -9 forgets none.

    page 0        "PCUR" (4) | version (4) | 0 …
                  at 512 and 1024, written in turns: turn (8) | committed: every ordinal below is finished (8) | check (8)
    page 1 …      first ordinal (8) | sum (8) | 32,640 bits: bit n of byte k is ordinal first + 8 k + n

The check is turn xor committed xor a constant; the valid one of the higher turn counts. The sum of a page is that of its
first ordinal xor one number for each bit that is set, so that a changed bit is found out and named. What is in doubt is
not finished: it comes again.

An ordinal's page is (ordinal / 32,640) modulo the number of pages. A page says itself which ordinals it is about: an
old page, left by a power cut, is not taken for a new one, and none has to be cleared. Pages are added when a record
that is not finished lies far behind; the limit is `WINDOW_MAX`. A page that the durable `committed` still needs is not
used anew: a power cut may keep the new page and the old number.
"""

# mypy: disable-error-code="no-any-return"
from __future__ import annotations

import logging
from collections.abc import Iterator
from mmap import mmap
from pathlib import Path

import cython

from penstock.disk.aside import data_folder, try_set_aside
from penstock.disk.files import Files
from penstock.errors import StoreError

if cython.compiled:
    from cython.cimports.penstock.disk.stream import Stream
    from cython.cimports.penstock.octets import address, be64, copy, put32, put64, zero
else:
    from penstock.disk.stream import Stream
    from penstock.octets import address, be64, copy, put32, put64, zero

log = logging.getLogger("penstock.disk")

MAGIC = 0x50435552
VERSION = 2
PAGE = 4096
PAGE_BITS = (PAGE - 16) * 8
PAGES_MIN, PAGES_MAX = 2, 32
WINDOW_MAX = (PAGES_MAX - 2) * PAGE_BITS  # a channel runs at most so far past its oldest unfinished record
_SLOTS = (512, 1024)
_CHECK = 0x436F6D6D69747465
_OLD_PAGE_BITS = (PAGE - 8) * 8  # of version 1, which had no sums and `committed` once, at 16


def mix(n: int) -> int:
    """What bit n adds to its page's sum; of a multiple of the bits of a page, where the sum begins."""
    x = n + 1
    x = x * 0x1E3779B97F4A7C15 & 0x7FFFFFFFFFFFFFFF
    return x ^ (x >> 29)


class CursorFile:
    """The finished records of one channel in one stream."""

    def __init__(self, path: Path, files: Files) -> None:
        self.path = path
        self.files = files
        self.committed = 0
        self.durable = 0  # `committed` as of the last flush that is over
        self.beyond = 0  # finished ordinals past `committed`
        self.pages = PAGES_MIN
        self.turn = 0
        self.dirty = False
        self.named = False
        self.map: mmap = None  # type: ignore[assignment]
        self.base: memoryview = cython.NULL

    def open(self, begin: int) -> None:
        """Take up the file, or make one for a channel that begins at `begin`: also when it says nothing that can be
        believed, and then it goes to lost+found. StoreError, DiskFull.
        """
        if self.path.is_dir():
            try_set_aside(self.files, data_folder(self.path), self.path, "a folder where a cursor should be")
        elif self.path.is_file():
            fd = self.files.open(self.path)
            try:
                size = self.files.size(fd)
                data = self.files.read(fd, 0, min(size, (PAGES_MAX + 1) * PAGE))
                found = self._slot(data)
                pages = size // PAGE - 1
                if found is not None and size % PAGE == 0 and PAGES_MIN <= pages <= PAGES_MAX:
                    self.turn, self.committed = found
                    self.files.allocate(fd, 0, size)
                    self.map = self.files.map(fd, size)
                    self.base = address(self.map)
                    self.pages = pages
                    self.durable = self.committed
                    self.named = True
                    self._weigh()
                    return
            finally:
                self.files.close(fd)
            if found is not None:
                log.error("%s has %d bytes: what was finished out of order comes again", self.path.name, size)
                self.turn, self.committed = found
                self.durable = self.committed
                self._make(PAGES_MIN)
                return
            if self._take_old(data):
                return
            if any(data):  # else it was made, and a power cut came before its first flush
                try_set_aside(self.files, data_folder(self.path), self.path, "a cursor that cannot be believed")
            log.error("%s is in doubt: its channel begins again at %d", self.path.name, begin)
        self.committed = self.durable = begin
        self._make(PAGES_MIN)

    @staticmethod
    def _slot(data: bytes) -> tuple[int, int] | None:
        """(turn, committed) of the newest slot whose check holds."""
        found = []
        for at in _SLOTS:
            turn, committed, check = (int.from_bytes(data[p : p + 8]) for p in (at, at + 8, at + 16))
            if turn ^ committed ^ _CHECK == check and len(data) >= at + 24 and max(turn, committed) < 1 << 62:
                found.append((turn, committed))
        return max(found, default=None)

    def _take_old(self, data: bytes) -> bool:
        """Version 1, as far as it can be told that it is one: it is written anew."""
        pages = len(data) // PAGE - 1
        head = MAGIC.to_bytes(4) + (1).to_bytes(4) + max(0, pages).to_bytes(8)
        if len(data) % PAGE or pages < 1 or data[:16] != head or any(data[24:PAGE]) or data[16] > 0x3F:
            return False
        self.committed = self.durable = int.from_bytes(data[16:24])
        self._make(PAGES_MIN)
        for ordinal in _old_bits(data, pages, self.committed):
            if ordinal - self.committed < WINDOW_MAX:
                self.finish(ordinal)
        self.beyond = 0  # `settle` counts
        return True

    def _weigh(self) -> None:
        """Let every page about something past `committed` be what its sum says, or say nothing."""
        for number in range(self.pages):
            at = PAGE + number * PAGE
            first = be64(self.base, at)
            if first % PAGE_BITS or first // PAGE_BITS % self.pages != number or first + PAGE_BITS <= self.committed:
                continue
            wrong = be64(self.base, at + 8) ^ self._sum(at)
            if not wrong:
                continue
            bit = 0
            while bit < PAGE_BITS and mix(bit) != wrong:
                bit += 1
            if bit < PAGE_BITS:  # one bit changed, or the process ended between sum and bit: not finished
                self.base[at + 16 + (bit >> 3)] &= ~(1 << (bit & 7)) & 255
                put64(self.base, at + 8, self._sum(at))
            else:
                zero(self.base, at, PAGE)
            log.warning("%s is in doubt from ordinal %d on: some messages come again", self.path.name, first)

    def _sum(self, at: int) -> int:
        """The sum of the page at `at`, as it stands."""
        found = mix(be64(self.base, at)) ^ mix(0)
        for n in range(4080):
            byte = self.base[at + 16 + n]
            if byte:
                for k in range(8):
                    if (byte >> k) & 1:
                        found ^= mix(n * 8 + k)
        return found

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
        self._put_committed()
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

    def settle(self, end: int, stream: Stream) -> None:
        """After opening: nothing at or behind `end`, the stream's end, is finished, nor what the stream has no record of
        (a power cut may keep the bit and not the message); count what is.
        """
        begin = min(end, stream.next(max(self.committed, stream.begin())))
        if self.committed != begin:
            self.commit(begin)
        self.beyond = 0
        for number in range(self.pages):
            at = PAGE + number * PAGE
            first = be64(self.base, at)
            if first % PAGE_BITS or first // PAGE_BITS % self.pages != number or first + PAGE_BITS <= self.committed:
                continue
            if first >= end:
                zero(self.base, at, PAGE)
                self.dirty = True
                continue
            for ordinal in range(max(first, self.committed), first + PAGE_BITS):
                bit = ordinal - first
                if not (self.base[at + 16 + (bit >> 3)] >> (bit & 7)) & 1:
                    continue
                if ordinal < end and stream.next(ordinal) == ordinal:
                    self.beyond += 1
                else:
                    put64(self.base, at + 8, be64(self.base, at + 8) ^ mix(bit))
                    self.base[at + 16 + (bit >> 3)] &= ~(1 << (bit & 7)) & 255
                    self.dirty = True

    def reach(self) -> int:
        """Behind the last ordinal that this file knows of: all below have been given out."""
        found = self.committed
        for number in range(self.pages):
            at = PAGE + number * PAGE
            first = be64(self.base, at)
            if first % PAGE_BITS == 0 and first // PAGE_BITS % self.pages == number and first + PAGE_BITS > found:
                n = 4079
                while n >= 0 and self.base[at + 16 + n] == 0:
                    n -= 1
                found = max(found, first + (n + 1) * 8) if n >= 0 else found
        return found

    def take_flush(self) -> bool:
        """It is about to be made durable (`datasync`, for a thread); whether its name is, too."""
        self.dirty = False
        fresh = not self.named
        self.named = True
        return fresh

    def flushed(self, ordinal: int) -> None:
        """What was committed up to here is durable."""
        self.durable = ordinal

    def flush_again(self) -> None:
        """What a former process wrote is perhaps not durable."""
        self.dirty = True
        self.named = False

    def finished(self, ordinal: int) -> int:
        """Whether a record at or past `committed` is finished: 1 or 0."""
        page = ordinal // 32640
        at = 4096 + page % self.pages * 4096
        if be64(self.base, at) != page * 32640:
            return 0
        bit = ordinal - page * 32640
        return (self.base[at + 16 + (bit >> 3)] >> (bit & 7)) & 1

    def finish(self, ordinal: int) -> int:
        """A record past `committed` is finished. 0, or 1 when it cannot be remembered (the window, or the disk)."""
        page = ordinal // 32640
        at = 4096 + page % self.pages * 4096
        first = page * 32640
        if be64(self.base, at) != first:
            old = be64(self.base, at)
            if page - self.committed // 32640 >= self.pages:
                if not self._widen(page, self.committed):
                    return 1
                at = 4096 + page % self.pages * 4096
            elif (
                old % 32640 == 0
                and old < first
                and old // 32640 % self.pages == page % self.pages
                and old + 32640 > self.durable
                and self.pages < 32  # PAGES_MAX: without room for both the new page goes first
            ):
                self._widen(page, self.durable)
                at = 4096 + page % self.pages * 4096
            if be64(self.base, at) != first:
                zero(self.base, at, 4096)
                put64(self.base, at, first)
                put64(self.base, at + 8, mix(first) ^ mix(0))
        bit = ordinal - first
        if (self.base[at + 16 + (bit >> 3)] >> (bit & 7)) & 1:
            return 0
        put64(self.base, at + 8, be64(self.base, at + 8) ^ mix(bit))
        self.base[at + 16 + (bit >> 3)] |= 1 << (bit & 7)
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
        back = ordinal < self.committed
        self.committed = ordinal
        self._put_committed()
        if back:  # the other slot must not say more, should this one be damaged
            self._put_committed()
        self.dirty = True

    def _put_committed(self) -> None:
        """Into the older slot: a process that ends midway leaves the other one."""
        turn = self.turn + 1
        self.turn = turn
        at = 512 + (turn & 1) * 512
        put64(self.base, at, turn)
        put64(self.base, at + 8, self.committed)
        put64(self.base, at + 16, turn ^ self.committed ^ 0x436F6D6D69747465)

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


def _old_bits(data: bytes, pages: int, committed: int) -> Iterator[int]:
    """The finished ordinals past `committed` of a file of version 1."""
    for number in range(pages):
        page = data[PAGE + number * PAGE :][:PAGE]
        first = int.from_bytes(page[:8])
        if first % _OLD_PAGE_BITS or first // _OLD_PAGE_BITS % pages != number:
            continue
        for n, byte in enumerate(page[8:]):
            for k in range(8) if byte else ():
                if byte >> k & 1 and first + n * 8 + k >= committed:
                    yield first + n * 8 + k
