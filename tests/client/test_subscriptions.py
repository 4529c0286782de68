"""`client.subscriptions`: expressions, start positions and pushed offsets."""

from datetime import UTC, datetime

import pytest

from penstock.client.routes import MessageQueue
from penstock.client.subscriptions import (
    Subscription,
    check_group,
    check_topic,
    consume_from,
    mq_table,
    read_offsets,
    selection,
    start_ms,
)
from penstock.errors import WireError
from penstock.message import ReceivedMessage
from penstock.wire.fastjson import dumps, loads


def tagged(tag: str | None) -> ReceivedMessage:
    return ReceivedMessage("T", b"", 0, 0, 0, {"TAGS": tag} if tag else {})


def test_tags() -> None:
    assert Subscription("T", " a || b||").tags == {"a", "b"}
    assert Subscription("T", "a").wants(tagged("a"))
    assert not Subscription("T", "a").wants(tagged("b"))
    assert not Subscription("T", "a").wants(tagged(None))
    for everything in ("*", "", " * "):
        assert Subscription("T", everything).wants(tagged("x"))
    assert Subscription("T", "a > 5", "SQL92").wants(tagged("x"))


def test_a_selection_is_tags_or_an_expression_over_properties() -> None:
    assert selection("T") == Subscription("T")
    assert selection("T", "a || b", version=3) == Subscription("T", "a || b", "TAG", 3)
    by_property = selection("T", where="n > 5 AND TAGS = 'a'")
    assert by_property.as_json()["expressionType"] == "SQL92"
    assert by_property.as_json()["subString"] == "n > 5 AND TAGS = 'a'"
    assert by_property.wants(tagged("b"))  # the broker has looked already
    with pytest.raises(ValueError, match="TAGS = 'a'"):
        selection("T", "a", "n > 5")
    for wrong in ("", "n >", "n LIKE 'x'", "n", "(" * 70 + "n = 1" + ")" * 70)[:3]:
        with pytest.raises(ValueError, match="Parse"):
            selection("T", where=wrong)


def test_subscription_data() -> None:
    assert Subscription("T", "TagA", version=7).as_json() == {
        "classFilterMode": False,
        "codeSet": [2598919],
        "expressionType": "TAG",
        "subString": "TagA",
        "subVersion": 7,
        "tagsSet": ["TagA"],
        "topic": "T",
    }


def test_start() -> None:
    assert start_ms("first") is start_ms("last") is None
    assert start_ms(5) == 5
    assert start_ms(datetime(2026, 1, 1, tzinfo=UTC)) == 1_767_225_600_000
    with pytest.raises(ValueError):
        start_ms(datetime(2026, 1, 1))
    for before in (-1, datetime(1, 1, 1, tzinfo=UTC), datetime(1969, 12, 31, tzinfo=UTC)):
        assert start_ms(before) == 0
    assert start_ms(1 << 80) == (1 << 63) - 1
    assert [consume_from(s) for s in ("first", "last", 5)] == [
        "CONSUME_FROM_FIRST_OFFSET",
        "CONSUME_FROM_LAST_OFFSET",
        "CONSUME_FROM_TIMESTAMP",
    ]


def test_pushed_offsets_in_all_forms() -> None:
    queue = MessageQueue("T", "a", 1)
    text = b'{"brokerName":"a","queueId":1,"topic":"T"}'
    for body in (
        b'{"offsetTable":{' + text + b":5}}",
        b'{"offsetTable":[[' + text + b",5]]}",
        b'{"offsetTable":[{"brokerName":"a","queueId":1,"topic":"T","offset":5}]}',
        dumps({"offsetTable": mq_table({queue: 5})}),
    ):
        assert list(read_offsets(loads(body))) == [(queue, 5)]
    assert list(read_offsets({"offsetTable": {}})) == []
    for bad in (None, 5, {"offsetTable": {"x": 1}}, {"offsetTable": [5]}, {"offsetTable": [[{}, 1]]}):
        with pytest.raises(WireError):
            list(read_offsets(bad))


@pytest.mark.parametrize("name", ["", " ", "a b", "a\n", "t" * 128, "ü", "a/b"])
def test_a_name_that_no_topic_can_have_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="no topic can be called"):
        check_topic(name)


@pytest.mark.parametrize("name", ["%RETRY%g", "a|b_-", "t" * 127, "queue.of-nsq", "q#ephemeral"])
def test_names_of_both_kinds_of_topic(name: str) -> None:
    check_topic(name)


@pytest.mark.parametrize("name", ["", "a b", "g" * 256, "gruppe-ü", "a\n"])
def test_a_name_that_no_group_can_have_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="no group can be called"):
        check_group(name)


@pytest.mark.parametrize("group", ["a|b%_-9", "g" * 255, "channel.of-nsq", "c#ephemeral"])
def test_names_of_groups_and_channels(group: str) -> None:
    check_group(group)


def test_a_listener_is_no_expression() -> None:
    """As clients of RocketMQ in other libraries write it: the consumer failed at its start, and said nothing of it."""
    with pytest.raises(TypeError, match="listener="):
        selection("T", print)  # type: ignore[arg-type]
