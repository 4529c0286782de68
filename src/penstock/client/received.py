"""What came from a broker becomes messages, in one compiled pass: the records of a pull's answer, the message frames of NSQ.

Every length is checked against its record before it is followed: a broker that lies costs its own answer, never a byte
beside it. Each message has bytes of its own, copied out once: whoever keeps a short message keeps no answer of megabytes.
The formats are drawn in `penstock.wire.record` and `penstock.wire.nsq`.
"""

# mypy: disable-error-code="no-any-return"
from __future__ import annotations

import cython

from penstock import message
from penstock.errors import WireError
from penstock.message import ReceivedMessage
from penstock.msgid import unpack_host
from penstock.octets import Readable
from penstock.wire.codes import SYS_COMPRESSED
from penstock.wire.record import open_body

if cython.compiled:
    from cython.cimports.cpython.bytes import PyBytes_FromStringAndSize
    from cython.cimports.cpython.unicode import PyUnicode_DecodeUTF8
    from cython.cimports.penstock import words
    from cython.cimports.penstock.octets import address, be16, be32, be64, find, find2, same, ube32
    from cython.cimports.penstock.wire import fields, layout
else:
    from penstock import words
    from penstock.octets import address, be16, be32, be64, find, find2, same, ube32
    from penstock.wire import fields, layout

_TAGS = message.TAGS


class RecordCutter:
    """The answer to a pull, read record by record; `broker` is the name of who sent it.

    What one record shares with the one before it (topic, times, hosts) is one object.
    """

    def __init__(self, records: bytes, broker: str) -> None:
        self.owner = records
        self.broker = broker
        self.base = address(records)
        self.topic = self.born = self.store = ""
        self.born_ms: int = 0
        self.store_ms: int = 0
        self.topic_at = self.topic_bytes = self.born_at = self.born_bytes = self.store_at = self.store_bytes = 0

    def cut(self, first: int, tags: frozenset[str]) -> list[ReceivedMessage]:
        """The messages from queue offset `first` on; with `tags` those that have one of them. WireError at bytes that are
        no record.
        """
        found: list[ReceivedMessage] = []
        every = not tags
        p, end = 0, len(self.owner)
        while p < end:
            size = self._find(p, end - p)
            if size < 0:
                raise WireError(f"no record at byte {p} of {end}")
            if be64(self.base, p + layout.QUEUE_OFFSET) >= first:
                properties = _properties(self.base, p + size - self.properties_bytes, p + size)
                if every or properties.get(_TAGS) in tags:
                    found.append(self._message(p, size, properties))
            p += size
        return found

    def _find(self, p: int, left: int) -> int:
        """Where the parts of the record at p lie; its size, or -1 when none is there."""
        if left < layout.RECORD_FIXED_BYTES:
            return -1
        size = be32(self.base, p)
        magic = ube32(self.base, p + layout.MAGIC)
        if size < layout.RECORD_FIXED_BYTES or size > left or (magic != layout.MAGIC_V1 and magic != layout.MAGIC_V2):
            return -1
        flags = be32(self.base, p + layout.SYS_FLAG)
        end = p + size
        at = p + layout.BORN_HOST + (layout.HOST_V6_BYTES if flags & layout.SYS_BORN_IPV6 else layout.HOST_BYTES)
        self.stored = at
        at += layout.MS_BYTES + (layout.HOST_V6_BYTES if flags & layout.SYS_STORE_IPV6 else layout.HOST_BYTES)
        self.tried = at
        at += layout.BODY - layout.RECONSUME_TIMES
        self.body = at
        if at + layout.TAIL_BYTES_MIN > end:
            return -1
        length = be32(self.base, at - layout.LENGTH_BYTES)
        if length < 0 or length > end - at - layout.TAIL_BYTES_MIN:
            return -1
        self.body_bytes = length
        at += length
        if magic == layout.MAGIC_V2:
            length = be16(self.base, at)
            at += 2
        else:
            length = be16(self.base, at) >> layout.TOPIC_SHIFT
            at += 1
        if length > end - at - 2:
            return -1
        self.name = at
        self.name_bytes = length
        at += length
        self.properties_bytes = be16(self.base, at)
        return size if at + 2 + self.properties_bytes == end else -1

    def _message(self, p: int, size: int, properties: dict[str, str]) -> ReceivedMessage:
        base = self.base
        flags = be32(base, p + layout.SYS_FLAG)
        body = piece(base, self.body, self.body_bytes)
        undecodable: str | None = None
        if flags & layout.SYS_COMPRESSED:
            try:
                body = open_body(SYS_COMPRESSED | flags, body)
            except ValueError as error:
                undecodable = str(error)
        self._share(p)
        return ReceivedMessage(
            self.topic,
            body,
            be32(base, p + layout.QUEUE_ID),
            be64(base, p + layout.QUEUE_OFFSET),
            be64(base, p + layout.PHYSICAL),
            properties,
            be32(base, p + layout.FLAG),
            flags,
            self.born_ms,
            self.born,
            self.store_ms,
            self.store,
            be32(base, self.tried),
            be64(base, self.tried + layout.LENGTH_BYTES),
            size,
            self.broker,
            undecodable,
        )

    def _share(self, p: int) -> None:
        """Topic, times and hosts of the record at p: the objects of the record before where they are the same."""
        base = self.base
        none = self.store_bytes == 0  # made yet
        if none or be64(base, self.born_at - layout.MS_BYTES) != be64(base, p + layout.BORN_MS):
            self.born_ms = be64(base, p + layout.BORN_MS)
        if none or be64(base, self.store_at - layout.MS_BYTES) != be64(base, self.stored):
            self.store_ms = be64(base, self.stored)
        if self.name_bytes != self.topic_bytes or not same(base, self.topic_at, base, self.name, self.name_bytes):
            self.topic = text(base, self.name, self.name_bytes)
            self.topic_bytes = self.name_bytes
        self.topic_at = self.name
        at = p + layout.BORN_HOST
        size = self.stored - at
        if size != self.born_bytes or not same(base, self.born_at, base, at, size):
            self.born = unpack_host(piece(base, at, size))
            self.born_bytes = size
        self.born_at = at
        at = self.stored + layout.MS_BYTES
        size = self.tried - at
        if size != self.store_bytes or not same(base, self.store_at, base, at, size):
            self.store = unpack_host(piece(base, at, size))
            self.store_bytes = size
        self.store_at = at


def cut_records(records: bytes, broker: str, first: int, tags: frozenset[str]) -> list[ReceivedMessage]:
    """The messages of a pull's answer from queue offset `first` on; with `tags` those that have one of them.

    WireError at bytes that are no record.
    """
    return RecordCutter(records, broker).cut(first, tags)


def _properties(base: Readable, p: int, end: int) -> dict[str, str]:
    """The pairs of a properties text, as `wire.record.parse_properties` has them; of several with one name the last."""
    found: dict[str, str] = {}
    while p < end:
        stop = find(base, p, end, words.PROPERTY_END)
        if stop < 0:
            stop = end
        cut = find2(base, p, stop, words.NAME_END, words.NAME_END)
        if cut >= 0 and cut + 1 < stop:
            found[_name(base, p, cut - p)] = text(base, cut + 1, stop - cut - 1)
        p = stop + 1
    return found


def _name(base: Readable, p: int, n: int) -> str:
    """A property's name; the common ones are made once."""
    if n == fields.UNIQUE_BYTES and be64(base, p) == fields.UNIQUE_WORD:
        return message.UNIQUE_KEY
    if n == layout.LENGTH_BYTES:
        word = be32(base, p)
        if word == fields.KEYS_WORD:
            return message.KEYS
        if word == fields.TAGS_WORD:
            return _TAGS
    return text(base, p, n)


def piece(base: Readable, p: int, n: int) -> bytes:
    """n bytes at p, as an object of their own."""
    if cython.compiled:
        return PyBytes_FromStringAndSize(cython.cast("const char *", base) + p, n)
    return bytes(base[p : p + n])


def text(base: Readable, p: int, n: int) -> str:
    """The text that n bytes at p spell; what is no UTF-8 is replaced."""
    if cython.compiled:
        return PyUnicode_DecodeUTF8(cython.cast("const char *", base) + p, n, b"replace")
    return bytes(base[p : p + n]).decode("utf-8", "replace")
