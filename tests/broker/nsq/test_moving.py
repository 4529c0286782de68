"""Moving: the original goes when the copy is durable, not before."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.queueside import Reader, Side
from penstock.broker.nsq.moving import EACH_TURN, Moving
from penstock.disk.job import run_now


class Flushes:
    """Flushes that are over when the test says so."""

    def __init__(self) -> None:
        self.done = 0

    def next(self, topic: object) -> int:
        return self.done + 1


@pytest.fixture
def side(tmp_path: Path) -> Side:
    return Side(tmp_path)


def in_hand(side: Side) -> tuple[object, int, int]:
    """A channel with one message taken: the channel, and the message's place."""
    topic = side.queueing.topic(b"t")
    channel, reader = topic.channel(b"c"), Reader()
    reader.ready_count = 1
    channel.add(reader)
    side.queueing.publish(topic, [b"x"])
    side.turn()
    ((lane, place, _, _),) = channel.in_hand()
    return channel, lane, place


def test_a_place_is_done_when_log_and_queues_are_flushed(side: Side) -> None:
    channel, lane, place = in_hand(side)
    marked: list[object] = []
    moving, flushes = Moving(side.broker.sending, marked.append), Flushes()
    moving.leave(channel, lane, place, flush=2)  # type: ignore[arg-type]
    assert (len(moving), (lane, place) in channel.leaving) == (1, True)  # type: ignore[attr-defined]
    flushes.done = 1
    moving.settle(flushes)
    assert len(moving) == 1
    flushes.done = 2
    moving.settle(flushes)
    assert (len(moving), channel.leaving, marked) == (0, {}, [channel])  # type: ignore[attr-defined]


def test_an_entry_is_over_when_its_copy_is_flushed(side: Side) -> None:
    topic = side.queueing.topic(b"t")
    topic.channel(b"c")
    side.queueing.publish(topic, [b"x"])
    (stream,) = topic.streams()
    moving, flushes = Moving(side.broker.sending, lambda channel: None), Flushes()
    end = side.broker.store.end_position
    moving.arrive(77, topic, stream, 0)
    assert moving.has(77)
    assert stream.kept_from == 0  # its segment stays
    moving.settle(flushes)
    assert (moving.has(77), side.broker.store.end_position) == (True, end)
    flushes.done = 1
    moving.settle(flushes)
    assert not moving.has(77)
    assert side.broker.store.end_position > end  # the log says that the entry is over
    assert stream.kept_from > 1 << 40


def test_what_nobody_is_owed_need_not_become_durable(side: Side) -> None:
    topic = side.queueing.topic(b"t")
    topic.channel(b"c")
    side.queueing.publish(topic, [b"x"])
    (stream,) = topic.streams()
    moving, flushes = Moving(side.broker.sending, lambda channel: None), Flushes()
    moving.arrive(77, topic, stream, 0)
    moving.forget(stream)
    moving.settle(flushes)
    assert not moving.has(77)


def test_a_flush_that_makes_many_copies_durable_takes_several_turns(side: Side) -> None:
    """Each is a record in the log: a hundred thousand of them took a turn of a second."""
    topic, other = side.queueing.topic(b"t"), side.queueing.topic(b"other")
    (stream,), (another,) = topic.streams(), other.streams()
    moving, flushes = Moving(side.broker.sending, lambda channel: None), Flushes()
    count = 2 * EACH_TURN + 10
    for n in range(count):
        moving.arrive(n + 1, topic, stream, n)
        if n % 100 == 0:
            moving.arrive(count + n + 1, other, another, n)
    total = len(moving)
    moving.settle(flushes)
    assert (len(moving), moving.more) == (total, False)
    flushes.done = 1
    left = [total]
    while moving.has(count):
        moving.settle(flushes)
        left.append(len(moving))
        if moving.more:
            ordinals = moving.ordinals(stream)
            assert stream.kept_from == min(ordinals)
            assert len(ordinals) + len(moving.ordinals(another)) == len(moving)
    assert left == [total, total - EACH_TURN, total - 2 * EACH_TURN, 0]
    assert not moving.more
    assert stream.kept_from == another.kept_from > 1 << 40


def test_places_of_channels_are_done_some_a_turn(side: Side) -> None:
    channel, lane, place = in_hand(side)
    marked: list[object] = []
    moving, flushes = Moving(side.broker.sending, marked.append), Flushes()
    for n in range(EACH_TURN + 1):
        moving.leave(channel, lane, place + n, flush=1)  # type: ignore[arg-type]
    flushes.done = 1
    moving.settle(flushes)
    assert (len(moving), moving.more, len(marked)) == (1, True, EACH_TURN)
    moving.settle(flushes)
    assert (len(moving), moving.more) == (0, False)


def test_a_turn_that_had_no_time_for_all_has_another_behind_it(side: Side) -> None:
    topic, moving = side.queueing.topic(b"t", "os"), side.queueing.moving
    topic.channel(b"c")
    side.queueing.publish(topic, [b"x"])
    for n in range(EACH_TURN + 100):
        moving.arrive(n + 1, topic, topic.streams()[0], n)
    side.turn()
    assert len(moving) == EACH_TURN + 100
    side.clock.advance(500)
    side.broker.time.update()
    run_now(side.broker.take_jobs(), side.broker.mono_ms)  # the flush
    assert (len(moving), side.queueing.next_due_ms()) == (100, 0)
    side.turn()
    assert len(moving) == 0
    assert side.queueing.next_due_ms() > 0


RULES = ({"name": "log*", "kind": "log", "queues": 1},)


def given_back(side: Side, delay_ms: int = 1_000) -> tuple[Reader, int]:
    """A channel of a log topic whose one message was given back with a delay, and has come again: its reader, and the id."""
    topic = side.queueing.topic(b"log-t")
    channel, reader = topic.channel(b"c"), Reader()
    reader.ready_count = 10
    channel.add(reader)
    side.queueing.publish(topic, [b"x"])
    side.turn()
    (first,) = reader.deliveries()
    channel.requeue(reader, first.id, delay_ms, side.broker.mono_ms)
    for _ in range(6):
        side.turn(600)
    (again,) = reader.deliveries()
    assert (again.body, again.attempts, again.id) == (b"x", 2, first.id)
    return reader, again.id


@pytest.mark.parametrize("ha_port", [-1, 0])
def test_where_slaves_follow_an_entry_is_over_when_its_copy_is_finished(tmp_path: Path, ha_port: int) -> None:
    """Only the schedule is everywhere: whoever becomes the master delivers what is in it."""
    side = Side(tmp_path, topic=RULES, ha_port=ha_port)
    reader, message_id = given_back(side)
    entries = len(side.broker.schedule)
    assert entries == (0 if ha_port < 0 else 1)
    if entries:
        assert side.queueing.moving.tick(side.broker.mono_ms) < side.broker.mono_ms + 2_000
    side.queueing.topics[b"log-t"].channels[b"c"].finish(reader, message_id, 0, 0)
    for _ in range(4):
        side.turn(600)
    assert (len(side.broker.schedule), len(side.queueing.moving)) == (0, 0)
    side.close()


@pytest.mark.parametrize("clean", [False, True])
def test_a_copy_that_is_owed_comes_once_behind_a_start(tmp_path: Path, clean: bool) -> None:
    side = Side(tmp_path, topic=RULES, ha_port=0)
    given_back(side)
    side.reopen(clean)
    topic = side.queueing.topics[b"log-t"]
    reader = Reader()
    reader.ready_count = 10
    topic.channels[b"c"].add(reader)
    topic.mark()
    for _ in range(5):
        side.turn(600)
    (again,) = reader.deliveries()
    assert again.body == b"x"
    assert len(side.broker.schedule) == 1
    topic.channels[b"c"].finish(reader, again.id, 0, 0)
    topic.mark()
    for _ in range(4):
        side.turn(600)
    assert len(side.broker.schedule) == 0
    side.reopen(clean)
    assert side.queueing.topics[b"log-t"].channels[b"c"].depth() == 0
    side.close()


def test_a_channel_that_goes_owes_nothing(tmp_path: Path) -> None:
    for what in ("delete", "empty"):
        side = Side(tmp_path / what, topic=RULES, ha_port=0)
        given_back(side)
        topic = side.queueing.topics[b"log-t"]
        if what == "delete":
            topic.delete_channel(b"c")
        else:
            topic.empty_channel(topic.channels[b"c"])
        for _ in range(4):
            side.turn(600)
        assert (len(side.broker.schedule), len(side.queueing.moving)) == (0, 0)
        side.close()
