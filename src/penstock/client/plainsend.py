"""One message as the bytes of its request, and the answer that says where it is stored, without an object of the protocol for
either: between two answers a process sleeps, and each piece of code that a send goes through is out of the caches by then.

Only what nearly every send is: one message without a flag, not compressed, not signed. All else, and every other answer, goes
through `client.sending` and `wire.remoting`, from which the bytes here are made.
"""

from __future__ import annotations

import itertools
from typing import Any

import cython
import msgspec

from penstock.client.results import SEND_STATUSES, SendReceipt
from penstock.client.routes import MessageQueue
from penstock.client.sending import properties_text, send_header
from penstock.client.sentanswer import SentAnswer
from penstock.message import Message
from penstock.octets import Writable
from penstock.wire import names
from penstock.wire.codes import RequestCode, ResponseCode
from penstock.wire.record import BODY_BYTES_MAX
from penstock.wire.remoting import RemotingCommand, encode

if cython.compiled:
    from cython.cimports.penstock import words
    from cython.cimports.penstock.client.sending import is_bare
    from cython.cimports.penstock.octets import address, blank_array, copy, put8, put32
else:
    from penstock import words
    from penstock.client.sending import is_bare
    from penstock.octets import address, blank_array, copy, put8, put32

# The numbers of requests, one row for all lines of the process: an answer that comes twice is the answer to no other request.
OPAQUES = itertools.count(1)
_MARK = b"\xff"  # no UTF-8 has this byte, so no name in a header can be taken for a place
_PLACE: Any = msgspec.Raw(_MARK)
_BARE = msgspec.json.encode(f"{names.UNIQUE_KEY}\x01").removesuffix(b'"')  # of a message's properties, up to its id
_QUOTE = b'"'
_encode_json = msgspec.json.Encoder().encode
_SEND_OK = SEND_STATUSES[ResponseCode.SUCCESS]


def is_plain(message: Message, compress_over: int) -> bool:
    """Whether a message can be sent so."""
    size = len(message.body)
    return not message.flag and size <= compress_over and size <= BODY_BYTES_MAX


class PlainSend:
    """A request: its frame, the number in it, and the id that its message gets."""

    def __init__(self, frame: bytearray, opaque: int, queue: MessageQueue, key: str) -> None:
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
        fields["i"] = _PLACE
        fields["g"] = msgspec.Raw(b'"' + _MARK + b'"')
        header = encode(RemotingCommand(RequestCode.SEND_MESSAGE_V2, fields, opaque=_PLACE))[words.PREFIX_BYTES :]
        self._begin, self._to_born, self._to_properties, self._end = header.split(_MARK)
        self._fixed = len(header) - len(_MARK) * header.count(_MARK)
        self._queue = queue

    def request(self, message: Message, key: str, now_ms: int) -> PlainSend:
        """One more of them; `key` is of letters and digits. ValueError for properties that cannot travel."""
        opaque, body = next(OPAQUES) & words.INT32_MAX, message.body
        properties, name, end = _BARE, key.encode(), _QUOTE
        if not is_bare(message):
            properties, name, end = _encode_json(properties_text(message, key)), b"", b""
        texts = len(properties) + len(name) + len(end)
        size = self._fixed + _digits(opaque) + _digits(now_ms) + texts
        total = words.PREFIX_BYTES + size + len(body)
        frame = blank_array(total)
        to = address(frame)
        put32(to, 0, total - words.LENGTH_BYTES)
        put32(to, words.LENGTH_BYTES, size)  # of a JSON header
        p = _put(to, words.PREFIX_BYTES, self._begin)
        p = _put_digits(to, p, opaque)
        p = _put(to, p, self._to_born)
        p = _put_digits(to, p, now_ms)
        p = _put(to, p, self._to_properties)
        p = _put(to, _put(to, _put(to, p, properties), name), end)
        _put(to, _put(to, p, self._end), body)
        return PlainSend(frame, opaque, self._queue, key)


def _put(to: Writable, p: int, part: bytes) -> int:
    """Write these bytes at p; where they end."""
    copy(to, p, address(part), 0, len(part))
    return p + len(part)


def _digits(value: int) -> int:
    """How many a number has."""
    count = 1
    while value >= words.TEN:
        value //= words.TEN
        count += 1
    return count


def _put_digits(to: Writable, p: int, value: int) -> int:
    """Write a number at p; where it ends."""
    end = p + _digits(value)
    at = end
    while at > p:
        at -= 1
        put8(to, at, words.DIGIT_0 + value % words.TEN)
        value //= words.TEN
    return end
