"""Sound copies of damaged records: what is taken and what is not, what is written in which order, and who waits."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from isal import isal_zlib
from store_parts import bodies, make, put, snapshot, work

from penstock.disk.files import Files
from penstock.errors import DiskFull, StoreError
from penstock.log import sidelayout, status
from penstock.log.follow import Feeder, Follower
from penstock.log.reading import ReadResult
from penstock.log.repair import RETRY_MS, WAIT_MS, Repairs
from penstock.log.store import LogStore

SIZE = 1 << 14
COUNT = 40


def filled(folder: Path) -> list[tuple[int, int]]:
    """A log of two segments and more, closed; (position, size) of its records."""
    store = make(folder)
    store.open()
    for number in range(COUNT):
        put(store, b"%d" % number * 300)
    work(store)
    places = [store.queue(b"T", 0).entry(n)[:2] for n in range(COUNT)]  # type: ignore[index]
    store.close()
    return places


def flip(folder: Path, position: int, mask: int = 1) -> None:
    change(folder / "commitlog" / f"{position // SIZE * SIZE:020d}", position % SIZE, mask)


def change(path: Path, at: int, mask: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= mask
    path.write_bytes(data)


def opened(folder: Path, files: Files | None = None) -> tuple[LogStore, Repairs]:
    store = make(folder) if files is None else make(folder, files=files)
    store.open()
    repairs = Repairs(store, hopeful=True)
    repairs.load()
    store.repair_by(repairs)
    return store, repairs


def other(tmp_path: Path) -> tuple[LogStore, Repairs]:
    """Another node, with the same log as it was."""
    return opened(snapshot(tmp_path / "a", tmp_path / "b"))


def offset_of(store: LogStore, offset: int) -> tuple[int, int]:
    """(status, next offset) of a read."""
    result = ReadResult()
    return store.read(store.queue(b"T", 0), offset, 32, 1 << 20, -1, None, result), result.next_offset


def mend(store: LogStore, repairs: Repairs) -> None:
    """Run the job there is."""
    job = repairs.take_job()
    assert job is not None
    error = None
    try:
        job.run()
    except StoreError as failed:
        error = failed
    job.finish(error, store.clock.monotonic_ms())


def exchange(one: Repairs, peer: Repairs) -> None:
    """All that is wanted, asked for and given once."""
    for want in list(one.due(1 << 60)):
        record = peer.give(want.position, one.told(want.position)[1])
        if record:
            one.given(want.position, record)
        else:
            one.cannot(want.position)


def damage(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "damage.jsonl").read_text().splitlines()]


def test_a_reader_waits_gets_the_copy_and_the_file_says_so(tmp_path: Path) -> None:
    places = filled(tmp_path / "a")
    peer_store, peer = other(tmp_path)
    flip(tmp_path / "a", places[3][0] + 200)
    store, repairs = opened(tmp_path / "a")
    work(store)
    assert offset_of(store, 0) == (status.FOUND, 3)
    assert offset_of(store, 3) == (status.OFFSET_OVERFLOW_ONE, 3)  # a pull is held, as at the end
    exchange(repairs, peer)
    mend(store, repairs)
    assert bodies(store)[:5] == [b"%d" % n * 300 for n in range(5)]
    assert (repairs.repaired, repairs.wanted) == (1, {})
    assert [(line["position"], line["repaired"]) for line in damage(tmp_path / "a")] == [(places[3][0], True)]
    store.close()
    peer_store.close()
    for name in ("commitlog", "checksums"):
        assert (tmp_path / "a" / name / f"{0:020d}").read_bytes() == (tmp_path / "b" / name / f"{0:020d}").read_bytes()


def test_a_broker_without_a_set_waits_for_nobody(tmp_path: Path) -> None:
    places = filled(tmp_path / "a")
    flip(tmp_path / "a", places[3][0] + 200)
    store = make(tmp_path / "a")
    store.open()
    work(store)
    repairs = Repairs(store, hopeful=False)
    store.repair_by(repairs)
    assert offset_of(store, 3)[0] == status.FOUND
    repairs.meet(1)
    assert offset_of(store, 3)[0] == status.OFFSET_OVERFLOW_ONE
    store.close()


def test_readers_go_on_when_their_time_is_over_and_the_copy_is_taken_all_the_same(tmp_path: Path) -> None:
    places = filled(tmp_path / "a")
    peer_store, peer = other(tmp_path)
    flip(tmp_path / "a", places[3][0] + 200)
    store, repairs = opened(tmp_path / "a")
    work(store)
    queue = store.queue(b"T", 0)
    queue.watch()
    store.take_arrived()
    assert offset_of(store, 3)[0] == status.OFFSET_OVERFLOW_ONE
    store.clock.advance(WAIT_MS)
    repairs.tick(store.clock.monotonic_ms())
    assert store.take_arrived() == [queue]  # who waits is told
    assert offset_of(store, 3)[0] == status.FOUND
    exchange(repairs, peer)
    mend(store, repairs)
    assert bodies(store)[3] == b"3" * 300
    store.close()
    peer_store.close()


def test_both_are_damaged(tmp_path: Path) -> None:
    places = filled(tmp_path / "a")
    snapshot(tmp_path / "a", tmp_path / "b")
    flip(tmp_path / "a", places[3][0] + 200)
    flip(tmp_path / "b", places[3][0] + 250)
    (store, repairs), (peer_store, peer) = opened(tmp_path / "a"), opened(tmp_path / "b")
    work(store)
    repairs.meet(1)
    assert offset_of(store, 3)[0] == status.OFFSET_OVERFLOW_ONE
    exchange(repairs, peer)
    assert repairs.take_job() is None
    assert offset_of(store, 3)[0] == status.FOUND  # nobody is waited for who has nothing
    assert list(peer.wanted) == [places[3][0]]  # it looks for one, too
    store.close()
    peer_store.close()


def test_a_copy_that_the_sum_here_does_not_hold_for_is_refused(tmp_path: Path) -> None:
    """An enemy's, or of a log that differs: never against a sum that holds."""
    places = filled(tmp_path / "a")
    peer_store, peer = other(tmp_path)
    position, size = places[3]
    sound = peer.give(position, 0)
    flip(tmp_path / "a", position + 200)
    store, repairs = opened(tmp_path / "a")
    repairs.found(position)
    before = store.log.bytes_at(position, size)
    forged = bytearray(sound)
    forged[-50] ^= 32
    assert not repairs.given(position, bytes(forged))
    assert not repairs.given(position, peer.give(places[4][0], 0))
    assert not repairs.given(position, sound[:-1])
    assert not repairs.given(position, b"")
    assert repairs.given(places[5][0], peer.give(places[5][0], 0))  # sound here, wanted by nobody
    assert repairs.take_job() is None
    assert store.log.bytes_at(position, size) == before
    store.close()
    peer_store.close()


def test_a_peer_whose_sum_differs_gives_nothing(tmp_path: Path) -> None:
    places = filled(tmp_path / "a")
    store, repairs = opened(tmp_path / "a")
    position, size = places[3]
    crc = isal_zlib.crc32(store.log.bytes_at(position, size))
    assert repairs.give(position, crc)
    assert repairs.give(position, 0)
    assert repairs.give(position, crc ^ 1)  # one bit: theirs is damaged
    assert not repairs.give(position, crc ^ 5)
    for nonsense in (-1, position + 1, store.log.end, 1 << 60):
        assert not repairs.give(nonsense, 0)
    assert not repairs.wanted
    store.close()


def test_given_twice_is_written_once(tmp_path: Path) -> None:
    places = filled(tmp_path / "a")
    peer_store, peer = other(tmp_path)
    flip(tmp_path / "a", places[3][0] + 200)
    store, repairs = opened(tmp_path / "a")
    repairs.found(places[3][0])
    record = peer.give(places[3][0], 0)
    assert repairs.given(places[3][0], record)
    assert repairs.given(places[3][0], record)
    mend(store, repairs)
    assert repairs.given(places[3][0], record)
    assert repairs.take_job() is None
    assert repairs.repaired == 1
    store.close()
    peer_store.close()


def sums(folder: Path, position: int) -> Path:
    return folder / "checksums" / f"{position // SIZE * SIZE:020d}"


@pytest.mark.parametrize(
    ("at", "mask"), [(4, 8), (7, 255), (3, 4), (2, 1)], ids=["one bit", "eight bits", "its place", "far away"]
)
def test_a_damaged_sum_is_put_right(tmp_path: Path, at: int, mask: int) -> None:
    places = filled(tmp_path / "a")
    peer_store, peer = other(tmp_path)
    change(sums(tmp_path / "a", 0), sidelayout.HEAD_BYTES + 3 * sidelayout.ENTRY_BYTES + at, mask)
    store, repairs = opened(tmp_path / "a")
    work(store)
    for offset in range(8):
        offset_of(store, offset)
    repairs.tick(store.clock.monotonic_ms())
    assert list(repairs.wanted) == [places[3][0]]
    exchange(repairs, peer)
    mend(store, repairs)
    assert bodies(store)[:8] == [b"%d" % n * 300 for n in range(8)]
    store.close()
    peer_store.close()
    assert sums(tmp_path / "a", 0).read_bytes() == sums(tmp_path / "b", 0).read_bytes()


def test_zeros_over_several_records_and_a_start_that_lost_their_places(tmp_path: Path) -> None:
    """A killed process, whose next start derives the queues anew: what it could not find is there again."""
    places = filled(tmp_path / "a")
    peer_store, peer = other(tmp_path)
    first, last = places[20][0], sum(places[23])
    path = tmp_path / "a" / "commitlog" / f"{first // SIZE * SIZE:020d}"
    data = bytearray(path.read_bytes())
    data[first % SIZE : last % SIZE] = bytes(last - first)
    path.write_bytes(data)
    for name in ("checkpoint", "live0", "live1"):
        (tmp_path / "a" / name).unlink(missing_ok=True)
    shutil.rmtree(tmp_path / "a" / "consumequeue")
    store, repairs = opened(tmp_path / "a")
    work(store)
    assert list(repairs.wanted) == [place for place, _ in places[20:24]]
    assert offset_of(store, 20) == (status.OFFSET_OVERFLOW_ONE, 20)
    exchange(repairs, peer)
    mend(store, repairs)
    assert bodies(store) == [b"%d" % n * 300 for n in range(COUNT)]
    assert all(line["repaired"] for line in damage(tmp_path / "a"))
    store.close()
    again = make(tmp_path / "a")
    assert again.open().clean
    assert bodies(again) == [b"%d" % n * 300 for n in range(COUNT)]
    again.close()
    peer_store.close()


class Failing(Files):
    """A disk that takes no writes at a moment, or tears one."""

    def __init__(self) -> None:
        self.fails: type[StoreError] | None = None
        self.torn = False

    def write(self, fd: int, at: int, data: bytes | memoryview) -> None:
        if self.fails is not None:
            raise self.fails("not now")
        if self.torn:
            super().write(fd, at, bytes(data)[: len(data) // 2])
            raise StoreError("gone")
        super().write(fd, at, data)


@pytest.mark.parametrize("error", [StoreError, DiskFull])
def test_a_disk_that_is_full_or_read_only(tmp_path: Path, error: type[StoreError]) -> None:
    places = filled(tmp_path / "a")
    peer_store, peer = other(tmp_path)
    flip(tmp_path / "a", places[3][0] + 200)
    files = Failing()
    store, repairs = opened(tmp_path / "a", files)
    repairs.found(places[3][0])
    files.fails = error
    exchange(repairs, peer)
    mend(store, repairs)
    assert store.healthy
    now_ms = store.clock.monotonic_ms()
    assert not list(repairs.due(now_ms + RETRY_MS - 1))  # nobody is asked again and again
    files.fails = None
    assert list(repairs.due(now_ms + RETRY_MS))
    exchange(repairs, peer)
    mend(store, repairs)
    assert repairs.repaired == 1
    store.close()
    peer_store.close()


def test_killed_in_the_middle_of_the_write(tmp_path: Path) -> None:
    """Half of the copy is there: the record does not hold, as before, and is asked for again."""
    places = filled(tmp_path / "a")
    peer_store, peer = other(tmp_path)
    flip(tmp_path / "a", places[3][0] + 20)
    flip(tmp_path / "a", places[3][0] + places[3][1] - 20)
    files = Failing()
    store, repairs = opened(tmp_path / "a", files)
    repairs.found(places[3][0])
    exchange(repairs, peer)
    files.torn = True
    job = repairs.take_job()
    assert job is not None
    with pytest.raises(StoreError):
        job.run()
    killed = snapshot(tmp_path / "a", tmp_path / "killed")
    again, wanted = opened(killed)
    work(again)
    assert offset_of(again, 3) == (status.OFFSET_OVERFLOW_ONE, 3)
    exchange(wanted, peer)
    mend(again, wanted)
    assert bodies(again)[3] == b"3" * 300
    again.close()
    store.close(clean=False)
    peer_store.close()


def test_bytes_are_written_and_flushed_before_a_sum_vouches_for_them(tmp_path: Path) -> None:
    places = filled(tmp_path / "a")
    peer_store, peer = other(tmp_path)
    flip(tmp_path / "a", places[3][0] + 200)
    change(sums(tmp_path / "a", 0), sidelayout.HEAD_BYTES + 3 * sidelayout.ENTRY_BYTES + 4, 8)
    done: list[str] = []

    class Watched(Files):
        def write(self, fd: int, at: int, data: bytes | memoryview) -> None:
            done.append(f"write {len(data)}")
            super().write(fd, at, data)

        def datasync(self, fd: int) -> None:
            done.append("flush")
            super().datasync(fd)

    store, repairs = opened(tmp_path / "a", Watched())
    repairs.found(places[3][0])
    exchange(repairs, peer)
    job = repairs.take_job()
    assert job is not None
    done.clear()
    job.run()
    assert done == [f"write {places[3][1]}", "flush", f"write {sidelayout.ENTRY_BYTES}", "flush"]
    job.finish(None, store.clock.monotonic_ms())
    assert repairs.repaired == 1
    store.close()
    peer_store.close()


def test_a_segment_that_retention_has_removed(tmp_path: Path) -> None:
    places = filled(tmp_path / "a")
    peer_store, peer = other(tmp_path)
    for number in (3, 4):
        flip(tmp_path / "a", places[number][0] + 200)
    store, repairs = opened(tmp_path / "a")
    repairs.found(places[3][0])
    exchange(repairs, peer)
    job = repairs.take_job()
    assert job is not None
    repairs.found(places[4][0])
    dropped = store.log.file.segments[0].path
    store.log.file.drop_first()
    dropped.unlink()
    store.log.sums.drop(0)
    with pytest.raises(StoreError):
        job.run()
    assert not dropped.exists()
    job.finish(StoreError("no such file"), store.clock.monotonic_ms())
    repairs.tick(store.clock.monotonic_ms())
    assert not repairs.wanted
    assert repairs.given(places[4][0], peer.give(places[4][0], 0))
    assert repairs.take_job() is None
    store.close(clean=False)
    peer_store.close()


def test_a_record_that_came_damaged_gets_its_place_in_the_queue(tmp_path: Path) -> None:
    """A slave copies what is damaged at its master as it is; a third node has it."""
    places = filled(tmp_path / "a")
    third_store, third = other(tmp_path)
    flip(tmp_path / "a", places[3][0] + 200)
    master, wanted = opened(tmp_path / "a")
    slave = make(tmp_path / "c")
    slave.follow(True)
    slave.open()
    repairs = Repairs(slave, hopeful=True)
    slave.repair_by(repairs)
    feeder, follower = Feeder(master, 0), Follower(slave)
    follower.begin_at(0)
    while feeder.next(2_000):
        block = bytearray(feeder.block())
        assert follower.take(block, 0, feeder.count, len(block), feeder.damaged) == status.OK
        if feeder.last:
            follower.turn()
    work(slave)
    assert list(wanted.wanted) == list(repairs.wanted) == [places[3][0]]
    exchange(repairs, wanted)
    assert repairs.take_job() is None
    exchange(repairs, third)
    mend(slave, repairs)
    work(slave)
    assert bodies(slave) == [b"%d" % n * 300 for n in range(COUNT)]
    for store in (master, slave, third_store):
        store.close()
