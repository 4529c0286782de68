"""A broker on a disk that loses what was not flushed, with one side's flushes held back: the order is the experiment."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "log"))

import pytest
from lying_disk import LyingFiles
from msgspec.structs import replace

from broker.queueside import Reader, Side
from penstock.disk.job import run_now

QUEUES, LOG, TABLES = "queues", "log", "tables"


class CutSide(Side):
    """`held`: whose flushes are begun and do not end; `release` ends them. `cut` is the power cut."""

    def __init__(self, folder: Path, seed: int, patch: pytest.MonkeyPatch, **settings: Any) -> None:
        self.root, self.patch, self.cuts, self.seed = folder, patch, 0, seed
        self.held: set[str] = set()
        self.waiting: list[Any] = []
        first = folder / "0"
        first.mkdir(parents=True)
        super().__init__(first, files=LyingFiles(first, seed), **settings)

    def open(self) -> None:
        super().open()
        broker = self.broker
        takes = {QUEUES: broker.queueing.take_jobs, LOG: lambda: broker.store.take_jobs(broker.mono_ms)}

        def take() -> list[Any]:
            jobs: list[Any] = []
            for side, take_side in takes.items():
                found = take_side()
                (self.waiting if side in self.held else jobs).extend(found)
            return [*jobs, *broker.staging.take_jobs(broker.mono_ms), *broker.take_offset_jobs()]

        self.patch.setattr(broker, "take_jobs", take)

    def release(self) -> None:
        """What was held back succeeds."""
        self.held.clear()
        jobs, self.waiting = self.waiting, []
        run_now(jobs, self.broker.mono_ms)

    def cut(self) -> None:
        """The power goes and comes back: any subset of the pages that were not flushed is there."""
        files = self.files
        for path in sorted((self.root / str(self.cuts)).glob("schedule/*")):  # LMDB flushes by itself
            fd = files.open(path)
            files.datasync(fd)
            files.close(fd)
        if (self.root / str(self.cuts) / "schedule").is_dir():
            files.sync_folder(self.root / str(self.cuts) / "schedule")
            files.sync_folder(self.root / str(self.cuts))
        self.cuts += 1
        to = self.root / str(self.cuts)
        files.power_cut(to)
        self.held.clear()
        self.waiting.clear()
        self.broker.close(clean=False)
        self.patch.setattr("penstock.log.checkpoint.boot_id", lambda: f"boot {self.cuts}")
        self.config = replace(self.config, data=str(to))
        self.files = LyingFiles(to, self.seed)
        self.files.adopt()
        self.clock.advance(10)
        self.open()
        self.turn()

    def kill(self) -> None:
        """kill -9: what was written is with the kernel; flushes that were held back never ended."""
        self.held.clear()
        self.waiting.clear()
        self.broker.close(clean=False)
        self.clock.advance(10)
        self.open()
        self.turn()

    def settle(self, seconds: int = 3) -> None:
        """Everything that is due becomes durable."""
        for _ in range(seconds * 4):
            self.turn(250)

    def reader(self, topic: bytes, channel: bytes, ready: int = 2000) -> Reader:
        reader = Reader()
        reader.ready_count = ready
        here = self.queueing.topic(topic).channel(channel)
        here.add(reader)
        self.queueing.mark_channel(here)
        self.turn()
        return reader

    def finish(self, topic: bytes, channel: bytes, reader: Reader, message_id: int) -> None:
        here = self.queueing.topic(topic).channel(channel)
        assert here.finish(reader, message_id, self.broker.now_ns, self.broker.mono_ms) == 0
        self.queueing.mark_channel(here)
