"""What a scan found: numbers, truths and texts of the fields, without their escapes."""

from __future__ import annotations

import json

import pytest

from penstock.wire.header import HeaderScan
from penstock.wire.slots import NAMES, SLOTS
from penstock.words import JSON


def test_the_slots_are_in_the_order_of_the_letters() -> None:
    assert len(NAMES) == SLOTS
    assert NAMES[1] == "topic"
    letters = {"b": "T", "e": "3"}
    fields = HeaderScan().look(JSON, json.dumps({"code": 310, "extFields": letters}).encode())
    assert fields == {"topic": b"T", "queueId": b"3"}


@pytest.mark.parametrize(
    "text", ["", "plain", "é", "消息", "\U0001f600", 'all of "\\/\b\f\n\r\t\u0001', "\u07ff\u0800\uffff"]
)
@pytest.mark.parametrize("ascii_only", [True, False])
def test_a_text_loses_its_escapes_and_nothing_else(text: str, ascii_only: bool) -> None:
    header = json.dumps({"code": 10, "extFields": {"properties": text}}, ensure_ascii=ascii_only).encode()
    assert HeaderScan().look(JSON, header) == {"properties": text.encode()}
