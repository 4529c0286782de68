"""Holding: a log topic that is paused, and one that was emptied, as NSQ's users know both of nsqd's topics."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.queueside import Reader, Side
from penstock.broker.keeping import Keeping
from penstock.broker.nsq.holding import Holding, places
from penstock.broker.nsq.logchannels import LogChannels
from penstock.errors import Refused
from penstock.words import FAR_MS


def topic_of(side: Side) -> LogChannels:
    topic = side.queueing.topic(b"t")
    assert isinstance(topic, LogChannels)
    return topic


def add(side: Side, topic: LogChannels, channel: bytes = b"c") -> Reader:
    reader = Reader()
    reader.ready_count = 100
    topic.channel(channel).add(reader)
    topic.mark()
    side.turn()
    return reader


def bodies(side: Side, reader: Reader, topic: LogChannels, channel: bytes = b"c") -> list[bytes]:
    """What came, finished."""
    side.turn()
    found = list(reader.deliveries())
    for one in found:
        topic.channels[channel].finish(reader, one.id, 0, side.broker.mono_ms)
    topic.mark()
    side.turn()
    return [one.body for one in found]


@pytest.mark.parametrize("clean", [True, False])
def test_a_topic_that_was_paused_without_channels_gives_all_channels_everything_once_it_goes_on(
    tmp_path: Path, clean: bool
) -> None:
    side = Side(tmp_path, topic=({"name": "t", "kind": "log", "queues": 2},))
    topic = topic_of(side)
    side.queueing.publish(topic, [b"1", b"2"])
    topic.pause()
    readers = {name: add(side, topic, name) for name in (b"a", b"b")}
    assert {name: bodies(side, reader, topic, name) for name, reader in readers.items()} == {b"a": [], b"b": []}
    assert topic.depth() == 2
    side.queueing.write_table()
    side.reopen(clean)
    topic = topic_of(side)
    assert topic.depth() == 2
    readers = {name: add(side, topic, name) for name in (b"a", b"b")}
    assert not any(bodies(side, reader, topic, name) for name, reader in readers.items())
    topic.unpause()
    for name, reader in readers.items():
        assert sorted(bodies(side, reader, topic, name)) == [b"1", b"2"]
    side.close()


@pytest.mark.parametrize("clean", [True, False])
def test_a_paused_topic_gives_its_channels_what_came_before(tmp_path: Path, clean: bool) -> None:
    side = Side(tmp_path, ha_port=0)
    topic = topic_of(side)
    reader = add(side, topic)
    side.queueing.publish(topic, [b"1", b"2"])
    topic.pause()
    side.queueing.publish(topic, [b"3"])
    assert bodies(side, reader, topic) == [b"1", b"2"]
    assert (topic.depth(), topic.channels[b"c"].depth()) == (1, 0)
    late = add(side, topic, b"late")  # one made now is owed what the pause holds
    assert bodies(side, late, topic, b"late") == []
    side.queueing.publish(topic, [b"4"])
    side.queueing.write_table()
    side.reopen(clean)
    topic = topic_of(side)
    assert (topic.paused, topic.depth()) == (True, 2)
    readers = {name: add(side, topic, name) for name in (b"c", b"late")}
    assert [bodies(side, one, topic, name) for name, one in readers.items()] == [[], []]
    topic.unpause()
    assert [bodies(side, one, topic, name) for name, one in readers.items()] == [[b"3", b"4"], [b"3", b"4"]]
    assert topic.depth() == 0
    side.queueing.write_table()
    side.reopen(clean)
    side.queueing.publish(topic_of(side), [b"5"])
    assert bodies(side, add(side, topic_of(side)), topic_of(side)) == [b"5"]
    side.close()


def test_emptied_without_channels_nothing_is_owed_to_the_first(tmp_path: Path) -> None:
    side = Side(tmp_path, ha_port=0)
    topic = topic_of(side)
    side.queueing.publish(topic, [b"1", b"2"])
    keeping = Keeping(side.broker.core, side.queueing)
    assert topic.depth() == 2
    assert keeping.protected() < side.broker.store.end_position
    topic.empty()
    assert topic.depth() == 0
    assert keeping.protected() == side.broker.store.log.end  # retention may have it
    side.queueing.write_table()
    side.reopen(False)
    topic = topic_of(side)
    side.queueing.publish(topic, [b"3"])
    assert topic.depth() == 1
    assert bodies(side, add(side, topic), topic) == [b"3"]
    (queue,) = topic.stored.queues
    assert queue.min_offset == 0  # groups read all of it
    side.close()


def test_emptied_with_channels_they_keep_what_is_theirs(tmp_path: Path) -> None:
    side = Side(tmp_path, ha_port=0)
    topic = topic_of(side)
    topic.channel(b"c")
    side.queueing.publish(topic, [b"1"])
    topic.empty()  # it is the channel's already
    topic.pause()
    side.queueing.publish(topic, [b"2"])
    with pytest.raises(Refused, match="has not finished what came before the pause"):
        topic.empty()
    reader = add(side, topic)
    assert bodies(side, reader, topic) == [b"1"]
    topic.empty()
    assert topic.depth() == 0
    side.queueing.publish(topic, [b"3"])
    topic.unpause()
    assert bodies(side, reader, topic) == [b"3"]
    side.close()


def test_what_is_none_is_refused() -> None:
    for told in (None, "1", [None], [-1], [1 << 62], [True], {"0": 1}):
        with pytest.raises(ValueError, match="are none"):
            places(told)
    assert places([0, 7]) == [0, 7]


def test_a_queue_that_came_during_the_pause_is_held_whole() -> None:
    holding = Holding()
    assert holding.limit(0) == FAR_MS
    holding.hold([5])
    assert (holding.limit(0), holding.limit(1)) == (5, 0)
    holding.release()
    assert holding.limit(1) == FAR_MS
