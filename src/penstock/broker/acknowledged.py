"""How long messages had been stored when they were finished, and at which attempt: for `/metrics`.

Counted are turns and commits, never messages (decision 119): of what the consumers of a channel finish in one turn the first
message, and of what a group commits the first one too, at most once in `EVERY_MS`: a reader of many messages commits with
each of its pulls.
"""

from __future__ import annotations

from penstock.broker.core import Core
from penstock.histogram import Attempts, Histogram

EVERY_MS = 10


class Acknowledged:
    """See the module."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.log, self.queue = Histogram(), Histogram()
        self._past = {"log": Attempts(), "queue": Attempts()}  # of channels that are gone
        self._next_ms = 0

    def committed(self, topic_name: str, queue_id: int, before: int | None, offset: int) -> None:
        """A group has done what lies between the offsets."""
        core = self._core
        if before is None or before >= offset or core.time.mono_ms < self._next_ms:
            return
        topic = core.topics.get(topic_name.encode())
        if topic is None or not 0 <= queue_id < len(topic.queues):
            return
        stored_ms = core.store.store_time(topic.queues[queue_id], before)
        if stored_ms >= 0:
            self._next_ms = core.time.mono_ms + EVERY_MS
            self.log.add((core.time.now_ms - stored_ms) / 1000)

    def gone(self, kind: str, attempts: Attempts) -> None:
        """A channel is deleted: what was counted of it stays counted."""
        self._past[kind].join(attempts)

    def past(self, kind: str) -> Attempts:
        """Of the channels that are gone, a copy to add others to."""
        return self._past[kind].with_all(0)
