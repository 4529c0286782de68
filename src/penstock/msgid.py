"""Ids of messages that name a place in a log.

    offset message id   packed host of the broker (8 or 20 bytes) | int64 physical offset, in upper-case hex

Format: rocketmq.md §5.5.
"""

from __future__ import annotations

import socket
from functools import lru_cache
from struct import Struct

_I32, _I64 = Struct(">i"), Struct(">q")


def pack_host(text: str) -> bytes:
    """``address:port`` as 8 bytes, or ``[address]:port`` as 20. ValueError when it is neither."""
    address, colon, port = text.rpartition(":")
    if not (colon and port.isascii() and port.isdigit()):
        raise ValueError(f"{text!r} is not address:port")
    try:
        if address.startswith("[") and address.endswith("]"):
            return socket.inet_pton(socket.AF_INET6, address[1:-1]) + _I32.pack(int(port))
        return socket.inet_pton(socket.AF_INET, address) + _I32.pack(int(port))
    except OSError:
        raise ValueError(f"{text!r} is not address:port") from None


@lru_cache(maxsize=4096)
def unpack_host(host: bytes) -> str:
    """The text of 8 or 20 bytes of address and port."""
    port = _I32.unpack_from(host, len(host) - 4)[0]
    if len(host) == 8:
        return f"{host[0]}.{host[1]}.{host[2]}.{host[3]}:{port}"
    return f"[{socket.inet_ntop(socket.AF_INET6, host[:16])}]:{port}"


def offset_msg_id(store_host: bytes, physical_offset: int) -> str:
    """The message id that names a place: the broker's packed host and the physical offset, in upper-case hex."""
    return (store_host + _I64.pack(physical_offset)).hex().upper()


def parse_offset_msg_id(text: str) -> tuple[str, int]:
    """(``address:port``, physical offset) of such an id. ValueError when it is none."""
    if len(text) not in (32, 56) or not text.isalnum():
        raise ValueError(f"{text!r} is not an offset message id")
    try:
        raw = bytes.fromhex(text)
    except ValueError:
        raise ValueError(f"{text!r} is not an offset message id") from None
    return unpack_host(raw[:-8]), int(_I64.unpack_from(raw, len(raw) - 8)[0])
