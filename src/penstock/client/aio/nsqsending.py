"""Publishing to queue topics: one connection to each broker, an answer awaited for each publish."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from penstock.client import nsqframes
from penstock.client.aio.connection import opened
from penstock.client.aio.nsqconnection import NsqConnection
from penstock.client.nsqsending import check_plain, defer_ms
from penstock.client.results import SendReceipt, SendStatus
from penstock.client.routes import MessageQueue
from penstock.clock import Clock
from penstock.errors import NOT_OPEN, Closed
from penstock.message import Message
from penstock.security import PLAIN, Security


class QueueSender:
    """The NSQ side of a producer. Nothing is tried twice here: that is the producer's affair."""

    def __init__(self, clock: Clock, timeout_s: float, security: Security = PLAIN) -> None:
        self._security = security
        self._clock = clock
        self._timeout_s = timeout_s
        self._connections: dict[str, asyncio.Task[NsqConnection]] = {}
        self._open = True

    async def send(self, address: str, to: MessageQueue, messages: Sequence[Message], timeout_s: float) -> SendReceipt:
        """Publish messages of one topic, all or none. NSQ gives them neither id nor offset.

        Raises ValueError for what a queue topic cannot take.
        """
        command = self._command(messages)
        connection = await self._connection(address)
        await connection.call(command, timeout_s)
        return SendReceipt(SendStatus.SEND_OK, to, -1, ("",) * len(messages), ("",) * len(messages))

    async def send_oneway(self, address: str, message: Message) -> None:
        """Write the publish, once the broker takes something, and look at no answer."""
        command = self._command([message])
        connection = await self._connection(address)
        await connection.drain()
        connection.request(command).cancel()

    def _command(self, messages: Sequence[Message]) -> bytes:
        check_plain(messages)
        defer = defer_ms(messages[0], self._clock.now_ms())
        return nsqframes.publish(messages[0].topic, [message.body for message in messages], defer)

    async def _connection(self, address: str) -> NsqConnection:
        opening = self._connections.get(address)
        if (
            opening is not None
            and opening.done()
            and (opening.cancelled() or opening.exception() is not None or opening.result().closed)
        ):
            opening = None
        if opening is None:
            if not self._open:
                raise Closed(NOT_OPEN)
            opening = self._connections[address] = asyncio.create_task(
                NsqConnection.open(address, self._timeout_s, security=self._security)
            )
        return opening.result() if opening.done() else await opened(opening, address)

    def part(self, address: str) -> None:
        """Close the connection to an address, if there is one, or give up making it; who waits has ConnectionLost."""
        opening = self._connections.get(address)
        if opening is None:
            return
        if opening.done() and not opening.cancelled() and opening.exception() is None:
            opening.result().close()
        opening.cancel()

    async def close(self) -> None:
        """Close the connections; publishes under way fail."""
        self._open = False
        for opening in self._connections.values():
            opening.cancel()
        for made in await asyncio.gather(*self._connections.values(), return_exceptions=True):
            if isinstance(made, NsqConnection):
                made.close()
        self._connections.clear()
