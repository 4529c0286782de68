"""The types of what the kernels take and give: arrays of numbers, and the buffers of Arrow columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

Octets = NDArray[np.uint8]
Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Flags = NDArray[np.bool_]
Records = NDArray[np.void]

ENTRY: Final = np.dtype([("physical", ">i8"), ("size", ">i4"), ("code", ">i8")])
"""An entry of a consume queue; the code is of the tags, or the moment of delivery."""

FIRST_MS: Final = -(1 << 63)
"""No moment is before this: a bit that was flipped in a record makes any number of 64 bits one."""
LAST_MS: Final = (1 << 63) - 1

Bits = Octets
"""A bitmap, the lowest bit first."""
Binary = tuple[Octets | None, Ints, Octets, int]
"""(validity or None, offsets, data, number of nulls)"""
Words = tuple[Octets | None, Ints, Ints, Octets, int]
"""(validity or None, list offsets, item offsets, data, number of nulls)"""
Pairs = tuple[Ints, Ints, Octets, Ints, Octets]
"""(list offsets, name offsets, names, value offsets, values)"""
Spans = tuple[Ints, Ints]
"""(positions, lengths)"""


class DecodedColumns(Protocol):
    """Pass 2: `columns.Columns`, or its twin in numpy."""

    def ints(self, span: int, delta: int) -> Ints:
        """The 32-bit field that stands delta bytes after a span's position."""

    def longs(self, span: int, delta: int) -> Longs:
        """The 64-bit field that stands delta bytes after a span's position."""

    def times(self, span: int, delta: int) -> Longs:
        """A field of milliseconds since 1970 as microseconds, within the years 1 to 9999."""

    def binary(self, span: int) -> Binary:
        """A span's bytes."""

    def words(self, span: int) -> Words:
        """A span split at blanks."""

    def pairs(self, headers: bool) -> Pairs:
        """The properties; headers lack KEYS and TAGS."""

    def intact(self) -> Bits:
        """Does each stored body match its CRC-32?"""

    def spans(self, span: int) -> Spans:
        """Where a span stands in the records; a length of -1 means none."""


class RecordDecoder(Protocol):
    """Passes 0 and 1: `decode.Decoder`, or its twin in numpy."""

    @property
    def owner(self) -> bytes:
        """The records."""

    @property
    def lost(self) -> list[int]:
        """Queue offsets of the batch's rows whose body cannot be inflated."""

    @property
    def count(self) -> int:
        """Rows of the fetch that are wanted."""

    @property
    def rows(self) -> int:
        """Rows of the batch."""

    @property
    def last(self) -> int:
        """Queue offset of the last record walked over."""

    @property
    def broken(self) -> int:
        """Wanted records of the last sweep whose body has another sum; they are left out."""

    @property
    def broken_at(self) -> int:
        """Where the first of them begins."""

    def choose(
        self, topics: tuple[bytes, ...], since: int, before: int, verify: bool, raw: bool, halves: bool = False
    ) -> None:
        """Which records are wanted."""

    def load(self, records: bytes, first: int, until: int) -> int:
        """Take fetched records; how many rows are wanted."""

    def place(self, owner: bytes, starts: Ints, first: int, base: int) -> int:
        """Take records at known places."""

    def sweep(self, owner: bytes, until: int, base: int) -> int:
        """Walk a piece of a segment; where the walk stopped."""

    def only(self, wanted: Callable[[bytes], bool]) -> int:
        """Leave those rows whose properties are wanted; how many they are."""

    def frame(self, row: int, rows_max: int, bytes_max: int, inflate: bool) -> int:
        """Make rows from `row` on the current batch; how many they are."""
