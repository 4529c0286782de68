"""How far the queue of each delay level is delivered, as RocketMQ says it (`delayOffset.json`, request 45): where a RocketMQ
broker that opens the folder, or copies it, goes on.

Below the first message of a level that still waits all are delivered. Who asks has a short schedule gone through; a long one is
gone through a piece at a time. What was found holds on, for what is delivered stays so: it is never too far, only behind.
"""

from __future__ import annotations

from itertools import islice

from penstock.broker.core import Core
from penstock.broker.topics import SCHEDULE_TOPIC
from penstock.wire import record

PIECE = 500  # entries: 3 ms
STEP_MS = 50
EVERY_MS = 5_000
RESTS = 4  # times as long as it took


class LevelOffsets:
    """See the module."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._known: dict[int, int] | None = None
        self._found: dict[int, int] = {}
        self._at: tuple[int, int] | None = None  # where a look goes on: due ms, id
        self._began_ms = self._next_ms = 0

    def table(self) -> dict[str, int] | None:
        """Level to offset; None while a long schedule was not gone through."""
        if self._is_short:
            self._begin()
            self._look(PIECE + 1)
        return None if self._known is None else {str(queue + 1): offset for queue, offset in self._known.items()}

    @property
    def _is_short(self) -> bool:
        """Whether it may be gone through at once; nobody waits where no level was ever asked for."""
        core = self._core
        return len(core.schedule) <= PIECE or not any(
            queue.max_offset for queue in core.topics.by_name[SCHEDULE_TOPIC].queues
        )

    def step(self) -> None:
        """Go on, as far as a turn has time for."""
        mono_ms = self._core.time.mono_ms
        if mono_ms < self._next_ms or self._is_short:
            return
        if self._at is None:
            self._begin()
        self._next_ms = mono_ms + STEP_MS
        if self._look(PIECE):
            self._next_ms = mono_ms + max(EVERY_MS, RESTS * (mono_ms - self._began_ms))

    def _begin(self) -> None:
        self._began_ms = self._core.time.mono_ms
        queues = self._core.topics.by_name[SCHEDULE_TOPIC].queues
        self._found = {
            queue_id: queue.max_offset for queue_id, queue in enumerate(queues)
        }  # what comes later is behind
        self._at = 0, 0

    def _look(self, most: int) -> bool:
        """Go by so many entries at most; whether there are no more."""
        assert self._at is not None
        if not any(self._found.values()):
            most = 0
        begin_ms, begin_id = self._at
        last = None
        for last in islice(self._core.schedule.entries(begin_ms, begin_id=begin_id), most):
            most -= 1
            message = None if last.damaged else record.decode_record(last.record, 0, decompress=False)
            if message is not None and message.topic == SCHEDULE_TOPIC.decode():
                self._found[message.queue_id] = min(self._found.get(message.queue_id, 0), message.queue_offset)
        if most or last is None:
            self._known, self._at = self._found, None
            return True
        self._at = last.due_ms, last.id + 1
        return False
