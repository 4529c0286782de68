"""Framing: payloads as the records of a disk queue's files, and back, many at a time.

record   length (4) | payload
entry    start × 2 + "more follows" (4) | CRC-32 over length and payload (4), as one number of 64 bits
"""

# mypy: disable-error-code="no-any-return"
from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence

import cython

if cython.compiled:
    from cython.cimports.penstock import words
    from cython.cimports.penstock.octets import address, blank, copy, crc32, put32, ube32
else:
    from penstock import words
    from penstock.octets import address, blank, copy, crc32, put32, ube32


def frame(payloads: Sequence[bytes], at: int) -> tuple[bytes, array[int]]:
    """The records of one call, the first of which starts at `at` of the file, and the entries of their sums."""
    count = len(payloads)
    total = 0
    for payload in payloads:
        total += words.SIZE_BYTES + len(payload)
    data: bytes | bytearray = blank(total) if cython.compiled else bytearray(total)
    swapped = bytearray(words.INT64_BYTES * count)
    to = address(data)
    entries_at = address(swapped)
    p = 0
    for n, payload in enumerate(payloads):
        length = len(payload)
        put32(to, p, length)
        copy(to, p + words.SIZE_BYTES, address(payload), 0, length)
        length += words.SIZE_BYTES
        put32(entries_at, words.INT64_BYTES * n, ((at + p) << 1) | (1 if n + 1 < count else 0))
        put32(entries_at, words.INT64_BYTES * n + words.SIZE_BYTES, crc32(to, p, length, 0))
        p += length
    return bytes(data), _native(swapped)


def weigh(payloads: Sequence[bytes]) -> tuple[int, int]:
    """The bytes of all their records, and of the shortest payload. There is one, at least."""
    total, least = 0, len(payloads[0])
    for payload in payloads:
        length = len(payload)
        total += words.SIZE_BYTES + length
        if length < least:
            least = length
    return total, least


def cut(chunk: bytes, chunk_at: int, room: int, at: int, entries: array[int], least: int, most: int) -> list[bytes]:
    """The payloads of the records one behind another from `at` of the file on, whose lengths (least … most) and sums hold: up
    to the first that is odd, or that does not lie in the first `room` bytes of the chunk, which begins at `chunk_at`.
    """
    payloads: list[bytes] = []
    swapped = entries.tobytes() if sys.byteorder == "big" else _native(bytearray(entries.tobytes())).tobytes()
    b = address(chunk)
    entries_at = address(swapped)
    begin = at - chunk_at
    count = len(entries)
    for n in range(count):
        start = ube32(entries_at, words.INT64_BYTES * n) >> 1
        if start != begin + chunk_at or begin + words.SIZE_BYTES > room:
            break
        length = ube32(b, begin)
        stop = begin + words.SIZE_BYTES + length
        if length < least or length > most or stop > room:
            break
        if crc32(b, begin, stop - begin, 0) != ube32(entries_at, words.INT64_BYTES * n + words.SIZE_BYTES):
            break
        payloads.append(chunk[begin + words.SIZE_BYTES : stop])
        begin = stop
    return payloads


def _native(swapped: bytearray) -> array[int]:
    """Numbers of 64 bits that stand there most significant byte first."""
    numbers = array("Q", bytes(swapped))
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers
