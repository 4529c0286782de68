"""Messages on their way from the loop to the threads that iterate, and what these say of them: in lists, either way.

loop ──▶ all that has come ──▶ one shared row ──▶ a thread, message by message
loop ◀── one wake-up for a list of outcomes ◀── ack() of a thread
"""

from __future__ import annotations

import threading

from penstock.client.aio.delivery import Handed, give_back
from penstock.client.aio.dispatch import Dispatcher
from penstock.client.portal import portal
from penstock.client.results import Reject, Retry


class Delivery(Handed):
    """A message handed out by `for`. Not settled when the loop asks for the next one, it counts as acked.

    The first of `ack`, `nack` and `reject` settles it; what is said afterwards is not heard.
    """

    def ack(self) -> None:
        """Done with it. The broker is told soon, with what else is done by then, and before the consumer is closed."""
        self.acknowledge()

    def nack(self, delay: float | None = None) -> None:
        """Bring it again after `delay` seconds; without one after 10 s, 30 s, 1 min … as it was delivered before."""
        portal().run(give_back(self, Retry(delay)))

    def extend(self) -> None:
        """Work on it takes longer: a queue topic's message gets its whole timeout again. A log topic's has none."""
        portal().run(self.prolong())

    def reject(self, reason: str = "") -> None:
        """Put it into the dead-letter topic: it will never be worked on as it is. `reason` is logged."""
        portal().run(give_back(self, Reject(reason)))


class Handout:
    """The iterations of one consumer's threads: any of them takes the next message of one row."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.dispatcher = dispatcher
        self._filling = threading.Lock()  # one thread waits in the loop, the others wait for it

    def wait(self) -> bool:
        """Wait for a message; False when the consumer closes and none is left."""
        with self._filling:
            return bool(self.dispatcher.iterated) or portal().run(self.dispatcher.some())


class Iteration:
    """One thread's way through the messages; the one before is acknowledged when the next is asked for."""

    def __init__(self, handout: Handout) -> None:
        self._handout = handout
        self._row = handout.dispatcher.iterated
        self._last: Delivery | None = None

    def __iter__(self) -> Iteration:
        return self

    def __next__(self) -> Delivery:
        if self._last is not None:
            self._last.acknowledge()
            self._last = None
        return self._next()

    def _next(self) -> Delivery:
        while True:
            try:
                delivery: Delivery = self._row.popleft()  # type: ignore[assignment]
            except IndexError:
                if not self._handout.wait():
                    raise StopIteration from None
                continue
            try:
                if not delivery.gone:
                    delivery.begin(None)
                    self._last = delivery
                    return delivery
            except BaseException:  # an interrupt: nobody has got it, and nothing behind it would be committed
                self._row.appendleft(delivery)
                raise
