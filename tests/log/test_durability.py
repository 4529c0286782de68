"""When a flush starts, one at a time, and what its failure ends."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from store_parts import SMALL, make, put

from penstock import words
from penstock.disk.files import Files
from penstock.disk.job import Job, run_now
from penstock.errors import NoDescriptor, StoreError
from penstock.log.durability import Durability
from penstock.log.store import LogStore


@pytest.fixture
def store(tmp_path: Path) -> LogStore:
    store = make(tmp_path)
    store.open()
    return store


def test_a_flush_starts_so_long_after_the_oldest_byte(store: LogStore) -> None:
    durability = Durability(store.log, 500, 1_000)
    assert durability.take(0) is None
    put(store, b"x")
    assert durability.take(10) is None
    assert durability.due_ms() == 510
    assert (durability.blocked(1_010), durability.blocked(1_011)) == (False, True)
    job = durability.take(510)
    assert job is not None
    assert durability.take(10_000) is None  # one at a time
    run_now([job], 520)
    assert (durability.flushed, durability.blocked(99_999), durability.due_ms()) == (store.log.end, False, words.FAR_MS)


def test_at_once_when_somebody_waits(store: LogStore) -> None:
    durability = Durability(store.log, 500, 1_000)
    put(store, b"x")
    durability.look(10)
    durability.wanted = True
    assert durability.due_ms() == 0
    job = durability.take(10)
    assert job is not None
    put(store, b"y")
    flushed = store.log.end
    run_now([job], 20)
    assert durability.flushed < flushed  # what came meanwhile is the next one's
    assert durability.due_ms() == 510


def test_the_first_failure_is_final(store: LogStore) -> None:
    durability = Durability(store.log, 500, 1_000)
    put(store, b"x")
    job = durability.start(0)
    job.finish(StoreError("input/output error"), 5)
    assert isinstance(durability.error, StoreError)
    assert (durability.take(10_000), durability.blocked(0)) == (None, True)


class Watched(Files):
    """Which files were flushed."""

    def __init__(self) -> None:
        self.flushed: list[str] = []

    def datasync(self, fd: int) -> None:
        super().datasync(fd)
        self.flushed.append(Path(os.readlink(f"/proc/self/fd/{fd}")).parent.name)


def test_who_waits_waits_for_the_log_and_the_sums_follow(tmp_path: Path) -> None:
    files = Watched()
    store = make(tmp_path, files=files)
    store.open()
    durability = store.durability

    def flush(mono_ms: int, *, wanted: bool) -> list[str]:
        durability.look(mono_ms)
        durability.wanted = wanted
        files.flushed.clear()
        job = durability.take(mono_ms)
        if job is not None:
            run_now([job], mono_ms)
        return files.flushed

    put(store, b"x")
    assert flush(1_000, wanted=True) == ["commitlog"]
    assert (durability.flushed, durability.summed, durability.due_ms()) == (store.end_position, 0, 1_500)
    put(store, b"y")
    assert flush(1_400, wanted=True) == ["commitlog"]
    assert flush(1_499, wanted=False) == []
    assert flush(1_500, wanted=False) == ["commitlog", "checksums"]
    assert (durability.summed, durability.due_ms()) == (store.end_position, words.FAR_MS)
    put(store, b"z")
    assert flush(1_600, wanted=True) == ["commitlog"]
    put(store, b"a steady stream")
    assert flush(2_100, wanted=True) == ["commitlog", "checksums"]  # they are not put off for ever
    put(store, b"odd", properties=b"k\x01a\0b")
    assert flush(2_200, wanted=True) == ["commitlog", "checksums"]
    put(store, b"z")
    assert flush(2_300, wanted=True) == ["commitlog"]
    store.close()


def test_a_checkpoint_vouches_for_what_has_its_sums(tmp_path: Path) -> None:
    store = make(tmp_path)
    store.open()
    upkeep = store.upkeep
    for n in range(20):
        put(store, b"m%d" % n)
        store.want_flush()
        mono_ms = store.clock.advance(100) or store.clock.monotonic_ms()
        run_now(store.take_jobs(mono_ms), mono_ms)
        assert store.flushed_position == store.end_position
        run_now(store.take_jobs(mono_ms + 1), mono_ms)
        assert upkeep.checkpoint.value is not None
        assert upkeep.checkpoint.value.durable <= store.durability.summed
    assert 0 < upkeep.checkpoint.value.durable < store.end_position
    store.close()


def test_jobs_are_finished_with_what_they_raised() -> None:
    told: list[tuple[bool, int]] = []

    def fails() -> None:
        raise StoreError("no")

    run_now(
        [
            Job("good", lambda: None, lambda error, ms: told.append((error is None, ms))),
            Job("bad", fails, lambda error, ms: told.append((error is None, ms))),
            Job("untold", lambda: None),
        ],
        7,
    )
    assert told == [(True, 7), (False, 7)]


class Scarce(Files):
    """No segment can be opened for a while."""

    none_left = False

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> int:
        if self.none_left and path.parent.name == "commitlog":
            raise NoDescriptor(f"{path}: Too many open files")
        return super().open(path, create=create, writable=writable)


def test_a_flush_that_finds_no_descriptor_waits_for_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing was done to the file: it is no failed flush. Nobody is told that it is flushed before it is."""
    files = Scarce()
    store = make(tmp_path, files=files)
    store.open()
    durability = store.durability
    put(store, b"x")
    segment = store.log.file.at(0)
    assert segment is not None
    segment.close()  # as one of more than eight that are not flushed
    files.none_left = True
    store.want_flush()
    now_ms = store.clock.monotonic_ms()
    for mono_ms in (now_ms, now_ms + 200, now_ms + 400):
        jobs = store.upkeep.take_flush(mono_ms)
        assert len(jobs) == 1
        run_now(jobs, mono_ms)
        assert (durability.flushed, durability.error, store.healthy) == (0, None, True)
        assert durability.due_ms() == mono_ms + 200
        assert store.upkeep.take_flush(mono_ms + 199) == []
    assert caplog.text.count("cannot be opened") == 1
    put(store, b"y")
    with pytest.raises(StoreError, match="cannot be opened"):
        store.upkeep.close_clean()
    files.none_left = False
    run_now(store.upkeep.take_flush(now_ms + 600), now_ms + 600)
    assert (durability.flushed, durability.error) == (store.end_position, None)
    store.close()


class ToldOnce(Files):
    """As Linux: a write that failed is told of once at each descriptor that was open, and at a new one while nobody knows."""

    def __init__(self) -> None:
        self._ignorant: set[int] = set()
        self._open: set[int] = set()
        self._known = True

    def fail(self) -> None:
        """The kernel could not write out a page."""
        self._ignorant, self._known = set(self._open), False

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> int:
        fd = super().open(path, create=create, writable=writable)
        if path.parent.name == "commitlog":
            self._open.add(fd)
            if not self._known:
                self._ignorant.add(fd)
        return fd

    def close(self, fd: int) -> None:
        self._open.discard(fd)
        self._ignorant.discard(fd)
        super().close(fd)

    def datasync(self, fd: int) -> None:
        if fd in self._ignorant:
            self._ignorant.discard(fd)
            self._known = True
            raise StoreError("Input/output error (by order of the test)")
        super().datasync(fd)


@pytest.mark.parametrize("again", [False, True])
def test_a_flush_ahead_takes_no_failure_from_those_who_wait(tmp_path: Path, again: bool) -> None:
    """Pages are made ahead, and flushed with whatever was written before them."""
    files = ToldOnce()
    options = msgspec.structs.replace(SMALL, mapped_file_size_commit_log=1 << 23, prefault_bytes=1 << 20)
    store = make(tmp_path, files=files, options=options)
    store.open()
    put(store, b"first")
    if again:
        store.close()
        store = make(tmp_path, files=files, options=options)
        store.open()
    preparer = store.upkeep.preparer
    assert preparer is not None
    for _ in range(2):
        put(store, bytes(100_000))
        files.fail()
        job = preparer.take(0)
        assert job is not None
        run_now([job], 0)
    run_now([store.durability.start(0)], 0)
    assert store.durability.error is not None
    assert store.durability.flushed < store.end_position
    store.close(clean=False)
