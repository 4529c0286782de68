"""What tests of sources share: message data, and a disk that takes nothing while it is full."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.delivery.source import MemorySource
from penstock.disk.diskqueue import DiskQueue
from penstock.disk.runs import Run
from penstock.errors import DiskFull
from penstock.wire.nsq import message_data


def data(number: int, attempts: int = 0) -> bytes:
    return message_data(number * 10, attempts, number, b"m%d" % number)


def taken(source: MemorySource) -> list[bytes]:
    found = []
    while source.take():
        found.append(source.body())
    return found


class Refusing:
    """The backend of a disk that takes nothing while `full`; else it keeps what it gets, and counts the calls."""

    def __init__(self, queue: DiskQueue) -> None:
        self.queue, self.full = queue, False
        self.writes: list[int] = []
        self.told: list[list[int]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.queue, name)

    def put(self, runs: list[Run]) -> None:
        if self.full:
            raise DiskFull("no room (by order of the test)")
        self.writes.append(sum(run.count for run in runs))
        self.queue.put(runs)

    def finish(self, numbers: Sequence[int]) -> None:
        self.told.append(list(numbers))
        self.queue.finish(numbers)
