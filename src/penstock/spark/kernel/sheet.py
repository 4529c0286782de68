"""The buffers of one Arrow batch, filled block by block: the quick way for columns that are copied as they stand.

A block of rows is framed by the decoder and then copied column by column, while its records are still in the first cache;
a batch goes on over the next window of the log. The buffers lie in one arena, which is used again when nobody holds the
batch in it (`arenas.h`): fresh memory costs more than filling it.

    INT, LONG, TIME   one value a row, byte-swapped
    ONE               the number 1 in every row
    BYTES, TEXT       32-bit offsets, a validity bitmap (all set, then a bit cleared for each null), the bytes

A body that must be inflated is not copied as it stands: the sheet stops before it and says so. Only for compiled builds.
"""

# mypy: disable-error-code="arg-type, no-any-return"
from __future__ import annotations

import cython
import numpy as np

if cython.compiled:
    from cython.cimports.penstock import words
    from cython.cimports.penstock.octets import be32, be64, copy
    from cython.cimports.penstock.spark.kernel import rowtable
    from cython.cimports.penstock.spark.kernel.decode import Decoder
    from cython.cimports.penstock.wire import layout
else:
    from penstock import words
    from penstock.octets import be32, be64, copy
    from penstock.spark.kernel import rowtable
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
    from penstock.wire import layout

COMPILED = cython.compiled


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
        self.places = np.zeros(rowtable.PLACES * len(plan) + 1, np.int64)  # of values or offsets, bitmap, bytes
        self.sizes = np.zeros(len(plan) + 1, np.int64)
        self.nulls = np.zeros(len(plan) + 1, np.int64)
        self.copied = False  # the arena is for this sheet alone: batches get copies
        self.table = np.empty(rowtable.WIDTH, np.int32)

    def __dealloc__(self) -> None:
        for i in range(rowtable.ARENAS):
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
            if self.kinds[column] >= rowtable.BYTES:
                for i in range(self.rows_max // rowtable.LONG_BITS + 1):
                    self.quads[
                        (self.places[rowtable.PLACES * column + rowtable.BITMAP] >> rowtable.LONG_SHIFT) + i
                    ] = -1
                self.words[self.places[rowtable.PLACES * column] >> rowtable.INT_SHIFT] = 0

    def _layout(self) -> int:
        """Where the buffers stand in an arena, and its size."""
        at = 0
        for column in range(self.columns):
            kind = self.kinds[column]
            self.places[rowtable.PLACES * column] = at
            at += self._aligned((self.rows_max + 1) * self._width(kind))
            if kind >= rowtable.BYTES:
                self.places[rowtable.PLACES * column + rowtable.BITMAP] = at
                at += (self.rows_max // rowtable.BITMAP_ROWS + 1) * rowtable.ALIGN
                self.places[rowtable.PLACES * column + rowtable.DATA] = at
                at += self._aligned(self.room)
        return at

    def _width(self, kind: int) -> int:
        """Bytes of a value, or of an offset."""
        if kind == rowtable.LONG or kind == rowtable.TIME:
            return rowtable.LONG_BYTES
        return rowtable.INT_BYTES

    def _aligned(self, size: int) -> int:
        return (size + rowtable.ALIGN - 1) // rowtable.ALIGN * rowtable.ALIGN

    def _take(self, size: int) -> None:
        """Find an arena of that size that nobody uses."""
        self.copied = False
        for i in range(rowtable.ARENAS):
            if arena_idle(self.arenas[i]) and arena_size(self.arenas[i]) >= size:
                self.arena = self.arenas[i]
                return
        for i in range(rowtable.ARENAS):
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
            if self.kinds[column] == rowtable.TEXT:
                self._look(column)
            elif self.kinds[column] == rowtable.ONE:
                for i in range(self.rows):
                    self.words[(self.places[rowtable.PLACES * column] >> rowtable.INT_SHIFT) + i] = 1
        home = self.arena
        if self.copied:
            home = _made(self._moved(self.arena, False))
            self._moved(home, True)
        made = batch_new(home, self.rows, self.columns)
        for column in range(self.columns):
            at = rowtable.PLACES * column
            if self.kinds[column] < rowtable.BYTES:
                batch_column(made, column, 0, -1, self.places[at], -1)
            else:
                bits = self.places[at + rowtable.BITMAP] if self.nulls[column] else -1
                batch_column(made, column, self.nulls[column], bits, self.places[at], self.places[at + rowtable.DATA])
        if self.copied:
            arena_drop(home)
        return batch_address(made)

    def _moved(self, home: Arena, really: bool) -> int:
        """The size of an arena just large enough for the rows; `really`: copy them there, and note the new places."""
        to = arena_bytes(home)
        at = 0
        for column in range(self.columns):
            kind = self.kinds[column]
            for part in range(rowtable.PLACES if kind >= rowtable.BYTES else 1):
                size = self.rows * self._width(kind)
                if part == rowtable.BITMAP:
                    size = self.rows // words.BYTE_BITS + 1
                elif part == rowtable.DATA:
                    size = self.sizes[column]
                elif kind >= rowtable.BYTES:
                    size += rowtable.INT_BYTES
                if really:
                    copy(to, at, self.out, self.places[rowtable.PLACES * column + part], size)
                    self.places[rowtable.PLACES * column + part] = at
                at += self._aligned(size)
        return at

    def fill(self, decoder: Decoder, row: int) -> int:
        """Copy rows the decoder holds, from `row` on; how many. Fewer than there are: `full`, `packed` or no room."""
        decoder.reserve(rowtable.BLOCK_ROWS)
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
        while n < rowtable.BLOCK_ROWS and row + n < decoder.count:
            p = decoder.starts[row + n]
            size = be32(decoder.records, p)
            if self.rows + n >= self.rows_max or (self.rows + n > 0 and self.used + size > self.bytes_max):
                self.full = True
                break
            if size > self.room:
                break
            if self.body and be32(decoder.records, p + layout.SYS_FLAG) & layout.SYS_COMPRESSED:
                self.packed = True
                break
            decoder._frame(p, decoder.size - p, n * rowtable.WIDTH)
            if self.scans:
                decoder._scan(n * rowtable.WIDTH)
            self.used += size
            n += 1
        for column in range(self.columns):
            self._copy(column, n)
        self.rows += n
        return n

    def _copy(self, column: int, n: int) -> None:
        kind = self.kinds[column]
        if kind >= rowtable.BYTES:
            self._spans(column, n)
        elif kind == rowtable.TIME:
            self._times(column, n)
        elif kind == rowtable.LONG:
            self._longs(column, n)
        elif kind < rowtable.LONG:
            self._ints(column, n)

    def _ints(self, column: int, n: int) -> None:
        to = (self.places[rowtable.PLACES * column] >> rowtable.INT_SHIFT) + self.rows
        at = self.spans[column]
        delta = self.deltas[column]
        for i in range(n):
            p = self.table[i * rowtable.WIDTH + at] + delta
            self.words[to + i] = be32(self.records, p)

    def _longs(self, column: int, n: int) -> None:
        to = (self.places[rowtable.PLACES * column] >> rowtable.LONG_SHIFT) + self.rows
        at = self.spans[column]
        delta = self.deltas[column]
        for i in range(n):
            p = self.table[i * rowtable.WIDTH + at] + delta
            self.quads[to + i] = be64(self.records, p)

    def _times(self, column: int, n: int) -> None:
        to = (self.places[rowtable.PLACES * column] >> rowtable.LONG_SHIFT) + self.rows
        at = self.spans[column]
        delta = self.deltas[column]
        for i in range(n):
            p = self.table[i * rowtable.WIDTH + at] + delta
            ms = be64(self.records, p)
            if ms < rowtable.TIME_MIN:
                ms = rowtable.TIME_MIN
            elif ms > rowtable.TIME_MAX:
                ms = rowtable.TIME_MAX
            self.quads[to + i] = ms * words.US_A_MS

    def _spans(self, column: int, n: int) -> None:
        offsets = (self.places[rowtable.PLACES * column] >> rowtable.INT_SHIFT) + self.rows + 1
        bits = self.places[rowtable.PLACES * column + rowtable.BITMAP]
        to = self.places[rowtable.PLACES * column + rowtable.DATA]
        total = self.sizes[column]
        at = self.spans[column]
        for i in range(n):
            length = self.table[i * rowtable.WIDTH + at + 1]
            if length < 0:
                row = self.rows + i
                self.nulls[column] += 1
                self.out[bits + (row >> words.BYTE_SHIFT)] &= words.BYTE_MASK ^ (1 << (row & words.BIT_MASK))
            else:
                p = self.table[i * rowtable.WIDTH + at]
                copy(self.out, to + total, self.records, p, length)
                total += length
            self.words[offsets + i] = total
        self.sizes[column] = total

    def _look(self, column: int) -> None:
        """Note whether a column's bytes go beyond ASCII."""
        at = self.places[rowtable.PLACES * column + rowtable.DATA]
        end = at + self.sizes[column]
        seen = 0
        while at + rowtable.LONG_BYTES <= end:
            seen |= self.quads[at >> rowtable.LONG_SHIFT]
            at += rowtable.LONG_BYTES
        while at < end:
            seen |= self.out[at]
            at += 1
        if seen & rowtable.NOT_ASCII:
            self.foreign = True


def _made(size: int) -> Arena:
    arena = arena_new(size)
    if arena_size(arena) < 0:
        raise MemoryError
    return arena
