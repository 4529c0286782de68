"""NSQ V2 as a client speaks it: commands to bytes, bytes to frames. No I/O here; drawn in `penstock.wire.nsq`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from penstock.errors import BrokerRefused, WireError
from penstock.wire.codes import ResponseCode
from penstock.wire.nsq import ERROR, HEAD_BYTES, MAGIC, MESSAGE, RESPONSE
from penstock.words import DATA_ATTEMPTS_AT, DATA_ID_AT

FRAME_BYTES_MAX = 64 << 20  # of one frame, far beyond what any broker is set to send
HEARTBEAT = b"_heartbeat_"
NOP = b"NOP\n"
CLOSE = b"CLS\n"

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
    """What came from the broker: `kind` is RESPONSE, ERROR or MESSAGE."""

    kind: int
    data: bytes


class ArrivedMessage(NamedTuple):
    """A message frame's data, taken apart."""

    id: str
    body: bytes
    attempts: int
    stored_ns: int


class FrameParser:
    """Bytes to frames, however they are cut. `error` is set by what is no frame; nothing follows it."""

    def __init__(self) -> None:
        self.error: WireError | None = None
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that are whole now."""
        buffer = self._buffer
        buffer += data
        frames = []
        at = 0
        while len(buffer) - at >= 8 and self.error is None:
            size = int.from_bytes(buffer[at : at + 4])
            kind = int.from_bytes(buffer[at + 4 : at + 8])
            if not 4 <= size <= FRAME_BYTES_MAX or kind not in (RESPONSE, ERROR, MESSAGE):
                self.error = WireError(f"a frame of kind {kind} and {size} bytes")
                break
            if len(buffer) - at < 4 + size:
                break
            frames.append(Frame(kind, bytes(buffer[at + 8 : at + 4 + size])))
            at += 4 + size
        del buffer[:at]
        return frames


def refusal(text: str) -> BrokerRefused:
    """The error that an error frame is."""
    return BrokerRefused(_CODES.get(text.partition(" ")[0], ResponseCode.MESSAGE_ILLEGAL), text)


def read_message(data: bytes) -> ArrivedMessage:
    """The message in a frame. WireError when it is too short to be one."""
    if len(data) < HEAD_BYTES:
        raise WireError(f"a message of {len(data)} bytes")
    try:
        message_id = data[DATA_ID_AT:HEAD_BYTES].decode("ascii")
    except UnicodeDecodeError:
        raise WireError("a message whose id is no text") from None
    return ArrivedMessage(
        message_id,
        data[HEAD_BYTES:],
        int.from_bytes(data[DATA_ATTEMPTS_AT:DATA_ID_AT]),
        int.from_bytes(data[:DATA_ATTEMPTS_AT]),
    )


def greeting(about: Mapping[str, object]) -> bytes:
    """The first bytes of a connection: magic and IDENTIFY."""
    body = json.dumps({**about, "feature_negotiation": True}, separators=(",", ":")).encode()
    return MAGIC + b"IDENTIFY\n" + _sized(body)


def publish(topic: str, bodies: Sequence[bytes], defer_ms: int = 0) -> bytes:
    """PUB for one message, DPUB when it is deferred, MPUB for several, which are stored all or none."""
    name = topic.encode()
    if len(bodies) != 1:
        parts = len(bodies).to_bytes(4) + b"".join(map(_sized, bodies))
        return b"MPUB %s\n" % name + _sized(parts)
    if defer_ms > 0:
        return b"DPUB %s %d\n" % (name, defer_ms) + _sized(bodies[0])
    return b"PUB %s\n" % name + _sized(bodies[0])


def subscribe(topic: str, channel: str) -> bytes:
    """SUB."""
    return b"SUB %s %s\n" % (topic.encode(), channel.encode())


def ready(count: int) -> bytes:
    """RDY: how many messages may be in flight."""
    return b"RDY %d\n" % count


def finish(message_id: str) -> bytes:
    """FIN."""
    return b"FIN %s\n" % message_id.encode()


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
    return len(data).to_bytes(4) + data
