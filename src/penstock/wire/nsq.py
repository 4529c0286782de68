"""NSQ V2 frames, server to client.

size (4) | type (4) | data         size counts type and data; type 0: response, 1: error, 2: message
a message's data:  timestamp ns (8) | attempts (2) | id, 16 hexadecimal digits | body
"""

# mypy: disable-error-code="no-any-return"
from __future__ import annotations

import cython

from penstock.octets import Readable, Writable
from penstock.wire.outbox import Outbox

if cython.compiled:
    from cython.cimports.penstock import words
    from cython.cimports.penstock.octets import copy, put16, put32, put64, put_hex16
else:
    from penstock import words
    from penstock.octets import copy, put16, put32, put64, put_hex16

MAGIC = b"  V2"
RESPONSE, ERROR, MESSAGE = words.RESPONSE, words.ERROR, words.MESSAGE
HEAD_BYTES = words.DATA_BODY_AT  # of a message's data, before the body


def frame(kind: int, data: bytes) -> bytes:
    """One whole frame."""
    return (len(data) + words.SIZE_BYTES).to_bytes(words.SIZE_BYTES) + kind.to_bytes(words.SIZE_BYTES) + data


OK_FRAME = frame(RESPONSE, b"OK")
HEARTBEAT_FRAME = frame(RESPONSE, b"_heartbeat_")
CLOSE_WAIT_FRAME = frame(RESPONSE, b"CLOSE_WAIT")


def put_message(
    out: Outbox, stamp_ns: int, attempts: int, message_id: int, body: Readable, at: int, length: int
) -> int:
    """Append a message frame; the body is `length` bytes at `at` of a buffer. Returns 0."""
    put_head(out, stamp_ns, attempts, message_id, length, length)
    copy(out.base, out.size, body, at, length)
    out.size += length
    return 0


def put_head(out: Outbox, stamp_ns: int, attempts: int, message_id: int, length: int, room: int) -> int:
    """Append a message frame but for its body of `length` bytes; there is `room` for so many behind it. Returns 0."""
    if out.size + words.BODY_AT + room > out.capacity:
        out.room(words.BODY_AT + room)
    base = out.base
    end = out.size
    put32(base, end, length + words.BODY_AT - words.SIZE_BYTES)
    put32(base, end + words.TYPE_AT, words.MESSAGE)
    put64(base, end + words.STAMP_AT, stamp_ns)
    put16(base, end + words.ATTEMPTS_AT, attempts)
    put_hex16(base, end + words.ID_AT, message_id)
    out.size = end + words.BODY_AT
    return 0


def message_data(stamp_ns: int, attempts: int, message_id: int, body: bytes) -> bytes:
    """A message's data: what go-diskqueue's files hold, too."""
    return stamp_ns.to_bytes(words.STAMP_AT) + attempts.to_bytes(2) + b"%016x" % message_id + body


def put_fresh(to: Writable, tp: int, stamp_ns: int, message_id: int, body: Readable, at: int, length: int) -> int:
    """The data of a message that was never delivered goes to `tp` of a buffer; its body is `length` bytes at `at` of another.
    Returns 0.
    """
    put64(to, tp, stamp_ns)
    put16(to, tp + words.DATA_ATTEMPTS_AT, 0)
    put_hex16(to, tp + words.DATA_ID_AT, message_id)
    copy(to, tp + words.DATA_BODY_AT, body, at, length)
    return 0
