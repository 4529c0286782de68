"""Source: where a channel's messages come from. `MemorySource` is one: a memory queue, and behind it an Overflow.

A channel names a message by (lane, place). `take` and `point_at` point the view at one (`disk.stream.MessageView`).
"""

# mypy: disable-error-code="no-any-return"
from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

import cython

from penstock.delivery.overflow import Backend
from penstock.delivery.slots import numbers
from penstock.disk.runs import Buffer

if cython.compiled:
    from cython.cimports.penstock import words
    from cython.cimports.penstock.delivery.overflow import Overflow
    from cython.cimports.penstock.disk.runs import Run, RunQueue, framed
    from cython.cimports.penstock.disk.stream import MessageView
    from cython.cimports.penstock.octets import address, be16, be64, hex16, ube32
else:
    from penstock import words
    from penstock.delivery.overflow import Overflow
    from penstock.disk.runs import Run, RunQueue, framed
    from penstock.disk.stream import MessageView
    from penstock.octets import address, be16, be64, hex16, ube32


_IDS = int("8000000000000000", 16)  # as many as there are: a C integer holds them


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

    def detach(self, lane: int, place: int) -> int:
        """A message taken before is kept for long: it is to cost no more than itself. Returns 0."""
        return 0

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


def _other_id(data: bytes) -> int:
    """The number that stands for another library's id."""
    try:
        number = int(data[words.DATA_ID_AT : words.DATA_BODY_AT], words.HEX)
    except ValueError:
        number = int.from_bytes(data[words.DATA_ID_END_AT : words.DATA_BODY_AT])
    return number % _IDS


class MemorySource(Source):
    """A queue of at most `limit` messages, each as NSQ's message data; what is more is its overflow.

    Without a backend (ephemeral) the overflow is dropped and counted. First in, first out across all. What came from the
    backend stays there until it is done: a killed process finds it again. Messages lie one behind the other in buffers that
    the channels of a topic share, each as a record of the backend's files, and are no objects; the place of one that was
    taken is the number of a slot, which keeps its buffer.
    """

    def __init__(self, limit: int, backend: Backend | None) -> None:
        Source.__init__(self)
        self.limit = limit
        self.overflow = Overflow(limit, backend)
        self.dropped = 0
        self._waits = RunQueue()
        self._slots: list[Buffer | None] = []  # the buffers of what was taken and is not done
        self._at = numbers(0)  # where in its buffer the record of each slot begins
        self._next = numbers(0)  # the next free slot after each free one
        self._free = -1
        self._number = numbers(0)  # for each slot the message's number in the backend, or -1
        self._stored = 0  # slots that have one
        self._done_at = self._done_count = 0  # a row of numbers that the backend has not been told of
        self._done: list[int] = []  # and those that are not in that row
        self._viewed: Buffer = b""
        self._passing: Run | None = None  # what is passed on now, and to whom it was
        self._served: list[MemorySource] = []

    def put(self, payloads: list[bytes]) -> int:
        """Take messages in, all or none. StoreError when the backend cannot. Returns 0."""
        run = framed(payloads)
        return self.put_run(run.buffer, 0, run.end, run.count)

    def put_run(self, buffer: Buffer, at: int, end: int, count: int) -> int:
        """The same for `count` records that lie between two places of a buffer, in which they stay as they are."""
        if count == 0:
            return 0
        room, overflow = self.limit - self._waits.count, self.overflow
        if count > room or overflow.holds():
            # Order holds because once something lies behind the queue, everything that follows goes there until it is read.
            if overflow.backend is None:
                room = max(0, room)
                self.dropped += count - room
            elif overflow.holds():
                room = 0
            if room <= 0:
                return 0 if overflow.backend is None else overflow.put(buffer, at, end, count)
            rest = Run(buffer, at, end, count)
            fits = rest.split(room)
            if overflow.backend is not None:
                overflow.put(buffer, rest.at, end, rest.count)
            end, count = fits.end, fits.count
        return self._waits.add(buffer, at, end, count)

    def spare(self) -> int:
        """So many more messages, of at most `spare_bytes` bytes, are put without a write; what is dropped needs none."""
        overflow = self.overflow
        if overflow.backend is None:
            return words.RUN_BYTES_MAX
        return overflow.spare() if overflow.holds() else self.limit - self._waits.count

    def spare_bytes(self) -> int:
        """See `spare`."""
        overflow = self.overflow
        return words.RUN_BYTES_MAX if overflow.backend is None or not overflow.holds() else overflow.spare_bytes()

    def to_write(self, count: int) -> int:
        """How many would go to the backend next, with so many more; 0: none of these."""
        overflow = self.overflow
        if overflow.backend is None or (not overflow.holds() and self._waits.count + count <= self.limit):
            return 0
        return overflow.gathered.count + count

    def push(self, payload: bytes) -> int:
        """One message into the queue, behind all others there, however many that are. Returns 0."""
        return self._waits.add_run(framed((payload,)))

    def waiting(self) -> int:
        """How many are in the queue."""
        return self._waits.count

    @property
    def queue(self) -> list[bytes]:
        """What is in the queue, oldest first."""
        return self._waits.payloads()

    @property
    def over(self) -> list[bytes]:
        """What its backend gets next."""
        return self.overflow.gathered.payloads()

    def oldest(self) -> bytes:
        """The one that is taken next, if it is in memory; else nothing."""
        runs = self._waits.runs() or ([] if self.overflow.behind else self.overflow.gathered.runs())
        return runs[0].payload() if runs else b""

    def take(self) -> int:
        waits = self._waits
        at = waits.take()
        if at < 0:
            if not self._refill():
                return 0
            waits = self._waits
            at = waits.take()
        slot = self._free
        if slot < 0:
            slot = self._more_slots()
        self._free = self._next[slot]
        if waits.number >= 0:
            self._number[slot] = waits.number
            self._stored += 1
        self._slots[slot] = waits.buffer
        self._at[slot] = at
        self.place = slot
        self._point(waits.buffer, at)
        return 1

    def pass_on(self, to: list[MemorySource], limit: int) -> int:
        """The oldest messages, at most `limit`, into each of these, and out of here: how many; 0 when there are none. StoreError
        when one of them cannot take them: they are here yet, and the next call goes on with those that have not had them.
        """
        run = self._passing
        if run is None:
            if self._waits.count == 0 and not self._refill():
                return 0
            run = self._passing = self._waits.first(limit)
            if run is None:
                return 0
        for source in to:
            if source not in self._served:
                source.put_run(run.buffer, run.at, run.end, run.count)
                self._served.append(source)
        self._passing = None
        self._served = []
        self._waits.drop(run)
        if run.number >= 0:
            self.overflow.backend.finish(range(run.number, run.number + run.count))  # type: ignore[union-attr]
        return run.count

    def _more_slots(self) -> int:
        """Twice as many slots; the first free one."""
        old = len(self._slots)
        more = max(words.SLOTS_MIN, old)
        self._slots += [None] * more
        self._at = array("q", self._at) + numbers(more)
        self._next = array("q", self._next) + array("q", [*range(old + 1, old + more), -1])
        self._number = array("q", self._number) + array("q", [-1]) * more
        self._free = old
        return old

    def _refill(self) -> bool:
        if self.overflow.behind > 0:
            self._tell()
        return self.overflow.refill(self._waits, self.limit)

    def _point(self, buffer: Buffer, at: int) -> int:
        self._viewed = buffer
        base = self.base = address(buffer)
        size = ube32(base, at)
        at += words.SIZE_BYTES
        self.at = at + words.DATA_BODY_AT
        self.length = size - words.DATA_BODY_AT
        self.stamp_ns = be64(base, at)
        self.attempts = be16(base, at + words.DATA_ATTEMPTS_AT)
        message_id = hex16(base, at + words.DATA_ID_AT)
        self.message_id = message_id if message_id >= 0 else _other_id(self.data())
        return 0

    def data(self) -> bytes:
        """What is shown, as message data."""
        return bytes(self._viewed[self.at - words.DATA_BODY_AT : self.at + self.length])

    def lend(self) -> memoryview | None:
        return memoryview(self._viewed)[self.at : self.at + self.length]

    def point_at(self, lane: int, place: int) -> int:
        buffer = self._slots[place] if 0 <= place < len(self._slots) else None
        if buffer is None:
            return 0
        self._point(buffer, self._at[place])
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
                self._note_done(number)
                if self._stored == 0 or self._done_count + len(self._done) >= words.REFILL_MAX:
                    self._tell()
        return 0

    def _note_done(self, number: int) -> int:
        if self._done_count == 0:
            self._done_at = number
        if number == self._done_at + self._done_count:
            self._done_count += 1
        else:
            self._done.append(number)
        return 0

    def _tell(self) -> None:
        """Let the backend know what is finished."""
        row = range(self._done_at, self._done_at + self._done_count)
        finished: Sequence[int] = [*row, *self._done] if self._done else row
        self._done = []
        self._done_count = 0
        if finished:
            self.overflow.backend.finish(finished)  # type: ignore[union-attr]

    def detach(self, lane: int, place: int) -> int:
        if self.point_at(lane, place) and len(self._viewed) > 2 * (self.length + words.DATA_BODY_AT):
            own = framed((self.data(),))
            self._slots[place] = own.buffer
            self._at[place] = 0
        return 0

    def depth(self) -> int:
        return self._waits.count + self.backend_depth()

    def backend_depth(self) -> int:
        return self.overflow.depth()

    def empty(self) -> None:
        self._forget()
        self.overflow.empty()

    def give_up(self) -> bool:
        """The queue is deleted: it holds nothing from now on. Whether it had a backend, which is to be deleted."""
        self._forget()
        return self.overflow.give_up()

    def _forget(self) -> None:
        """Nothing is in the queue or in hand."""
        self._waits.clear()
        self.overflow.clear()
        self._passing = None
        self._served = []
        self._slots = []
        self._at = self._next = self._number = numbers(0)
        self._free = -1
        self._stored = 0
        self._done = []
        self._done_count = 0

    def keep(self, payload: bytes) -> int:
        """Keep a message that is not in the queue (deferred); its place."""
        slot = self._free
        if slot < 0:
            slot = self._more_slots()
        self._free = self._next[slot]
        self._slots[slot] = framed((payload,)).buffer
        self._at[slot] = 0
        return slot

    def save(self, in_hand: Iterable[tuple[int, int]]) -> None:
        """A clean stop: what is in memory goes to the backend; `in_hand` are (place, attempts) of what was taken.

        The backend's files remember one place to read on from. Where something behind that place is finished, what it has
        handed out goes behind the rest.
        """
        backend = self.overflow.backend
        if backend is None:
            return
        self._tell()
        all_over = backend.broken
        runs: list[Run] = []
        moved: list[int] = []
        for run in self._waits.runs():
            if run.number < 0:
                runs.append(run)
            elif all_over:
                runs.append(run)
                moved += range(run.number, run.number + run.count)
        runs += self.overflow.gathered.runs()
        for place, attempts in in_hand:
            number = self._number[place]
            if self.point_at(0, place) and (number < 0 or all_over):
                taken, tries = self.data(), (attempts & words.UINT16_MAX).to_bytes(2)
                runs.append(framed((taken[: words.DATA_ATTEMPTS_AT] + tries + taken[words.DATA_ID_AT :],)))
                moved.append(number)
        self._forget()
        if runs:
            backend.put(runs)
        backend.finish(moved)
        self.overflow.look()
