"""Sends on their way from any thread into the loop of the clients: in lists, with one wake-up for all that has gathered.

A thread that sends does not wait for the loop, and the loop is not woken for each message: while it is busy with what it
took, the next list grows.
"""

from __future__ import annotations

import concurrent.futures
import threading
import time
from collections.abc import Callable

from penstock.client.aio.lanes import Lanes
from penstock.client.gathering import Waiting, WhenFull, blocks
from penstock.client.portal import portal
from penstock.client.results import SendReceipt
from penstock.errors import BufferFull, TimedOut
from penstock.message import Message

_Future = concurrent.futures.Future
# A signal handler, or the collector of garbage, may send in the midst of what its own thread does here. Nothing is made within
# it: while such a handler waits for a receipt, the loop must get it.
_looking = threading.RLock()
# As concurrent.futures has them; it reads and writes these states itself.
_PENDING, _FINISHED = "PENDING", "FINISHED"
_CANCELLED = ("CANCELLED", "CANCELLED_AND_NOTIFIED")


class Quick:
    """What is quick about the future of a send: a thread's means of waiting are made when one waits."""

    def __init__(self) -> None:  # the parts of the usual future come when they are asked for
        self._state = _PENDING
        self._own: threading.Condition | None = None
        self._result: SendReceipt | None = None
        self._exception: BaseException | None = None
        self._waiters: list[object] | None = None
        self._done_callbacks: list[Callable[[concurrent.futures.Future[SendReceipt]], object]] | None = None

    @property
    def _condition(self) -> threading.Condition:
        if self._own is None:
            made: threading.Condition = threading.Condition()
            waiters: list[object] = []
            callbacks: list[Callable[[concurrent.futures.Future[SendReceipt]], object]] = []
            with _looking:
                if self._own is None:
                    self._waiters = waiters
                    if self._done_callbacks is None:
                        self._done_callbacks = callbacks
                    self._own = made
        assert self._own is not None
        return self._own

    def done(self) -> bool:
        """Whether there is a receipt or an error, or nobody wants one any more."""
        return self._state == _FINISHED or self._state in _CANCELLED

    def cancelled(self) -> bool:
        """Whether it was given up."""
        return self._state in _CANCELLED

    def add_done_callback(self, fn: Callable[[concurrent.futures.Future[SendReceipt]], object]) -> None:
        """Call `fn` with the future when there is a receipt or an error; at once when there is one."""
        first = [fn]
        with _looking:
            if self._own is None and self._state == _PENDING:
                if self._done_callbacks is None:
                    self._done_callbacks = first
                else:
                    self._done_callbacks.append(fn)
                return
        _Future.add_done_callback(self, fn)  # type: ignore[arg-type]

    def set_result(self, receipt: SendReceipt) -> None:
        """The loop has it. InvalidStateError when the send was cancelled."""
        with _looking:
            quick = self._own is None and self._state == _PENDING
            if quick:
                self._result = receipt
                self._state = _FINISHED
        if not quick:
            _Future.set_result(self, receipt)  # type: ignore[arg-type]
        elif self._done_callbacks is not None:
            _Future._invoke_callbacks(self)  # type: ignore[attr-defined]

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The error, None when there is a receipt; waits as `result` does."""
        if self._state == _FINISHED and self._result is not None:
            return None
        return _Future.exception(self, timeout)  # type: ignore[arg-type]

    def result(self, timeout: float | None = None) -> SendReceipt:
        """The receipt, or the error is raised; TimeoutError when it is not there within `timeout` seconds."""
        if self._state == _FINISHED and self._result is not None:
            return self._result
        return _Future.result(self, timeout)  # type: ignore[arg-type]


class Sending(Quick, concurrent.futures.Future[SendReceipt]):  # type: ignore[misc, override]
    """The future of a send."""


class Handover:
    """The list into which threads put their sends. At most `buffer_bytes` are under way, in the list and in `lanes`."""

    def __init__(
        self,
        lanes: Lanes,
        buffer_bytes: int,
        when_full: WhenFull,
        timeout_s: float,
    ) -> None:
        self._lanes = lanes
        self._body_bytes = lanes.body_bytes
        self._buffer_bytes = buffer_bytes
        self._blocks = blocks(when_full)
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._row: list[Waiting] = []
        self._bytes = 0  # of the row
        self._told = False  # the loop will come and take the row
        self._blocked = 0
        lanes.when_freed(self._freed)

    @property
    def empty(self) -> bool:
        """Whether nothing waits here for the loop."""
        return not self._bytes

    def put(self, message: Message, sending: Sending) -> None:
        """The send begins soon. When too much is under way: wait for room and at last TimedOut, or BufferFull at once."""
        try:
            if not self._lanes.is_open:  # said here, for a thread that does not listen would keep the loop from closing
                self._lanes.check_open()
            send = Waiting(message, sending, 0.0, self._body_bytes)
        except Exception as error:  # a topic that is no text, say
            sending.set_exception(error)
            return
        with self._lock:
            if self._bytes + self._lanes.under_way >= self._buffer_bytes:
                self._wait(message)
            self._row.append(send)
            self._bytes += send.size
            if self._told:
                return
            self._told = True
        try:
            portal().soon(self._take)
        except BaseException:
            # An interrupt: nobody would come for the row, now or later, with all that is put behind it.
            self._told = False
            portal().soon(self._take)
            raise

    def hasten(self) -> None:
        """What is here is to be taken before anything that the caller asks of the loop from now on."""
        if self._row:
            portal().soon(self._take)

    def _wait(self, message: Message) -> None:
        if not self._blocks or portal().is_here():  # the loop cannot wait for itself
            raise BufferFull(
                f"{self._bytes + self._lanes.under_way} bytes are under way, as many as buffer_bytes allows"
            )
        deadline = time.monotonic() + self._timeout_s
        self._blocked += 1
        try:
            while self._bytes + self._lanes.under_way >= self._buffer_bytes:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise TimedOut(f"not sent to {message.topic} in time: there is no room in buffer_bytes")
                self._room.wait(left)
        finally:
            self._blocked -= 1

    def _take(self) -> None:
        """In the loop: all of the row begins."""
        with self._lock:
            row, self._row = self._row, []
            taken, self._told = self._bytes, False
        try:
            self._lanes.begin_all(row, time.monotonic() + self._timeout_s)
        finally:
            with self._lock:
                self._bytes -= taken
            self._freed()

    def _freed(self) -> None:
        if self._blocked:
            with self._lock:
                self._room.notify_all()
