"""The positive answers to sends and pulls, written in place: header and lengths straight into an outbox, in both of
remoting's header types. All other answers are objects (`wire.remoting`).

    one message     answers.sent(out, …)
    a batch         answers.begin_batch(out, …), next_id for each message behind the first, end_batch
    a pull          answers.found(out, …), then the records
"""

from __future__ import annotations

import cython

from penstock.wire.outbox import Outbox

if cython.compiled:
    from cython.cimports.penstock import words
    from cython.cimports.penstock.octets import address, put32
    from cython.cimports.penstock.wire import fields
else:
    from penstock import words
    from penstock.octets import address, put32
    from penstock.wire import fields


class Answers:
    """Writes one answer after the other; what lies between a begin and its end is kept here."""

    def __init__(self, store_host: bytes) -> None:
        self._texts = [
            b'{"code":0,"extFields":{"MSG_REGION":"DefaultRegion","TRACE_ON":"true","msgId":"',
            b'","queueId":"',
            b'","queueOffset":"',
            b'"},"flag":1,"language":"JAVA","opaque":',
            b',"serializeTypeCurrentRPC":"JSON","version":409}',
            b'{"code":0,"extFields":{"maxOffset":"',
            b'","minOffset":"',
            b'","nextBeginOffset":"',
            b'","suggestWhichBrokerId":"0"},"flag":1,"language":"JAVA","opaque":',
            b',"remark":"FOUND","serializeTypeCurrentRPC":"JSON","version":409}',
            store_host.hex().upper().encode(),
            b"\x00\x0aMSG_REGION\x00\x00\x00\x0dDefaultRegion\x00\x08TRACE_ON\x00\x00\x00\x04true\x00\x05msgId",
            b"\x00\x07queueId",
            b"\x00\x0bqueueOffset",
            b"\x00\x09maxOffset",
            b"\x00\x09minOffset",
            b"\x00\x0fnextBeginOffset",
            b"\x00\x14suggestWhichBrokerId\x00\x00\x00\x010",
            b"\x00\x00\x00\x01\x99",  # code 0, language JAVA, version 409
            b"\x00\x00\x00\x05FOUND",
            b'","suggestWhichBrokerId":"',
            b"\x00\x14suggestWhichBrokerId",
        ]
        self._blob = b"".join(self._texts)
        self.base = address(self._blob)
        if not cython.compiled:
            self.at = [0] * fields.TEXTS
            self.length = [0] * fields.TEXTS
        at = 0
        for i, text in enumerate(self._texts):
            self.at[i] = at
            self.length[i] = len(text)
            at += len(text)
        self.kind = 0
        self.opaque = 0
        self.start = 0  # of the answer that is being written
        self.ext = 0  # where the length of its binary ext fields stands

    # -- sends ---------------------------------------------------------------------------------------------------

    def sent(self, out: Outbox, kind: int, opaque: int, physical: int, queue_id: int, queue_offset: int) -> None:
        """The answer to a message that was stored: `kind` is the header's type."""
        self.begin_batch(out, kind, opaque, physical, 1)
        self.end_batch(out, queue_id, queue_offset)

    def begin_batch(self, out: Outbox, kind: int, opaque: int, physical: int, count: int) -> None:
        """Begin the answer to `count` messages and name the first by its place."""
        self._begin(out, kind, opaque)
        if kind:
            out.put_int32(0)  # no remark
            self.ext = out.size
            out.put_int32(0)
            self._put(out, fields.BINARY_SENT)
            out.put_int32((self.length[fields.HOST_DIGITS] + words.PHYSICAL_DIGITS + 1) * count - 1)
        else:
            self._put(out, fields.JSON_SENT)
        self._put(out, fields.HOST_DIGITS)
        out.put_hex(physical, words.PHYSICAL_DIGITS)

    def next_id(self, out: Outbox, physical: int) -> None:
        """Name one more message of a batch."""
        out.room(1)
        out.base[out.size] = words.COMMA
        out.size += 1
        self._put(out, fields.HOST_DIGITS)
        out.put_hex(physical, words.PHYSICAL_DIGITS)

    def end_batch(self, out: Outbox, queue_id: int, queue_offset: int) -> None:
        """End the answer with the place in the queue."""
        if self.kind:
            self._put(out, fields.BINARY_QUEUE)
            self._number(out, queue_id)
            self._put(out, fields.BINARY_OFFSET)
            self._number(out, queue_offset)
            self._end_fields(out)
        else:
            self._put(out, fields.JSON_SENT_QUEUE)
            out.put_decimal(queue_id)
            self._put(out, fields.JSON_SENT_OFFSET)
            out.put_decimal(queue_offset)
            self._put(out, fields.JSON_SENT_OPAQUE)
            out.put_decimal(self.opaque)
            self._put(out, fields.JSON_END)
        self._end(out, 0)

    # -- pulls ---------------------------------------------------------------------------------------------------

    def found(
        self, out: Outbox, kind: int, opaque: int, max_offset: int, min_offset: int, next_offset: int, body: int,
        suggested: int = 0
    ) -> None:  # fmt: skip
        """The answer to a pull up to its `body` bytes of records, which the caller puts behind it. `suggested`: the id of the
        broker that is to be asked next.
        """
        self._begin(out, kind, opaque)
        if kind:
            self._put(out, fields.BINARY_FOUND)
            self.ext = out.size
            out.put_int32(0)
            self._put(out, fields.BINARY_MAX)
            self._number(out, max_offset)
            self._put(out, fields.BINARY_MIN)
            self._number(out, min_offset)
            self._put(out, fields.BINARY_NEXT)
            self._number(out, next_offset)
            if suggested:
                self._put(out, fields.BINARY_SUGGESTS)
                self._number(out, suggested)
            else:
                self._put(out, fields.BINARY_SUGGESTED)
            self._end_fields(out)
        else:
            self._put(out, fields.JSON_FOUND)
            out.put_decimal(max_offset)
            self._put(out, fields.JSON_FOUND_MIN)
            out.put_decimal(min_offset)
            self._put(out, fields.JSON_FOUND_NEXT)
            out.put_decimal(next_offset)
            if suggested:
                self._put(out, fields.JSON_FOUND_SUGGESTS)
                out.put_decimal(suggested)
                self._put(out, fields.JSON_SENT_OPAQUE)
            else:
                self._put(out, fields.JSON_FOUND_OPAQUE)
            out.put_decimal(opaque)
            self._put(out, fields.JSON_FOUND_END)
        self._end(out, body)

    # -- parts ---------------------------------------------------------------------------------------------------

    def _put(self, out: Outbox, text: int) -> None:
        out.put_from(self.base, self.at[text], self.length[text])

    def _begin(self, out: Outbox, kind: int, opaque: int) -> None:
        """Leave room for the lengths and write what every positive answer begins with."""
        self.kind = kind
        self.opaque = opaque
        self.start = out.size
        out.room(fields.ANSWER_ROOM)
        out.size += words.PREFIX_BYTES
        if kind:
            self._put(out, fields.BINARY_HEAD)
            out.put_int32(opaque)
            out.put_int32(words.FLAG_RESPONSE)

    def _end(self, out: Outbox, body: int) -> None:
        """Fill in the lengths; `body` more bytes follow the header."""
        size = out.size - self.start
        put32(out.base, self.start, size - words.LENGTH_BYTES + body)
        put32(out.base, self.start + words.LENGTH_BYTES, self.kind << words.TYPE_SHIFT | (size - words.PREFIX_BYTES))

    def _number(self, out: Outbox, value: int) -> None:
        """A number as the value of a binary ext field: its length, then its digits."""
        at = out.size
        out.put_int32(0)
        out.put_decimal(value)
        put32(out.base, at, out.size - at - words.LENGTH_BYTES)

    def _end_fields(self, out: Outbox) -> None:
        put32(out.base, self.ext, out.size - self.ext - words.LENGTH_BYTES)
