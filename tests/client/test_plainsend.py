"""`client.plainsend`: the bytes are those of the protocol's own objects, and an answer says what it says there, or nothing."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from penstock.client.plainsend import PlainSend, PlainSends, is_plain
from penstock.client.results import SendReceipt, SendStatus
from penstock.client.routes import MessageQueue
from penstock.client.sending import read_receipt, send_request
from penstock.client.sentanswer import SentAnswer
from penstock.errors import PenstockError
from penstock.message import Message
from penstock.wire.remoting import FLAG_RESPONSE, RemotingCommand, decode, encode
from penstock.words import JSON, PREFIX_BYTES

QUEUE = MessageQueue("T", "a", 3)
ODD = ["", "plain", 'a"b\\c', "\x00g\xff", "Ω 中 \U0001f600", '"opaque":0', "%d{}"]
EXT = {"msgId": "0A", "queueId": "3", "queueOffset": "17", "MSG_REGION": "x", "TRACE_ON": "true"}


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize(
    "message",
    [
        Message("T", b"body"),
        Message("T", b""),
        Message("T", b"x", keys=("k", "l"), tags="t", properties={"a": 'b"\\', "Ω": "中"}, delay_level=3),
        Message("T", b"x", sharding_key="s", deliver_at_ms=9),
    ],
)
def test_the_frame_is_that_of_the_object(message: Message, odd: str) -> None:
    queue = MessageQueue(f"T{odd}", f"broker{odd}", 3)
    sends = PlainSends(f"G{odd}", queue)
    for _ in range(3):
        sent = sends.request(message, "KEY", 1_234)
        wanted = send_request(f"G{odd}", message, queue, "KEY", 1_234)
        wanted.number(sent.opaque)
        assert sent.frame == encode(wanted)


def test_each_request_has_a_number_of_its_own() -> None:
    both = PlainSends("G", QUEUE), PlainSends("G", MessageQueue("T", "a", 4))
    assert len({sends.request(Message("T", b""), "KEY", 0).opaque for sends in both for _ in range(10)}) == 20


def test_what_cannot_travel_is_refused() -> None:
    sends = PlainSends("G", QUEUE)
    for properties in ({"a": "b\x01"}, {"a": "b" * 40_000}, {"a": "\ud800"}):
        with pytest.raises(ValueError):
            sends.request(Message("T", b"", properties=properties), "KEY", 0)


def test_what_is_plain() -> None:
    assert is_plain(Message("T", b"x" * 10), 10)
    assert not is_plain(Message("T", b"x" * 11), 10)
    assert not is_plain(Message("T", b"", flag=1), 10)
    assert not is_plain(Message("T", bytes((32 << 20) + 1)), 1 << 40)


def sent() -> PlainSend:
    return PlainSends("G", QUEUE).request(Message("T", b""), "KEY", 0)


def receipt_of(send: PlainSend, header: bytes) -> SendReceipt | None:
    """What is read from an answer with this header."""
    answered = SentAnswer()
    return send.receipt(answered) if answered.read(header, 0, len(header)) else None


def answer(opaque: int, ext: dict[str, Any] | None = None, **other: Any) -> bytes:
    fields = {"code": 0, "flag": FLAG_RESPONSE, "language": "JAVA", "opaque": opaque, "version": 409}
    return msgspec.json.encode(fields | {"extFields": EXT if ext is None else ext} | other)


def the_objects_word(header: bytes, opaque: int) -> SendReceipt | None:
    """What `wire.remoting` and `client.sending` make of it."""
    try:
        command = decode(JSON, header)
        return read_receipt(command, QUEUE, ["KEY"]) if command.response and command.opaque == opaque else None
    except PenstockError:
        return None


def test_the_receipt() -> None:
    send = sent()
    receipt = receipt_of(send, answer(send.opaque))
    assert receipt == SendReceipt(SendStatus.SEND_OK, QUEUE, 17, ("KEY",), ("0A",))
    moved = receipt_of(send, answer(send.opaque, EXT | {"queueId": "4", "transactionId": "t"}, code=11))
    assert moved == SendReceipt(SendStatus.SLAVE_NOT_AVAILABLE, MessageQueue("T", "a", 4), 17, ("KEY",), ("0A",), "t")


def test_other_answers_are_left_to_the_objects() -> None:
    send = sent()
    others = [
        answer(send.opaque + 1),
        answer(send.opaque, flag=0),
        answer(send.opaque, code=14, remark="full"),
        answer(send.opaque, {}),
        answer(send.opaque, EXT | {"queueId": "-1"}),
        answer(send.opaque, EXT | {"queueOffset": str(1 << 63)}),
        answer(send.opaque, EXT | {"queueOffset": "1e3"}),
        answer(send.opaque, EXT | {"queueOffset": None}),
        b"",
        b"[1]",
        b"{" * 100_000,
        b'{"x":' * 100_000,
    ]
    assert [receipt_of(send, header) for header in others] == [None] * len(others)


def test_an_answer_says_what_it_says_to_the_objects() -> None:
    some, send = random.Random(31), sent()
    values = [
        "0",
        "7",
        "007",
        "+1",
        "-0",
        " 5",
        "5 ",
        "1_0",
        "1.0",
        "1e1",
        "",
        "x",
        "٣",
        5,
        -5,
        2.0,
        True,
        None,
        1 << 62,
        1 << 64,
    ]
    seen = 0
    for _ in range(10_000):
        ext: dict[str, Any] = {name: some.choice(values) for name in ("queueId", "queueOffset") if some.random() < 0.95}
        if some.random() < 0.5:
            ext |= {some.choice(["queueId", "queueOffset"]): "7"}
        if some.random() < 0.9:
            ext["msgId"] = some.choice(["0A", "", 5, None, "Ω", "a,b"])
        if some.random() < 0.3:
            ext["transactionId"] = some.choice(["t", None, 3, ""])
        header = answer(
            some.choice([send.opaque] * 5 + [0]), ext,
            code=some.choice([0, 0, 0, 10, 11, 12, 1]), flag=some.choice([1, 1, 1, 3, 0]),
            other=some.choice([1, 1, 1, {}, [[{}]]]),
        )  # fmt: skip
        receipt = receipt_of(send, header)
        if receipt is not None:
            seen += 1
            assert receipt == the_objects_word(header, send.opaque), header
    assert seen > 50


def test_a_header_is_what_the_objects_write() -> None:
    send = sent()
    reply = RemotingCommand(0, dict(EXT), opaque=send.opaque, flag=FLAG_RESPONSE)
    assert receipt_of(send, encode(reply)[PREFIX_BYTES:]) == the_objects_word(encode(reply)[PREFIX_BYTES:], send.opaque)
