"""A broker without sockets for tests of its NSQ side: one turn at a time, on a clock that stands still."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from penstock.broker.broker import Broker
from penstock.clock import FakeClock
from penstock.config import BrokerConfig
from penstock.delivery.channel import Consumer
from penstock.delivery.source import Source
from penstock.disk.files import Files
from penstock.disk.job import run_now
from penstock.wire.nsq import MESSAGE, frame, message_data


class Delivery(NamedTuple):
    """One message frame."""

    id: int
    attempts: int
    stamp_ns: int
    body: bytes


class Reader(Consumer):
    """A consumer whose frames are looked at."""

    def deliver(self, source: Source, attempts: int) -> int:
        self.out.put(frame(MESSAGE, message_data(source.stamp_ns, attempts, source.message_id, source.body())))
        return 0

    def deliveries(self) -> Iterator[Delivery]:
        data = self.out.take()
        while data:
            size = int.from_bytes(data[:4])
            frame, data = data[4 : 4 + size], data[4 + size :]
            assert int.from_bytes(frame[:4]) == 2
            yield Delivery(int(frame[14:30], 16), int.from_bytes(frame[12:14]), int.from_bytes(frame[4:12]), frame[30:])


class Quick(Files):
    """A disk that keeps everything, so that nobody has to wait for it."""

    def datasync(self, fd: int) -> None:
        pass

    def sync_folder(self, folder: Path) -> None:
        pass


class Side:
    """A broker and its turns."""

    def __init__(self, folder: Path, clock: FakeClock | None = None, files: Any = None, **settings: Any) -> None:
        self.clock = clock or FakeClock()
        self.files = files or Quick()
        small: dict[str, Any] = {
            "mapped_file_size_commit_log": 1 << 20, "mapped_file_size_consume_queue": 6000, "max_hash_slot_num": 100,
            "max_index_num": 400, "queue_segment_bytes": 1 << 16, "mem_queue_size": 3, "max_bytes_per_file": 400,
            "max_msg_size": 1 << 15,
        }  # fmt: skip
        self.config = BrokerConfig(**(small | {"data": str(folder)} | settings))
        self.open()

    def open(self) -> None:
        self.broker = Broker(self.config, clock=self.clock, files=self.files)
        self.broker.open()
        self.queueing = self.broker.queueing

    def turn(self, ms: int = 0) -> None:
        """One turn of the loop, `ms` later; flushes and other jobs are done at its end."""
        self.clock.advance(ms)
        self.broker.time.update()
        self.broker.store.begin_turn(self.broker.now_ms)
        for _, timer in self.broker.timers():
            timer()
        arrived, self.broker.store.arrived = self.broker.store.arrived, []
        for queue in arrived:
            queue.arrived = False
        self.queueing.mark_topics_of(arrived)
        self.queueing.end_turn()
        run_now(self.broker.take_jobs(), self.broker.mono_ms)
        self.queueing.end_turn()

    def reopen(self, clean: bool) -> None:
        """Stop and start: clean, or as a killed process leaves its files."""
        self.broker.close(clean)
        self.clock.advance(1)
        self.open()
        self.turn()

    def close(self) -> None:
        self.broker.close(True)
