"""A message as a line of JSON and back: the same bytes, and no line that is none gets through."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from penstock.cli.rows import BadRow, body_fields, message_of, parse_row, row_of
from penstock.message import ReceivedMessage


def test_bodies_come_back_byte_for_byte() -> None:
    dice = random.Random(14)
    bodies = [b"", b"\0", b"\xff\xfe", "ä\u2028\n".encode(), b'{"body": 1}', b"\xed\xa0\x80"]
    bodies += [dice.randbytes(dice.randrange(1, 40)) for _ in range(300)]
    for body in bodies:
        line = json.dumps(body_fields(body), ensure_ascii=False)
        assert "\n" not in line
        assert message_of(parse_row(line.encode()), "t", 0).body == body


def test_what_a_broker_adds_is_not_sent_again() -> None:
    told = {
        "KEYS": "a b",
        "TAGS": "t",
        "mine": "x",
        "UNIQ_KEY": "0" * 32,
        "WAIT": "true",
        "PENSTOCK_X": "1",
        "TIMER_X": "2",
    }
    found = row_of(ReceivedMessage("t", b"x", 3, 9, 77, told, 5, store_host="127.0.0.1:1"))
    assert (found["queue"], found["offset"], found["flag"]) == (3, 9, 5)
    sent = message_of(parse_row(json.dumps(found)), "u", 0)
    assert (sent.topic, sent.flag, dict(sent.properties)) == ("u", 5, {"KEYS": "a b", "TAGS": "t", "mine": "x"})


def test_keys_and_times() -> None:
    sent = message_of({"body": "x", "keys": "a b", "tag": "t", "delayMs": 5, "shardingKey": "s"}, "u", 100)
    assert (sent.keys, sent.tags, sent.deliver_at_ms, sent.sharding_key) == (("a", "b"), "t", 105, "s")


def test_numbers_at_their_ends() -> None:
    for flag in (-(1 << 31), (1 << 31) - 1, 0):
        assert message_of({"body": "x", "flag": flag}, "u", 0).flag == flag
    past = message_of({"body": "x", "due": -5}, "u", 100)
    assert past.deliver_at_ms == 0  # delivered at once, as any other that is past
    nothing = message_of({"body": "x", "due": None, "delayMs": None, "flag": None, "keys": None}, "u", 100)
    assert (nothing.deliver_at_ms, nothing.flag, nothing.keys) == (None, 0, ())


@pytest.mark.parametrize("line", ["", "{", "[]", "1", "[" * 100_000, b"\xff"])
def test_no_row(line: Any) -> None:
    with pytest.raises(BadRow):
        parse_row(line)


@pytest.mark.parametrize(
    "given",
    [
        {}, {"body": None}, {"body": 5}, {"bodyBase64": "%"}, {"bodyBase64": 5}, {"body": "\ud800"},
        {"body": "x", "keys": 5}, {"body": "x", "keys": [5]}, {"body": "x", "properties": []},
        {"body": "x", "properties": {"a": 1}}, {"body": "x", "due": "now"}, {"body": "x", "flag": True},
        {"body": "x", "tags": ["a"]}, {"body": "x", "shardingKey": 1},
        {"body": "x", "flag": 1 << 31}, {"body": "x", "flag": -(1 << 31) - 1}, {"body": "x", "flag": 1 << 99},
        {"body": "x", "delayMs": -1}, {"body": "x", "delayMs": 1 << 60}, {"body": "x", "due": 1 << 60},
        {"body": "x", "due": 5, "delayMs": 5}, {"body": "x", "delayMs": True},
    ],
)  # fmt: skip
def test_no_message(given: dict[str, Any]) -> None:
    with pytest.raises(BadRow):
        message_of(given, "t", 0)
