"""A hand that notes what became of its messages."""

from __future__ import annotations

import asyncio

from penstock.client.aio.delivery import Handed
from penstock.client.results import Outcome
from penstock.message import ReceivedMessage


class Hand:
    def __init__(self) -> None:
        self.gone = False
        self.outcomes: list[Outcome] = []
        self._more = asyncio.Event()

    def begin(self, for_s: float | None) -> None:
        """Work begins."""

    @property
    def owner(self) -> Hand:
        return self

    def finish(self, done: list[Handed]) -> None:
        self.outcomes += [None] * len(done)
        self._more.set()

    async def settle(self, message: ReceivedMessage, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        self._more.set()

    async def extend(self, message: ReceivedMessage) -> None:
        """It takes longer."""

    async def wait_for(self, count: int) -> None:
        async with asyncio.timeout(20):
            while len(self.outcomes) < count:
                self._more.clear()
                await self._more.wait()
