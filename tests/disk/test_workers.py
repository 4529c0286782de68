"""Jobs end where they belong, flushes beside slow work, and the loop may flush by itself while flushes are short."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

import pytest

from penstock.disk.job import Job
from penstock.disk.workers import Workers
from penstock.errors import StoreError

WITHIN_S = 30.0


class Loop:
    """Where jobs end: what is told is done when the test says so."""

    def __init__(self) -> None:
        self.told: queue.Queue[Callable[[], None]] = queue.Queue()
        self.ended: list[tuple[str, str]] = []
        self.workers = Workers(self.told.put, lambda job, error: self.ended.append((job.kind, str(error or ""))))

    def turn(self) -> None:
        self.told.get(timeout=WITHIN_S)()


def test_a_flush_does_not_wait_for_slow_work() -> None:
    loop, go_on, names = Loop(), threading.Event(), []

    def slow() -> None:
        assert go_on.wait(WITHIN_S)

    loop.workers.start(Job("prepare", slow))
    loop.workers.start(Job("flush", lambda: names.append(threading.current_thread().name)))
    loop.turn()
    assert (loop.ended, loop.workers.under_way) == ([("flush", "")], 1)
    go_on.set()
    loop.turn()
    assert (loop.ended[1:], loop.workers.under_way) == ([("prepare", "")], 0)
    assert names[0].startswith("penstock-flush")
    loop.workers.close()


def test_a_disk_that_does_not_answer_is_told_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A process that had been told to stop said `stopping`, and nothing more for as long as the disk hung."""
    loop, go_on = Loop(), threading.Event()
    assert loop.workers.are_done()
    for _ in range(2):
        loop.workers.start(Job("flush", go_on.wait))  # type: ignore[arg-type]
    assert not loop.workers.are_done()
    assert caplog.messages == []
    monkeypatch.setattr("penstock.disk.workers.LONG_S", 0.0)
    for _ in range(2):
        assert not loop.workers.are_done()
    assert [text.partition(" flush_ms=")[0] for text in caplog.messages] == [
        "the disk does not answer, and the end waits for it"
    ]
    go_on.set()
    loop.turn()
    loop.turn()
    assert loop.workers.are_done()
    assert "the disk was slow: answers have waited for a flush" in caplog.text
    assert len(caplog.messages) == 2
    loop.workers.close()


def test_its_threads_are_there_before_the_first_job() -> None:
    """From Python 3.12 on none can be made once the program ends, and a broker in it is stopped after that."""
    before = set(threading.enumerate())
    loop = Loop()
    made = sorted(thread.name for thread in set(threading.enumerate()) - before)
    assert made == ["penstock-files_1", "penstock-flush_1"]
    loop.workers.close()


def test_what_a_job_raised_is_told() -> None:
    loop = Loop()

    def fails() -> None:
        raise StoreError("EIO")

    loop.workers.start(Job("flush", fails))
    loop.turn()
    loop.workers.run_here(Job("flush", fails))
    assert loop.ended == [("flush", "EIO")] * 2
    assert loop.workers.under_way == 0
    loop.workers.close()


def test_the_end_of_a_job_is_told_when_there_is_memory_again() -> None:
    """It was told never: what waited for a flush waited for ever, and so did the stop."""
    told: queue.Queue[Callable[[], None]] = queue.Queue()
    refused = [MemoryError(), MemoryError()]

    def tell(what: Callable[[], None]) -> None:
        if refused:
            raise refused.pop()
        told.put(what)

    workers = Workers(tell, lambda job, error: None)
    workers.start(Job("flush", lambda: None))
    told.get(timeout=WITHIN_S)()
    assert not workers.under_way
    workers.close()


def test_one_long_flush_is_remembered_for_a_while() -> None:
    loop, names = Loop(), []
    short = Job("flush", lambda: names.append(threading.current_thread().name))
    for _ in range(200):  # on a busy machine a short one may take long
        loop.workers.run_here(short)
        if loop.workers.brief:
            break
    assert loop.workers.brief
    assert set(names) == {threading.current_thread().name}
    loop.workers.run_here(Job("flush", lambda: time.sleep(0.004)))
    assert not loop.workers.brief
    loop.workers.run_here(short)
    assert not loop.workers.brief
    loop.workers.run_here(Job("prepare", lambda: time.sleep(0.004)))  # nothing about flushes
    for _ in range(200):
        loop.workers.run_here(short)
        if loop.workers.brief:
            break
    assert loop.workers.brief, "flushes are short again, and the loop does not know"
    loop.workers.close()
