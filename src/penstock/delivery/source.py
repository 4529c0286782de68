"""Source: where a channel's messages come from. `MemorySource` is one: a memory queue, and behind it a Backend on disk.

A channel names a message by (lane, place). `take` and `point_at` point the view at one (`disk.stream.MessageView`).
"""

# mypy: disable-error-code="no-any-return"
from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Protocol

import cython

from penstock.delivery.slots import numbers

if cython.compiled:
    from cython.cimports.penstock import words
    from cython.cimports.penstock.disk.stream import MessageView
    from cython.cimports.penstock.octets import address, be16, be64, hex16
else:
    from penstock import words
    from penstock.disk.stream import MessageView
    from penstock.octets import address, be16, be64, hex16


_IDS = int("8000000000000000", 16)  # as many as there are: a C integer holds them


class Backend(Protocol):
    """The disk part of a memory queue: go-diskqueue's files."""

    depth: int  # what was not taken yet

    @property
    def taken(self) -> int: ...
    @property
    def broken(self) -> bool: ...
    def put_many(self, payloads: list[bytes]) -> None: ...
    def take(self, limit: int) -> list[bytes]: ...
    def finish_many(self, numbers: list[int]) -> None: ...
    def empty(self) -> None: ...
    def delete(self) -> None: ...


class Source(MessageView):  # type: ignore[misc]
    """What a channel asks. Times and limits are the channel's business."""

    def __init__(self) -> None:
        MessageView.__init__(self)
        self.place = 0
        self.lane = 0

    def take(self) -> int:
        """The next message that was not taken yet, oldest first: 1 when there was one, else 0."""
        raise NotImplementedError

    def point_at(self, lane: int, place: int) -> int:
        """A message taken before: 1, or 0 when it is gone."""
        raise NotImplementedError

    def done(self, lane: int, place: int) -> int:
        """Never again on this channel. Returns 0."""
        raise NotImplementedError

    def depth(self) -> int:
        """How many have not been taken."""
        raise NotImplementedError

    def full(self) -> int:
        """1 when nothing more is taken until something in hand is done."""
        return 0

    def backend_depth(self) -> int:
        """How many of them lie on disk only."""
        return 0

    def empty(self) -> None:
        """Drop everything, taken or not."""
        raise NotImplementedError


def _other_id(payload: bytes) -> int:
    """The number that stands for another library's id."""
    try:
        number = int(payload[words.DATA_ID_AT : words.DATA_BODY_AT], words.HEX)
    except ValueError:
        number = int.from_bytes(payload[words.DATA_ID_END_AT : words.DATA_BODY_AT])
    return number % _IDS


class MemorySource(Source):
    """A queue of at most `limit` messages, each as NSQ's message data; what is more goes to the backend.

        queue (memory) ◀── backend (disk) ◀── over (memory: what the backend gets next, written together)

    Without a backend (ephemeral) the overflow is dropped and counted. First in, first out across all. What came from the
    backend stays there until it is done: a killed process finds it again. A message is one object, whatever the number of
    channels that have it; the place of one that was taken is the number of a slot.
    """

    def __init__(self, limit: int, backend: Backend | None) -> None:
        Source.__init__(self)
        self.limit = limit
        self.backend = backend
        # The queue: `_count` messages from `_head` on, round a list whose length is a power of two.
        self._ring: list[bytes | None] = [None] * words.SLOTS_MIN
        self._head = 0
        self._count = 0
        self._behind = 0 if backend is None else backend.depth  # what the backend has not handed out
        self.over: list[bytes] = []
        self.dropped = 0
        self._over_bytes = 0
        self._over_max = min(limit // words.OVER_PART, words.OVER_MAX)
        self._refilled = 0  # so many at the head of the queue came from the backend, the first with this number in it
        self._refill_at = 0
        self._slots: list[bytes | None] = []  # what was taken and is not done
        self._next = numbers(0)  # the next free slot after each free one
        self._free = -1
        self._last: bytes = b""
        self._number = numbers(0)  # for each slot the message's number in the backend, or -1
        self._stored = 0  # slots that have one
        self._finished: list[int] = []  # numbers that the backend has not been told of

    def put(self, payloads: list[bytes]) -> int:
        """Take messages in, all or none. StoreError when the backend cannot. Returns 0."""
        count = len(payloads)
        room = self.limit - self._count
        if self.backend is None:
            if count > room:
                room = max(0, room)
                self.dropped += count - room
                payloads = payloads[:room]
        elif self.over or count > room or self._behind > 0:
            # Order holds because once something lies behind the queue, everything that follows goes there until it is read.
            if self.over or self._behind > 0 or room <= 0:
                self._put_over(payloads)
                return 0
            self._put_over(payloads[room:])
            payloads = payloads[:room]
        for payload in payloads:
            self.push(payload)
        return 0

    def put_one(self, payload: bytes) -> int:
        """The same for one message."""
        if self._count < self.limit and self._behind == 0 and not self.over:
            self.push(payload)
            return 0
        return self.put([payload])

    def push(self, payload: bytes) -> int:
        """Into the queue, behind all others there, however many that are. Returns 0."""
        size = len(self._ring)
        if self._count >= size:
            self._ring = self.queue + [None] * size
            self._head = 0
            size += size
        self._ring[(self._head + self._count) & (size - 1)] = payload
        self._count += 1
        return 0

    def waiting(self) -> int:
        """How many are in the queue."""
        return self._count

    def oldest(self) -> bytes:
        """The one that is taken next, if it is in memory; else nothing."""
        if self._count:
            return self._ring[self._head] or b""
        return self.over[0] if self.over and not self._behind else b""

    @property
    def queue(self) -> list[bytes]:
        """What is in the queue, oldest first."""
        end = self._head + self._count
        return self._ring[self._head : end] + self._ring[: max(0, end - len(self._ring))]  # type: ignore[return-value]

    def _put_over(self, payloads: list[bytes]) -> None:
        """What comes behind the queue: with what waits already to the backend when that is enough to be worth it."""
        size = 0
        for payload in payloads:
            size += len(payload)
        if len(self.over) + len(payloads) > self._over_max or self._over_bytes + size > words.OVER_BYTES_MAX:
            self.backend.put_many(self.over + payloads)  # type: ignore[union-attr]
            self._behind = self.backend.depth  # type: ignore[union-attr]
            self.over = []
            self._over_bytes = 0
        else:
            self.over += payloads
            self._over_bytes += size

    def take(self) -> int:
        if self._count == 0 and not self._refill():
            return 0
        head = self._head
        payload: bytes = self._ring[head]  # type: ignore[assignment]
        self._ring[head] = None
        self._head = (head + 1) & (len(self._ring) - 1)
        self._count -= 1
        slot = self._free
        if slot < 0:
            slot = self._more_slots()
        self._free = self._next[slot]
        self._slots[slot] = payload
        self.place = slot
        if self._refilled > 0:
            self._refilled -= 1
            self._number[slot] = self._refill_at
            self._stored += 1
            self._refill_at += 1
        self._view(payload)
        return 1

    def _more_slots(self) -> int:
        """Twice as many slots; the first free one."""
        old = len(self._slots)
        more = max(words.SLOTS_MIN, old)
        self._slots += [None] * more
        self._next = array("q", self._next) + array("q", [*range(old + 1, old + more), -1])
        self._number = array("q", self._number) + array("q", [-1]) * more
        self._free = old
        return old

    def _refill(self) -> bool:
        if self.backend is None:
            return False
        if self._behind > 0:
            self._behind = self.backend.depth
        if self._behind == 0:
            if not self.over:
                return False
            for payload in self.over:
                self.push(payload)
            self.over = []
            self._over_bytes = 0
            return True
        self._tell()
        first = self.backend.taken
        taken = self.backend.take(max(1, min(self.limit, words.REFILL_MAX)))
        self._refilled, self._refill_at = len(taken), first
        for payload in taken:
            self.push(payload)
        self._behind = self.backend.depth
        if not taken and self._behind == 0:  # damage was all there was
            return self._refill()
        return bool(taken)

    def _view(self, payload: bytes) -> None:
        self._last = payload
        base = self.base = address(payload)
        self.at = words.DATA_BODY_AT
        self.length = len(payload) - words.DATA_BODY_AT
        self.stamp_ns = be64(base, 0)
        self.attempts = be16(base, words.DATA_ATTEMPTS_AT)
        message_id = hex16(base, words.DATA_ID_AT)
        self.message_id = message_id if message_id >= 0 else _other_id(payload)

    def data(self) -> bytes:
        """What is shown, as message data."""
        return self._last

    def point_at(self, lane: int, place: int) -> int:
        payload = self._slots[place] if 0 <= place < len(self._slots) else None
        if payload is None:
            return 0
        self._view(payload)
        return 1

    def done(self, lane: int, place: int) -> int:
        if place < 0 or place >= len(self._slots) or self._slots[place] is None:
            return 0
        self._slots[place] = None
        self._next[place] = self._free
        self._free = place
        if self._stored > 0:
            number = self._number[place]
            if number >= 0:
                self._number[place] = -1
                self._stored -= 1
                self._finished.append(number)
                if self._stored == 0 or len(self._finished) >= words.REFILL_MAX:
                    self._tell()
        return 0

    def _tell(self) -> None:
        """Let the backend know what is finished."""
        finished, self._finished = self._finished, []
        if finished:
            self.backend.finish_many(finished)  # type: ignore[union-attr]

    def depth(self) -> int:
        return self._count + len(self.over) + self.backend_depth()

    def backend_depth(self) -> int:
        return 0 if self.backend is None else self.backend.depth

    def empty(self) -> None:
        self._forget()
        if self.backend is not None:
            self.backend.empty()
            self._behind = self.backend.depth

    def _forget(self) -> None:
        """Nothing is in the queue or in hand."""
        self._ring = [None] * words.SLOTS_MIN
        self._head = self._count = 0
        self.over = []
        self._slots = []
        self._next = numbers(0)
        self._number = numbers(0)
        self._free = -1
        self._stored = 0
        self._finished = []
        self._over_bytes = self._refilled = 0

    def keep(self, payload: bytes) -> int:
        """Keep a message that is not in the queue (deferred); its place."""
        slot = self._free
        if slot < 0:
            slot = self._more_slots()
        self._free = self._next[slot]
        self._slots[slot] = payload
        return slot

    def save(self, in_hand: Iterable[tuple[int, int]]) -> None:
        """A clean stop: what is in memory goes to the backend; `in_hand` are (place, attempts) of what was taken.

        The backend's files remember one place to read on from. Where something behind that place is finished, what it has
        handed out goes behind the rest.
        """
        if self.backend is None:
            return
        self._tell()
        all_over = self.backend.broken
        payloads, moved = [], []
        for n, payload in enumerate(self.queue):
            if n >= self._refilled:
                payloads.append(payload)
            elif all_over:
                payloads.append(payload)
                moved.append(self._refill_at + n)
        payloads += self.over
        for place, attempts in in_hand:
            taken = self._slots[place]
            number = self._number[place]
            if taken is not None and (number < 0 or all_over):
                tries = (attempts & words.UINT16_MAX).to_bytes(2)
                payloads.append(taken[: words.DATA_ATTEMPTS_AT] + tries + taken[words.DATA_ID_AT :])
                moved.append(number)
        self._forget()
        if payloads:
            self.backend.put_many(payloads)
        self.backend.finish_many(moved)
        self._behind = self.backend.depth
