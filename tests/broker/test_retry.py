"""What a consumer could not do: when a message is dead, and where it goes, for groups and for channels."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.queueside import Side
from penstock.broker.groups import Group
from penstock.broker.retry import Death, dead_letter_name, is_dead, without_delay
from penstock.broker.topics import SCHEDULE_TOPIC, TIMER_TOPIC
from penstock.errors import Refused
from penstock.message import ReceivedMessage
from penstock.wire.names import DEAD_PROPERTIES
from penstock.wire.record import PROPERTIES_BYTES_MAX, decode_record, format_properties


@pytest.mark.parametrize(
    ("times", "asked", "dead"),
    [(15, None, False), (16, None, True), (15, -1, False), (16, -1, True), (2, 2, True), (1, 2, False), (0, 0, True)],
)
def test_when_a_message_is_dead(times: int, asked: int | None, dead: bool) -> None:
    assert is_dead(Group("g", retry_max=16), times, asked) is dead


def test_a_name_of_dead_letters_is_never_too_long() -> None:
    assert dead_letter_name(b"t", b"c") == b"t.c.dead"
    assert dead_letter_name(b"t#ephemeral", b"c#tmp") == b"t.c.dead"
    long = dead_letter_name(b"t" * 60, b"c" * 60)
    assert (len(long), long[-5:]) == (64, b".dead")


def test_a_delay_is_not_inherited() -> None:
    properties = {"DELAY": "3", "TIMER_DELAY_MS": "1", "TIMER_DELAY_SEC": "1", "TIMER_DELIVER_MS": "1", "KEYS": "k"}
    assert without_delay(properties) == {"KEYS": "k"}


def last(side: Side, topic: bytes) -> ReceivedMessage:
    queues = side.broker.topics.by_name[topic].queues
    (queue,) = [queue for queue in queues if queue.max_offset]
    data = side.broker.store.record_at(queue.entry(queue.max_offset - 1)[0])
    assert data is not None
    message = decode_record(data, 0)
    assert message is not None
    return message


def test_a_group_gives_back_until_the_message_is_dead(tmp_path: Path) -> None:
    side = Side(tmp_path)
    broker = side.broker
    placed = broker.put(broker.topic_to_write(b"t"), 0, b"b", {"KEYS": "k"}, born_host=broker.store_host, born_ms=1)
    assert broker.send_back(placed.physical, "g", 0, 1, "origin") is not None
    waiting = last(side, b"SCHEDULE_TOPIC_XXXX")
    assert (waiting.properties["DELAY"], waiting.properties["REAL_TOPIC"]) == ("3", "%RETRY%g")
    for _ in range(12):
        side.turn(1_000)
    again = last(side, b"%RETRY%g")
    assert (again.body, again.reconsume_times, again.properties["RETRY_TOPIC"]) == (b"b", 1, "t")
    assert broker.send_back(again.physical_offset, "g", 0, 1, "origin") is not None
    dead = last(side, b"%DLQ%g")
    assert (dead.body, dead.reconsume_times, dead.properties["ORIGIN_MESSAGE_ID"]) == (b"b", 2, "origin")
    assert broker.groups.by_name["g"].sent_back == 2
    side.close()


def test_a_separator_in_a_value_is_no_reason_to_keep_a_message_in_hand(tmp_path: Path) -> None:
    """RocketMQ's clients send such ones, delayed ones, too, and read them again."""
    side = Side(tmp_path)
    broker = side.broker
    topic, odd = broker.topic_to_write(b"t"), {"a": "x\x01y"}
    broker.put(topic, 0, b"later", odd | {"DELAY": "1"}, born_host=broker.store_host, born_ms=1)
    placed = broker.put(topic, 0, b"b", odd, born_host=broker.store_host, born_ms=1)
    assert broker.send_back(placed.physical, "g", -1, 16, "origin", None, "client-1", "") is not None
    assert last(side, b"%DLQ%g").properties["a"] == "x\x01y"
    side.close()


def test_a_channels_dead_letters_are_its_groups(tmp_path: Path) -> None:
    side = Side(tmp_path)
    side.broker.retry.bury(b"a.b", b"t", None, b"body", Death("attempts", "a.b", 3, "me"))
    dead = last(side, b"%DLQ%a%2Eb")
    assert (dead.body, dead.properties["RETRY_TOPIC"], dead.reconsume_times) == (b"body", "t", 3)
    assert (dead.properties["DLQ_GROUP"], dead.properties["DLQ_CLIENT"]) == ("a.b", "me")
    side.close()


def test_a_dead_letter_says_why_and_when(tmp_path: Path) -> None:
    side = Side(tmp_path)
    broker = side.broker
    placed = broker.put(
        broker.topic_to_write(b"t"), 0, b"b", {"KEYS": "k", "DLQ_DETAIL": "of an earlier death"},
        born_host=broker.store_host, born_ms=1,
    )  # fmt: skip
    for level, limit, said, reason, detail in (
        (-1, 16, "no such\x01customer\ud800\n", "rejected", "no such customer? "),
        (0, 0, "", "attempts", None),
    ):
        assert broker.send_back(placed.physical, "g", level, limit, "origin", None, "client-1", said) is not None
        dead = last(side, b"%DLQ%g")
        assert {name: dead.properties.get(name) for name in DEAD_PROPERTIES} == {
            "DLQ_REASON": reason, "DLQ_TIME": str(broker.now_ms), "DLQ_GROUP": "g", "DLQ_ATTEMPTS": "1",
            "DLQ_CLIENT": "client-1", "DLQ_DETAIL": detail,
        }  # fmt: skip
        assert (dead.properties["KEYS"], dead.properties["ORIGIN_MESSAGE_ID"]) == ("k", "origin")
    side.close()


@pytest.mark.parametrize("left", [0, 5, 30, 200])
def test_properties_that_are_nearly_too_long_lose_no_dead_letter(tmp_path: Path, left: int) -> None:
    side = Side(tmp_path)
    broker = side.broker
    own = {"WAIT": "false", "RETRY_TOPIC": "t", "ORIGIN_MESSAGE_ID": "origin", "fill": ""}
    own["fill"] = "ü" * ((PROPERTIES_BYTES_MAX - left - len(format_properties(own))) // 2)
    placed = broker.put(broker.topic_to_write(b"t"), 0, b"b", own, born_host=broker.store_host, born_ms=1)
    assert broker.send_back(placed.physical, "g", -1, 16, "origin", None, "client-1", "ö" * 1_000) is not None
    dead = last(side, b"%DLQ%g")
    assert own.items() <= dead.properties.items()
    assert ("DLQ_REASON" in dead.properties) == (left >= 30)
    assert ("DLQ_CLIENT" in dead.properties) == (left >= 200)
    assert "DLQ_DETAIL" not in dead.properties
    side.close()


@pytest.mark.parametrize("left", [0, 10, 60, 200, 400])
@pytest.mark.parametrize("delay_ms", [None, 1_000])
def test_what_finds_no_room_for_a_retry_is_a_dead_letter(tmp_path: Path, left: int, delay_ms: int | None) -> None:
    """With all its own properties. Refused, it would be given back for ever."""
    side = Side(tmp_path)
    broker = side.broker
    own = {"KEYS": "k", "fill": ""}
    own["fill"] = "x" * (PROPERTIES_BYTES_MAX - left - len(format_properties(own)))
    placed = broker.put(broker.topic_to_write(b"t"), 0, b"b", own, born_host=broker.store_host, born_ms=1)
    assert broker.send_back(placed.physical, "g", 0, 16, "origin", delay_ms, "client-1", "") is not None
    if left < 200:
        found = last(side, b"%DLQ%g")
        assert ("RETRY_TOPIC" in found.properties) == (left >= 60)
    else:
        found = last(side, SCHEDULE_TOPIC if delay_ms is None else TIMER_TOPIC)
    assert own.items() <= found.properties.items()
    assert (found.body, found.reconsume_times, broker.groups.by_name["g"].sent_back) == (b"b", 1, 1)
    side.close()


def test_a_delay_that_nobody_can_keep_is_refused_and_buries_nothing(tmp_path: Path) -> None:
    side = Side(tmp_path)
    broker = side.broker
    placed = broker.put(broker.topic_to_write(b"t"), 0, b"b", {}, born_host=broker.store_host, born_ms=1)
    with pytest.raises(Refused):
        broker.send_back(placed.physical, "g", 0, 16, "origin", 1 << 60)
    assert b"%DLQ%g" not in broker.topics.by_name
    side.close()
