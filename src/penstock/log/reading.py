"""ReadResult: what a read of a message queue found, as places in the log, and how to copy them out."""

# mypy: disable-error-code="no-any-return"
from __future__ import annotations

import cython

from penstock.log.commitlog import CommitLog
from penstock.octets import Writable

if cython.compiled:
    from cython.cimports.cpython.bytes import PyBytes_FromStringAndSize
    from cython.cimports.penstock.log import status
    from cython.cimports.penstock.octets import address, be64, copy, put64
else:
    from penstock.log import status
    from penstock.octets import address, be64, copy, put64

_RUNS_FIRST = 64  # there is room for so many from the start


class ReadResult:
    """Filled by `LogStore.read`, used again for the next one. Copy the bytes out before the store is used otherwise.

    `runs` are pieces of the log that lie together: (physical offset, length), each within one segment.
    """

    def __init__(self) -> None:
        self.next_offset = self.min_offset = self.max_offset = 0
        self.count = 0
        self.bytes_ = 0
        self.run_count = 0
        self.log: CommitLog = None  # type: ignore[assignment]
        self._limit = _RUNS_FIRST
        self._runs = bytearray(status.RUN_BYTES * _RUNS_FIRST)
        self._at = address(self._runs)

    def begin(self, log: CommitLog) -> None:
        """Nothing was found yet, in this log."""
        self.log = log
        self.next_offset = self.min_offset = self.max_offset = self.count = self.bytes_ = 0
        self.run_count = 0

    def add(self, physical: int, size: int) -> None:
        """One more record."""
        self.count += 1
        self.bytes_ += size
        if self.run_count > 0:
            last = self.run_count * status.RUN_BYTES - status.RUN_BYTES
            if (
                be64(self._at, last) + be64(self._at, last + status.RUN_LENGTH) == physical
                and physical % self.log.file.size != 0
            ):
                put64(self._at, last + status.RUN_LENGTH, be64(self._at, last + status.RUN_LENGTH) + size)
                return
        if self.run_count == self._limit:
            self._grow()
        put64(self._at, self.run_count * status.RUN_BYTES, physical)
        put64(self._at, self.run_count * status.RUN_BYTES + status.RUN_LENGTH, size)
        self.run_count += 1

    def narrow(self, kept: list[tuple[int, int]]) -> None:
        """Leave only these of the records: (physical offset, length). The offsets stay as they are."""
        self.count = self.bytes_ = self.run_count = 0
        for physical, size in kept:
            self.add(physical, size)

    def _grow(self) -> None:
        self._limit *= 2
        self._runs = bytearray(self._runs) + bytes(len(self._runs))
        self._at = address(self._runs)

    def place(self) -> int:
        """Where in the log the last record ends; there must be one."""
        last = self.run_count * status.RUN_BYTES - status.RUN_BYTES
        return be64(self._at, last) + be64(self._at, last + status.RUN_LENGTH)

    @property
    def runs(self) -> list[tuple[int, int]]:
        """(physical offset, length) of each piece."""
        places = range(0, self.run_count * status.RUN_BYTES, status.RUN_BYTES)
        return [(be64(self._at, at), be64(self._at, at + status.RUN_LENGTH)) for at in places]

    def copy_out(self, to: Writable, pos: int) -> int:
        """Copy the records, one behind another, to to[pos:], which has `bytes_` bytes of room; returns the position
        after.
        """
        for n in range(self.run_count):
            physical = be64(self._at, status.RUN_BYTES * n)
            size = be64(self._at, status.RUN_BYTES * n + status.RUN_LENGTH)
            segment = self.log.file.at(physical)
            copy(to, pos, segment.base, physical - segment.first, size)  # type: ignore[union-attr]
            pos += size
        return pos

    def body(self) -> bytes:
        """The records, one behind another."""
        if cython.compiled:
            out = PyBytes_FromStringAndSize(cython.NULL, self.bytes_)
            self.copy_out(address(out), 0)
            return out
        buffer = bytearray(self.bytes_)
        self.copy_out(memoryview(buffer), 0)
        return bytes(buffer)
