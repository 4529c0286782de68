"""Messages are values: what they are made of, and what they tell of themselves."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from penstock.message import Message, ReceivedMessage
from penstock.msgid import offset_msg_id, pack_host


def test_one_key_may_be_given_as_it_is() -> None:
    assert Message("T", b"x", keys="order-7").keys == ("order-7",)  # type: ignore[arg-type]
    assert Message("T", b"x", keys=("a", "b")).keys == ("a", "b")


def test_what_no_message_can_be() -> None:
    with pytest.raises(TypeError, match="a str, not NoneType"):
        Message(None, b"x")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="bytes, not str"):
        Message("T", "text")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="not both"):
        Message("T", b"", delay_level=3, deliver_at_ms=5)
    with pytest.raises(AttributeError, match="immutable"):
        Message("T", b"").body = b"other"  # type: ignore[misc]


@pytest.mark.parametrize(
    "given",
    [
        {"properties": {"n": 5}},
        {"properties": {"n": None}},
        {"properties": {5: "n"}},
        {"keys": (5,)},
        {"tags": 5},
        {"sharding_key": 5},
    ],
)
def test_texts_of_a_message_are_texts(given: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=r"are str, and .* is none"):
        Message("T", b"", **given)


def test_what_a_received_message_tells() -> None:
    properties = {"TAGS": "paid", "KEYS": "a  b", "UNIQ_KEY": "U1", "__SHARDINGKEY": "customer"}
    message = ReceivedMessage(
        "T", b"x", 1, 2, 300, properties, born_ms=1_000, store_ms=2_500, store_host="127.0.0.1:10911", reconsume_times=2
    )
    assert (message.tags, message.keys, message.uniq_key, message.sharding_key) == (
        "paid",
        ("a", "b"),
        "U1",
        "customer",
    )
    assert message.attempts == 3
    assert message.born_at == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    assert message.stored_at == datetime(1970, 1, 1, 0, 0, 2, 500_000, tzinfo=UTC)
    assert message.offset_msg_id == offset_msg_id(pack_host("127.0.0.1:10911"), 300)


def test_the_id_of_a_message_is_the_first_there_is() -> None:
    bare = ReceivedMessage("T", b"", 0, 0, 300, store_host="127.0.0.1:10911")
    assert bare.msg_id == bare.offset_msg_id
    assert (bare.tags, bare.keys, bare.uniq_key) == (None, (), None)
    assert ReceivedMessage("T", b"", 0, 0, 0, {"UNIQ_KEY": "U1"}).msg_id == "U1"
    assert ReceivedMessage("T", b"", 0, -1, -1, {"UNIQ_KEY": "U1"}, nsq_id="0f" * 8).msg_id == "0f" * 8
