"""Requests that wait: resumed when news of their key comes, or when their deadline has passed.

The hold of a pull is one (key: its message queue). A waiter is resumed once; whoever wants to go on waiting parks again.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from typing import Any


class Waiter:
    """One parked request; `what` belongs to whoever parked it."""

    __slots__ = ("deadline_ms", "key", "live", "owner", "what")

    def __init__(self, key: Hashable, owner: object, deadline_ms: int, what: Any) -> None:
        self.key = key
        self.owner = owner
        self.deadline_ms = deadline_ms
        self.what = what
        self.live = True


class Waiters:
    """Waiters by key and by deadline (monotonic ms)."""

    def __init__(self, limit: int = 20_000) -> None:
        self.limit = limit
        self._by_key: dict[Hashable, list[Waiter]] = {}
        self._by_deadline: list[tuple[int, int, Waiter]] = []
        self._number = 0
        self.count = 0

    def park(self, waiter: Waiter) -> bool:
        """Take one in; False when there are `limit` already."""
        if self.count >= self.limit:
            return False
        waiter.live = True
        self._by_key.setdefault(waiter.key, []).append(waiter)
        self._number += 1
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
            waiter.live = False
        self.count -= len(woken)
        if len(self._by_deadline) > 2 * self.count + 64:
            # Entries of woken waiters lie in the heap until their deadline: not more of them than of live ones.
            self._by_deadline = [entry for entry in self._by_deadline if entry[2].live]
            heapq.heapify(self._by_deadline)
        return woken

    def due(self, mono_ms: int) -> list[Waiter]:
        """Everyone whose deadline has come; they are not parked any more."""
        found = []
        heap = self._by_deadline
        while heap and heap[0][0] <= mono_ms:
            waiter = heapq.heappop(heap)[2]
            if waiter.live:
                self._unlink(waiter)
                found.append(waiter)
        return found

    def next_ms(self) -> int | None:
        """The earliest deadline, or None."""
        heap = self._by_deadline
        while heap and not heap[0][2].live:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def drop(self, owner: object) -> None:
        """Forget everything an owner parked: its connection is gone."""
        for waiters in list(self._by_key.values()):
            for waiter in [w for w in waiters if w.owner is owner]:
                self._unlink(waiter)

    def _unlink(self, waiter: Waiter) -> None:
        waiter.live = False
        self.count -= 1
        waiters = self._by_key[waiter.key]
        waiters.remove(waiter)
        if not waiters:
            del self._by_key[waiter.key]
