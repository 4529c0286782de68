"""NSQ V2 as a client speaks it: commands to bytes, bytes to frames. No I/O here; drawn in `penstock.wire.nsq`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import cython

from penstock.errors import BrokerRefused, ConnectionLost, WireError
from penstock.message import ReceivedMessage
from penstock.octets import Readable
from penstock.security import Security
from penstock.wire.codes import ResponseCode
from penstock.wire.nsq import MAGIC

if cython.compiled:
    from cython.cimports.penstock import words
    from cython.cimports.penstock.client.received import piece, text
    from cython.cimports.penstock.octets import address, be16, be64, ube32
else:
    from penstock import words
    from penstock.client.received import piece, text
    from penstock.octets import address, be16, be64, ube32

NO_PROPERTIES: Mapping[str, str] = {}
NS_A_MS = 1_000_000
FRAME_BYTES_MAX = 64 << 20  # of one frame, far beyond what any broker is set to send
HEARTBEAT = b"_heartbeat_"
NOP = b"NOP\n"
CLOSE = b"CLS\n"
OK = b"\0\0\0\6\0\0\0\0OK"  # the whole frame

# Errors that say something of one message. They answer no command, and the connection lives.
OF_A_MESSAGE = (b"E_FIN_FAILED", b"E_REQ_FAILED", b"E_TOUCH_FAILED", b"E_REJECT_FAILED")


# What a broker's refusal is in the response codes that `Error.code` has. 14: the same may go through later.
_CODES = {
    "E_PUB_FAILED": ResponseCode.SERVICE_NOT_AVAILABLE,
    "E_MPUB_FAILED": ResponseCode.SERVICE_NOT_AVAILABLE,
    "E_DPUB_FAILED": ResponseCode.SERVICE_NOT_AVAILABLE,
    "E_UNAUTHORIZED": ResponseCode.NO_PERMISSION,
    "E_AUTH_FAILED": ResponseCode.NO_PERMISSION,
    "E_AUTH_FIRST": ResponseCode.NO_PERMISSION,
}


class Frame(NamedTuple):
    """What came from the broker: `kind` is RESPONSE or ERROR."""

    kind: int
    data: bytes


class FrameParser:
    """Bytes to frames, however they are cut. `error` is set by what is no frame; nothing follows it.

    Messages, of `topic` at `broker`, are taken by themselves: `messages` are those that came since they were taken.
    """

    def __init__(self, topic: str = "", broker: str = "") -> None:
        self.error: WireError | None = None
        self.messages: list[ReceivedMessage] = []
        self._topic = topic
        self._broker = broker
        self._buffer = bytearray()

    def is_ok(self, data: bytes) -> bool:
        """Whether this is all there is, and a response that says OK: what nearly every command is answered."""
        return data == OK and not self._buffer and self.error is None

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that are whole now, without the messages."""
        frames: list[Frame] = []
        if self.error is not None:
            return frames
        if self._buffer:
            self._buffer += data
            done = self._cut(address(self._buffer), len(self._buffer), frames)
            del self._buffer[:done]
        else:
            done = self._cut(address(data), len(data), frames)
            if done < len(data):
                self._buffer += data[done:]
        return frames

    def take(self) -> list[ReceivedMessage]:
        """The messages that came since this was asked."""
        taken, self.messages = self.messages, []
        return taken

    def _cut(self, base: Readable, total: int, frames: list[Frame]) -> int:
        """Read the frames in `total` bytes; where they end."""
        at = 0
        while total - at >= words.FRAME_HEAD_BYTES:
            size = ube32(base, at)
            kind = ube32(base, at + words.TYPE_AT)
            if size < words.SIZE_BYTES or size > FRAME_BYTES_MAX or kind > words.MESSAGE:
                self.error = WireError(f"a frame of kind {kind} and {size} bytes")
                break
            end = at + words.SIZE_BYTES + size
            if end > total:
                break
            at += words.FRAME_HEAD_BYTES
            if kind != words.MESSAGE:
                frames.append(Frame(kind, piece(base, at, end - at)))
            elif not self._message(base, at, end - at):
                break
            at = end
        return at

    def _message(self, base: Readable, at: int, size: int) -> bool:
        """Read a message frame's data; False when it is none."""
        body_bytes = size - words.DATA_BODY_AT
        if body_bytes < 0:
            self.error = WireError(f"a message of {size} bytes")
            return False
        message_id = text(base, at + words.DATA_ID_AT, words.DATA_BODY_AT - words.DATA_ID_AT)
        if not message_id.isascii():
            self.error = WireError("a message whose id is no text")
            return False
        stored_ms = be64(base, at)
        stored_ms = stored_ms // NS_A_MS if stored_ms > 0 else 0
        attempts = be16(base, at + words.DATA_ATTEMPTS_AT)
        self.messages.append(
            ReceivedMessage(
                self._topic,
                piece(base, at + words.DATA_BODY_AT, body_bytes),
                0,
                -1,
                -1,
                NO_PROPERTIES,
                0,
                0,
                stored_ms,
                "",
                stored_ms,
                "",
                attempts - 1 if attempts > 0 else 0,
                0,
                body_bytes,
                self._broker,
                None,
                message_id,
            )
        )
        return True


def welcome(answer: bytes, security: Security, address: str) -> dict[str, object]:
    """What the answer to the greeting says. BrokerRefused where it wants or has not what we have or want."""
    try:
        told = json.loads(answer)
    except ValueError:
        told = None
    if not isinstance(told, dict):
        raise ConnectionLost(f"{address} does not speak NSQ V2")
    if security.tls and not told.get("tls_v1"):
        raise BrokerRefused(ResponseCode.NO_PERMISSION, f"{address} has no TLS for NSQ")
    if told.get("auth_required") and not (security.user or security.tls_cert):
        raise BrokerRefused(ResponseCode.NO_PERMISSION, f"{address} wants to know who we are: set user and secret")
    return told


def refusal(text: str) -> BrokerRefused:
    """The error that an error frame is."""
    return BrokerRefused(_CODES.get(text.partition(" ")[0], ResponseCode.MESSAGE_ILLEGAL), text)


def greeting(about: Mapping[str, object]) -> bytes:
    """The first bytes of a connection: magic and IDENTIFY."""
    body = json.dumps({**about, "feature_negotiation": True}, separators=(",", ":")).encode()
    return MAGIC + b"IDENTIFY\n" + _sized(body)


def publish(topic: str, bodies: list[bytes], defer_ms: int = 0) -> bytes:
    """PUB for one message, DPUB when it is deferred, MPUB for several, which are stored all or none."""
    name = topic.encode()
    if len(bodies) != 1:
        parts = len(bodies).to_bytes(words.SIZE_BYTES) + b"".join(map(_sized, bodies))
        return b"MPUB %s\n" % name + _sized(parts)
    if defer_ms > 0:
        return b"DPUB %s %d\n" % (name, defer_ms) + _sized(bodies[0])
    body = bodies[0]
    return b"".join((b"PUB ", name, b"\n", len(body).to_bytes(words.SIZE_BYTES), body))


def subscribe(topic: str, channel: str) -> bytes:
    """SUB."""
    return b"SUB %s %s\n" % (topic.encode(), channel.encode())


def ready(count: int) -> bytes:
    """RDY: how many messages may be in flight."""
    return b"RDY %d\n" % count


def finish_all(message_ids: Sequence[str]) -> bytes:
    """FIN of each."""
    return ("FIN " + "\nFIN ".join(message_ids) + "\n").encode()


def requeue(message_id: str, delay_ms: int) -> bytes:
    """REQ."""
    return b"REQ %s %d\n" % (message_id.encode(), delay_ms)


def touch(message_id: str) -> bytes:
    """TOUCH."""
    return b"TOUCH %s\n" % message_id.encode()


def reject(message_id: str) -> bytes:
    """REJECT, which only our broker knows: to the dead letters."""
    return b"REJECT %s\n" % message_id.encode()


def _sized(data: bytes) -> bytes:
    return len(data).to_bytes(words.SIZE_BYTES) + data
