"""Flushes, back-pressure, dead letters and what a stop keeps, without sockets."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from broker.queueside import Quick, Reader, Side
from penstock.broker.nsq.folder import file_name
from penstock.broker.nsq.queueing import TICK_AT_LEAST_MS, Queueing
from penstock.broker.retry import dead_letter_name
from penstock.errors import Refused, StoreError


def reader_of(side: Side, topic: bytes, channel: bytes, ready: int = 100) -> Reader:
    reader = Reader()
    reader.ready_count = ready
    here = side.queueing.topic(topic).channel(channel)
    here.add(reader)
    side.queueing.mark_channel(here)
    side.turn()
    return reader


def test_what_is_unflushed_for_a_second_holds_the_next_answer_back(tmp_path: Path) -> None:
    side = Side(tmp_path)
    topic = side.queueing.topic(b"t")
    memory = Side(tmp_path / "m", level="memory")
    assert side.queueing.publish(topic, [b"a"]) is None
    side.queueing.end_turn()
    side.clock.advance(1_001)
    side.broker.time.update()
    ticket = side.queueing.publish(topic, [b"b"])
    assert ticket is not None
    answered: list[bool] = []
    ticket.then(answered.append)
    assert answered == []
    side.turn()
    assert answered == [True]
    assert side.queueing.publish(topic, [b"c"]) is None
    memory.queueing.flush.dirty_since = 0
    assert memory.queueing.publish(memory.queueing.topic(b"t"), [b"a"]) is None
    side.close()
    memory.close()


class Failing(Quick):
    """Its flushes fail from some moment on."""

    broken = False

    def datasync(self, fd: int) -> None:
        if self.broken:
            raise StoreError("a flush failed")


@pytest.mark.parametrize("level", ["os", "disk"])
def test_after_a_failed_flush_nothing_is_acknowledged(tmp_path: Path, level: str) -> None:
    files = Failing()
    side = Side(tmp_path, files=files, level=level)
    topic = side.queueing.topic(b"t")
    side.turn()
    reader = reader_of(side, b"t", b"c")
    side.queueing.publish(topic, [b"before"])
    side.turn(600)
    assert [m.body for m in reader.deliveries()] == [b"before"]
    files.broken = True
    answered: list[bool] = []
    ticket = side.queueing.publish(topic, [b"doubtful"])
    if ticket:
        ticket.then(answered.append)
    side.turn()
    side.turn(600)
    assert answered == ([False] if level == "disk" else [])
    assert not side.queueing.healthy
    files.broken = False
    with pytest.raises(Refused) as caught:
        side.queueing.publish(topic, [b"no"])
    assert (caught.value.nsq, caught.value.http) == ("E_PUB_FAILED", 503)
    side.broker.close(clean=False)


def test_too_many_attempts_end_with_the_dead_letters(tmp_path: Path) -> None:
    side = Side(tmp_path, max_attempts=2)
    side.queueing.publish(side.queueing.topic(b"t"), [b"poison"])
    reader = reader_of(side, b"t", b"c")
    channel = side.queueing.topic(b"t").channel(b"c")
    for attempt in (1, 2):
        (message,) = reader.deliveries()
        assert message.attempts == attempt
        channel.requeue(reader, message.id, 0, side.broker.mono_ms)
        side.queueing.mark_channel(channel)
        side.turn()
    assert list(reader.deliveries()) == []
    assert (channel.depth(), channel.in_flight_count, channel.buried_count) == (0, 0, 1)
    dead = reader_of(side, dead_letter_name(b"t", b"c"), b"look")
    assert [m.body for m in dead.deliveries()] == [b"poison"]
    side.close()


def test_attempts_outlive_a_clean_stop(tmp_path: Path) -> None:
    side = Side(tmp_path)
    side.queueing.publish(side.queueing.topic(b"t"), [b"a", b"b"])
    reader_of(side, b"t", b"c", ready=1)
    side.reopen(clean=True)
    again = reader_of(side, b"t", b"c")
    assert sorted((m.body, m.attempts) for m in again.deliveries()) == [(b"a", 2), (b"b", 1)]
    side.close()


def test_ephemeral_overflow_is_dropped_and_nothing_is_written(tmp_path: Path) -> None:
    side = Side(tmp_path, mem_queue_size=10)
    topic = side.queueing.topic(b"t#ephemeral")
    channel = topic.channel(b"c#tmp")
    side.queueing.publish(topic, [b"%d" % n for n in range(50)])
    reader = reader_of(side, b"t#ephemeral", b"c#tmp")
    assert [m.body for m in reader.deliveries()] == [b"%d" % n for n in range(10)]
    assert channel.source.dropped == 40
    assert not (tmp_path / "queues").exists()
    assert not list(tmp_path.glob("*.diskqueue.*"))
    side.reopen(clean=True)
    assert side.queueing.find(b"t#ephemeral") is None
    side.close()


def test_a_message_that_is_always_given_back_lets_others_by(tmp_path: Path) -> None:
    side = Side(tmp_path)
    topic = side.queueing.topic(b"t")
    for n in range(30):
        side.queueing.publish(topic, [b"%d" % n])
    reader = reader_of(side, b"t", b"c", ready=1)
    channel = topic.channel(b"c")
    seen = []
    for _ in range(40):
        (message,) = reader.deliveries()
        seen.append(message.body)
        if message.body == b"0":
            channel.requeue(reader, message.id, 0, side.broker.mono_ms)
        else:
            channel.finish(reader, message.id, side.broker.now_ns, side.broker.mono_ms)
        side.queueing.mark_channel(channel)
        side.turn()
    assert {b"%d" % n for n in range(30)} == set(seen)
    side.close()


def test_segments_go_when_every_channel_has_finished_them(tmp_path: Path) -> None:
    side = Side(tmp_path)
    topic = side.queueing.topic(b"t")
    readers = [reader_of(side, b"t", name, ready=2000) for name in (b"a", b"b")]
    for _ in range(200):
        side.queueing.publish(topic, [b"x" * 1000])
    side.turn()
    assert len(topic.stream.segments) > 3
    for reader, name in zip(readers, (b"a", b"b"), strict=True):
        assert len(topic.stream.segments) > 3
        channel = topic.channel(name)
        for message in reader.deliveries():
            channel.finish(reader, message.id, side.broker.now_ns, side.broker.mono_ms)
        side.queueing.mark_channel(channel)
        side.turn()
    assert len(topic.stream.segments) == 1
    assert len(list((tmp_path / "queues" / "t").glob("*.queue"))) == 1
    side.close()


@pytest.mark.parametrize(
    ("name", "expected"), [(b"a.b-c_D9", "a.b-c_D9"), (b".hidden", "%2Ehidden"), (b"..", "%2E."), (b"t#tmp", "t%23tmp")]
)
def test_names_become_file_names(name: bytes, expected: str) -> None:
    assert file_name(name) == expected


def test_a_deleted_topic_keeps_no_file_open(tmp_path: Path) -> None:
    """Its messages were in flight, and would have been looked at a minute later."""
    side = Side(tmp_path)

    def gone() -> list[str]:
        found = []
        for entry in os.scandir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                found.append(os.readlink(entry.path))
        return [name for name in found if str(tmp_path) in name and name.endswith("(deleted)")]

    for n in range(20):
        name = b"t%d" % n
        reader = reader_of(side, name, b"c")
        topic = side.queueing.topics[name]
        side.queueing.publish(topic, [b"x"] * 5)
        side.turn()
        assert len(list(reader.deliveries())) == 5
        side.queueing.delete(topic)
        side.turn(1)
    del topic, reader
    side.turn(1000)
    assert gone() == []
    assert not len(side.queueing.claims)
    side.turn(120_000)  # and the timers of then find nobody
    side.close()


def test_an_idle_side_is_looked_at_now_and_then(tmp_path: Path) -> None:
    side = Side(tmp_path)
    queueing: Queueing = side.broker.queueing
    assert queueing.tick() <= side.broker.mono_ms + TICK_AT_LEAST_MS
    assert (queueing.healthy, queueing.error, queueing.flush.wanted) == (True, "", False)
    side.close()
