"""Rows to staged pieces: each Arrow batch is cut by message queue, and each part becomes messages as a batch send has them.

where    topic → its message queues → the row's own `partition`, else its key's hash, else one after the other
what     value, and the properties: KEYS, TAGS, … each a text column, written side by side by the kernel (`encode`)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from isal import isal_zlib

from penstock.client.routes import MessageQueue
from penstock.errors import ConfigError, PenstockError
from penstock.schedule.delays import TIMER_PROPERTIES
from penstock.spark.kernel import encode
from penstock.spark.kernel.buffers import Longs, Octets
from penstock.spark.write.options import TOPIC_NAMES, legal_topic
from penstock.wire import names
from penstock.wire.codes import SYS_COMPRESSED
from penstock.wire.record import BODY_BYTES_MAX, PROPERTIES_BYTES_MAX, format_properties
from penstock.wire.staged import piece_head

# What a copied message must not carry into its new life: instructions to the broker, and what stands in texts of its own.
_DROPPED = frozenset(
    (names.KEYS, names.TAGS, names.WAIT, names.DELAY, *TIMER_PROPERTIES, names.HALF, names.PRODUCER_GROUP,
     names.REAL_TOPIC, names.REAL_QUEUE, names.CLUSTER, names.SEQUENCE, names.SHARDING_KEY)
)  # fmt: skip

_DUE_MAX_MS = 10**15  # 31,000 years: more digits are no moment to a broker

Columns = Mapping[str, pa.Array]


def _named(name: str) -> bytes:
    return name.encode() + b"\x01"


class EncodedPart(NamedTuple):
    """So many messages for one queue, as `wire.staged` draws them; from `start` on they are a batch send's body."""

    queue: MessageQueue
    data: bytes
    rows: int
    start: int
    sys_flag: int


class Rejected(PenstockError):
    """A row that cannot be a message."""


class _Text(NamedTuple):
    """One property of all rows: what stands before the text, and the text as kernel buffers."""

    prefix: bytes
    data: Octets
    offsets: Longs
    valid: Octets

    def sizes(self) -> Longs:
        """Bytes it takes in each row."""
        return np.where(self.valid != 0, np.diff(self.offsets) + len(self.prefix), 0)


class RowEncoder:
    """Encodes the batches of one task. `queues_of(topic)` names the queues that can be written; rows without a queue of
    their own are dealt out from `turn` on."""

    def __init__(
        self,
        queues_of: Callable[[str], list[MessageQueue]],
        *,
        topic: str | None = None,
        turn: int = 0,
        piece_bytes: int = 1 << 20,
        compress: bool = False,
    ) -> None:
        self._queues_of = queues_of
        self._topic = topic
        self._turn = turn
        self._piece_bytes = piece_bytes
        self._compress = compress
        self._queues: dict[str, list[MessageQueue]] = {}
        self.count = 0  # rows so far

    @property
    def layout(self) -> dict[str, list[str]]:
        """Over which brokers' queues the rows of each topic were dealt out."""
        return {topic: sorted({queue.broker for queue in queues}) for topic, queues in self._queues.items()}

    def pieces(self, batch: pa.RecordBatch) -> Iterator[EncodedPart]:
        """The batch's rows, each queue's in their order."""
        if not batch.num_rows:
            return
        columns = {name: _short(column) for name, column in zip(batch.schema.names, batch.columns, strict=True)}
        value = _binary(columns["value"])
        if value.null_count:
            raise Rejected(f"{self._at(value.is_null())} has no value: filter such rows out, or give them an empty one")
        now_ms = time.time_ns() // 1_000_000
        due = _due_ms(columns, now_ms)
        texts = list(self._texts(columns, due))
        sys_flag = 0
        if self._compress:
            value, sys_flag = (
                pa.array([isal_zlib.compress(body) for body in value.cast(pa.binary()).to_pylist()], pa.binary()),
                SYS_COMPRESSED,
            )
        data, offsets = _buffers(value)
        bodies = np.diff(offsets)
        if int(bodies.max()) > BODY_BYTES_MAX:
            raise Rejected(
                f"{self._at(pa.array(bodies > BODY_BYTES_MAX))} has a value of more than {BODY_BYTES_MAX} bytes"
            )
        sizes = np.zeros(batch.num_rows, np.int64)
        marks = np.zeros(batch.num_rows, np.int64)  # separators
        for text in texts:
            found = text.sizes()
            sizes += found
            marks += found > 0
        sizes += np.maximum(marks - 1, 0)
        if int(sizes.max()) > PROPERTIES_BYTES_MAX:
            raise Rejected(
                f"{self._at(pa.array(sizes > PROPERTIES_BYTES_MAX))} has more than {PROPERTIES_BYTES_MAX} bytes of properties"
            )
        for queue, delayed, rows in self._parts(columns, texts, due):
            for part in _cut(rows, (bodies + sizes)[rows] + encode.HEAD, self._piece_bytes):
                out = np.empty(int((bodies + sizes)[part].sum()) + encode.HEAD * len(part), np.uint8)
                at, begun = np.empty(len(part), np.int64), np.zeros(len(part), np.uint8)
                encode.heads(out, at, part, data, offsets, sizes)
                for text in texts:
                    encode.texts(out, at, begun, part, text.prefix, text.data, text.offsets, text.valid)
                piece = _piece(queue, delayed, sys_flag, now_ms, len(part), out)
                yield EncodedPart(queue, piece, len(part), len(piece) - len(out), sys_flag)
        self.count += batch.num_rows

    def _at(self, bad: pa.Array) -> str:
        """Where the first bad row is, for people."""
        return (
            f"row {self.count + int(np.argmax(np.asarray(bad.to_numpy(zero_copy_only=False), bool)))} of this partition"
        )

    # -- properties

    def _texts(self, columns: Columns, due: pa.Array | None) -> Iterator[_Text]:
        keys = columns.get("key")
        if keys is not None:
            keys = self._utf8(keys, "key")
        if "keys" in columns:
            joined = _joined(columns["keys"].cast(pa.list_(pa.string())))
            keys = joined if keys is None else pc.coalesce(joined, keys)
        if keys is None:
            keys = _of_properties(columns, names.KEYS)
        tags = columns["tags"] if "tags" in columns else _of_properties(columns, names.TAGS)
        for name, column in (
            (_named(names.KEYS), keys),
            (_named(names.TAGS), tags),
            (_named(names.SHARDING_KEY), _sharding_key(columns)),
            (_named(names.TIMER_DELIVER_MS), None if due is None else due.cast(pa.string())),
        ):
            if column is not None and column.null_count < len(column):
                yield self._text(name, column)
        if "properties" in columns or "headers" in columns:
            yield self._text(b"", self._more(columns), checked=True)

    def _text(self, prefix: bytes, column: pa.Array, *, checked: bool = False) -> _Text:
        data, offsets = _buffers(column)
        valid = np.asarray(column.is_valid().to_numpy(zero_copy_only=False), bool) & (np.diff(offsets) > 0)
        used = data[offsets[0] : offsets[-1]]
        if not checked and used.size and int(used.min()) <= 2 and bool(((used == 1) | (used == 2)).any()):
            bad = pc.match_substring_regex(column.cast(pa.string()), "[\x01\x02]").fill_null(False)
            if bad.true_count:
                name = prefix[:-1].decode()
                raise Rejected(f"{self._at(bad)} has a byte 1 or 2 in its {name}: properties are separated by these")
        return _Text(prefix, data, offsets, valid.view(np.uint8))

    def _utf8(self, column: pa.Array, name: str) -> pa.Array:
        try:
            return column.cast(pa.string())
        except pa.ArrowInvalid:
            bad = pa.array([not _is_text(v) for v in column.to_pylist()])
            raise Rejected(f"{self._at(bad)} has a {name} that is not UTF-8 text") from None

    def _more(self, columns: Columns) -> pa.Array:
        """The columns properties and headers as property texts."""
        none = [None] * len(columns["value"])
        try:
            maps = columns["properties"].to_pylist() if "properties" in columns else none
            lists = columns["headers"].to_pylist() if "headers" in columns else none
        except UnicodeDecodeError:
            odd = [_unlike_text(columns[name]) for name in ("properties", "headers") if name in columns]
            bad = odd[0] if len(odd) == 1 else pc.or_(*odd)
            raise Rejected(f"{self._at(bad)} has properties or headers that are not UTF-8 text") from None
        found = []
        for n, (pairs, headers) in enumerate(zip(maps, lists, strict=True)):
            named = dict(pairs or ())
            try:
                named |= dict(_header(h) for h in headers or () if h is not None)
                wanted = {k: v for k, v in named.items() if v and k not in _DROPPED}
                found.append(format_properties(wanted).encode())
            except (ValueError, TypeError) as error:
                raise Rejected(f"row {self.count + n} of this partition: {error}") from None
        return pa.array(found, pa.binary())

    # -- queues

    def _parts(
        self, columns: Columns, texts: list[_Text], due: pa.Array | None
    ) -> Iterator[tuple[MessageQueue, bool, Longs]]:
        """(queue, whether these rows are delayed, their numbers in order)."""
        count = len(columns["value"])
        late = np.zeros(count, bool) if due is None else np.asarray(due.is_valid().to_numpy(zero_copy_only=False), bool)
        for topic, rows in self._by_topic(columns, count):
            queues = self._queues.get(topic)
            if queues is None:
                queues = self._queues[topic] = self._queues_of(topic)
            chosen = self._choose(columns, texts, count, queues, rows, topic)[rows]
            order = np.argsort(chosen * 2 + late[rows], kind="stable")
            marks = (chosen * 2 + late[rows])[order]
            bounds = np.flatnonzero(np.diff(marks)) + 1
            for part in np.split(order, bounds):
                first = part[0]
                yield queues[int(chosen[first])], bool(late[rows][first]), np.ascontiguousarray(rows[part])

    def _by_topic(self, columns: Columns, count: int) -> Iterator[tuple[str, Longs]]:
        if self._topic is not None:
            yield self._topic, np.arange(count, dtype=np.int64)
            return
        column = columns["topic"]
        if column.null_count:
            raise Rejected(f"{self._at(column.is_null())} has no topic")
        encoded = column.dictionary_encode()
        codes = encoded.indices.to_numpy(zero_copy_only=False)
        for code, topic in enumerate(encoded.dictionary.to_pylist()):
            if not legal_topic(topic):
                raise Rejected(
                    f"{self._at(pa.array(codes == code))} is for topic {topic!r}: a topic's name has {TOPIC_NAMES}"
                )
            yield topic, np.flatnonzero(codes == code).astype(np.int64)

    def _choose(
        self,
        columns: Columns,
        texts: list[_Text],
        count: int,
        queues: list[MessageQueue],
        rows: Longs,
        topic: str,
    ) -> Longs:
        """The index in `queues` of every row of the batch; only those of `rows` are asked for."""
        chosen = np.full(count, -1, np.int64)
        own = columns.get("partition")
        if own is not None:
            wanted = own.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
            outside = (wanted < -1) | (wanted >= len(queues)) | ((wanted < 0) & np.asarray(own.is_valid()))
            outside &= np.isin(np.arange(count), rows)
            if outside.any():
                raise Rejected(
                    f"{self._at(pa.array(outside))} is for queue {int(wanted[outside][0])}: {topic} has {len(queues)}"
                )
            chosen[:] = wanted
        for prefix in (_named(names.SHARDING_KEY), _named(names.KEYS)):
            for text in texts:
                if text.prefix == prefix:
                    encode.spread(chosen, len(queues), text.data, text.offsets, text.valid)
        left = rows[chosen[rows] < 0]
        if len(left):
            # Runs of rows rather than single ones: fewer pieces, and readers get them just as evenly.
            runs = (
                (np.arange(len(left)) * len(queues)) // len(left) if len(left) >= len(queues) else np.arange(len(left))
            )
            chosen[left] = (runs + self._turn) % len(queues)
            self._turn += 1 if len(left) >= len(queues) else len(left)
        return chosen


def _piece(queue: MessageQueue, delayed: bool, sys_flag: int, born_ms: int, count: int, messages: Octets) -> bytes:
    head = piece_head(
        queue.topic.encode(), queue.queue_id, delayed=delayed, sys_flag=sys_flag, born_ms=born_ms, count=count,
        size=len(messages),
    )  # fmt: skip
    return b"".join((head, messages.data))


def _cut(rows: Longs, sizes: Longs, most: int) -> Iterator[Longs]:
    """Parts of the rows, each within the limit of bytes, or one row."""
    ends = np.cumsum(sizes)
    if len(rows) and ends[-1] <= most:
        yield rows
        return
    begin, before = 0, 0
    while begin < len(rows):
        end = max(int(np.searchsorted(ends, before + most, side="right")), begin + 1)
        yield rows[begin:end]
        before, begin = int(ends[end - 1]), end


def _due_ms(columns: Columns, now_ms: int) -> pa.Array | None:
    """When each row is due, null for at once; None when no row is delayed."""
    found = None
    if "delayMs" in columns:
        found = pc.add(_within(columns["delayMs"].cast(pa.int64())), now_ms)
    if "deliverAt" in columns:
        at = pc.divide(columns["deliverAt"].cast(pa.timestamp("us", "UTC")).cast(pa.int64()), 1000)
        found = _within(at) if found is None else pc.coalesce(_within(at), found)
    return found if found is not None and found.null_count < len(found) else None


def _within(moments: pa.Array) -> pa.Array:
    """What is before 1970, or farther away than a broker counts, as the nearest that it takes."""
    return pc.max_element_wise(pc.min_element_wise(moments, _DUE_MAX_MS, skip_nulls=False), 0, skip_nulls=False)


def _of_properties(columns: Columns, name: str) -> pa.Array | None:
    """One property out of the column of all of them."""
    properties = columns.get("properties")
    if properties is None:
        return None
    return pc.map_lookup(properties.cast(pa.map_(pa.string(), pa.string())), pa.scalar(name), "last")


def _sharding_key(columns: Columns) -> pa.Array | None:
    """The column, and for rows without the property of the message that is passed on: it stays among its like."""
    own, found = columns.get("shardingKey"), _of_properties(columns, names.SHARDING_KEY)
    return own if found is None else found if own is None else pc.coalesce(own, found)


def _joined(keys: pa.Array) -> pa.Array:
    """Each row's keys as one text; a null among them is none."""
    if not keys.flatten().null_count:
        return pc.binary_join(keys, " ")
    rows = [None if row is None else " ".join(key for key in row if key is not None) for row in keys.to_pylist()]
    return pa.array(rows, pa.string())


def _header(header: Mapping[str, object]) -> tuple[str, str]:
    key, value = header["key"], header["value"]
    if not isinstance(key, str):
        raise ValueError("a header has no key")
    try:
        return key, value.decode() if isinstance(value, bytes) else ""
    except UnicodeDecodeError:
        raise ValueError(
            f"header {key} is not UTF-8 text, as a message's properties are: encode it, base64(…)"
        ) from None


def _short(column: pa.Array) -> pa.Array:
    """The column with offsets of 32 bits, as the kernel takes them: spark.sql.execution.arrow.useLargeVarTypes has 64."""
    kind = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}.get(column.type)
    return column if kind is None else column.cast(kind)


def _binary(column: pa.Array) -> pa.Array:
    if not (pa.types.is_binary(column.type) or pa.types.is_string(column.type)):
        raise ConfigError(f"column value is {column.type}, not binary or string")
    return column


def _buffers(column: pa.Array) -> tuple[Octets, Longs]:
    """(data, offsets) of a binary or string array, as the kernel takes them."""
    _, offsets, data = column.buffers()
    begin = column.offset
    places = np.frombuffer(offsets, np.int32)[begin : begin + len(column) + 1].astype(np.int64)
    raw = np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(1, np.uint8)
    return raw, places


def _is_text(value: bytes | None) -> bool:
    try:
        (value or b"").decode()
    except UnicodeDecodeError:
        return False
    return True


def _unlike_text(column: pa.Array) -> pa.Array:
    """Which rows have strings that are none to Python: Spark's may hold any bytes."""
    bad = []
    for value in column:
        try:
            value.as_py()
        except UnicodeDecodeError:
            bad.append(True)
        else:
            bad.append(False)
    return pa.array(bad)
