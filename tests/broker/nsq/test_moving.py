"""Moving: the original goes when the copy is durable, not before."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.queueside import Reader, Side
from penstock.broker.nsq.moving import Moving


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
