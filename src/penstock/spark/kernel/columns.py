"""Pass 2 of decoding: the rows that a `Decoder` has framed, one column each, without the GIL.

Each method copies and byte-swaps one column into buffers of exactly its size, as Arrow takes them. `span` is a column of
the decoder's table of rows. `words` and `pairs` walk their texts twice: to count, then to copy.
"""

# mypy: disable-error-code="arg-type, no-any-return"
from __future__ import annotations

import cython
import numpy as np

from penstock.spark.kernel.buffers import Binary, Bits, Ints, Longs, Pairs, Spans, Words

if cython.compiled:
    from cython.cimports.penstock import words
    from cython.cimports.penstock.octets import address, be32, be64, copy, crc32, find, ube32
    from cython.cimports.penstock.spark.kernel import rowtable
    from cython.cimports.penstock.spark.kernel.decode import Decoder
    from cython.cimports.penstock.wire import fields, layout
else:
    from penstock import words
    from penstock.octets import address, be32, be64, copy, crc32, find, ube32
    from penstock.spark.kernel import rowtable
    from penstock.spark.kernel.decode import Decoder
    from penstock.wire import fields, layout


class Columns:
    """The columns of the batch that `decoder.frame` cut."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder

    def ints(self, span: int, delta: int) -> Ints:
        """The 32-bit field that stands delta bytes after a span's position."""
        rows = self.decoder.rows
        table = self.decoder.table
        records = self.decoder.records
        result = np.empty(rows, np.int32)
        out = result
        with cython.nogil:
            for i in range(rows):
                p = table[i * rowtable.WIDTH + span] + delta
                out[i] = be32(records, p)
        return result

    def longs(self, span: int, delta: int) -> Longs:
        """The 64-bit field that stands delta bytes after a span's position."""
        rows = self.decoder.rows
        table = self.decoder.table
        records = self.decoder.records
        result = np.empty(rows, np.int64)
        out = result
        with cython.nogil:
            for i in range(rows):
                p = table[i * rowtable.WIDTH + span] + delta
                out[i] = be64(records, p)
        return result

    def times(self, span: int, delta: int) -> Longs:
        """A field of milliseconds since 1970 as microseconds, within the years 1 to 9999: senders write any number."""
        rows = self.decoder.rows
        table = self.decoder.table
        records = self.decoder.records
        result = np.empty(rows, np.int64)
        out = result
        with cython.nogil:
            for i in range(rows):
                p = table[i * rowtable.WIDTH + span] + delta
                ms = be64(records, p)
                if ms < rowtable.TIME_MIN:
                    ms = rowtable.TIME_MIN
                elif ms > rowtable.TIME_MAX:
                    ms = rowtable.TIME_MAX
                out[i] = ms * words.US_A_MS
        return result

    def binary(self, span: int) -> Binary:
        """(validity or None, 32-bit offsets, data, number of nulls) of a span's bytes."""
        rows = self.decoder.rows
        table = self.decoder.table
        records = self.decoder.records
        inflated = self.decoder.inflated
        edges = np.empty(rows + 1, np.int32)
        offsets = edges
        total = 0
        nulls = 0
        with cython.nogil:
            for i in range(rows):
                offsets[i] = total
                n = table[i * rowtable.WIDTH + span + 1]
                if n < 0:
                    nulls += 1
                else:
                    total += n
            offsets[rows] = total
        data = np.empty(total, np.uint8)
        bitmap = np.zeros((rows + words.BIT_MASK) // words.BYTE_BITS if nulls else 0, np.uint8)
        valid = bitmap
        to = address(data)
        with cython.nogil:
            for i in range(rows):
                at = i * rowtable.WIDTH + span
                n = table[at + 1]
                if n < 0:
                    continue
                if nulls > 0:
                    valid[i >> words.BYTE_SHIFT] |= 1 << (i & words.BIT_MASK)
                p = table[at]
                o = offsets[i]
                if p >= 0:
                    copy(to, o, records, p, n)
                else:
                    copy(to, o, inflated, -1 - p, n)
        return (bitmap if nulls else None), edges, data, nulls

    def words(self, span: int) -> Words:
        """(validity or None, list offsets, item offsets, data, number of nulls) of a span split at blanks."""
        rows = self.decoder.rows
        table = self.decoder.table
        records = self.decoder.records
        edges = np.empty(rows + 1, np.int32)
        offsets = edges
        count = 0
        total = 0
        nulls = 0
        with cython.nogil:
            for i in range(rows):
                offsets[i] = count
                at = i * rowtable.WIDTH + span
                n = table[at + 1]
                if n < 0:
                    nulls += 1
                    continue
                p = table[at]
                end = p + n
                while p < end:
                    stop = find(records, p, end, words.SPACE)
                    if stop < 0:
                        stop = end
                    if stop > p:
                        count += 1
                        total += stop - p
                    p = stop + 1
            offsets[rows] = count
        items = np.empty(count + 1, np.int32)
        inner = items
        data = np.empty(total, np.uint8)
        to = address(data)
        bitmap = np.zeros((rows + words.BIT_MASK) // words.BYTE_BITS if nulls else 0, np.uint8)
        valid = bitmap
        w = 0
        o = 0
        with cython.nogil:
            for i in range(rows):
                at = i * rowtable.WIDTH + span
                n = table[at + 1]
                if n < 0:
                    continue
                if nulls > 0:
                    valid[i >> words.BYTE_SHIFT] |= 1 << (i & words.BIT_MASK)
                p = table[at]
                end = p + n
                while p < end:
                    stop = find(records, p, end, words.SPACE)
                    if stop < 0:
                        stop = end
                    if stop > p:
                        inner[w] = o
                        copy(to, o, records, p, stop - p)
                        w += 1
                        o += stop - p
                    p = stop + 1
            inner[w] = o
        return (bitmap if nulls else None), edges, items, data, nulls

    def pairs(self, headers: bool) -> Pairs:
        """(list offsets, name offsets, names, value offsets, values) of the properties; headers lack KEYS and TAGS."""
        rows = self.decoder.rows
        table = self.decoder.table
        records = self.decoder.records
        edges = np.empty(rows + 1, np.int32)
        offsets = edges
        pairs = 0
        names = 0
        values = 0
        with cython.nogil:
            for i in range(rows):
                offsets[i] = pairs
                at = i * rowtable.WIDTH + rowtable.PROPERTIES
                p = table[at]
                end = p + table[at + 1]
                while p < end:
                    stop = find(records, p, end, words.PROPERTY_END)
                    if stop < 0:
                        stop = end
                    cut = find(records, p, stop, words.NAME_END)
                    if cut > p and cut + 1 < stop and not (headers and self._hidden(p, cut - p)):
                        pairs += 1
                        names += cut - p
                        values += stop - cut - 1
                    p = stop + 1
            offsets[rows] = pairs
        name_edges = np.empty(pairs + 1, np.int32)
        name_at = name_edges
        value_edges = np.empty(pairs + 1, np.int32)
        value_at = value_edges
        name_data = np.empty(names, np.uint8)
        name_to = address(name_data)
        value_data = np.empty(values, np.uint8)
        value_to = address(value_data)
        n = 0
        names = 0
        values = 0
        with cython.nogil:
            for i in range(rows):
                at = i * rowtable.WIDTH + rowtable.PROPERTIES
                p = table[at]
                end = p + table[at + 1]
                while p < end:
                    stop = find(records, p, end, words.PROPERTY_END)
                    if stop < 0:
                        stop = end
                    cut = find(records, p, stop, words.NAME_END)
                    if cut > p and cut + 1 < stop and not (headers and self._hidden(p, cut - p)):
                        name_at[n] = names
                        value_at[n] = values
                        copy(name_to, names, records, p, cut - p)
                        copy(value_to, values, records, cut + 1, stop - cut - 1)
                        names += cut - p
                        values += stop - cut - 1
                        n += 1
                    p = stop + 1
            name_at[n] = names
            value_at[n] = values
        return edges, name_edges, name_data, value_edges, value_data

    def _hidden(self, p: int, n: int) -> bool:
        records = self.decoder.records
        if n != fields.KEYS_BYTES:
            return False
        return be32(records, p) == fields.KEYS_WORD or be32(records, p) == fields.TAGS_WORD

    def intact(self) -> Bits:
        """A bitmap: does the stored body match its CRC-32?"""
        rows = self.decoder.rows
        table = self.decoder.table
        records = self.decoder.records
        bitmap = np.zeros((rows + words.BIT_MASK) // words.BYTE_BITS, np.uint8)
        bits = bitmap
        with cython.nogil:
            for i in range(rows):
                at = i * rowtable.WIDTH
                if (crc32(records, table[at + rowtable.BODY], table[at + rowtable.BODY + 1], 0) & layout.CRC_MASK) == (
                    ube32(records, table[at] + layout.BODY_CRC)
                ):
                    bits[i >> words.BYTE_SHIFT] |= 1 << (i & words.BIT_MASK)
        return bitmap

    def spans(self, span: int) -> Spans:
        """(positions, lengths) in the records, for what is done in Python: a length of -1 means none."""
        rows = self.decoder.rows
        table = self.decoder.table
        where = np.empty(rows, np.int32)
        positions = where
        sizes = np.empty(rows, np.int32)
        lengths = sizes
        for i in range(rows):
            positions[i] = table[i * rowtable.WIDTH + span]
            lengths[i] = table[i * rowtable.WIDTH + span + 1]
        return where, sizes
