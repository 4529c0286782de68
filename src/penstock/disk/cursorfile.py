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
from struct import Struct

import cython

from penstock.disk.files import Files
from penstock.disk.quarantine import clear, data_folder, try_quarantine
from penstock.errors import StoreError

if cython.compiled:
    from cython.cimports.penstock import words
    from cython.cimports.penstock.disk import cursorlayout as layout
    from cython.cimports.penstock.disk.stream import Stream
    from cython.cimports.penstock.octets import address, be64, copy, put32, put64, zero
else:
    from penstock import words
    from penstock.disk import cursorlayout as layout
    from penstock.disk.stream import Stream
    from penstock.octets import address, be64, copy, put32, put64, zero

log = logging.getLogger("penstock.disk")

PAGE = layout.PAGE_BYTES
PAGE_BITS = layout.PAGE_BITS
WINDOW_MAX = (layout.PAGES_MAX - 2) * PAGE_BITS  # a channel runs at most so far past its oldest unfinished record
_SLOT = Struct(">qqq")  # turn, committed, check
_SOUND_END = 1 << 62  # of a turn, of an ordinal
# Version 1 had no sums, and `committed` once, behind its head: magic, version, pages.
_OLD_HEAD = Struct(">IIQ")
_OLD_COMMITTED = Struct(">Q")
_OLD_COMMITTED_END = 24
_OLD_VERSION = 1
_OLD_PAGE_HEAD = 8
_OLD_PAGE_BITS = (PAGE - _OLD_PAGE_HEAD) * 8


def mix(n: int) -> int:
    """What bit n adds to its page's sum; of a multiple of the bits of a page, where the sum begins."""
    x = n + 1
    x = x * layout.MIX_FACTOR & layout.MIX_MASK
    return x ^ (x >> layout.MIX_SHIFT)


def _check(turn: int, committed: int) -> int:
    """What stands behind both, when they are whole."""
    return turn ^ committed ^ layout.CHECK_CONSTANT


class CursorFile:
    """The finished records of one channel in one stream."""

    def __init__(self, path: Path, files: Files) -> None:
        self.path = path
        self.files = files
        self.committed = 0
        self.durable = 0  # `committed` as of the last flush that is over
        self.beyond = 0  # finished ordinals past `committed`
        self.pages = layout.PAGES_MIN
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
            try_quarantine(self.files, data_folder(self.path), self.path, "a folder where a cursor should be")
        elif self.path.is_file():
            fd = self.files.open(self.path)
            try:
                size = self.files.size(fd)
                data = self.files.read(fd, 0, min(size, (layout.PAGES_MAX + 1) * layout.PAGE_BYTES))
                found = self._slot(data)
                pages = size // layout.PAGE_BYTES - 1
                if (
                    found is not None
                    and size % layout.PAGE_BYTES == 0
                    and layout.PAGES_MIN <= pages <= layout.PAGES_MAX
                ):
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
                self._make(layout.PAGES_MIN)
                return
            if self._take_old(data):
                return
            if any(data):  # else it was made, and a power cut came before its first flush
                try_quarantine(self.files, data_folder(self.path), self.path, "a cursor that cannot be believed")
            log.error("%s is in doubt: its channel begins again at %d", self.path.name, begin)
        self.committed = self.durable = begin
        self._make(layout.PAGES_MIN)

    @staticmethod
    def _slot(data: bytes) -> tuple[int, int] | None:
        """(turn, committed) of the newest slot whose check holds."""
        found = []
        for at in (layout.SLOT, layout.SLOT + layout.SLOT_BYTES):
            if len(data) >= at + _SLOT.size:
                turn, committed, check = _SLOT.unpack_from(data, at)
                sound = min(turn, committed) >= 0 and max(turn, committed) < _SOUND_END
                if sound and check == _check(turn, committed):
                    found.append((turn, committed))
        return max(found, default=None)

    def _take_old(self, data: bytes) -> bool:
        """Version 1, as far as it can be told that it is one: it is written anew."""
        pages = len(data) // layout.PAGE_BYTES - 1
        if len(data) % layout.PAGE_BYTES or pages < 1 or any(data[_OLD_COMMITTED_END : layout.PAGE_BYTES]):
            return False
        if data[: _OLD_HEAD.size] != _OLD_HEAD.pack(layout.MAGIC, _OLD_VERSION, pages):
            return False
        committed = _OLD_COMMITTED.unpack_from(data, _OLD_HEAD.size)[0]
        if committed >= _SOUND_END:
            return False
        self.committed = self.durable = committed
        self._make(layout.PAGES_MIN)
        for ordinal in _old_bits(data, pages, self.committed):
            if ordinal - self.committed < WINDOW_MAX:
                self.finish(ordinal)
        self.beyond = 0  # `settle` counts
        return True

    def _weigh(self) -> None:
        """Let every page about something past `committed` be what its sum says, or say nothing."""
        for number in range(self.pages):
            at = layout.PAGE_BYTES + number * layout.PAGE_BYTES
            first = be64(self.base, at)
            if not self._mine(first, number) or first + layout.PAGE_BITS <= self.committed:
                continue
            wrong = be64(self.base, at + layout.SUM) ^ self._sum(at)
            if not wrong:
                continue
            bit = 0
            while bit < layout.PAGE_BITS and mix(bit) != wrong:
                bit += 1
            if bit < layout.PAGE_BITS:  # one bit changed, or the process ended between sum and bit: not finished
                self._clear(at, bit)
                put64(self.base, at + layout.SUM, self._sum(at))
            else:
                zero(self.base, at, layout.PAGE_BYTES)
            log.warning("%s is in doubt from ordinal %d on: some messages come again", self.path.name, first)

    def _mine(self, first: int, number: int) -> bool:
        """Whether page `number` is the one for ordinals from `first` on; one never used may not be."""
        return first % layout.PAGE_BITS == 0 and first // layout.PAGE_BITS % self.pages == number

    def _bit(self, at: int, bit: int) -> int:
        """This bit of the page at `at`."""
        return (self.base[at + layout.BITS + (bit >> words.BYTE_SHIFT)] >> (bit & words.BIT_MASK)) & 1

    def _clear(self, at: int, bit: int) -> None:
        self.base[at + layout.BITS + (bit >> words.BYTE_SHIFT)] &= ~(1 << (bit & words.BIT_MASK)) & words.BYTE_MASK

    def _sum(self, at: int) -> int:
        """The sum of the page at `at`, as it stands."""
        found = mix(be64(self.base, at)) ^ mix(0)
        for n in range(layout.BITS_BYTES):
            byte = self.base[at + layout.BITS + n]
            if byte:
                for k in range(words.BYTE_BITS):
                    if (byte >> k) & 1:
                        found ^= mix(n * words.BYTE_BITS + k)
        return found

    def _make(self, pages: int) -> None:
        """A file of so many pages; what the present one holds is taken along. StoreError, DiskFull: the present one stays."""
        self.files.make_folder(self.path.parent)
        fresh = self.path.with_name(self.path.name + ".tmp")
        clear(self.files, data_folder(self.path), fresh)  # it may be longer, with pages that would pass for ours
        fd = self.files.open(fresh, create=True)
        try:
            self.files.allocate(fd, 0, (pages + 1) * layout.PAGE_BYTES)
            view = self.files.map(fd, (pages + 1) * layout.PAGE_BYTES)
        except StoreError:
            self.files.unlink(fresh)
            raise
        finally:
            self.files.close(fd)
        old, old_view, old_pages = self.base, self.map, self.pages
        self.base = address(view)
        zero(self.base, 0, (pages + 1) * layout.PAGE_BYTES)
        put32(self.base, 0, layout.MAGIC)
        put32(self.base, layout.VERSION, layout.VERSION_NOW)
        self._put_committed()
        if old_view is not None:
            for number in range(old_pages):
                first = be64(old, layout.PAGE_BYTES + number * layout.PAGE_BYTES)
                number_of = first // layout.PAGE_BITS  # of one never used it is another number, or no whole one
                mine = first % layout.PAGE_BITS == 0 and number_of % old_pages == number
                if mine and first + layout.PAGE_BITS > min(self.committed, self.durable):
                    copy(
                        self.base,
                        layout.PAGE_BYTES + first // layout.PAGE_BITS % pages * layout.PAGE_BYTES,
                        old,
                        layout.PAGE_BYTES + number * layout.PAGE_BYTES,
                        layout.PAGE_BYTES,
                    )
        self.map = view
        self.pages = pages
        try:
            self.files.rename(fresh, self.path)
        except StoreError:  # what is finished from now on must stand in the file that has the name
            self.base, self.map, self.pages = old, old_view, old_pages
            self.turn -= 1
            self.files.unlink(fresh)
            raise
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
            at = layout.PAGE_BYTES + number * layout.PAGE_BYTES
            first = be64(self.base, at)
            if not self._mine(first, number) or first + layout.PAGE_BITS <= self.committed:
                continue
            if first >= end:
                zero(self.base, at, layout.PAGE_BYTES)
                self.dirty = True
                continue
            for ordinal in range(max(first, self.committed), first + layout.PAGE_BITS):
                bit = ordinal - first
                if not self._bit(at, bit):
                    continue
                if ordinal < end and stream.next(ordinal) == ordinal:
                    self.beyond += 1
                else:
                    put64(self.base, at + layout.SUM, be64(self.base, at + layout.SUM) ^ mix(bit))
                    self._clear(at, bit)
                    self.dirty = True

    def reach(self) -> int:
        """Behind the last ordinal that this file knows of: all below have been given out."""
        found = self.committed
        for number in range(self.pages):
            at = layout.PAGE_BYTES + number * layout.PAGE_BYTES
            first = be64(self.base, at)
            if self._mine(first, number) and first + layout.PAGE_BITS > found:
                n = layout.BITS_BYTES - 1
                while n >= 0 and self.base[at + layout.BITS + n] == 0:
                    n -= 1
                if n >= 0:
                    found = max(found, first + n * words.BYTE_BITS + int(self.base[at + layout.BITS + n]).bit_length())
        return found

    def told(self) -> bytes:
        """The bits of what is finished, from the byte of `committed` on, as another node takes them (`take_over`)."""
        begin, end = self.committed // words.BYTE_BITS, (self.reach() + words.BYTE_BITS - 1) // words.BYTE_BITS
        pieces: list[bytes] = []
        at = begin
        while at < end:
            within = at % layout.BITS_BYTES
            count = min(end - at, layout.BITS_BYTES - within)
            page = at // layout.BITS_BYTES
            place = layout.PAGE_BYTES + page % self.pages * layout.PAGE_BYTES
            if be64(self.base, place) == page * layout.PAGE_BITS:
                place += layout.BITS + within
                pieces.append(self.map[place : place + count])
            else:
                pieces.append(bytes(count))
            at += count
        return b"".join(pieces)

    def take_over(self, committed: int, bits: bytes) -> None:
        """Be as the file that `told` this. What does not fit the window is not finished."""
        self.restart(committed)
        first = committed // words.BYTE_BITS * words.BYTE_BITS
        for n, byte in enumerate(bits):
            for k in range(words.BYTE_BITS) if byte else ():
                ordinal = first + n * words.BYTE_BITS + k
                if byte >> k & 1 and committed <= ordinal < committed + WINDOW_MAX:
                    self.finish(ordinal)

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
        page = ordinal // layout.PAGE_BITS
        at = layout.PAGE_BYTES + page % self.pages * layout.PAGE_BYTES
        if be64(self.base, at) != page * layout.PAGE_BITS:
            return 0
        bit = ordinal - page * layout.PAGE_BITS
        return self._bit(at, bit)

    def finish(self, ordinal: int) -> int:
        """A record past `committed` is finished. 0, or 1 when it cannot be remembered (the window, or the disk)."""
        page = ordinal // layout.PAGE_BITS
        at = layout.PAGE_BYTES + page % self.pages * layout.PAGE_BYTES
        first = page * layout.PAGE_BITS
        if be64(self.base, at) != first:
            old = be64(self.base, at)
            if page - self.committed // layout.PAGE_BITS >= self.pages:
                if not self._widen(page, self.committed):
                    return 1
                at = layout.PAGE_BYTES + page % self.pages * layout.PAGE_BYTES
            elif (
                old % layout.PAGE_BITS == 0
                and old < first
                and old // layout.PAGE_BITS % self.pages == page % self.pages
                and old + layout.PAGE_BITS > self.durable
                and self.pages < layout.PAGES_MAX  # without room for both the new page goes first
            ):
                self._widen(page, self.durable)
                at = layout.PAGE_BYTES + page % self.pages * layout.PAGE_BYTES
            if be64(self.base, at) != first:
                zero(self.base, at, layout.PAGE_BYTES)
                put64(self.base, at, first)
                put64(self.base, at + layout.SUM, mix(first) ^ mix(0))
        bit = ordinal - first
        if self._bit(at, bit):
            return 0
        put64(self.base, at + layout.SUM, be64(self.base, at + layout.SUM) ^ mix(bit))
        self.base[at + layout.BITS + (bit >> words.BYTE_SHIFT)] |= 1 << (bit & words.BIT_MASK)
        self.beyond += 1
        self.dirty = True
        return 0

    def _widen(self, page: int, begin: int) -> bool:
        """Have room for the pages from the one of ordinal `begin` to this one."""
        pages = self.pages
        while page - begin // layout.PAGE_BITS >= pages:
            pages *= 2
        if pages > layout.PAGES_MAX:
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
        at = layout.SLOT + (turn & 1) * layout.SLOT_BYTES
        put64(self.base, at, turn)
        put64(self.base, at + layout.COMMITTED, self.committed)
        put64(self.base, at + layout.CHECK, _check(turn, self.committed))

    def restart(self, ordinal: int) -> None:
        """Begin anew at an ordinal, forward or back: nothing from there on is finished."""
        zero(self.base, layout.PAGE_BYTES, self.pages * layout.PAGE_BYTES)
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
        """The channel is gone. A file that stays all the same says nothing: one of this name begins where it is made."""
        if self.map is not None:
            zero(self.base, 0, len(self.map))
        self.files.unlink(self.path)


def _old_bits(data: bytes, pages: int, committed: int) -> Iterator[int]:
    """The finished ordinals past `committed` of a file of version 1."""
    for number in range(pages):
        page = data[layout.PAGE_BYTES + number * layout.PAGE_BYTES :][: layout.PAGE_BYTES]
        first = int.from_bytes(page[:_OLD_PAGE_HEAD])
        if first % _OLD_PAGE_BITS or first // _OLD_PAGE_BITS % pages != number:
            continue
        for n, byte in enumerate(page[_OLD_PAGE_HEAD:]):
            for k in range(words.BYTE_BITS) if byte else ():
                if byte >> k & 1 and first + n * words.BYTE_BITS + k >= committed:
                    yield first + n * words.BYTE_BITS + k
