"""Connections with plain blocking sockets."""

from __future__ import annotations

import math
import os
import socket
import ssl
from collections.abc import Callable
from concurrent.futures import Future
from struct import Struct

import cython

from penstock.client.liveness import CONNECT_S, GONE, is_gone, keep_asking
from penstock.client.plainsend import OPAQUES, PlainSend
from penstock.client.results import SendReceipt
from penstock.client.routes import MessageQueue, join_address
from penstock.client.sentanswer import SentAnswer
from penstock.errors import ConnectionLost, NotTrusted, TimedOut
from penstock.security import PLAIN, Security
from penstock.wire.frames import FrameCutter
from penstock.wire.remoting import FLAG_ONEWAY, RemotingCommand, decode, encode

if cython.compiled:
    from cython.cimports.penstock import words
    from cython.cimports.penstock.octets import address, deliver, monotonic_s, receive, silent
else:
    from penstock import words
    from penstock.octets import address, deliver, monotonic_s, receive, silent

SHORT_BYTES = 4_096
FRESH_S = 0.001  # after an answer: a line that breaks so soon would as well break a moment later, on its way
WAIT_MAX_S = 1_000_000.0  # of one call to the system, which counts milliseconds in 31 bits: eleven days
LOOK_S = 0.75  # of silence, after which it is asked, again and again, whether the peer is there, and the master still
_MICROS = 1_000_000  # a second
_ABOUT = 0.9  # of the time set before: the same
_TIMEVAL = Struct("@ll")

Doubt = Callable[[MessageQueue], "Future[bool] | None"]
"""Begins to ask whether the peer has lost its place as the master of a queue to another node."""


class TimedSocket:
    """One connection and its deadlines.

    The system keeps them (SO_RCVTIMEO), so that no call asks first whether there is something. Not with TLS, whose reads are none
    of the system's, nor uncompiled: Python's own `recv` begins its time anew with each signal, and so might wait for ever.

    A machine that is cut off closes no connection, it says nothing: while a call waits, it is asked whether the peer is there,
    and while one about a queue does, `doubt` is asked, too. What ends the system's waiting before its time, a signal or a process
    that was stopped and goes on, does not put that off.
    """

    def __init__(self, connection: socket.socket, timeout_s: float, doubt: Doubt | None = None) -> None:
        self._doubt = doubt
        self._queue: MessageQueue | None = None
        self._asked: Future[bool] | None = None
        self._rests_since_s = monotonic_s()
        self._broken_since_s = 0.0  # the waiting, by signals, without a look
        self._use(connection, timeout_s)

    def _use(self, connection: socket.socket, timeout_s: float) -> None:
        """From now on it is this socket: the first one, or that with TLS around it."""
        self._socket = connection
        self._fd = connection.fileno()
        self._tls = isinstance(connection, ssl.SSLSocket)
        self._by_system = False
        self._patience = 0.0
        if cython.compiled and not self._tls:
            connection.settimeout(None)
            # A socket that a library put in the place of Python's may never block.
            self._by_system = os.get_blocking(self._fd)
        self._wait_at_most(timeout_s)

    def _send(self, data: bytes | bytearray, timeout_s: float) -> None:
        """Send all of it. OSError; TimeoutError, or BlockingIOError, when the time is over."""
        if not self._by_system:
            self._wait_at_most(timeout_s)
            self._socket.sendall(data)
            return
        self._wait_at_most(min(timeout_s, LOOK_S))
        deadline, at, size = monotonic_s() + timeout_s, 0, len(data)
        while True:
            try:
                at += deliver(self._fd, address(data), at, size - at)
            except InterruptedError:
                self._look_at_times(deadline)
            except BlockingIOError:
                self._look(deadline)
            if at == size:
                return
            self._wait_until(deadline)

    def _some(self, most: int, deadline: float, flags: int) -> bytes:
        """What comes, at most so much, received in one call. Errors as of `_send`."""
        while True:
            self._wait_until(deadline)
            try:
                if self._by_system:
                    part = receive(self._fd, most, flags)
                else:
                    part = self._socket.recv(most) if self._tls else self._socket.recv(most, flags)
            except InterruptedError:
                self._look_at_times(deadline)
                continue
            except (BlockingIOError, TimeoutError):
                self._look(deadline)
                continue
            if not part:
                raise ConnectionResetError("closed by the peer")
            return part

    def _wait_until(self, deadline: float) -> None:
        left = deadline - monotonic_s()
        if left <= 0:
            raise TimeoutError
        self._wait_at_most(min(left, LOOK_S))

    def _begin(self, queue: MessageQueue | None) -> None:
        """A call begins, about this queue."""
        self._queue, self._asked = queue, None
        self._broken_since_s = 0.0

    def _look_at_times(self, deadline: float) -> None:
        """A signal has broken the waiting off: `_look`, when that has gone on for as long as one call would have waited."""
        now_s = monotonic_s()
        if not self._broken_since_s:
            self._broken_since_s = now_s
        elif now_s - self._broken_since_s >= LOOK_S:
            self._look(deadline)

    def _look(self, deadline: float) -> None:
        """A call to the system has taken its time. TimeoutError when that was all of it; ConnectionResetError when the peer's
        machine is gone; ConnectionLost when another node has its place.
        """
        self._broken_since_s = 0.0
        if monotonic_s() >= deadline:
            raise TimeoutError
        if is_gone(self._socket):
            raise ConnectionResetError(GONE)
        if self._doubt is None or self._queue is None:
            return
        asked = self._asked
        if asked is not None and asked.done():
            if not asked.cancelled() and asked.exception() is None and asked.result():
                raise ConnectionLost("the broker says nothing, and another node has its place")
            asked = None
        if asked is None:
            self._asked = self._doubt(self._queue)

    def _wait_at_most(self, seconds: float) -> None:
        """Set how long one call to the system may take, when the time set before is not about the same."""
        if self._patience * _ABOUT <= seconds <= self._patience:
            return
        self._patience = seconds = min(seconds, WAIT_MAX_S)
        if not self._by_system:
            self._socket.settimeout(seconds)
            return
        micros = max(int(seconds * _MICROS), 1)
        span = _TIMEVAL.pack(*divmod(micros, _MICROS))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, span)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, span)

    def rest(self) -> None:
        """Nobody uses it for a while."""
        self._rests_since_s = monotonic_s()

    def has_rested(self) -> float:
        """For so many seconds."""
        return monotonic_s() - self._rests_since_s

    def is_quiet(self) -> bool:
        """Whether the peer has neither closed the line nor said anything on it that nobody asked for."""
        return silent(self._fd)

    def close(self) -> None:
        """Close it."""
        self._fd = -1
        self._socket.close()


class Line(TimedSocket):
    """One connection; requests are answered in turn, the answer to a request that was given up is skipped.

    With `short` answers nearly always come whole in one call to the system; without, their bodies come in place.
    """

    def __init__(
        self,
        address: tuple[str, int],
        timeout_s: float,
        *,
        short: bool = False,
        security: Security = PLAIN,
        doubt: Doubt | None = None,
    ) -> None:
        super().__init__(connect(address, timeout_s, security), timeout_s, doubt)
        self._address = join_address(*address)
        self._security = security
        self._signs = bool(security.user)
        self._short = short
        self._rest = b""  # of what came with a short answer
        self._heard_s = -math.inf  # when it came
        self._answer = SentAnswer()
        self._cutter = FrameCutter(words.FRAME_BYTES_MAX)  # the answer to a batch names every message in its header

    def call(self, command: RemotingCommand, timeout_s: float, queue: MessageQueue | None = None) -> RemotingCommand:
        """The answer, of a queue's master where one is named. TimedOut and ConnectionLost leave the line unusable."""
        self._begin(queue)
        self.ask(command, timeout_s)
        return command if command.flag & FLAG_ONEWAY else self.hear(command, timeout_s)

    def store(self, send: PlainSend, timeout_s: float, queue: MessageQueue) -> SendReceipt | RemotingCommand:
        """The receipt of a message that is sent to a queue so, or the answer that is none; errors as of `call`."""
        deadline = monotonic_s() + timeout_s
        self._begin(queue)
        self._write(send.frame, words.SEND_MESSAGE_V2, timeout_s)
        try:
            while True:
                data = self._short_frame(deadline)
                cutter = self._cutter
                begin = cutter.header + cutter.size
                if cutter.kind == words.JSON and self._answer.read(data, cutter.header, begin):
                    receipt = send.receipt(self._answer)
                    if receipt is not None:
                        return receipt
                answer = decode(cutter.kind, data[cutter.header : begin], data[begin : cutter.end])
                if answer.response and answer.opaque == send.opaque:
                    return answer
        except OSError as error:
            raise self._failure(error, f"answer request {words.SEND_MESSAGE_V2}", timeout_s) from error

    def ask(self, command: RemotingCommand, timeout_s: float) -> None:
        """Send a request; errors as of `call`."""
        command.number(next(OPAQUES))
        if self._signs:
            self._security.sign(command)
        self._write(encode(command), command.code, timeout_s)

    def hear(self, command: RemotingCommand, timeout_s: float) -> RemotingCommand:
        """The answer to a request that was sent; errors as of `call`."""
        deadline = monotonic_s() + timeout_s
        try:
            while True:
                answer = decode(*self._frame(deadline))
                if answer.response and answer.opaque == command.opaque:
                    return answer
        except OSError as error:
            raise self._failure(error, f"answer request {command.code}", timeout_s) from error

    def next_answer(self, timeout_s: float) -> RemotingCommand:
        """The next answer on the line, whichever request it is to: of requests sent ahead they come in order."""
        deadline = monotonic_s() + timeout_s
        try:
            while True:
                answer = decode(*self._frame(deadline))
                if answer.response:
                    return answer
        except OSError as error:
            raise self._failure(error, "answer", timeout_s) from error

    def _write(self, frame: bytes | bytearray, code: int, timeout_s: float) -> None:
        try:
            self._send(frame, timeout_s)
        except OSError as error:
            raise self._failure(error, f"take request {code}", timeout_s) from error

    def _frame(self, deadline: float) -> tuple[int, bytes, bytes]:
        """(type of the header, header, body) of the next frame."""
        cutter = self._cutter
        if self._short:
            data = self._short_frame(deadline)
            begin = cutter.header + cutter.size
            return cutter.kind, data[cutter.header : begin], data[begin : cutter.end]
        cutter.cut(self._exactly(words.PREFIX_BYTES, deadline), 0)
        header = self._exactly(cutter.size, deadline)
        return cutter.kind, header, self._exactly(cutter.end - cutter.header - cutter.size, deadline)

    def _short_frame(self, deadline: float) -> bytes:
        """Bytes that begin with the next frame, which the cutter has found in them."""
        cutter = self._cutter
        data = self._rest or self._some(SHORT_BYTES, deadline, 0)
        while not cutter.next(address(data), 0, len(data)):
            if cutter.need:
                data += self._exactly(cutter.need - len(data), deadline)
            else:
                data += self._some(words.PREFIX_BYTES, deadline, 0)
        self._rest = data[cutter.end :]
        self._heard_s = monotonic_s()
        return data

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

    def is_quiet(self) -> bool:
        """The same. A line that has answered just now is not looked at: that would cost each of many sends a call to the system,
        and what comes a second time has no number that anybody waits for.
        """
        return not self._rest and (monotonic_s() - self._heard_s < FRESH_S or silent(self._fd))

    def _failure(self, error: OSError, what: str, timeout_s: float) -> TimedOut | ConnectionLost:
        if isinstance(error, (BlockingIOError, TimeoutError)):
            return TimedOut(f"{self._address} did not {what} within {timeout_s:.3g} s")
        return ConnectionLost(f"the connection to {self._address} broke: {error}")


def connect(address: tuple[str, int], timeout_s: float, security: Security) -> socket.socket:
    """A socket to there, with TLS if that is asked for. ConnectionLost."""
    context = security.context
    connection = None
    try:
        connection = socket.create_connection(address, min(timeout_s, CONNECT_S))
        connection.settimeout(min(timeout_s, WAIT_MAX_S))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        keep_asking(connection)
        return connection if context is None else context.wrap_socket(connection, server_hostname=address[0])
    except (OSError, ValueError) as error:
        if connection is not None:
            connection.close()
        kind = NotTrusted if isinstance(error, ssl.SSLCertVerificationError) else ConnectionLost
        raise kind(f"cannot connect to {address[0]}:{address[1]}: {error}") from error
