"""Ephemeral channels of topics on disk: bounded as nsqd's, and never in the way of what others have finished."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.queueside import Delivery, Reader, Side
from penstock.delivery.passing import PassingSource

LIMIT = 100


def open_side(folder: Path, level: str = "os") -> Side:
    return Side(folder, level=level, mem_queue_size=LIMIT, queue_segment_bytes=1 << 16)


def subscribe(side: Side, name: bytes, ready: int) -> Reader:
    reader = Reader()
    reader.ready_count = ready
    channel = side.queueing.topic(b"t").channel(name)
    channel.add(reader)
    side.queueing.mark_channel(channel)
    side.turn()
    return reader


def finish(side: Side, name: bytes, reader: Reader, messages: list[Delivery]) -> None:
    channel = side.queueing.topic(b"t").channel(name)
    for message in messages:
        assert channel.finish(reader, message.id, side.broker.now_ns, side.broker.mono_ms) == 0
    side.queueing.mark_channel(channel)
    side.turn()


def publish(side: Side, first: int, count: int, size: int = 1000) -> None:
    for n in range(first, first + count):
        side.queueing.publish(side.queueing.topic(b"t"), [b"%d " % n + bytes(size)])
        side.turn()


def numbers(messages: list[Delivery]) -> list[int]:
    return [int(message.body.split(b" ")[0]) for message in messages]


@pytest.mark.parametrize("level", ["os", "disk"])
@pytest.mark.parametrize("paused", [True, False])
def test_what_waits_is_bounded_and_pins_no_segment(tmp_path: Path, level: str, paused: bool) -> None:
    side = open_side(tmp_path, level)
    topic = side.queueing.topic(b"t")
    durable = subscribe(side, b"a", 2000)
    stalled = subscribe(side, b"tail#ephemeral", 10)
    channel = topic.channel(b"tail#ephemeral")
    if paused:
        topic.pause_channel(channel, True)
    for number in range(5):
        publish(side, number * 200, 200)
        finish(side, b"a", durable, list(durable.deliveries()))
    in_flight = list(stalled.deliveries())
    assert numbers(in_flight) == ([] if paused else list(range(10)))
    assert channel.depth() == LIMIT
    assert channel.source.dropped == 1000 - LIMIT - len(in_flight)
    assert len(topic.stream.segments) <= 2
    assert not list((tmp_path / "queues" / "t").glob("*ephemeral*"))
    topic.pause_channel(channel, False)
    if not paused:  # what is in flight can be given back though its segment is gone
        for message in in_flight:
            assert channel.requeue(stalled, message.id, 0, side.broker.mono_ms) == 0
    stalled.ready_count = 500
    side.queueing.mark_channel(channel)
    side.turn()
    again = list(stalled.deliveries())
    assert sorted(numbers(again)) == list(range(LIMIT + len(in_flight)))
    finish(side, b"tail#ephemeral", stalled, again)
    assert channel.depth() == channel.in_flight_count == 0
    publish(side, 5000, 3)
    assert numbers(list(stalled.deliveries())) == [5000, 5001, 5002]
    side.close()


def test_one_that_keeps_up_gets_everything(tmp_path: Path) -> None:
    side = open_side(tmp_path)
    reader = subscribe(side, b"tail#ephemeral", 50)
    seen: list[int] = []
    for n in range(0, 1000, 50):
        side.queueing.publish(side.queueing.topic(b"t"), [b"%d " % (n + i) for i in range(50)])
        side.turn()
        came = list(reader.deliveries())
        seen += numbers(came)
        finish(side, b"tail#ephemeral", reader, came)
    assert seen == list(range(1000))
    assert len(side.queueing.topic(b"t").stream.segments) <= 1
    side.close()


@pytest.mark.parametrize("level", ["os", "disk"])
def test_delays_and_timeouts_of_one(tmp_path: Path, level: str) -> None:
    """Nothing of it goes through the log; deferred publishes reach it like any other channel."""
    side = open_side(tmp_path, level)
    side.queueing.topic(b"t").channel(b"a")
    reader = subscribe(side, b"tail#ephemeral", 10)
    reader.msg_timeout_ms = 1_000
    channel = side.queueing.topic(b"t").channel(b"tail#ephemeral")
    publish(side, 0, 3)
    one, two, three = reader.deliveries()
    assert channel.requeue(reader, one.id, 500, side.broker.mono_ms) == 0
    assert channel.finish(reader, two.id, 0, side.broker.mono_ms) == 0
    assert (channel.deferred_count, len(side.broker.schedule)) == (1, 0)
    side.turn(600)
    assert numbers(list(reader.deliveries())) == [0]
    side.turn(500)
    assert numbers(list(reader.deliveries())) == [2]  # it timed out
    assert three.attempts == 1
    side.queueing.publish(side.queueing.topic(b"t"), [b"7 late"], 300)
    for _ in range(8):
        side.turn(100)
    assert 7 in numbers(list(reader.deliveries()))
    channel.check()
    side.close()


def test_what_another_channel_gave_back_is_not_its_own(tmp_path: Path) -> None:
    side = open_side(tmp_path)
    reader, tail = subscribe(side, b"a", 10), subscribe(side, b"tail#ephemeral", 10)
    publish(side, 0, 1)
    (message,) = reader.deliveries()
    assert side.queueing.topic(b"t").channel(b"a").requeue(reader, message.id, 300, side.broker.mono_ms) == 0
    side.queueing.mark_channel(side.queueing.topic(b"t").channel(b"a"))
    for _ in range(8):
        side.turn(200)
    assert numbers(list(reader.deliveries())) == [0]
    assert numbers(list(tail.deliveries())) == [0]
    publish(side, 1, 1)
    assert numbers(list(tail.deliveries())) == [1]
    side.close()


def test_emptied_and_left(tmp_path: Path) -> None:
    side = open_side(tmp_path)
    topic = side.queueing.topic(b"t")
    channel = topic.channel(b"tail#ephemeral")
    publish(side, 0, 20)
    assert channel.depth() == 20
    topic.empty_channel(channel)
    side.turn()
    assert channel.depth() == 0
    publish(side, 20, 5)
    assert channel.depth() == 5
    topic.delete_channel(b"tail#ephemeral")
    publish(side, 30, 3)
    assert topic.depth() == 3  # no channel: the topic keeps what comes
    assert numbers(list(subscribe(side, b"a", 10).deliveries())) == [30, 31, 32]
    side.close()


def test_what_only_ephemeral_channels_had_is_nobody_s_after_a_stop(tmp_path: Path) -> None:
    side = open_side(tmp_path)
    side.queueing.topic(b"t").channel(b"tail#ephemeral")
    publish(side, 0, 5)
    side.reopen(clean=True)
    assert side.queueing.topic(b"t").channels == {}
    publish(side, 5, 2)
    assert numbers(list(subscribe(side, b"a", 10).deliveries())) == [5, 6]
    side.close()


def test_what_is_not_meant_for_it_is_passed_over(tmp_path: Path) -> None:
    side = open_side(tmp_path)
    topic = side.queueing.topic(b"t")
    source = topic.channel(b"e#ephemeral").source
    assert isinstance(source, PassingSource)
    side.queueing.publish(topic, [b"0", b"1", b"2"])
    source.finish_ahead(0, source.head + 1)
    assert source.depth() == 2
    assert [source.body() for _ in range(2) if source.take()] == [b"0", b"2"]
    assert source.take() == 0
    side.close()


@pytest.mark.parametrize("how", ["emptied", "full"])
def test_what_is_not_meant_for_it_is_passed_over_when_it_is_shown_later(tmp_path: Path, how: str) -> None:
    """At level `disk` that is behind the flush; meanwhile the channel is emptied, or drops what is too much for it."""
    side = open_side(tmp_path)
    topic = side.queueing.topic(b"t")
    channel = topic.channel(b"e#ephemeral")
    side.queueing.publish(topic, [b"0"] * (LIMIT + 5))
    topic.pause()
    side.queueing.publish(topic, [b"1", b"2"])
    source = channel.source
    assert isinstance(source, PassingSource)
    source.finish_ahead(0, topic.stream.visible)
    assert channel.depth() == LIMIT + 5
    if how == "emptied":
        topic.empty_channel(channel)
    else:
        source.settle()
        assert source.dropped == 5
        while source.take():
            pass
    topic.unpause()
    assert channel.depth() == 1
    assert source.take()
    assert source.body() == b"2"
    side.close()
