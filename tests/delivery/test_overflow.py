"""Overflow: a consumer that is behind a little is spared the files, and nothing rests in memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from delivery.source_parts import Refusing, data, taken
from disk.queue_parts import make
from penstock.delivery.overflow import LAG_BYTES_MAX, LAG_TIMES, REFUSED_BYTES
from penstock.delivery.source import MemorySource
from penstock.disk.runs import Run
from penstock.errors import DiskFull
from penstock.wire.nsq import message_data


def test_a_consumer_that_is_behind_a_little_is_spared_the_files(tmp_path: Path) -> None:
    backend = Refusing(make(tmp_path))
    source = MemorySource(1_000, backend)
    numbers, came = iter(range(100_000)), 0

    def put(count: int) -> None:
        source.put([data(next(numbers)) for _ in range(count)])

    def takes(count: int) -> None:
        nonlocal came
        for _ in range(count):
            assert source.take()
            assert source.body() == b"m%d" % came
            came += 1

    put(1_000)
    for _ in range(10 * LAG_TIMES):
        put(100)
    assert (source.waiting(), source.depth(), backend.writes) == (1_000, 4_000, [])
    takes(1_001)  # the memory queue holds no more than it is to, whatever gathered behind it
    assert (source.waiting(), source.depth()) == (999, 2_999)
    for _ in range(9):  # always between one and four times what it holds
        put(1_000)
        takes(1_000)
    assert (source.depth(), backend.writes) == (2_999, [])
    put(1_002)
    assert backend.writes == [3_002]  # once something is in files, all that comes goes there, in smaller pieces
    for _ in range(3):
        put(200)
    assert backend.writes == [3_002, 600]
    takes(source.depth())
    assert not source.take()
    put(1_000)
    put(3_000)
    assert backend.writes == [3_002, 600]
    backend.close()


def test_large_messages_that_gather_are_bounded_in_bytes(tmp_path: Path) -> None:
    backend = Refusing(make(tmp_path))
    source = MemorySource(1_000, backend)
    source.put([data(n) for n in range(1_000)])
    big = message_data(1, 0, 1, bytes(LAG_BYTES_MAX // 8))
    for _ in range(7):
        source.put([big])
    assert backend.writes == []
    source.put([big])
    assert backend.writes == [8]
    backend.close()


def test_what_rests_is_written(tmp_path: Path) -> None:
    backend = Refusing(make(tmp_path))
    source = MemorySource(1_000, backend)
    source.put([data(n) for n in range(900)])
    assert not source.overflow.spill()  # nothing is more than the queue holds
    source.put([data(n) for n in range(900, 1_500)])
    assert source.overflow.spill()
    assert backend.writes == []
    for n in range(1_001):
        assert source.take()
        assert source.body() == b"m%d" % n
    source.put([data(n) for n in range(1_500, 2_100)])
    assert source.overflow.spill()
    assert backend.writes == []
    backend.full = True
    for _ in range(2):
        with pytest.raises(DiskFull):
            source.overflow.spill()
    assert source.depth() == 1_099
    backend.full = False
    assert not source.overflow.spill()
    assert backend.writes == [99]
    assert not source.overflow.spill()
    assert taken(source) == [b"m%d" % n for n in range(1_001, 2_100)]
    backend.close()


class Counted(Refusing):
    """It counts the calls that it refuses, too."""

    tried = 0

    def put(self, runs: list[Run]) -> None:
        self.tried += 1
        super().put(runs)


def test_a_full_disk_is_not_tried_with_every_message(tmp_path: Path) -> None:
    backend = Counted(make(tmp_path))
    source = MemorySource(1_000, backend)
    body = bytes(1_000)
    source.put([message_data(1, 0, n, body) for n in range(1_000)])
    source.put([message_data(1, 0, n, body) for n in range(1_000, 4_000)])
    backend.full = True
    refused = 3_001 * (len(data(0)) + 998)
    for _ in range(2 * (refused // REFUSED_BYTES)):  # 3 MB gathered
        with pytest.raises(DiskFull, match="by order of the test"):
            source.put([message_data(1, 0, 4_000, body)])
    assert backend.tried in (2, 3)
    assert source.overflow.spill()
    backend.tried = 0
    for _ in range(2):  # who comes when it is time tries at once
        with pytest.raises(DiskFull):
            source.overflow.spill()
    assert backend.tried == 2
    backend.full = False
    with pytest.raises(DiskFull):
        source.put([data(0)])
    assert not source.overflow.spill()
    source.put([data(0)])
    assert (source.depth(), backend.writes) == (4_001, [3_000])
    source.empty()
    source.put([data(n) for n in range(1_000)])
    backend.full = True
    huge = [message_data(1, 0, 1, bytes(LAG_BYTES_MAX + 1))]
    for tried in range(1, 4):  # nothing gathers, so nobody would try later
        with pytest.raises(DiskFull):
            source.put(huge)
        assert backend.tried == 3 + tried
    backend.close()


def test_what_was_refused_long_ago_is_no_reason(tmp_path: Path) -> None:
    """The consumer took all of it, and the disk has room again: a publish was refused without a try."""
    backend = Refusing(make(tmp_path))
    source = MemorySource(1_000, backend)
    body = bytes(1_000)
    many = [message_data(1, 0, n, body) for n in range(4_000)]
    for _ in range(2):
        source.put(many[:1_000])
        source.put(many[1_000:])
        backend.full = not backend.writes
        if backend.full:
            with pytest.raises(DiskFull):
                source.put(many[:1])
            assert len(taken(source)) == 4_000
            backend.full = False
            backend.writes.append(0)
    source.put(many[:1])
    assert backend.writes == [0, 3_001]
    backend.close()


def test_without_a_disk_nothing_rests() -> None:
    source = MemorySource(1_000, None)
    source.put([data(n) for n in range(1_500)])
    assert (source.overflow.spill(), source.overflow.spill(), source.depth(), source.dropped) == (
        False,
        False,
        1_000,
        500,
    )
