"""What of a disk queue is not durable: flushed by a thread, which comes late, fails, or is too slow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lying_disk import LyingFiles

from disk.queue_parts import contents, drain, make, message, messages, put
from penstock.disk.files import Files
from penstock.disk.job import Job, run_now
from penstock.disk.queuewriting import FLUSHES_BEHIND, Syncing
from penstock.errors import NoDescriptor, StoreError


class Beside:
    """A disk queue whose owner has threads: what it asked for, and what failed."""

    def __init__(self, folder: Path, files: Files, **more: Any) -> None:
        self.wanting: set[Syncing] = set()
        self.failed: list[StoreError] = []
        more = {"sync_every": 10, "max_bytes_per_file": 1 << 20, **more}
        self.queue = make(folder, files=files, **more)
        self.queue.syncing.beside(self.wanting)

    def job(self) -> Job:
        self.wanting.remove(self.queue.syncing)
        job = self.queue.syncing.take_job(self.failed.append)
        assert job is not None
        assert self.queue.syncing.take_job(self.failed.append) is None, "one at a time"
        return job


def test_a_thread_flushes_and_nobody_waits(tmp_path: Path) -> None:
    files = LyingFiles(tmp_path)
    one = Beside(tmp_path, files)
    put(one.queue, *messages(10))
    assert not one.wanting
    put(one.queue, message(10))
    assert (one.wanting, files.flushes) == ({one.queue.syncing}, 0)
    job = one.job()
    put(one.queue, *messages(11, 30))  # meanwhile
    assert not one.wanting
    job.run()
    assert files.flushes == 3
    job.finish(None, 0)
    put(one.queue, message(30))  # twenty came behind what that flush had to take
    assert one.wanting
    run_now([one.job()], 0)
    assert files.flushes == 6
    assert one.queue.tick(0) is None
    files.power_cut(tmp_path / "cut")
    assert drain(make(tmp_path / "cut")) == messages(31)


@pytest.mark.parametrize("how", ["sync", "close", "delete", "empty", "roll"])
def test_a_thread_that_comes_late_does_nothing(tmp_path: Path, how: str) -> None:
    """What the owner has closed, deleted or written anew meanwhile stays as it is."""
    files = LyingFiles(tmp_path)
    one = Beside(tmp_path, files, max_bytes_per_file=1000)
    put(one.queue, *messages(11))
    put(one.queue, message(11))
    job = one.job()
    if how == "roll":
        put(one.queue, *messages(12, 30))
    else:
        getattr(one.queue, how)()
    before, flushes = contents(tmp_path), files.flushes
    job.run()
    assert (contents(tmp_path), files.flushes) == (before, flushes)
    job.finish(None, 0)
    assert not one.failed
    if how == "delete":
        assert not before
    elif how in ("sync", "roll"):
        put(one.queue, *messages(30, 41))
        put(one.queue, message(41))
        run_now([one.job()], 0)
        assert drain(one.queue) == [*messages(30 if how == "roll" else 12), *messages(30, 42)]


@pytest.mark.parametrize("how", ["close", "delete"])
def test_a_queue_that_is_gone_asks_for_no_flush(tmp_path: Path, how: str) -> None:
    """It asked, and went before a thread had time: its meta file would come back, under a name that others may have by then."""
    one = Beside(tmp_path, LyingFiles(tmp_path))
    put(one.queue, *messages(11))
    put(one.queue, message(11))
    assert one.wanting
    getattr(one.queue, how)()
    before = contents(tmp_path)
    asked = list(one.wanting)
    run_now([job for syncing in asked if (job := syncing.take_job(one.failed.append)) is not None], 0)
    assert (contents(tmp_path), asked, one.failed) == (before, [], [])


def test_who_is_far_behind_the_thread_flushes_itself(tmp_path: Path) -> None:
    files = LyingFiles(tmp_path)
    one = Beside(tmp_path, files)
    for n in range(0, 10 * FLUSHES_BEHIND, 10):
        put(one.queue, *messages(n, n + 10))
    assert files.flushes == 0
    put(one.queue, message(0))
    assert files.flushes == 3


def test_a_flush_that_fails_in_a_thread_is_final(tmp_path: Path) -> None:
    files = LyingFiles(tmp_path)
    one = Beside(tmp_path, files)
    put(one.queue, *messages(11))
    put(one.queue, message(11))
    job = one.job()
    files.fail_flush = True
    run_now([job], 0)
    files.fail_flush = False
    assert [type(error) for error in one.failed] == [StoreError]
    with pytest.raises(StoreError):
        put(one.queue, message(12))
    assert one.queue.syncing.take_job(one.failed.append) is None
    assert drain(one.queue) == messages(12)


class Unopened(LyingFiles):
    """No meta file can be opened while `broken`."""

    broken: StoreError | None = None

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> int:
        if self.broken is not None and ".meta." in path.name:
            raise self.broken
        return super().open(path, create=create, writable=writable)


@pytest.mark.parametrize("error", [NoDescriptor("too many open files"), StoreError("Cannot allocate memory")])
def test_a_meta_file_that_cannot_be_written_is_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, error: StoreError
) -> None:
    """What was put is flushed, and no broker has to stop storing."""
    files = Unopened(tmp_path)
    one = Beside(tmp_path, files)
    put(one.queue, *messages(11))
    put(one.queue, message(11))
    files.broken = error
    for mono_ms in (0, 2_000, 4_000):
        run_now([one.job()], mono_ms)
        one.queue.tick(mono_ms)
        one.queue.tick(mono_ms + 2_000)
    assert len([line for line in caplog.messages if "tried again" in line]) == 1
    with pytest.raises(type(error)):
        one.queue.sync()
    files.broken = None
    put(one.queue, message(12))
    run_now([one.job()], 6_000)
    assert (one.failed, one.queue.syncing.failed) == ([], None)
    files.power_cut(tmp_path / "cut")
    assert drain(make(tmp_path / "cut")) == messages(13)


def test_a_full_disk_is_tried_again(tmp_path: Path) -> None:
    """The meta file has no room; what was put is flushed."""
    files = LyingFiles(tmp_path)
    one = Beside(tmp_path, files)
    put(one.queue, *messages(11))
    put(one.queue, message(11))
    job = one.job()
    files.full = True
    run_now([job], 0)
    files.full = False
    assert not one.failed
    assert one.queue.tick(0) == 2000
    assert one.queue.tick(2000) == 4000
    run_now([one.job()], 0)
    assert not one.failed
    files.power_cut(tmp_path / "cut")
    assert drain(make(tmp_path / "cut")) == messages(12)
