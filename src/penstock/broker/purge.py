"""Purging a topic: its messages below a place are gone for groups and channels, at once and for good.

A log topic shares its log with all others: nothing is taken out of a file. What is moved is where each of its message
queues begins, as retention moves it; `topics.json` keeps that. A queue topic's channels go on behind the place, and its
segments go as ever when nobody is owed them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

from penstock.broker.broker import Broker
from penstock.broker.nsq.logchannels import LogChannels
from penstock.broker.nsq.memorytopics import MemoryTopic
from penstock.broker.nsq.topics import QueueTopic, Topic
from penstock.broker.topics import LogTopic
from penstock.disk.readyqueue import ReadyQueue
from penstock.errors import Refused
from penstock.wire.codes import ResponseCode

log = logging.getLogger("penstock.broker")

NS_A_MS = 1_000_000
_DIGITS_MAX = 18
_CONFLICT = 409


class Step(NamedTuple):
    """One queue: where it begins, and where it would."""

    queue: int
    begin: int
    to: int

    def row(self) -> dict[str, object]:
        """For JSON."""
        return {"queue": self.queue, "from": self.begin, "to": self.to, "messages": self.to - self.begin}


class Purge:
    """What `to` means for a topic: "end", an offset, or ``time:MS``: what was stored before it goes. `queue`: one alone."""

    def __init__(self, broker: Broker, topic: str, to: str, queue: int | None = None) -> None:
        self._broker = broker
        self._to = to
        self._queue = queue
        self._log: LogTopic | None = broker.topics.get(topic.encode())
        self._nsq: Topic | None = broker.queueing.find(topic.encode())
        if self._log is None and self._nsq is None:
            raise Refused(f"no topic {topic}", remoting=ResponseCode.TOPIC_NOT_EXIST, http=404)
        if broker.is_system_topic(topic):
            raise Refused(f"topic {topic} is the broker's own", http=_CONFLICT)
        word = to.removeprefix("time:")
        if to != "end" and not (word.isascii() and word.isdigit() and len(word) <= _DIGITS_MAX):
            raise Refused("to is end, an offset, or time:MS")
        if self._log is not None and queue is not None and not 0 <= queue < len(self._log.queues):
            raise Refused(f"topic {topic} has no queue {queue}", remoting=ResponseCode.TOPIC_NOT_EXIST, http=404)

    def plan(self) -> list[Step]:
        """What `run` would do. Refused where that cannot be done."""
        if self._log is not None:
            return [
                self._step(number, queue.min_offset, queue.max_offset, self._log_place(number))
                for number, queue in enumerate(self._log.queues)
                if self._queue in (None, number)
            ]
        topic = self._nsq
        if isinstance(topic, QueueTopic):
            stream = topic.stream
            owed = [file.committed for file in topic.cursors()] if topic.channels else [topic.first()]
            begin = min([stream.total, *owed])
            return [self._step(0, begin, stream.total, self._ready_place(stream))]
        assert isinstance(topic, MemoryTopic)
        if self._to != "end":
            raise Refused("a topic of level memory can be purged to its end only", http=_CONFLICT)
        count = topic.depth() + sum(
            channel.depth() + channel.in_flight_count + channel.deferred_count for channel in topic.channels.values()
        )
        return [Step(0, 0, count)]

    @staticmethod
    def _step(number: int, begin: int, end: int, place: int) -> Step:
        return Step(number, begin, max(begin, min(place, end)))

    def _log_place(self, number: int) -> int:
        assert self._log is not None
        queue = self._log.queues[number]
        if self._to == "end":
            return queue.max_offset
        if self._to.startswith("time:"):
            return self._broker.store.offset_by_time(queue, int(self._to[5:]), lower=True)
        return int(self._to)

    def _ready_place(self, stream: ReadyQueue) -> int:
        """The first record that was stored at the moment or later: they lie in the order of their times."""
        if self._to == "end":
            return stream.total
        if not self._to.startswith("time:"):
            return int(self._to)
        stamp_ns = int(self._to[5:]) * NS_A_MS
        low, high = stream.begin(), stream.total
        while low < high:
            middle = stream.next((low + high) // 2)
            if middle >= high:
                high = (low + high) // 2
            elif stream.find(middle) and stream.stamp_ns >= stamp_ns:
                high = min(middle, high - 1)
            else:
                low = middle + 1
        return low

    def run(self) -> tuple[list[Step], Callable[[], None]]:
        """Do it: what was done, and what takes it back when `topics.json` cannot be written."""
        steps = [step for step in self.plan() if step.to > step.begin]

        def undo() -> None:
            return None

        if self._log is not None:
            places = {step.queue: step.to for step in steps}
            if places:
                undo = self._broker.topics.purge(self._log, places, self._broker.now_ms)
                if isinstance(self._nsq, LogChannels):
                    self._nsq.purge(places)
        elif steps and isinstance(self._nsq, QueueTopic):
            self._nsq.purge(steps[0].to)
        elif steps and isinstance(self._nsq, MemoryTopic):
            self._nsq.empty()
            for channel in self._nsq.channels.values():
                self._nsq.empty_channel(channel)
        name = self._log.name if self._log is not None else self._nsq.name if self._nsq is not None else b""
        count = sum(step.to - step.begin for step in steps)
        log.info("topic purged name=%s to=%s messages=%d", name.decode(), self._to, count)
        return steps, undo
