"""Sending: who may write which topic, and by which way a message is stored."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.queueside import Side
from penstock.broker.sending import Marks
from penstock.broker.topics import DONE_TOPIC, HALF_TOPIC, OP_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from penstock.errors import Refused
from penstock.wire.record import BatchItem, decode_record


@pytest.fixture
def side(tmp_path: Path) -> Side:
    return Side(tmp_path)


@pytest.mark.parametrize("name", [SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC, OP_TOPIC, b"rmq_sys_penstock_sinks"])
def test_the_brokers_own_topics_are_closed(side: Side, name: bytes) -> None:
    with pytest.raises(Refused, match="is forbidden") as caught:
        side.broker.sending.open_to_senders(name)
    assert caught.value.remoting == 16


def test_a_topic_without_permission_is_closed_and_a_new_one_is_made(side: Side) -> None:
    sending = side.broker.sending
    assert sending.open_to_senders(b"fresh").queue_count == 4
    side.broker.topics.create(b"readonly", 1, 1, 4)
    with pytest.raises(Refused, match="sending message is forbidden") as caught:
        sending.open_to_senders(b"readonly")
    assert caught.value.remoting == 16


def test_no_topic_is_made_where_none_may_be(tmp_path: Path) -> None:
    side = Side(tmp_path, auto_create_topic_enable=False)
    with pytest.raises(Refused, match="not exist") as caught:
        side.broker.sending.open_to_senders(b"fresh")
    assert (caught.value.remoting, caught.value.nsq) == (17, "E_BAD_TOPIC")


def test_a_slave_makes_no_topic_of_a_send(side: Side) -> None:
    """It refuses that one as any other; its topics are those of its master."""
    side.broker.store.follow(True)
    with pytest.raises(Refused, match="It is a slave") as caught:
        side.broker.sending.open_to_senders(b"fresh")
    assert (caught.value.remoting, side.broker.topics.get(b"fresh")) == (14, None)


@pytest.mark.parametrize(
    ("properties", "there"),
    [({}, b"t"), ({"DELAY": "0"}, b"t"), ({"DELAY": "3"}, SCHEDULE_TOPIC), ({"TIMER_DELAY_SEC": "1"}, TIMER_TOPIC)],
)
def test_the_way_of_a_message(side: Side, properties: dict[str, str], there: bytes) -> None:
    broker = side.broker
    topic = broker.topic_to_write(b"t")
    placed = broker.put(
        topic, 1, b"body", properties, born_host=broker.store_host, born_ms=7, marks=Marks(flag=5, reconsume_times=2)
    )
    data = broker.store.record_at(placed.physical)
    assert data is not None
    message = decode_record(data, 0)
    assert message is not None
    assert (message.topic.encode(), message.body, message.born_ms) == (there, b"body", 7)
    assert (message.flag, message.reconsume_times, topic.put_count) == (5, 2, 1)
    if there != b"t":
        assert (message.properties["REAL_TOPIC"], message.properties["REAL_QID"]) == ("t", "1")
        assert broker.core.alarm.due_ms <= broker.mono_ms + 10_000


def test_what_is_over_is_in_the_log_or_refused(side: Side) -> None:
    sending = side.broker.sending
    assert sending.put_over(99)
    queue = side.broker.topics.by_name[DONE_TOPIC].queues[0]
    data = side.broker.store.record_at(queue.entry(queue.max_offset - 1)[0])
    assert data is not None
    message = decode_record(data, 0)
    assert message is not None
    assert message.prepared_offset == 99
    side.broker.close()
    assert not sending.put_over(100)


def test_a_batch_of_many_short_messages_makes_no_object_for_each(side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    """A million of them held the broker's loop for 1.3 s, half of that in objects, and in looking through these for garbage."""
    topic = side.broker.topic_to_write(b"many")
    monkeypatch.setattr(BatchItem, "__new__", lambda *words, **named: pytest.fail("an object"))
    side.broker.sending.put_batch(topic, 0, [b"x"] * 100)
    assert topic.queues[0].max_offset == 100


def test_a_batch_is_all_or_none(side: Side) -> None:
    broker = side.broker
    topic = broker.topic_to_write(b"t")
    broker.sending.put_batch(topic, 0, [b"a", b"b", b"c"])
    broker.sending.put_batch(topic, 0, [b"d"])
    assert (topic.queues[0].max_offset, topic.put_count) == (4, 4)
    with pytest.raises(Refused):
        broker.sending.put_batch(topic, 0, [b"e", b"x" * (5 << 20)])
    assert (topic.queues[0].max_offset, topic.put_count) == (4, 4)


@pytest.mark.parametrize("properties", [{"TIMER_DELAY_MS": "1000"}, {"DELAY": "1"}])
def test_a_delay_is_counted_from_the_moment_however_long_the_turn_has_lasted(
    side: Side, properties: dict[str, str]
) -> None:
    """It may have been sent after the turn's time was read: by its sender's clock it came early."""
    broker = side.broker
    topic = broker.topic_to_write(b"t")
    side.turn()
    side.clock.advance(40)
    placed = broker.put(topic, 0, b"late", properties, born_host=broker.store_host, born_ms=7)
    data = broker.store.record_at(placed.physical)
    assert data is not None
    stored_ms = decode_record(data, 0).store_ms  # type: ignore[union-attr]
    assert stored_ms == side.clock.now_ms()
    side.turn()
    side.clock.advance(960)
    side.turn()
    assert topic.queues[0].max_offset == 0
    side.clock.advance(40)
    side.turn()
    assert topic.queues[0].max_offset == 1
