"""Gathering: records of one ready segment that the system does not have yet, handed over in one write.

Writing behind what a segment has ever held means a new page for every few messages, and faulting one in through the mapping
costs more than `pwrite` of the same bytes. Where pages are there already (a segment that is used again, or one that hardly
holds anything) records go through the mapping at once.

The sums of gathered records stand in their file before the records do: whoever is killed in between has left sums without
records, as a torn tail. Nobody is answered, and nobody reads, before `settle`.
"""

from __future__ import annotations

import cython

from penstock.disk.readysegment import SMALL

if cython.compiled:
    from cython.cimports.penstock.disk import readylayout as layout
    from cython.cimports.penstock.disk.readysegment import ReadySegment
    from cython.cimports.penstock.octets import address, copy, fence, put8, ube32
else:
    from penstock.disk import readylayout as layout
    from penstock.disk.readysegment import ReadySegment
    from penstock.octets import address, copy, fence, put8, ube32

GATHER_BYTES = 256 << 10
WRITE_BYTES_MIN = 4 << 10  # less is a page at most: many queues in turn would make a call for every message


class Gathering:
    """One for all ready queues of a broker: it holds records of the segment that was written to last."""

    def __init__(self) -> None:
        self.buffer = bytearray(GATHER_BYTES)
        self.base = address(self.buffer)
        self.room = GATHER_BYTES
        self.write_bytes_min = WRITE_BYTES_MIN
        self.begins = SMALL  # before this byte of a segment pages are faulted in alone, which costs little
        self.segment: ReadySegment | None = None
        self.start = 0  # where in the segment the buffer's first byte belongs
        self.scattering = False  # the last run was broken off early: many queues in turn, gathering is of no use
        self._ran: ReadySegment | None = None  # while scattering: who was written to last

    def take(self, segment: ReadySegment, length: int) -> bool:
        """Whether records of so many bytes together are gathered: the first then goes to base[segment.end - start]. If not,
        they may go through the mapping: nothing before them is outstanding.
        """
        if segment.end < self.begins or segment.end < segment.warm or length >= self.room:
            self.settle_of(segment)
            return False
        if self.segment is not segment or segment.end - self.start + length >= self.room:
            if self.segment is not None:
                self.scattering = self.segment.end - self.start < self.write_bytes_min
                self.settle()
            if self.scattering and self._ran is not segment:
                self._ran = segment
                return False
            self.scattering = False
            self._ran = None
            self.segment = segment
            self.start = segment.end
        return True

    def settle_of(self, segment: ReadySegment) -> int:
        """`settle`, if records of this one are outstanding. Returns 0."""
        if self.segment is segment:
            self.settle()
        return 0

    def settle(self) -> int:
        """Hand over what was gathered, and a zero behind it, where the segment ends for those who go by lengths. What is
        little, and what the system refuses, goes through the mapping, whose room is taken. Returns 0.
        """
        segment = self.segment
        if segment is None:
            return 0
        size = segment.end - self.start
        if size < self.write_bytes_min or not self._write(segment, size):
            self._lay(segment, size)
        self.segment = None
        return 0

    def _write(self, segment: ReadySegment, size: int) -> bool:
        if segment.end < segment.allocated:
            put8(self.base, size, 0)
            size += 1
        try:
            segment.files.write(segment.fd, self.start, memoryview(self.buffer)[:size])
        except Exception as error:
            segment.files.refusals.goes_on(error)
            return False
        return True

    def _lay(self, segment: ReadySegment, size: int) -> int:
        """One record behind the other, as a write would: a kill leaves no later one without those before it. Returns 0."""
        if segment.end < segment.allocated:
            put8(segment.base, segment.end, 0)
        p = 0
        while p < size:
            length = ube32(self.base, p + layout.LENGTH) + layout.ID
            copy(segment.base, self.start + p, self.base, p, length)
            fence()
            p += length
        return 0

    def drop(self, segment: ReadySegment) -> None:
        """Forget this one, and what is outstanding of it, as a killed process does."""
        if self.segment is segment:
            self.segment = None
        if self._ran is segment:
            self._ran = None
