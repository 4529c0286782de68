"""The waiting room: answers and requests that wait, by key for news, or by position for what is flushed or visible.

The hold of a pull waits by key (its message queue) in `Waiters`; it is resumed once, and parks again to go on waiting.
The answer to a message of level `disk` waits by position in `Positions`; with a replica, it is told of the smaller one of
two positions, and nothing else changes.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator
from enum import IntEnum
from typing import Protocol

GONE_SHARE = 64  # one that waits costs a 64th of a look for each owner that goes: thousands may go at once


class Owner(Protocol):
    """Who parks a request."""

    def resume(self, waiter: Waiter, expired: bool) -> None:
        """There is news, or the time is over."""


class Waiter:
    """One parked request. Whoever parks it makes a kind of its own, with what is needed to run it again.

    `number` is that of its entry by deadline; 0: it is not parked. One that parks again has another: the old entry is dead.
    """

    __slots__ = ("deadline_ms", "key", "number", "owner")

    def __init__(self, key: Hashable, owner: Owner, deadline_ms: int) -> None:
        self.key = key
        self.owner = owner
        self.deadline_ms = deadline_ms
        self.number = 0


class Waiters:
    """Waiters by key and by deadline (monotonic ms)."""

    def __init__(self, limit: int = 20_000) -> None:
        self.limit = limit
        self._by_key: dict[Hashable, list[Waiter]] = {}
        self._by_deadline: list[tuple[int, int, Waiter]] = []
        self._number = 0
        self._gone: set[object] = set()  # owners whose waiters are still here
        self.count = 0

    def park(self, waiter: Waiter) -> bool:
        """Take one in; False when there are `limit` already."""
        if self.count >= self.limit:
            self._forget_gone()
            if self.count >= self.limit:
                return False
        self._by_key.setdefault(waiter.key, []).append(waiter)
        self._number += 1
        waiter.number = self._number
        heapq.heappush(self._by_deadline, (waiter.deadline_ms, self._number, waiter))
        self.count += 1
        return True

    def watches(self, key: Hashable) -> bool:
        """Whether anyone waits for news of the key."""
        return key in self._by_key

    def keys(self) -> list[Hashable]:
        return list(self._by_key)

    def wake(self, key: Hashable) -> list[Waiter]:
        """Everyone who waits for this key; they are not parked any more."""
        woken = self._by_key.pop(key, [])
        for waiter in woken:
            waiter.number = 0
        self.count -= len(woken)
        if len(self._by_deadline) > 2 * self.count + 64:
            # Entries of woken waiters lie in the heap until their deadline: not more of them than of live ones.
            self._by_deadline = [entry for entry in self._by_deadline if entry[1] == entry[2].number]
            heapq.heapify(self._by_deadline)
        return self._present(woken)

    def due(self, mono_ms: int) -> list[Waiter]:
        """Everyone whose deadline has come; they are not parked any more."""
        found = []
        heap = self._by_deadline
        while heap and heap[0][0] <= mono_ms:
            _, number, waiter = heapq.heappop(heap)
            if waiter.number == number:
                self._unlink(waiter)
                found.append(waiter)
        return self._present(found)

    def next_ms(self) -> int | None:
        """The earliest deadline, or None."""
        heap = self._by_deadline
        while heap and heap[0][1] != heap[0][2].number:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def drop(self, owner: object) -> None:
        """Forget everything an owner parked: its connection is gone."""
        self._gone.add(owner)
        if len(self._gone) > self.count // GONE_SHARE:
            self._forget_gone()

    def _present(self, waiters: list[Waiter]) -> list[Waiter]:
        gone = self._gone
        return [waiter for waiter in waiters if waiter.owner not in gone] if gone else waiters

    def _forget_gone(self) -> None:
        for key, waiters in list(self._by_key.items()) if self._gone else ():
            present = self._present(waiters)
            if len(present) < len(waiters):
                for waiter in waiters:
                    if waiter.owner in self._gone:
                        waiter.number = 0
                self.count -= len(waiters) - len(present)
                self._by_key[key] = present
                if not present:
                    del self._by_key[key]
        self._gone.clear()

    def _unlink(self, waiter: Waiter) -> None:
        waiter.number = 0
        self.count -= 1
        waiters = self._by_key[waiter.key]
        waiters.remove(waiter)
        if not waiters:
            del self._by_key[waiter.key]


class Outcome(IntEnum):
    """How a wait for a position ended. Only REACHED is good."""

    FAILED = 0
    REACHED = 1
    EXPIRED = 2


class Positions:
    """Those who wait until a position is reached that only grows: flushed, acknowledged, visible.

    `wait` never calls back itself. Each is told once, in order of position, with the others as they were when it began; what one
    of them raises comes when all are told.
    """

    def __init__(self) -> None:
        self.line: list[tuple[int, int, _Waits]] = []  # a heap: (position, number, who)
        self._number = 0
        self._gone: set[object] = set()  # owners who still stand in the line, perhaps
        self._telling = False
        self._due_ms = sys.maxsize  # no deadline comes before this moment

    def __len__(self) -> int:
        return len(self.line)

    def wait(
        self, position: int, owner: object, told: Callable[[Outcome], None], deadline_ms: int | None = None
    ) -> None:
        """Let `told` know when the position is reached, or will not be, or the deadline (monotonic) has passed."""
        self._number += 1
        if deadline_ms is not None and deadline_ms < self._due_ms:
            self._due_ms = deadline_ms
        heapq.heappush(self.line, (position, self._number, _Waits(owner, told, deadline_ms)))

    def settle(self, reached: int) -> None:
        """Everything up to `reached` is there."""
        self._tell(self._take(reached), Outcome.REACHED)

    def fail(self) -> None:
        """No position will be reached any more."""
        self._tell(self._take(sys.maxsize), Outcome.FAILED)

    def _take(self, position: int) -> Iterator[_Waits]:
        """Those up to this position, one by one: one that is told may have others forgotten."""
        while self.line and self.line[0][0] <= position:
            yield heapq.heappop(self.line)[2]

    def expire(self, mono_ms: int) -> None:
        """Give up those whose deadline has passed."""
        if mono_ms < self._due_ms:
            return  # asked in every turn, and seldom is there one
        late = [entry for entry in self.line if entry[2].is_late(mono_ms)]
        if late:
            self.line = [entry for entry in self.line if not entry[2].is_late(mono_ms)]
            heapq.heapify(self.line)
        deadlines = [entry[2].deadline_ms for entry in self.line]
        self._due_ms = min((at for at in deadlines if at is not None), default=sys.maxsize)
        self._tell([entry[2] for entry in sorted(late, key=lambda entry: entry[:2])], Outcome.EXPIRED)

    def _tell(self, those: Iterable[_Waits], outcome: Outcome) -> None:
        raised: list[Exception] = []
        self._telling = True
        for who in those:
            if who.owner in self._gone:
                continue
            try:
                who.told(outcome)
            except Exception as error:
                raised.append(error)
        self._telling = False
        if raised:
            raise raised[0]

    def drop(self, owner: object) -> None:
        """Forget everything an owner waits for: its connection is gone."""
        self._gone.add(owner)
        if not self._telling and len(self._gone) > len(self.line) // GONE_SHARE:
            self.line = [entry for entry in self.line if entry[2].owner not in self._gone]
            heapq.heapify(self.line)
            self._gone.clear()


class _Waits:
    __slots__ = ("deadline_ms", "owner", "told")

    def __init__(self, owner: object, told: Callable[[Outcome], None], deadline_ms: int | None) -> None:
        self.owner = owner
        self.told = told
        self.deadline_ms = deadline_ms

    def is_late(self, mono_ms: int) -> bool:
        return self.deadline_ms is not None and self.deadline_ms <= mono_ms
