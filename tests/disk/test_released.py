"""What files let go of: at once, or in a thread, a piece at a time."""

from __future__ import annotations

import mmap
import os
import weakref
from pathlib import Path

import pytest

from broker.queueside import Side
from penstock.disk import released
from penstock.disk.diskqueue import DiskQueue
from penstock.disk.files import Files
from penstock.disk.job import run_now
from penstock.disk.released import Released
from penstock.disk.runs import framed
from penstock.disk.segments import SegmentedFile


def test_nobody_takes_jobs() -> None:
    closed: list[int] = []
    held = Released(closed.append)
    held.add(3, None)
    assert (closed, len(held), held.take_job()) == ([3], 0, None)
    held.begin()
    held.add(4)
    assert (closed, len(held)) == ([3], 1)
    held.end()
    held.add(5)
    assert (closed, len(held)) == ([3, 4, 5], 0)


def test_a_job_frees_what_it_can_in_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[int] = []
    held = Released(closed.append)
    held.begin()
    held.add(3, 4, 5)
    monkeypatch.setattr(released, "PIECE_S", 0.0)
    job = held.take_job()
    assert job is not None
    assert held.take_job() is None  # one at a time
    run_now([job], 0)
    assert closed == [3]
    monkeypatch.setattr(released, "PIECE_S", 60.0)
    run_now([job for _ in range(2) if (job := held.take_job())], 0)
    assert closed == [3, 4, 5]


def test_a_mapping_goes_with_its_last_reference() -> None:
    held = Released(os.close)
    held.begin()
    view = mmap.mmap(-1, 4096)
    known = weakref.ref(view)
    held.add(view)
    del view
    assert known() is not None
    job = held.take_job()
    assert job is not None
    run_now([job], 0)
    assert known() is None


def test_a_segment_that_nobody_has_any_more(tmp_path: Path) -> None:
    files = Files()
    files.released.begin()
    run = SegmentedFile(tmp_path, 8192, files)
    run.adopt(run.make_next())
    known = weakref.ref(run.segments[0].map)
    files.unlink(run.drop_first().path)
    assert known() is not None
    files.released.end()
    assert known() is None


def test_the_files_of_a_disk_queue_that_are_used_up(tmp_path: Path) -> None:
    """Their names go at once: a queue of the same name may be made anew."""
    files = Files()
    files.released.begin()
    queue = DiskQueue(tmp_path, "t", files, max_bytes_per_file=100)
    for _ in range(3):
        queue.put([framed([b"x" * 80])])
    queue.take(1)
    queue.take(1)
    queue.done(2)
    assert not queue.paths.data(0).exists()
    waiting = len(files.released)
    assert waiting >= 2  # with its sums
    queue.delete()
    assert list(tmp_path.iterdir()) == []
    assert len(files.released) > waiting
    before = len(os.listdir("/proc/self/fd"))
    waiting = len(files.released)
    files.released.end()
    assert len(os.listdir("/proc/self/fd")) == before - waiting


@pytest.mark.parametrize("level", ["os", "memory"])
def test_a_topic_that_is_deleted_is_freed_by_a_thread(tmp_path: Path, level: str) -> None:
    """Two gigabytes took the loop the better part of a second."""
    side = Side(tmp_path)
    queueing = side.queueing
    topic = queueing.topic(b"t", level)
    for _ in range(6):  # a segment each
        queueing.publish(topic, [b"x" * 1000] * 50)
    side.turn()
    released = side.broker.files.released
    side.turn()
    assert len(released) == 0
    queueing.registry.delete(topic)
    del topic
    kinds: list[str] = []
    for _ in range(4):
        queueing.end_turn()
        jobs = side.broker.take_jobs()
        kinds += [job.kind for job in jobs]
        run_now(jobs, side.broker.mono_ms)
        del jobs
    assert "release" in kinds
    assert len(released) == 0
    side.close()
