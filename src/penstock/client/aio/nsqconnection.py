"""One NSQ connection to a broker: commands out, answers in the order of the commands, messages handed up."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from collections import deque
from collections.abc import Callable
from typing import cast

from penstock.client import nsqframes
from penstock.client.aio.connection import unreachable
from penstock.client.liveness import CONNECT_S, Watch
from penstock.client.nsqframes import OF_A_MESSAGE, FrameParser, refusal
from penstock.client.routes import NSQ_PORT
from penstock.errors import ConnectionLost, NotConnected, TimedOut
from penstock.message import ReceivedMessage
from penstock.security import PLAIN, Security
from penstock.version import __version__
from penstock.wire.addresses import split_address
from penstock.wire.nsq import ERROR

log = logging.getLogger("penstock.client")

HEARTBEAT_S = 30.0
SILENT_S = 2.5 * HEARTBEAT_S  # then the broker is taken for lost

OnMessages = Callable[["NsqConnection", list[ReceivedMessage]], None]


class NsqConnection(asyncio.Protocol):
    """A connection that has said who it is. What is sent in one turn of the loop goes out in one write.

    `on_messages` gets the messages of a subscription, in lists, `on_lost` is called once when the connection is gone.
    """

    def __init__(self, address: str, parser: FrameParser, on_messages: OnMessages | None) -> None:
        self.address = address
        self.closed = False
        self.lost = asyncio.Event()
        self.msg_timeout_s = 60.0
        self.ready_max = 2_500
        self._on_messages = on_messages
        self._parser = parser
        self._waiting: deque[asyncio.Future[bytes]] = deque()
        self._transport: asyncio.Transport | None = None
        self._liveness: Watch | None = None
        self._loop = asyncio.get_running_loop()
        self._heard_s = self._loop.time()
        self._watch: asyncio.TimerHandle | None = None
        self._writable: asyncio.Future[None] | None = None
        self._out: list[bytes] = []

    @classmethod
    async def open(
        cls,
        address: str,
        timeout_s: float,
        on_messages: OnMessages | None = None,
        *,
        topic: str = "",
        broker: str = "",
        security: Security = PLAIN,
    ) -> NsqConnection:
        """A new connection, introduced; its messages will be of this topic and broker.

        ConnectionLost when it cannot be had in time, BrokerRefused when it is not.
        """
        host, port = split_address(address, NSQ_PORT)
        try:
            async with asyncio.timeout(min(timeout_s, CONNECT_S)):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: cls(address, FrameParser(topic, broker), on_messages), host, port
                )
        except (OSError, TimeoutError) as error:
            raise unreachable(address, error) from error
        try:
            await connection._introduce(timeout_s, host, security)
        except BaseException:
            connection.close()
            raise
        return connection

    async def _introduce(self, timeout_s: float, host: str, security: Security) -> None:
        about = {
            "client_id": f"{socket.gethostname()}@{os.getpid()}",
            "hostname": socket.gethostname(),
            "user_agent": f"penstock/{__version__}",
            "heartbeat_interval": int(HEARTBEAT_S * 1000),
            "tls_v1": security.tls,
        }
        answer = await self.call(nsqframes.greeting(about), timeout_s)
        told = nsqframes.welcome(answer, security, self.address)
        try:
            self.msg_timeout_s = int(cast(int, told.get("msg_timeout", 60_000))) / 1000
            self.ready_max = int(cast(int, told.get("max_rdy_count", 2_500)))
        except (TypeError, ValueError):
            raise ConnectionLost(f"{self.address} does not speak NSQ V2") from None
        if security.context is not None:
            await self._upgrade(security.context, host, timeout_s)
        if told.get("auth_required") and security.user:  # else the certificate has said it
            await self.call(security.nsq_auth, timeout_s)
        self._watch = self._loop.call_later(SILENT_S, self._look)

    async def _upgrade(self, context: ssl.SSLContext, host: str, timeout_s: float) -> None:
        """TLS from here on; its first word is OK."""
        assert self._transport is not None
        ready: asyncio.Future[bytes] = self._loop.create_future()
        self._waiting.append(ready)
        try:
            async with asyncio.timeout(timeout_s):
                self._transport = await self._loop.start_tls(self._transport, self, context, server_hostname=host)
                await ready
        except (OSError, TimeoutError) as error:
            raise unreachable(self.address, error) from error

    def send(self, data: bytes) -> None:
        """Write a command that is not answered. ConnectionLost when the connection is known to be broken."""
        if self.closed or self._transport is None:
            raise NotConnected(f"the connection to {self.address} is closed")
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(data)

    def _flush(self) -> None:
        out, self._out = self._out, []
        if out and self._transport is not None and not self.closed:
            self._transport.write(b"".join(out))

    def soon(self, work: Callable[[], object]) -> None:
        """Call this in the connection's loop; for any thread."""
        self._loop.call_soon_threadsafe(work)

    def request(self, data: bytes) -> asyncio.Future[bytes]:
        """Write a command; the future gets its answer, BrokerRefused or ConnectionLost."""
        self.send(data)
        future: asyncio.Future[bytes] = self._loop.create_future()
        self._waiting.append(future)
        return future

    async def call(self, data: bytes, timeout_s: float) -> bytes:
        """The answer to a command. TimedOut leaves the connection usable: a late answer is dropped.

        It is not written while the broker takes nothing: what is given up would stay in memory.
        """
        future: asyncio.Future[bytes] | None = None
        try:
            async with asyncio.timeout(timeout_s):
                if self._writable is not None:
                    await self.drain()
                future = self.request(data)
                return await asyncio.shield(future)
        except TimeoutError:
            did = "take a command" if future is None else "answer"
            raise TimedOut(f"{self.address} did not {did} within {timeout_s:g} s") from None
        finally:
            if future is not None:
                future.cancel()  # it stays in the row, so that the answers behind it find theirs

    async def drain(self) -> None:
        """Wait until the broker has taken most of what was written, or the connection is closed."""
        self._flush()
        while self._writable is not None:
            await asyncio.shield(self._writable)

    def close(self) -> None:
        """Close; commands still waiting fail with ConnectionLost."""
        self._flush()
        if self._transport is not None:
            self._transport.close()
        self.connection_lost(None)

    def _look(self) -> None:
        """A broker that has not been heard of, not even a heartbeat, is gone."""
        left_s = self._heard_s + SILENT_S - self._loop.time()
        if left_s > 0:
            self._watch = self._loop.call_later(left_s, self._look)
            return
        log.warning("%s is silent", self.address)
        self.close()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._liveness = Watch(self._transport, self.connection_lost)

    def data_received(self, data: bytes) -> None:
        self._heard_s = self._loop.time()
        frames = self._parser.feed(data)
        messages = self._parser.take()
        if messages and self._on_messages is not None and not self.closed:
            self._on_messages(self, messages)
        for frame in frames:
            self._frame(frame.kind, frame.data)
        if self._parser.error is not None:
            log.warning("%s: %s", self.address, self._parser.error)
            self.close()

    def _frame(self, kind: int, data: bytes) -> None:
        if data == nsqframes.HEARTBEAT:
            if not self.closed:
                self.send(nsqframes.NOP)
        elif kind == ERROR and data.startswith(OF_A_MESSAGE):
            log.warning(
                "%s: %s: the message had timed out, and comes again", self.address, data.decode("utf-8", "replace")
            )
        elif self._waiting:
            future = self._waiting.popleft()
            if future.done():
                return
            if kind == ERROR:
                future.set_exception(refusal(data.decode("utf-8", "replace")))
            else:
                future.set_result(data)
        elif kind == ERROR:
            log.warning("%s: %s", self.address, data.decode("utf-8", "replace"))

    def pause_writing(self) -> None:
        self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        if self._writable is not None:
            self._writable.set_result(None)
            self._writable = None

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        if self._liveness is not None:
            self._liveness.stop()
        self.resume_writing()
        self.lost.set()
        if self._watch is not None:
            self._watch.cancel()
        waiting, self._waiting = self._waiting, deque()
        for future in waiting:
            if not future.done():
                future.set_exception(ConnectionLost(f"the connection to {self.address} broke: {error or 'closed'}"))
                future.exception()  # its caller stopped waiting: asyncio must not warn
