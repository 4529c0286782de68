"""Gathering: records of a ready queue that go to the system in one write, beside a list of what was published."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

import pytest
from lying_disk import Killed, LyingFiles

from disk.ready_parts import bodies, make, put
from penstock.disk.files import Files
from penstock.disk.gathering import GATHER_BYTES
from penstock.disk.readyqueue import ReadyQueue
from penstock.disk.readysegment import SMALL
from penstock.errors import DiskFull, StoreError

SIZE = 1 << 20


def gather(queue: ReadyQueue, *batch: bytes) -> None:
    """One batch, gathered if it can be."""
    assert queue.gather(sum(len(body) + 19 for body in batch), len(batch)) == 0
    for n, body in enumerate(batch, 1):
        queue.append_bytes(queue.last_id + 1, 0, body, n < len(batch))
        queue.last_id += 1
    queue.all_visible()


def eager(folder: Path, files: Files | None = None, size: int = SIZE) -> ReadyQueue:
    """A queue that gathers from its first byte on."""
    queue = make(folder, files, size)
    queue.pool.gathering.begins = 0
    queue.pool.gathering.write_bytes_min = 400
    return queue


def test_what_is_gathered_is_in_the_file_when_it_is_settled(tmp_path: Path) -> None:
    queue = eager(tmp_path)
    gathering, path = queue.pool.gathering, tmp_path / "t" / "t_1.queue"
    gather(queue, b"one")
    gather(queue, b"two", b"three")
    assert not any(path.read_bytes())
    assert gathering.segment is queue.last
    gathering.settle()
    assert b"one" in path.read_bytes()
    assert b"three" in path.read_bytes()
    assert gathering.segment is None
    queue.close(clean=True)


@pytest.mark.parametrize("before", [0, 400])
def test_whoever_comes_in_the_same_turn_finds_everything(tmp_path: Path, before: int) -> None:
    ways = {
        "find": lambda queue: bodies(queue),
        "ready": lambda queue: put(queue, b"put"),
        "flush": lambda queue: queue.take_flush(),
        "marked": lambda queue: queue.marked(),
        "close": lambda queue: queue.close(True),
        "roll": lambda queue: put(queue, b"w" * SIZE),
    }
    for name, way in ways.items():
        queue = eager(tmp_path / name)
        path = tmp_path / name / "t" / "t_1.queue"
        for n in range(before):
            gather(queue, b"%d " % n * 100)
        gather(queue, b"the last one")
        assert b"the last one" not in path.read_bytes()
        way(queue)
        assert b"the last one" in path.read_bytes(), name
        queue.close(clean=True)


def test_a_queue_that_holds_little_and_pages_that_are_there_are_written_through_the_mapping(tmp_path: Path) -> None:
    queue = make(tmp_path, size=SIZE)
    gathering = queue.pool.gathering
    taken = []

    def fill() -> None:
        number = queue.total
        while queue.last is None or queue.last.end < SIZE - 5_000 or queue.total == number:
            gather(queue, b"x" * 1_000)
            if not taken or taken[-1] != (gathering.segment is not None):
                taken.append(gathering.segment is not None)
            if queue.last.end < SMALL:
                assert gathering.segment is None

    fill()
    assert taken == [False, True]
    gather(queue, b"y" * 10_000)  # in a segment of its own
    queue.drop_below(queue.total - 1)
    assert len(queue.pool.spares) == 1
    taken.clear()
    while queue.last.end < SIZE - 20_000:
        gather(queue, b"x" * 10_000)
    gather(queue, b"y" * 30_000)  # the first one again
    while queue.last.end < SIZE - 20_000:
        gather(queue, b"x" * 10_000)
        assert gathering.segment is None
    queue.close(clean=True)


def test_queues_in_turn_are_written_through_the_mapping_and_runs_are_gathered(tmp_path: Path) -> None:
    one = eager(tmp_path)
    other = ReadyQueue(tmp_path / "u", "u", SIZE, one.pool, Files())
    other.open()
    gathering, sent = one.pool.gathering, [b"%d " % n * 20 for n in range(50)]
    gather(one, sent[0])
    assert gathering.segment is one.last
    gather(other, sent[0])
    for body in sent[1:40]:
        for queue in (one, other):
            gather(queue, body)
            assert gathering.segment is None
    for queue in (one, other):
        gather(queue, sent[40])
        for body in sent[41:]:
            gather(queue, body)
            assert gathering.segment is queue.last
    assert bodies(one) == bodies(other) == sent
    gather(one, b"gone")
    one.drop_all()
    gather(other, b"stays")
    assert bodies(other)[-1] == b"stays"
    gather(one, b"new")
    gather(one, b"newer")
    assert bodies(one) == [b"new", b"newer"]
    one.close(clean=True)
    other.close(clean=True)


class Refuses(Files):
    """Writes so much of it and then fails."""

    def __init__(self, error: type[StoreError], part: int) -> None:
        self.error = error
        self.part = part
        self.count = 0

    def write(self, fd: int, at: int, data: bytes | memoryview) -> None:
        super().write(fd, at, data[: self.part])
        self.count += 1
        raise self.error("by order of the test")


def test_little_goes_through_the_mapping(tmp_path: Path) -> None:
    files = Refuses(StoreError, 0)
    queue = eager(tmp_path, files)
    queue.pool.gathering.write_bytes_min = 1_000
    for size, count in ((500, 0), (970, 0), (990, 1), (10, 1)):
        gather(queue, b"x" * size)
        queue.pool.gathering.settle()
        assert files.count == count
    queue.close(clean=False)
    assert list(map(len, bodies(make(tmp_path, size=SIZE)))) == [500, 970, 990, 10]


@pytest.mark.parametrize(("error", "part"), [(StoreError, 0), (DiskFull, 3_000), (StoreError, 1 << 20)])
def test_what_a_write_refuses_goes_through_the_mapping(tmp_path: Path, error: type[StoreError], part: int) -> None:
    files = Refuses(error, part)
    queue = eager(tmp_path, files)
    sent = [b"%d " % n * 50 for n in range(300)]
    for n, body in enumerate(sent):
        gather(queue, body)
        if n % 40 == 0:
            queue.pool.gathering.settle()
    queue.pool.gathering.settle()
    assert files.count > 5
    queue.close(clean=False)
    queue = make(tmp_path, size=SIZE)
    assert bodies(queue) == sent
    queue.close(clean=True)


def test_a_batch_larger_than_what_is_gathered(tmp_path: Path) -> None:
    queue = eager(tmp_path, size=4 << 20)
    large = [b"%d " % n * 10_000 for n in range(20)]
    assert sum(map(len, large)) > GATHER_BYTES
    for batch in ([b"before"], large, [b"behind"], [b"w" * (GATHER_BYTES - 19)], [b"w" * GATHER_BYTES], [b"end"]):
        gather(queue, *batch)
    queue.pool.gathering.settle()
    queue.close(clean=False)
    queue = make(tmp_path, size=4 << 20)
    assert bodies(queue) == [b"before", *large, b"behind", b"w" * (GATHER_BYTES - 19), b"w" * GATHER_BYTES, b"end"]
    queue.close(clean=True)


class Life:
    """A queue that is killed now and then, and the messages it owes: those below `settled`, and of the rest whole batches."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.noise = random.Random(seed)
        self.files = LyingFiles(folder, seed)
        self.queue = eager(folder, self.files, size=1 << 16)
        self.model: list[bytes] = []  # by ordinal
        self.outstanding: list[list[bytes]] = []
        self.number = 0

    def publish(self) -> None:
        noise = self.noise
        batch = [b"%d " % (self.number + n) * noise.randrange(1, 60) for n in range(noise.choice([1, 1, 1, 3, 9]))]
        self.number += len(batch)
        self.outstanding.append(batch)
        if noise.random() < 0.2:
            put(self.queue, *batch)
            self.settled()
        else:
            gather(self.queue, *batch)

    def settled(self) -> None:
        for batch in self.outstanding:
            self.model += batch
        self.outstanding = []

    def kill(self, written: int) -> None:
        """Before, in the middle of, or behind the write."""
        self.files.written_at_most = written
        with contextlib.suppress(Killed):
            self.queue.pool.gathering.settle()
        self.files.written_at_most = None
        self.queue.close(clean=False)

    def reopen(self) -> None:
        self.queue = eager(self.folder, self.files, size=1 << 16)
        begin, found = self.queue.begin(), bodies(self.queue)
        assert begin <= len(self.model)
        there = found[len(self.model) - begin :]
        for batch in self.outstanding:
            if there:
                assert there[: len(batch)] == batch
                self.model += batch
                del there[: len(batch)]
        self.outstanding = []
        assert there == []
        assert found == self.model[begin:]
        assert self.queue.total == len(self.model)


@pytest.mark.parametrize("seed", range(12))
def test_kills_at_any_moment_leave_whole_batches_and_lose_nothing_that_was_settled(tmp_path: Path, seed: int) -> None:
    life = Life(tmp_path, seed)
    for _ in range(80):
        for _ in range(life.noise.randrange(30)):
            life.publish()
        what = life.noise.random()
        if what < 0.6:
            life.queue.pool.gathering.settle()
            life.settled()
            if what < 0.3:
                life.queue.drop_below(life.queue.total - life.noise.randrange(50))
            continue
        if what < 0.7:
            life.queue.close(clean=True)
            life.settled()
        else:
            life.kill(life.noise.randrange(20_000))
        life.reopen()
    life.queue.close(clean=True)


def test_behind_what_was_gathered_stands_a_zero_whatever_stood_there(tmp_path: Path) -> None:
    life = Life(tmp_path, 0)
    life.outstanding = [[b"a" * 150, b"b" * 150, b"c" * 150]]
    gather(life.queue, *life.outstanding[0])
    life.kill(360)  # two of three
    life.reopen()
    gather(life.queue, b"d" * 150)
    life.queue.pool.gathering.settle()
    path, end = tmp_path / "t" / "t_1.queue", life.queue.last.end
    assert path.read_bytes()[end : end + 20] == b"\0" + path.read_bytes()[end + 1 : end + 20]
    assert b"b" * 150 in path.read_bytes()[end:]
    life.queue.close(clean=True)


def test_a_segment_is_read_ahead_only_when_nobody_writes_it(tmp_path: Path) -> None:
    queue = make(tmp_path, size=SIZE)
    body = b"x" * 1000
    while len(queue.segments) < 2:
        assert queue.last is None or queue.last.scattered
        gather(queue, body)
    first, second = queue.segments
    assert (first.scattered, second.scattered) == (False, True)
    count = queue.total
    queue.drop_below(first.count)  # the first is used again
    while len(queue.segments) < 2:
        gather(queue, body)
    assert queue.last is first
    assert first.scattered
    assert len(bodies(queue)) == queue.total - first.first + second.count
    assert queue.total > count
    queue.close(clean=True)
