"""The buffers of one Arrow batch, filled block by block: the quick way for columns that are copied as they stand.

A block of rows is framed by the decoder and then copied column by column, while its records are still in the first cache;
a batch goes on over the next window of the log. The buffers lie in one arena, which is used again when nobody holds the
batch in it (`arenas.h`): fresh memory costs more than filling it.

    INT, LONG, TIME   one value a row, byte-swapped
    ONE               the number 1 in every row
    BYTES, TEXT       32-bit offsets, a validity bitmap (all set, then a bit cleared for each null), the bytes

A body that must be inflated is not copied as it stands: the sheet stops before it and says so. Only for compiled builds.
"""

# mypy: disable-error-code="arg-type"
from __future__ import annotations

import cython
import numpy as np

if cython.compiled:
    from cython.cimports.penstock.octets import be32, be64, copy
    from cython.cimports.penstock.spark.kernel.decode import Decoder
else:
    from penstock.octets import be32, be64, copy
    from penstock.spark.kernel.arenas import (
        Arena,
        arena_bytes,
        arena_drop,
        arena_idle,
        arena_new,
        arena_quads,
        arena_size,
        arena_words,
        batch_address,
        batch_column,
        batch_new,
    )
    from penstock.spark.kernel.decode import Decoder

COMPILED = cython.compiled
INT, LONG, TIME, ONE, BYTES, TEXT = 0, 1, 2, 3, 4, 5
_LONG, _TIME, _ONE, _BYTES, _TEXT = 1, 2, 3, 4, 5  # the same for the loops: C variables in the compiled module
_BLOCK = 64  # rows framed before their columns are copied
_WIDTH = 19  # of the decoder's table
_ARENAS = 4  # Spark holds the first batch, the one before and the one it writes
_TIME_MIN, _TIME_MAX = -62135596800000, 253402300799999


class Sheet:
    """Columns `(kind, span, delta)` of at most `rows_max` rows and `bytes_max` stored bytes, at least one row."""

    arenas: list[Arena]
    spare: Arena

    def __init__(
        self, plan: list[tuple[int, int, int]], rows_max: int, bytes_max: int, scans: bool, body: bool
    ) -> None:
        self.rows = 0
        self.used = 0  # stored bytes of the rows
        self.full = False
        self.packed = False  # the next row has a compressed body
        self.foreign = False  # a text goes beyond ASCII
        self.rows_max = rows_max
        self.bytes_max = bytes_max
        self.room = 0  # stored bytes there is room for
        self.scans = scans  # a column stands in the properties
        self.body = body  # the body is wanted
        self.columns = len(plan)
        self.kinds = np.array([kind for kind, _, _ in plan] or [0], np.int32)
        self.spans = np.array([span for _, span, _ in plan] or [0], np.int32)
        self.deltas = np.array([delta for _, _, delta in plan] or [0], np.int32)
        self.places = np.zeros(3 * len(plan) + 1, np.int64)  # of values or offsets, bitmap, bytes
        self.sizes = np.zeros(len(plan) + 1, np.int64)
        self.nulls = np.zeros(len(plan) + 1, np.int64)
        self.copied = False  # the arena is for this sheet alone: batches get copies
        self.table = np.empty(_WIDTH, np.int32)

    def __dealloc__(self) -> None:
        for i in range(_ARENAS):
            arena_drop(self.arenas[i])
        arena_drop(self.spare)

    def begin(self, stored: int) -> None:
        """Start a batch; there will be room for a record of so many bytes."""
        self.room = stored if stored > self.bytes_max else self.bytes_max
        self._take(self._layout())
        self.out = arena_bytes(self.arena)
        self.words = arena_words(self.arena)
        self.quads = arena_quads(self.arena)
        self.rows = 0
        self.used = 0
        self.full = False
        self.packed = False
        self.foreign = False
        for column in range(self.columns):
            self.sizes[column] = 0
            self.nulls[column] = 0
            if self.kinds[column] >= _BYTES:
                for i in range(self.rows_max // 64 + 1):
                    self.quads[(self.places[3 * column + 1] >> 3) + i] = -1
                self.words[self.places[3 * column] >> 2] = 0

    def _layout(self) -> int:
        """Where the buffers stand in an arena, and its size."""
        at = 0
        for column in range(self.columns):
            kind = self.kinds[column]
            self.places[3 * column] = at
            at += ((self.rows_max + 1) * self._width(kind) + 63) // 64 * 64
            if kind >= _BYTES:
                self.places[3 * column + 1] = at
                at += self.rows_max // 512 * 64 + 64
                self.places[3 * column + 2] = at
                at += (self.room + 63) // 64 * 64
        return at

    def _width(self, kind: int) -> int:
        """Bytes of a value, or of an offset."""
        return 8 if kind == _LONG or kind == _TIME else 4  # noqa: SIM109  (a chain of C comparisons)

    def _take(self, size: int) -> None:
        """Find an arena of that size that nobody uses."""
        self.copied = False
        for i in range(_ARENAS):
            if arena_idle(self.arenas[i]) and arena_size(self.arenas[i]) >= size:
                self.arena = self.arenas[i]
                return
        for i in range(_ARENAS):
            if arena_size(self.arenas[i]) < 0 or arena_idle(self.arenas[i]):
                arena_drop(self.arenas[i])
                self.arenas[i] = _made(size)
                self.arena = self.arenas[i]
                return
        self.copied = True
        if arena_size(self.spare) < size:
            arena_drop(self.spare)
            self.spare = _made(size)
        self.arena = self.spare

    def batch(self) -> int:
        """The address that Arrow imports the rows from as a record batch; the sheet must then begin anew."""
        for column in range(self.columns):
            if self.kinds[column] == _TEXT:
                self._look(column)
            elif self.kinds[column] == _ONE:
                for i in range(self.rows):
                    self.words[(self.places[3 * column] >> 2) + i] = 1
        home = self.arena
        if self.copied:
            home = _made(self._moved(self.arena, False))
            self._moved(home, True)
        made = batch_new(home, self.rows, self.columns)
        for column in range(self.columns):
            at = 3 * column
            if self.kinds[column] < _BYTES:
                batch_column(made, column, 0, -1, self.places[at], -1)
            else:
                bits = self.places[at + 1] if self.nulls[column] else -1
                batch_column(made, column, self.nulls[column], bits, self.places[at], self.places[at + 2])
        if self.copied:
            arena_drop(home)
        return batch_address(made)

    def _moved(self, home: Arena, really: bool) -> int:
        """The size of an arena just large enough for the rows; `really`: copy them there, and note the new places."""
        to = arena_bytes(home)
        at = 0
        for column in range(self.columns):
            kind = self.kinds[column]
            for part in range(3 if kind >= _BYTES else 1):
                size = self.rows * self._width(kind)
                if part == 1:
                    size = self.rows // 8 + 1
                elif part == 2:
                    size = self.sizes[column]
                elif kind >= _BYTES:
                    size += 4
                if really:
                    copy(to, at, self.out, self.places[3 * column + part], size)
                    self.places[3 * column + part] = at
                at += (size + 63) // 64 * 64
        return at

    def fill(self, decoder: Decoder, row: int) -> int:
        """Copy rows the decoder holds, from `row` on; how many. Fewer than there are: `full`, `packed` or no room."""
        decoder.reserve(_BLOCK)
        self.records = decoder.records
        self.table = decoder.table
        self.packed = False
        done = 0
        with cython.nogil:
            while not self.full and not self.packed:
                taken = self._block(decoder, row + done)
                if taken <= 0:
                    break
                done += taken
        return done

    def _block(self, decoder: Decoder, row: int) -> int:
        n = 0
        while n < _BLOCK and row + n < decoder.count:
            p = decoder.starts[row + n]
            size = be32(decoder.records, p)
            if self.rows + n >= self.rows_max or (self.rows + n > 0 and self.used + size > self.bytes_max):
                self.full = True
                break
            if size > self.room:
                break
            if self.body and be32(decoder.records, p + 36) & 1:
                self.packed = True
                break
            decoder._frame(p, decoder.size - p, n * _WIDTH)
            if self.scans:
                decoder._scan(n * _WIDTH)
            self.used += size
            n += 1
        for column in range(self.columns):
            self._copy(column, n)
        self.rows += n
        return n

    def _copy(self, column: int, n: int) -> None:
        kind = self.kinds[column]
        if kind >= _BYTES:
            self._spans(column, n)
        elif kind == _TIME:
            self._times(column, n)
        elif kind == _LONG:
            self._longs(column, n)
        elif kind < _LONG:
            self._ints(column, n)

    def _ints(self, column: int, n: int) -> None:
        to = (self.places[3 * column] >> 2) + self.rows
        at = self.spans[column]
        delta = self.deltas[column]
        for i in range(n):
            p = self.table[i * _WIDTH + at] + delta
            self.words[to + i] = be32(self.records, p)

    def _longs(self, column: int, n: int) -> None:
        to = (self.places[3 * column] >> 3) + self.rows
        at = self.spans[column]
        delta = self.deltas[column]
        for i in range(n):
            p = self.table[i * _WIDTH + at] + delta
            self.quads[to + i] = be64(self.records, p)

    def _times(self, column: int, n: int) -> None:
        to = (self.places[3 * column] >> 3) + self.rows
        at = self.spans[column]
        delta = self.deltas[column]
        for i in range(n):
            p = self.table[i * _WIDTH + at] + delta
            ms = be64(self.records, p)
            if ms < _TIME_MIN:
                ms = _TIME_MIN
            elif ms > _TIME_MAX:
                ms = _TIME_MAX
            self.quads[to + i] = ms * 1000

    def _spans(self, column: int, n: int) -> None:
        offsets = (self.places[3 * column] >> 2) + self.rows + 1
        bits = self.places[3 * column + 1]
        to = self.places[3 * column + 2]
        total = self.sizes[column]
        at = self.spans[column]
        for i in range(n):
            length = self.table[i * _WIDTH + at + 1]
            if length < 0:
                row = self.rows + i
                self.nulls[column] += 1
                self.out[bits + (row >> 3)] &= 255 ^ (1 << (row & 7))
            else:
                p = self.table[i * _WIDTH + at]
                copy(self.out, to + total, self.records, p, length)
                total += length
            self.words[offsets + i] = total
        self.sizes[column] = total

    def _look(self, column: int) -> None:
        """Note whether a column's bytes go beyond ASCII."""
        at = self.places[3 * column + 2]
        end = at + self.sizes[column]
        seen = 0
        while at + 8 <= end:
            seen |= self.quads[at >> 3]
            at += 8
        while at < end:
            seen |= self.out[at]
            at += 1
        if seen & -0x7F7F7F7F7F7F7F80:
            self.foreign = True


def _made(size: int) -> Arena:
    arena = arena_new(size)
    if arena_size(arena) < 0:
        raise MemoryError
    return arena
