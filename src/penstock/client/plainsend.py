"""One message as the bytes of its request, and the answer that says where it is stored, without an object of the protocol for
either: between two answers a process sleeps, and each piece of code that a send goes through is out of the caches by then.

Only what nearly every send is: one message without a flag, not compressed, not signed. All else, and every other answer, goes
through `client.sending` and `wire.remoting`, from which the bytes here are made.
"""

from __future__ import annotations

import itertools
from struct import Struct
from typing import Any

import msgspec

from penstock.client.results import SEND_STATUSES, SendReceipt
from penstock.client.routes import MessageQueue
from penstock.client.sending import properties_text, send_header
from penstock.message import Message
from penstock.wire.codes import RequestCode
from penstock.wire.fastjson import BAD_JSON
from penstock.wire.record import BODY_BYTES_MAX
from penstock.wire.remoting import FLAG_RESPONSE, RemotingCommand, encode
from penstock.words import INT32_MAX, LENGTH_BYTES, PREFIX_BYTES

# The numbers of requests, one row for all lines of the process: an answer that comes twice is the answer to no other request.
OPAQUES = itertools.count(1)
_MARK = b"\xff"  # no UTF-8 has this byte, so no name in a header can be taken for a place
_PLACE: Any = msgspec.Raw(_MARK)
_PREFIX = Struct(">II")  # the frame's length, then a JSON header's
_encode_json = msgspec.json.Encoder().encode


DIGITS_MAX = 18  # of a number that is read here


class _Stored(msgspec.Struct, gc=False):
    msgId: str
    queueId: str
    queueOffset: str
    transactionId: str | None = None


class _Answer(msgspec.Struct, gc=False):
    code: int
    flag: int
    opaque: int
    extFields: _Stored


_decode = msgspec.json.Decoder(_Answer).decode


def is_plain(message: Message, compress_over: int) -> bool:
    """Whether a message can be sent so."""
    size = len(message.body)
    return not message.flag and size <= compress_over and size <= BODY_BYTES_MAX


class PlainSend:
    """A request: its frame, the number in it, and the id that its message gets."""

    def __init__(self, frame: bytes, opaque: int, queue: MessageQueue, key: str) -> None:
        self.frame = frame
        self.opaque = opaque
        self._queue = queue
        self._key = key

    def receipt(self, header: bytes) -> SendReceipt | None:
        """What a JSON header says that answers it; None for any other header."""
        try:
            answer = _decode(header)
        except BAD_JSON:
            return None
        stored, queue = answer.extFields, self._queue
        status = SEND_STATUSES.get(answer.code)  # type: ignore[call-overload]
        if status is None or answer.opaque != self.opaque or not answer.flag & FLAG_RESPONSE:
            return None
        queue_id, offset = _number(stored.queueId), _number(stored.queueOffset)
        if queue_id < 0 or offset < 0:
            return None
        if queue_id != queue.queue_id:
            queue = MessageQueue(queue.topic, queue.broker, queue_id)
        return SendReceipt(status, queue, offset, (self._key,), tuple(stored.msgId.split(",")), stored.transactionId)


class PlainSends:
    """Requests that store a message in one message queue: what they have in common is made once."""

    def __init__(self, group: str, queue: MessageQueue) -> None:
        fields: dict[str, Any] = send_header(group, queue, 0, 0, 0, "")
        fields["g"] = fields["i"] = _PLACE
        header = encode(RemotingCommand(RequestCode.SEND_MESSAGE_V2, fields, opaque=_PLACE))[PREFIX_BYTES:]
        self._begin, self._to_born, self._to_properties, self._end = header.split(_MARK)
        self._fixed = len(header) - header.count(_MARK)
        self._queue = queue

    def request(self, message: Message, key: str, now_ms: int) -> PlainSend:
        """One more of them. ValueError for properties that cannot travel."""
        opaque = next(OPAQUES) & INT32_MAX
        number, born = str(opaque).encode(), b'"' + str(now_ms).encode() + b'"'
        properties, body = _encode_json(properties_text(message, key)), message.body
        size = self._fixed + len(number) + len(born) + len(properties)
        prefix = _PREFIX.pack(LENGTH_BYTES + size + len(body), size)
        parts = (prefix, self._begin, number, self._to_born, born, self._to_properties, properties, self._end, body)
        return PlainSend(b"".join(parts), opaque, self._queue, key)


def _number(text: str) -> int:
    """The number that these digits are; -1 where they are not."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX else -1
