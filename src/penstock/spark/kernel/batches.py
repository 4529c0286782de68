"""Arrow batches out of fetched records, for any projection of the columns in `schema`.

Columns that are copied as they stand go through a `Sheet`, in buffers that are used again once nobody holds the batch;
such a batch may gather rows of several fetches, so whoever feeds them asks for the `rest` at the end. Other columns, and
rows whose body must be inflated, are built from the rows of one fetch, in new buffers.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.errors import Corrupt
from penstock.spark.kernel import decode, rowtable
from penstock.spark.kernel.buffers import DecodedColumns, Ints, Longs, Octets
from penstock.spark.kernel.columns import Columns
from penstock.spark.kernel.rowtable import BYTES, INT, LONG, ONE, TEXT, TIME
from penstock.spark.kernel.sheet import COMPILED as SHEETS
from penstock.spark.kernel.sheet import Sheet
from penstock.wire import layout, names

if TYPE_CHECKING or os.environ.get("PENSTOCK_PURE") == "1":
    from penstock.spark.kernel import numpydecode as kernel
else:
    from penstock.spark.kernel import decode as kernel

    if not kernel.__file__.endswith((".so", ".pyd")):
        from penstock.spark.kernel import numpydecode as kernel

if TYPE_CHECKING:
    from penstock.spark.kernel import numpydecode

    Decoder = decode.Decoder | numpydecode.Decoder

COMPILED = kernel.__name__.endswith(".decode")
ROWS_MAX = 10_000
BATCH_BYTES_MAX = 1 << 20  # of stored records: what a core's cache holds; four times as much costs half as much again
WINDOW_BYTES = 256 << 10  # to read at a time, when a batch gathers several


def decoder_of(tags: tuple[str, ...] = (), keys: tuple[str, ...] = ()) -> Decoder:
    """A decoder of this build. `tags` and `keys` are what a row must carry, exactly (any of them)."""
    return kernel.Decoder(tuple(tag.encode() for tag in tags), tuple(key.encode() for key in keys))


def columns_of(decoder: Decoder) -> DecodedColumns:
    """Pass 2 of a decoder: numpy's does it itself."""
    return Columns(decoder) if isinstance(decoder, decode.Decoder) else decoder


class Batches:
    """Makes batches of one schema from the rows that `decoder` holds; without one a decoder that wants every row.

    A batch has at most `rows_max` rows of at most `bytes_max` stored bytes, and at least one row. A body that cannot be
    decompressed is `Corrupt`, or null in its row with `keep_damaged`.
    """

    def __init__(
        self,
        schema: pa.Schema,
        *,
        broker: str = "",
        real_topic: bool = False,
        keep_damaged: bool = False,
        decoder: Decoder | None = None,
        rows_max: int = ROWS_MAX,
        bytes_max: int = BATCH_BYTES_MAX,
    ) -> None:
        self.schema = schema
        self.broker = broker
        self.segment = ""  # the file that is read, where it is one
        self.keep_damaged = keep_damaged
        self.rows_max, self.bytes_max = rows_max, bytes_max
        self.decoder: Decoder = decoder_of() if decoder is None else decoder
        self.columns = columns_of(self.decoder)
        builders = {**_BUILDERS, "topic": _real_topic} if real_topic else _BUILDERS
        self._columns: list[tuple[Callable[..., pa.Array], pa.DataType]] = [
            (builders[field.name], field.type) for field in schema
        ]
        self._inflate = "value" in schema.names
        self._sheet = None if real_topic and "topic" in schema.names else self._sheet_of(schema.names)
        self._open = False

    def reading(self, *, broker: str, segment: str = "") -> None:
        """From now on rows come from this broker, and this file where there is one."""
        self.broker, self.segment = broker, segment

    def _sheet_of(self, names: list[str]) -> Sheet | None:
        """What gathers the rows; None when a column is not copied as it stands."""
        if not SHEETS or not isinstance(self.decoder, decode.Decoder) or any(name not in _PLAIN for name in names):
            return None
        scans = any(name in ("key", "tags", "uniqKey") for name in names)
        return Sheet([_PLAIN[name] for name in names], self.rows_max, self.bytes_max, scans, self._inflate)

    @property
    def window_bytes(self) -> int:
        """How much to read at a time: what stays in a core's cache until it is copied."""
        return BATCH_BYTES_MAX if self._sheet is None else WINDOW_BYTES

    def of(self, records: bytes, first: int, until: int) -> Iterator[pa.RecordBatch]:
        """Batches of the records with queue offset in [first, until)."""
        yield from self.feed(self.decoder.load(records, first, until))
        yield from self.rest()

    def feed(self, count: int) -> Iterator[pa.RecordBatch]:
        """Take the `count` rows that the decoder holds; the batches that are full now."""
        row, sheet, decoder = 0, self._sheet, self.decoder
        while sheet is not None and isinstance(decoder, decode.Decoder) and row < count:
            if not self._open:
                sheet.begin(decoder.size_of(row))
                self._open = True
            row += sheet.fill(decoder, row)
            if row < count:
                yield from self.rest()
                if sheet.packed:
                    break
        yield from self.cut(count, row)

    def rest(self) -> Iterator[pa.RecordBatch]:
        """What was fed and has not filled a batch."""
        if self._open and self._sheet is not None:
            self._open = False
            if self._sheet.rows:
                yield self._gathered(self._sheet)

    def cut(self, count: int, row: int = 0) -> Iterator[pa.RecordBatch]:
        """Batches of the rows from `row` on, of the `count` that the decoder holds, in new buffers."""
        decoder = self.decoder
        while row < count:
            row += decoder.frame(row, self.rows_max, self.bytes_max, self._inflate)
            if decoder.lost and not self.keep_damaged:
                raise Corrupt(
                    self.segment or f"broker {self.broker}",
                    decoder.lost[0],
                    "the compressed body at this queue offset is damaged",
                )
            yield self.current()

    def current(self) -> pa.RecordBatch:
        """The batch that `frame` cut."""
        arrays = [build(self, kind) for build, kind in self._columns]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _gathered(self, sheet: Sheet) -> pa.RecordBatch:
        """The batch that the sheet holds."""
        batch = pa.RecordBatch._import_from_c(sheet.batch(), self.schema)
        if sheet.foreign:
            columns = [_valid_text(c) if pa.types.is_string(c.type) else c for c in batch.columns]
            batch = pa.RecordBatch.from_arrays(columns, schema=self.schema)
        return batch


# -- one builder per column: (batches, Arrow type) to array


def _ints(span: int, delta: int) -> Callable[[Batches, pa.DataType], pa.Array]:
    return lambda batches, kind: _fixed(kind, batches.columns.ints(span, delta))


def _longs(span: int, delta: int) -> Callable[[Batches, pa.DataType], pa.Array]:
    return lambda batches, kind: _fixed(kind, batches.columns.longs(span, delta))


def _times(span: int, delta: int) -> Callable[[Batches, pa.DataType], pa.Array]:
    return lambda batches, kind: _fixed(kind, batches.columns.times(span, delta))


def _fixed(kind: pa.DataType, values: Ints | Longs) -> pa.Array:
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)], 0)


def _bytes(span: int) -> Callable[[Batches, pa.DataType], pa.Array]:
    def build(batches: Batches, kind: pa.DataType) -> pa.Array:
        valid, offsets, data, nulls = batches.columns.binary(span)
        return _flat(kind, offsets, data, valid, nulls)

    return build


def _flat(kind: pa.DataType, offsets: Ints, data: Octets, valid: Octets | None = None, nulls: int = 0) -> pa.Array:
    mask = None if valid is None else pa.py_buffer(valid)
    array = pa.Array.from_buffers(
        kind, len(offsets) - 1, [mask, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data))], nulls
    )
    if pa.types.is_string(kind) and len(data) and int(data.max()) >= 0x80:
        return _valid_text(array)
    return array


def _valid_text(array: pa.Array) -> pa.Array:
    """The same text with what is not UTF-8 replaced: any client may write any bytes into a property."""
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        raw = array.cast(pa.binary()).to_pylist()
        return pa.array([None if b is None else b.decode("utf-8", "replace") for b in raw], array.type)
    return array


def _words(span: int) -> Callable[[Batches, pa.DataType], pa.Array]:
    def build(batches: Batches, kind: pa.DataType) -> pa.Array:
        valid, offsets, inner, data, nulls = batches.columns.words(span)
        mask = None if valid is None else pa.py_buffer(valid)
        items = _flat(kind.value_type, inner, data)
        return pa.Array.from_buffers(kind, len(offsets) - 1, [mask, pa.py_buffer(offsets)], nulls, children=[items])

    return build


def _headers(batches: Batches, kind: pa.DataType) -> pa.Array:
    return _pairs(batches, kind, kind.value_type, True)


def _properties(batches: Batches, kind: pa.DataType) -> pa.Array:
    return _pairs(batches, kind, pa.struct([kind.key_field, kind.item_field]), False)


def _pairs(batches: Batches, kind: pa.DataType, entry: pa.StructType, headers: bool) -> pa.Array:
    offsets, name_offsets, names, value_offsets, values = batches.columns.pairs(headers)
    children = [_flat(entry[0].type, name_offsets, names), _flat(entry[1].type, value_offsets, values)]
    entries = pa.Array.from_buffers(entry, len(name_offsets) - 1, [None], 0, children=children)
    return pa.Array.from_buffers(kind, len(offsets) - 1, [None, pa.py_buffer(offsets)], 0, children=[entries])


def _append_time(batches: Batches, kind: pa.DataType) -> pa.Array:
    return _fixed(kind, np.ones(batches.decoder.rows, np.int32))


def _broker(batches: Batches, kind: pa.DataType) -> pa.Array:
    return pa.repeat(pa.scalar(batches.broker, kind), batches.decoder.rows)


def _segment(batches: Batches, kind: pa.DataType) -> pa.Array:
    return pa.repeat(pa.scalar(batches.segment, kind), batches.decoder.rows)


def _intact(batches: Batches, kind: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(kind, batches.decoder.rows, [None, pa.py_buffer(batches.columns.intact())], 0)


def _texts(batches: Batches, span: int) -> list[bytes | None]:
    positions, lengths = batches.columns.spans(span)
    owner = batches.decoder.owner
    return [None if n < 0 else owner[p : p + n] for p, n in zip(positions.tolist(), lengths.tolist(), strict=True)]


def _host(span: int) -> Callable[[Batches, pa.DataType], pa.Array]:
    def build(batches: Batches, kind: pa.DataType) -> pa.Array:
        names: dict[bytes, str] = {}  # few hosts, many rows
        rows = [raw or b"" for raw in _texts(batches, span)]
        for raw in rows:
            if raw not in names:
                port = int.from_bytes(raw[-4:], "big", signed=True)
                ip = socket.inet_ntop(socket.AF_INET if len(raw) == 8 else socket.AF_INET6, raw[:-4])
                names[raw] = f"{ip}:{port}" if len(raw) == 8 else f"[{ip}]:{port}"
        return pa.array([names[raw] for raw in rows], kind)

    return build


def _message_ids(batches: Batches, kind: pa.DataType) -> pa.Array:
    hosts = {raw: raw.hex().upper() for raw in set(_texts(batches, rowtable.STORE)) if raw is not None}
    physical = batches.columns.longs(rowtable.START, layout.PHYSICAL).tolist()
    rows = zip(_texts(batches, rowtable.STORE), physical, strict=True)
    return pa.array([f"{hosts[raw or b'']}{at & 0xFFFFFFFFFFFFFFFF:016X}" for raw, at in rows], kind)


def _property_rows(batches: Batches) -> Iterator[dict[bytes, bytes]]:
    for text in _texts(batches, rowtable.PROPERTIES):
        pairs = (pair.partition(b"\x01") for pair in (text or b"").split(b"\x02"))
        yield {name: value for name, _, value in pairs if name and value}


def _due(batches: Batches, kind: pa.DataType) -> pa.Array:
    def micros(properties: dict[bytes, bytes]) -> int | None:
        text = properties.get(names.TIMER_DELIVER_MS.encode(), b"")
        return int(text) * 1000 if text.isdigit() and len(text) <= 14 else None

    return pa.array([micros(properties) for properties in _property_rows(batches)], pa.int64()).cast(kind)


def _real_topic(batches: Batches, kind: pa.DataType) -> pa.Array:
    stored = _BUILDERS["topic"](batches, kind).to_pylist()
    named = (
        row.get(names.RETRY_TOPIC.encode()) or row.get(names.REAL_TOPIC.encode()) for row in _property_rows(batches)
    )
    return pa.array(
        [real.decode("utf-8", "replace") if real else topic for topic, real in zip(stored, named, strict=True)], kind
    )


_BUILDERS: dict[str, Callable[[Batches, pa.DataType], pa.Array]] = {
    "key": _bytes(rowtable.KEYS),
    "value": _bytes(rowtable.VALUE),
    "topic": _bytes(rowtable.TOPIC),
    "partition": _ints(rowtable.START, layout.QUEUE_ID),
    "offset": _longs(rowtable.START, layout.QUEUE_OFFSET),
    "timestamp": _times(rowtable.STORE, -layout.MS_BYTES),
    "timestampType": _append_time,
    "headers": _headers,
    "tags": _bytes(rowtable.TAGS),
    "keys": _words(rowtable.KEYS),
    "properties": _properties,
    "msgId": _message_ids,
    "uniqKey": _bytes(rowtable.UNIQUE),
    "broker": _broker,
    "bornTimestamp": _times(rowtable.START, layout.BORN_MS),
    "bornHost": _host(rowtable.BORN),
    "storeHost": _host(rowtable.STORE),
    "flag": _ints(rowtable.START, layout.FLAG),
    "sysFlag": _ints(rowtable.START, layout.SYS_FLAG),
    "reconsumeTimes": _ints(rowtable.BODY, layout.RECONSUME_TIMES - layout.BODY),
    "physicalOffset": _longs(rowtable.START, layout.PHYSICAL),
    "size": _ints(rowtable.START, 0),
    "crcOk": _intact,
    "delayUntil": _due,
    "segment": _segment,
}

# -- what a sheet copies: (kind, span, delta)

_PLAIN = {
    "key": (BYTES, rowtable.KEYS, 0),
    "value": (BYTES, rowtable.BODY, 0),
    "topic": (TEXT, rowtable.TOPIC, 0),
    "partition": (INT, rowtable.START, layout.QUEUE_ID),
    "offset": (LONG, rowtable.START, layout.QUEUE_OFFSET),
    "timestamp": (TIME, rowtable.STORE, -layout.MS_BYTES),
    "timestampType": (ONE, 0, 0),
    "tags": (TEXT, rowtable.TAGS, 0),
    "uniqKey": (TEXT, rowtable.UNIQUE, 0),
    "bornTimestamp": (TIME, rowtable.START, layout.BORN_MS),
    "flag": (INT, rowtable.START, layout.FLAG),
    "sysFlag": (INT, rowtable.START, layout.SYS_FLAG),
    "reconsumeTimes": (INT, rowtable.BODY, layout.RECONSUME_TIMES - layout.BODY),
    "physicalOffset": (LONG, rowtable.START, layout.PHYSICAL),
    "size": (INT, rowtable.START, 0),
}
