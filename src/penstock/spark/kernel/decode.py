"""The decode kernel: concatenated commit-log records to the buffers of Arrow columns, without the GIL.

    load    pass 0: walk the records, check that each is whole, keep the starts of the wanted ones
            (`place`: records at known places; `sweep`: a piece of a segment, up to the first byte that begins none;
            `only` leaves those of them that a caller wants by their properties)
    frame   pass 1: cut the next batch by rows and bytes; note where body, topic, hosts and properties of each
            row stand (one scan of the properties); inflate the compressed bodies
    `columns` does pass 2: one column each, copied and byte-swapped into a buffer of exactly its size

A record (bytes, big-endian; a host is IPv4 or IPv6 and a 4-byte port, as the system flags say):

    0 size 4 | 4 magic 4 | 8 body CRC 4 | 12 queue id 4 | 16 flag 4 | 20 queue offset 8 | 28 physical offset 8
    36 system flags 4 | 40 born time 8 | 48 born host 8/20 | store time 8 | store host 8/20 | reconsume times 4
    prepared offset 8 | body size 4, body | topic size 1 (or 2), topic | properties size 2, properties

Uncompiled this module runs, slowly; `numpydecode` is what an uncompiled build uses.
"""

from __future__ import annotations

from collections.abc import Callable

import cython
import numpy as np

from penstock.errors import Corrupt
from penstock.spark.kernel.buffers import FIRST_MS, LAST_MS, Ints
from penstock.spark.kernel.inflate import inflate as inflate_body

if cython.compiled:
    from cython.cimports.penstock import words
    from cython.cimports.penstock.octets import address, be16, be32, be64, crc32, find, same, ube32
    from cython.cimports.penstock.spark.kernel import rowtable
    from cython.cimports.penstock.wire import fields, layout
else:
    from penstock import words
    from penstock.octets import address, be16, be32, be64, crc32, find, same, ube32
    from penstock.spark.kernel import rowtable
    from penstock.wire import fields, layout


class Decoder:
    """Reads one fetch at a time; `tags` and `keys`, when given, are what a row must carry (any of them)."""

    def __init__(self, tags: tuple[bytes, ...] = (), keys: tuple[bytes, ...] = ()) -> None:
        self.owner = b""
        self.extra = b""
        self.lost: list[int] = []
        self.count = 0  # rows of the fetch that are wanted
        self.rows = 0  # rows of the current batch
        self.packed = 0  # how many of them have a compressed body
        self.last = -1  # queue offset of the last record walked over
        self.records = address(self.owner)
        self.inflated = address(self.extra)
        self.size = 0
        self._tags = b"".join(len(tag).to_bytes(2, "big") + tag for tag in tags)
        self.tags = address(self._tags)
        self.tags_size = len(self._tags)
        self._keys = b"".join(len(key).to_bytes(2, "big") + key for key in keys)
        self.keys = address(self._keys)
        self.keys_size = len(self._keys)
        self._topics = b""
        self.topics = address(self._topics)
        self.topics_size = 0
        self.since = FIRST_MS
        self.before = LAST_MS
        self.verify = False
        self.raw = False
        self.halves = False
        self.broken = 0  # wanted records of the last sweep whose body has another sum; they are left out
        self.broken_at = -1  # where the first of them begins
        self.starts = np.empty(1, np.int32)
        self._table = np.empty(rowtable.WIDTH, np.int32)
        self.table = self._table

    def choose(
        self, topics: tuple[bytes, ...], since: int, before: int, verify: bool, raw: bool, halves: bool = False
    ) -> None:
        """Only records of these topics (none: all), stored at `since` or later and before `before`, in ms.

        `verify` leaves out those whose body has another sum; `raw` keeps bodies that cannot be inflated as they are;
        `halves` keeps halves of transactions, which are no messages.
        """
        self._topics = b"".join([len(topic).to_bytes(2, "big") + topic for topic in topics])
        self.topics = address(self._topics)
        self.topics_size = len(self._topics)
        self.since = since
        self.before = before
        self.verify = verify
        self.raw = raw
        self.halves = halves

    # -- pass 0

    def load(self, records: bytes, first: int, until: int) -> int:
        """How many rows are wanted: queue offset in [first, until), a wanted tag and key.

        `Corrupt` if a record is not whole.
        """
        self.owner = records
        self.records = address(records)
        self.size = len(records)
        if self.size > rowtable.FETCH_BYTES_MAX:
            raise ValueError("a fetch is limited to 2 GB")
        need = self.size // layout.RECORD_FIXED_BYTES + 1
        if len(self.starts) < need:
            self.starts = np.empty(need, np.int32)
        with cython.nogil:
            done = self._walk(first, until)
        if done < 0:
            raise Corrupt("fetched records", -1 - done, "not a whole record")
        self.count = done
        self.rows = 0
        return done

    def place(self, owner: bytes, starts: Ints, first: int, base: int) -> int:
        """As `load`, for records at known places of a piece of a segment that begins at physical offset `base`.

        `starts` are the positions (32-bit, changed by this) of the queue offsets from `first` on. `Corrupt` when one
        of them is not where that record begins.
        """
        self.owner = owner
        self.records = address(owner)
        self.size = len(owner)
        self.starts = starts
        self.broken = 0
        self.broken_at = -1
        need = len(starts)
        with cython.nogil:
            done = self._look(need, first, base)
        if done < 0:
            raise Corrupt("commit log", base + int(starts[-1 - done]), f"not the record of offset {first - 1 - done}")
        self.count = done
        self.rows = 0
        return done

    def sweep(self, owner: bytes, until: int, base: int) -> int:
        """Walk a piece of a segment, from its beginning at physical offset `base`: where the walk stopped.

        That is at the first record that begins at `until` or behind, or at the first byte that begins no whole record
        at its own place.
        """
        self.owner = owner
        self.records = address(owner)
        self.size = len(owner)
        need = self.size // layout.RECORD_FIXED_BYTES + 1
        if len(self.starts) < need:
            self.starts = np.empty(need, np.int32)
        self.broken = 0
        self.broken_at = -1
        with cython.nogil:
            done = self._sweep(until, base)
        self.rows = 0
        return done

    def only(self, wanted: Callable[[bytes], bool]) -> int:
        """Of the rows that pass 0 found leave those whose properties, as they are stored, are wanted; how many they are."""
        kept = 0
        for i in range(self.count):
            p = self.starts[i]
            self._frame(p, self.size - p, 0)
            at = self.table[rowtable.PROPERTIES]
            if wanted(self.owner[at : at + self.table[rowtable.PROPERTIES + 1]]):
                self.starts[kept] = p
                kept += 1
        self.count = kept
        return kept

    def _sweep(self, until: int, base: int) -> int:
        p = 0
        kept = 0
        while p < until and p < self.size:
            total = self._frame(p, self.size - p, 0)
            if total < 0 or be64(self.records, p + layout.PHYSICAL) != base + p:
                break
            if (self.halves or not be32(self.records, p + layout.SYS_FLAG) & layout.SYS_HALF) and self._wanted():
                self.starts[kept] = p
                kept += 1
            p += total
        self.count = kept
        return p

    def _look(self, need: int, first: int, base: int) -> int:
        kept = 0
        for i in range(need):
            p = self.starts[i]
            if self._frame(p, self.size - p, 0) < 0:
                return -1 - i
            if (
                be64(self.records, p + layout.QUEUE_OFFSET) != first + i
                or be64(self.records, p + layout.PHYSICAL) != base + p
            ):
                return -1 - i
            if self._wanted():
                self.starts[kept] = p
                kept += 1
        self.last = first + need - 1
        return kept

    def _walk(self, first: int, until: int) -> int:
        p = 0
        kept = 0
        self.last = -1
        while p < self.size:
            total = self._frame(p, self.size - p, 0)
            if total < 0:
                return -1 - p
            offset = be64(self.records, p + layout.QUEUE_OFFSET)
            self.last = offset
            if first <= offset < until and self._wanted():
                self.starts[kept] = p
                kept += 1
            p += total
        return kept

    def _wanted(self) -> bool:
        """Whether the record in the table's first row is one of those asked for."""
        stored = be64(self.records, self.table[rowtable.STORE] - layout.MS_BYTES)
        if stored < self.since or stored >= self.before:
            return False
        if self.topics_size > 0 and not self._among(
            self.topics, self.topics_size, self.table[rowtable.TOPIC], self.table[rowtable.TOPIC + 1]
        ):
            return False
        if self.tags_size > 0 or self.keys_size > 0:
            self._scan(0)
        if self.tags_size > 0 and not self._among(
            self.tags, self.tags_size, self.table[rowtable.TAGS], self.table[rowtable.TAGS + 1]
        ):
            return False
        if self.keys_size > 0 and not self._any_key(self.table[rowtable.KEYS], self.table[rowtable.KEYS + 1]):
            return False
        return not self.verify or self._sums_match()

    def _sums_match(self) -> bool:
        """Whether the body in the table's first row has the sum its record names; an empty one needs none."""
        p = self.table[rowtable.BODY]
        length = self.table[rowtable.BODY + 1]
        if length == 0 or (crc32(self.records, p, length, 0) & layout.CRC_MASK) == ube32(
            self.records, self.table[0] + layout.BODY_CRC
        ):
            return True
        if self.broken == 0:
            self.broken_at = self.table[0]
        self.broken += 1
        return False

    def _frame(self, p: int, left: int, at: int) -> int:
        """Fill the table's row at `at` from the record at p; its size, or -1 when it is not whole."""
        if left < layout.RECORD_FIXED_BYTES:
            return -1
        total: int = be32(self.records, p)
        magic = ube32(self.records, p + layout.MAGIC)
        if total < layout.RECORD_FIXED_BYTES or total > left or (magic != layout.MAGIC_V1 and magic != layout.MAGIC_V2):
            return -1
        flags = be32(self.records, p + layout.SYS_FLAG)
        born = p + layout.BORN_HOST
        length = layout.HOST_V6_BYTES if flags & layout.SYS_BORN_IPV6 else layout.HOST_BYTES
        self.table[at] = p
        self.table[at + rowtable.BORN] = born
        self.table[at + rowtable.BORN + 1] = length
        store = born + length + layout.MS_BYTES
        length = layout.HOST_V6_BYTES if flags & layout.SYS_STORE_IPV6 else layout.HOST_BYTES
        self.table[at + rowtable.STORE] = store
        self.table[at + rowtable.STORE + 1] = length
        store += length + layout.BODY - layout.RECONSUME_TIMES  # where the body starts
        if store > p + total:
            return -1
        length = be32(self.records, store - layout.LENGTH_BYTES)
        if length < 0 or store + length + layout.TAIL_BYTES_MIN > p + total:
            return -1
        self.table[at + rowtable.BODY] = store
        self.table[at + rowtable.BODY + 1] = length
        self.table[at + rowtable.VALUE] = store
        self.table[at + rowtable.VALUE + 1] = length
        topic = store + length
        if magic == layout.MAGIC_V2:
            length = be16(self.records, topic)
            topic += 2
        else:
            length = be16(self.records, topic) >> layout.TOPIC_SHIFT
            topic += 1
        if topic + length + 2 > p + total:
            return -1
        self.table[at + rowtable.TOPIC] = topic
        self.table[at + rowtable.TOPIC + 1] = length
        topic += length
        length = be16(self.records, topic)
        if topic + 2 + length != p + total:
            return -1
        self.table[at + rowtable.PROPERTIES] = topic + 2
        self.table[at + rowtable.PROPERTIES + 1] = length
        self.table[at + rowtable.KEYS + 1] = -1
        self.table[at + rowtable.TAGS + 1] = -1
        self.table[at + rowtable.UNIQUE + 1] = -1
        return total

    def _scan(self, at: int) -> None:
        """Where KEYS, TAGS and UNIQ_KEY stand; of several the last; a pair without a value is none."""
        p = self.table[at + rowtable.PROPERTIES]
        end = p + self.table[at + rowtable.PROPERTIES + 1]
        while p < end:
            stop = find(self.records, p, end, words.PROPERTY_END)
            if stop < 0:
                stop = end
            span = 0
            cut = p + fields.KEYS_BYTES
            if cut < stop and self.records[cut] == words.NAME_END:
                if be32(self.records, p) == fields.KEYS_WORD:
                    span = rowtable.KEYS
                elif be32(self.records, p) == fields.TAGS_WORD:
                    span = rowtable.TAGS
            elif (
                p + fields.UNIQUE_BYTES < stop
                and self.records[p + fields.UNIQUE_BYTES] == words.NAME_END
                and be64(self.records, p) == fields.UNIQUE_WORD
            ):
                span = rowtable.UNIQUE
                cut = p + fields.UNIQUE_BYTES
            if span != 0 and cut + 1 < stop:
                self.table[at + span] = cut + 1
                self.table[at + span + 1] = stop - cut - 1
            p = stop + 1

    def _among(self, wanted: memoryview, size: int, start: int, n: int) -> bool:
        p = 0
        while n >= 0 and p < size:
            length = be16(wanted, p)
            if length == n and same(wanted, p + 2, self.records, start, n):
                return True
            p += 2 + length
        return False

    def _any_key(self, start: int, n: int) -> bool:
        p = start
        end = start + n
        while p < end:
            stop = find(self.records, p, end, words.SPACE)
            if stop < 0:
                stop = end
            if stop > p and self._among(self.keys, self.keys_size, p, stop - p):
                return True
            p = stop + 1
        return False

    # -- pass 1

    def frame(self, row: int, rows_max: int, bytes_max: int, inflate: bool) -> int:
        """Make rows from `row` on the current batch; how many they are (at least one if there is one)."""
        if rows_max > self.count - row:
            rows_max = self.count - row
        if len(self.table) < rows_max * rowtable.WIDTH:
            self._table = np.empty(rows_max * rowtable.WIDTH, np.int32)
            self.table = self._table
        self.extra = b""
        self.lost = []
        with cython.nogil:
            n = self._cut(row, rows_max, bytes_max)
        self.rows = n
        if inflate and self.packed > 0:
            self._inflate()
        return n

    def _cut(self, row: int, rows_max: int, bytes_max: int) -> int:
        n = 0
        used = 0
        self.packed = 0
        while n < rows_max:
            p = self.starts[row + n]
            size = be32(self.records, p)
            if n > 0 and used + size > bytes_max:
                break
            self._frame(p, self.size - p, n * rowtable.WIDTH)
            self._scan(n * rowtable.WIDTH)
            self.packed += be32(self.records, p + layout.SYS_FLAG) & layout.SYS_COMPRESSED
            used += size
            n += 1
        return n

    def _inflate(self) -> None:
        """Inflate the compressed bodies of the batch into `extra`; VALUE points there as -1 - position."""
        extra = bytearray()
        for i in range(self.rows):
            at = i * rowtable.WIDTH
            p = self.table[at]
            flags = be32(self.records, p + layout.SYS_FLAG)
            if not flags & layout.SYS_COMPRESSED:
                continue
            start = self.table[at + rowtable.BODY]
            body = inflate_body(self.owner[start : start + self.table[at + rowtable.BODY + 1]], flags)
            if body is None:
                self.lost.append(be64(self.records, p + layout.QUEUE_OFFSET))
                if self.raw:
                    continue
                self.table[at + rowtable.VALUE + 1] = -1
                continue
            self.table[at + rowtable.VALUE] = -1 - len(extra)
            self.table[at + rowtable.VALUE + 1] = len(body)
            extra += body
        self.extra = bytes(extra)
        self.inflated = address(self.extra)

    def size_of(self, row: int) -> int:
        """Stored bytes of a row's record."""
        return int(be32(self.records, self.starts[row]))

    def reserve(self, rows: int) -> None:
        """Make sure that the table has room for so many rows."""
        if len(self.table) < rows * rowtable.WIDTH:
            self._table = np.empty(rows * rowtable.WIDTH, np.int32)
            self.table = self._table
