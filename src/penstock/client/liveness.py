"""A machine that is cut off, or without power, closes no connection: that its system acknowledges nothing gives it away.

TCP_USER_TIMEOUT would find that, too, and would break the connections of a broker that is stopped or busy, and takes nothing for
a while: its system answers, with a closed window.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable
from struct import Struct
from typing import Protocol

QUIET_S = 3  # without a byte either way: then the peer's system is asked whether it is there
PROBE_S = 1
GONE_MS = 6_000  # without an acknowledgement of what is sent again and again: by then a slave has the master's place
LOOK_S = 1.5
CONNECT_S = 3.0  # RocketMQ's, too: a machine that is gone answers no attempt; as long again for TLS
GONE = "its machine acknowledges nothing"

_OPTIONS = {"TCP_KEEPIDLE": QUIET_S, "TCP_KEEPINTVL": PROBE_S}  # names: not every system has them
_PROBES_MIN = 2  # one may be under way still: a peer that takes nothing is asked ever less often
_INFO = Struct("@2x B B 52x I")  # Linux' tcp_info: retransmissions and probes without an answer, ms since the last ACK


class Options(Protocol):
    """A socket, or what an event loop shows of one."""

    def setsockopt(self, level: int, option: int, value: int, /) -> object: ...

    def getsockopt(self, level: int, option: int, size: int, /) -> bytes: ...


def keep_asking(connection: Options) -> None:
    """Have the system ask the peer's, while nothing is sent, whether it is there."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _OPTIONS.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def is_gone(connection: Options) -> bool:
    """Whether the peer's system has acknowledged nothing for GONE_MS of what it was sent, or asked. Known on Linux alone: others
    have a TCP_INFO, too, and put other things in it.
    """
    if sys.platform != "linux":
        return False
    repeats, probes, silent_ms = _INFO.unpack(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size))
    return bool(silent_ms >= GONE_MS and (repeats or probes >= _PROBES_MIN))


class Watch:
    """Breaks the connection of an event loop once the peer's machine is gone; `lost` is told why, perhaps before the loop's own
    `connection_lost`.
    """

    def __init__(self, transport: asyncio.Transport, lost: Callable[[Exception], None]) -> None:
        self._transport, self._lost = transport, lost
        self._socket: Options = transport.get_extra_info("socket")
        keep_asking(self._socket)
        self._wait()

    def _wait(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def _look(self) -> None:
        if not is_gone(self._socket):
            self._wait()
            return
        self._lost(TimeoutError(GONE))
        self._transport.abort()

    def stop(self) -> None:
        """The connection is closed."""
        self._timer.cancel()
