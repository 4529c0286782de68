"""Overflow: what a queue in memory does not hold. First what its backend on disk has, then what gathers for that.

    queue (memory) ◀── backend (disk) ◀── gathered (memory: what the backend gets next, written together)

A consumer that is behind a little, and catches up, is spared the files: while they hold nothing, more may gather than once they
do. `spill` sees to it that nothing rests there, where a killed process would not find it again.
"""

# mypy: disable-error-code="no-any-return"
from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import cython

from penstock.disk.runs import Buffer
from penstock.errors import StoreError

if cython.compiled:
    from cython.cimports.penstock import words
    from cython.cimports.penstock.disk.runs import Run, RunQueue, size_of
else:
    from penstock import words
    from penstock.disk.runs import Run, RunQueue, size_of

LARGE = 1_000  # a queue of fewer messages is meant to be small: a tenth of it gathers in any case
SMALL_PART, SMALL_BYTES_MAX = 10, 262_144
PART, COUNT_MAX, BYTES_MAX = 2, 4_000, 524_288  # of a large one so many gather, at most: each write costs the same
LAG_TIMES, LAG_BYTES_MAX = 3, 8_388_608  # times as many as a large one holds may gather while the files hold nothing
REFUSED_BYTES = 65_536  # of what a full disk has refused, for each message refused after it before it is tried again


class Backend(Protocol):
    """go-diskqueue's files."""

    depth: int  # what was not taken yet

    @property
    def broken(self) -> bool: ...
    def put(self, runs: list[Run]) -> None: ...
    def take(self, limit: int) -> Run | None: ...
    def finish(self, numbers: Sequence[int]) -> None: ...
    def empty(self) -> None: ...
    def delete(self) -> None: ...


class Overflow:
    """See the module. The queue holds at most `limit` messages. Without a backend (ephemeral) nothing comes here."""

    def __init__(self, limit: int, backend: Backend | None) -> None:
        self.backend = backend
        self.gathered = RunQueue()
        self.behind = 0 if backend is None else backend.depth  # what the backend has not handed out
        self._rests = False  # nothing has left `gathered` since `spill` looked
        self._refused: StoreError | None = None  # what the last write came to
        self._owed = 0  # bytes of it
        self._most = self._lag_max = limit // SMALL_PART
        self._bytes_max = self._lag_bytes_max = SMALL_BYTES_MAX
        if limit >= LARGE:
            self._most, self._bytes_max = min(limit // PART, COUNT_MAX), BYTES_MAX
            self._lag_max, self._lag_bytes_max = limit * LAG_TIMES, LAG_BYTES_MAX

    def holds(self) -> bool:
        """Whether there is anything: then all that comes belongs behind it."""
        return self.behind > 0 or self.gathered.count > 0

    def depth(self) -> int:
        """How many messages there are."""
        return self.gathered.count + (0 if self.backend is None else self.backend.depth)

    def spare(self) -> int:
        """How many more messages gather before the backend gets them."""
        return (self._lag_max if self.behind == 0 else self._most) - self.gathered.count

    def spare_bytes(self) -> int:
        """And how many bytes of them."""
        return (self._lag_bytes_max if self.behind == 0 else self._bytes_max) - self.gathered.size

    def put(self, buffer: Buffer, at: int, end: int, count: int) -> int:
        """Take in `count` records between two places of a buffer, all or none. StoreError when the backend cannot. Returns 0."""
        if count > self.spare() or end - at > self.spare_bytes():
            self._write([*self.gathered.runs(), Run(buffer, at, end, count)])
            return 0
        return self.gathered.add(buffer, at, end, count)

    def keep(self, buffer: Buffer, at: int, end: int, count: int) -> None:
        """The same for what the disk has refused: it is written with what comes next, and is in memory until then."""
        self.gathered.add(buffer, at, end, count)

    def spill(self) -> bool:
        """What gathered before the last call, and rests, goes to the backend. Whether something gathers now. StoreError: it stays
        in memory.
        """
        self._owed = 0
        if self.gathered.count > 0 and self._rests:
            self._write(self.gathered.runs())
        self._rests = self.gathered.count > 0
        return self._rests

    def _write(self, runs: list[Run]) -> None:
        """All that gathered goes to the backend, as part of this. What a disk refuses is not tried again with every message that
        comes: megabytes would be summed and written each time, in everybody's turn. Where something gathers, `spill` tries.
        """
        self._owed -= REFUSED_BYTES
        if self._refused is not None and self._owed > 0 and self.gathered.count > 0:
            raise type(self._refused)(str(self._refused))
        try:
            self.backend.put(runs)  # type: ignore[union-attr]
        except StoreError as error:
            self._refused, self._owed = type(error)(str(error)), size_of(runs)
            raise
        self.look()
        self.clear()

    def refill(self, queue: RunQueue, most: int) -> bool:
        """The oldest messages, at most so many, into the queue, which is empty. Whether there were any."""
        most = max(1, most)
        if self.behind > 0:
            self.look()
        if self.behind > 0:
            taken = self.backend.take(min(most, words.REFILL_MAX))  # type: ignore[union-attr]
            self.look()
            if taken is not None:
                queue.add_run(taken)
                return True
            if self.behind > 0:
                return False
            # damage was all there was
        if self.gathered.count == 0:
            return False
        self._rests = False
        self._owed = 0  # what was refused is another thing by now
        while self.gathered.count > 0 and queue.count < most:
            queue.add_run(self.gathered.take_run(most - queue.count))
        return True

    def look(self) -> None:
        """The backend may hold more, or less, than it did."""
        self.behind = 0 if self.backend is None else self.backend.depth

    def clear(self) -> None:
        """Drop what gathered."""
        self.gathered.clear()
        self._rests = False
        self._refused, self._owed = None, 0

    def empty(self) -> None:
        """Drop everything. StoreError: the backend may have some of it yet."""
        self.clear()
        if self.backend is not None:
            try:
                self.backend.empty()
            finally:
                self.look()

    def give_up(self) -> bool:
        """The queue is deleted: nothing comes here from now on. Whether it had a backend, which is to be deleted."""
        self.clear()
        had, self.backend = self.backend is not None, None
        self.look()
        return had
