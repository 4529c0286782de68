"""ConsumeQueue: the n-th message of one message queue, as a place in the commit log.

    entry n, at byte n × 20:   physical offset (8) | record size (4) | tags code (8)
    filler:                    0 | 0x7FFFFFFF | 0        an offset that was reserved, lost or deleted

Files of 6,000,000 bytes, named by the byte position of their first entry, which take room on the disk piece by piece;
bytes after the last entry are zero.
Physical offsets grow with the offset, so everything is found by halving. All of it is derived from the commit log.
"""

# mypy: disable-error-code="no-any-return"
from __future__ import annotations

import mmap
from collections.abc import Iterable
from pathlib import Path

import cython

from penstock.disk.files import Files, advise, is_full, last_byte, wipe
from penstock.disk.quarantine import make_way
from penstock.disk.segments import Segment, SegmentedFile, segment_name
from penstock.errors import DiskFull, StoreError
from penstock.log.subscriber import Subscriber
from penstock.wire.names import SCHEDULE_TOPIC

if cython.compiled:
    from cython.cimports.penstock import words
    from cython.cimports.penstock.log import status
    from cython.cimports.penstock.octets import address, be32, be64, java_hash, put32, put64
    from cython.cimports.penstock.wire import layout
else:
    from penstock import words
    from penstock.log import status
    from penstock.octets import address, be32, be64, java_hash, put32, put64
    from penstock.wire import layout

_SKIP_MAX = 64
NEVER = 1 << 62


class TagCodes:
    """The tags codes a subscription asks for."""

    def __init__(self, codes: Iterable[int]) -> None:
        self.codes = tuple(codes)
        self._count = len(self.codes)
        self._array = bytearray(words.INT64_BYTES * (self._count + 1))
        self._at = address(self._array)
        for n, code in enumerate(self.codes):
            put64(self._at, words.INT64_BYTES * n, code)

    def match(self, code: int) -> bool:
        for n in range(self._count):  # noqa: SIM110 a generator would not compile to a plain loop
            if be64(self._at, words.INT64_BYTES * n) == code:
                return True
        return False


class QueueState:
    """What others know and say of a message queue: who waits for it, what of it is hidden, and what is to be flushed."""

    def __init__(self) -> None:
        self.min_offset = 0
        self.dirty_from = NEVER
        self.reserve_at = NEVER
        self.hidden_from = NEVER
        self.shown = 0  # readers saw what is below, whatever level the topic has now
        self.fresh = False
        self.watched = False
        self.arrived = False
        self.in_dirty = False

    # ---- who waits for it, and what is hidden

    def watch(self) -> None:
        """Somebody wants to hear of the next message."""
        self.watched = True

    def unwatch(self) -> None:
        """Nobody waits for it any more."""
        self.watched = False

    def arrive(self) -> bool:
        """A message can be read; whether that is news to those who wait."""
        if self.arrived or not self.watched:
            return False
        self.arrived = True
        return True

    def heard(self) -> None:
        """They have been told."""
        self.arrived = False

    def hide_from(self, offset: int) -> None:
        """Nobody may read from here on."""
        self.hidden_from = offset

    def show(self, end: int) -> None:
        """The level rises: what readers saw, below this offset, they see on."""
        if end > self.shown:
            self.shown = end

    def begin_at(self, offset: int) -> None:
        """What lies below is gone for readers."""
        self.min_offset = offset

    # ---- what is to be flushed

    def mark_dirty(self) -> bool:
        """It has something to flush; False when that was known."""
        known = self.in_dirty
        self.in_dirty = True
        return not known

    def is_dirty(self) -> bool:
        """Whether something was written since `flushed` was last called."""
        return self.dirty_from != NEVER

    def flushed(self) -> None:
        """Forget what was written so far: it is being flushed."""
        self.dirty_from = NEVER
        self.in_dirty = False

    def flush_again(self) -> None:
        """Nothing of it was perhaps flushed, nor its names."""
        self.dirty_from = 0
        self.fresh = True

    def take_fresh(self) -> bool:
        """Whether it has files whose names are not durable; they are being made so."""
        fresh, self.fresh = self.fresh, False
        return bool(fresh)

    def await_reserve(self) -> None:
        """Offsets are being reserved for it: it does not ask again before it has them."""
        self.reserve_at = NEVER


class ConsumeQueue(QueueState):
    """Offsets `min_offset` … `max_offset - 1` of one message queue are there. No file before the first message."""

    def __init__(self, folder: Path | str, topic: bytes, queue_id: int, size: int, files: Files) -> None:
        QueueState.__init__(self)
        self.topic = topic
        self.queue_id = queue_id
        self.file = SegmentedFile(folder, size, files, True)
        self.max_offset = 0
        self.reserved = 0
        self.trouble = ""  # why the last entry could not be written
        self.subscribers: list[Subscriber] | None = None
        self.by_level = topic == SCHEDULE_TOPIC  # its entries have the moment of delivery, not a tags code
        self._files = files
        self._key_bytes = topic + b"#"
        self.topic_at = address(self._key_bytes)
        self.topic_len = len(topic)
        self.key_hash = java_hash(self.topic_at, 0, len(topic) + 1, 0)
        self._segment: Segment | None = None
        self._base: memoryview = cython.NULL
        self._at = 0
        self._limit = 0
        self._durable = self._durable_at = 0

    # ---- writing

    def room(self) -> int:
        """0 when the entry at `max_offset` can be put; else DISK_FULL (1) or NOT_WRITABLE (2)."""
        if self._at < self._limit:
            return status.OK
        return self._turn()

    def ready(self) -> bool:
        """Whether `put` may be called."""
        return self._at < self._limit

    def room_for(self, count: int) -> int:
        """As `room`, for so many entries one behind another."""
        room = self.room()
        if room == status.OK and self._at + count * layout.ENTRY_BYTES > self._limit:
            try:
                while (self.max_offset + count) * layout.ENTRY_BYTES > self.file.end:
                    segment = self._make_next()
                    segment.close()
                    self.file.adopt(segment)
                    self.fresh = True
                begin, end = self.max_offset * layout.ENTRY_BYTES, (self.max_offset + count) * layout.ENTRY_BYTES
                while begin < end:
                    found = self.file.at(begin)
                    assert found is not None
                    found.back(min(found.size, end - found.first), max(0, begin - self.dirty_from))
                    begin = found.first + found.size
            except StoreError as error:
                self.trouble = str(error)
                return status.DISK_FULL if is_full(self.file.files, error) else status.NOT_WRITABLE
        return room

    def visible_end(self) -> int:
        """Readers see the offsets below: those whose number is reserved durably, so that it never means anything
        else, and that are not part of a batch which is still being appended.
        """
        end = self.max_offset if self.max_offset < self.reserved else self.reserved
        return end if end < self.hidden_from else self.hidden_from

    def reserve(self, end: int) -> None:
        """Offsets below end are reserved durably; ask for more when half of those left are used."""
        self.reserved = end
        self.reserve_at = (self.max_offset + end) // 2

    def _make_next(self) -> Segment:
        """The file behind the last one, not yet one of the run; what has its name makes way. StoreError, DiskFull."""
        make_way(self._files, self.file.folder.parents[2], self.file.folder / segment_name(self.file.end))
        return self.file.make_next(durable=False)

    def _turn(self) -> int:
        """Go to the file that takes the entry at max_offset, making it if it is not there, and take room for more."""
        try:
            byte = self.max_offset * layout.ENTRY_BYTES
            if byte >= self.file.end:
                if not self.file.segments:
                    self.file.start_at(byte)
                segment = self._make_next()
                segment.close()  # flushed through a descriptor of the moment: there may be thousands of queues
                self.file.adopt(segment)
                self.fresh = True
                if self.file.first == segment.first and byte > segment.first:
                    segment.back(byte - segment.first)
                    self._fill(segment, 0, byte - segment.first)
                    self.min_offset = self.max_offset
            else:
                found = self.file.at(byte)
                assert found is not None
                segment = found
            segment.back(byte - segment.first + layout.ENTRY_BYTES, max(0, byte - self.dirty_from))
        except StoreError as error:
            self.trouble = str(error)
            return status.DISK_FULL if is_full(self.file.files, error) else status.NOT_WRITABLE
        self._segment = segment
        self._base = segment.base
        self._at = byte - segment.first
        self._limit = min(segment.size, segment.allocated // layout.ENTRY_BYTES * layout.ENTRY_BYTES)
        return status.OK

    def _fill(self, segment: Segment, at: int, end: int) -> None:
        for p in range(at, end, layout.ENTRY_BYTES):
            put64(segment.base, p, 0)
            put32(segment.base, p + layout.ENTRY_SIZE, layout.FILLER_SIZE)
            put64(segment.base, p + layout.ENTRY_TAGS, 0)
        self._touch(segment.first + at)

    def _touch(self, byte: int) -> None:
        if byte < self.dirty_from:
            self.dirty_from = byte

    def put(self, offset: int, physical: int, size: int, code: int) -> None:
        """Write the entry at max_offset, for which `room` said 0."""
        at = self._at
        put64(self._base, at, physical)
        put32(self._base, at + layout.ENTRY_SIZE, size)
        put64(self._base, at + layout.ENTRY_TAGS, code)
        n = offset * layout.ENTRY_BYTES
        if n < self.dirty_from:
            self.dirty_from = n
        self._at = at + layout.ENTRY_BYTES
        self.max_offset = offset + 1

    def put_at(self, offset: int, physical: int, size: int, code: int) -> None:
        """Write the entry of any offset again (recovery); offsets left out before it become fillers. StoreError."""
        if offset < self.max_offset:
            segment = self.file.at(offset * layout.ENTRY_BYTES)
            if segment is None:
                return  # below the first file: deleted with its messages
            at = offset * layout.ENTRY_BYTES - segment.first
            if (
                be64(segment.base, at) == physical
                and be32(segment.base, at + layout.ENTRY_SIZE) == size
                and be64(segment.base, at + layout.ENTRY_TAGS) == code
            ):
                return
            segment.back(at + layout.ENTRY_BYTES)  # a copy of the file may have come with holes
            put64(segment.base, at, physical)
            put32(segment.base, at + layout.ENTRY_SIZE, size)
            put64(segment.base, at + layout.ENTRY_TAGS, code)
            self._touch(offset * layout.ENTRY_BYTES)
            return
        self.fill_to(offset)
        self._demand_room()
        self.put(offset, physical, size, code)

    def _demand_room(self) -> None:
        room = self.room()
        if room == status.DISK_FULL:
            raise DiskFull(f"no room for a consume queue of {self.topic!r}")
        if room:
            raise StoreError(f"cannot write a consume queue of {self.topic!r}: {self.trouble}")

    def fill_to(self, offset: int) -> None:
        """Let `offset` be the next one; those left out become fillers. StoreError."""
        if not self.file.segments:
            self.seek(offset)
            self._demand_room()  # the file is what remembers it
        while self.max_offset < offset:
            self._demand_room()
            self.put(self.max_offset, 0, layout.FILLER_SIZE, 0)

    def seek(self, offset: int) -> None:
        """Let an empty queue begin at offset."""
        self.max_offset = self.min_offset = offset
        self._at = self._limit = 0

    # ---- reading

    def entry(self, offset: int) -> tuple[int, int, int] | None:
        """(physical, size, tags code) of an offset, fillers as they are; None outside the files."""
        segment = self.file.at(offset * layout.ENTRY_BYTES)
        if segment is None or offset >= self.max_offset:
            return None
        at = offset * layout.ENTRY_BYTES - segment.first
        return (
            be64(segment.base, at),
            be32(segment.base, at + layout.ENTRY_SIZE),
            be64(segment.base, at + layout.ENTRY_TAGS),
        )

    def _below(self, offset: int, limit: int, whole: bool) -> bool:
        """Whether the entry is one, and its record begins (with `whole`: ends) no later than limit."""
        segment = self.file.at(offset * layout.ENTRY_BYTES)
        if segment is None:
            return False
        at = offset * layout.ENTRY_BYTES - segment.first
        physical = be64(segment.base, at)
        size = be32(segment.base, at + layout.ENTRY_SIZE)
        if size <= 0 or physical < 0:
            return False
        if size == layout.FILLER_SIZE:
            return True
        if whole:
            return physical + size <= limit
        return physical < limit

    def _search(self, low: int, high: int, limit: int, whole: bool) -> int:
        """The first offset in low … high whose entry is not below limit."""
        while low < high:
            middle = (low + high) // 2
            if self._below(middle, limit, whole):
                low = middle + 1
            else:
                high = middle
        return low

    def durable_end(self, flushed: int) -> int:
        """The first offset whose record does not lie wholly below the flushed position, or the confirmed one: quickest for
        the one of two that is ahead.
        """
        if flushed < self._durable_at:
            if self.max_offset <= self.min_offset:
                return self.max_offset
            return self._search(self.min_offset, self.max_offset, flushed, True)
        self._durable_at = flushed
        if self._durable < self.max_offset:
            if self._durable < self.min_offset:
                self._durable = self.min_offset
            if self._below(self.max_offset - 1, flushed, True):
                self._durable = self.max_offset
            else:
                self._durable = self._search(self._durable, self.max_offset, flushed, True)
        return self._durable

    def first_at_or_after(self, physical: int) -> int:
        """The first offset whose record begins at or after physical, fillers not counted; max_offset when there is
        none.
        """
        if not self.file.segments:
            return self.max_offset
        low = self.file.first // layout.ENTRY_BYTES
        high = self.max_offset
        while low < high:
            middle = (low + high) // 2
            probe = middle
            at = -1
            while probe < high:  # a filler says nothing, nor what cannot be an entry: look at the next real one
                segment = self.file.at(probe * layout.ENTRY_BYTES)
                assert segment is not None
                at = probe * layout.ENTRY_BYTES - segment.first
                size = be32(segment.base, at + layout.ENTRY_SIZE)
                if size != layout.FILLER_SIZE and size > 0 and be64(segment.base, at) >= 0:
                    break
                probe += 1
            if probe < high and be64(segment.base, at) < physical:  # type: ignore[union-attr]
                low = probe + 1
            else:
                high = middle
        # A damaged entry may have sent the search too far: nothing before the place found may lie behind physical.
        probe = low
        skipped = 0
        lowest = self.file.first // layout.ENTRY_BYTES
        while probe > lowest and skipped < _SKIP_MAX:
            probe -= 1
            segment = self.file.at(probe * layout.ENTRY_BYTES)
            assert segment is not None
            at = probe * layout.ENTRY_BYTES - segment.first
            if be32(segment.base, at + layout.ENTRY_SIZE) == layout.FILLER_SIZE or be64(segment.base, at) < physical:
                skipped += 1
            else:
                low = probe
                skipped = 0
        return self._skip_fillers(low)

    def _skip_fillers(self, offset: int) -> int:
        while offset < self.max_offset:
            entry = self.entry(offset)
            if entry is None or entry != (0, layout.FILLER_SIZE, 0):
                break
            offset += 1
        return offset

    # ---- opening, cutting, retention

    def load(self) -> list[Path]:
        """Find the files and the end of the entries; returns files that do not belong."""
        odd = self.file.load()
        first = self.file.first // layout.ENTRY_BYTES
        self.max_offset = self._search(first, self._written() // layout.ENTRY_BYTES, NEVER, False)
        self.min_offset = self._skip_fillers(first)
        self._at = self._limit = 0
        self._durable = self._durable_at = 0
        return odd

    def _written(self) -> int:
        """Behind the last byte that may have been written: a hole that is read takes room on some file systems."""
        for segment in reversed(self.file.segments):
            fd = self._files.open(segment.path)
            try:
                ranges = self._files.data_ranges(fd, 0, segment.size)
            finally:
                self._files.close(fd)
            if ranges:
                last = (ranges[len(ranges) - 1][1] + layout.ENTRY_BYTES - 1) // layout.ENTRY_BYTES * layout.ENTRY_BYTES
                return segment.first + min(segment.size, last)
        return self.file.first

    def survey(self, limit: int) -> bool:
        """Look at every entry instead of halving, and let max_offset be behind the last one of a record below limit.

        False when an entry there cannot be one: of an impossible size, out of order, or behind a hole. What stands
        behind them is `cut`'s to remove.
        """
        self.max_offset = self.file.first // layout.ENTRY_BYTES
        self._at = self._limit = 0
        before = -1
        ended = False
        for n in range(len(self.file.segments)):
            segment = self.file.at(self.file.first + n * self.file.size)
            assert segment is not None
            used = last_byte(self._files, segment.path, segment.map, 0, segment.size)
            advise(segment.map, mmap.MADV_WILLNEED, 0, used)
            at = 0
            while at < used:
                physical = be64(segment.base, at)
                size = be32(segment.base, at + layout.ENTRY_SIZE)
                if size == layout.FILLER_SIZE and physical == 0 and be64(segment.base, at + layout.ENTRY_TAGS) == 0:
                    if not ended:
                        self.max_offset += 1
                elif size == 0 and physical == 0 and be64(segment.base, at + layout.ENTRY_TAGS) == 0:
                    ended = True
                elif (
                    size < layout.RECORD_FIXED_BYTES
                    or physical <= before
                    or (physical < limit and physical + size > limit)
                ):
                    if not ended:
                        return False
                elif physical >= limit:
                    ended = True
                elif ended:
                    return False
                else:
                    before = physical
                    self.max_offset += 1
                at += layout.ENTRY_BYTES
            if used <= segment.size - layout.ENTRY_BYTES:
                ended = True
        return True

    def count_below(self, physical: int) -> int:
        """The offset behind the last entry of a record that begins before physical. All of those must be there, and in
        order; what stands behind them may be anything that belongs to later records, or nothing.
        """
        return self._search(self.file.first // layout.ENTRY_BYTES, self.max_offset, physical, False)

    def cut(self, physical: int) -> list[Segment]:
        """Keep the entries of records that begin before physical, with zeros behind them; returns files that fell away.
        Those before it must be in order (`survey`, `count_below`).

        Later entries must not stay: they would pass for good ones when the log has grown over those positions again.
        """
        self.max_offset = self.count_below(physical)
        self._at = self._limit = 0
        self._durable = self._durable_at = 0
        gone = self.file.drop_from(
            (self.max_offset * layout.ENTRY_BYTES + self.file.size - 1) // self.file.size * self.file.size
        )
        begin = self.max_offset * layout.ENTRY_BYTES
        segment = self.file.at(begin)
        if segment is not None:
            at = begin - segment.first
            if wipe(self._files, segment.path, segment.map, at, segment.size) > at:
                self._touch(begin)
        if self.min_offset > self.max_offset:
            self.min_offset = self.max_offset
        return gone

    def follow(self, physical: int) -> list[Segment]:
        """The log now begins at physical: move min_offset, and give back files with nothing above it."""
        gone: list[Segment] = []
        if self.min_offset < self.max_offset:  # else it may rest, and is not to be mapped for this
            self.min_offset = max(self.min_offset, self.first_at_or_after(physical))
        while (
            len(self.file.segments) > 1 and (self.file.first + self.file.size) <= self.min_offset * layout.ENTRY_BYTES
        ):
            gone.append(self.file.drop_first())
        return gone

    def dirty_segments(self) -> list[Segment]:
        """The files written since `flushed` was last called."""
        return [segment for segment in self.file.segments if segment.first + segment.size > self.dirty_from]

    def retire(self) -> None:
        """Its topic is deleted: all it holds is out of sight, and its files, which remember where it ended, are not held open."""
        self.begin_at(self.max_offset)
        self._segment = None
        self._base = cython.NULL
        self._at = self._limit = 0
        self.file.rest()

    def close(self) -> None:
        self._segment = None
        self._base = cython.NULL
        self._at = self._limit = 0
        self.file.close()
