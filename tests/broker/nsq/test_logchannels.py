"""LogChannels: a log topic as NSQ sees it, and its channels as the groups that RocketMQ's tools see."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.queueside import Reader, Side
from penstock.broker.levels import LEVEL_DISK, LEVEL_OS
from penstock.broker.nsq.logchannels import LogChannels
from penstock.broker.nsq.sources import queue_lanes
from penstock.errors import Refused

RULES = ({"name": "log*", "kind": "log", "queues": 2},)


@pytest.fixture
def side(tmp_path: Path) -> Iterator[Side]:
    side = Side(tmp_path, topic=RULES)
    yield side
    side.broker.close(False)


def reader_of(side: Side, topic: LogChannels) -> Reader:
    reader = Reader()
    reader.ready_count = 100
    topic.channel(b"c").add(reader)
    topic.mark()
    side.turn()
    return reader


def topic_of(side: Side) -> LogChannels:
    topic = side.queueing.topic(b"log-t")
    assert isinstance(topic, LogChannels)
    return topic


def test_a_batch_lies_together_in_one_queue(side: Side) -> None:
    topic = topic_of(side)
    side.queueing.publish(topic, [b"a", b"b"])
    side.queueing.publish(topic, [b"c"])
    assert sorted(queue.max_offset for queue in topic.stored.queues) == [1, 2]
    assert topic.depth() == 3
    assert {delivery.body for delivery in reader_of(side, topic).deliveries()} == {b"a", b"b", b"c"}


def test_what_a_channel_finished_is_its_groups_committed_offset(side: Side) -> None:
    topic = topic_of(side)
    side.queueing.publish(topic, [b"a", b"b"])
    reader = reader_of(side, topic)
    channel = topic.channels[b"c"]
    for delivery in reader.deliveries():
        channel.finish(reader, delivery.id, 0, 0)
    assert sorted(side.broker.offsets.queues("c", "log-t").values()) == [0, 2]


def test_a_reset_by_the_tools_moves_the_channel(side: Side) -> None:
    topic = topic_of(side)
    side.queueing.publish(topic, [b"a", b"b"])
    reader = reader_of(side, topic)
    assert len(list(reader.deliveries())) == 2
    assert not topic.reset(b"nobody", {0: 0})
    assert topic.reset(b"c", {0: 0, 1: 0, 7: 0})
    side.turn()
    assert {delivery.body for delivery in reader.deliveries()} == {b"a", b"b"}


def test_a_second_channel_begins_at_the_end(side: Side) -> None:
    topic = topic_of(side)
    side.queueing.publish(topic, [b"old"])
    topic.channel(b"first")
    second = topic.channel(b"second")
    assert (topic.channels[b"first"].depth(), second.depth()) == (1, 0)


def test_a_log_is_not_emptied_and_keeps_no_topic_after_its_end(side: Side) -> None:
    topic = topic_of(side)
    with pytest.raises(Refused, match="not emptied"):
        topic.empty()
    side.queueing.delete(topic)
    assert side.broker.topics.get(b"log-t") is None
    with pytest.raises(Refused, match="was deleted"):
        side.queueing.publish(topic, [b"x"])


def test_a_channel_reads_what_has_reached_the_level_that_its_topic_has_now(side: Side) -> None:
    topic = topic_of(side)
    (lane, _) = queue_lanes(topic.channel(b"c"))
    settings, stored = topic.stored.settings(), side.broker.topics
    stored.create(b"log-t", 2, 2, level=LEVEL_DISK)
    for _ in range(2):
        side.queueing.publish(topic, [b"x"])
    assert lane.stream.end() == 0
    stored.undo(topic.stored, settings)  # it could not be stored
    assert (topic.level, lane.stream.end()) == (LEVEL_OS, 1)


def test_a_channel_sees_on_what_it_saw_before_its_topic_had_a_higher_level(side: Side) -> None:
    topic = topic_of(side)
    (_, lane) = queue_lanes(topic.channel(b"c"))
    side.queueing.publish(topic, [b"x"])
    assert lane.stream.end() == 1
    side.broker.topics.create(b"log-t", 2, 2, level=LEVEL_DISK)
    for _ in range(2):
        side.queueing.publish(topic, [b"y"])
    assert lane.stream.end() == 1
    side.turn()
    assert lane.stream.end() == 2
