"""One connection with plain blocking sockets."""

from __future__ import annotations

import itertools
import socket
import time
from struct import Struct

from penstock.errors import ConnectionLost, TimedOut
from penstock.security import PLAIN, Security
from penstock.wire.frames import FrameCutter
from penstock.wire.remoting import FLAG_ONEWAY, RemotingCommand, decode, encode
from penstock.words import FRAME_BYTES_MAX, PREFIX_BYTES

SHORT_BYTES = 4_096
FRESH_S = 0.001  # after an answer: a line that breaks so soon would as well break a moment later, on its way
WAIT_MAX_S = 1_000_000.0  # of one call to the system, which counts milliseconds in 31 bits: eleven days
_MICROS = 1_000_000  # a second
_TIMEVAL = Struct("@ll")


class Line:
    """One connection; requests are answered in turn, the answer to a request that was given up is skipped.

    With `short` answers nearly always come whole in one call to the system; without, their bodies come in place.
    """

    def __init__(
        self, address: tuple[str, int], timeout_s: float, *, short: bool = False, security: Security = PLAIN
    ) -> None:
        self._security = security
        self._tls = security.tls
        self._signed = bool(security.user)
        self._socket = connect(address, timeout_s, security)
        if not self._tls:
            # The system keeps the time, and so a body of megabytes can be waited for in one call.
            self._socket.settimeout(None)
        self._patience = 0.0
        self._wait_at_most(timeout_s)
        self._opaques = itertools.count(1)
        self._short = short
        self._rest = b""  # of what came with a short answer
        self._heard_s = 0.0
        self._cutter = FrameCutter(FRAME_BYTES_MAX)  # the answer to a batch names every message in its header

    def call(self, command: RemotingCommand, timeout_s: float) -> RemotingCommand:
        """The answer. TimedOut and ConnectionLost leave the line unusable."""
        self.ask(command, timeout_s)
        return command if command.flag & FLAG_ONEWAY else self.hear(command, timeout_s)

    def ask(self, command: RemotingCommand, timeout_s: float) -> None:
        """Send a request; errors as of `call`."""
        command.number(next(self._opaques))
        if self._signed:
            self._security.sign(command)
        try:
            self._wait_at_most(timeout_s)
            self._socket.sendall(encode(command))
        except (BlockingIOError, TimeoutError) as error:
            raise TimedOut(f"request {command.code} could not be sent within {timeout_s:.3g} s") from error
        except OSError as error:
            raise ConnectionLost(f"connection broke: {error}") from error

    def hear(self, command: RemotingCommand, timeout_s: float) -> RemotingCommand:
        """The answer to a request that was sent; errors as of `call`."""
        deadline = time.monotonic() + timeout_s
        try:
            while True:
                answer = self._receive(deadline)
                if answer.response and answer.opaque == command.opaque:
                    return answer
        except TimeoutError as error:
            raise TimedOut(f"no answer to request {command.code} within {timeout_s:.3g} s") from error
        except OSError as error:
            raise ConnectionLost(f"connection broke: {error}") from error

    def next_answer(self, timeout_s: float) -> RemotingCommand:
        """The next answer on the line, whichever request it is to: of requests sent ahead they come in order."""
        deadline = time.monotonic() + timeout_s
        try:
            while True:
                answer = self._receive(deadline)
                if answer.response:
                    return answer
        except TimeoutError as error:
            raise TimedOut(f"no answer within {timeout_s:.3g} s") from error
        except OSError as error:
            raise ConnectionLost(f"connection broke: {error}") from error

    def _receive(self, deadline: float) -> RemotingCommand:
        cutter = self._cutter
        if self._short:
            data = self._rest or self._some(SHORT_BYTES, deadline)
            while not cutter.cut(data, 0):
                data += (
                    self._exactly(cutter.need - len(data), deadline)
                    if cutter.need
                    else self._some(PREFIX_BYTES, deadline)
                )
            self._rest = data[cutter.end :]
            self._heard_s = time.monotonic()
            begin = cutter.header + cutter.size
            return decode(cutter.kind, data[cutter.header : begin], data[begin : cutter.end])
        cutter.cut(self._exactly(PREFIX_BYTES, deadline), 0)
        header = self._exactly(cutter.size, deadline)
        return decode(cutter.kind, header, self._exactly(cutter.end - cutter.header - cutter.size, deadline))

    def _exactly(self, size: int, deadline: float) -> bytes:
        """So many bytes, received in place: nearly always in one call."""
        if not size:
            return b""
        parts: list[bytes] = []
        while size:
            part = self._some(size, deadline, socket.MSG_WAITALL)
            parts.append(part)
            size -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _some(self, most: int, deadline: float, flags: int = 0) -> bytes:
        """What comes, at most so much, received in one call."""
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._wait_at_most(left)
        try:
            part = self._socket.recv(most) if self._tls else self._socket.recv(most, flags)
        except BlockingIOError:
            raise TimeoutError from None
        if not part:
            raise ConnectionResetError("closed by the peer")
        return part

    def _wait_at_most(self, seconds: float) -> None:
        """Set how long one call to the system may take, when the time set before is not about the same."""
        seconds = min(seconds, WAIT_MAX_S)
        if not 0.9 * self._patience <= seconds <= self._patience:
            self._patience = seconds
            if self._tls:  # a read of the system's is not one of ours
                self._socket.settimeout(seconds)
                return
            micros = max(int(seconds * _MICROS), 1)
            span = _TIMEVAL.pack(*divmod(micros, _MICROS))
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, span)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, span)

    def is_quiet(self) -> bool:
        """Whether the peer has neither closed the line nor said anything on it that nobody asked for.

        A line that has answered just now is not looked at: that would cost each of many sends a call to the system.
        """
        if self._rest:
            return False
        if self._short and time.monotonic() - self._heard_s < FRESH_S:
            return True
        if self._tls:  # with a time to wait Python would wait that long before it asks
            self._patience = 0.0
            self._socket.settimeout(0)
        return quiet(self._socket)

    def close(self) -> None:
        self._socket.close()


def connect(address: tuple[str, int], timeout_s: float, security: Security) -> socket.socket:
    """A socket to there, with TLS if that is asked for. ConnectionLost."""
    context = security.context
    connection = None
    try:
        connection = socket.create_connection(address, min(timeout_s, WAIT_MAX_S))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection if context is None else context.wrap_socket(connection, server_hostname=address[0])
    except (OSError, ValueError) as error:
        if connection is not None:
            connection.close()
        raise ConnectionLost(f"cannot connect to {address[0]}:{address[1]}: {error}") from error


def quiet(connection: socket.socket) -> bool:
    """Whether there is nothing to be read, not even the end: a line that lay idle may have been closed by its peer."""
    try:  # the system's own `recv`, past TLS, which takes no flags
        socket.socket.recv(connection, 1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
