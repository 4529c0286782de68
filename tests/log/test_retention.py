"""Which segments go, when, and what becomes of a full disk."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from lying_disk import LyingFiles
from msgspec.structs import replace
from store_parts import SMALL, contents, make, put, work

from penstock.clock import FakeClock
from penstock.errors import StoreError
from penstock.log import status
from penstock.log.draft import Draft
from penstock.log.reading import ReadResult
from penstock.log.retention import DOOMED_RETRY_MS, Retention
from penstock.log.store import LogStore

HOUR = 3_600_000


def at_hour(hour: int) -> FakeClock:
    """A clock on a day in the past, at this local hour."""
    began = time.mktime((2024, 3, 6, hour, 5, 0, 0, 0, -1))
    return FakeClock(int(began * 1000))


def aged(folder: Path, clock: FakeClock, hours: int, segments: int = 14) -> tuple[LogStore, LyingFiles]:
    """A store of many segments, last written so many hours ago."""
    files = LyingFiles(folder)
    store = make(folder, files=files, clock=clock, options=replace(SMALL, delete_when=4))
    store.open()
    n = 0
    while len(store.log.file.segments) < segments:
        put(store, bytes(1000), queue_id=n % 2, properties=b"KEYS\x01k%d" % n)
        n += 1
    store.want_flush()
    for job in store.take_jobs(clock.monotonic_ms()):
        job.run()
        job.finish(None, clock.monotonic_ms())
    for segment in store.log.file.segments:
        when = clock.now_ms() / 1000 - hours * 3600
        os.utime(segment.path, (when, when))
    return store, files


def sweep(store: LogStore) -> None:
    store.clock.advance(10_000)
    work(store, 1)


@pytest.mark.parametrize(
    ("hour", "hours", "used", "kept"),
    [
        (4, 73, 0.1, 4),  # ten a pass
        (4, 71, 0.1, 14),
        (5, 73, 0.1, 14),
        (5, 73, 0.76, 4),
        (5, 71, 0.76, 14),
        (5, 1, 0.86, 4),
    ],
)
def test_what_one_pass_drops(tmp_path: Path, hour: int, hours: int, used: float, kept: int) -> None:
    store, files = aged(tmp_path, at_hour(hour), hours)
    files.used_ratio = used
    sweep(store)
    assert isinstance(store.upkeep.retention, Retention)
    assert len(store.log.file.segments) == kept
    assert len(list((tmp_path / "commitlog").iterdir())) == kept + (store.log.prepared is not None)
    store.close()


def test_consume_queues_and_index_follow(tmp_path: Path) -> None:
    store, files = aged(tmp_path, at_hour(5), 1)
    files.used_ratio = 0.86
    queue = store.queue(b"T", 0)
    before = queue.max_offset
    sweep(store)
    assert queue.min_offset > 0
    assert queue.max_offset == before
    result = ReadResult()
    assert store.read(queue, 0, 32, 1 << 20, -1, None, result) == status.OFFSET_TOO_SMALL
    assert result.next_offset == queue.min_offset
    found = contents(store, queue)
    assert [offset for offset, _ in found] == list(range(queue.min_offset, before))
    assert store.query(b"T", b"k0", 9, 0, 1 << 50) == []
    assert store.index.index_files[0].end_physical() >= store.min_position
    store.close()
    report = store.open()
    assert report.clean
    assert (store.queue(b"T", 0).min_offset, store.queue(b"T", 0).max_offset) == (queue.min_offset, before)
    store.close(clean=False)
    store.open()
    assert contents(store, store.queue(b"T", 0)) == found
    assert put(store, b"next").queue_offset == before
    store.close()


def test_the_last_segment_stays(tmp_path: Path) -> None:
    store, files = aged(tmp_path, at_hour(4), 100)
    files.used_ratio = 0.99
    for _ in range(5):
        sweep(store)
    assert len(store.log.file.segments) == 1
    store.close()


def test_writing_stops_at_ninety_and_goes_on_below(tmp_path: Path) -> None:
    store, files = aged(tmp_path, at_hour(5), 1, segments=2)
    draft = Draft()
    draft.queue = store.queue(b"T", 0)
    for used, code in [(0.9, 1), (0.895, 1), (0.88, 0), (0.899, 0), (0.95, 1)]:
        files.used_ratio = used
        sweep(store)
        assert store.append(draft) == code, used
    assert contents(store, draft.queue)
    store.close()


def test_a_protected_position_holds_back_age_but_not_force(tmp_path: Path) -> None:
    store, files = aged(tmp_path, at_hour(4), 100)
    retention = store.upkeep.retention
    retention.protected = lambda: 3 * SMALL.mapped_file_size_commit_log
    sweep(store)
    assert store.min_position == 3 * SMALL.mapped_file_size_commit_log
    assert retention.deleted == {"age": 3, "disk": 0, "missing": 0}
    files.used_ratio = 0.86
    sweep(store)
    assert store.min_position > 3 * SMALL.mapped_file_size_commit_log
    assert retention.deleted["age"] == 3
    assert retention.deleted["disk"] == 10
    store.close()


def test_what_was_deleted_early_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store, files = aged(tmp_path, at_hour(4), 100)
    caplog.set_level("INFO", "penstock.log")
    sweep(store)
    assert [(line.levelname, line.args) for line in caplog.records] == [("INFO", (10, store.min_position))]
    caplog.clear()
    files.used_ratio = 0.86
    for segment in store.log.file.segments:
        os.utime(segment.path)
    sweep(store)
    assert [(line.levelname, line.args) for line in caplog.records] == [("WARNING", (3, store.min_position, 86.0))]
    assert store.upkeep.retention.deleted == {"age": 10, "disk": 3, "missing": 0}
    store.close()


def test_a_segment_that_somebody_deleted_by_hand_goes_and_the_others_in_their_time(tmp_path: Path) -> None:
    store, files = aged(tmp_path, at_hour(4), 71)
    for segment in store.log.file.segments[:2]:
        segment.path.unlink()
    store.refuse(status.DISK_FULL)
    files.used_ratio = 0.8
    sweep(store)
    assert store.refusal == status.OK
    assert store.upkeep.retention.deleted == {"age": 0, "disk": 0, "missing": 2}
    assert store.min_position == 2 * SMALL.mapped_file_size_commit_log
    store.clock.advance(2 * HOUR)
    sweep(store)
    assert store.upkeep.retention.deleted == {"age": 10, "disk": 0, "missing": 2}
    queue = store.queue(b"T", 0)
    assert [offset for offset, _ in contents(store, queue)] == list(range(queue.min_offset, queue.max_offset))
    store.close()


def test_a_folder_that_was_moved_away_deletes_nothing(tmp_path: Path) -> None:
    store, _ = aged(tmp_path, at_hour(4), 100)
    (tmp_path / "commitlog").rename(tmp_path / "away")
    sweep(store)
    assert store.min_position == 0
    (tmp_path / "away").rename(tmp_path / "commitlog")
    sweep(store)
    assert store.upkeep.retention.deleted == {"age": 10, "disk": 0, "missing": 0}
    store.close()


def test_a_clock_that_jumped_deletes_nothing_for_a_day(tmp_path: Path) -> None:
    clock = at_hour(4)
    store, files = aged(tmp_path, clock, 1)
    clock.jump(24 * 365 * HOUR)
    sweep(store)
    assert len(store.log.file.segments) == 14
    files.used_ratio = 0.86
    sweep(store)
    assert len(store.log.file.segments) == 4  # the disk is a fact
    store.close()


@pytest.mark.parametrize("how", ["set back", "set ahead", "its master's is followed"])
def test_a_machines_clock_that_is_wrong_makes_no_file_old(
    tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Files have their times by the machine's clock, and the time that a broker tells goes on as if it had not been set."""
    clock, years = at_hour(4), 24 * 3_652 * HOUR
    store, _ = aged(tmp_path, clock, 1)
    began, steady = clock.now_ms(), clock.monotonic_ms()
    if how == "its master's is followed":
        clock.follow(began + years)
        began = clock.now_ms()
    else:
        clock.jump(years if how == "set ahead" else -years)
    for segment in store.log.file.segments[7:]:  # written since
        os.utime(segment.path, (clock.machine_ms() / 1000, clock.machine_ms() / 1000))
    kept = []
    for _ in range(4):  # days, each at the hour when segments are deleted
        store.tick(began + clock.monotonic_ms() - steady, clock.monotonic_ms())
        kept.append(len(store.log.file.segments))
        clock.advance(24 * HOUR)
    assert kept[:3] == [14, 14, 14]
    assert kept[3] == (14 if how == "set back" else 7)
    told = [line for line in caplog.messages if "the machine's clock is another than the broker's" in line]
    ahead_ms = years if how == "set ahead" else -years
    assert [line.rpartition("ahead_ms=")[2] for line in told] == [str(ahead_ms)]
    store.close()


@pytest.mark.parametrize(("off_hours", "kept"), [(24 * 3_652, 14), (25, 14), (23, 4)])
def test_a_start_long_after_the_last_record_deletes_nothing_by_age_for_a_day(
    tmp_path: Path, off_hours: int, kept: int
) -> None:
    """It was off for so long, or its clock is wrong: nobody can tell."""
    clock = at_hour(4)
    store, files = aged(tmp_path, clock, 100 if off_hours < 24 else 1)
    store.close(clean=False)
    clock.jump(off_hours * HOUR)
    store = make(
        tmp_path,
        files=files,
        clock=clock,
        options=replace(SMALL, delete_when=time.localtime(clock.now_ms() / 1000).tm_hour),
    )
    store.open()
    when = clock.now_ms() / 1000 - off_hours * 3600 - 75 * 3600
    for segment in store.log.file.segments:
        os.utime(segment.path, (when, when))
    sweep(store)
    assert len(store.log.file.segments) == kept
    clock.advance(24 * HOUR)
    sweep(store)
    assert len(store.log.file.segments) < 14
    store.close()


@pytest.mark.parametrize(("off_hours", "kept"), [(24 * 3_652, True), (23, False)])
def test_what_was_set_aside_is_kept_for_a_day_by_a_start_long_after_the_last_record(
    tmp_path: Path, off_hours: int, kept: bool
) -> None:
    clock = at_hour(5)
    store, _ = aged(tmp_path, clock, 1, segments=2)
    found = tmp_path / "lost+found" / "tail-0"
    found.parent.mkdir()
    found.write_bytes(b"acknowledged")
    store.close()
    clock.jump(off_hours * HOUR)
    when = clock.now_ms() / 1000 - max(off_hours, 73) * 3600
    os.utime(found, (when, when))
    store.open()
    sweep(store)
    assert found.exists() == kept
    clock.advance(25 * HOUR)
    sweep(store)
    assert not found.exists()
    store.close()


@pytest.mark.parametrize("later", [True, False])
def test_what_a_disk_refuses_to_delete_keeps_what_lies_behind_it(
    tmp_path: Path, later: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a hole in the numbers the next start would not know what is behind the hole."""
    store, _ = aged(tmp_path, at_hour(4), 73)
    oldest, third = (store.log.file.segments[n].path for n in (0, 2))
    unlink = LyingFiles.unlink
    refused = {oldest, third}

    def refuse(self: LyingFiles, path: Path) -> None:
        if path in refused:
            raise StoreError(f"{path}: Input/output error (by order of the test)")
        unlink(self, path)

    monkeypatch.setattr(LyingFiles, "unlink", refuse)
    sweep(store)
    names = sorted(path.name for path in (tmp_path / "commitlog").iterdir())
    assert oldest.name in names
    size = store.log.file.size
    assert [int(name) for name in names] == [n * size for n in range(len(names))]  # no hole
    if later:
        refused.remove(oldest)
        store.clock.advance(DOOMED_RETRY_MS)
        sweep(store)
        assert min(path.name for path in (tmp_path / "commitlog").iterdir()) == third.name
    refused.clear()
    store.close()
    again = make(tmp_path, files=LyingFiles(tmp_path), clock=at_hour(9), options=replace(SMALL, delete_when=4))
    report = again.open()
    assert report.damage == []
    assert report.clean
    again.close()
