"""Veils: batches that are in the log and that readers do not see yet.

A veil is lowered over the queues of a batch before its first record is appended, and lifted when all of it is there and
its offsets are reserved durably: a reader sees a batch whole or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from penstock.delivery.waiters import Positions
from penstock.log.consumequeue import ConsumeQueue
from penstock.log.store import LogStore
from penstock.wire import layout
from penstock.wire.record import decode_record

NEVER = 1 << 62


class Veil(msgspec.Struct, eq=False):
    """One batch: from which offset on in which queues; `whole`: all of it is in the log."""

    queues: list[tuple[ConsumeQueue, int]]
    whole: bool = False
    number: int = 0  # in the order of the log

    def complete(self) -> None:
        """All of it is in the log."""
        self.whole = True


class Veils:
    """The batches of one store, in the order of the log."""

    def __init__(self, store: LogStore) -> None:
        self._store = store
        self.lowered: list[Veil] = []  # one list for good: the end of a turn looks whether there is any
        self._count = 0  # how many there were
        self._waiting = Positions()  # answers, by the number of the last veil that must be lifted

    def lower(self, queues: Iterable[ConsumeQueue], physical: int) -> Veil:
        """Hide what comes into these queues behind this position."""
        self._count += 1
        veil = Veil([(queue, queue.first_at_or_after(physical)) for queue in queues], number=self._count)
        self.lowered.append(veil)
        for queue, start in veil.queues:
            queue.hide_from(min(queue.hidden_from, start))
        return veil

    def lift(self) -> None:
        """Let readers see what is whole now: offsets are shown when they are reserved durably, and a batch not before
        all of its own are. At the end of every turn."""
        store = self._store
        while self.lowered and self.lowered[0].whole:
            veil = self.lowered[0]
            if any(queue.reserved < queue.max_offset for queue, _ in veil.queues):
                return
            del self.lowered[0]
            for queue, _ in veil.queues:
                starts = [start for later in self.lowered for other, start in later.queues if other is queue]
                queue.hide_from(min(starts, default=NEVER))
                store.notice(queue)
            self._waiting.settle(veil.number)

    def hides(self, data: bytes) -> bool:
        """Whether a record that was found by its place is one that readers of its queue do not see yet."""
        if not self.lowered:
            return False
        message = decode_record(data, decompress=False)
        if message is None or message.sys_flag & layout.SYS_HALF:
            return False
        queue = self._store.queues.get(message.topic.encode(), {}).get(message.queue_id)
        return queue is not None and message.queue_offset >= queue.hidden_from

    def when_visible(self, answer: Callable[[], None]) -> None:
        """Call `answer` when readers see all that is published; at once when they do."""
        if self.lowered and self._store.healthy:
            self._waiting.wait(self._count, self, lambda outcome: answer())
        else:
            answer()
