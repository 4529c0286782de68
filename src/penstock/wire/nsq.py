"""NSQ V2 frames, server to client.

size (4) | type (4) | data         size counts type and data; type 0: response, 1: error, 2: message
a message's data:  timestamp ns (8) | attempts (2) | id, 16 hexadecimal digits | body
"""

# mypy: disable-error-code="no-any-return"
from __future__ import annotations

from typing import Any

import cython

from penstock.wire.outbox import Outbox

if cython.compiled:
    from cython.cimports.penstock.octets import copy, put16, put32, put64, put_hex16
else:
    from penstock.octets import copy, put16, put32, put64, put_hex16

MAGIC = b"  V2"
RESPONSE, ERROR, MESSAGE = 0, 1, 2
HEAD_BYTES = 26  # of a message's data, before the body


def frame(kind: int, data: bytes) -> bytes:
    """One whole frame."""
    return (len(data) + 4).to_bytes(4) + kind.to_bytes(4) + data


OK_FRAME = frame(RESPONSE, b"OK")
HEARTBEAT_FRAME = frame(RESPONSE, b"_heartbeat_")
CLOSE_WAIT_FRAME = frame(RESPONSE, b"CLOSE_WAIT")


def put_message(out: Outbox, stamp_ns: int, attempts: int, message_id: int, body: Any, at: int, length: int) -> int:
    """Append a message frame; the body is `length` bytes at `at` of a buffer. Returns 0."""
    size = length + 34
    if out.size + size > out.capacity:
        out.room(size)
    base = out.base
    end = out.size
    put32(base, end, length + 30)
    put32(base, end + 4, 2)
    put64(base, end + 8, stamp_ns)
    put16(base, end + 16, attempts)
    put_hex16(base, end + 18, message_id)
    copy(base, end + 34, body, at, length)
    out.size = end + size
    return 0


def message_data(stamp_ns: int, attempts: int, message_id: int, body: bytes) -> bytes:
    """A message's data: what go-diskqueue's files hold, too."""
    return stamp_ns.to_bytes(8) + attempts.to_bytes(2) + b"%016x" % message_id + body
