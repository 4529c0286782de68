"""The decode kernel's twin in numpy and Arrow, for builds without compiled modules: the same methods, the same buffers.

`decode` says what each method returns. The walk is a Python loop, everything after it is vectorised: fixed
fields through a matrix of indices, bytes through Arrow's `take` over a binary array laid across the whole fetch.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct

import numpy as np
import pyarrow as pa

from penstock.errors import Corrupt
from penstock.octets import crc32
from penstock.spark.kernel import rowtable
from penstock.spark.kernel.buffers import (
    FIRST_MS,
    LAST_MS,
    Binary,
    Bits,
    Flags,
    Ints,
    Longs,
    Octets,
    Pairs,
    Spans,
    Words,
)
from penstock.spark.kernel.inflate import inflate as inflate_body
from penstock.wire import layout, names

_HEAD = Struct(">iI")  # size, magic
_PLACE = Struct(">q")
_KEYS, _TAGS, _UNIQUE = (name.encode() for name in (names.KEYS, names.TAGS, names.UNIQUE_KEY))
_NAMED = ((rowtable.KEYS, _KEYS), (rowtable.TAGS, _TAGS), (rowtable.UNIQUE, _UNIQUE))
_MAGICS = (layout.MAGIC_V1, layout.MAGIC_V2)


class Decoder:
    """Reads one fetch at a time; `tags` and `keys`, when given, are what a row must carry (any of them)."""

    def __init__(self, tags: tuple[bytes, ...] = (), keys: tuple[bytes, ...] = ()) -> None:
        self.tags, self.keys = frozenset(tags), frozenset(keys)
        self.owner, self.extra = b"", b""
        self.lost: list[int] = []
        self.count = self.rows = 0
        self.last = -1
        self.topics: frozenset[bytes] = frozenset()
        self.since, self.before = FIRST_MS, LAST_MS
        self.verify = self.raw = self.halves = False
        self.broken, self.broken_at = 0, -1
        self.bytes: Octets = np.empty(0, np.uint8)
        self.fetched: Longs = np.empty((0, rowtable.WIDTH), np.int64)
        self.table = self.fetched

    def choose(
        self, topics: tuple[bytes, ...], since: int, before: int, verify: bool, raw: bool, halves: bool = False
    ) -> None:
        """Only records of these topics (none: all), stored at `since` or later and before `before`, in ms."""
        self.topics, self.since, self.before = frozenset(topics), since, before
        self.verify, self.raw, self.halves = verify, raw, halves

    # -- pass 0

    def load(self, records: bytes, first: int, until: int) -> int:
        """How many rows are wanted: queue offset in [first, until), a wanted tag and key.

        `Corrupt` if a record is not whole.
        """
        self.owner, self.bytes = records, np.frombuffer(records, np.uint8)
        starts = self._walk(records)
        table = self._whole(starts)
        self._scan(table)
        offsets = self._field(table[:, rowtable.START] + layout.QUEUE_OFFSET, 8)
        self.last = int(offsets[-1]) if len(offsets) else -1
        return self._keep(table[(offsets >= first) & (offsets < until)])

    def place(self, owner: bytes, starts: Ints, first: int, base: int) -> int:
        """As `load`, for records at known places of a piece of a segment that begins at physical offset `base`."""
        self.owner, self.bytes = owner, np.frombuffer(owner, np.uint8)
        self.broken, self.broken_at = 0, -1
        table = self._whole(starts.astype(np.int64))
        self._scan(table)
        at = table[:, rowtable.START]
        wrong = self._field(at + layout.QUEUE_OFFSET, 8) != first + np.arange(len(at))
        wrong |= self._field(at + layout.PHYSICAL, 8) != base + at
        if wrong.any():
            i = int(np.flatnonzero(wrong)[0])
            raise Corrupt("commit log", base + int(at[i]), f"not the record of offset {first + i}")
        self.last = first + len(at) - 1
        return self._keep(table)

    def sweep(self, owner: bytes, until: int, base: int) -> int:
        """Walk a piece of a segment, from its beginning at physical offset `base`: where the walk stopped."""
        self.owner, self.bytes = owner, np.frombuffer(owner, np.uint8)
        self.broken, self.broken_at = 0, -1
        starts, p, size = [], 0, len(owner)
        while p < until and size - p >= layout.RECORD_FIXED_BYTES:
            total, magic = _HEAD.unpack_from(owner, p)
            if total < layout.RECORD_FIXED_BYTES or total > size - p or magic not in _MAGICS:
                break
            if _PLACE.unpack_from(owner, p + layout.PHYSICAL)[0] != base + p:
                break
            starts.append(p)
            p += total
        table, bad = self._frame(np.array(starts, np.int64))
        if bad.any():
            p = starts[int(np.flatnonzero(bad)[0])]
            table = table[: int(np.flatnonzero(bad)[0])]
        if not self.halves:
            table = table[self._field(table[:, rowtable.START] + layout.SYS_FLAG, 4) & layout.SYS_HALF == 0]
        self._scan(table)
        self._keep(table)
        return p

    def only(self, wanted: Callable[[bytes], bool]) -> int:
        """Of the rows that pass 0 found leave those whose properties are wanted; how many they are."""
        texts = self._texts(self.fetched, rowtable.PROPERTIES)
        self.fetched = self.fetched[[wanted(text or b"") for text in texts]]
        self.count = len(self.fetched)
        return self.count

    def _keep(self, table: Longs) -> int:
        if len(table):
            stored = self._field(table[:, rowtable.STORE] - layout.MS_BYTES, 8)
            table = table[(stored >= self.since) & (stored < self.before)]
        if self.topics:
            table = table[[text in self.topics for text in self._texts(table, rowtable.TOPIC)]]
        if self.tags:
            table = table[[text in self.tags for text in self._texts(table, rowtable.TAGS)]]
        if self.keys:
            table = table[
                [bool(self.keys.intersection((text or b"").split(b" "))) for text in self._texts(table, rowtable.KEYS)]
            ]
        if self.verify and len(table):
            holds = self._sums_match(table)
            self.broken = int((~holds).sum())
            self.broken_at = int(table[~holds][0, rowtable.START]) if self.broken else -1
            table = table[holds]
        self.fetched, self.count, self.rows = table, len(table), 0
        return self.count

    def _walk(self, records: bytes) -> Longs:
        starts, p, size = [], 0, len(records)
        while p < size:
            total, magic = _HEAD.unpack_from(records, p) if size - p >= layout.RECORD_FIXED_BYTES else (0, 0)
            if total < layout.RECORD_FIXED_BYTES or total > size - p or magic not in _MAGICS:
                raise Corrupt("fetched records", p, "not a whole record")
            starts.append(p)
            p += total
        return np.array(starts, np.int64)

    def _field(self, positions: Longs, width: int) -> Longs:
        if not len(positions):
            return np.empty(0, np.int64)
        index = np.minimum(positions[:, None] + np.arange(width), len(self.bytes) - 1)
        found: Longs = self.bytes[index].view(f">i{width}" if width > 1 else np.uint8)[:, 0].astype(np.int64)
        return found

    def _whole(self, starts: Longs) -> Longs:
        table, bad = self._frame(starts)
        if bad.any():
            raise Corrupt("fetched records", int(starts[bad][0]), "not a whole record")
        return table

    def _sums_match(self, table: Longs) -> Flags:
        sums = self._field(table[:, rowtable.START] + layout.BODY_CRC, 4) & 0xFFFFFFFF
        found = [
            crc32(self.owner, p, n, 0) & layout.CRC_MASK
            for p, n in table[:, rowtable.BODY : rowtable.BODY + 2].tolist()
        ]
        holds: Flags = (np.array(found, np.int64) == sums) | (table[:, rowtable.BODY + 1] == 0)
        return holds

    def _frame(self, starts: Longs) -> tuple[Longs, Flags]:
        """The table of these records, and which of them are not whole."""
        table = np.full((len(starts), rowtable.WIDTH), -1, np.int64)
        ends = starts + self._field(starts, 4)
        flags = self._field(starts + layout.SYS_FLAG, 4)
        wide = self._field(starts + layout.MAGIC, 4) & 0xFFFFFFFF == layout.MAGIC_V2
        born = starts + layout.BORN_HOST
        born_size = np.where(flags & layout.SYS_BORN_IPV6, layout.HOST_V6_BYTES, layout.HOST_BYTES)
        store = born + born_size + layout.MS_BYTES
        store_size = np.where(flags & layout.SYS_STORE_IPV6, layout.HOST_V6_BYTES, layout.HOST_BYTES)
        body = store + store_size + layout.BODY - layout.RECONSUME_TIMES
        body_size = self._field(body - layout.LENGTH_BYTES, 4)
        bad = (body > ends) | (body_size < 0) | (body + body_size + layout.TAIL_BYTES_MIN > ends)
        at = np.where(bad, starts, body + body_size)
        topic = at + 1 + wide
        topic_size = np.where(wide, self._field(at, 2) & 0xFFFF, self._field(at, 1))
        at = topic + topic_size
        bad |= at + 2 > ends
        size = self._field(np.where(bad, starts, at), 2) & 0xFFFF
        bad |= at + 2 + size != ends
        for span, where, length in (
            (rowtable.BODY, body, body_size), (rowtable.VALUE, body, body_size), (rowtable.TOPIC, topic, topic_size),
            (rowtable.PROPERTIES, at + 2, size), (rowtable.BORN, born, born_size), (rowtable.STORE, store, store_size),
        ):  # fmt: skip
            table[:, span], table[:, span + 1] = where, length
        table[:, rowtable.START] = starts
        return table, bad

    def _pairs_of(self, table: Longs) -> tuple[Longs, Longs, Longs, Longs]:
        """(row, name start, value start, value end) of every property with a name and a value, in order."""
        _, edges, text, _ = self._gather(table[:, rowtable.PROPERTIES], table[:, rowtable.PROPERTIES + 1])
        origin = table[:, rowtable.PROPERTIES] - edges[:-1]
        separators = np.flatnonzero(text == 2)
        # A pair ends at a separator or, for the last one of a row, behind the row's last byte.
        starts = np.unique(np.concatenate([separators + 1, edges[:-1]]))
        starts = starts[starts < len(text)]
        starts = starts[text[starts] != 2]
        ends = np.unique(np.concatenate([separators, edges[1:]]))
        stop = ends[np.searchsorted(ends, starts, "right")] if len(starts) else starts
        ones = np.concatenate([np.flatnonzero(text == 1), [len(text)]])
        cut = ones[np.searchsorted(ones, starts)]
        good = (cut > starts) & (cut + 1 < stop)
        starts, stop, cut = starts[good], stop[good], cut[good]
        row = np.searchsorted(edges, starts, "right") - 1
        shift = origin[row]
        return row, starts + shift, cut + 1 + shift, stop + shift

    def _named(self, start: Longs, value: Longs, name: bytes) -> Flags:
        match: Flags = value - start == len(name) + 1
        for i, byte in enumerate(name):
            match &= self.bytes[np.minimum(start + i, len(self.bytes) - 1)] == byte
        return match

    def _scan(self, table: Longs) -> None:
        if not len(table):
            return
        row, start, value, end = self._pairs_of(table)
        for span, name in _NAMED:
            at = self._named(start, value, name)
            table[row[at], span] = value[at]  # of several the last one stays
            table[row[at], span + 1] = (end - value)[at]

    def _texts(self, table: Longs, span: int) -> list[bytes | None]:
        return [None if n < 0 else self.owner[p : p + n] for p, n in table[:, span : span + 2].tolist()]

    # -- pass 1

    def frame(self, row: int, rows_max: int, bytes_max: int, inflate: bool) -> int:
        """Make rows from `row` on the current batch; how many they are (at least one if there is one)."""
        table = self.fetched[row : row + rows_max]
        sizes = np.cumsum(self._field(table[:, rowtable.START], 4))
        n = max(int(np.searchsorted(sizes, bytes_max, "right")), 1)
        self.table = table[:n].copy()
        self.rows = len(self.table)
        self.extra, self.lost = b"", []
        if inflate:
            self._inflate()
        return self.rows

    def _inflate(self) -> None:
        extra = bytearray()
        flags = self._field(self.table[:, rowtable.START] + layout.SYS_FLAG, 4)
        for i in np.flatnonzero(flags & layout.SYS_COMPRESSED).tolist():
            start, size = self.table[i, rowtable.BODY : rowtable.BODY + 2].tolist()
            body = inflate_body(self.owner[start : start + size], int(flags[i]))
            if body is None:
                self.lost.append(int(self._field(self.table[i : i + 1, rowtable.START] + layout.QUEUE_OFFSET, 8)[0]))
                if not self.raw:
                    self.table[i, rowtable.VALUE + 1] = -1
                continue
            self.table[i, rowtable.VALUE], self.table[i, rowtable.VALUE + 1] = -1 - len(extra), len(body)
            extra += body
        self.extra = bytes(extra)

    # -- pass 2

    def ints(self, span: int, delta: int) -> Ints:
        """The 32-bit field that stands delta bytes after a span's position."""
        return self._field(self.table[:, span] + delta, 4).astype(np.int32)

    def longs(self, span: int, delta: int) -> Longs:
        """The 64-bit field that stands delta bytes after a span's position."""
        return self._field(self.table[:, span] + delta, 8)

    def times(self, span: int, delta: int) -> Longs:
        """A field of milliseconds since 1970 as microseconds, held within the years 1 to 9999."""
        return np.clip(self.longs(span, delta), rowtable.TIME_MIN, rowtable.TIME_MAX) * 1000

    def binary(self, span: int) -> Binary:
        """(validity or None, 32-bit offsets, data, number of nulls) of a span's bytes."""
        positions, lengths = self.table[:, span], self.table[:, span + 1]
        if span == rowtable.VALUE and (positions < 0).any():
            return self._gather_inflated(positions, lengths)
        return self._gather(positions, lengths)

    def _gather(self, positions: Longs, lengths: Longs) -> Binary:
        nulls = int((lengths < 0).sum())
        edges = _edges(np.maximum(lengths, 0))
        valid = np.packbits(lengths >= 0, bitorder="little") if nulls else None
        if not len(positions) or not edges[-1]:
            return valid, edges, np.empty(0, np.uint8), nulls
        # Rows ascend, so (start, end, start, end …) are the offsets of a binary array; the even elements are ours.
        # A row without the property gets an empty element right after the one before it.
        starts = np.where(lengths < 0, -1, positions)
        ends = starts + np.maximum(lengths, 0)
        starts = np.where(lengths < 0, np.maximum(np.maximum.accumulate(ends), 0), starts)
        borders = np.stack([starts, starts + np.maximum(lengths, 0)], 1).astype(np.int32).ravel()
        over = pa.Array.from_buffers(
            pa.binary(), len(borders) - 1, [None, pa.py_buffer(borders), pa.py_buffer(self.owner)]
        )
        taken = over.take(pa.array(np.arange(0, len(borders), 2)))
        data = np.frombuffer(taken.buffers()[2], np.uint8)[: edges[-1]]
        return valid, edges, data, nulls

    def _gather_inflated(self, positions: Longs, lengths: Longs) -> Binary:
        pieces = [
            b"" if n < 0 else self.owner[p : p + n] if p >= 0 else self.extra[-1 - p : -1 - p + n]
            for p, n in zip(positions.tolist(), lengths.tolist(), strict=True)
        ]
        nulls = int((lengths < 0).sum())
        valid = np.packbits(lengths >= 0, bitorder="little") if nulls else None
        return valid, _edges(np.maximum(lengths, 0)), np.frombuffer(b"".join(pieces), np.uint8), nulls

    def words(self, span: int) -> Words:
        """(validity or None, list offsets, item offsets, data, number of nulls) of a span split at blanks."""
        texts = self._texts(self.table, span)
        lists = [[word for word in (text or b"").split(b" ") if word] for text in texts]
        flat = [word for words in lists for word in words]
        nulls = texts.count(None)
        valid = np.packbits([text is not None for text in texts], bitorder="little") if nulls else None
        items = _edges(np.array([len(word) for word in flat], np.int64))
        offsets = _edges(np.array([len(words) for words in lists], np.int64))
        return valid, offsets, items, np.frombuffer(b"".join(flat), np.uint8), nulls

    def pairs(self, headers: bool) -> Pairs:
        """(list offsets, name offsets, names, value offsets, values) of the properties; headers lack KEYS and TAGS."""
        row, start, value, end = self._pairs_of(self.table) if self.rows else (np.empty(0, np.int64),) * 4
        if headers:
            shown = ~(self._named(start, value, _KEYS) | self._named(start, value, _TAGS))
            row, start, value, end = row[shown], start[shown], value[shown], end[shown]
        _, name_edges, name_data, _ = self._gather(start, value - 1 - start)
        _, value_edges, values, _ = self._gather(value, end - value)
        offsets = _edges(np.bincount(row, minlength=self.rows))
        return offsets, name_edges, name_data, value_edges, values

    def intact(self) -> Bits:
        """A bitmap: does the stored body match its CRC-32?"""
        sums = self._field(self.table[:, rowtable.START] + layout.BODY_CRC, 4) & 0xFFFFFFFF
        found = [
            crc32(self.owner, p, n, 0) & layout.CRC_MASK
            for p, n in self.table[:, rowtable.BODY : rowtable.BODY + 2].tolist()
        ]
        return np.packbits(np.array(found, np.int64) == sums, bitorder="little")

    def spans(self, span: int) -> Spans:
        """(positions, lengths) in the records, for what is done in Python: a length of -1 means none."""
        return self.table[:, span].astype(np.int32), self.table[:, span + 1].astype(np.int32)


def _edges(lengths: Longs) -> Ints:
    edges = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=edges[1:])
    return edges
