"""One message as the bytes of its request, and the answer that says where it is stored, without an object of the protocol for
either: between two answers a process sleeps, and each piece of code that a send goes through is out of the caches by then.

Only what nearly every send is: one message without a flag, not compressed, not signed. All else, and every other answer, goes
through `client.sending` and `wire.remoting`, from which the bytes here are made.
"""

from __future__ import annotations

import itertools
from struct import Struct
from typing import Any

import cython
import msgspec

from penstock.client.results import SEND_STATUSES, SendReceipt
from penstock.client.routes import MessageQueue
from penstock.client.sending import properties_text, send_header
from penstock.client.sentanswer import SentAnswer
from penstock.message import Message
from penstock.wire.codes import RequestCode, ResponseCode
from penstock.wire.record import BODY_BYTES_MAX
from penstock.wire.remoting import RemotingCommand, encode

if cython.compiled:
    from cython.cimports.penstock import words
else:
    from penstock import words

# The numbers of requests, one row for all lines of the process: an answer that comes twice is the answer to no other request.
OPAQUES = itertools.count(1)
_MARK = b"\xff"  # no UTF-8 has this byte, so no name in a header can be taken for a place
_PLACE: Any = msgspec.Raw(_MARK)
_PREFIX = Struct(">II")  # the frame's length, then a JSON header's
_encode_json = msgspec.json.Encoder().encode
_SEND_OK = SEND_STATUSES[ResponseCode.SUCCESS]


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
        self._queue_id = queue.queue_id
        self._key = key

    def receipt(self, answer: SentAnswer) -> SendReceipt | None:
        """What an answer says to it; None where that is to another request, or not that it is stored."""
        if answer.opaque != self.opaque or answer.flag < 0 or not answer.flag & words.FLAG_RESPONSE:
            return None
        status = _SEND_OK if not answer.code else SEND_STATUSES.get(answer.code)  # type: ignore[call-overload]
        ids, queue = answer.msg_id(), self._queue
        if status is None or ids is None or answer.queue_id < 0 or answer.queue_offset < 0:
            return None
        if answer.queue_id != self._queue_id:
            queue = MessageQueue(queue.topic, queue.broker, answer.queue_id)
        stored = tuple(ids.split(",")) if "," in ids else (ids,)
        return SendReceipt(status, queue, answer.queue_offset, (self._key,), stored, answer.transaction_id())


class PlainSends:
    """Requests that store a message in one message queue: what they have in common is made once."""

    def __init__(self, group: str, queue: MessageQueue) -> None:
        fields: dict[str, Any] = send_header(group, queue, 0, 0, 0, "")
        fields["g"] = fields["i"] = _PLACE
        header = encode(RemotingCommand(RequestCode.SEND_MESSAGE_V2, fields, opaque=_PLACE))[words.PREFIX_BYTES :]
        self._begin, self._to_born, self._to_properties, self._end = header.split(_MARK)
        self._fixed = len(header) - header.count(_MARK)
        self._queue = queue

    def request(self, message: Message, key: str, now_ms: int) -> PlainSend:
        """One more of them. ValueError for properties that cannot travel."""
        opaque = next(OPAQUES) & words.INT32_MAX
        number, born, body = b"%d" % opaque, b'"%d"' % now_ms, message.body
        properties = _encode_json(properties_text(message, key))
        size = self._fixed + len(number) + len(born) + len(properties)
        prefix = _PREFIX.pack(words.LENGTH_BYTES + size + len(body), size)
        parts = (prefix, self._begin, number, self._to_born, born, self._to_properties, properties, self._end, body)
        return PlainSend(b"".join(parts), opaque, self._queue, key)
