"""The numbers of an idempotent producer's sends to one message queue."""

from __future__ import annotations

import asyncio
import os

WINDOW = 32
"""How many numbers a broker remembers: the oldest send without an answer is never further back."""


class Numbers:
    """Gives each send the next number; waits while the oldest one without an answer is too far behind."""

    def __init__(self) -> None:
        self.producer = os.urandom(8).hex()
        self._last = 0
        self._open: set[int] = set()
        self._waiting: list[asyncio.Future[None]] = []

    async def begin(self) -> int:
        """The next number."""
        while self._open and self._last + 1 - min(self._open) >= WINDOW:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            await waiter
        self._last += 1
        self._open.add(self._last)
        return self._last

    def end(self, number: int) -> None:
        """This send has its answer, or is given up."""
        self._open.discard(number)
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)
