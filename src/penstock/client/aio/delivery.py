"""What `async for` over a push consumer gives: a message, and the four things that can be said of it."""

from __future__ import annotations

import asyncio
from typing import Protocol

from penstock.client.results import Outcome, Reject, Retry
from penstock.message import ReceivedMessage


class Hand(Protocol):
    """Where a message in hand came from, and who is told what became of it."""

    @property
    def gone(self) -> bool:
        """Nobody waits for this message's end any more: it comes again."""

    def begin(self, for_s: float | None) -> None:
        """A listener begins to work on it, for at most `for_s`; None: the iteration has it."""

    async def settle(self, message: ReceivedMessage, outcome: Outcome) -> None:
        """What became of it."""

    async def extend(self, message: ReceivedMessage) -> None:
        """It takes longer."""


class Delivery:
    """A message handed out by `async for`. Not settled when the loop asks for the next one, it counts as acked.

    The first of `ack`, `nack` and `reject` settles it; what is said afterwards is not heard.
    """

    __slots__ = ("_done", "_hand", "message", "settled")

    def __init__(self, hand: Hand, message: ReceivedMessage, done: asyncio.Event | None = None) -> None:
        self._hand = hand
        self.message = message
        self.settled = False
        self._done = done

    @property
    def body(self) -> bytes:
        """The message's body."""
        return self.message.body

    @property
    def topic(self) -> str:
        """The message's topic."""
        return self.message.topic

    @property
    def attempts(self) -> int:
        """Deliveries of this message so far, this one included."""
        return self.message.attempts

    @property
    def gone(self) -> bool:
        """Its connection, or its queue, was lost meanwhile: it comes again, here or elsewhere."""
        return self._hand.gone

    def begin(self, for_s: float | None) -> None:
        """The consumer hands it to a listener, for at most `for_s`, or (None) to the iteration."""
        self._hand.begin(for_s)

    async def ack(self) -> None:
        """Done with it."""
        await self.settle(None)

    async def nack(self, delay: float | None = None) -> None:
        """Bring it again after `delay` seconds; without one after 10 s, 30 s, 1 min … as it was delivered before."""
        await self.settle(Retry(delay))

    async def extend(self) -> None:
        """Work on it takes longer: a queue topic's message gets its whole timeout again. A log topic's has none."""
        if not self.settled:
            await self._hand.extend(self.message)

    async def reject(self, reason: str = "") -> None:
        """Put it into the dead-letter topic: it will never be worked on as it is. `reason` is logged."""
        await self.settle(Reject(reason))

    async def settle(self, outcome: Outcome) -> None:
        """Whichever of the three it is."""
        if self.settled:
            return
        self.settled = True
        try:
            await self._hand.settle(self.message, outcome)
        finally:
            if self._done is not None:
                self._done.set()
