"""Received messages are handed to a listener, or to whoever iterates over the consumer: in lists."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Sequence
from functools import partial

from penstock.client.aio.delivery import Delivery, Hand, Handed, finish
from penstock.client.aio.listening import Listeners
from penstock.client.results import Outcome
from penstock.message import ReceivedMessage

log = logging.getLogger("penstock.client")

RAMP_S = 0.001  # when messages wait for longer, more threads work
RUN_S = 0.01  # in one thread with messages of one queue in order: then other queues may have it


class Acknowledged:
    """What threads have acknowledged, on its way into the loop: one wake-up for all that gathers until it comes.

    There is no lock: a list grows at its end while the loop takes from its front, and who finds that the loop was not told
    tells it.
    """

    def __init__(self) -> None:
        self._row: list[Handed] = []
        self._told = False
        self._loop: asyncio.AbstractEventLoop | None = None

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """This is the loop."""
        self._loop = loop

    def add(self, handed: Handed) -> None:
        """This message is done with; for any thread."""
        self._row.append(handed)
        if not self._told:
            self._told = True
            assert self._loop is not None
            try:
                self._loop.call_soon_threadsafe(self.settle)
            except BaseException:
                # An interrupt: the loop would never come, for anything that is acknowledged from now on.
                self._told = False
                self._loop.call_soon_threadsafe(self.settle)
                raise

    def settle(self) -> None:
        """Tell of all that has been acknowledged; in the loop."""
        self._told = False  # before the list is read: what is added from here on tells again
        taken = self._row[:]
        del self._row[: len(taken)]
        try:
            finish(taken)
        except Exception:
            log.exception("messages could not be acknowledged: they come again")


class Dispatcher:
    """Hands each message to a listener where its topic has one, else to the iteration.

    Coroutine functions are called by `concurrency` workers in the loop. Plain functions are called in threads, of which each
    takes the next message from one row: as many at a time as there is work for, so that quick listeners cost one hand-over
    for all that has come. Whoever iterates takes from another row, `iterated`: a coroutine, or threads.
    """

    def __init__(self, listeners: Listeners, concurrency: int = 1) -> None:
        self.listeners = listeners
        self.acknowledged = Acknowledged()
        self.iterated: deque[Handed] = deque()
        self._iterated_as: type[Handed] = Delivery
        self._some = asyncio.Event()  # there is something in it, or there will be nothing more
        self._concurrency = concurrency
        self._ready: asyncio.Queue[Handed] = asyncio.Queue()
        self._row: deque[Handed] = deque()  # for threads
        self._settling: set[asyncio.Task[None]] = set()
        self._at_work = 0
        self._ramp: asyncio.TimerHandle | None = None
        self._stopped = False

    def iterate_as(self, kind: type[Handed]) -> None:
        """Iterations get messages as this."""
        self._iterated_as = kind

    def offer(self, hands: list[Hand], messages: list[ReceivedMessage]) -> None:
        """Give messages, each with its hand, to listeners as soon as they are free, or to whoever iterates."""
        self.acknowledged.begin(asyncio.get_running_loop())
        at = 0
        while at < len(messages):
            topic = messages[at].topic
            end = at + 1
            while end < len(messages) and messages[end].topic == topic:
                end += 1
            self._offer(topic, hands[at:end], messages[at:end])
            at = end

    def _offer(self, topic: str, hands: list[Hand], messages: list[ReceivedMessage]) -> None:
        if not self.listeners.take(topic):
            self.iterated.extend(self._hold(self._iterated_as, hands, messages))
            self._some.set()
        elif self.listeners.runs_in_thread(topic):
            self._row.extend(self._hold(Handed, hands, messages))
            if not self._at_work:
                self._work_in_thread()
            if self._ramp is None:
                self._ramp = asyncio.get_running_loop().call_later(RAMP_S, self._more)
        else:
            for handed in self._hold(Handed, hands, messages):
                self._ready.put_nowait(handed)

    def _hold(self, kind: type[Handed], hands: list[Hand], messages: list[ReceivedMessage]) -> list[Handed]:
        return [kind(hand, message, None, self.acknowledged) for hand, message in zip(hands, messages, strict=True)]

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
        listeners, row, timeout_s = self.listeners, self._row, self.listeners.timeout_s
        while not self._stopped:
            try:
                handed = row.popleft()
            except IndexError:
                return
            if handed.gone:
                continue
            handed.begin(timeout_s)
            outcome = listeners.call_here(handed.message)
            if outcome is None:
                handed.acknowledge()
            else:
                loop.call_soon_threadsafe(self._settle, handed, outcome)

    def _settle(self, handed: Handed, outcome: Outcome) -> None:
        """Carry out what a listener has found: who called it goes on meanwhile; the window bounds how much is under way."""
        task = asyncio.get_running_loop().create_task(handed.settle(outcome))
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

    async def run_in_order(
        self, hand: Hand, messages: Sequence[ReceivedMessage], until_s: float
    ) -> tuple[int, Outcome]:
        """Have a plain function work on messages of one topic, one after the other in one thread: how many of them are done,
        and what it made of the one behind these, where it failed. None is begun after `until_s` of the monotonic clock.
        """
        self.acknowledged.begin(asyncio.get_running_loop())
        row = self._hold(Handed, [hand] * len(messages), list(messages))
        done = await self.listeners.run(partial(self._run_in_order, row, until_s))
        self.acknowledged.settle()  # since Python 3.14 the loop may know of a thread's end before it knows of what that has done
        return done

    def _run_in_order(self, row: list[Handed], until_s: float) -> tuple[int, Outcome]:
        began_s = time.monotonic()
        for number, handed in enumerate(row):
            now_s = time.monotonic()
            if self._stopped or handed.gone or now_s >= until_s or (number and now_s - began_s >= RUN_S):
                return number, None
            outcome = self.listeners.call_here(handed.message)
            if outcome is not None:
                return number, outcome
            handed.acknowledge()
        return len(row), None

    async def in_order(self, hand: Hand, message: ReceivedMessage) -> None:
        """Give a message to the iteration and wait until it is settled there."""
        self.acknowledged.begin(asyncio.get_running_loop())
        done = asyncio.Event()
        self.iterated.append(self._iterated_as(hand, message, done, self.acknowledged))
        self._some.set()
        await done.wait()

    async def work(self) -> None:
        """Call listeners, one message after the other, until cancelled, or until one has closed the consumer."""
        while True:
            handed = await self._ready.get()
            if not handed.gone:
                self.listeners.begin_work()
                try:
                    handed.begin(self.listeners.timeout_s)
                    outcome = await self.listeners.call(handed.message)
                    if outcome is None:
                        await handed.settle(None)
                    else:  # its broker may say nothing for long: this worker has others to work on
                        self._settle(handed, outcome)
                except Exception:
                    log.exception("a message could not be settled")
                finally:
                    self.listeners.end_work()
            if self._stopped:
                return

    async def some(self) -> bool:
        """Wait for a message that no listener takes; False when the consumer closes and none is left."""
        while not self.iterated:
            if self._stopped:
                return False
            self._some.clear()
            await self._some.wait()
        return True

    def iterate(self) -> Iteration:
        """The messages that no listener takes."""
        return Iteration(self)

    def stop(self) -> None:
        """End the iterations, and hand nothing more to listeners."""
        self._stopped = True
        if self._ramp is not None:
            self._ramp.cancel()
        self._some.set()


class Iteration:
    """One task's way through the messages; the one before is acknowledged when the next is asked for.

    No generator: one whose wait is given up (`asyncio.wait_for(anext(messages), 1)`) is asked again, and goes on.
    """

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._last: Delivery | None = None

    def __aiter__(self) -> Iteration:
        return self

    async def __anext__(self) -> Delivery:
        if self._last is not None and not self._last.settled:
            await self._last.ack()
        self._last = None
        while True:
            try:
                handed = self._dispatcher.iterated.popleft()
            except IndexError:
                if not await self._dispatcher.some():
                    raise StopAsyncIteration from None
                continue
            if not handed.gone:
                handed.begin(None)
                assert isinstance(handed, Delivery)
                self._last = handed
                return handed
