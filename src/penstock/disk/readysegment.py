"""One segment of a ready queue: a file of messages and its sums, and what can be told of them when they are opened.

`readyqueue` draws the bytes. Positions are found by going through the sums (rule R11), not from memory; where sums are lost
the records are found by their lengths, and behind the last one stands a zero.
"""

# mypy: disable-error-code="no-any-return"
from __future__ import annotations

import logging
import mmap
from pathlib import Path
from sys import getrefcount
from zlib import crc32 as crc32_of

import cython

from penstock.disk.files import Files, advise, are_many, demand_target, is_full, make_pages, take_room
from penstock.disk.quarantine import take_back
from penstock.disk.segmenthead import NOT_CLEAN, Head, read_heads
from penstock.errors import DiskFull, StoreError
from penstock.octets import Readable

if cython.compiled:
    from cython.cimports.penstock import words
    from cython.cimports.penstock.disk import readylayout as layout
    from cython.cimports.penstock.octets import (
        address,
        be64,
        blank_array,
        crc32,
        expect,
        lend,
        monotonic_s,
        put8,
        put16,
        put32,
        put64,
        ube32,
        unmap,
        zero,
    )
else:
    from penstock import words
    from penstock.disk import readylayout as layout
    from penstock.octets import (
        address,
        be64,
        blank_array,
        crc32,
        expect,
        lend,
        monotonic_s,
        put8,
        put16,
        put32,
        put64,
        ube32,
        unmap,
        zero,
    )

log = logging.getLogger("penstock.disk")

STEP_MIN, STEP_MAX = 64 << 10, 8 << 20
SMALL = 256 << 10  # below, a page is faulted in alone: the system would zero megabytes around the first one
DIRTY_S = 20.0  # so long the system leaves a written page alone, if it has memory: it takes it up after 30 s
_FETCHED_MAX = 512  # of a larger record only the beginning would come sooner
_INT64_END, _WORDS = 1 << 63, 1 << 64  # a word from the upper half is a negative integer of 64 bits
FULL, BROKEN = 1, 2  # what an append may answer besides 0
CHECKED, UNCHECKED, FOREIGN, OLD_DOUBT = 0, 1, 2, 3  # what opening may find


class SegmentFile:
    """The two files of a segment, and one record after the other written into them."""

    def __init__(self, path: Path, size: int, files: Files, tag: int = 0) -> None:
        self.path = path
        self.size = size
        self.files = files
        self.tag = tag  # whose segment it is: a power cut may leave a new name over old contents
        self.life = 0  # how often the files were used before
        self.salt = 0  # of its life: a sum of an earlier one holds for no record of this
        self.first = 0
        self.count = 0
        self.end = 0  # behind the last record
        self.allocated = 0
        self.sums_size = _sums_size(size)
        self.sums_allocated = 0
        self.sums_written = 0
        self.scattered = False
        self.warm = 0  # its pages are there up to here: it was written so far when it was used before
        self.begun_s = 0.0  # when this life began; 0: it was flushed since
        self.dirty = 0  # where the life before ended, and until when the system leaves its pages alone
        self.dirty_until_s = 0.0
        self.synced = self.synced_count = 0  # where it ended when it was flushed last, and what it held
        self.damaged: set[int] = set()
        self.unverified = False  # trusted as a whole: each record is looked at when it is read
        self.fd = self.sums_fd = -1
        self.map: mmap.mmap = None  # type: ignore[assignment]
        self.sums_map: mmap.mmap = None  # type: ignore[assignment]
        self.base: memoryview = cython.NULL
        self.sums: memoryview = cython.NULL
        self._references = 0  # to the mapping while nobody has a view of it
        self.named = False  # its name in the folder is durable
        self.clean = False  # it was closed cleanly: everything in it was flushed
        self.cut = False  # being looked at after a power cut: a missing sum means that the record may be torn

    @property
    def sums_path(self) -> Path:
        return self.path.with_suffix(".sums")

    def create(self, first: int) -> None:
        """Make both files. StoreError, DiskFull."""
        try:
            self._map(create=True)
            if self.room(0, 0):
                raise DiskFull(f"no room for {self.path.name}")
            self._begin(first)
        except BaseException:
            self.close()
            take_back(self.files, self.path)
            take_back(self.files, self.sums_path)
            raise

    def _map(self, create: bool) -> None:
        files = self.files
        self.fd = files.open(self.path, create=create)
        self.sums_fd = files.open(self.sums_path, create=True)
        files.grow(self.fd, self.size)
        # The two heads are written in any case. Of a new file `room` takes the first page.
        if not create:
            files.grow(self.sums_fd, self.sums_size)
            files.allocate(self.sums_fd, 0, layout.HEAD_BYTES)
        files.allocate(self.sums_fd, self.sums_size - layout.HEAD_BYTES, layout.HEAD_BYTES)
        self.scattered = create or all(end <= SMALL for _, end in files.data_ranges(self.fd, 0, self.size))
        self.map = files.map(self.fd, self.size, scattered=self.scattered)
        self.sums_map = files.map(self.sums_fd, self.sums_size, scattered=self.scattered)
        self.base, self.sums = address(self.map), address(self.sums_map)
        self._references = getrefcount(self.map)

    def lent(self) -> bool:
        """Whether somebody still holds a view of it: its bytes must stay."""
        return getrefcount(self.map) > self._references

    def _live(self, life: int) -> None:
        self.life = life
        self.salt = life * layout.SALT & layout.SUM_BITS

    def expect(self, scattered: bool) -> None:
        """Tell the system how the records are touched: here and there, or one behind the other by those who read. Reading ahead
        of a writer would fill megabytes with small pages of zeros.
        """
        if self.scattered != scattered:
            advise(self.map, mmap.MADV_RANDOM if scattered else mmap.MADV_NORMAL)
            self.scattered = scattered

    def begin_again(self, first: int) -> None:
        """Start once more, as an empty segment whose first record gets this ordinal."""
        self._live(self.life + 1)
        self._begin(first)

    def _begin(self, first: int) -> None:
        self.expect(scattered=True)
        self.first = first
        self.warm = max(self.warm, self.end)
        self.dirty, self.dirty_until_s = self.end, self.begun_s + DIRTY_S
        self.begun_s = monotonic_s()
        self.synced = self.synced_count = 0
        if self.warm or self.sums_written:
            self._clear_sums()
        self.count = self.end = 0
        self.damaged = set()
        self.unverified = False
        self.base[0] = 0
        self._put_heads(NOT_CLEAN)

    def _clear_sums(self) -> None:
        """What was summed in earlier lives is summed no more: ordinals of other topics may be the same, and a start after a kill
        looks for records behind one that is torn.
        """
        end = max(self.sums_written, self.sums_allocated, layout.START + self.count * layout.ENTRY_BYTES)
        end = min(end, self.sums_size - layout.HEAD_BYTES)
        if end > self.sums_allocated:
            self.files.allocate(self.sums_fd, layout.START, end - layout.START)
        zero(self.sums, layout.START, end - layout.START)

    def _put_heads(self, count: int) -> None:
        """Both copies of the head. The count and the sum over it are one store each time: kill -9 leaves no half."""
        for at in (0, self.sums_size - layout.HEAD_BYTES):
            put32(self.sums, at, layout.MAGIC)
            put32(self.sums, at + layout.VERSION, self.life << layout.LIFE_BIT | layout.VERSION_NOW)
            put64(self.sums, at + layout.FIRST, self.first)
            put32(self.sums, at + layout.SEGMENT_SIZE, self.size)
            put32(self.sums, at + layout.TAG, self.tag)
            crc = crc32(self.sums, at, layout.COUNT, 0)
            crc = crc32_of(count.to_bytes(layout.COUNT_BYTES), crc)
            word = count << layout.WORD_BITS | crc
            put64(self.sums, at + layout.COUNT, word if word < _INT64_END else word - _WORDS)

    def room(self, length: int, records: int) -> int:
        """0 when so much more fits on the disk (the caller looked whether it fits the segment); FULL, BROKEN."""
        try:
            need = self.end + length
            if need > self.allocated or not self.allocated:
                step = max(STEP_MIN, min(STEP_MAX, self.allocated))
                target = min(self.size, max(need, self.allocated + step))
                least = min(target, max(need, self.allocated + 1))
                self.allocated = take_room(self.files, self.fd, self.allocated, least, target)
            need = layout.HEAD_BYTES + (self.count + records) * layout.ENTRY_BYTES
            if need > self.sums_allocated or not self.sums_allocated:
                step = max(words.PAGE_BYTES, min(layout.SUMS_STEP_MAX, self.sums_allocated))
                target = min(self.sums_size, max(need, self.sums_allocated + step))
                least = min(target, max(need, self.sums_allocated + 1))
                have, self.sums_allocated = (
                    self.sums_allocated,
                    take_room(self.files, self.sums_fd, self.sums_allocated, least, target),
                )
                if have and are_many((self.count - self.synced_count) * layout.ENTRY_BYTES, self.sums_allocated - have):
                    make_pages(self.files, self.sums_fd, have, self.sums_allocated)
        except StoreError as error:
            return FULL if is_full(self.files, error) else BROKEN
        return 0

    def is_dirty(self, end: int) -> bool:
        """Whether the life before has written all up to there a short while ago, and nobody flushed it: the pages are mapped and
        may be written through the mapping without a fault.
        """
        return end <= self.dirty and monotonic_s() < self.dirty_until_s

    def fetch(self, length: int) -> None:
        """A record of so many bytes is coming: of one of many queues in turn, as a rule, so that its place is in no cache. Let
        it come while other work is done.
        """
        if length < _FETCHED_MAX:
            expect(self.base, self.end, length)
            expect(self.sums, layout.START + self.count * layout.ENTRY_BYTES, layout.ENTRY_BYTES)

    def start(self, n: int) -> int:
        """Where record n begins."""
        return ube32(self.sums, layout.START + n * layout.ENTRY_BYTES) & layout.START_BITS

    def sum(self, n: int) -> int:
        """The stored CRC-32 of record n."""
        return ube32(self.sums, layout.CRC + n * layout.ENTRY_BYTES)

    def message_id(self, n: int) -> int:
        """The id of record n."""
        return be64(self.base, self.start(n) + layout.ID)

    def framed(self, at: int, limit: int) -> int:
        """The length of what stands at `at` if it may be a record by its own lengths, else 0."""
        if at + layout.BODY > limit or self.base[at] != layout.LETTER:
            return 0
        length = ube32(self.base, at + layout.LENGTH) + layout.ID
        if length < layout.BODY or at + length > limit:
            return 0
        return length

    def sum_matches(self, n: int, at: int, limit: int) -> int:
        """The length of record n if it stands at `at` and its sum holds, else 0."""
        length = self.framed(at, limit)
        if length and crc32(self.base, at, length, (self.first + n) ^ self.salt) != self.sum(n):
            return 0
        return length

    def write(self, message_id: int, attempts: int, mark: int, body: Readable, at: int, length: int, more: int) -> bool:
        """A large record, from where its body lies straight to the file; False when the system refuses: it goes through the
        mapping, whose room is taken.
        """
        try:
            head = blank_array(layout.BODY)
            base = address(head)
            put8(base, 0, layout.LETTER)
            put32(base, layout.LENGTH, length + layout.COUNTED_BYTES)
            put64(base, layout.ID, message_id)
            put16(base, layout.ATTEMPTS, attempts)
            put32(base, layout.MARK, mark)
            crc = crc32(body, at, length, crc32(base, 0, layout.BODY, (self.first + self.count) ^ self.salt))
            if self.end < self.warm:  # records of an earlier life stand behind: this one begins when all of it is there
                put8(base, 0, 0)
            parts: list[bytes | bytearray | memoryview] = [head, lend(body, at, length)]
            if self.end + layout.BODY + length < self.allocated:
                parts.append(b"\0")  # the next life of the file must not run on into this one's rest
            self.files.write_parts(self.fd, self.end, parts)
        except Exception as error:
            self.files.refusals.goes_on(error)
            return False
        if self.end < self.warm:
            put8(self.base, self.end, layout.LETTER)
        put32(self.sums, layout.START + self.count * layout.ENTRY_BYTES, self.end | (more << layout.MORE_BIT))
        put32(self.sums, layout.CRC + self.count * layout.ENTRY_BYTES, crc)
        self.count += 1
        self.end += length + layout.BODY
        return True

    def seal(self, at: int, length: int, more: int) -> None:
        """The record written at `at` counts from now on; `more` is bit 31 when messages of the same batch follow."""
        crc = crc32(self.base, at, length, (self.first + self.count) ^ self.salt)
        put32(self.sums, layout.START + self.count * layout.ENTRY_BYTES, at | more)
        put32(self.sums, layout.CRC + self.count * layout.ENTRY_BYTES, crc)
        self.count += 1
        self.end = at + length

    def mark(self, clean: bool) -> None:
        """Say in the file whether it needs to be gone through on the next start."""
        self._put_heads(self.count if clean and not self.damaged else NOT_CLEAN)

    def datasync(self) -> None:
        """Make messages and sums durable; for any thread."""
        if self.end - self.synced >= words.UNMAP_BYTES_MIN:
            unmap(self.base, 0, len(self.map))
            unmap(self.sums, 0, len(self.sums_map))
        self.synced, self.synced_count = self.end, self.count
        self.dirty, self.begun_s = 0, 0.0  # once more: it may live again since the flush was begun
        self.files.datasync(self.fd)
        self.files.datasync(self.sums_fd)

    def move(self, path: Path) -> None:
        """Give both files another name. StoreError: they keep theirs, as far as the disk allows."""
        self.files.rename(self.path, path)
        try:
            self.files.rename(self.sums_path, path.with_suffix(".sums"))
        except StoreError:
            self.files.rename(path, self.path)
            raise
        self.path = path
        self.named = False

    def close(self) -> None:
        for fd in (self.fd, self.sums_fd):
            if fd >= 0:
                self.files.close(fd)
        self.fd = self.sums_fd = -1

    def __del__(self) -> None:
        self.files.released.add(self.map, self.sums_map)


class ReadySegment(SegmentFile):
    """A segment that looks at what it finds when it is opened: after a clean stop, a kill, a power cut, damage."""

    def begin_flush(self) -> None:
        """It is being made durable, and its name in the folder."""
        self.named = True
        self.dirty, self.begun_s = 0, 0.0

    def open(self, after_cut: bool) -> int:
        """Map the existing files and find what they hold: CHECKED, or why not. `after_cut`: a power cut came before, and
        what has no sums may never have been whole. StoreError when the files cannot be read.
        """
        demand_target(self.path)
        demand_target(self.sums_path)
        size = self.path.stat().st_size
        heads, old = read_heads(self.files, self.sums_path, size, self.tag)
        # A power cut may leave one copy of an earlier life.
        head = max(
            heads,
            key=lambda head: (head.life, head.tag == self.tag, head.first),
            default=Head(0, 0, max(size, layout.SMALLEST), self.tag, NOT_CLEAN),
        )
        self.named = True
        if head.tag != self.tag:
            return FOREIGN
        self.size = head.size
        self.sums_size = _sums_size(self.size)
        self.fd = self.files.open(self.path)
        ranges = self.files.data_ranges(self.fd, 0, size)
        self.files.close(self.fd)
        self._map(create=False)
        # What was written is allocated; what is not reads as zeros and is allocated before it is written.
        limit = min(self.size, max((end for _, end in ranges), default=0))  # no more is mapped
        tail = self.sums_size - layout.HEAD_BYTES
        pages_end = tail // words.PAGE_BYTES * words.PAGE_BYTES
        told = [end for begin, end in self.files.data_ranges(self.sums_fd, 0, tail) if begin < pages_end]
        self.sums_written = max(told, default=min(tail, words.PAGE_BYTES))
        self.allocated = self.sums_allocated = 0
        self._live(head.life)
        if not heads:
            return UNCHECKED
        self.first = head.first
        clean = head.records if all(head == other for other in heads) and head.records <= self._most() else -1
        if old and (clean > 0 or self._aligned(limit)) and not self._begins_good(limit):
            return OLD_DOUBT
        self.cut = after_cut and clean < 0 and not old
        self._look(clean, limit, after_cut or old)
        self.cut = False
        if self.room(0, 0):
            log.warning("no room to go on in %s", self.path.name)
        if self.end < max(limit, self.allocated) and self.base[self.end]:  # a page that holds something is on the disk
            self.base[self.end] = 0  # what was torn off is not found by the next start either
        self._put_heads(NOT_CLEAN if self.damaged or clean < 0 else self.count)
        return CHECKED

    def _most(self) -> int:
        """How many entries the sums have room for."""
        return (self.sums_size - layout.HEADS_BYTES) // layout.ENTRY_BYTES

    def _written(self, n: int) -> bool:
        """Whether the entry of record n lies in what was written of the sums."""
        return layout.ENTRY_END + n * layout.ENTRY_BYTES <= self.sums_written

    def _goes_on(self, n: int) -> int:
        """1 when the entry of record n says that its batch goes on, else 0."""
        return ube32(self.sums, layout.START + n * layout.ENTRY_BYTES) >> layout.MORE_BIT

    def _look(self, clean: int, limit: int, torn: bool) -> None:
        """Find the records. Closed cleanly: the last one is looked at, the others when they are read."""
        if clean == 0:
            return
        if clean > 0 and self._written(clean - 1):
            at = self.start(clean - 1)
            length = self.sum_matches(clean - 1, at, limit)
            if length:
                self.count, self.end, self.unverified = clean, at + length, True
                self.clean = True
                return
        self._scan(limit, clean, torn)

    def _scan(self, limit: int, clean: int, torn: bool) -> None:
        """Go through the records: the torn tail is left out, a damaged record among good ones is remembered, and where
        only the sums are bad they are made again. After a power cut pages behind the last flush may be missing while
        later ones are there: what has no sum is left out, and with it the rest of its batch.
        """
        most = self._most() if clean < 0 else clean
        n = at = whole = whole_end = remade = 0
        torn_batch = False  # what stands here may go on with a batch of which something is missing
        while n < most:
            there = self._written(n)
            length = self.sum_matches(n, at, limit) if there and self.start(n) == at else 0
            if not length:
                if self.cut:
                    self._leave_out_before(n)
                ahead = self._rejoin(n, at, limit, most)
                if ahead < 0:
                    ahead = self._next_good(n + 1, at, limit, most)
                    if ahead < 0:
                        break
                    torn_batch = self.cut and not self._batch_over(n, at, ahead, limit)
                    self.damaged.update(range(n, ahead))
                    n, at = ahead, self.start(ahead)
                    continue
                torn_batch = self.cut and not self._batch_over(n, at, ahead, limit)
                while n < ahead:
                    length = self.framed(at, limit)
                    remade += self._judge(n, at, length)
                    at += length
                    n += 1
                continue
            more = self._goes_on(n)
            if torn_batch:
                self._leave_out(n, at, length)
                torn_batch = more != 0
            at += length
            n += 1
            if not more:
                whole, whole_end = n, at
        if clean >= 0 or (whole == n and not torn and self._tail(at, limit) > 1):
            # The lengths lead on, and no process leaves more than one record without a sum: the sums are what is lost.
            while n < most and self.framed(at, limit):
                length = self.framed(at, limit)
                remade += self._judge(n, at, length)
                at += length
                n += 1
            whole, whole_end = n, at
        if clean > whole:
            self.damaged.update(range(whole, clean))
            whole = clean
        self.count, self.end = whole, whole_end
        self.damaged = {bad for bad in self.damaged if bad < whole}
        if self.damaged and self.cut:
            log.warning("torn by a power cut in %s: %d messages, left out", self.path.name, len(self.damaged))
        elif self.damaged:
            log.error("damaged messages in %s: %d, skipped", self.path.name, len(self.damaged))
        if remade:
            log.error("damaged sums in %s: %d messages are served unchecked", self.path.name, remade)

    def missing(self, most: int) -> int:
        """How many records, `most` at most, its sums tell of that are not there any more, behind the last one that is."""
        n, end = self.count, min(self.count + most, self._most())
        while n < end and self._written(n) and self.sum(n) not in (0, layout.NO_SUM) and self.start(n) >= self.end:
            n += 1
        return n - self.count

    def _told(self, n: int, at: int) -> bool:
        """Whether the entry of record n, at `at`, is there, be its sum right or not."""
        stored = self.sum(n) if self._written(n) else 0
        return stored != 0 and stored != layout.NO_SUM and self.start(n) == at

    def _batch_over(self, n: int, at: int, ahead: int, limit: int) -> bool:
        """Whether the last of the bad records from n, at `at`, up to `ahead` ended its batch: its entry says so, and it is known
        where it stands. What an earlier start left out stands where its entry says, and was left out to the end of a batch.
        """
        over, known = False, True
        while n < ahead:
            start = self.start(n)
            length = self.framed(start, limit) if self._told(n, start) else 0
            if length and self.sum(n) == self._crc(n, start, length) ^ layout.SPOILED:
                at, known, over = start + length, True, not self._goes_on(n)
            else:
                over = known and self._told(n, at) and not self._goes_on(n)
                known = False
            n += 1
        return over

    def _leave_out(self, n: int, at: int, length: int) -> None:
        """Record n is not served, now or by a later start: its sum says so."""
        self.damaged.add(n)
        self.files.allocate(self.sums_fd, layout.START + n * layout.ENTRY_BYTES, layout.ENTRY_BYTES)
        more = self._goes_on(n) if self._told(n, at) else 1  # nobody knows where its batch ended
        put32(self.sums, layout.START + n * layout.ENTRY_BYTES, at | (more << layout.MORE_BIT))
        put32(self.sums, layout.CRC + n * layout.ENTRY_BYTES, self._crc(n, at, length) ^ layout.SPOILED)

    def _leave_out_before(self, n: int) -> None:
        """Record n is torn: the batch that goes on with it is not whole."""
        n -= 1
        while n >= 0 and n not in self.damaged and self._goes_on(n):
            at = self.start(n)
            self._leave_out(n, at, ube32(self.base, at + layout.LENGTH) + layout.ID)
            n -= 1

    def _crc(self, n: int, at: int, length: int) -> int:
        return crc32(self.base, at, length, (self.first + n) ^ self.salt)

    def _judge(self, n: int, at: int, length: int) -> int:
        """Record n stands at `at` and its sum does not hold: 1 when it is the sum that is damaged, and it is made again; 0
        when it may be the record.
        """
        if self._told(n, at) and not _one_bit(self.sum(n) ^ self._crc(n, at, length)):
            self.damaged.add(n)
            return 0
        if self.cut:
            self._leave_out(n, at, length)
            return 0
        self._remake(n, at, length)
        return 1

    def _remake(self, n: int, at: int, length: int) -> None:
        """The sum of record n anew."""
        self.files.allocate(self.sums_fd, layout.START + n * layout.ENTRY_BYTES, layout.ENTRY_BYTES)
        put32(self.sums, layout.START + n * layout.ENTRY_BYTES, at)
        put32(self.sums, layout.CRC + n * layout.ENTRY_BYTES, self._crc(n, at, length))

    def marked(self) -> list[tuple[int, int, int]]:
        """(mark, id, ordinal) of the records with a mark, unless the segment was closed cleanly."""
        found = []
        for n in range(0 if self.clean else self.count):
            if n not in self.damaged:
                at = self.start(n)
                mark = ube32(self.base, at + layout.MARK)
                if mark:
                    found.append((mark, be64(self.base, at + layout.ID), self.first + n))
        return found

    def clip(self, ordinal: int) -> None:
        """What stands here from this ordinal on was left out once, and others have got these ordinals."""
        self.count = ordinal - self.first
        self.end = self.start(self.count)
        self.base[self.end] = 0
        self.damaged = {bad for bad in self.damaged if bad < self.count}

    def _rejoin(self, n: int, at: int, limit: int, most: int) -> int:
        """From record n at `at` on by lengths: the next one whose sum holds where it stands; -1 when they lead nowhere."""
        while n < most:
            length = self.framed(at, limit)
            if not length:
                return -1
            at += length
            n += 1
            there = n < most and self._written(n)
            if there and self.start(n) == at and self.sum_matches(n, at, limit):
                return n
        return -1

    def _tail(self, at: int, limit: int) -> int:
        """How many records stand there by their lengths; none when they do not end with a zero, or the file."""
        found = 0
        while True:
            length = self.framed(at, limit)
            if not length:
                return found if at >= limit or self.base[at] == 0 else 0
            at += length
            found += 1

    def records(self, limit: int) -> int:
        """How many records stand one behind another from the start, by their lengths."""
        found = at = 0
        while True:
            length = self.framed(at, limit)
            if not length:
                return found
            at += length
            found += 1

    def _aligned(self, limit: int) -> bool:
        """Whether the sums name the places where the first records stand."""
        second = self.framed(0, limit)
        return self.start(0) == 0 and second > 0 and self.start(1) == second

    def _begins_good(self, limit: int) -> bool:
        """Whether a sum of the first ones holds: else it is the first ordinal that is wrong."""
        return any(self.sum_matches(n, self.start(n), limit) for n in range(layout.FIRST_RECORDS))

    def _next_good(self, n: int, at: int, limit: int, most: int) -> int:
        """The next record behind a bad one whose sum holds; -1 when there is none."""
        empty = 0
        # A flipped bit, or pages of sums; so many empty entries are the end.
        while n < most and empty < layout.EMPTY_ENTRIES_MAX and self._written(n):
            start = self.start(n)
            if start >= at and self.sum_matches(n, start, limit):
                return n
            empty = empty + 1 if start == 0 else 0
            n += 1
        return -1

    def review(self) -> None:
        """A record of a segment that was trusted does not hold: look at all of it."""
        self.unverified = False
        self.sums_written = layout.START + self.count * layout.ENTRY_BYTES
        self._scan(self.end, self.count, False)

    def adopt_unchecked(self, first: int) -> None:
        """A file without sums (gmq's own, or they are lost): its records as far as they follow each other, and sums."""
        self.first = first
        limit = self.path.stat().st_size
        n = at = 0
        while True:
            length = self.framed(at, limit)
            if not length:
                break
            if self.room(0, n + 1):
                raise DiskFull(f"no room for the sums of {self.path.name}")
            self.seal(at, length, 0)
            at = self.end
            n += 1
        if self.room(0, 0) == 0 and self.end < self.allocated:
            self.base[self.end] = 0
        self._put_heads(NOT_CLEAN)
        log.warning("unchecked segment %s: %d messages", self.path.name, n)


def _sums_size(size: int) -> int:
    return layout.HEADS_BYTES + (size // layout.SMALLEST + 1) * layout.ENTRY_BYTES


def _one_bit(difference: int) -> bool:
    """Whether two sums are one flipped bit apart: then it is the stored one that is damaged, no record has two such sums."""
    return difference != 0 and difference & (difference - 1) == 0
