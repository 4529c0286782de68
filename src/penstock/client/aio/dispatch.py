"""Received messages are handed to a listener, or to the `async for` over the consumer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from penstock.client.aio.delivery import Delivery, Hand
from penstock.client.aio.listening import Listeners
from penstock.message import ReceivedMessage


class Dispatcher:
    """Hands each message to a listener where its topic has one, else to the iteration."""

    def __init__(self, listeners: Listeners) -> None:
        self.listeners = listeners
        self._ready: asyncio.Queue[Delivery] = asyncio.Queue()
        self._deliveries: asyncio.Queue[Delivery | None] = asyncio.Queue()

    def offer(self, hand: Hand, message: ReceivedMessage) -> None:
        """Give a message to a listener as soon as one is free, or to the iteration."""
        offered = self._ready if self.listeners.take(message.topic) else self._deliveries
        offered.put_nowait(Delivery(hand, message))

    async def iterated(self, hand: Hand, message: ReceivedMessage) -> None:
        """Give a message to the iteration and wait until it is settled there."""
        delivery = Delivery(hand, message)
        self._deliveries.put_nowait(delivery)
        await delivery.done.wait()

    async def work(self) -> None:
        """Call listeners, one message after the other, until cancelled."""
        while True:
            delivery = await self._ready.get()
            if not delivery.gone:
                async with self.listeners.in_hand():
                    delivery.begin(self.listeners.timeout_s)
                    await delivery.settle(await self.listeners.call(delivery.message))

    async def iterate(self) -> AsyncIterator[Delivery]:
        """The messages that no listener takes; the one before is acknowledged when the next is asked for."""
        while (delivery := await self._deliveries.get()) is not None:
            if delivery.gone:
                continue
            delivery.begin(None)
            yield delivery
            await delivery.ack()
        self._deliveries.put_nowait(None)  # for the next iterator

    def stop(self) -> None:
        """End the iterations."""
        self._deliveries.put_nowait(None)
