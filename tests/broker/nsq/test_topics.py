"""Topics of kind queue: channels come and go, what is paused is kept, what nobody is owed goes."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.queueside import Reader, Side
from penstock.broker.nsq.topics import MemoryTopic, QueueTopic, Topic
from penstock.errors import Refused

LEVELS = ["memory", "os", "disk"]


def drained(side: Side, topic: Topic, name: bytes) -> list[bytes]:
    reader, channel = Reader(), topic.channel(name)
    reader.ready_count = 100
    channel.add(reader)
    topic.mark()
    side.turn()
    found = list(reader.deliveries())
    for delivery in found:
        channel.finish(reader, delivery.id, 0, 0)
    channel.remove(reader)
    return [delivery.body for delivery in found]


@pytest.mark.parametrize("level", LEVELS)
def test_the_first_channel_is_owed_everything_and_the_second_what_comes(tmp_path: Path, level: str) -> None:
    side = Side(tmp_path, level=level)
    topic = side.queueing.topic(b"t")
    assert isinstance(topic, MemoryTopic if level == "memory" else QueueTopic)
    side.queueing.publish(topic, [b"a", b"b"])
    topic.channel(b"one")
    side.turn()
    topic.channel(b"two")
    side.queueing.publish(topic, [b"c"])
    side.turn()
    assert (drained(side, topic, b"one"), drained(side, topic, b"two")) == ([b"a", b"b", b"c"], [b"c"])
    assert (topic.message_count, topic.message_bytes) == (3, 3)
    side.close()


@pytest.mark.parametrize("level", LEVELS)
def test_a_paused_topic_gives_when_it_goes_on(tmp_path: Path, level: str) -> None:
    side = Side(tmp_path, level=level)
    topic = side.queueing.topic(b"t")
    topic.channel(b"c")
    topic.pause()
    side.queueing.publish(topic, [b"x"])
    assert drained(side, topic, b"c") == []
    topic.unpause()
    side.turn()
    assert drained(side, topic, b"c") == [b"x"]
    side.close()


@pytest.mark.parametrize("level", LEVELS)
def test_emptied_and_deleted(tmp_path: Path, level: str) -> None:
    side = Side(tmp_path, level=level)
    topic = side.queueing.topic(b"t")
    side.queueing.publish(topic, [b"x"])
    topic.empty()
    assert (topic.depth(), drained(side, topic, b"c")) == (0, [])
    topic.delete_channel(b"c")
    assert topic.channels == {}
    side.queueing.delete(topic)
    assert not topic.open
    side.close()


def test_channels_have_names_and_a_limit(tmp_path: Path) -> None:
    side = Side(tmp_path, max_channels_per_topic=1)
    topic = side.queueing.topic(b"t")
    with pytest.raises(Refused, match="is not valid"):
        topic.channel(b"a b")
    assert topic.channel(b"one") is topic.channel(b"one")
    with pytest.raises(Refused, match="no more than 1 channels"):
        topic.channel(b"two")
    side.close()
