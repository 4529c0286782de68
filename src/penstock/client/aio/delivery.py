"""What iterating over a push consumer gives: a message, and the four things that can be said of it."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Protocol

from penstock.client.results import Outcome, Reject, Retry
from penstock.message import ReceivedMessage

log = logging.getLogger("penstock.client")

GIVE_BACK_S = 3.0  # an iteration waits no longer for a broker that takes a message back: it has others to work on
_under_way: set[asyncio.Task[None]] = set()
_late: dict[
    tuple[asyncio.AbstractEventLoop, str], int
] = {}  # by the broker's address: how many were waited for in vain


class Owner(Protocol):
    """Who is told that messages in hand are done with."""

    def finish(self, done: list[Handed]) -> None:
        """These are. Nothing is waited for: the broker learns it soon."""


class Hand(Protocol):
    """Where a message in hand came from, and who is told what became of it."""

    @property
    def gone(self) -> bool:
        """Nobody waits for this message's end any more: it comes again."""

    @property
    def owner(self) -> Owner:
        """Who is told when its message is done with: one for all messages that may be told of together."""

    def begin(self, for_s: float | None) -> None:
        """A listener begins to work on it, for at most `for_s`; None: the iteration has it."""

    async def settle(self, message: ReceivedMessage, outcome: Outcome) -> None:
        """What became of it, when it is not done."""

    async def extend(self, message: ReceivedMessage) -> None:
        """It takes longer."""


class Acknowledging(Protocol):
    """Who takes acknowledgements from threads into the loop."""

    def add(self, handed: Handed) -> None:
        """This message is done with."""


class Handed:
    """A message in hand, for whoever works on it. The first outcome settles it; what is said afterwards is not heard.

    `done` is set when it is settled.
    """

    def __init__(
        self,
        hand: Hand,
        message: ReceivedMessage,
        done: asyncio.Event | None = None,
        acknowledging: Acknowledging | None = None,
    ) -> None:
        self.hand = hand
        self.message = message
        self.done = done
        self.acknowledging = acknowledging
        self.settled = False
        self.acked = False  # on its way to be settled

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
        return self.hand.gone

    def begin(self, for_s: float | None) -> None:
        """The consumer hands it to a listener, for at most `for_s`, or (None) to the iteration."""
        self.hand.begin(for_s)

    def acknowledge(self) -> None:
        """It is done with; for any thread. The loop learns it soon, with all that are done by then."""
        if not self.acked:
            self.acked = True
            assert self.acknowledging is not None
            self.acknowledging.add(self)

    async def settle(self, outcome: Outcome) -> None:
        """What became of it, in the loop."""
        if self.settled:
            return
        if outcome is None:
            finish([self])
            return
        self.settled = True
        try:
            await self.hand.settle(self.message, outcome)
        finally:
            if self.done is not None:
                self.done.set()

    async def prolong(self) -> None:
        """Work on it takes longer."""
        if not self.settled:
            await self.hand.extend(self.message)


class Delivery(Handed):
    """A message handed out by `async for`. Not settled when the loop asks for the next one, it counts as acked.

    The first of `ack`, `nack` and `reject` settles it; what is said afterwards is not heard.
    """

    async def ack(self) -> None:
        """Done with it."""
        finish([self])

    async def nack(self, delay: float | None = None) -> None:
        """Bring it again after `delay` seconds; without one after 10 s, 30 s, 1 min … as it was delivered before."""
        await give_back(self, Retry(delay))

    async def extend(self) -> None:
        """Work on it takes longer: a queue topic's message gets its whole timeout again. A log topic's has none."""
        await self.prolong()

    async def reject(self, reason: str = "") -> None:
        """Put it into the dead-letter topic: it will never be worked on as it is. `reason` is logged."""
        await give_back(self, Reject(reason))


async def give_back(handed: Handed, outcome: Outcome) -> None:
    """Settle, in the loop, what an iteration is not done with. A broker that says nothing is waited for `GIVE_BACK_S`, and not
    by each of its messages: while one is late, the others of that broker are not waited for.

    Then the client goes on trying by itself, and logs each failure; what is committed stays before the message meanwhile.
    """
    loop = asyncio.get_running_loop()
    where = loop, handed.message.store_host
    task = loop.create_task(handed.settle(outcome))
    _under_way.add(task)
    task.add_done_callback(_under_way.discard)
    try:
        await asyncio.wait((task,), timeout=0 if where in _late else GIVE_BACK_S)
    finally:
        if not task.done():
            _late[where] = _late.get(where, 0) + 1
            task.add_done_callback(partial(_tell, where))
    if task.done():
        task.result()


def _tell(where: tuple[asyncio.AbstractEventLoop, str], task: asyncio.Task[None]) -> None:
    _late[where] -= 1
    if not _late[where]:
        del _late[where]
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("a message could not be given back: it comes again", exc_info=error)


def finish(all_: list[Handed]) -> None:
    """These are done with, in the loop: those that follow one another and have one owner go together.

    An owner that fails costs no other; its error is raised in the end, the first one where there are several.
    """
    together: list[Handed] = []
    owner: Owner | None = None
    failed: Exception | None = None
    for handed in all_:
        if handed.settled:
            continue
        handed.settled = True
        to = handed.hand.owner
        if to is not owner and together:
            error = _finish(owner, together)
            failed = failed or error
            together = []
        owner = to
        together.append(handed)
    if together:
        error = _finish(owner, together)
        failed = failed or error
    if failed is not None:
        raise failed


def _finish(owner: Owner | None, together: list[Handed]) -> Exception | None:
    assert owner is not None
    try:
        owner.finish(together)
    except Exception as error:
        return error
    finally:
        for handed in together:
            if handed.done is not None:
                handed.done.set()
    return None
