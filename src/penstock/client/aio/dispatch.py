"""Received messages are handed to a listener, or to the `async for` over the consumer."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import AsyncIterator, Coroutine
from functools import partial

from penstock.client.aio.delivery import Delivery, Hand
from penstock.client.aio.listening import Listeners
from penstock.client.results import Outcome
from penstock.message import ReceivedMessage

log = logging.getLogger("penstock.client")

RAMP_S = 0.001  # when messages wait for longer, more threads work


class Acknowledged:
    """What threads have acknowledged, on its way into the loop: one wake-up for all that gathers until it comes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._deliveries: list[Delivery] = []
        self._told = False

    def add(self, delivery: Delivery, loop: asyncio.AbstractEventLoop) -> None:
        """This message is done with; for any thread."""
        with self._lock:
            self._deliveries.append(delivery)
            if self._told:
                return
            self._told = True
        loop.call_soon_threadsafe(self._settle)

    def _settle(self) -> None:
        with self._lock:
            deliveries, self._deliveries = self._deliveries, []
            self._told = False
        for delivery in deliveries:
            try:
                _carry_out(delivery.ack())
            except Exception:  # the others behind it are acknowledged all the same; this one comes again
                log.exception("a message of %s could not be acknowledged", delivery.topic)


def _carry_out(work: Coroutine[object, None, None]) -> None:
    """Run a coroutine that waits for nothing: an acknowledgement is written down here, and told to the broker later."""
    try:
        work.send(None)
    except StopIteration:
        return
    raise RuntimeError("an acknowledgement waited")


class Dispatcher:
    """Hands each message to a listener where its topic has one, else to the iteration.

    Coroutine functions are called by `concurrency` workers in the loop. Plain functions are called in threads, of which each
    takes the next message from one row: as many at a time as there is work for, so that quick listeners cost one hand-over
    for all that has come.
    """

    def __init__(self, listeners: Listeners, concurrency: int = 1) -> None:
        self.listeners = listeners
        self.acknowledged = Acknowledged()
        self._concurrency = concurrency
        self._ready: asyncio.Queue[Delivery] = asyncio.Queue()
        self._deliveries: asyncio.Queue[Delivery | None] = asyncio.Queue()
        self._row: deque[Delivery] = deque()  # for threads
        self._settling: set[asyncio.Task[None]] = set()
        self._at_work = 0
        self._ramp: asyncio.TimerHandle | None = None
        self._stopped = False

    def offer(self, hand: Hand, message: ReceivedMessage) -> None:
        """Give a message to a listener as soon as one is free, or to whoever iterates."""
        delivery = Delivery(hand, message)
        if not self.listeners.take(message.topic):
            self._deliveries.put_nowait(delivery)
        elif self.listeners.runs_in_thread(message.topic):
            self._row.append(delivery)
            if not self._at_work:
                self._work_in_thread()
            if self._ramp is None:
                self._ramp = asyncio.get_running_loop().call_later(RAMP_S, self._more)
        else:
            self._ready.put_nowait(delivery)

    def _more(self) -> None:
        """Some messages have waited: twice as many threads, while that goes on."""
        self._ramp = None
        for _ in range(min(max(self._at_work, 1), self._concurrency - self._at_work, len(self._row))):
            self._work_in_thread()
        if self._row and self._at_work < self._concurrency and not self._stopped:
            self._ramp = asyncio.get_running_loop().call_later(RAMP_S, self._more)

    def _work_in_thread(self) -> None:
        if not self._stopped:
            self._at_work += 1
            self.listeners.begin_work()
            self.listeners.run(partial(self._work, asyncio.get_running_loop())).add_done_callback(self._worked)

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        """In a thread: call the listener for one message after the other, until none is left."""
        listeners, row = self.listeners, self._row
        while not self._stopped:
            try:
                delivery = row.popleft()
            except IndexError:
                return
            if delivery.gone:
                continue
            delivery.begin(listeners.timeout_s)
            outcome = listeners.call_here(delivery.message)
            if outcome is None:
                self.acknowledged.add(delivery, loop)
            else:
                loop.call_soon_threadsafe(self._settle, delivery, outcome)

    def _settle(self, delivery: Delivery, outcome: Outcome) -> None:
        """Carry out what a thread has found: it goes on meanwhile; the window bounds how much is under way."""
        task = asyncio.get_running_loop().create_task(delivery.settle(outcome))
        self._settling.add(task)
        self.listeners.begin_work()
        task.add_done_callback(self._settled)

    def _settled(self, task: asyncio.Task[None]) -> None:
        self._settling.discard(task)
        self.listeners.end_work()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a message could not be settled", exc_info=error)

    def _worked(self, done: asyncio.Future[None]) -> None:
        self._at_work -= 1
        self.listeners.end_work()
        if not done.cancelled() and (error := done.exception()) is not None:
            log.error("a thread of the listeners failed", exc_info=error)
        if self._row and not self._at_work:  # it came when the thread had just found nothing
            self._work_in_thread()

    async def iterated(self, hand: Hand, message: ReceivedMessage) -> None:
        """Give a message to the iteration and wait until it is settled there."""
        done = asyncio.Event()
        self._deliveries.put_nowait(Delivery(hand, message, done))
        await done.wait()

    async def work(self) -> None:
        """Call listeners, one message after the other, until cancelled."""
        while True:
            delivery = await self._ready.get()
            if not delivery.gone:
                self.listeners.begin_work()
                try:
                    delivery.begin(self.listeners.timeout_s)
                    await delivery.settle(await self.listeners.call(delivery.message))
                finally:
                    self.listeners.end_work()

    async def iterate(self) -> AsyncIterator[Delivery]:
        """The messages that no listener takes; the one before is acknowledged when the next is asked for."""
        while (delivery := await self._deliveries.get()) is not None:
            if delivery.gone:
                continue
            delivery.begin(None)
            yield delivery
            await delivery.ack()
        self._deliveries.put_nowait(None)  # for the next iterator

    async def take(self, most: int) -> list[Delivery]:
        """At least one message that no listener takes, and what else is there; none when the consumer closes.

        For a client that hands them out by itself: their work has not begun, and nothing is acknowledged for it.
        """
        first = await self._deliveries.get()
        if first is None:
            self._deliveries.put_nowait(None)
            return []
        found = [first]
        while len(found) < most and not self._deliveries.empty():
            delivery = self._deliveries.get_nowait()
            if delivery is None:
                self._deliveries.put_nowait(None)
                break
            found.append(delivery)
        return found

    def stop(self) -> None:
        """End the iterations, and hand nothing more to listeners."""
        self._stopped = True
        if self._ramp is not None:
            self._ramp.cancel()
        self._deliveries.put_nowait(None)
