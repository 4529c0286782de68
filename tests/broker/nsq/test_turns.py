"""Marks and timers of channels."""

from __future__ import annotations

from broker.queueside import Reader
from penstock import words
from penstock.broker.nsq.turns import Turns
from penstock.delivery.channel import Channel
from penstock.delivery.source import MemorySource
from penstock.wire.nsq import message_data


class Owner:
    """Hears of a channel's next moment."""

    def __init__(self, turns: Turns) -> None:
        self.turns = turns

    def due(self, channel: Channel) -> None:
        self.turns.time(channel)


def channel_of(turns: Turns, name: bytes, timeout_ms: int) -> tuple[Channel, Reader]:
    source = MemorySource(10, None)
    channel = Channel(name, b"t", source, owner=Owner(turns))
    consumer = Reader()
    consumer.ready_count, consumer.msg_timeout_ms = 10, timeout_ms
    channel.add(consumer)
    source.put([message_data(1, 0, 1, b"x")])
    return channel, consumer


def test_a_channel_is_marked_once_a_turn() -> None:
    turns = Turns()
    channel, _ = channel_of(turns, b"c", 100)
    assert not turns.marked()
    turns.mark_channel(channel)
    turns.mark_channel(channel)
    assert turns.marked()
    assert turns.take_channels() == [channel]
    assert not turns.marked()
    channel.pump(0)
    turns.mark_channel(channel)
    assert turns.take_channels() == [channel]


def test_a_timer_wakes_its_channel_and_goes_on() -> None:
    turns = Turns()
    early, _ = channel_of(turns, b"early", 100)
    late, _ = channel_of(turns, b"late", 900)
    assert turns.next_ms() == words.FAR_MS
    for channel in (late, early):
        channel.pump(1_000)
    assert turns.next_ms() == 1_100
    turns.tick(1_099)
    assert turns.take_channels() == []
    turns.tick(1_100)
    assert turns.take_channels() == [early]
    assert early.timeout_count == 1
    assert turns.next_ms() == 1_900
    early.pump(1_200)
    assert turns.next_ms() == 1_300


def test_a_forgotten_channel_is_not_woken() -> None:
    turns = Turns()
    channel, _ = channel_of(turns, b"c", 100)
    channel.pump(1_000)
    turns.forget(channel)
    turns.tick(5_000)
    assert turns.take_channels() == []
    assert channel.timeout_count == 0
