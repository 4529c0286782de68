"""A broker as a whole: opened, ticking, closed."""

from __future__ import annotations

import errno
import gc
import os
from pathlib import Path

import pytest

from broker.queueside import Quick, Side
from penstock.broker.broker import Broker
from penstock.clock import FakeClock
from penstock.errors import DiskFull, Locked, StoreError
from penstock.log import checkpoint


def test_what_a_start_found(tmp_path: Path) -> None:
    side = Side(tmp_path)
    assert side.broker.topics.get(b"TBW102") is not None
    side.broker.close(True)
    again = Broker(side.config, clock=side.clock, files=side.files)
    assert again.open().clean
    again.close(False)
    once_more = Broker(side.config, clock=side.clock, files=side.files)
    found = once_more.open()
    assert (found.clean, found.power_cut) == (False, False)
    once_more.close()


def test_a_power_cut_counts_until_all_was_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start behind it that ends between the log and the ready queues leaves them to the next one, which finds a process that
    was killed: it would believe in messages without sums.
    """
    side = Side(tmp_path)
    side.queueing.publish(side.queueing.topic(b"t"), [b"x"])
    side.turn()
    side.broker.close(False)
    monkeypatch.setattr(checkpoint, "boot_id", lambda: "another boot")
    first = Broker(side.config, clock=side.clock, files=side.files)
    assert first.store.open().power_cut
    first.store.close(False)  # killed
    for doubtful in (True, False):
        broker = Broker(side.config, clock=side.clock, files=side.files)
        found = broker.open()
        assert (found.power_cut, found.cut_before) == (False, doubtful)
        assert broker.queueing.folder.pool.after_cut == doubtful
        broker.close(False)


def test_one_broker_a_folder(tmp_path: Path) -> None:
    side = Side(tmp_path)
    with pytest.raises(Locked):
        Broker(side.config, clock=side.clock).open()
    side.close()


def test_a_full_disk_at_the_first_start_says_what_to_do(tmp_path: Path) -> None:
    class Full(Quick):
        def allocate(self, fd: int, at: int, length: int) -> None:
            raise DiskFull("no space left")

        def write(self, fd: int, at: int, data: bytes) -> None:
            raise DiskFull("no space left")

    with pytest.raises(DiskFull, match="free at least 8 MiB"):
        Side(tmp_path, files=Full())


@pytest.mark.parametrize(
    ("number", "advice"), [(errno.EFBIG, "raise the limit"), (errno.EDQUOT, "quota"), (errno.ENOSPC, "the disk of ")]
)
def test_a_limit_for_files_is_no_full_disk(tmp_path: Path, number: int, advice: str) -> None:
    """With `ulimit -f` a start told of a full disk, and had somebody free some that was half empty."""

    class Limited(Quick):
        def write(self, fd: int, at: int, data: bytes) -> None:
            raise DiskFull("no room") from OSError(number, os.strerror(number))

    with pytest.raises(DiskFull, match=advice) as told:
        Side(tmp_path, files=Limited())
    assert ("the disk of" in str(told.value)) == (number == errno.ENOSPC)


def test_a_log_of_a_later_time_than_the_clock_has_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A first start before the clock was right gave all that came behind it the wrong time for years, without a word."""
    for ahead_ms, said in ((0, False), (86_400_000, False), (0, True)):
        side = Side(tmp_path, FakeClock(FakeClock().now_ms() + ahead_ms))
        assert ("the log's last record is of a later time" in caplog.text) == said
        topic = side.broker.topics.get(b"T") or side.broker.topics.create(b"T", 1, 1)
        side.broker.sending.put(topic, 0, b"x", {}, born_host=bytes(8), born_ms=side.broker.now_ms)
        side.turn(1)
        side.close()


def test_young_is_what_lies_in_memory_still(tmp_path: Path) -> None:
    side = Side(tmp_path)
    topic = side.broker.topics.create(b"T", 1, 1)
    assert side.broker.is_new(topic.queues[0])
    assert side.broker.is_system_topic("TBW102")
    assert not side.broker.is_system_topic("T")
    side.close()


@pytest.mark.parametrize("step", ["tables.load", "transactions.load", "staging.open", "history.open", "keeping.open"])
@pytest.mark.parametrize("error", [StoreError, DiskFull])
def test_a_start_that_fails_leaves_the_folder_to_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, error: type[StoreError]
) -> None:
    """In the same process: a program may start a broker again when there is room."""
    side = Side(tmp_path)
    side.queueing.publish(side.queueing.topic(b"t"), [b"x"])
    side.turn()
    side.broker.close(False)
    part, _, call = step.partition(".")
    gc.collect()  # brokers that tests before this one left: their descriptors would go meanwhile
    before = descriptors()
    failing = Broker(side.config, clock=side.clock, files=side.files)

    def fail(*given: object) -> None:
        raise error("by order of the test")

    monkeypatch.setattr(type(getattr(failing, part)), call, fail)
    with pytest.raises(error, match="by order of the test"):
        failing.open()
    assert descriptors() == before
    monkeypatch.undo()
    again = Broker(side.config, clock=side.clock, files=side.files)
    again.open()
    assert again.queueing.topics.keys() == {b"t"}
    again.close()
    assert descriptors() == before


@pytest.mark.parametrize("part", ["staging", "tables", "history"])
def test_a_stop_that_fails_leaves_the_folder_to_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    before = descriptors()
    side = Side(tmp_path)
    side.queueing.publish(side.queueing.topic(b"t"), [b"x"])
    side.turn()

    def fail() -> None:
        monkeypatch.undo()  # once
        raise StoreError("by order of the test")

    monkeypatch.setattr(getattr(side.broker, part), "close", fail)
    with pytest.raises(StoreError, match="by order of the test"):
        side.broker.close()
    assert descriptors() == before
    again = Broker(side.config, clock=side.clock, files=side.files)
    assert not again.open().clean
    assert again.queueing.topics.keys() == {b"t"}
    again.close()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))
