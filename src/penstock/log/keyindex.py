"""KeyIndex: message key to physical offsets, in RocketMQ's hash files.

    header (40)   begin time (8) | end time (8) | begin physical (8) | end physical (8) | used slots (4) | count (4),
    from 1 slots × 4     the newest entry of each slot, 0 for none
    entries × 20  key hash (4) | physical offset (8) | seconds since begin time (4) | previous entry in this slot (4)

The hash is Java's of "topic#key", without its sign; entry 0 is never used. Hashes collide: whoever asks compares
topic and key. Derived from the commit log; a file is made when the first key comes.
"""

# mypy: disable-error-code="no-any-return"
from __future__ import annotations

import mmap
import time
from pathlib import Path

import cython

from penstock.clock import Clock
from penstock.disk.files import Files, advise, are_many, is_full, make_pages, take_room, wipe
from penstock.disk.quarantine import make_way, take_back
from penstock.errors import Corrupt, DiskFull, NoDescriptor, StoreError

if cython.compiled:
    from cython.cimports.penstock import words
    from cython.cimports.penstock.log import status
    from cython.cimports.penstock.octets import address, be32, be64, put32, put64, unmap, zero
    from cython.cimports.penstock.wire import layout
else:
    from penstock import words
    from penstock.log import status
    from penstock.octets import address, be32, be64, put32, put64, unmap, zero
    from penstock.wire import layout

_NAME_DIGITS = 17
PIECE_MIN, PIECE_MAX = 64 << 10, 4 << 20


class IndexFile:
    """One file. `count` is the number the next entry gets."""

    def __init__(self, path: Path, slots: int, entries: int, files: Files) -> None:
        self.path = path
        self.slots = slots
        self.entries = entries
        self.files = files
        self.map: mmap.mmap = None  # type: ignore[assignment]
        self.base: memoryview = cython.NULL
        self.count = 1
        self.allocated = 0  # room is taken up to here
        self.flushed = 0  # of `count`, or more
        self.written = 0  # behind the last byte that is no hole, as `cut` found it
        self.dirty = False

    @property
    def size(self) -> int:
        return self._entry_at(self.entries)

    def mark_dirty(self) -> None:
        """It was perhaps not flushed."""
        self.dirty = True

    def take_dirty(self) -> bool:
        """Whether it has something to flush, which is being done."""
        dirty, self.dirty = self.dirty, False
        return bool(dirty)

    def create(self, begin_ms: int, begin_physical: int) -> None:
        """Make the file, with room for the slots: those are written here and there. StoreError, DiskFull."""
        self.files.make_folder(self.path.parent, durable=False)
        fd = self.files.open(self.path, create=True)
        try:
            self.files.grow(fd, self.size)
            self.allocated = min(self.size, self._entry_at(1) + PIECE_MIN)
            self.files.allocate(fd, 0, self.allocated)
            self.map = self.files.map(fd, self.size, scattered=True)
        except BaseException:
            take_back(self.files, self.path)
            raise
        finally:
            self.files.close(fd)
        self.base = address(self.map)
        put64(self.base, layout.INDEX_BEGIN_MS, begin_ms)
        put64(self.base, layout.INDEX_END_MS, begin_ms)
        put64(self.base, layout.INDEX_BEGIN_PHYSICAL, begin_physical)
        put64(self.base, layout.INDEX_END_PHYSICAL, begin_physical)
        put32(self.base, layout.INDEX_COUNT, 1)
        self.dirty = True

    def open(self) -> None:
        """Map the existing file. Corrupt when its size or its count cannot be. It may have holes (a copy, RocketMQ's), and the
        disk no room for them: they are filled before something is written there.
        """
        fd = self.files.open(self.path)
        try:
            size = self.files.size(fd)
            if size != self.size:
                raise Corrupt(self.path, size, f"an index of {self.size} bytes was expected")
            self.map = self.files.map(fd, size, scattered=True)
        finally:
            self.files.close(fd)
        self.base = address(self.map)
        self.count = be32(self.base, layout.INDEX_COUNT)
        if not 1 <= self.count <= self.entries:
            raise Corrupt(self.path, layout.INDEX_COUNT, f"count {self.count}")

    def __del__(self) -> None:
        self.files.released.add(self.map)

    def _entry_at(self, n: int) -> int:
        return layout.INDEX_HEAD_BYTES + self.slots * layout.INDEX_SLOT_BYTES + n * layout.INDEX_ENTRY_BYTES

    def _slot_at(self, hash_: int) -> int:
        return layout.INDEX_HEAD_BYTES + hash_ % self.slots * layout.INDEX_SLOT_BYTES

    def back(self, entries: int) -> None:
        """Take room on the disk for so many more entries, as far as they fit. StoreError, DiskFull."""
        need = self._entry_at(min(self.count + entries, self.entries))
        if need <= self.allocated:
            return
        ahead = max(PIECE_MIN, min(PIECE_MAX, need - self._entry_at(0)))
        target = min(self.size, need + ahead)
        fd = self.files.open(self.path)
        try:
            have = self.allocated
            self.allocated = take_room(self.files, fd, have, need, target)
            if have and are_many((self.count - self.flushed) * layout.INDEX_ENTRY_BYTES, self.allocated - have):
                make_pages(self.files, fd, have, self.allocated)
        finally:
            self.files.close(fd)

    def begin_ms(self) -> int:
        return be64(self.base, layout.INDEX_BEGIN_MS)

    def end_ms(self) -> int:
        return be64(self.base, layout.INDEX_END_MS)

    def begin_physical(self) -> int:
        """The physical offset of the first record in it."""
        return be64(self.base, layout.INDEX_BEGIN_PHYSICAL)

    def end_physical(self) -> int:
        """The physical offset of the last record in it."""
        return be64(self.base, layout.INDEX_END_PHYSICAL)

    def is_sound(self) -> bool:
        """Whether the header says what the first and the last entry say."""
        if self.count <= 1:
            return True
        first = self._entry_at(1)
        last = self._entry_at(self.count - 1)
        if be64(self.base, first + layout.INDEX_PHYSICAL) != self.begin_physical():
            return False
        if be64(self.base, last + layout.INDEX_PHYSICAL) != self.end_physical():
            return False
        return self.begin_ms() >= 0 and self._when(self.count - 1) <= self.end_ms()

    def _when(self, n: int) -> int:
        """When the record of entry n was stored, to the second. The first one's is the begin time; its own seconds count from the
        end of the file before, as RocketMQ writes them.
        """
        begin = be64(self.base, layout.INDEX_BEGIN_MS)
        if n == 1:
            return begin
        return begin + be32(self.base, self._entry_at(n) + layout.INDEX_SECONDS) * words.MS_A_SECOND

    def put(self, hash_: int, physical: int, store_ms: int) -> None:
        """One more entry; there is room."""
        slot = self._slot_at(hash_)
        previous = be32(self.base, slot)
        if previous < 0 or previous >= self.count:
            previous = 0
        begin = be64(self.base, layout.INDEX_BEGIN_MS)
        seconds = 0
        if begin > 0:
            seconds = (store_ms - begin) // words.MS_A_SECOND
            if seconds < 0:
                seconds = 0
            elif seconds > layout.INDEX_SECONDS_MAX:
                seconds = layout.INDEX_SECONDS_MAX
        at = self._entry_at(self.count)
        put32(self.base, at, hash_)
        put64(self.base, at + layout.INDEX_PHYSICAL, physical)
        put32(self.base, at + layout.INDEX_SECONDS, seconds)
        put32(self.base, at + layout.INDEX_PREVIOUS, previous)
        put32(self.base, slot, self.count)
        if self.count == 1:
            put64(self.base, layout.INDEX_BEGIN_MS, store_ms)
            put64(self.base, layout.INDEX_BEGIN_PHYSICAL, physical)
        if previous == 0:
            put32(self.base, layout.INDEX_SLOTS_USED, be32(self.base, layout.INDEX_SLOTS_USED) + 1)
        put64(self.base, layout.INDEX_END_MS, store_ms)
        put64(self.base, layout.INDEX_END_PHYSICAL, physical)
        self.count += 1
        put32(self.base, layout.INDEX_COUNT, self.count)
        self.dirty = True

    def count_below(self, physical: int) -> int:
        """The count it had before the first record at or behind this place."""
        count = self.count
        while count > 1 and be64(self.base, self._entry_at(count - 1) + layout.INDEX_PHYSICAL) >= physical:
            count -= 1
        return count

    def cut(self, count: int, since: int) -> bool:
        """Keep the entries below count, whose last state is durable, with zeros behind them. `since`: the place in the log
        behind the last record that had all of its keys below count.

        False when they are not in the order of the log.
        """
        fd = self.files.open(self.path)
        try:
            ranges = self.files.data_ranges(fd, layout.INDEX_HEAD_BYTES, self._entry_at(0))
            behind = self.files.data_ranges(fd, self._entry_at(count), self.size)
        finally:
            self.files.close(fd)
        self.written = max([end for _, end in behind], default=self._entry_at(count))
        used = 0 if be32(self.base, layout.INDEX_SLOTS_USED) >= 0 else -1
        for begin, end in ranges:
            if used >= 0:
                advise(self.map, mmap.MADV_WILLNEED, begin // words.PAGE_BYTES * words.PAGE_BYTES, end - begin)
                more = self._step_back(begin, end, count, since)
                used = used + more if more >= 0 else -1
        whole = self.count
        if used < 0:
            used = self._link(count)
            if used < 0:
                return False
        self.count = count
        wipe(self.files, self.path, self.map, self._entry_at(count), self.size)
        put32(self.base, layout.INDEX_SLOTS_USED, used)
        put32(self.base, layout.INDEX_COUNT, count)
        self.dirty = True
        if count > 1:
            at = self._entry_at(count - 1)
            before = be64(self.base, at + layout.INDEX_PHYSICAL)
            if count < whole or before != be64(self.base, layout.INDEX_END_PHYSICAL):
                put64(self.base, layout.INDEX_END_PHYSICAL, before)
                put64(self.base, layout.INDEX_END_MS, self._when(count - 1) + words.MS_A_SECOND - 1)
        return True

    def _step_back(self, begin: int, end: int, count: int, since: int) -> int:
        """Let the slots at begin … end lead to entries below count, by the links of those above; returns how many are in
        use, -1 when a link is missing.
        """
        used = 0
        at = begin
        while at < end:
            n = be32(self.base, at)
            if n < 0 or n >= count:
                n = self._follow(n, (at - layout.INDEX_HEAD_BYTES) // layout.INDEX_SLOT_BYTES, count, since)
                if n < 0:
                    return -1
                put32(self.base, at, n)
            if n > 0:
                used += 1
            at += layout.INDEX_SLOT_BYTES
        return used

    def _follow(self, n: int, slot: int, count: int, since: int) -> int:
        """The newest entry below count in the chain of a slot that begins with n; -1 when a link is missing: a power cut
        leaves any of the pages behind the checkpoint out. What a killed process has written is all there.
        """
        while n >= count or n < 0:
            if n < 0 or n >= self.entries or self._entry_at(n + 1) > self.written:
                return -1
            at = self._entry_at(n)
            hash_ = be32(self.base, at)
            previous = be32(self.base, at + layout.INDEX_PREVIOUS)
            if hash_ < 0 or hash_ % self.slots != slot or be64(self.base, at + layout.INDEX_PHYSICAL) < since:
                return -1
            if previous < 0 or previous >= n:
                return -1
            on_two = at // words.PAGE_BYTES != (at + layout.INDEX_ENTRY_BYTES - 1) // words.PAGE_BYTES
            if (on_two or n >= self.count) and self._nothing_at(n + 1):
                return -1  # half of it may be missing
            n = previous
        return n

    def _nothing_at(self, n: int) -> bool:
        if n >= self.entries or self._entry_at(n + 1) > self.written:
            return True
        at = self._entry_at(n)
        return be64(self.base, at) == 0 and be64(self.base, at + words.INT64_BYTES) == 0

    def _link(self, count: int) -> int:
        """Link the entries below count anew, from none; returns how many slots are in use, -1 when the entries are not in
        the order of the log. A start that comes in between does it again: the number of used slots is below 0 until
        the slots are durable.
        """
        fd = self.files.open(self.path)
        try:
            self.files.allocate(fd, 0, self._entry_at(0))
        finally:
            self.files.close(fd)
        put32(self.base, layout.INDEX_SLOTS_USED, -1)
        self.datasync()
        last = (self._entry_at(count) + words.PAGE_BYTES - 1) // words.PAGE_BYTES * words.PAGE_BYTES
        advise(self.map, mmap.MADV_WILLNEED, 0, min(last, self.size))
        zero(self.base, layout.INDEX_HEAD_BYTES, self.slots * layout.INDEX_SLOT_BYTES)
        used = 0
        before = 0
        for n in range(1, count):
            at = self._entry_at(n)
            if be64(self.base, at + layout.INDEX_PHYSICAL) < before:
                return -1
            before = be64(self.base, at + layout.INDEX_PHYSICAL)
            slot = self._slot_at(be32(self.base, at) & layout.INDEX_HASH_MAX)
            previous = be32(self.base, slot)
            if previous == 0:
                used += 1
            if previous != be32(self.base, at + layout.INDEX_PREVIOUS):
                put32(self.base, at + layout.INDEX_PREVIOUS, previous)
            put32(self.base, slot, n)
        self.datasync()
        return used

    def find(self, hash_: int, begin_ms: int, end_ms: int, limit: int) -> list[int]:
        """Physical offsets under this hash with a store time in begin … end, newest first, at most limit."""
        found: list[int] = []
        n = be32(self.base, self._slot_at(hash_))
        if n >= self.count:
            return found
        while n > 0 and len(found) < limit:
            at = self._entry_at(n)
            when = self._when(n)
            if when + words.MS_A_SECOND - 1 < begin_ms:
                break
            if be32(self.base, at) == hash_ and when <= end_ms:
                found.append(be64(self.base, at + layout.INDEX_PHYSICAL))
            previous = be32(self.base, at + layout.INDEX_PREVIOUS)
            if previous >= n:  # links lead to older entries only; anything else would be a ring
                break
            n = previous
        return found

    def datasync(self) -> None:
        """Make the bytes durable; for any thread."""
        self.flushed = self.count
        unmap(self.base, 0, len(self.map))
        fd = self.files.open(self.path)
        try:
            self.files.datasync(fd)
        finally:
            self.files.close(fd)


def is_index_name(name: str) -> bool:
    """Whether RocketMQ, or we, would name an index file so: a moment, to the millisecond."""
    return len(name) == _NAME_DIGITS and name.isascii() and name.isdigit()


def refusal(answer: int) -> StoreError:
    """What `room` has answered, as an error."""
    if answer == status.DISK_FULL:
        return DiskFull("no room for the key index")
    return StoreError("the key index cannot be written: the log says why")


class KeyIndex:
    """The index files, oldest first. `ends_at` is the physical offset of the last record indexed, -1 when there is
    none.
    """

    def __init__(self, folder: Path, slots: int, entries: int, files: Files, clock: Clock) -> None:
        self.folder = folder
        self.slots = slots
        self.entries = entries
        self.files = files
        self.clock = clock
        self.index_files: list[IndexFile] = []
        self.ends_at = -1
        self._current: IndexFile | None = None
        self._spares: list[IndexFile] = []  # made for what comes next, the first of them first

    def load(self) -> list[Path]:
        """Find and map the files; returns those that cannot be believed. What has no name of ours is another's, and stays.
        NoDescriptor: nothing is wrong with a file.
        """
        odd: list[Path] = []
        self.index_files = []
        for name in self.files.names(self.folder):
            if not is_index_name(name):
                continue
            path = self.folder / name
            index_file = IndexFile(path, self.slots, self.entries, self.files)
            try:
                index_file.open()
            except NoDescriptor:
                raise
            except StoreError:
                odd.append(path)
                continue
            self.index_files.append(index_file)
        self._settle()
        return odd

    def _settle(self) -> None:
        self._current = self._newest()
        self.ends_at = -1
        for index_file in self.index_files:
            if index_file.count > 1:
                self.ends_at = index_file.end_physical()

    def _newest(self) -> IndexFile | None:
        count = len(self.index_files)
        return self.index_files[count - 1] if count else None

    def state(self) -> tuple[int, int]:
        """(name of the newest file as a number, its count); (0, 0) when there is none."""
        newest = self._newest()
        return (int(newest.path.name), newest.count) if newest is not None else (0, 0)

    def state_below(self, physical: int) -> tuple[int, int]:
        """The `state` it had before the first record at or behind this place."""
        for n in range(len(self.index_files) - 1, -1, -1):
            one = self.index_files[n]
            count = one.count_below(physical)
            if count > 1:
                return int(one.path.name), count
        return 0, 0

    def is_sound(self) -> bool:
        """Whether every file's header fits its entries."""
        return all(index_file.is_sound() for index_file in self.index_files)

    def ranges(self) -> list[tuple[int, int]]:
        """The physical offsets of the first and the last record in each file, the oldest file first."""
        return [(one.begin_physical(), one.end_physical()) for one in self.index_files if one.count > 1]

    def cut(self, name: int, count: int, since: int) -> list[Path] | None:
        """Go back to a former `state`, which is durable, of the log below `since`; returns files that fell away, None when
        that state is not to be had any more.
        """
        kept = [index_file for index_file in self.index_files if int(index_file.path.name) <= name]
        last = kept[len(kept) - 1] if kept else None
        if name and (last is None or int(last.path.name) != name or not 1 <= count <= last.count):
            return None
        gone = [index_file.path for index_file in self.index_files[len(kept) :]]
        self.index_files = kept
        if last is not None and not last.cut(count, since):
            return None
        self._spares = []
        self._settle()
        return gone

    def holds(self, keys: int) -> bool:
        """Whether so many keys can be put as it is."""
        current = self._current
        return current is not None and bool(current._entry_at(current.count + keys) <= current.allocated)

    def room(self, keys: int) -> int:
        """0 when so many keys can be put; else DISK_FULL (1) or NOT_WRITABLE (2)."""
        current = self._current
        left = keys
        try:
            if current is not None:
                if current._entry_at(current.count + keys) > current.allocated:
                    current.back(keys)
                if current.count + keys <= self.entries:
                    return status.OK
                left -= self.entries - current.count
            needed = (left + self.entries - 2) // (self.entries - 1)  # files; nearly always one
            while len(self._spares) < needed:
                self._spares.append(self._make())
            for n in range(needed):
                self._spares[n].back(keys)
        except StoreError as error:
            return status.DISK_FULL if is_full(self.files, error) else status.NOT_WRITABLE
        return status.OK

    def _make(self) -> IndexFile:
        now_ms = self.clock.now_ms()
        second = time.strftime("%Y%m%d%H%M%S", time.localtime(now_ms / words.MS_A_SECOND))
        name = int(f"{second}{now_ms % words.MS_A_SECOND:03d}")
        begin_ms = begin_physical = 0
        last = self._newest()
        if last is not None:
            name = max(name, int(last.path.name) + 1)
            begin_ms, begin_physical = last.end_ms(), last.end_physical()
        path = self.folder / f"{name:0{_NAME_DIGITS}d}"
        for unused, there in self.files.unused.items():
            if there and unused.parent == self.folder:
                path = unused
                make_way(self.files, self.folder.parent, path)
                break
        index_file = IndexFile(path, self.slots, self.entries, self.files)
        index_file.create(begin_ms, begin_physical)
        self.index_files.append(index_file)
        return index_file

    def put(self, hash_: int, physical: int, store_ms: int) -> None:
        """One more key of the record at physical; `room` said 0."""
        current = self._current
        if current is None or current.count >= current.entries:
            self._current = current = self._spares.pop(0)
        current.put(hash_, physical, store_ms)
        self.ends_at = physical

    def find(self, hash_: int, begin_ms: int, end_ms: int, limit: int) -> list[int]:
        """Physical offsets under this hash, newest first."""
        found: list[int] = []
        for index_file in reversed(self.index_files):
            if len(found) >= limit:
                break
            last_ms = index_file.end_ms() + words.MS_A_SECOND - 1
            if index_file.count > 1 and index_file.begin_ms() <= end_ms and last_ms >= begin_ms:
                found += index_file.find(hash_, begin_ms, end_ms, limit - len(found))
        return found

    def follow(self, physical: int) -> list[Path]:
        """The log now begins at physical: give back the files that lie wholly below it, all but the newest."""
        gone: list[Path] = []
        while len(self.index_files) > 1 and self.index_files[0].end_physical() < physical:
            if self.index_files[0] is self._current:
                break
            gone.append(self.index_files.pop(0).path)
        return gone

    def forget(self) -> list[Path]:
        """Begin from nothing; returns the files there were."""
        gone = [index_file.path for index_file in self.index_files]
        self.index_files = []
        self._current = None
        self._spares = []
        self.ends_at = -1
        return gone

    def close(self) -> None:
        self.index_files = []
        self._current = None
        self._spares = []
