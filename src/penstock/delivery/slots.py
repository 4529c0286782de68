"""Slots: the messages a channel has in hand (in flight, waiting again, deferred in memory), without an object for each.

A slot is a number. Arrays beside each other hold what is known of it, a hash table finds it by message id, and an
indexed binary heap says which of them must be looked at first. Deadlines come nearly in order, so that putting one
into the heap takes constant time in practice.
"""

# mypy: disable-error-code="no-any-return"
from __future__ import annotations

from array import array

import cython

if cython.compiled:
    from cython.cimports.penstock import words
else:
    from penstock import words


def numbers(count: int, value: int = 0) -> array[int]:
    """An array of 64-bit integers."""
    return array("q", [value]) * count


class Slots:
    """See the module. All times are monotonic ms."""

    def __init__(self) -> None:
        self.count = 0
        self.timed = 0  # slots in the heap
        self.capacity = 0
        self._mask = 0
        self._free = -1
        self.id = self.place = self.lane = self.attempts = self.owner = self.since = self.state = numbers(0)
        self.due = self._heap = self._at = self._next = self._table = numbers(0)
        self._grow(words.SLOTS_MIN)

    def _grow(self, capacity: int) -> None:
        old = self.capacity
        more = numbers(capacity - old)
        for name in ("id", "place", "lane", "attempts", "owner", "since", "state", "due", "_heap"):
            kept = array("q", getattr(self, name))
            setattr(self, name, kept + more)
        self._at = array("q", self._at) + numbers(capacity - old, -1)
        self._next = array("q", self._next) + array("q", [*range(old + 1, capacity), self._free])
        self._free = old
        self.capacity = capacity
        self._table = numbers(2 * capacity, -1)
        self._mask = 2 * capacity - 1
        for slot in range(old):
            if self.state[slot]:
                self._enter(slot)

    # -- by id ---------------------------------------------------------------------------------------------------

    def _home(self, message_id: int) -> int:
        """Where in the table the search for an id begins."""
        x = message_id ^ (message_id >> words.ID_FOLD)
        return (x * words.ID_FACTOR + (x >> words.ID_FOLD_AGAIN)) & self._mask

    def _enter(self, slot: int) -> None:
        at = self._home(self.id[slot])
        while self._table[at] >= 0:
            at = (at + 1) & self._mask
        self._table[at] = slot

    def add(self, message_id: int, place: int, lane: int, attempts: int, state: int) -> int:
        """A slot for a message, or -1 when one with this id is in hand already."""
        at = self._home(message_id)
        while True:
            slot = self._table[at]
            if slot < 0:
                break
            if self.id[slot] == message_id:
                return -1
            at = (at + 1) & self._mask
        if self._free < 0:
            self._grow(2 * self.capacity)
            at = self._home(message_id)
            while self._table[at] >= 0:
                at = (at + 1) & self._mask
        slot = self._free
        self._free = self._next[slot]
        self._table[at] = slot
        self.id[slot] = message_id
        self.place[slot] = place
        self.lane[slot] = lane
        self.attempts[slot] = attempts
        self.state[slot] = state
        self.owner[slot] = -1
        self.count += 1
        return slot

    def find(self, message_id: int) -> int:
        """The slot of a message, or -1."""
        at = self._home(message_id)
        while True:
            slot = self._table[at]
            if slot < 0 or self.id[slot] == message_id:
                return slot
            at = (at + 1) & self._mask

    def drop(self, slot: int) -> None:
        """Forget a message: its slot is free for another."""
        at = self._home(self.id[slot])
        while self._table[at] != slot:
            at = (at + 1) & self._mask
        hole = at  # entries behind it that would be cut off from their home move up
        while True:
            at = (at + 1) & self._mask
            other = self._table[at]
            if other < 0:
                break
            home = self._home(self.id[other])
            if ((at - home) & self._mask) >= ((at - hole) & self._mask):
                self._table[hole] = other
                hole = at
        self._table[hole] = -1
        if self._at[slot] >= 0:
            self.untime(slot)
        self.state[slot] = words.FREE
        self._next[slot] = self._free
        self._free = slot
        self.count -= 1

    # -- by time -------------------------------------------------------------------------------------------------

    def time(self, slot: int, due: int) -> None:
        """This slot must be looked at then."""
        at = self._at[slot]
        self.due[slot] = due
        if at < 0:
            at = self.timed
            self.timed += 1
            self._heap[at] = slot
            self._at[slot] = at
        self._down(self._up(at))

    def untime(self, slot: int) -> None:
        """This slot waits for no moment any more."""
        at = self._at[slot]
        if at < 0:
            return
        self._at[slot] = -1
        self.timed -= 1
        last = self._heap[self.timed]
        if last != slot:
            self._heap[at] = last
            self._at[last] = at
            self._down(self._up(at))

    def first(self) -> int:
        """The slot whose moment comes first, or -1."""
        return self._heap[0] if self.timed else -1

    def _up(self, at: int) -> int:
        slot = self._heap[at]
        due = self.due[slot]
        while at > 0:
            above = (at - 1) >> 1
            other = self._heap[above]
            if self.due[other] <= due:
                break
            self._heap[at] = other
            self._at[other] = at
            at = above
        self._heap[at] = slot
        self._at[slot] = at
        return at

    def _down(self, at: int) -> None:
        slot = self._heap[at]
        due = self.due[slot]
        while True:
            below = 2 * at + 1
            if below >= self.timed:
                break
            other = self._heap[below]
            if below + 1 < self.timed and self.due[self._heap[below + 1]] < self.due[other]:
                below += 1
                other = self._heap[below]
            if self.due[other] >= due:
                break
            self._heap[at] = other
            self._at[other] = at
            at = below
        self._heap[at] = slot
        self._at[slot] = at

    def check(self) -> None:
        """Assert that table, heap and free list agree: for tests."""
        live = [slot for slot in range(self.capacity) if self.state[slot]]
        assert len(live) == self.count
        assert all(self.find(self.id[slot]) == slot for slot in live)
        assert sorted(slot for slot in self._table if slot >= 0) == live
        heap = list(self._heap[: self.timed])
        assert all(self._at[slot] == at and self.state[slot] for at, slot in enumerate(heap))
        assert all(self.due[heap[(at - 1) >> 1]] <= self.due[slot] for at, slot in enumerate(heap) if at)
