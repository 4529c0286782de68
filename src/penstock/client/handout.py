"""Messages on their way from the loop to the threads that iterate, and what these say of them: in lists, either way.

loop ──▶ take(): all that is there ──▶ one shared row ──▶ a thread, message by message
loop ◀── one wake-up for a list of outcomes ◀── ack() of a thread
"""

from __future__ import annotations

import threading
from collections import deque

from penstock.client.aio.delivery import Delivery
from penstock.client.aio.dispatch import Dispatcher
from penstock.client.portal import portal

LIST_MAX = 256


class Handout:
    """One consumer's row of messages, from which any of its threads takes the next one."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._row: deque[Delivery] = deque()
        self._filling = threading.Lock()  # one thread asks for more, the others wait for what it gets

    def next(self) -> Delivery | None:
        """The next message, waited for; None when the consumer closes."""
        while True:
            try:
                delivery = self._row.popleft()
            except IndexError:
                with self._filling:
                    if not self._row and not portal().run(self._fill()):
                        return None
                continue
            if not delivery.gone:
                delivery.begin(None)
                return delivery

    async def _fill(self) -> bool:
        """In the loop: what is there comes into the row, also when the thread that asked is interrupted."""
        found = await self._dispatcher.take(LIST_MAX)
        self._row.extend(found)
        return bool(found)

    def acknowledge(self, delivery: Delivery) -> None:
        """The message is done with; the loop learns it soon, with all that are done by then."""
        self._dispatcher.acknowledged.add(delivery, portal().loop)
