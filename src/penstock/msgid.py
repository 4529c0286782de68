"""Ids of messages: what names a place in a log, and what producers give a message before it has one.

    offset message id   packed host of the broker (8 or 20 bytes) | int64 physical offset, in upper-case hex
    unique key          IPv4 address (4) | process id (2) | salt (4) | ms since the start of the month (4) | counter (2)

Format: rocketmq.md §5.5.
"""

from __future__ import annotations

import itertools
import socket
from datetime import UTC, datetime
from functools import lru_cache
from struct import Struct

_I32, _I64 = Struct(">i"), Struct(">q")
COUNT_DIGITS = 4  # of the counter at the end of a unique key


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


class UniqueKeys:
    """Makes the ids that producers give their messages: 32 hex digits, different in all processes.

    IPv4 address (4 bytes), process id (2), `salt` (4), milliseconds since the start of the month (4), a counter (2).
    """

    def __init__(self, address: bytes, pid: int, salt: bytes) -> None:
        self._prefix = (address[-4:] + (pid & 0xFFFF).to_bytes(2, "big") + salt[:4]).hex().upper()
        self._count = itertools.count()
        self._month_ms = 0
        self._next_month_ms = 0

    def next(self, now_ms: int) -> str:
        """A new id; at most 65,536 a millisecond are different."""
        if not self._month_ms <= now_ms < self._next_month_ms:
            self._turn_to_month(now_ms)
        return f"{self._prefix}{now_ms - self._month_ms:08X}{next(self._count) & 0xFFFF:04X}"

    def take(self, count: int, now_ms: int) -> list[str]:
        """`count` new ids."""
        start = self.next(now_ms)
        following, moment = itertools.islice(self._count, count - 1), start[:-COUNT_DIGITS]
        return [start, *[f"{moment}{number & 0xFFFF:04X}" for number in following]]

    def _turn_to_month(self, now_ms: int) -> None:
        """Count from the start of the month of this moment."""
        month = datetime.fromtimestamp(now_ms / 1000, UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        after = month.replace(year=month.year + month.month // 12, month=month.month % 12 + 1)
        self._month_ms, self._next_month_ms = int(month.timestamp() * 1000), int(after.timestamp() * 1000)
