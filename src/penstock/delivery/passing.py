"""PassingSource: an ephemeral channel's view of a stream. It goes along at the stream's end and keeps nothing there.

What it is given to hand out is copied; at the end of a turn the rest is copied, too, up to a limit, and what is more is
dropped, the newest first, as nsqd does it. So the stream's segments are never kept for it.
"""

# mypy: disable-error-code="no-any-return"
from __future__ import annotations

from penstock.delivery.cursor import Lane
from penstock.delivery.source import MemorySource
from penstock.disk.stream import Stream
from penstock.wire.nsq import message_data


class PassingSource(MemorySource):
    """See the module. `lanes` is empty: there is no cursor file."""

    lanes: tuple[Lane, ...] = ()

    def __init__(self, stream: Stream, limit: int, begin: int) -> None:
        MemorySource.__init__(self, limit, None)
        self.stream = stream
        self.head = begin
        self._skipped: set[int] = set()

    def take(self) -> int:
        if not self.waiting():
            self._copy()
        return MemorySource.take(self)

    def _copy(self) -> None:
        """The next message of the stream, if there is one, goes into the queue."""
        stream = self.stream
        end = stream.end()
        while self.head < end:
            ordinal = stream.next(self.head)
            self.head = min(end, ordinal + 1)
            if ordinal in self._skipped:
                self._skipped.discard(ordinal)
            elif ordinal < end and stream.find(ordinal):
                data = message_data(stream.stamp_ns, stream.attempts, stream.message_id, stream.body())
                self.push(data)
                return

    def settle(self) -> None:
        """The turn is over: keep of what waits as much as is allowed."""
        end = self.stream.end()
        while self.head < end and self.waiting() < self.limit:
            self._copy()
        if self.head < end:
            self.dropped += self._unread()
            self._go_to_end()

    def finish_ahead(self, lane: int, place: int) -> None:
        """This record is not meant for this channel."""
        if place >= self.head:
            self._skipped.add(place)

    def passes_over(self, place: int) -> bool:
        """Whether a record it has not come to is not meant for this channel."""
        return place in self._skipped

    def depth(self) -> int:
        return self.waiting() + self._unread()

    def _unread(self) -> int:
        """How much of the stream it has yet to come to."""
        end = self.stream.end()
        return max(0, self.stream.count(self.head) - sum(place < end for place in self._skipped))

    def empty(self) -> None:
        MemorySource.empty(self)
        self._go_to_end()

    def _go_to_end(self) -> None:
        self.head = self.stream.end()
        # What is not meant for it, and is not shown yet (it waits for a flush), is still to come.
        self._skipped = {place for place in self._skipped if place >= self.head}
