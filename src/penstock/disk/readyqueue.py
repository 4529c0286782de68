"""ReadyQueue: a queue topic's messages, one copy for all its channels, in mapped segments of gmq's record layout.

    <name>_<n>.queue   'v' (1) | length (4) | id (8) | attempts (2) | mark (4) | body     length counts from id on
    <name>_<n>.sums    head, at 0 and again in the last 32 bytes:
                       "PRDY" | version (4) | first ordinal (8) | segment size (4) | tag (4)
                       | count when closed cleanly, or FFFFFFFF (4) | CRC-32 of the 28 bytes before (4)
                       then for each record, at 32 + n × 8:   start | "more follows" in bit 31 (4) | CRC-32 (4)

The mark (gmq's delay) is 0, or in a copy of an entry of the schedule what `mark_of` makes of the entry's id: a start after
a kill tells by it what was copied already.

A record's ordinal is its number in the queue; its id, which is also its timestamp in ns, rises from record to record of
one broker. The sum begins with the ordinal, so that what stood in a segment that is used again is never taken for a
message; the tag says whose segment it is. The records of one MPUB all but the last say "more follows": of a batch that
was cut off nothing is found. Positions are found by going through the sums (rule R11), not from memory.

Where sums are lost the records are found by their lengths, and behind the last one stands a zero: they are served
unchecked, their sums are made again. Nothing is deleted: what cannot be served goes to lost+found.

Files have their full length from the start and take room on the disk in steps, ahead of use: a mapped hole on a full
disk would end the process. A segment that every channel has finished goes to the pool, whose pages are warm, or away.
"""

# mypy: disable-error-code="no-any-return"
from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any
from zlib import crc32 as crc32_of

import cython

from penstock.disk.aside import data_folder, try_set_aside
from penstock.disk.files import Files, last_byte, take_room
from penstock.disk.stream import Stream
from penstock.errors import DiskFull, StoreError

if cython.compiled:
    from cython.cimports.penstock.octets import address, be16, be64, copy, crc32, put8, put16, put32, put64, ube32
else:
    from penstock.octets import address, be16, be64, copy, crc32, put8, put16, put32, put64, ube32

log = logging.getLogger("penstock.disk")

MAGIC = 0x50524459
VERSION = 2
SUMS_HEAD = 32
RECORD_HEAD = 19  # 'v', length, id, attempts, delay
SMALLEST = 20
STEP_MIN, STEP_MAX = 64 << 10, 8 << 20
POOL_MAX = 2
FULL, BROKEN = 1, 2  # what an append may answer besides 0
CHECKED, UNCHECKED, FOREIGN, OLD_DOUBT = 0, 1, 2, 3  # what opening may find
NOT_CLEAN = 0xFFFFFFFF
KEEP_NOTHING = 1 << 62


def mark_of(schedule_id: int) -> int:
    """The mark of a copy of this entry: never 0."""
    return schedule_id & 0x7FFFFFFF | 0x80000000


class ReadySegment:
    """One file of messages and its sums."""

    def __init__(self, path: Path, size: int, files: Files, tag: int = 0) -> None:
        self.path = path
        self.size = size
        self.files = files
        self.tag = tag  # whose segment it is: a power cut may leave a new name over old contents
        self.first = 0
        self.count = 0
        self.end = 0  # behind the last record
        self.allocated = 0
        self.sums_size = _sums_size(size)
        self.sums_allocated = 0
        self.sums_written = 0
        self.damaged: set[int] = set()
        self.unverified = False  # trusted as a whole: each record is looked at when it is read
        self.fd = self.sums_fd = -1
        self.map: Any = None
        self.sums_map: Any = None
        self.base: Any = cython.NULL
        self.sums: Any = cython.NULL
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
            self.begin(first)
        except BaseException:
            self.close()
            self.files.unlink(self.path)
            self.files.unlink(self.sums_path)
            raise

    def _map(self, create: bool) -> None:
        files = self.files
        self.fd = files.open(self.path, create=create)
        self.sums_fd = files.open(self.sums_path, create=True)
        files.grow(self.fd, self.size)
        files.grow(self.sums_fd, self.sums_size)
        files.allocate(self.sums_fd, 0, SUMS_HEAD)  # the two heads are written in any case
        files.allocate(self.sums_fd, self.sums_size - SUMS_HEAD, SUMS_HEAD)
        self.map = files.map(self.fd, self.size)
        self.sums_map = files.map(self.sums_fd, self.sums_size)
        self.base, self.sums = address(self.map), address(self.sums_map)

    def begin(self, first: int) -> None:
        """Start as an empty segment whose first record gets this ordinal."""
        self.first = first
        self.count = self.end = 0
        self.damaged = set()
        self.unverified = False
        self.base[0] = 0
        self._put_heads(NOT_CLEAN)

    def _put_heads(self, count: int) -> None:
        """Both copies of the head. The count and the sum over it are one store each time: kill -9 leaves no half."""
        for at in (0, self.sums_size - SUMS_HEAD):
            put32(self.sums, at, MAGIC)
            put32(self.sums, at + 4, VERSION)
            put64(self.sums, at + 8, self.first)
            put32(self.sums, at + 16, self.size)
            put32(self.sums, at + 20, self.tag)
            crc = crc32(self.sums, at, 24, 0)
            crc = crc32_of(count.to_bytes(4), crc)
            word = count << 32 | crc
            put64(self.sums, at + 24, word if word < 1 << 63 else word - (1 << 64))

    def room(self, length: int, records: int) -> int:
        """0 when so much more fits on the disk (the caller looked whether it fits the segment); FULL, BROKEN."""
        try:
            need = self.end + length
            if need > self.allocated or not self.allocated:
                step = max(STEP_MIN, min(STEP_MAX, self.allocated))
                target = min(self.size, max(need, self.allocated + step))
                least = min(target, max(need, self.allocated + 1))
                self.allocated = take_room(self.files, self.fd, self.allocated, least, target)
            need = SUMS_HEAD + (self.count + records) * 8
            if need > self.sums_allocated or not self.sums_allocated:
                step = max(4096, min(1 << 20, self.sums_allocated))
                target = min(self.sums_size, max(need, self.sums_allocated + step))
                least = min(target, max(need, self.sums_allocated + 1))
                self.sums_allocated = take_room(self.files, self.sums_fd, self.sums_allocated, least, target)
        except DiskFull:
            return FULL
        except StoreError:
            return BROKEN
        return 0

    def start(self, n: int) -> int:
        """Where record n begins."""
        return ube32(self.sums, 32 + n * 8) & 0x7FFFFFFF

    def message_id(self, n: int) -> int:
        """The id of record n."""
        return be64(self.base, self.start(n) + 5)

    def framed(self, at: int, limit: int) -> int:
        """The length of what stands at `at` if it may be a record by its own lengths, else 0."""
        if at + 19 > limit or self.base[at] != 118:
            return 0
        length = ube32(self.base, at + 1) + 5
        if length < 19 or at + length > limit:
            return 0
        return length

    def holds(self, n: int, at: int, limit: int) -> int:
        """The length of record n if it stands at `at` and its sum holds, else 0."""
        length = self.framed(at, limit)
        if length and crc32(self.base, at, length, self.first + n) != ube32(self.sums, 36 + n * 8):
            return 0
        return length

    def open(self, after_cut: bool) -> int:
        """Map the existing files and find what they hold: CHECKED, or why not. `after_cut`: a power cut came before, and
        what has no sums may never have been whole. StoreError when the files cannot be read.
        """
        size = self.path.stat().st_size
        heads, old = self._read_heads(size)
        own = [head for head in heads if head[2] == self.tag]
        self.named = True
        if heads and not own:
            return FOREIGN
        head = max(own, default=(0, max(size, SMALLEST), 0, NOT_CLEAN))
        self.size = head[1]
        self.sums_size = _sums_size(self.size)
        self.fd = self.files.open(self.path)
        ranges = self.files.data_ranges(self.fd, 0, size)
        self.files.close(self.fd)
        self._map(create=False)
        # What was written is allocated; what is not reads as zeros and is allocated before it is written.
        limit = max((end for _, end in ranges), default=0)
        tail = self.sums_size - SUMS_HEAD
        told = [end for begin, end in self.files.data_ranges(self.sums_fd, 0, tail) if begin < tail // 4096 * 4096]
        self.sums_written = max(told, default=min(tail, 4096))
        self.allocated = self.sums_allocated = 0
        if not own:
            return UNCHECKED
        self.first = head[0]
        clean = head[3] if all(head == other for other in own) and head[3] <= (self.sums_size - 64) // 8 else -1
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

    def _read_heads(self, size: int) -> tuple[list[tuple[int, int, int, int]], bool]:
        """(first, size, tag, count) of each copy of the head that holds; whether it is one of version 1, without a sum."""
        if not self.sums_path.is_file():
            return [], False
        fd = self.files.open(self.sums_path)
        try:
            length = self.files.size(fd)
            copies = [self.files.read(fd, at, SUMS_HEAD) for at in {0, max(0, length - SUMS_HEAD)}]
            front = self.files.read(fd, 0, SUMS_HEAD)
        finally:
            self.files.close(fd)
        found = []
        for data in copies:
            if data[:8] == b"PRDY" + VERSION.to_bytes(4) and crc32_of(data[:28]) == int.from_bytes(data[28:]):
                first, segment_size, tag, count = (
                    int.from_bytes(data[a:b]) for a, b in ((8, 16), (16, 20), (20, 24), (24, 28))
                )
                found.append((first, segment_size, tag, count))
        if not found and front[:8] == b"PRDY\0\0\0\1":
            first, segment_size = int.from_bytes(front[8:16]), int.from_bytes(front[16:24])
            if first < 1 << 62 and size <= segment_size < 1 << 31:
                return [(first, segment_size, self.tag, min(int.from_bytes(front[24:32]), NOT_CLEAN))], True
        return found, False

    def _look(self, clean: int, limit: int, torn: bool) -> None:
        """Find the records. Closed cleanly: the last one is looked at, the others when they are read."""
        if clean == 0:
            return
        if clean > 0 and 32 + clean * 8 <= self.sums_written:
            at = self.start(clean - 1)
            length = self.holds(clean - 1, at, limit)
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
        most = (self.sums_size - 64) // 8 if clean < 0 else clean
        n = at = whole = whole_end = remade = 0
        torn_batch = False  # what stands here may go on with a batch of which something is missing
        while n < most:
            there = 40 + n * 8 <= self.sums_written
            length = self.holds(n, at, limit) if there and self.start(n) == at else 0
            if not length:
                if self.cut:
                    self._leave_out_before(n)
                ahead = self._rejoin(n, at, limit, most)
                if ahead < 0:
                    ahead = self._next_good(n + 1, at, limit, most)
                    if ahead < 0:
                        break
                    torn_batch = self.cut and not (ahead == n + 1 and self._ends_batch(n, at))
                    self.damaged.update(range(n, ahead))
                    n, at = ahead, self.start(ahead)
                    continue
                torn_batch = self.cut and not (ahead == n + 1 and self._ends_batch(n, at))
                while n < ahead:
                    length = self.framed(at, limit)
                    remade += self._judge(n, at, length)
                    at += length
                    n += 1
                continue
            more = ube32(self.sums, 32 + n * 8) >> 31
            if torn_batch:
                self._leave_out(n, at, length)
                torn_batch = more
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

    def _ends_batch(self, n: int, at: int) -> bool:
        """Whether the sum of record n, at `at`, is there, be it right or not, and says that no other record belongs to it."""
        if 40 + n * 8 > self.sums_written or ube32(self.sums, 32 + n * 8) != at:
            return False
        stored = ube32(self.sums, 36 + n * 8)
        return stored != 0 and stored != NOT_CLEAN

    def _leave_out(self, n: int, at: int, length: int) -> None:
        """Record n is not served, now or by a later start: its sum says so."""
        self.damaged.add(n)
        self.files.allocate(self.sums_fd, SUMS_HEAD + n * 8, 8)
        put32(self.sums, 32 + n * 8, at | (ube32(self.sums, 32 + n * 8) >> 31 << 31))
        put32(self.sums, 36 + n * 8, self._crc(n, at, length) ^ 0x5A5A5A5A)

    def _leave_out_before(self, n: int) -> None:
        """Record n is torn: the batch that goes on with it is not whole."""
        n -= 1
        while n >= 0 and n not in self.damaged and ube32(self.sums, 32 + n * 8) >> 31:
            at = self.start(n)
            self._leave_out(n, at, ube32(self.base, at + 1) + 5)
            n -= 1

    def _crc(self, n: int, at: int, length: int) -> int:
        return crc32(self.base, at, length, self.first + n)

    def _judge(self, n: int, at: int, length: int) -> int:
        """Record n stands at `at` and its sum does not hold: 1 when it is the sum that is damaged, and it is made again; 0
        when it may be the record.
        """
        if 40 + n * 8 <= self.sums_written:
            stored = ube32(self.sums, 36 + n * 8)
            if (
                stored
                and stored != NOT_CLEAN
                and self.start(n) == at
                and not _one_bit(stored ^ self._crc(n, at, length))
            ):
                self.damaged.add(n)
                return 0
        if self.cut:
            self._leave_out(n, at, length)
            return 0
        self._remake(n, at, length)
        return 1

    def _remake(self, n: int, at: int, length: int) -> None:
        """The sum of record n anew."""
        self.files.allocate(self.sums_fd, SUMS_HEAD + n * 8, 8)
        put32(self.sums, 32 + n * 8, at)
        put32(self.sums, 36 + n * 8, self._crc(n, at, length))

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
            there = n < most and 40 + n * 8 <= self.sums_written
            if there and self.start(n) == at and self.holds(n, at, limit):
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
        return any(self.holds(n, self.start(n), limit) for n in range(64))

    def _next_good(self, n: int, at: int, limit: int, most: int) -> int:
        """The next record behind a bad one whose sum holds; -1 when there is none."""
        empty = 0
        while (
            n < most and empty < 4096 and 40 + n * 8 <= self.sums_written
        ):  # a flipped bit, or pages of sums; so many empty entries are the end
            start = self.start(n)
            if start >= at and self.holds(n, start, limit):
                return n
            empty = empty + 1 if start == 0 else 0
            n += 1
        return -1

    def review(self) -> None:
        """A record of a segment that was trusted does not hold: look at all of it."""
        self.unverified = False
        self.sums_written = SUMS_HEAD + self.count * 8
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

    def seal(self, at: int, length: int, more: int) -> None:
        """The record written at `at` counts from now on; `more` is bit 31 when its batch goes on."""
        crc = crc32(self.base, at, length, self.first + self.count)
        put32(self.sums, 32 + self.count * 8, at | more)
        put32(self.sums, 36 + self.count * 8, crc)
        self.count += 1
        self.end = at + length

    def mark(self, clean: bool) -> None:
        """Say in the file whether it needs to be gone through on the next start."""
        self._put_heads(self.count if clean and not self.damaged else NOT_CLEAN)

    def datasync(self) -> None:
        """Make messages and sums durable; for any thread."""
        self.files.datasync(self.fd)
        self.files.datasync(self.sums_fd)

    def move(self, path: Path) -> None:
        """Give both files another name."""
        self.files.rename(self.path, path)
        self.files.rename(self.sums_path, path.with_suffix(".sums"))
        self.path = path
        self.named = False

    def close(self) -> None:
        for fd in (self.fd, self.sums_fd):
            if fd >= 0:
                self.files.close(fd)
        self.fd = self.sums_fd = -1


def _sums_size(size: int) -> int:
    return 2 * SUMS_HEAD + (size // SMALLEST + 1) * 8


def _one_bit(difference: int) -> bool:
    """Whether two sums are one flipped bit apart: then it is the stored one that is damaged, no record has two such sums."""
    return difference != 0 and difference & (difference - 1) == 0


class Pool:
    """Segments nobody needs: taken again with their pages warm, or removed by a thread (`take_gone`)."""

    def __init__(self, folder: Path, files: Files) -> None:
        self.folder = folder
        self.files = files
        self.spares: list[ReadySegment] = []
        self._gone: list[ReadySegment] = []
        self._number = 0
        self.after_cut = False  # a power cut ended the process before: what has no sums may never have been whole

    def put(self, segment: ReadySegment) -> None:
        """A finished segment: its name goes away at once, its room when a thread has time."""
        self._number += 1
        segment.move(self.folder / f".spare_{self._number}.queue")
        if len(self.spares) < POOL_MAX:
            self.spares.append(segment)
        else:
            self._gone.append(segment)

    def take(self, size: int) -> ReadySegment | None:
        """A segment of this size to be used again."""
        for segment in self.spares:
            if segment.size == size:
                self.spares.remove(segment)
                return segment
        return None

    def take_gone(self) -> list[ReadySegment]:
        """What a thread should remove now, with `remove`."""
        gone, self._gone = self._gone, []
        return gone

    def remove(self, segments: list[ReadySegment]) -> None:
        """Free the disk; for any thread."""
        for segment in segments:
            segment.close()
            self.files.unlink(segment.path)
            self.files.unlink(segment.sums_path)

    def shrink(self) -> None:
        """Give the spares up, too: the disk is short, or the broker stops."""
        self._gone += self.spares
        self.spares = []

    def sweep(self) -> None:
        """Remove what a former process left here."""
        for name in self.files.names(self.folder):
            if name.startswith(".spare_"):
                self.files.unlink(self.folder / name)


def _number(segment: ReadySegment) -> int:
    return int(segment.path.stem.rpartition("_")[2])


class ReadyQueue(Stream):
    """One topic's stream. Appending never raises: 0, FULL or BROKEN."""

    def __init__(self, folder: Path, name: str, segment_bytes: int, pool: Pool, files: Files) -> None:
        Stream.__init__(self)
        self.folder = folder
        self.name = name
        self.tag = crc32_of(f"{folder.parent.name}/{folder.name}/{name}".encode())
        self.segment_bytes = segment_bytes
        self.pool = pool
        self.files = files
        self.segments: list[ReadySegment] = []
        self.last: Any = None  # the ReadySegment that is appended to
        self._seen: ReadySegment | None = None
        self.last_id = 0
        self.total = 0  # ordinal behind the last record
        self.visible = 0  # as far as readers may see
        self.stamped = False  # bodies begin with a timestamp in ns (8): the id is none
        self.unflushed = False
        self.renamed = False  # names in the folder changed since the last flush
        self.kept_from = KEEP_NOTHING  # what lies from here on is not dropped
        self._number = 0
        self._mark = 0
        self._batch = 0  # records of the open batch
        self._fresh_first = 0

    # -- opening and closing -------------------------------------------------------------------------------------

    def open(self, ordinal: int = 0) -> None:
        """Find the segments and what they hold; an empty queue begins at `ordinal`, which no record had."""
        opened = [(segment, segment.open(self.pool.after_cut)) for segment in self._find()]
        end = ordinal
        kept: list[ReadySegment] = []
        lost: list[ReadySegment] = []  # without sums that can be believed
        for segment, state in opened:
            if state == CHECKED:
                if kept and segment.first < end:
                    if (
                        segment.first <= kept[len(kept) - 1].first
                    ):  # an older life of a file used again: nobody is owed it
                        self.pool.put(segment)
                        continue
                    kept[len(kept) - 1].clip(segment.first)  # what was torn off there is no part of the queue
                kept.append(segment)
                end = segment.first + segment.count
            elif state == UNCHECKED:
                lost.append(segment)
            elif state == FOREIGN:
                self._aside(segment, "another queue's segment, under a new name that was never flushed")
            else:
                self._aside(segment, "messages that do not fit their sums")
        for segment in lost:
            limit = segment.path.stat().st_size
            count = segment.records(limit)
            if not count:
                if last_byte(self.files, segment.path, segment.map, 0, limit):
                    self._aside(segment, "no message is found in it")
                else:
                    self.pool.put(segment)
            elif self.pool.after_cut:
                self._aside(segment, "messages without sums: a power cut came before they were flushed")
            else:
                first = self._place(kept, segment, count)
                if first < 0:
                    first = end = max(end, ordinal)
                segment.adopt_unchecked(first)
                kept.append(segment)
                end = max(end, segment.first + segment.count)
        kept.sort(key=lambda segment: segment.first)
        self.segments = kept
        self.total = self.visible = self._fresh_first = max(end, ordinal)
        if self.segments:
            for segment in self.segments:
                if not segment.clean:  # who wrote it was killed, perhaps before the flush
                    self._fresh_first = min(self._fresh_first, segment.first)
                    self.unflushed = self.renamed = True
            last = self.segments[len(self.segments) - 1]
            last.mark(False)
            if end == self.total:
                self.last = last
            if last.count:
                self.last_id = last.message_id(last.count - 1)

    def _find(self) -> list[ReadySegment]:
        """The segments of the folder in the order of their numbers; what is none goes to lost+found."""
        pattern = re.compile(re.escape(self.name) + r"_([0-9]{1,18})\.(queue|sums)")
        found: dict[int, Path] = {}
        odd: dict[int, Path] = {}
        for file in self.files.names(self.folder):
            match = pattern.fullmatch(file)
            if match:
                number, path = int(match[1]), self.folder / file
                self._number = max(self._number, number)
                if path.is_dir():
                    try_set_aside(self.files, data_folder(path), path, "a folder where a segment should be")
                else:
                    (found if match[2] == "queue" else odd)[number] = path
        for number in odd.keys() - found.keys():
            try_set_aside(self.files, data_folder(odd[number]), odd[number], "sums of messages that are gone")
        size = self.segment_bytes
        return [ReadySegment(path, size, self.files, self.tag) for _, path in sorted(found.items())]

    def _aside(self, segment: ReadySegment, why: str) -> None:
        segment.close()
        for path in (segment.path, segment.sums_path):
            if path.exists():
                try_set_aside(self.files, data_folder(path), path, why)

    def _place(self, kept: list[ReadySegment], segment: ReadySegment, count: int) -> int:
        """The ordinal of the first message of a segment whose head is lost, if its neighbours tell; else -1, and all of
        it comes again under new ordinals.
        """
        number = _number(segment)
        before = [other for other in kept if _number(other) == number - 1]
        behind = [other for other in kept if _number(other) == number + 1]
        for left in before:
            for right in behind:
                if left.first + left.count + count == right.first:
                    return right.first - count
        return -1

    def close(self, clean: bool) -> None:
        """Let go of the files; `clean` after everything was flushed: the next start need not look."""
        for segment in self.segments:
            if clean:
                segment.mark(True)
            segment.close()
        self.segments = []
        self.last = self._seen = None

    # -- appending -----------------------------------------------------------------------------------------------

    def ready(self, length: int, records: int) -> int:
        """Make room for records of this many bytes in one segment: 0, FULL or BROKEN. `append` may follow so often."""
        segment = self.last
        if segment is None or segment.end + length > segment.size:
            answer = self._roll(length)
            if answer:
                return answer
            segment = self.last
        if segment.end + length <= segment.allocated and 32 + (segment.count + records) * 8 <= segment.sums_allocated:
            return 0
        return segment.room(length, records)

    def _roll(self, length: int) -> int:
        size = max(self.segment_bytes, length)  # a batch that fits no segment gets one of its own
        if length >= 1 << 31:
            return BROKEN
        self._number += 1
        path = self.folder / f"{self.name}_{self._number}.queue"
        try:
            self.files.make_folder(self.folder)
            segment = self.pool.take(size)
            if segment is not None:
                segment.tag = self.tag
                segment.begin(self.total)
                segment.move(path)
            else:
                segment = ReadySegment(path, size, self.files, self.tag)
                segment.create(self.total)
        except DiskFull:
            return FULL
        except StoreError:
            return BROKEN
        self.segments.append(segment)
        self.last = segment
        self.renamed = True
        return 0

    def append(self, now_ns: int, attempts: int, message_id: int, body: Any, at: int, length: int, more: int) -> None:
        """One record, after `ready` said 0. `message_id` 0: a new one, which is its time. `more`: the batch goes on.

        Readers see it when its batch is whole and `show_all` was called.
        """
        if message_id == 0:
            message_id = now_ns
            if message_id <= self.last_id:
                message_id = self.last_id + 1
            self.last_id = message_id
        segment = self.last
        end = segment.end
        base = segment.base
        if end + length + 19 < segment.allocated:
            put8(base, end + length + 19, 0)  # the next life of the file must not run on into this one's rest
        put8(base, end, 118)
        put32(base, end + 1, length + 14)
        put64(base, end + 5, message_id)
        put16(base, end + 13, attempts)
        put32(base, end + 15, self._mark)
        copy(base, end + 19, body, at, length)
        crc = crc32(base, end, length + 19, segment.first + segment.count)
        put32(segment.sums, 32 + segment.count * 8, end | (more << 31))
        put32(segment.sums, 36 + segment.count * 8, crc)
        segment.count += 1
        segment.end = end + length + 19
        self.total += 1
        self.unflushed = True

    def append_bytes(self, message_id: int, attempts: int, body: bytes, more: bool = False, mark: int = 0) -> None:
        """A message that has an id, after `ready` said 0."""
        self._mark = mark
        self.append(message_id, attempts, message_id, body, 0, len(body), 1 if more else 0)
        self._mark = 0

    def marked(self) -> list[tuple[int, int, int]]:
        """(mark, id, ordinal) of the records with a mark that a kill or power cut may have left behind."""
        found = []
        for segment in self.segments:
            if not segment.clean:
                for n in range(segment.count):
                    if segment.damaged and n in segment.damaged:
                        continue
                    at = segment.start(n)
                    mark = ube32(segment.base, at + 15)
                    if mark:
                        found.append((mark, be64(segment.base, at + 5), segment.first + n))
        return found

    def show_all(self) -> None:
        """Everything appended may be read."""
        self.visible = self.total

    # -- reading (Stream) ----------------------------------------------------------------------------------------

    def begin(self) -> int:
        return self.segments[0].first if self.segments else self.total

    def end(self) -> int:
        return self.visible

    def _segment(self, ordinal: int) -> ReadySegment | None:
        segment = self._seen
        if segment is not None and segment.first <= ordinal < segment.first + segment.count:
            return segment
        for segment in reversed(self.segments):
            if segment.first <= ordinal:
                if ordinal < segment.first + segment.count:
                    self._seen = segment
                    return segment
                return None
        return None

    def next(self, ordinal: int) -> int:
        segment = self.last
        if segment is not None and ordinal >= segment.first:
            return ordinal
        segment = self._seen
        if segment is not None and segment.first <= ordinal < segment.first + segment.count:
            return ordinal
        for segment in self.segments:
            if ordinal < segment.first:
                return segment.first
            if ordinal < segment.first + segment.count:
                return ordinal
        return max(ordinal, self.total)

    def count(self, ordinal: int) -> int:
        if self.visible <= ordinal:
            return 0
        last = self.last
        if last is not None and ordinal >= last.first:
            return self.visible - ordinal
        found = 0
        for segment in self.segments:
            begin = segment.first if segment.first > ordinal else ordinal
            end = segment.first + segment.count
            if end > self.visible:
                end = self.visible
            if begin < end:
                found += end - begin
        return found

    def find(self, ordinal: int) -> int:
        segment = self.last  # those who keep up, then the one who does not
        if segment is None or ordinal < segment.first or ordinal >= segment.first + segment.count:
            segment = self._segment(ordinal)
            if segment is None:
                return 0
        n = ordinal - segment.first
        if segment.damaged and n in segment.damaged:
            return 0
        at = segment.start(n)
        if segment.unverified and (at + 19 > segment.end or segment.holds(n, at, segment.end) == 0):
            segment.review()
            return self.find(ordinal)
        length = ube32(segment.base, at + 1)
        if segment.base[at] != 118 or length < 14 or at + 5 + length > segment.end:
            return 0
        self.base = segment.base
        self.at = at + 19
        self.length = length - 14
        self.message_id = self.stamp_ns = be64(segment.base, at + 5)
        self.attempts = be16(segment.base, at + 13)
        if self.stamped:
            self.stamp_ns = be64(segment.base, at + 19)
            self.at += 8
            self.length -= 8
        return 1

    # -- letting go ----------------------------------------------------------------------------------------------

    def drop_below(self, ordinal: int) -> int:
        """Every channel has finished what lies below: whole segments go. Returns how many."""
        gone = 0
        if ordinal > self.kept_from:
            ordinal = self.kept_from
        while self.segments:
            segment = self.segments[0]
            if segment.first + segment.count > ordinal or segment is self.last:
                break
            del self.segments[0]
            self._forget(segment)
            gone += 1
        return gone

    def _forget(self, segment: ReadySegment) -> None:
        if self._seen is segment:
            self._seen = None
        self.pool.put(segment)
        self.renamed = True

    def drop_all(self) -> None:
        """Nobody is owed anything: every segment goes; ordinals go on."""
        for segment in self.segments:
            self._forget(segment)
        self.segments = []
        self.last = None
        self.visible = self.total

    # -- flushing ------------------------------------------------------------------------------------------------

    def take_flush(self) -> list[ReadySegment]:
        """The segments to be made durable now (their `datasync`, for a thread)."""
        self.unflushed = False
        fresh = [segment for segment in self.segments if not segment.named or segment is self.last]
        for segment in self.segments:
            if segment is not self.last and segment.named and segment.first + segment.count > self._fresh_first:
                fresh.append(segment)
        self._fresh_first = self.total
        for segment in fresh:
            segment.named = True
        return fresh
