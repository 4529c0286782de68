"""Copied: publishes of level `pair`, whose answers wait until every slave in sync has them.

What is published in one turn waits for where the log ends when the turn does: one wait for each connection, however much it
published. Where no slave is in sync there is nothing to wait for, but at level `pair-disk` for the disk here.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from functools import partial

from penstock.broker.core import Core
from penstock.broker.levels import LEVEL_PAIR, LEVEL_PAIR_DISK
from penstock.broker.nsq.flush import GroupFlush
from penstock.broker.nsq.topics import Topic
from penstock.broker.replica import of_a_set
from penstock.delivery.waiters import Outcome
from penstock.errors import Refused


class Copy(IntEnum):
    """What became of a message of level `pair`. Only THERE is good; with all others but BROKEN it is stored here."""

    THERE = 0
    ALONE = 1
    LATE = 2
    BROKEN = 3


WHY = {
    Copy.ALONE: "stored, not replicated: no slave is in sync",
    Copy.LATE: "stored, not replicated: not every slave in sync has said in time that it has it",
    Copy.BROKEN: "the disk failed: restart the broker",
}

_OUTCOMES = {Outcome.REACHED: Copy.THERE, Outcome.EXPIRED: Copy.LATE, Outcome.FAILED: Copy.BROKEN}

NO_ENTRY = 2  # of the schedule: no record stands at 1
Told = Callable[[Copy], None]


def demand_set(core: Core, topic: Topic) -> None:
    """Refused where a topic wants copies and this broker has nobody to make them, whatever connects to it."""
    if topic.level >= LEVEL_PAIR and not of_a_set(core.config):
        raise Refused(
            f"topic {topic.name.decode()} has level pair, and this broker has no ha_port: nothing is ever copied. Give it one, "
            "or another level; by RocketMQ's protocol its producers are told that it is stored here only",
            nsq="E_PUB_FAILED",
            http=503,
        )


class CopyTicket:
    """An answer that waits for slaves."""

    def __init__(self, copied: Copied, topic: Topic) -> None:
        self._copied = copied
        self._topic = topic

    def then(self, call: Callable[[bool], None]) -> None:
        """`call(True)` once all of them have it, `call(False)` when they have not in time, or there is none."""
        self._copied.wait(self._topic, self, lambda outcome: call(outcome == Copy.THERE))


class Copied:
    """See the module. `seal` at the end of each turn of a master, before its slaves are looked at."""

    def __init__(self, core: Core, flush: GroupFlush) -> None:
        self._core = core
        self._flush = flush
        self.turn = 1  # number of the turn whose publishes wait together
        self._fresh: list[
            tuple[bool, object, Told]
        ] = []  # of this turn: whether it waits for disks, whose, who is told

    def ticket(self, topic: Topic) -> CopyTicket | None:
        """What the answer to a publish must wait for, where the topic's level asks for slaves."""
        return CopyTicket(self, topic) if topic.level >= LEVEL_PAIR else None

    def note_channel(self, topic: Topic, fresh: bool) -> bool:
        """A channel was made: whether its consumer is to wait until slaves know it, too. They are told of it before they get what
        is stored from now on, and here is a record to be stored that means nothing.
        """
        if not fresh or topic.level < LEVEL_PAIR or not self._core.copies.available:
            return False
        return self._core.sending.put_over(NO_ENTRY)

    def wait(self, topic: Topic, owner: object, told: Told) -> int:
        """Tell what became of what is published to a topic: later, or here and now. The number of the turn, where that holds for
        all that is published in it, or 0.
        """
        on_disk = topic.level == LEVEL_PAIR_DISK or self._flush.blocked()
        if self._core.copies.available:
            self._fresh.append((on_disk, owner, told))
            return self.turn
        if on_disk:
            self._flush.wait(self._flush.want(topic), lambda good: told(Copy.ALONE if good else Copy.BROKEN), owner)
        else:
            told(Copy.ALONE)
        return 0

    def seal(self) -> None:
        """The turn ends: what was published in it lies below the end of the log."""
        if not self._fresh:
            return
        fresh, self._fresh = self._fresh, []
        self.turn += 1
        copies, store = self._core.copies, self._core.store
        end, deadline_ms = store.end_position, self._core.time.mono_ms + self._core.config.ha_answer_ms
        for on_disk, owner, told in fresh:
            room = copies.waiting_flushed if on_disk else copies.waiting
            room.wait(end, owner, partial(_tell, told), deadline_ms)
            if on_disk:
                store.want_flush()

    def drop(self, owner: object) -> None:
        """Its connection is gone: it waits for nothing."""
        self._fresh = [entry for entry in self._fresh if entry[1] is not owner]
        self._core.copies.drop(owner)


def _tell(told: Told, outcome: Outcome) -> None:
    told(_OUTCOMES[outcome])
