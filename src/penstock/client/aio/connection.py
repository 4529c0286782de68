"""One connection to a broker or registry: requests out, answers matched to them, the peer's own requests handed up."""

from __future__ import annotations

import asyncio
import itertools
import ssl
from collections.abc import Callable
from typing import TypeVar, cast

from penstock.client.conversation import check_texts
from penstock.client.liveness import CONNECT_S, Watch
from penstock.errors import ConnectionLost, NotConnected, NotTrusted, TimedOut, WireError
from penstock.security import PLAIN, Security
from penstock.wire.addresses import split_address
from penstock.wire.remoting import CommandParser, RemotingCommand, encode
from penstock.words import FRAME_BYTES_MAX

OnRequest = Callable[["Connection", RemotingCommand], None]
T = TypeVar("T")


async def opened(opening: asyncio.Task[T], address: str) -> T:
    """The connection that a task makes, for which others may wait, too. NotConnected when it was given up."""
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if opening.cancelled() and not (task and task.cancelling()):
            raise NotConnected(f"cannot connect to {address}: given up") from None
        raise


def unreachable(address: str, error: OSError) -> NotConnected:
    """What is said of a connection that could not be made, and why: asyncio has no words of its own for some of it."""
    why = str(error) or ("timed out" if isinstance(error, TimeoutError) else "the other side has closed it")
    kind = NotTrusted if isinstance(error, ssl.SSLCertVerificationError) else NotConnected
    return kind(f"cannot connect to {address}: {why}")


class Connection(asyncio.BufferedProtocol):
    """Many requests may wait at once; each is matched by its opaque number.

    What is sent in one turn of the loop goes out in one write.
    """

    def __init__(self, address: str, on_request: OnRequest, security: Security = PLAIN) -> None:
        self.address = address
        self._security = security
        self._signed = bool(security.user)
        self.closed = False
        self._on_request = on_request
        self._parser = CommandParser(header_bytes_max=FRAME_BYTES_MAX)
        self._opaques = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[RemotingCommand]] = {}
        self._transport: asyncio.Transport | None = None
        self._liveness: Watch | None = None
        self._loop = asyncio.get_running_loop()
        self._writable: asyncio.Future[None] | None = None
        self._out: list[bytes] = []

    @classmethod
    async def open(
        cls, address: str, timeout_s: float, on_request: OnRequest, security: Security = PLAIN
    ) -> Connection:
        """A new connection. ConnectionLost when the address cannot be reached in time."""
        host, port = split_address(address)
        try:
            async with asyncio.timeout(min(timeout_s, CONNECT_S if security.context is None else 2 * CONNECT_S)):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: cls(address, on_request, security), host, port, ssl=security.context
                )
        except (OSError, TimeoutError) as error:
            raise unreachable(address, error) from error
        return connection

    @property
    def local_host(self) -> str:
        """Our own address on this connection."""
        assert self._transport is not None
        return str(self._transport.get_extra_info("sockname")[0])

    def send(self, command: RemotingCommand) -> None:
        """Write a one-way request or an answer. ConnectionLost when the connection is known to be broken."""
        if self.closed or self._transport is None:
            raise NotConnected(f"the connection to {self.address} is closed")
        if not self._out:
            self._loop.call_soon(self._flush)
        if self._signed and not command.response:
            self._security.sign(command)
        self._out.append(encode(command))

    def _flush(self) -> None:
        out, self._out = self._out, []
        if out and self._transport is not None and not self.closed:
            self._transport.write(b"".join(out))

    def send_oneway(self, command: RemotingCommand) -> None:
        """Write a request that is not answered."""
        command.number(next(self._opaques))
        command.ask_nothing()
        self.send(command)

    def request(self, command: RemotingCommand) -> asyncio.Future[RemotingCommand]:
        """Write a request; the future gets its answer or ConnectionLost. Unaskable for what no request can hold."""
        check_texts(command)
        opaque = command.number(next(self._opaques))
        self.send(command)
        future = self._waiting[opaque] = self._loop.create_future()
        return future

    async def call(self, command: RemotingCommand, timeout_s: float) -> RemotingCommand:
        """The answer to a request. TimedOut leaves the connection usable: a late answer is dropped.

        It is not written while the peer takes nothing: whatever is given up would stay in the memory of a connection to a
        broker that is stopped.
        """
        opaque = -1
        try:
            async with asyncio.timeout(timeout_s):
                if self._writable is not None:
                    await self.drain()
                future = self.request(command)
                opaque = command.opaque
                return await future
        except TimeoutError:
            did = "answer" if opaque >= 0 else "take"
            raise TimedOut(f"{self.address} did not {did} request {command.code} within {timeout_s:.3g} s") from None
        finally:
            self._waiting.pop(opaque, None)

    async def drain(self) -> None:
        """Wait until the peer has taken most of what was written, or the connection is closed."""
        self._flush()
        while self._writable is not None:
            await asyncio.shield(self._writable)

    def close(self) -> None:
        """Close; requests still waiting fail with ConnectionLost."""
        self._flush()
        if self._transport is not None:
            self._transport.close()
        self.connection_lost(None)

    # asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._liveness = Watch(self._transport, self.connection_lost)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._parser.room()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            commands = self._parser.came(nbytes)
        except WireError:
            commands = []
        for command in commands:
            if not command.response:
                self._on_request(self, command)
                continue
            future = self._waiting.pop(command.opaque, None)
            if future is not None and not future.done():
                future.set_result(command)
        if self._parser.error is not None:
            self.close()

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
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(ConnectionLost(f"the connection to {self.address} broke: {error or 'closed'}"))
                future.exception()  # its caller stopped waiting: asyncio must not warn
