"""A run of segments of one length."""

from __future__ import annotations

import weakref
from pathlib import Path

import pytest

from penstock.disk.files import Files
from penstock.disk.segments import SegmentedFile, segment_name
from penstock.errors import Corrupt, DiskFull


def test_a_run_of_segments(tmp_path: Path) -> None:
    files = Files()
    run = SegmentedFile(tmp_path / "log", 4096, files)
    run.start_at(9000)
    for _ in range(3):
        run.adopt(run.make_next())
    assert (run.first, run.end) == (8192, 8192 + 3 * 4096)
    assert run.at(8191) is None
    assert run.at(run.end) is None
    second = run.at(8192 + 4096)
    assert second is run.segments[1]
    assert run.last() is run.segments[2]
    run.close()
    (tmp_path / "log" / segment_name(0)).write_bytes(bytes(4096))
    (tmp_path / "log" / segment_name(4096)).write_bytes(bytes(100))
    again = SegmentedFile(tmp_path / "log", 4096, files)
    assert [path.name for path in again.load()] == [segment_name(n) for n in (4096, 8192, 12288, 16384)]
    assert (again.first, again.end) == (0, 4096)
    (tmp_path / "log" / segment_name(0)).write_bytes(bytes(4095))
    with pytest.raises(Corrupt):
        again.at(0)


def test_no_room_for_a_segment_leaves_nothing_behind(tmp_path: Path) -> None:
    class Full(Files):
        def allocate(self, fd: int, at: int, length: int) -> None:
            raise DiskFull("full")

    run = SegmentedFile(tmp_path / "log", 4096, Full())
    with pytest.raises(DiskFull):
        run.make_next()
    assert list((tmp_path / "log").iterdir()) == []


def test_a_run_at_rest_holds_no_mapping_but_those_in_use(tmp_path: Path) -> None:
    run = SegmentedFile(tmp_path, 4096, Files())
    for number in range(2):
        run.adopt(run.make_next())
        run.segments[number].map[:1] = b"%d" % number
    reading = run.segments[0]
    known = weakref.ref(run.segments[1].map)
    run.rest()
    assert known() is None
    assert reading.map[:1] == b"0"
    assert reading.fd >= 0  # a thread may be flushing it
    found = run.at(4096)
    assert found is not None
    assert found.map[:1] == b"1"
    run.close()
