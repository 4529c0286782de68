"""The commit-log record, which is also what pulls and look-ups answer with; properties, batches.

    int32 total size | int32 magic DAA320A7 | int32 CRC of body & 7FFFFFFF | int32 queue id | int32 flag
    int64 queue offset | int64 physical offset | int32 sys flag | int64 born time | born host (4 or 16) + int32 port
    int64 store time | store host (4 or 16) + int32 port | int32 reconsume times | int64 prepared offset
    int32 body length, body | int8 topic length, topic | int16 properties length, properties

RocketMQ 5 may write magic DAA320AB, with two bytes of topic length. This is the object-level codec, for clients and
tools; the store writes and Spark decodes records with compiled kernels of their own.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from importlib import import_module
from struct import Struct
from typing import NamedTuple, TypedDict, Unpack, cast

from isal import isal_zlib

from penstock.errors import WireError
from penstock.message import ReceivedMessage
from penstock.msgid import unpack_host
from penstock.octets import java_hash as _java_hash
from penstock.wire import layout
from penstock.wire.codes import SYS_BORN_IPV6, SYS_COMPRESSED, SYS_COMPRESSION_SHIFT, SYS_STORE_IPV6

MAGIC = layout.MAGIC_V1
MAGIC_V2 = layout.MAGIC_V2
MAGIC_BLANK = layout.MAGIC_BLANK

BODY_BYTES_MAX = layout.BODY_BYTES_MAX
PROPERTIES_BYTES_MAX = layout.PROPERTIES_BYTES_MAX
TOPIC_BYTES_MAX = layout.TOPIC_BYTES_MAX
FIXED_BYTES = layout.RECORD_FIXED_BYTES

_ZLIB_ERROR = cast(type[Exception], isal_zlib.error)

ENTRY = Struct(">qiq")  # of a consume queue: physical offset, size, tags code
INDEX_HEAD = Struct(">qqqqii")  # times, places, used slots, count
INDEX_ENTRY = Struct(">iqii")  # hash, physical offset, seconds, previous
_HEAD = Struct(">iIIiiqqiq")  # size … born time
_AFTER_STORE = Struct(">iqi")  # reconsume times, prepared offset, body length
_U16, _I32, _I64 = Struct(">H"), Struct(">i"), Struct(">q")
BATCH_HEAD = Struct(">iIIii")  # size, magic, CRC, flag, body length


def java_hash(text: str) -> int:
    """Java's ``String.hashCode``: signed 32 bits."""
    raw = text.encode("utf-8", "replace")
    return int(_java_hash(raw, 0, len(raw), 0))


def tags_code(tag: str | None) -> int:
    """The tags code of a message with this tag; 0 without one."""
    return java_hash(tag) if tag else 0


def parse_properties(text: str) -> dict[str, str]:
    """The pairs of a properties text, with or without a separator at its end; pairs with an empty value are dropped."""
    found: dict[str, str] = {}
    for pair in text.split("\x02"):
        name, _, value = pair.partition("\x01")
        if value:
            found[name] = value
    return found


def format_properties(properties: Mapping[str, str]) -> str:
    """The properties text. ValueError when a name is empty or one holds a separator."""
    text = "\x02".join([f"{name}\x01{value}" for name, value in properties.items()])
    if text.count("\x01") != len(properties) or text.count("\x02") != max(0, len(properties) - 1) or "" in properties:
        raise ValueError("property names and values hold neither \\x01 nor \\x02, and names are not empty")
    return text


def restore_properties(properties: Mapping[str, str]) -> str:
    """The text of properties that were parsed, for their next record. A value may hold the first separator, as in RocketMQ, whose
    clients send such ones; ValueError for what no text gives.
    """
    if any("\x01" in name for name in properties):
        raise ValueError("property names do not hold \\x01")
    text = "\x02".join([f"{name}\x01{value}" for name, value in properties.items()])
    if text.count("\x02") != max(0, len(properties) - 1):
        raise ValueError("property names and values do not hold \\x02")
    return text


# bodies


def properties_text(buf: bytes, pos: int, size: int) -> str:
    """The properties of the whole record of `size` bytes at pos, as they are stored."""
    head = _HEAD.unpack_from(buf, pos)
    sys_flag, wide = head[7], 2 if head[1] == MAGIC_V2 else 1
    at = pos + 48 + (20 if sys_flag & SYS_BORN_IPV6 else 8) + 8 + (20 if sys_flag & SYS_STORE_IPV6 else 8)
    at += 16 + _AFTER_STORE.unpack_from(buf, at)[2]
    at += wide + (buf[at] if wide == 1 else _U16.unpack_from(buf, at)[0]) + 2
    return buf[at : pos + size].decode("utf-8", "replace")


def open_body(sys_flag: int, body: bytes, bytes_max: int = BODY_BYTES_MAX) -> bytes:
    """The body as its producer gave it. ValueError when it is damaged, larger than bytes_max or of an unknown kind."""
    if not sys_flag & SYS_COMPRESSED:
        return body
    kind = sys_flag >> SYS_COMPRESSION_SHIFT & 7
    if kind in (0, 3):
        return _inflate(body, bytes_max)
    if kind == 1:
        return _lz4(body, bytes_max)
    if kind == 2:
        return _zstd(body, bytes_max)
    raise ValueError(f"compression type {kind} is unknown")


def _inflate(body: bytes, bytes_max: int) -> bytes:
    opener = isal_zlib.decompressobj()
    try:
        opened: bytes = opener.decompress(body, bytes_max + 1)
    except _ZLIB_ERROR as error:
        raise ValueError(f"not zlib: {error}") from None
    if len(opened) > bytes_max:
        raise ValueError(f"expands beyond {bytes_max} bytes")
    if not opener.eof:
        raise ValueError("zlib stream cut short")
    return opened


def _lz4(body: bytes, bytes_max: int) -> bytes:
    try:
        lz4 = import_module("lz4.frame")
    except ImportError:
        raise ValueError("compressed with LZ4, and the package lz4 is not installed") from None
    opener = lz4.LZ4FrameDecompressor()
    try:
        opened: bytes = opener.decompress(body, max_length=bytes_max + 1)
    except RuntimeError as error:
        raise ValueError(f"not LZ4: {error}") from None
    if len(opened) > bytes_max or not opener.eof:
        raise ValueError(f"expands beyond {bytes_max} bytes, or is cut short")
    return opened


def _zstd(body: bytes, bytes_max: int) -> bytes:
    try:
        zstandard = import_module("zstandard")
    except ImportError:
        raise ValueError("compressed with ZSTD, and the package zstandard is not installed") from None
    try:
        reader = zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(io.BytesIO(body))
        opened: bytes = reader.read(bytes_max + 1)
    except zstandard.ZstdError as error:
        raise ValueError(f"not ZSTD: {error}") from None
    if len(opened) > bytes_max:
        raise ValueError(f"expands beyond {bytes_max} bytes")
    return opened


def body_crc(body: bytes) -> int:
    """What the record says of its stored body."""
    return int(isal_zlib.crc32(body)) & layout.CRC_MASK


# records


class RecordHead(TypedDict, total=False):
    """What a record says besides topic, body and properties; 0 and the loopback address where it is not given."""

    queue_id: int
    queue_offset: int
    physical_offset: int
    flag: int
    sys_flag: int
    born_ms: int
    born_host: bytes
    store_ms: int
    store_host: bytes
    reconsume_times: int
    prepared_offset: int


_LOOPBACK_BORN = b"\x7f\x00\x00\x01\x00\x00\x00\x00"
_LOOPBACK_STORE = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"


def encode_record(topic: bytes, body: bytes, properties: bytes = b"", **head: Unpack[RecordHead]) -> bytes:
    """One record; body and properties as they are stored, hosts packed (8 or 20 bytes, which sets the sys flag)."""
    born_host, store_host = head.get("born_host", _LOOPBACK_BORN), head.get("store_host", _LOOPBACK_STORE)
    sys_flag = head.get("sys_flag", 0) & ~(SYS_BORN_IPV6 | SYS_STORE_IPV6)
    sys_flag |= SYS_BORN_IPV6 if len(born_host) == layout.HOST_V6_BYTES else 0
    sys_flag |= SYS_STORE_IPV6 if len(store_host) == layout.HOST_V6_BYTES else 0
    size = FIXED_BYTES + len(body) + len(topic) + len(properties)
    size += len(born_host) + len(store_host) - 2 * layout.HOST_BYTES
    first = _HEAD.pack(
        size, MAGIC, body_crc(body), head.get("queue_id", 0), head.get("flag", 0), head.get("queue_offset", 0),
        head.get("physical_offset", 0), sys_flag, head.get("born_ms", 0),
    )  # fmt: skip
    retried = _AFTER_STORE.pack(head.get("reconsume_times", 0), head.get("prepared_offset", 0), len(body))
    return b"".join(
        (
            first,
            born_host,
            _I64.pack(head.get("store_ms", 0)),
            store_host,
            retried,
            body,
            bytes((len(topic),)),
            topic,
            _U16.pack(len(properties)),
            properties,
        )
    )


@lru_cache(maxsize=4096)
def _topic_text(topic: bytes) -> str:
    return topic.decode("utf-8", "replace")


def decode_record(
    buf: bytes | bytearray | memoryview,
    pos: int = 0,
    *,
    broker: str = "",
    check: bool = False,
    decompress: bool = True,
) -> ReceivedMessage | None:
    """The record at pos, or None when no whole record is there (with `check`, also when its body's CRC is wrong).

    Without `decompress` the body is as it is stored.
    """
    end = len(buf)
    if end - pos < FIXED_BYTES:
        return None
    size, magic, crc, queue_id, flag, queue_offset, physical, sys_flag, born_ms = _HEAD.unpack_from(buf, pos)
    if (magic != MAGIC and magic != MAGIC_V2) or size < FIXED_BYTES or size > end - pos:
        return None
    end = pos + size
    born = 20 if sys_flag & SYS_BORN_IPV6 else 8
    stored = 20 if sys_flag & SYS_STORE_IPV6 else 8
    at = pos + 48 + born
    wide = 2 if magic == MAGIC_V2 else 1
    if at + 8 + stored + 16 + wide + 2 > end:
        return None
    born_host = unpack_host(bytes(buf[at - born : at]))
    store_ms = _I64.unpack_from(buf, at)[0]
    at += 8 + stored
    store_host = unpack_host(bytes(buf[at - stored : at]))
    reconsume_times, prepared, body_size = _AFTER_STORE.unpack_from(buf, at)
    at += 16
    if not 0 <= body_size <= end - at - wide - 2:
        return None
    body = bytes(buf[at : at + body_size])
    at += body_size
    topic_size = buf[at] if wide == 1 else _U16.unpack_from(buf, at)[0]
    at += wide
    if topic_size > end - at - 2:
        return None
    topic = _topic_text(bytes(buf[at : at + topic_size]))
    at += topic_size
    properties_size = _U16.unpack_from(buf, at)[0]
    at += 2
    if properties_size != end - at or (check and body_crc(body) != crc):
        return None
    undecodable = None
    if decompress and sys_flag & SYS_COMPRESSED:
        try:
            body = open_body(sys_flag, body)
        except ValueError as error:
            undecodable = str(error)
    return ReceivedMessage(
        topic,
        body,
        queue_id,
        queue_offset,
        physical,
        parse_properties(bytes(buf[at:end]).decode("utf-8", "replace")),
        flag,
        sys_flag,
        born_ms,
        born_host,
        store_ms,
        store_host,
        reconsume_times,
        prepared,
        size,
        broker,
        undecodable,
    )


def iter_records(
    body: bytes | bytearray | memoryview, *, broker: str = "", check: bool = False
) -> Iterator[ReceivedMessage]:
    """The records of a pull's body, one after the other. WireError at bytes that are none."""
    pos = 0
    while pos < len(body):
        record = decode_record(body, pos, broker=broker, check=check)
        if record is None:
            raise WireError(f"no record at byte {pos} of {len(body)}")
        yield record
        pos += record.size


# batches


class BatchItem(NamedTuple):
    """One message of a batch body; properties in wire form."""

    body: bytes
    properties: bytes = b""
    flag: int = 0


def encode_batch(items: Iterable[tuple[bytes, bytes, int]]) -> bytes:
    """The body of a batch send: each message as size, magic 0, CRC 0, flag, body, properties. Of many, `items` is no list."""
    parts: list[bytes] = []
    for body, properties, flag in items:
        parts += (
            BATCH_HEAD.pack(BATCH_HEAD.size + len(body) + 2 + len(properties), 0, 0, flag, len(body)),
            body,
            _U16.pack(len(properties)),
            properties,
        )
    return b"".join(parts)


def decode_batch(body: bytes) -> list[BatchItem]:
    """The messages of a batch body. WireError when it is not exactly a row of them."""
    items = []
    at, end = 0, len(body)
    while at < end:
        if end - at < BATCH_HEAD.size + 2:
            raise WireError("batch cut short")
        size, _magic, _crc, flag, body_size = BATCH_HEAD.unpack_from(body, at)
        start = at + BATCH_HEAD.size
        stop = at + size
        if stop > end or not 0 <= body_size <= size - BATCH_HEAD.size - 2:
            raise WireError(f"batch message of {size} bytes with a body of {body_size}")
        properties_size = _U16.unpack_from(body, start + body_size)[0]
        if start + body_size + 2 + properties_size != stop:
            raise WireError(f"batch message of {size} bytes with properties of {properties_size}")
        items.append(BatchItem(body[start : start + body_size], body[stop - properties_size : stop], flag))
        at = stop
    return items
