"""Topics of kind queue: channels come and go, what is paused is kept, what nobody is owed goes."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.queueside import Quick, Reader, Side
from penstock.broker.nsq.memorytopics import MemoryTopic
from penstock.broker.nsq.topics import QueueTopic, Topic
from penstock.errors import DiskFull, Refused

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
def test_what_a_paused_topic_held_and_was_emptied_of_is_in_no_count_after_a_restart(tmp_path: Path, level: str) -> None:
    side = Side(tmp_path, level=level)
    topic = side.queueing.topic(b"t")
    topic.channel(b"c")
    side.queueing.publish(topic, [b"before"] * 5)
    side.turn()
    topic.pause()
    side.queueing.publish(topic, [b"while"] * 7)
    side.turn()
    topic.empty()
    side.reopen(clean=True)
    topic = side.queueing.topics[b"t"]
    assert (topic.depth(), topic.channels[b"c"].depth()) == (0, 5)
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


@pytest.mark.parametrize("size", [1, 500, 40_000])
def test_messages_in_memory_are_every_channels_own(tmp_path: Path, size: int) -> None:
    """One channel after the other takes, finishes and is emptied, over memory and disk queues, while more comes."""
    side = Side(tmp_path, level="memory", mem_queue_size=20, max_bytes_per_file=1 << 20, max_msg_size=1 << 17)
    topic = side.queueing.topic(b"t")
    for name in (b"one", b"two", b"three"):
        topic.channel(name)
    told = []
    for turn in range(12):
        batch = [b"%d-%d" % (turn, n) * size for n in range(1 + turn % 4)]
        side.queueing.publish(topic, batch)
        side.queueing.publish(topic, batch[:1])
        told += [*batch, batch[0]]
        if turn % 3 == 2:
            side.turn()
        if turn == 5:
            assert drained(side, topic, b"one") == told
            topic.channels[b"two"].empty()
    assert drained(side, topic, b"three") == told
    assert drained(side, topic, b"one") == told[-len(told) + told.index(b"6-0" * size) :]
    assert drained(side, topic, b"two") == told[told.index(b"6-0" * size) :]
    side.close()


def test_what_one_channel_cannot_take_does_no_harm_to_another(tmp_path: Path) -> None:
    """The publish is refused, nobody has it, and the next one does not lie over what there is."""
    files = FullNow()
    side = Side(tmp_path, level="memory", mem_queue_size=3, files=files)
    topic = side.queueing.topic(b"t")
    for name in (b"narrow", b"wide#ephemeral"):
        topic.channel(name)
    reader = Reader()
    reader.ready_count = 100
    topic.channels[b"wide#ephemeral"].add(reader)
    side.queueing.publish(topic, [b"a", b"b", b"c"])
    side.turn()
    files.full = True
    topic.channels = dict(sorted(topic.channels.items(), reverse=True))  # the wide one comes first
    with pytest.raises(Refused, match="no room"):
        side.queueing.publish(topic, [b"refused"])
    files.full = False
    side.queueing.publish(topic, [b"d"])
    side.turn()
    assert [delivery.body for delivery in reader.deliveries()] == [b"a", b"b", b"c", b"d"]
    assert drained(side, topic, b"narrow") == [b"a", b"b", b"c", b"d"]
    side.close()


class FullNow(Quick):
    """A disk that takes nothing while it is full."""

    full = False

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> int:
        if self.full and create:
            raise DiskFull("no room (by order of the test)")
        return super().open(path, create=create, writable=writable)


@pytest.mark.parametrize("what", ["topic", "channel"])
def test_a_memory_topic_that_is_made_again_has_a_disk_again(tmp_path: Path, what: str) -> None:
    side = Side(tmp_path, level="memory", mem_queue_size=3)
    topic = side.queueing.topic(b"t")
    topic.channel(b"a")
    side.turn()
    if what == "topic":
        side.queueing.delete(topic)
    else:
        topic.delete_channel(b"a")
    topic = side.queueing.topic(b"t")
    channel = topic.channel(b"a")
    side.queueing.publish(topic, [b"x"] * 9)
    side.turn()
    assert channel.depth() == 9
    side.reopen(True)
    assert side.queueing.topics[b"t"].channels[b"a"].depth() == 9
    side.close()


@pytest.mark.parametrize("level", ["memory", "os", "disk"])
def test_what_a_paused_topic_holds_is_its_own(tmp_path: Path, level: str) -> None:
    """It goes neither to a channel that is made meanwhile nor with one that is deleted."""
    side = Side(tmp_path, level=level)
    topic = side.queueing.topic(b"t")
    side.queueing.publish(topic, [b"before"])
    topic.pause()
    side.turn()
    channel = topic.channel(b"a")
    side.queueing.publish(topic, [b"while"])
    side.turn()
    assert (topic.depth(), channel.depth()) == (2, 0)
    topic.delete_channel(b"a")
    side.turn()
    assert topic.depth() == 2
    channel = topic.channel(b"a")
    topic.unpause()
    side.turn()
    assert (topic.depth(), channel.depth()) == (0, 2)
    side.close()
