"""Runs: messages as the records of a disk queue's files, one behind the other in a buffer.

record   length (4) | payload

A queue in memory keeps its messages so, not as objects: what it has too much of is written as it lies, and what comes back
from the files is handed out from where it was read to. Several queues may have runs of one buffer; nothing in it changes.
"""

# mypy: disable-error-code="no-any-return"
from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import cython

if cython.compiled:
    from cython.cimports.penstock import words
    from cython.cimports.penstock.octets import address, blank, copy, put32, ube32
else:
    from penstock import words
    from penstock.octets import address, copy, put32, ube32
    from penstock.octets import blank_array as blank

Buffer = bytes | bytearray


@cython.no_gc  # a queue in memory has millions
@cython.cclass
class Run:
    """Records one behind the other in a buffer: `count` of them, from `at` to `end`. `number` says which of its disk queue the
    first one is; -1: it comes from none.
    """

    def __init__(self, buffer: Buffer, at: int, end: int, count: int) -> None:
        self.buffer = buffer
        self.base = address(buffer)
        self.at = at
        self.end = end
        self.count = count
        self.number = -1

    def stand_for(self, number: int) -> None:
        """The records are these of a disk queue, from this number on."""
        self.number = number

    def grow(self, end: int, count: int) -> int:
        """So many more records follow in the same buffer, up to `end`. Returns 0."""
        self.end = end
        self.count += count
        return 0

    def advance(self) -> int:
        """Go behind the first record; where its length stands."""
        at = self.at
        self.at = at + words.SIZE_BYTES + ube32(self.base, at)
        self.count -= 1
        if self.number >= 0:
            self.number += 1
        return at

    def split(self, count: int) -> Run:
        """The first `count` records as a run of their own; this one begins behind them."""
        first = Run(self.buffer, self.at, self.at, count)
        first.number = self.number
        for _ in range(count):
            self.advance()
        first.end = self.at
        return first

    def octets(self) -> memoryview:
        """The records as they lie."""
        return memoryview(self.buffer)[self.at : self.end]

    def payload(self) -> bytes:
        """What is in the first record."""
        begin = self.at + words.SIZE_BYTES
        return bytes(self.buffer[begin : begin + ube32(self.base, self.at)])

    def payloads(self) -> list[bytes]:
        """What is in the records."""
        found = []
        at = self.at
        for _ in range(self.count):
            begin = at + words.SIZE_BYTES
            at = begin + ube32(self.base, at)
            found.append(bytes(self.buffer[begin:at]))
        return found


def framed(payloads: Sequence[bytes]) -> Run:
    """Payloads as the records of a buffer of their own."""
    total = 0
    for payload in payloads:
        total += words.SIZE_BYTES + len(payload)
    buffer = blank(total)
    to = address(buffer)
    p = 0
    for payload in payloads:
        length = len(payload)
        put32(to, p, length)
        copy(to, p + words.SIZE_BYTES, address(payload), 0, length)
        p += words.SIZE_BYTES + length
    return Run(buffer, 0, total, len(payloads))


def size_of(runs: Sequence[Run]) -> int:
    """How many bytes these have together."""
    total = 0
    for run in runs:
        total += run.end - run.at
    return total


def octets_of(runs: Sequence[Run]) -> list[memoryview]:
    """These, each as it lies."""
    return [run.octets() for run in runs]


_NOTHING = Run(b"", 0, 0, 0)


class RunQueue:
    """Runs, first in, first out: `count` records, `size` bytes with their lengths."""

    def __init__(self) -> None:
        self.count = 0
        self.size = 0
        self.buffer: Buffer = b""  # where the record lies that was taken last
        self.number = -1  # its number in the disk queue
        self._run = self._last = _NOTHING  # the run that is taken from, and the last one
        self._more: deque[Run] = deque()  # those behind the first

    def add(self, buffer: Buffer, at: int, end: int, count: int) -> int:
        """Records between two places of a buffer, one at least. Returns 0."""
        last = self._last
        if last.buffer is buffer and last.end == at and last.number < 0:
            last.grow(end, count)
            self.count += count
            self.size += end - at
            return 0
        return self.add_run(Run(buffer, at, end, count))

    def add_run(self, run: Run) -> int:
        """A run that is the queue's from now on. Returns 0."""
        self._more.append(run)
        self._last = run
        self.count += run.count
        self.size += run.end - run.at
        return 0

    def take(self) -> int:
        """Take the first record; where it begins in `buffer`. -1: there is none."""
        if self.count == 0:
            self._run = self._last = _NOTHING
            self.buffer = b""
            return -1
        while self._run.count == 0:
            self._run = self._more.popleft()
        run = self._run
        self.buffer = run.buffer
        self.number = run.number
        at = run.advance()
        self.count -= 1
        self.size -= run.at - at
        return at

    def take_run(self, limit: int) -> Run:
        """The oldest records as they lie, of one run, at most `limit` and one at least: there are some."""
        while self._run.count == 0:
            self._run = self._more.popleft()
        run = self._run
        if run.count > limit:
            run = run.split(limit)
        else:
            self._run = _NOTHING
        self.count -= run.count
        self.size -= run.end - run.at
        if self.count == 0:
            self.clear()
        return run

    def first(self, limit: int) -> Run | None:
        """The oldest records as they lie, of one run, at most `limit`; they stay here until they are dropped. None: none are."""
        while self._run.count == 0:
            if not self._more:
                return None
            self._run = self._more.popleft()
        run = self._run
        piece = Run(run.buffer, run.at, run.end, run.count)
        piece.number = run.number
        return piece.split(limit) if run.count > limit else piece

    def drop(self, first: Run) -> int:
        """What `first` gave goes. Returns 0."""
        self._run.split(first.count)
        self.count -= first.count
        self.size -= first.end - first.at
        if self.count == 0:
            self.clear()
        return 0

    def runs(self) -> list[Run]:
        """All of it, as it lies."""
        return [run for run in (self._run, *self._more) if run.count]

    def payloads(self) -> list[bytes]:
        """All of it, as objects."""
        return [payload for run in self.runs() for payload in run.payloads()]

    def clear(self) -> None:
        """Drop everything."""
        self._run = self._last = _NOTHING
        self._more.clear()
        self.count = self.size = 0


class RunWriter:
    """Where records are put one by one: a batch is `count` of them, from `begin` to `end` of a buffer. What was placed stays as
    it is; buffers are as large as their use tells. Batches that were kept are placed together: `kept` records, up to `kept_end`.
    """

    def __init__(self) -> None:
        self.buffer: Buffer = b""
        self.base = address(self.buffer)
        self.begin = self.end = self.count = 0
        self.kept_end = self.kept = 0
        self._size = 0  # of the buffer
        self._next = 0  # of the one after it, at least

    def ready(self, size: int) -> int:
        """A batch of so many bytes begins; one that was not placed is dropped, kept or not. Returns 0."""
        if self.begin + size > self._size:
            self._size = max(size, self._next)
            self._next = min(words.RUN_BYTES_MAX, 2 * self._size)
            self.buffer = blank(self._size)
            self.base = address(self.buffer)
            self.begin = 0
        self.end = self.kept_end = self.begin
        self.count = self.kept = 0
        return 0

    def follow(self, size: int) -> bool:
        """A batch of so many bytes begins behind what was kept; one that was neither kept nor placed is dropped. False: this
        buffer has no room for it.
        """
        self.end = self.kept_end
        self.count = self.kept
        return self.end + size <= self._size

    def keep(self) -> int:
        """The batch is whole, and is placed with what follows. How many bytes it has."""
        size = self.end - self.kept_end
        self.kept_end = self.end
        self.kept = self.count
        return size

    def record(self, length: int) -> int:
        """A record whose payload has so many bytes; where they are to be written. ValueError: more than there was said to be."""
        at = self.end
        end = at + words.SIZE_BYTES + length
        if end > self._size:
            raise ValueError("more is put than there was said to be")
        put32(self.base, at, length)
        self.end = end
        self.count += 1
        return at + words.SIZE_BYTES

    def place(self) -> int:
        """The batch is somebody's now, or part of it, and what was kept with it. Returns 0."""
        self.begin = self.kept_end = self.end
        self.count = self.kept = 0
        return 0

    def leave(self) -> int:
        """Keep no room: the next buffer has as much as was used of this one. Returns 0."""
        if self._size:
            self._next = min(words.RUN_BYTES_MAX, self.begin)
        self.buffer = b""
        self._size = self.begin = self.end = self.kept_end = 0
        return 0
