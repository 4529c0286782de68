"""Draft: one message on its way into the log, as pointers into whatever holds its parts.

One object is filled again for every message: by a front from the bytes of a request, by recovery from a record
of the log. Sources are (buffer, position, length) and need to stay only for the length of a call.
"""

# mypy: disable-error-code="no-any-return"
from __future__ import annotations

import cython

from penstock.octets import Readable

if cython.compiled:
    from cython.cimports.penstock import words
    from cython.cimports.penstock.log.consumequeue import ConsumeQueue
    from cython.cimports.penstock.octets import address, be16, be32, be64, find, java_hash, ube32
    from cython.cimports.penstock.wire import fields, layout
else:
    from penstock import words
    from penstock.log.consumequeue import ConsumeQueue
    from penstock.octets import address, be16, be32, be64, find, java_hash, ube32
    from penstock.wire import fields, layout


class Draft:
    """What `LogStore.append` takes (all but the last four fields) and says (physical, queue_offset, store_ms, size)."""

    def __init__(self) -> None:
        self.body: Readable = cython.NULL
        self.props: Readable = cython.NULL
        self.born: Readable = cython.NULL
        self.topic: Readable = cython.NULL
        self.tail: Readable = cython.NULL
        self._tail_object = b""
        self.tail_pos = self.tail_len = self.all_props_len = 0
        self._body_object = b""
        self._props_object = b""
        self._born_object = b""
        self.body_pos = self.body_len = 0
        self.props_pos = self.props_len = 0
        self.topic_pos = self.topic_len = 0
        self.queue: ConsumeQueue = None  # type: ignore[assignment]
        self.queue_id = 0
        self.born_len = layout.HOST_BYTES
        self.flag = 0
        self.sys_flag = 0
        self.born_ms = 0
        self.reconsume_times = 0
        self.prepared = 0
        self.tags_code = 0
        self.uniq_pos = self.uniq_len = 0
        self.keys_pos = self.keys_len = 0
        self.seq_pos = self.seq_len = 0
        self.indexed = True
        self.physical = self.queue_offset = self.store_ms = self.size = 0
        self.set_body(b"")
        self.set_properties(b"")
        self.set_born(b"\x7f\x00\x00\x01\x00\x00\x00\x00")

    def set_body(self, body: bytes) -> None:
        """Take the body from an object."""
        self._body_object = body
        self.body = address(body)
        self.body_pos = 0
        self.body_len = len(body)

    def set_properties(self, text: bytes) -> None:
        """Take the properties text from an object, and find TAGS, KEYS and UNIQ_KEY in it."""
        self._props_object = text
        self.props = address(text)
        self.props_pos = 0
        self.props_len = len(text)
        self.scan()

    def set_tail(self, text: bytes) -> None:
        """Properties the broker adds to those of the sender (CLUSTER …); none of the three that are looked for."""
        self._tail_object = text
        self.tail = address(text)
        self.tail_pos = 0
        self.tail_len = len(text)

    def set_born(self, host: bytes) -> None:
        """Where the message came from: 4 or 16 bytes of address, 4 of port."""
        self._born_object = host
        self.born = address(host)
        self.born_len = len(host)

    def topic_name(self) -> bytes:
        """The topic of a loaded record."""
        return bytes(self.topic[self.topic_pos : self.topic_pos + self.topic_len])

    def scan(self) -> None:
        """Find TAGS (into tags_code), KEYS, UNIQ_KEY and PSEQ in the properties text; the last of each name counts."""
        self.tags_code = 0
        self.uniq_len = self.keys_len = self.seq_len = 0
        p = self.props_pos
        end = p + self.props_len
        while p < end:
            stop = find(self.props, p, end, words.PROPERTY_END)
            if stop < 0:
                stop = end
            eq = find(self.props, p, stop, words.NAME_END)
            if eq >= 0:
                n = eq - p
                v = eq + 1
                word = be32(self.props, p) if n == fields.TAGS_BYTES else 0
                if word == fields.TAGS_WORD:
                    self.tags_code = java_hash(self.props, v, stop - v, 0)
                elif word == fields.KEYS_WORD:
                    self.keys_pos = v
                    self.keys_len = stop - v
                elif word == fields.SEQUENCE_WORD:
                    self.seq_pos = v
                    self.seq_len = stop - v
                elif n == fields.UNIQUE_BYTES and be64(self.props, p) == fields.UNIQUE_WORD:
                    self.uniq_pos = v
                    self.uniq_len = stop - v
            p = stop + 1

    def sequence(self) -> bytes:
        """The value of PSEQ; empty without."""
        return bytes(self.props[self.seq_pos : self.seq_pos + self.seq_len]) if self.seq_len > 0 else b""

    def load(self, b: Readable, at: int) -> None:
        """Take everything from a whole record at b[at:]; size, lengths and magic were checked before. No queue yet."""
        self.size = be32(b, at)
        self.queue_id = be32(b, at + layout.QUEUE_ID)
        self.flag = be32(b, at + layout.FLAG)
        self.queue_offset = be64(b, at + layout.QUEUE_OFFSET)
        self.physical = be64(b, at + layout.PHYSICAL)
        self.sys_flag = be32(b, at + layout.SYS_FLAG)
        self.born_ms = be64(b, at + layout.BORN_MS)
        self.born = b
        self.born_len = layout.HOST_V6_BYTES if self.sys_flag & layout.SYS_BORN_IPV6 else layout.HOST_BYTES
        b_pos = at + layout.BORN_HOST + self.born_len
        self.store_ms = be64(b, b_pos)
        b_pos += layout.MS_BYTES
        b_pos += layout.HOST_V6_BYTES if self.sys_flag & layout.SYS_STORE_IPV6 else layout.HOST_BYTES
        self.reconsume_times = be32(b, b_pos)
        self.prepared = be64(b, b_pos + layout.PREPARED - layout.RECONSUME_TIMES)
        self.body = b
        b_pos += layout.BODY_LENGTH - layout.RECONSUME_TIMES
        self.body_len = be32(b, b_pos)
        self.body_pos = b_pos + layout.LENGTH_BYTES
        b_pos = self.body_pos + self.body_len
        self.topic = b
        if ube32(b, at + layout.MAGIC) == layout.MAGIC_V2:  # RocketMQ 5's second version: two bytes of topic length
            tl = be16(b, b_pos)
            b_pos += 2
        else:
            tl = b[b_pos]
            b_pos += 1
        self.topic_pos = b_pos
        self.topic_len = tl
        b_pos += tl
        self.props = b
        self.props_len = be16(b, b_pos)
        self.props_pos = b_pos + 2
        self.indexed = True
        self.scan()
