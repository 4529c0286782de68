"""The group flush: its numbers, who waits for them, and what a failure ends."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.queueside import Quick, Reader, Side
from penstock import words
from penstock.broker.nsq.flush import GroupFlush, Ticket
from penstock.broker.nsq.folder import PATIENCE_S
from penstock.broker.nsq.topics import Topic
from penstock.disk.files import TOGETHER_MIN
from penstock.disk.job import REST_MS, run_now
from penstock.disk.readyqueue import ReadyQueue
from penstock.errors import DiskFull, NoDescriptor, StoreError


def flush_jobs(side: Side) -> list[str]:
    jobs = [job for job in side.queueing.take_jobs() if job.kind == "flush"]
    run_now(jobs, side.broker.mono_ms)
    return [job.kind for job in jobs]


def test_an_answer_waits_for_the_number_that_covers_it(tmp_path: Path) -> None:
    side = Side(tmp_path, level="disk")
    topic = side.queueing.topic(b"t")
    side.turn(1_000)
    flush, answered = side.queueing.flush, []
    before = flush.done
    ticket = side.queueing.publish(topic, [b"a"])
    assert ticket is not None
    ticket.then(lambda done: answered.append(("a", done)))
    (job,) = [job for job in side.queueing.take_jobs() if job.kind == "flush"]
    behind = side.queueing.publish(topic, [b"b"])  # while the flush of the first is at work
    assert behind is not None
    behind.then(lambda done: answered.append(("b", done)))
    assert behind.number == ticket.number + 1 == before + 2
    assert flush_jobs(side) == []  # one at a time
    run_now([job], side.broker.mono_ms)
    assert (answered, flush.done) == ([("a", True)], before + 1)
    assert flush_jobs(side) == ["flush"]
    assert answered == [("a", True), ("b", True)]
    ticket.then(lambda done: answered.append(("late", done)))
    assert answered[-1] == ("late", True)
    side.close()


def test_a_flush_is_over_when_the_log_is_flushed_too(tmp_path: Path) -> None:
    """Deferred messages are the log's."""
    side = Side(tmp_path, level="disk")
    topic = side.queueing.topic(b"t")
    topic.channel(b"c")
    side.turn(1_000)
    answered: list[bool] = []
    ticket = side.queueing.publish(topic, [b"later"], 60_000)
    assert ticket is not None
    ticket.then(answered.append)
    assert flush_jobs(side) == ["flush"]
    side.queueing.end_turn()
    assert answered == []
    run_now(side.broker.store.take_jobs(side.broker.mono_ms), side.broker.mono_ms)
    side.queueing.end_turn()
    assert answered == [True]
    side.close()


class Noting(Quick):
    """Tells of which folders the names were flushed."""

    def __init__(self) -> None:
        self.flushed: list[Path] = []

    def sync_folder(self, folder: Path) -> None:
        self.flushed.append(folder)


@pytest.mark.parametrize("kind", ["queue", "log"])
def test_the_next_flush_makes_it_durable_that_a_deleted_channels_file_is_gone(tmp_path: Path, kind: str) -> None:
    """A power cut brought it back, and a channel of that name, made later, went on in its place."""
    files = Noting()
    side = Side(tmp_path, files=files, topic=({"name": "t", "kind": kind},))
    topic = side.queueing.topic(b"t")
    topic.channel(b"c")
    for _ in range(3):
        side.turn(1_100)
    files.flushed.clear()
    assert topic.delete_channel(b"c")
    side.turn(1_100)
    assert tmp_path / "queues" / "t" in files.flushed
    files.flushed.clear()
    side.turn(1_100)
    assert tmp_path / "queues" / "t" not in files.flushed  # once
    side.close()


class Failing(Quick):
    """Its flushes fail when told."""

    broken = False

    def datasync(self, fd: int) -> None:
        if self.broken:
            raise StoreError("a flush failed")


def waiting(side: Side) -> tuple[Ticket, list[bool]]:
    """A publish whose answer waits for a flush, and what it will be told."""
    topic = side.queueing.topic(b"t")
    side.turn(1_000)
    answered: list[bool] = []
    ticket = side.queueing.publish(topic, [b"a"])
    assert isinstance(ticket, Ticket)
    ticket.then(answered.append)
    return ticket, answered


def test_a_failure_answers_everybody_and_ends_flushing(tmp_path: Path) -> None:
    files = Failing()
    side = Side(tmp_path, files=files, level="disk")
    ticket, answered = waiting(side)
    files.broken = True
    assert flush_jobs(side) == ["flush"]
    assert answered == [False]
    ticket.then(answered.append)
    assert answered == [False, False]
    assert (side.queueing.healthy, side.queueing.error) == (False, "a flush failed")
    assert side.queueing.flush.due_ms() == words.FAR_MS
    files.broken = False
    side.broker.close(clean=False)


@pytest.mark.parametrize("level", ["os", "disk"])
def test_a_deleted_topic_is_not_flushed(tmp_path: Path, level: str) -> None:
    side = Side(tmp_path, level=level)
    topic = side.queueing.topic(b"t")
    side.queueing.publish(topic, [b"a"])
    side.queueing.end_turn()
    side.queueing.delete(topic)
    assert side.queueing.flush.next(topic) == 0
    side.turn(1_000)
    assert side.queueing.healthy
    assert not (tmp_path / "queues" / "t").exists() or not list((tmp_path / "queues" / "t").iterdir())
    side.close()


def test_level_os_acknowledges_no_more_when_a_byte_is_unflushed_too_long(tmp_path: Path) -> None:
    side = Side(tmp_path, level="os")
    flush: GroupFlush = side.queueing.flush
    side.queueing.publish(side.queueing.topic(b"t"), [b"x"])
    for ms, blocked in ((0, False), (words.FLUSH_WINDOW_MS + 1, True)):
        side.clock.advance(ms)
        side.broker.time.update()
        side.queueing.end_turn()
        assert flush.blocked() is blocked
    side.turn()
    assert not flush.blocked()
    side.close()


class Counting(Quick):
    """How often files were flushed one by one, and together."""

    def __init__(self) -> None:
        self.flushed: list[int] = []
        self.together = 0
        self.answer: bool | StoreError = True
        self.away: set[int] = set()  # descriptors that lie on another file system
        self.asked: list[int] = []  # files of which it was asked whether all could be written: their inodes
        self.lost: int = -1  # the one that could not be

    def check_written(self, fd: int) -> bool:
        self.asked.append(os.fstat(fd).st_ino)
        if self.asked[-1] == self.lost:
            raise StoreError("a flush: Input/output error")
        return True

    def datasync(self, fd: int) -> None:
        self.flushed.append(fd)

    def sync_all(self, fd: int) -> bool:
        self.together += 1
        if isinstance(self.answer, StoreError):
            raise self.answer
        return self.answer

    def device(self, file: int | Path) -> int | None:
        return -1 if file in self.away else super().device(file)


def many(tmp_path: Path, files: Counting, count: int = TOGETHER_MIN) -> tuple[Side, Callable[[], list[bool]]]:
    """A broker with so many queue topics of level `disk` that were flushed once, and what publishes to all of them."""
    side = Side(tmp_path, files=files, level="disk")
    topics = [side.queueing.topic(b"t%d" % number) for number in range(count)]
    topics[0].channel(b"c")

    def publish() -> list[bool]:
        answered: list[bool] = []
        for topic in topics:
            ticket = side.queueing.publish(topic, [b"a"])
            assert ticket is not None
            ticket.then(answered.append)
        files.flushed, files.together = [], 0
        side.turn()
        side.turn()
        return answered

    assert all(publish())
    assert files.together == (count >= TOGETHER_MIN)  # the folder was open before the first write
    return side, publish


@pytest.mark.parametrize(("count", "together"), [(TOGETHER_MIN, 1), (TOGETHER_MIN - 1, 0)])
def test_many_topics_are_flushed_at_once(tmp_path: Path, count: int, together: int) -> None:
    files = Counting()
    side, publish = many(tmp_path, files, count)
    assert publish() == [True] * count
    assert files.together == together
    own = {fd for topic in side.queueing.topics.values() for segment in topic.streams()[0].segments
           for fd in (segment.fd, segment.sums_fd)}  # fmt: skip
    assert len(own & set(files.flushed)) == (2 if together else 2 * count)
    side.close()


def inodes(side: Side) -> list[int]:
    """Of the segments and sums of all topics."""
    return [os.fstat(fd).st_ino for topic in side.queueing.topics.values() for segment in topic.streams()[0].segments
            for fd in (segment.fd, segment.sums_fd)]  # fmt: skip


def test_what_a_killed_process_wrote_is_flushed_at_once_and_each_file_is_asked(tmp_path: Path) -> None:
    files = Counting()
    side, _ = many(tmp_path, files)
    files.together, files.flushed = 0, []
    side.reopen(clean=False)
    assert files.together == 1
    assert set(inodes(side)) <= set(files.asked)  # of a failure before now the file system tells nobody
    assert len(files.flushed) < TOGETHER_MIN
    files.asked = []
    for topic in side.queueing.topics.values():
        side.queueing.publish(topic, [b"b"])
    side.turn()
    assert (files.together, files.asked) == (2, [])
    side.close()


def test_what_a_killed_process_could_not_write_is_no_success(tmp_path: Path) -> None:
    files = Counting()
    side, _ = many(tmp_path, files)
    files.lost = inodes(side)[-1]
    side.reopen(clean=False)
    assert not side.queueing.healthy
    assert "Input/output error" in side.queueing.error
    side.broker.close(clean=False)


def test_many_places_of_channels_are_flushed_at_once_behind_a_kill(tmp_path: Path) -> None:
    """While the broker runs one by one: the page by which a start tells a kill from a power cut would be flushed, too."""
    files = Counting()
    side = Side(tmp_path, files=files)
    topic = side.queueing.topic(b"t")
    side.turn(1_000)
    for number in range(TOGETHER_MIN):
        topic.channel(b"c%d" % number)
    files.flushed, files.together = [], 0
    side.queueing.flush.note(topic)
    side.turn(1_000)
    assert files.together == 0
    assert len(files.flushed) >= TOGETHER_MIN
    side.reopen(clean=False)
    assert files.together == 1
    side.close()


def test_files_are_flushed_one_by_one_where_nothing_is_vouched_for(tmp_path: Path) -> None:
    files = Counting()
    side, publish = many(tmp_path, files)
    own = {segment.fd for topic in side.queueing.topics.values() for segment in topic.streams()[0].segments}
    for answer in False, DiskFull("somebody's file has no room"):
        files.answer = answer
        assert publish() == [True] * TOGETHER_MIN
        assert (files.together, own - set(files.flushed)) == (1, set())
    files.away = {min(own)}
    assert publish() == [True] * TOGETHER_MIN
    assert (files.together, own - set(files.flushed)) == (0, set())
    side.close()


def test_a_write_that_failed_somewhere_on_the_disk_ends_flushing(tmp_path: Path) -> None:
    files = Counting()
    side, publish = many(tmp_path, files)
    files.answer = StoreError("a flush of the file system: Input/output error")
    assert publish() == [False] * TOGETHER_MIN
    assert not side.queueing.healthy
    assert "Input/output error" in side.queueing.error
    side.broker.close(clean=False)


def test_what_others_write_is_not_waited_for_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, clock = Counting(), [0.0]
    side, publish = many(tmp_path, files)
    monkeypatch.setattr("penstock.broker.nsq.folder.time.monotonic", lambda: clock[0])

    def slow(fd: int) -> bool:
        clock[0] += 5.0
        return Counting.sync_all(files, fd)

    monkeypatch.setattr(files, "sync_all", slow)
    found = []
    for waited in (1.0, 1.0, PATIENCE_S):
        clock[0] += waited
        assert publish() == [True] * TOGETHER_MIN
        found.append(files.together)
    assert found == [1, 0, 1]
    monkeypatch.undo()
    side.close()


class Odd(Topic):
    """One whose streams cannot be looked at for a while."""

    broken = True

    def streams(self) -> list[ReadyQueue]:
        if self.broken:
            raise RuntimeError("planted")
        return []


def test_a_flush_that_cannot_take_up_a_topic_is_none_and_the_next_one_is(tmp_path: Path) -> None:
    side = Side(tmp_path, level="disk")
    topic = side.queueing.topic(b"t")
    side.turn(1_000)
    flush, answered = side.queueing.flush, []
    odd = Odd(b"odd", topic.level, topic.registry)
    flush.note(odd)
    ticket = side.queueing.publish(topic, [b"a"])
    assert ticket is not None
    ticket.then(lambda done: answered.append(("a", done)))
    jobs = side.queueing.take_jobs()
    assert [job.kind for job in jobs] == ["flush", "taking flush"]
    assert answered == [("a", False)]
    behind = side.queueing.publish(topic, [b"b"])
    assert behind is not None
    behind.then(lambda done: answered.append(("b", done)))
    with pytest.raises(RuntimeError, match="planted"):
        run_now(jobs, side.broker.mono_ms)
    assert (answered, flush.healthy, flush.done) == ([("a", False)], True, ticket.number - 1)
    assert flush.due_ms() == side.broker.mono_ms + REST_MS  # it is not asked again and again meanwhile
    odd.broken = False
    side.turn(REST_MS)
    assert (answered, flush.done) == ([("a", False), ("b", True)], behind.number)
    side.close()


def test_what_is_moved_cannot_keep_an_answer_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    side = Side(tmp_path, level="disk")
    _, answered = waiting(side)

    def fail(*_: object) -> None:
        raise StoreError("planted")

    monkeypatch.setattr(side.queueing.moving, "settle", fail)
    with pytest.raises(StoreError, match="planted"):
        flush_jobs(side)
    assert answered == [True]
    monkeypatch.undo()
    side.close()


class Scarce(Quick):
    """No cursor can be opened for a while."""

    none_left = False

    def __init__(self) -> None:
        self.flushed: list[int] = []

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> int:
        if self.none_left and path.suffix == ".cursor":
            raise NoDescriptor(f"{path}: Too many open files")
        return super().open(path, create=create, writable=writable)

    def datasync(self, fd: int) -> None:
        self.flushed.append(fd)


def test_a_flush_that_finds_no_descriptor_waits_for_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing was done to the file: it is no failed flush. What is deleted meanwhile stays open until it is flushed."""
    files = Scarce()
    side = Side(tmp_path, files=files, level="disk")
    topic, other = side.queueing.topic(b"t"), side.queueing.topic(b"u")
    channel, reader = topic.channel(b"c"), Reader()
    channel.add(reader)
    reader.ready_count = 1
    side.turn(1_000)
    answered: list[tuple[bytes, bool]] = []

    def publish(body: bytes, to: Topic = topic) -> None:
        ticket = side.queueing.publish(to, [body])
        assert ticket is not None
        ticket.then(lambda done: answered.append((body, done)))

    publish(b"a")
    side.turn()
    (delivery,) = reader.deliveries()
    channel.finish(reader, delivery.id, 0, 0)
    files.none_left = True
    publish(b"b")
    publish(b"c", other)
    segments = [segment for one in (topic, other) for segment in one.streams()[0].segments]
    side.turn()
    side.queueing.delete(other)
    for _ in range(3):
        publish(b"d")
        side.turn(REST_MS)
    assert (answered, side.queueing.healthy) == ([(b"a", True)], True)
    assert all(segment.fd >= 0 for segment in segments)
    assert len([line for line in caplog.messages if "the flush waits" in line]) == 1
    assert side.queueing.flush.blocked() is False
    side.turn(words.FLUSH_WINDOW_MS)
    assert side.queueing.flush.blocked()
    files.none_left, files.flushed = False, []
    side.turn(REST_MS)
    assert answered[1:] == [(b"b", True), (b"c", True), *[(b"d", True)] * 3]
    assert {segment.fd for segment in segments} <= set(files.flushed)
    side.turn(1_000)
    assert segments[-1].fd < 0 or segments[-1] in side.queueing.folder.pool.spares
    side.reopen(clean=True)
    assert side.queueing.topics[b"t"].channels[b"c"].depth() == 4
    side.close()
