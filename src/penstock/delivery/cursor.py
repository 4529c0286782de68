"""CursorSource: a channel's place in streams, one lane for each stream: a ready queue has one, a log topic as many as
it has message queues.

`head` is the next record to be taken, `committed` (in the lane's file) the oldest that is not finished. A message in
hand stands between the two, so a killed process finds it again; a finished one is a bit in the file and is passed over.
"""

# mypy: disable-error-code="no-any-return"
from __future__ import annotations

from collections.abc import Callable

import cython

if cython.compiled:
    from cython.cimports.penstock.delivery.source import Source
    from cython.cimports.penstock.disk.cursorfile import CursorFile
    from cython.cimports.penstock.disk.stream import Stream
else:
    from penstock.delivery.source import Source
    from penstock.disk.cursorfile import CursorFile
    from penstock.disk.stream import Stream


class Lane:
    """One stream and the channel's place in it."""

    def __init__(self, stream: Stream, file: CursorFile, number: int) -> None:
        self.stream = stream
        self.file = file
        self.number = number
        self.head = stream.next(max(file.committed, stream.begin()))
        self.skip = file.beyond  # finished records at or past the head: they are passed over

    def depth(self) -> int:
        """Records not taken yet."""
        found = self.stream.count(self.head) - self.skip
        return found if found > 0 else 0


class CursorSource(Source):  # type: ignore[misc]
    """See the module. A lane runs at most `window` records past its oldest unfinished one."""

    def __init__(self, window: int, on_commit: Callable[[Lane], None] | None = None) -> None:
        Source.__init__(self)
        self.attempts: int
        self.window = window
        self.lanes: list[Lane] = []
        self.damaged = 0
        self.remembered: dict[tuple[int, int], int] = {}  # attempts from before a clean stop, by (lane, place)
        self._turn = 0
        self._on_commit = on_commit

    def add(self, lane: Lane) -> None:
        """Read this stream, too."""
        self.lanes.append(lane)

    def take(self) -> int:
        count = len(self.lanes)
        for _ in range(count):
            lane = self.lanes[self._turn]
            if count > 1:
                self._turn += 1
                if self._turn >= count:
                    self._turn = 0
            if self._take_from(lane):
                return 1
        return 0

    def _take_from(self, lane: Lane) -> int:
        stream, file = lane.stream, lane.file
        while lane.head < stream.end():
            ordinal = lane.head
            if ordinal - file.committed >= self.window:
                return 0
            if lane.skip > 0 and file.finished(ordinal):
                lane.skip -= 1
                lane.head = ordinal + 1
                if ordinal == file.committed:  # nothing before it is in hand: nobody else would move on from here
                    file.beyond -= 1
                    self._advance(lane, ordinal + 1)
                continue
            if stream.find(ordinal):
                lane.head = ordinal + 1
                self._make_visible(stream)
                self.lane, self.place = lane.number, ordinal
                if self.remembered:
                    self.attempts = self.remembered.pop((lane.number, ordinal), self.attempts)
                return 1
            if stream.awaits:
                return 0
            after = stream.next(ordinal)
            if after == ordinal:  # damaged: it is passed over and counted, what follows is served
                self.damaged += 1
                after = ordinal + 1
                lane.head = after
                self._finish(lane, ordinal)
            else:
                lane.head = after
                if file.committed == ordinal:
                    self._advance(lane, after)
        return 0

    def _make_visible(self, stream: Stream) -> None:
        self.base = stream.base
        self.at = stream.at
        self.length = stream.length
        self.stamp_ns = stream.stamp_ns
        self.message_id = stream.message_id
        self.attempts = stream.attempts

    def lend(self) -> memoryview | None:
        stream = self.lanes[self.lane].stream
        if stream.base is self.base and stream.at == self.at:  # nobody has pointed at another since
            return stream.lend()
        return None

    def point_at(self, lane: int, place: int) -> int:
        stream = self.lanes[lane].stream
        if not stream.find(place):
            return 0
        self._make_visible(stream)
        self.lane, self.place = lane, place
        return 1

    def done(self, lane: int, place: int) -> int:
        return self._finish(self.lanes[lane], place)

    def _finish(self, lane: Lane, ordinal: int) -> int:
        file = lane.file
        if ordinal == file.committed:
            return self._advance(lane, ordinal + 1)
        if ordinal > file.committed and not file.finished(ordinal):
            file.finish(ordinal)
        return 0

    def _advance(self, lane: Lane, ordinal: int) -> int:
        """Everything below is finished: so may be what follows."""
        file, stream = lane.file, lane.stream
        while True:
            while file.beyond > 0 and ordinal < lane.head and file.finished(ordinal):
                file.beyond -= 1
                ordinal += 1
            if ordinal >= lane.head:
                break
            after = stream.next(ordinal)
            if after == ordinal:
                break
            ordinal = after
        file.commit(ordinal)
        if self._on_commit is not None:
            self._on_commit(lane)
        return 0

    def remember(self, attempts: dict[tuple[int, int], int]) -> None:
        """How often what comes now, by (lane, place), was delivered before a clean stop."""
        self.remembered = attempts

    def finish_ahead(self, lane: int, place: int) -> None:
        """This record is not meant for this channel: it will be passed over (before it was taken)."""
        here = self.lanes[lane]
        if place >= here.head:
            if here.head == place and here.file.committed == place:
                here.head = place + 1
                self._advance(here, place + 1)
                return
            here.skip += 1
        self._finish(here, place)

    def depth(self) -> int:
        found = 0
        for n in range(len(self.lanes)):
            lane = self.lanes[n]
            found += lane.depth()
        return found

    def full(self) -> int:
        for n in range(len(self.lanes)):
            lane = self.lanes[n]
            if lane.head - lane.file.committed >= self.window:
                return 1
        return 0

    def empty(self) -> None:
        for lane in self.lanes:
            file = lane.file
            end = max(lane.stream.end(), file.committed)  # set behind what it may read now, it stays there
            finished = [ordinal for ordinal in range(end, file.reach()) if file.finished(ordinal)]
            self.restart(lane.number, end)
            for ordinal in finished:
                self.finish_ahead(lane.number, ordinal)

    def take_over(self, lane: int, committed: int, bits: bytes) -> None:
        """Be where the channel of another node is, whose cursor told this. Nothing is in hand here."""
        here = self.lanes[lane]
        here.file.take_over(committed, bits)
        here.head = committed
        here.skip = here.file.beyond

    def restart(self, lane: int, ordinal: int) -> None:
        """Go on at another place; what is in hand of this lane must have been dropped by the channel."""
        here = self.lanes[lane]
        here.head = here.stream.next(max(ordinal, here.stream.begin()))
        here.skip = 0
        here.file.restart(here.head)
        if self._on_commit is not None:
            self._on_commit(here)
