"""Gathering: records of one ready segment that the system does not have yet, handed over in one write.

Writing behind what a segment has ever held means a new page for every few messages, and faulting one in through the mapping
costs more than `pwrite` of the same bytes. Where pages are there already (a segment that is used again, or one that hardly
holds anything) records go through the mapping at once.

The sums of gathered records stand in their file before the records do: whoever is killed in between has left sums without
records, as a torn tail. Nobody is answered, and nobody reads, before `settle`.
"""

from __future__ import annotations

import logging

import cython

from penstock.disk.readysegment import SMALL

if cython.compiled:
    from cython.cimports.penstock.disk.readysegment import ReadySegment
    from cython.cimports.penstock.octets import address, copy, put8
else:
    from penstock.disk.readysegment import ReadySegment
    from penstock.octets import address, copy, put8

log = logging.getLogger("penstock.disk")

GATHER_BYTES = 256 << 10


class Gathering:
    """One for all ready queues of a broker: it holds records of the segment that was written to last."""

    def __init__(self) -> None:
        self.buffer = bytearray(GATHER_BYTES)
        self.base = address(self.buffer)
        self.room = GATHER_BYTES
        self.begins = SMALL  # before this byte of a segment pages are faulted in alone, which costs little
        self.segment: ReadySegment | None = None
        self.start = 0  # where in the segment the buffer's first byte belongs

    def take(self, segment: ReadySegment, length: int) -> bool:
        """Whether records of so many bytes together are gathered: the first then goes to base[segment.end - start]. If not,
        they may go through the mapping: nothing before them is outstanding.
        """
        if segment.end < self.begins or segment.end < segment.warm or length >= self.room:
            self.settle_of(segment)
            return False
        if self.segment is not segment or segment.end - self.start + length >= self.room:
            self.settle()
            self.segment = segment
            self.start = segment.end
        return True

    def settle_of(self, segment: ReadySegment) -> int:
        """`settle`, if records of this one are outstanding. Returns 0."""
        if self.segment is segment:
            self.settle()
        return 0

    def settle(self) -> int:
        """Hand over what was gathered, and a zero behind it, where the segment ends for those who go by lengths. What the
        system refuses goes through the mapping, whose room is taken. Returns 0.
        """
        segment = self.segment
        if segment is None:
            return 0
        size = segment.end - self.start
        if size > 0:
            if segment.end < segment.allocated:
                put8(self.base, size, 0)
                size += 1
            try:
                segment.files.write(segment.fd, self.start, memoryview(self.buffer)[:size])
            except Exception as error:
                log.error("a ready queue's pwrite failed, it goes on through the mapping error=%s", error)
                copy(segment.base, self.start, self.base, 0, size)
        self.segment = None
        return 0

    def drop(self, segment: ReadySegment) -> None:
        """Forget what is outstanding of this one, as a killed process does."""
        if self.segment is segment:
            self.segment = None
