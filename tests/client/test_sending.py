"""`client.sending`: messages to requests, answers to receipts, queues by turn and by key."""

import zlib

import pytest

from penstock.client.outgoing import batch_request
from penstock.client.results import SendStatus
from penstock.client.routes import MessageQueue
from penstock.client.sending import (
    by_sharding_key,
    check_batch,
    properties_text,
    read_receipt,
    send_request,
)
from penstock.errors import BrokerRefused, WireError
from penstock.message import Message
from penstock.wire.codes import header_fields, read_fields
from penstock.wire.record import decode_batch, java_hash, parse_properties
from penstock.wire.remoting import RemotingCommand

QUEUE = MessageQueue("T", "a", 3)


def test_header() -> None:
    message = Message("T", b"body", keys=("k1", "k2"), tags="g", properties={"x": "y"}, flag=5, delay_level=3)
    request = send_request("P", message, QUEUE, "ID", 1000)
    fields = read_fields(request.code, request.ext)
    assert {k: fields[k] for k in "abcdefgh"} == dict(
        zip("abcdefgh", ("P", "T", "TBW102", 4, 3, 0, 1000, 5), strict=True)
    )
    assert parse_properties(fields["i"]) == {"x": "y", "KEYS": "k1 k2", "UNIQ_KEY": "ID", "TAGS": "g", "DELAY": "3"}
    assert set(request.ext) <= {f.name for f in header_fields(request.code)}


@pytest.mark.parametrize("keys", [("a", "b"), (None, "a"), ("a", None), ("a", "a", "b")])
def test_a_batch_of_several_sharding_keys_is_refused_unless_its_queue_is_given(keys: tuple[str | None, ...]) -> None:
    batch = [Message("T", b"x", sharding_key=key) for key in keys]
    with pytest.raises(ValueError, match="one sharding key"):
        check_batch(batch, False)
    check_batch(batch, True)
    check_batch([batch[0]] * 3, False)


def test_other_properties() -> None:
    text = properties_text(Message("T", b"", deliver_at_ms=99, sharding_key="s"), "ID")
    assert parse_properties(text) == {"UNIQ_KEY": "ID", "TIMER_DELIVER_MS": "99", "__SHARDINGKEY": "s"}
    with pytest.raises(ValueError):
        properties_text(Message("T", b"", properties={"a": "b\x01"}), "ID")
    with pytest.raises(ValueError, match="longer"):
        properties_text(Message("T", b"", properties={"a": "b" * 40_000}), "ID")


def test_messages_are_checked() -> None:
    assert Message("T", b"", keys="k").keys == ("k",)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        Message("T", "text")  # type: ignore[arg-type]
    with pytest.raises(ValueError):
        Message("T", b"", delay_level=1, deliver_at_ms=5)


def test_compression() -> None:
    big = send_request("P", Message("T", b"x" * 5000), QUEUE, "ID", 0)
    assert big.ext["f"] == "1"
    assert zlib.decompress(big.body) == b"x" * 5000
    assert send_request("P", Message("T", b"x" * 4096), QUEUE, "ID", 0).ext["f"] == "0"
    with pytest.raises(ValueError, match="4194304"):
        send_request("P", Message("T", bytes(4_194_305)), QUEUE, "ID", 0)


def test_batch() -> None:
    request = batch_request("P", [Message("T", b"1", tags="a"), Message("T", b"2", flag=9)], QUEUE, ["I1", "I2"], 0)
    items = decode_batch(request.body)
    assert (request.code, request.ext["m"]) == (320, "true")
    assert request.ext["i"] == "", "RocketMQ would give each message the properties of the batch"
    assert [(item.body, item.flag) for item in items] == [(b"1", 0), (b"2", 9)]
    assert parse_properties(items[0].properties.decode()) == {"UNIQ_KEY": "I1", "TAGS": "a"}
    for bad in (
        [],
        [Message("T", b""), Message("U", b"")],
        [Message("T", b"", delay_level=1)],
        [Message("T", b"", deliver_at_ms=1)],
        [Message("T", bytes(2 << 20)), Message("T", bytes(2 << 20))],
    ):
        with pytest.raises(ValueError):
            batch_request("P", bad, QUEUE, ["I"] * len(bad), 0)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (0, SendStatus.SEND_OK),
        (10, SendStatus.FLUSH_DISK_TIMEOUT),
        (12, SendStatus.FLUSH_SLAVE_TIMEOUT),
        (11, SendStatus.SLAVE_NOT_AVAILABLE),
    ],
)
def test_receipts(code: int, status: SendStatus) -> None:
    answer = RemotingCommand(code, {"msgId": "A,B", "queueId": "1", "queueOffset": "7"})
    receipt = read_receipt(answer, QUEUE, ["I1", "I2"])
    assert (receipt.status, receipt.queue, receipt.queue_offset) == (status, MessageQueue("T", "a", 1), 7)
    assert (receipt.msg_id, receipt.offset_msg_id, receipt.offset_msg_ids) == ("I1", "A", ("A", "B"))


def test_refusals() -> None:
    with pytest.raises(BrokerRefused) as caught:
        read_receipt(RemotingCommand(14, remark="full"), QUEUE, ["I"])
    assert (caught.value.code, caught.value.remark) == (14, "full")
    with pytest.raises(WireError):
        read_receipt(RemotingCommand(0), QUEUE, ["I"])


def test_sharding_as_java() -> None:
    queues = [MessageQueue("T", "a", i) for i in range(7)]
    assert by_sharding_key("TagA", queues).queue_id == 2598919 % 7
    assert java_hash("TopicA#k1") == -1903240649
    assert by_sharding_key("TopicA#k1", queues).queue_id == 1903240649 % 7
