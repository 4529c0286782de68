"""Framing: the records of a disk queue's files, many at a time: their sums, whether those are in order, how many that are read
hold.

record   length (4) | payload
entry    start × 2 + "more follows" (4) | CRC-32 over length and payload (4), as one number of 64 bits
"""

# mypy: disable-error-code="no-any-return"
from __future__ import annotations

from array import array
from collections.abc import Sequence

import cython

if cython.compiled:
    from cython.cimports.penstock import words
    from cython.cimports.penstock.disk.runs import Run
    from cython.cimports.penstock.octets import address, crc32, ube32
else:
    from penstock import words
    from penstock.disk.runs import Run
    from penstock.octets import address, crc32, ube32


def weigh(runs: Sequence[Run], at: int, least: int) -> array[int]:
    """The entries of the sums of one call, whose first record comes to lie at `at` of the file. ValueError when a payload is
    shorter than `least`.
    """
    count = 0
    for run in runs:
        count += run.count
    entries = array("Q", bytes(words.INT64_BYTES * count))
    numbers = entries
    n = 0
    for run in runs:
        p = run.at
        for _ in range(run.count):
            length = ube32(run.base, p)
            if length < least:
                raise ValueError(f"a payload of {length} bytes; {least} is the least")
            length += words.SIZE_BYTES
            n += 1
            start = at
            numbers[n - 1] = (
                (start << words.ENTRY_START_SHIFT)
                | ((1 if n < count else 0) << words.ENTRY_MORE_SHIFT)
                | crc32(run.base, p, length, 0)
            )
            p += length
            at += length
    return entries


def rise(entries: array[int]) -> bool:
    """Whether each entry is of a record behind the one before it."""
    numbers = entries
    n = 1
    while n < len(entries) and numbers[n] >> words.ENTRY_START_SHIFT > numbers[n - 1] >> words.ENTRY_START_SHIFT:
        n += 1
    return n >= len(entries)


def cut(chunk: bytes, chunk_at: int, room: int, at: int, entries: array[int], least: int, most: int) -> Run | None:
    """The records one behind another from `at` of the file on, whose lengths (least … most) and sums hold: up to the first that
    is odd, or that does not lie in the first `room` bytes of the chunk, which begins at `chunk_at`. None: not even one.
    """
    b = address(chunk)
    numbers = entries
    first = at - chunk_at
    begin = first
    count = 0
    for n in range(len(entries)):
        entry = numbers[n]
        start = entry >> words.ENTRY_START_SHIFT
        if start != begin + chunk_at or begin + words.SIZE_BYTES > room:
            break
        length = ube32(b, begin)
        stop = begin + words.SIZE_BYTES + length
        if length < least or length > most or stop > room:
            break
        crc = entry - ((entry >> words.ENTRY_MORE_SHIFT) << words.ENTRY_MORE_SHIFT)
        if crc32(b, begin, stop - begin, 0) != crc:
            break
        begin = stop
        count += 1
    return Run(chunk, first, begin, count) if count else None
