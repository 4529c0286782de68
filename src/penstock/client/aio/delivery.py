"""What `async for` over a push consumer gives."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from penstock.client.aio.assigned import Assigned
from penstock.message import ReceivedMessage

# settles a message: None when it is done, else the delay level to bring it again with
Settle = Callable[[Assigned, ReceivedMessage, int | None], Awaitable[None]]


class Delivery:
    """A message handed out by `async for`. Not settled when the loop asks for the next one, it counts as acked."""

    __slots__ = ("_settle_message", "assigned", "done", "message", "settled")

    def __init__(self, settle: Settle, assigned: Assigned, message: ReceivedMessage) -> None:
        self._settle_message = settle
        self.assigned = assigned
        self.message = message
        self.settled = False
        self.done = asyncio.Event()

    @property
    def body(self) -> bytes:
        """The message's body."""
        return self.message.body

    @property
    def topic(self) -> str:
        """The message's topic."""
        return self.message.topic

    async def ack(self) -> None:
        """Done with it."""
        await self._settle(None)

    async def nak(self, delay_level: int = 0) -> None:
        """Bring it again later: level 0 as the broker likes, 1 to 18 after that delay."""
        await self._settle(delay_level)

    async def term(self) -> None:
        """Put it into the dead-letter topic."""
        await self._settle(-1)

    async def _settle(self, give_back: int | None) -> None:
        if self.settled:
            return
        self.settled = True
        try:
            await self._settle_message(self.assigned, self.message, give_back)
        finally:
            self.done.set()
