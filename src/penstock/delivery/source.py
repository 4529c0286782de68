"""Source: where a channel's messages come from. `MemorySource` is one: a memory queue, and behind it a Backend on disk.

A channel names a message by (lane, place). `take` and `show` show one (`disk.stream.Shown`).
"""

# mypy: disable-error-code="no-any-return"
from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Protocol

import cython

if cython.compiled:
    from cython.cimports.penstock import words
    from cython.cimports.penstock.disk.stream import Shown
    from cython.cimports.penstock.octets import address
else:
    from penstock import words
    from penstock.disk.stream import Shown
    from penstock.octets import address


class Backend(Protocol):
    """The disk part of a memory queue: go-diskqueue's files."""

    depth: int  # what was not taken yet

    @property
    def taken(self) -> int: ...
    @property
    def broken(self) -> bool: ...
    def put_many(self, payloads: list[bytes]) -> None: ...
    def take(self, limit: int) -> list[bytes]: ...
    def finish(self, number: int) -> None: ...
    def empty(self) -> None: ...
    def delete(self) -> None: ...


class Source(Shown):  # type: ignore[misc]
    """What a channel asks. Times and limits are the channel's business."""

    def __init__(self) -> None:
        Shown.__init__(self)
        self.place = 0
        self.lane = 0

    def take(self) -> int:
        """The next message that was not taken yet, oldest first: 1 when there was one, else 0."""
        raise NotImplementedError

    def show(self, lane: int, place: int) -> int:
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


class MemorySource(Source):
    """A deque of at most `limit` messages, each as NSQ's message data; what is more goes to the backend.

    Without a backend (ephemeral) the overflow is dropped and counted. First in, first out across both. What came from the
    backend stays there until it is done: a killed process finds it again.
    """

    def __init__(self, limit: int, backend: Backend | None) -> None:
        Source.__init__(self)
        self.limit = limit
        self.backend = backend
        self.queue: deque[tuple[bytes, int]] = deque()  # message data, its number in the backend or -1
        self.held: dict[int, bytes] = {}
        self.dropped = 0
        self._number = 0
        self._last: bytes = b""
        self._stored: dict[int, int] = {}  # place → number in the backend

    def put(self, payloads: Iterable[bytes]) -> None:
        """Take messages in, all or none. StoreError when the backend cannot."""
        payloads = list(payloads)
        room = self.limit - len(self.queue)
        if self.backend is None:
            self.queue.extend([(payload, -1) for payload in payloads[: max(0, room)]])
            self.dropped += max(0, len(payloads) - max(0, room))
        elif self.backend.depth or len(payloads) > room:
            # Order holds because once something lies on disk, everything that follows goes there until it is read.
            ahead = 0 if self.backend.depth else max(0, room)
            self.backend.put_many(payloads[ahead:])
            self.queue.extend([(payload, -1) for payload in payloads[:ahead]])
        else:
            self.queue.extend([(payload, -1) for payload in payloads])

    def take(self) -> int:
        if not self.queue and not self._refill():
            return 0
        payload, number = self.queue.popleft()
        self._number += 1
        self.place = self._number
        if number >= 0:
            self._stored[self._number] = number
        self.held[self._number] = payload
        self._view(payload)
        return 1

    def _refill(self) -> bool:
        if self.backend is None or not self.backend.depth:
            return False
        first = self.backend.taken
        taken = self.backend.take(max(1, min(self.limit, words.REFILL_MAX)))
        self.queue.extend([(payload, first + n) for n, payload in enumerate(taken)])
        return bool(taken)

    def _view(self, payload: bytes) -> None:
        self._last = payload
        self.base = address(payload)
        self.at = words.DATA_BODY_AT
        self.length = len(payload) - words.DATA_BODY_AT
        self.stamp_ns = int.from_bytes(payload[: words.DATA_ATTEMPTS_AT], signed=True)
        self.attempts = int.from_bytes(payload[words.DATA_ATTEMPTS_AT : words.DATA_ID_AT])
        try:
            self.message_id = int(payload[words.DATA_ID_AT : words.DATA_BODY_AT], words.HEX)
        except ValueError:  # another library's id
            self.message_id = int.from_bytes(payload[words.DATA_ID_END_AT : words.DATA_BODY_AT])
        self.message_id &= words.INT63_MAX

    def show(self, lane: int, place: int) -> int:
        payload = self.held.get(place)
        if payload is None:
            return 0
        self._view(payload)
        return 1

    def done(self, lane: int, place: int) -> int:
        self.held.pop(place, None)
        number = self._stored.pop(place, -1)
        if number >= 0:
            self.backend.finish(number)  # type: ignore[union-attr]
        return 0

    def depth(self) -> int:
        return len(self.queue) + self.backend_depth()

    def backend_depth(self) -> int:
        return 0 if self.backend is None else self.backend.depth

    def empty(self) -> None:
        self.queue.clear()
        self.held.clear()
        self._stored.clear()
        if self.backend is not None:
            self.backend.empty()

    def hold(self, payload: bytes) -> int:
        """Keep a message that is not in the queue (deferred); its place."""
        self._number += 1
        self.held[self._number] = payload
        return self._number

    def save(self, in_hand: Iterable[tuple[int, int]]) -> None:
        """A clean stop: what is in memory goes to the backend; `in_hand` are (place, attempts) of what was taken.

        The backend's files remember one place to read on from. Where something behind that place is finished, what it has
        handed out goes behind the rest.
        """
        if self.backend is None:
            return
        all_over = self.backend.broken
        payloads, moved = [], []
        for payload, number in self.queue:
            if number < 0 or all_over:
                payloads.append(payload)
                moved.append(number)
        for place, attempts in in_hand:
            taken = self.held.get(place)
            number = self._stored.get(place, -1)
            if taken is not None and (number < 0 or all_over):
                tries = (attempts & words.UINT16_MAX).to_bytes(2)
                payloads.append(taken[: words.DATA_ATTEMPTS_AT] + tries + taken[words.DATA_ID_AT :])
                moved.append(number)
        self.queue.clear()
        self.held.clear()
        if payloads:
            self.backend.put_many(payloads)
        for number in moved:
            self.backend.finish(number)
