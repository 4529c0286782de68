"""`keeping`: single topics keep their messages shorter, or less, or longer than the log."""

from __future__ import annotations

from pathlib import Path

from broker.queueside import Reader, Side
from penstock.broker import keeping
from penstock.broker.topics import PLAIN, LogTopic
from penstock.delivery.channel import Channel

RULES = ({"name": "*", "kind": "log", "queues": 2},)
HOUR = 3_600_000


def topic_of(side: Side, name: bytes = b"t") -> LogTopic:
    return side.broker.topic_to_write(name)


def send(side: Side, topic: LogTopic, count: int, size: int = 100) -> None:
    for n in range(count):
        side.broker.put(topic, n % 2, b"x" * size, {}, born_host=side.broker.store_host, born_ms=side.broker.now_ms)


def keep(side: Side, topic: LogTopic, keep_ms: int, keep_bytes: int) -> None:
    side.broker.topics.keep(topic, PLAIN._replace(keep_ms=keep_ms, keep_bytes=keep_bytes), 5)


def held(topic: LogTopic) -> list[int]:
    return [queue.max_offset - queue.min_offset for queue in topic.queues]


def test_what_is_too_old_is_out_of_sight(tmp_path: Path) -> None:
    side = Side(tmp_path, topic=RULES)
    topic, other = topic_of(side), topic_of(side, b"other")
    keep(side, topic, HOUR, 0)
    channel, reader = side.queueing.topic(b"t").channel(b"c"), Reader()
    send(side, topic, 4)
    send(side, other, 4)
    side.turn(HOUR // 2)
    send(side, topic, 6)
    assert held(topic) == [5, 5]
    side.turn(HOUR // 2 + keeping.EVERY_MS)
    side.turn(1)
    assert held(topic) == [3, 3]
    assert held(other) == [2, 2]
    reader.ready_count = 100
    channel.add(reader)
    side.queueing.mark_channel(channel)
    side.turn(1)
    assert len(list(reader.deliveries())) == 6
    channel.remove(reader)
    side.broker.save_tables()  # as the process does at the end of each turn
    for clean in (False, True):
        side.reopen(clean)
        topic = topic_of(side)
        assert (topic.keep_ms, held(topic)) == (HOUR, [3, 3])
    side.turn(2 * HOUR)
    side.turn(1)
    assert held(topic) == [0, 0]
    side.close()


def test_what_is_too_much_goes_oldest_first(tmp_path: Path) -> None:
    side = Side(tmp_path, topic=RULES)
    topic = topic_of(side)
    send(side, topic, 10, 1_000)
    entry = topic.queues[0].entry(0)
    assert entry is not None
    keep(side, topic, 0, 4 * entry[1])
    side.turn(keeping.EVERY_MS)
    side.turn(1)
    assert held(topic) == [2, 2]
    send(side, topic, 1, 1_000)
    side.turn(keeping.EVERY_MS)
    side.turn(1)
    assert held(topic) == [2, 2]
    keep(side, topic, 0, 0)
    send(side, topic, 10, 1_000)
    side.turn(keeping.EVERY_MS)
    side.turn(1)
    assert held(topic) == [7, 7]
    assert "retentionBytes" not in topic.as_config()
    side.close()


def test_a_long_topic_is_counted_in_several_turns(tmp_path: Path) -> None:
    side = Side(tmp_path, topic=RULES)
    topic = topic_of(side)
    send(side, topic, 50)
    entry = topic.queues[0].entry(0)
    assert entry is not None
    keep(side, topic, 0, 6 * entry[1])
    before, keeping.COUNT_MAX = keeping.COUNT_MAX, 20
    try:
        side.turn(keeping.EVERY_MS)
        assert held(topic) == [25, 25]
        for _ in range(10):
            side.turn(1)
    finally:
        keeping.COUNT_MAX = before
    assert held(topic) == [3, 3]
    side.close()


def test_one_that_keeps_longer_protects_the_log(tmp_path: Path) -> None:
    side = Side(tmp_path, topic=RULES, file_reserved_time_hours=1)
    topic, other = topic_of(side), topic_of(side, b"other")
    send(side, other, 2)
    send(side, topic, 2)
    send(side, other, 2)
    first = topic.queues[0].entry(0)
    assert first is not None
    assert side.broker.keeping.protected() == side.broker.store.end_position
    keep(side, topic, 48 * HOUR, 0)
    assert side.broker.keeping.protected() == first[0]
    retention = side.broker.store.upkeep.retention
    assert retention is not None
    assert retention.protected is not None
    assert retention.protected() == first[0]
    side.turn(47 * HOUR)
    assert side.broker.keeping.protected() == first[0]
    side.turn(2 * HOUR)
    assert side.broker.keeping.protected() == side.broker.store.end_position
    side.close()


def test_what_a_channel_has_not_finished_stays_where_nsqs_topics_have_copies(tmp_path: Path) -> None:
    side = Side(tmp_path, ha_port=0, file_reserved_time_hours=1, level="os")
    topic = side.queueing.topic(b"jobs")
    stored = side.broker.topics.by_name[b"jobs"]
    assert stored.as_config()["keptForChannels"] is True
    protected = side.broker.keeping.protected

    def place(offset: int) -> int:
        entry = stored.queues[0].entry(offset)
        assert entry is not None
        return int(entry[0])

    def publish(count: int) -> None:
        for _ in range(count):
            side.queueing.publish(topic, [b"x"])
        side.turn(1)

    assert protected() == side.broker.store.end_position
    publish(3)
    assert protected() == place(0)  # owed to the first channel
    slow, quick = topic.channel(b"slow"), topic.channel(b"quick")
    publish(3)

    def finish(channel: Channel, count: int) -> None:
        reader = Reader()
        reader.ready_count = count
        channel.add(reader)
        side.queueing.mark_channel(channel)
        side.turn(1)
        for delivery in reader.deliveries():
            assert channel.finish(reader, delivery.id, side.broker.now_ns, side.broker.mono_ms) == 0
        channel.remove(reader)
        side.turn(1)

    topic.channel(b"passing#ephemeral")  # nobody's loss
    finish(quick, 6)
    assert protected() == place(0)
    finish(slow, 2)
    assert protected() == place(2)
    for clean in (False, True):
        side.broker.save_tables()
        side.reopen(clean)
        topic, stored = side.queueing.topic(b"jobs"), side.broker.topics.by_name[b"jobs"]
        protected = side.broker.keeping.protected
        assert protected() == place(2)
    topic.delete_channel(b"slow")
    assert protected() == side.broker.store.end_position
    side.close()


def test_a_queue_that_came_later_is_owed_too(tmp_path: Path) -> None:
    side = Side(tmp_path, ha_port=0, file_reserved_time_hours=1, level="os")
    topic = side.queueing.topic(b"jobs")
    topic.channel(b"c")
    stored = side.broker.topics.by_name[b"jobs"]
    side.broker.topics.create(b"jobs", 2, 2, more=stored.settings().more, now_ms=5)
    send(side, stored, 2)
    first = stored.queues[0].entry(0)
    assert first is not None
    assert stored.owed
    assert side.broker.keeping.protected() == first[0]
    side.close()


def test_no_other_topic_waits_for_channels(tmp_path: Path) -> None:
    side = Side(tmp_path, topic=RULES, ha_port=0, level="os")
    topic = topic_of(side)
    send(side, topic, 4)
    side.queueing.topic(b"t").channel(b"c")
    side.queueing.topic(b"by-rule").channel(b"c")
    assert [t for t in side.broker.topics.by_name.values() if t.owed] == []
    assert side.broker.keeping.protected() == side.broker.store.end_position
    side.close()
