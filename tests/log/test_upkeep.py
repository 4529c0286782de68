"""Upkeep: jobs by their names, checkpoints that follow the flush, and what a clean stop leaves on the disk."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from store_parts import SMALL, make, put, snapshot, work

from penstock.disk.files import TOGETHER_MIN, Files
from penstock.disk.job import Job, run_now
from penstock.errors import DiskFull, NoDescriptor, StoreError
from penstock.log import status
from penstock.log.checkpoint import CheckpointFile
from penstock.log.reading import ReadResult
from penstock.log.store import LogStore
from penstock.log.subscriber import Subscriber
from penstock.log.upkeep import Upkeep


def test_a_checkpoint_follows_the_flush(tmp_path: Path) -> None:
    store = make(tmp_path)
    store.open()
    assert isinstance(store.upkeep, Upkeep)
    put(store, b"x")
    before = CheckpointFile(tmp_path / "checkpoint", Files()).load()
    assert before is None or before.durable < store.end_position
    work(store)
    value = CheckpointFile(tmp_path / "checkpoint", Files()).load()
    assert value is not None
    assert (value.durable, value.derived, value.clean) == (store.end_position, store.end_position, False)
    store.close()
    value = CheckpointFile(tmp_path / "checkpoint", Files()).load()
    assert value is not None
    assert value.clean


def test_a_running_store_is_marked_and_a_stopped_one_is_not(tmp_path: Path) -> None:
    store = make(tmp_path)
    store.open()
    assert {"abort", "live0", "live1", "lock"} <= {path.name for path in tmp_path.iterdir()}
    store.close()
    assert {"abort", "live0", "live1"}.isdisjoint(path.name for path in tmp_path.iterdir())
    put_again = make(tmp_path)
    assert put_again.open().clean
    put_again.close()


def test_damage_is_written_down_line_by_line(tmp_path: Path) -> None:
    store = make(tmp_path)
    store.open()
    for position in (7, 8):
        store.upkeep.write_damage({"position": position, "why": "a test"})
    lines = [json.loads(line) for line in (tmp_path / "damage.jsonl").read_text().splitlines()]
    assert [line["position"] for line in lines] == [7, 8]
    store.close()


class Counting(Files):
    """How often `damage.jsonl` is opened."""

    times = 0

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> int:
        self.times += path.name == "damage.jsonl"
        return super().open(path, create=create, writable=writable)


def test_a_part_of_the_log_that_is_lost_is_written_down_at_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The file was read and written for each message: 4,000 that were lost stopped a broker for a minute."""
    files = Counting()
    store = make(tmp_path, files=files)
    store.open()
    for n in range(100):
        put(store, b"m%d" % n)
    queue, result = store.queue(b"T", 0), ReadResult()
    for n in range(20, 60):
        physical, size, _ = queue.entry(n) or (0, 0, 0)
        segment = store.log.file.at(physical)
        assert segment is not None
        at = physical - segment.first
        segment.map[at : at + size] = bytes(size)
    for _ in range(2):  # who comes across them again adds nothing
        for n in range(100):
            store.read(queue, n, 1, 1 << 20, -1, None, result)
        work(store)
        lines = [json.loads(line) for line in (tmp_path / "damage.jsonl").read_bytes().splitlines()]
        assert [line["queueOffset"] for line in lines] == list(range(20, 60))
    assert files.times == 1
    told = [message for message in caplog.messages if "damaged messages" in message]
    assert [message[:80] for message in told] == [
        "readers came across damaged messages: 40, the first at offset 20 of queue 0 of topic T"[:80]
    ]
    store.close()


class OneByOne(Files):
    """Which queues are flushed by themselves; it calls `then` behind the third, and can flush all at once on any file system."""

    def __init__(self) -> None:
        self.alone: list[Path] = []
        self.together = 0
        self.then: Callable[[], None] = lambda: None

    def datasync(self, fd: int) -> None:
        super().datasync(fd)
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))
        if "consumequeue" in path.parts:
            self.alone.append(path)
            if len(self.alone) == 3:
                self.then()

    def sync_all(self, fd: int) -> bool:
        os.sync()
        self.together += 1
        return True


def test_many_queues_are_flushed_together_when_a_store_is_closed(tmp_path: Path) -> None:
    """A planned change of master waited for a thousand flushes, one by one: over a second."""
    files = OneByOne()
    store = make(tmp_path, files=files)
    store.open()
    for n in range(3 * TOGETHER_MIN):
        put(store, b"x", queue_id=n)
    store.close()
    assert (len(files.alone), files.together) == (1, 1)  # one flush behind it, of the disk's cache
    again = make(tmp_path)
    assert again.open().clean
    again.close()


def test_a_checkpoint_under_way_leaves_the_rest_to_the_close(tmp_path: Path) -> None:
    """It vouches for nothing that it has not flushed, and the next start finds all of it."""
    files = OneByOne()
    store = make(tmp_path, files=files)
    store.open()
    put(store, b"x", topic=b"flushed")
    work(store)
    files.alone.clear()
    for n in range(3 * TOGETHER_MIN):
        put(store, b"x", queue_id=n)
    files.then = store.upkeep.hasten
    work(store)
    assert len(files.alone) == 3
    assert {queue.topic for queue in store.dirty_queues} == {b"T"}  # what is flushed is not flushed once more
    value = CheckpointFile(tmp_path / "checkpoint", Files()).load()
    assert value is not None
    assert value.derived < store.end_position
    killed = make(snapshot(tmp_path, tmp_path.with_name("killed")))
    assert not killed.open().clean
    store.close()
    assert (len(files.alone), files.together) == (4, 1)
    again = make(tmp_path)
    assert again.open().clean
    for each in (killed, again):
        assert [each.queue(b"T", n).max_offset for n in range(3 * TOGETHER_MIN)] == [1] * 3 * TOGETHER_MIN
        each.close()


class ThinDisk(Files):
    """Flushes of the queues say that there is no room for what was written long ago, once."""

    def __init__(self) -> None:
        self.queues: set[int] = set()
        self.full = False

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> int:
        fd = super().open(path, create=create, writable=writable)
        (self.queues.add if "consumequeue" in path.parts else self.queues.discard)(fd)
        return fd

    def datasync(self, fd: int) -> None:
        if self.full and fd in self.queues:
            self.full = False
            raise DiskFull("no room for a flush")
        super().datasync(fd)


def test_a_flush_without_room_is_a_failed_flush(tmp_path: Path) -> None:
    """A second one would succeed, for the kernel has forgotten the pages; a checkpoint behind it would be believed."""
    files = ThinDisk()
    store = make(tmp_path, files=files)
    store.open()
    put(store, b"x")
    work(store)
    file = CheckpointFile(tmp_path / "checkpoint", Files())
    before = file.load()
    assert before is not None
    assert before.derived == store.end_position
    files.full = True
    put(store, b"y")
    work(store, 10)
    assert not files.full
    after = file.load()
    assert after is not None
    assert after.derived == before.derived < store.end_position
    assert not store.healthy
    store.close(clean=False)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(
    "offset", [3, 20, 70]
)  # within the first file of a queue, where the second begins, in the fourth
def test_a_queue_of_a_copy_goes_on_where_it_was_told(tmp_path: Path, offset: int, clean: bool) -> None:
    """However often a copy starts anew, which sheds what looks like offsets that were left out."""
    store = make(tmp_path)
    store.follow(True)
    store.open()
    store.begin_queues({(b"T", 0): offset, (b"T", 1): 0})
    work(store)
    for _ in range(3):
        assert store.queue(b"T", 0).max_offset == store.queue(b"T", 0).min_offset == offset
        store.close(clean)
        store = make(tmp_path)
        store.follow(True)
        store.open()
    store.close(clean)
    store = make(tmp_path)
    store.open()
    assert put(store, b"x").queue_offset == offset
    store.close()


@pytest.mark.parametrize("clean", [True, False])
def test_a_queue_whose_own_messages_lead_that_far_is_not_told_where_to_go_on(tmp_path: Path, clean: bool) -> None:
    """A tail of it that is lost, and copied anew, would be taken for offsets that are left out. Nor is one that was told once."""
    store = make(tmp_path)
    store.follow(True)
    store.open()
    store.begin_queues({(b"T", 0): 2})
    store.follow(False)
    put(store, b"x")
    store.follow(True)
    store.begin_queues({(b"T", 0): 3})
    assert store.upkeep.begins == {}
    store.begin_queues({(b"T", 0): 5})
    assert store.upkeep.begins == {(b"T", 0): 5}
    store.follow(False)
    put(store, b"x")
    store.follow(True)
    work(store)
    store.close(clean)
    store = make(tmp_path)
    store.follow(True)
    store.open()
    assert store.upkeep.begins == {}
    assert store.queue(b"T", 0).max_offset == 6
    store.close(clean)


class Unready(Subscriber):
    """Derives nothing, and cannot say what is to be written down."""

    topics: frozenset[bytes] = frozenset()
    position = 1 << 62
    broken = True

    def add(self, physical: int, record: bytes, tags_code: int, store_ms: int) -> None: ...

    def take_job(self, flushed: int, end: int, mono_ms: int) -> Job | None:
        if self.broken:
            raise RuntimeError("planted")
        return None


def test_whatever_cannot_be_taken_up_the_log_is_flushed_and_kept(tmp_path: Path) -> None:
    store = make(tmp_path)
    subscriber = Unready()
    store.attach(subscriber)
    store.open()
    put(store, b"x")
    for _ in range(3):  # a flush, then a checkpoint, and each time what cannot be taken up
        store.clock.advance(1_500)
        mono_ms = store.clock.monotonic_ms()
        store.want_flush()
        jobs = store.take_jobs(mono_ms)
        assert [job.kind for job in jobs if job.kind.startswith("taking")] == ["taking Unready"]
        run_now([job for job in jobs if not job.kind.startswith("taking")], mono_ms)
    assert store.flushed_position == store.end_position
    value = CheckpointFile(tmp_path / "checkpoint", Files()).load()
    assert value is not None
    assert value.durable == store.end_position
    subscriber.broken = False
    store.close()


class Passing(Files):
    """Files of these names, and folders, cannot be opened for a while."""

    def __init__(self, names: tuple[str, ...], error: StoreError) -> None:
        self.unopened, self.error = names, error
        self.broken = False
        self.synced: list[Path] = []

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> int:
        if self.broken and path.name.startswith(self.unopened):
            raise self.error
        return super().open(path, create=create, writable=writable)

    def write(self, fd: int, at: int, data: bytes | memoryview) -> None:
        if self.broken and os.readlink(f"/proc/self/fd/{fd}").rpartition("/")[2].startswith(self.unopened):
            raise self.error
        super().write(fd, at, data)

    def sync_folder(self, folder: Path) -> None:
        if self.broken and folder.name in self.unopened:
            raise self.error
        self.synced.append(folder)
        super().sync_folder(folder)


@pytest.mark.parametrize(
    ("names", "error"),
    [
        (("checkpoint",), StoreError("a write: Input/output error")),
        (("checkpoint",), DiskFull("no room")),
        (("checkpoint",), NoDescriptor("too many open files")),
        (("consumequeue",), NoDescriptor("too many open files")),
        (("offsets.json",), StoreError("a write: Input/output error")),
        (("offsets.json",), NoDescriptor("too many open files")),
    ],
)
def test_what_could_not_be_written_down_is_tried_again_and_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, names: tuple[str, ...], error: StoreError
) -> None:
    """The log itself is sound, and goes on taking messages."""
    files = Passing(names, error)
    store = make(tmp_path, files=files)
    store.open()
    store.queue(b"unused", 0)  # which has no folder yet: a flush of that failed, and ended all storing
    files.broken = True
    for _ in range(SMALL.reserve_offsets + 1):
        put(store, b"x")
    work(store, 4)
    assert store.healthy
    assert len([line for line in caplog.messages if "tried again" in line]) == 1
    file = CheckpointFile(tmp_path / "checkpoint", Files())
    if names != ("offsets.json",):
        before = file.load()
        assert before is None or before.derived < store.end_position
    files.broken, files.synced = False, []
    put(store, b"y")
    work(store)
    after = file.load()
    assert after is not None
    assert after.derived == store.end_position
    assert (tmp_path / "offsets.json").is_file()
    if names == ("consumequeue",):  # the names that were not flushed are
        assert tmp_path / "consumequeue" / "T" in files.synced
    store.close(clean=False)


def test_nothing_is_stored_where_the_folder_is_gone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Files without names take it all, and no start would find it again."""
    store = make(tmp_path / "data")
    store.open()
    put(store, b"x")
    work(store)
    mono_ms = store.clock.monotonic_ms()
    store.tick(0, mono_ms)
    assert store.healthy
    (tmp_path / "data").rename(tmp_path / "renamed")
    put(store, b"y")
    store.tick(0, mono_ms + 1_000)
    assert (store.healthy, store.refusal, store.blocked(mono_ms)) == (False, status.NOT_WRITABLE, True)
    assert "was removed, renamed or replaced" in caplog.text
    assert "was removed, renamed or replaced" in str(store.durability.error)
    store.tick(0, mono_ms + 2_000)
    assert caplog.text.count("nothing is stored any more") == 1
    shutil.copytree(tmp_path / "renamed", tmp_path / "data")  # another's, who may be at work there
    before = {path: path.read_bytes() for path in (tmp_path / "data").rglob("*") if path.is_file()}
    for write in (
        partial(store.upkeep.write_offsets, ends=True),
        partial(store.files.make_folder, tmp_path / "data" / "t"),
    ):
        with pytest.raises(StoreError, match="was removed, renamed or replaced"):
            write()
    store.close()
    assert {path: path.read_bytes() for path in (tmp_path / "data").rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("reopened", [False, True])
def test_nothing_is_stored_where_the_newest_file_of_the_log_is_gone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, reopened: bool
) -> None:
    store = make(tmp_path)
    store.open()
    put(store, b"x")
    work(store)
    if reopened:
        store.close()
        store.open()
    mono_ms = store.clock.monotonic_ms()
    store.tick(0, mono_ms)
    put(store, b"y")
    assert store.healthy
    store.log.file.segments[-1].path.unlink()
    store.tick(0, mono_ms + 1_000)
    assert (store.healthy, store.refusal, store.blocked(mono_ms)) == (False, status.NOT_WRITABLE, True)
    assert "its log's newest file was removed" in caplog.text
    store.close(clean=False)
    store = make(tmp_path)
    store.open()
    assert "no file of the log is there, its messages are lost durable=" in caplog.text
    assert store.min_position > 0  # no place gets a second meaning
    store.close()


class Together(Files):
    """How often many files were flushed by one flush, and how often a queue was by its own."""

    def __init__(self) -> None:
        self.paths: dict[int, Path] = {}
        self.together = self.alone = 0
        self.lost = ""

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> int:
        fd = super().open(path, create=create, writable=writable)
        self.paths[fd] = path
        return fd

    def datasync(self, fd: int) -> None:
        self.alone += "consumequeue" in self.paths[fd].parts
        super().datasync(fd)

    def sync_all(self, fd: int) -> bool:
        self.together += 1
        return True

    def check_written(self, fd: int) -> bool:
        if self.paths[fd].parent.parent.name == self.lost:
            raise StoreError("a flush: Input/output error")
        return True


def _crowd(folder: Path, files: Together) -> tuple[LogStore, Path]:
    """A store with a message in each of many queues, and its folder as a kill leaves it."""
    store = make(folder / "a", files=files)
    store.open()
    for number in range(TOGETHER_MIN):
        put(store, b"x", b"T%d" % number)
    return store, snapshot(folder / "a", folder / "b")


def test_a_crowd_of_queues_is_flushed_at_once(tmp_path: Path) -> None:
    """Each by its own took a start behind a kill, and so a slave's way back, seconds with thousands of them."""
    files = Together()
    store, killed = _crowd(tmp_path, files)
    work(store)
    assert (files.together, files.alone) == (0, TOGETHER_MIN)  # the page that is never flushed would be
    value = CheckpointFile(tmp_path / "a" / "checkpoint", Files()).load()
    assert value is not None
    assert value.derived == store.end_position
    store.close()
    files = Together()
    store = make(killed, files=files)
    assert store.open().records == TOGETHER_MIN
    assert (files.together, files.alone) == (1, 1)  # one tells of the disk's own cache
    store.close()


def test_a_queue_of_a_crowd_that_could_not_be_written_fails_the_start(tmp_path: Path) -> None:
    files = Together()
    store, killed = _crowd(tmp_path, files)
    store.close()
    files.lost = "T3"
    store = make(killed, files=files)
    with pytest.raises(StoreError, match="Input/output error"):
        store.open()
