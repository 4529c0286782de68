"""Moving: messages on their way from one file to another, in the order that neither a kill nor a power cut can lose one.

    due, from the schedule to a ready queue      flush of the entry ─▶ copy ─▶ flush of the queue ─▶ "done" record in the log
    REQ with a delay, the other way              copy ─▶ flush of the log ─▶ finished in the cursor file
    dead letters, from queue to queue            copy ─▶ flush of the copy ─▶ finished in the cursor file

Where slaves follow, the first one has a last step more for a channel of a log topic: its queue of deferred messages is on this
node alone, the schedule on all of them. So the entry is over once the channel has finished the copy (`owed`).

The original is let go of when the copy is durable, never before: between the two both are there. What a start after a
kill finds of both it tells by the mark in the copy (see `deferral`), so that nothing comes twice.

They are let go of in the order in which they came, some a turn: one flush may make a hundred thousand copies durable.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

from penstock.broker.nsq.topics import Topic
from penstock.broker.sending import Sending
from penstock.delivery.channel import Channel
from penstock.disk.cursorfile import CursorFile
from penstock.disk.readyqueue import KEEP_NOTHING, ReadyQueue
from penstock.words import FAR_MS

NOT_YET = -1
OWED_EVERY_MS = 1_000
EACH_TURN = 500  # are let go of in one turn, at most


class Flushes(Protocol):
    """The flushes of the ready queues."""

    @property
    def done(self) -> int:
        """The number of the last one that is over."""

    def next(self, topic: Topic) -> int:
        """The number of the one that takes what the topic has now; 0 when it is gone."""


class _Leaving(NamedTuple):
    """A message that was copied elsewhere and still stands at a channel's place."""

    position: int  # the log must be flushed up to here
    flush: int  # and this flush of the queues done
    channel: Channel
    lane: int
    place: int
    number: int


class _Arrived:
    """A copy of a schedule's entry in a topic's ready queue."""

    __slots__ = ("_finished_in", "flush", "id", "ordinal", "stream", "topic")

    def __init__(
        self, id_: int, topic: Topic, stream: ReadyQueue, ordinal: int, finished_in: CursorFile | None = None
    ) -> None:
        self._finished_in = finished_in
        self.id = id_
        self.topic = topic
        self.stream = stream
        self.ordinal = ordinal
        self.flush = NOT_YET

    def waits_for(self, flushes: Flushes) -> int:
        """The number of the flush that takes it."""
        if self.flush == NOT_YET:
            self.flush = flushes.next(self.topic)
        return self.flush

    @property
    def tied(self) -> bool:
        """Whether the entry has to stay until a channel has finished the copy."""
        return self._finished_in is not None

    @property
    def is_owed(self) -> bool:
        """Whether it has not."""
        file = self._finished_in
        return file is not None and file.committed <= self.ordinal and not file.finished(self.ordinal)

    def let_go(self) -> None:
        """Nobody is owed it: it need not become durable."""
        self.flush = 0
        self._finished_in = None


class Moving:
    """See the module. `settle` whenever a flush is over."""

    def __init__(self, sending: Sending, mark_channel: Callable[[Channel], None]) -> None:
        self._sending = sending
        self._mark_channel = mark_channel
        self.leaving: deque[_Leaving] = (
            deque()
        )  # this and the next stay themselves: a turn looks whether they are empty
        self.arrived: deque[_Arrived] = deque()
        self.more = False  # a turn had no time for all
        self._fresh: list[_Arrived] = []  # of those that arrived: they wait for no flush yet
        self._places: dict[
            ReadyQueue, deque[int]
        ] = {}  # where the copies that arrived are in each stream, in their order
        self.owed: list[_Arrived] = []  # durable, and their channels have to finish them
        self._owed_ms = 0  # when they are looked at next
        self._ids: set[int] = set()
        self._number = 0
        self._seen = (-1, -1)

    def has(self, id_: int) -> bool:
        """Whether this entry of the schedule is copied and not over yet."""
        return id_ in self._ids

    def __len__(self) -> int:
        return len(self.leaving) + len(self.arrived) + len(self.owed)

    def leave(self, channel: Channel, lane: int, place: int, *, position: int = 0, flush: int = 0) -> None:
        """This place of the channel is done once the log is flushed up to `position` and flush number `flush` is over."""
        self._number += 1
        channel.leaving[lane, place] = self._number
        self.leaving.append(_Leaving(position, flush, channel, lane, place, self._number))
        self._seen = (-1, -1)

    def arrive(
        self, id_: int, topic: Topic, stream: ReadyQueue, ordinal: int, finished_in: CursorFile | None = None
    ) -> None:
        """An entry of the schedule was copied: the entry is over once the copy is durable, and `finished_in` this cursor; its
        segment stays till then.
        """
        copy = _Arrived(id_, topic, stream, ordinal, finished_in)
        self.arrived.append(copy)
        self._fresh.append(copy)
        self._places.setdefault(stream, deque()).append(ordinal)
        self._ids.add(id_)
        stream.keep_from(min(stream.kept_from, ordinal))
        self._seen = (-1, -1)

    def settle(self, flushes: Flushes, most: int = EACH_TURN) -> None:
        """Let go of originals whose copies are durable; `more` says whether there are others."""
        flushed, done = self._sending.store.flushed_position, flushes.done
        for copy in self._fresh:
            copy.waits_for(flushes)
        self._fresh.clear()
        if (flushed, done) == self._seen:
            return
        left = most
        while self.leaving and left:
            gone = self.leaving[0]
            if gone.position > flushed or gone.flush > done:
                break
            self.leaving.popleft()
            gone.channel.left(gone.lane, gone.place, gone.number)
            self._mark_channel(gone.channel)
            left -= 1
        left = self._settle_copies(flushes, done, left)
        self.more = not left and bool(self.leaving or self.arrived)
        self._seen = (-1, -1) if self.more else (flushed, done)

    def _settle_copies(self, flushes: Flushes, done: int, left: int) -> int:
        touched: set[ReadyQueue] = set()
        while self.arrived and left:
            copy = self.arrived[0]
            if copy.waits_for(flushes) > done or not (copy.tied or self._is_over(copy)):
                break
            self.arrived.popleft()
            places = self._places[copy.stream]
            places.popleft()
            if not places:
                del self._places[copy.stream]
            if copy.tied:
                self.owed.append(copy)
            else:
                touched.add(copy.stream)
            left -= 1
        self._keep(touched)
        return left

    def tick(self, mono_ms: int) -> int:
        """Once a second: which of those that were owed are finished. When to look again."""
        if not self.owed:
            return FAR_MS
        if mono_ms >= self._owed_ms:
            self._owed_ms = mono_ms + OWED_EVERY_MS
            owed = {copy.id for copy in self.owed if copy.is_owed}  # one entry may be in the hands of several channels
            gone = {copy for copy in self.owed if copy.id not in owed and self._is_over(copy)}
            self.owed = [copy for copy in self.owed if copy not in gone]
            self._keep({copy.stream for copy in gone})
        return self._owed_ms

    def _is_over(self, copy: _Arrived) -> bool:
        """Tell the log that an entry is over, and forget it; False when it cannot be told now."""
        over = self._sending.put_over(copy.id)
        if over:
            self._ids.discard(copy.id)
        return over

    def _keep(self, streams: set[ReadyQueue]) -> None:
        """The segments of copies that are not over stay; something of these streams is."""
        for stream in streams:
            left = [copy.ordinal for copy in self.owed if copy.stream is stream]
            if places := self._places.get(stream):
                left.append(places[0])
            stream.keep_from(min(left, default=KEEP_NOTHING))

    def ordinals(self, stream: ReadyQueue) -> set[int]:
        """Which copies in this stream have an entry in the schedule."""
        return {copy.ordinal for copies in (self.arrived, self.owed) for copy in copies if copy.stream is stream}

    def forget(self, stream: ReadyQueue) -> None:
        """Nobody is owed what this stream holds: its copies need not become durable."""
        for copy in [copy for copy in self.owed if copy.stream is stream]:
            self.arrived.append(copy)
            self._places.setdefault(stream, deque()).append(copy.ordinal)
        self.owed = [copy for copy in self.owed if copy.stream is not stream]
        for copy in self.arrived:
            if copy.stream is stream:
                copy.let_go()
        stream.keep_from(KEEP_NOTHING)
        self._seen = (-1, -1)
