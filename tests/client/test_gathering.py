"""`client.gathering`: what waits in a lane, what leaves together, and who gets which part of a receipt."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from penstock.client.gathering import (
    BATCH_COUNT_MAX,
    OVERHEAD_BYTES,
    Lane,
    Waiting,
    batch_body,
    blocks,
    join_all,
    settle_all,
)
from penstock.client.results import SendReceipt, SendStatus
from penstock.client.routes import MessageQueue
from penstock.message import Message
from penstock.wire.record import decode_batch, parse_properties

QUEUE = MessageQueue("T", "a", 0)
BODY_BYTES = 4096


def waiting(message: Message, queue: MessageQueue | None = None) -> Waiting:
    return Waiting(message, Future(), 1.0, BODY_BYTES, queue)


def test_a_batch_is_what_fits() -> None:
    lane = Lane(None)
    for number in range(10):
        lane.add(waiting(Message("T", bytes([number]) * 100)))
    assert lane.size == 10 * (100 + OVERHEAD_BYTES)
    first = lane.take(3 * (100 + OVERHEAD_BYTES))
    assert [send.message.body[0] for send in first] == [0, 1, 2]
    assert len(lane.take(1)) == 1  # one leaves however long it is
    assert lane.over(first) == 3 * (100 + OVERHEAD_BYTES)
    assert (lane.accepted, lane.settled) == (10, 3)


def test_no_batch_is_longer_than_a_broker_likes_to_answer() -> None:
    lane = Lane(None)
    for _ in range(BATCH_COUNT_MAX + 5):
        lane.add(waiting(Message("T", b"")))
    assert len(lane.take(1 << 30)) == BATCH_COUNT_MAX


@pytest.mark.parametrize(
    "alone",
    [
        Message("T", b"late", delay_level=1),
        Message("T", b"late", deliver_at_ms=1),
        Message("T", bytes(BODY_BYTES + 1)),
        Message("%RETRY%g", b"again"),
        Message("T", b"late", properties={"DELAY": "3"}),
        Message("T", b"late", properties={"TIMER_DELAY_SEC": "3"}),
        Message("T", b"half", properties={"TRAN_MSG": "true"}),
        Message("T", b"at once", properties={"WAIT": "false"}),
    ],
)
def test_what_no_batch_can_carry_leaves_alone_and_in_its_turn(alone: Message) -> None:
    lane = Lane(QUEUE)
    for message in (Message("T", b"1"), Message("T", b"2"), alone, Message("T", b"3"), Message("T", b"4")):
        lane.add(waiting(message, QUEUE))
    assert [len(lane.take(1 << 20)) for _ in range(3)] == [2, 1, 2]


def test_properties_and_keys_count() -> None:
    long = waiting(Message("T", b"b", keys=("key",), properties={"name": "v" * 1000}))
    assert long.size == 1 + OVERHEAD_BYTES + 3 + 1004


def test_an_ordered_send_in_the_lane_of_a_topic_leaves_alone() -> None:
    lane = Lane(None)
    for key in (None, "k", "k", None):
        lane.add(waiting(Message("T", b"", sharding_key=key)))
    assert lane.ordered == 2
    assert [len(lane.take(1 << 20)) for _ in range(4)] == [1, 1, 1, 1]


def test_joining_gives_back_what_belongs_elsewhere() -> None:
    lanes: dict[str | MessageQueue, Lane] = {"T": Lane(None)}
    plain, other, keyed, late = (
        Message("T", b""), Message("U", b""), Message("T", b"", sharding_key="k"), Message("T", b"", delay_level=2),
    )  # fmt: skip
    handed = [waiting(message) for message in (plain, other, keyed, late, plain)]
    idle: list[Lane] = []
    rest, size = join_all(handed, lanes, 2.0, idle)
    assert rest == handed[1:4]
    assert {send.deadline for send in handed} == {2.0}
    assert (size, idle) == (lanes["T"].size, [lanes["T"]] * 2)
    assert [send.message for send in lanes["T"].take(1 << 20)] == [plain, plain]


def test_each_gets_its_part_of_the_receipt() -> None:
    sends = [waiting(Message("T", b"")) for _ in range(3)]
    sends[1].waiter.cancel()  # type: ignore[attr-defined]
    settle_all(sends, SendReceipt(SendStatus.SEND_OK, QUEUE, 7, ("a", "b", "c"), ("A", "B", "C")))
    assert sends[0].waiter.result() == SendReceipt(SendStatus.SEND_OK, QUEUE, 7, ("a",), ("A",))  # type: ignore[attr-defined]
    assert sends[2].waiter.result() == SendReceipt(SendStatus.SEND_OK, QUEUE, 9, ("c",), ("C",))  # type: ignore[attr-defined]


@pytest.mark.parametrize(("offset", "places"), [(-1, ("", "")), (5, ("only-one",))])
def test_a_broker_that_names_no_places_leaves_them_empty(offset: int, places: tuple[str, ...]) -> None:
    sends = [waiting(Message("T", b"")) for _ in range(2)]
    settle_all(sends, SendReceipt(SendStatus.SEND_OK, QUEUE, offset, ("a", "b"), places))
    receipts = [send.waiter.result() for send in sends]  # type: ignore[attr-defined]
    assert [receipt.offset_msg_id for receipt in receipts] == ["", ""]
    assert [receipt.queue_offset for receipt in receipts] == ([-1, -1] if offset < 0 else [5, 6])


def test_the_body_of_a_batch() -> None:
    messages = [Message("T", b"one"), Message("T", b"", keys=("k",), tags="t", properties={"p": "ö"}, flag=-3)]
    items = decode_batch(batch_body(messages, ["I1", "I2"]))
    assert [(item.body, item.flag) for item in items] == [(b"one", 0), (b"", -3)]
    assert parse_properties(items[0].properties.decode()) == {"UNIQ_KEY": "I1"}
    assert parse_properties(items[1].properties.decode()) == {"KEYS": "k", "UNIQ_KEY": "I2", "TAGS": "t", "p": "ö"}
    with pytest.raises(ValueError):
        batch_body([Message("T", b"", properties={"p": "\x01"})], ["I"])
    for flag in (1 << 31, -(1 << 31) - 1):
        with pytest.raises(ValueError, match="32 bits"):
            batch_body([Message("T", b"", flag=flag)], ["I"])


def test_what_to_do_when_full_is_one_of_two_words() -> None:
    assert (blocks("block"), blocks("raise")) == (True, False)
    with pytest.raises(ValueError):
        blocks("drop")  # type: ignore[arg-type]
