"""SEND through real sockets: limits, names, properties, batches, disks that fail."""

from __future__ import annotations

import json
import time
import zlib
from pathlib import Path

import pytest

from fronts.frontside import RemotingSide
from fronts.raw_peer import RawPeer, raw_frame
from penstock.disk.files import Files
from penstock.errors import DiskFull, StoreError
from penstock.fronts.remoting.sending import Sender
from penstock.testing import Broker
from penstock.wire import record
from penstock.wire.record import iter_records
from penstock.wire.remoting import RemotingCommand

ILLEGAL = "The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
TOO_LARGE = (
    "the message is illegal, maybe msg body or properties length not matched. "
    "msg body length limit 4194304B, msg properties length limit 32KB."
)


def test_both_header_types_give_the_same_record(peer: RawPeer) -> None:
    properties = {"UNIQ_KEY": "U" * 32, "x": "é漢😀", "empty-less": "a\tb"}
    for serialize in (0, 1):
        assert peer.send("Twice", b"x", properties, serialize=serialize).code == 0
    one, two = iter_records(peer.pull("Twice", 0, 0).body, check=True)
    assert dict(one.properties) == dict(two.properties) == properties | {"CLUSTER": "DefaultCluster"}


def test_v1_header_and_mixed_json_types(peer: RawPeer) -> None:
    """What the C++ client sends: numbers and text mixed, a newline behind (rocketmq.md §18, vector 10)."""
    header = {
        "code": 10, "language": "CPP", "version": 63, "opaque": 77, "flag": 0, "remark": "",
        "extFields": {
            "producerGroup": "PID", "topic": "FromCpp", "defaultTopic": "TBW102", "defaultTopicQueueNums": 4,
            "queueId": 2, "sysFlag": 0, "bornTimestamp": "1795182853382", "flag": 0, "batch": "0", "unitMode": 0,
            "reconsumeTimes": 0,
            "properties": "KEYS\x01k0\x02TAGS\x01T\x02UNIQ_KEY\x01ABC\x02WAIT\x01true\x02x\x01y\x02",
        },
    }  # fmt: skip
    peer.write(raw_frame(json.dumps(header).encode() + b"\n", b"body"))
    answer = peer.read()
    assert (answer.code, answer.opaque) == (0, 77)
    (message,) = iter_records(peer.pull("FromCpp", 2, 0).body)
    assert dict(message.properties) == {
        "KEYS": "k0", "TAGS": "T", "UNIQ_KEY": "ABC", "x": "y", "CLUSTER": "DefaultCluster",
    }  # fmt: skip


def test_a_field_by_two_names_is_the_one_of_its_request(peer: RawPeer) -> None:
    """SEND_V2 has letters, SEND has words; a letter in a SEND is somebody's own field."""
    assert (
        peer.ask(
            310, {"a": "P", "b": "Short", "topic": "Long", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 5, "h": 0}, b"x"
        ).code
        == 0
    )
    assert peer.pull("Short", 0, 0).code == 0
    long = {
        "producerGroup": "P",
        "topic": "Long",
        "b": "Short",
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": 4,
        "queueId": 0,
    }
    assert peer.ask(10, long | {"sysFlag": 0, "bornTimestamp": 5, "flag": 0}, b"y").code == 0
    assert [m.body for m in iter_records(peer.pull("Long", 0, 0).body)] == [b"y"]
    assert [m.body for m in iter_records(peer.pull("Short", 0, 0).body)] == [b"x"]


def test_batch(peer: RawPeer) -> None:
    items = [record.BatchItem(b"one", b"TAGS\x01A", 0), record.BatchItem(b"two", b"TAGS\x01B\x02KEYS\x01z", 7)]
    answer = peer.ask(
        320, {"a": "P", "b": "Batches", "c": "TBW102", "d": 4, "e": 3, "f": 0, "g": 5, "h": 0, "m": "true"},
        record.encode_batch(items),
    )  # fmt: skip
    assert answer.code == 0, answer.remark
    ids = answer.ext["msgId"].split(",")
    found = list(iter_records(peer.pull("Batches", 3, 0).body, check=True))
    assert [m.body for m in found] == [b"one", b"two"]
    assert [m.offset_msg_id for m in found] == ids
    assert [m.flag for m in found] == [0, 7]
    junk = peer.ask(
        320, {"a": "P", "b": "Batches", "c": "TBW102", "d": 4, "e": 3, "f": 0, "g": 5, "h": 0, "m": "true"}, b"junk" * 9
    )
    assert junk.code == 13
    assert peer.pull("Batches", 3, 2).remark == "OFFSET_OVERFLOW_ONE"


@pytest.mark.parametrize(
    ("topic", "code", "remark"),
    [
        ("", 1, "The specified topic is blank."),
        (" ", 1, "The specified topic is blank."),
        ("a/b", 1, ILLEGAL), ("a b", 1, ILLEGAL), ("a.b", 1, ILLEGAL), ("漢", 1, ILLEGAL), ("t\n", 1, ILLEGAL),
        ("t" * 128, 1, "The specified topic is longer than topic max length."),
        ("SCHEDULE_TOPIC_XXXX", 16, "Sending message to topic[SCHEDULE_TOPIC_XXXX] is forbidden."),
        ("RMQ_SYS_TRANS_HALF_TOPIC", 16, "Sending message to topic[RMQ_SYS_TRANS_HALF_TOPIC] is forbidden."),
        ("t" * 127, 0, None),
    ],
)  # fmt: skip
def test_topic_names(peer: RawPeer, topic: str, code: int, remark: str | None) -> None:
    answer = peer.send(topic, b"x")
    assert (answer.code, answer.remark) == (code, remark)


def test_send_limits(peer: RawPeer) -> None:
    assert peer.send("Limits", b"").code == 0
    assert peer.send("Limits", b"x" * 4_194_304).code == 0
    large = peer.send("Limits", b"x" * 4_194_305)
    assert (large.code, large.remark) == (13, TOO_LARGE)
    properties = peer.send("Limits", b"x", {"p": "v" * 32_767})
    assert (properties.code, properties.remark) == (13, TOO_LARGE)
    assert peer.send("Limits", b"x", {"p": "v" * 32_000}).code == 0
    queue = peer.send("Limits", b"x", e=99)
    assert queue.code == 1
    assert queue.remark.startswith("request queueId[99] is illegal, ")
    assert peer.send("Limits", b"x", e=-1).code == 0
    text = peer.send("Limits", b"x", e="seven")
    assert (text.code, text.remark) == (1, "queueId is not a number")
    for word in ("1_0", "+5", "٣", " 5"):
        assert peer.send("Limits", b"x", f=word).remark == "sysFlag is not a number"
    missing = peer.ask(310, {"a": "PG", "b": "Limits"})
    assert (missing.code, missing.remark) == (1, "the custom field <defaultTopic> is null")
    assert peer.send("Limits", b"not zlib", f=1).code == 0
    assert peer.send("NoTemplate", b"x", c="Unheard").code == 17


def test_delay_level(peer: RawPeer) -> None:
    bad = peer.send("Delays", b"x", {"DELAY": "abc"})
    assert (bad.code, bad.remark) == (13, "DELAY is not a number")
    assert peer.send("Delays", b"x", {"DELAY": "99"}).code == 0  # clamped to 2 h
    assert peer.pull("Delays", 0, 0).code == 19


def test_compressed_body_is_kept_as_it_is(peer: RawPeer) -> None:
    body = zlib.compress(b"long " * 1000)
    peer.send("Zip", body, f=1)
    (message,) = iter_records(peer.pull("Zip", 0, 0).body, check=True)
    assert message.body == b"long " * 1000


class FailingDisk(Files):
    """Flushes fail, or there is no room, when told so."""

    flush_fails = full = False

    def datasync(self, fd: int) -> None:
        if self.flush_fails:
            raise StoreError("flush: input/output error")
        super().datasync(fd)

    def allocate(self, fd: int, at: int, length: int) -> None:
        if self.full:
            raise DiskFull("no space left on device")
        super().allocate(fd, at, length)


@pytest.mark.parametrize("level", ["os", "disk"])
def test_no_success_after_a_failed_flush(level: str) -> None:
    disk = FailingDisk()
    with Broker(files=disk, level=level) as broker:
        peer = RawPeer(broker.remoting)
        assert peer.send("Flush", b"before").code == 0
        disk.flush_fails = True
        codes = [peer.send("Flush", b"x").code]
        ends = time.monotonic() + 60
        while codes[-1] == 0 and time.monotonic() < ends:  # level os is told by the flush that runs by itself
            codes.append(peer.send("Flush", b"x").code)
        assert codes[-1] == 14
        assert level == "os" or codes == [14]
        disk.flush_fails = False  # a flush that works again proves nothing
        assert [peer.send("Flush", b"y").code for _ in range(3)] == [14] * 3
        pulled = peer.pull("Flush", 0, 0)
        assert pulled.code == 0  # what was there is still read
        peer.close()


def test_a_full_disk_refuses_and_recovers() -> None:
    disk = FailingDisk()
    with Broker(files=disk, mapped_file_size_commit_log=1 << 20) as broker:
        peer = RawPeer(broker.remoting)
        body = b"x" * 100_000
        assert peer.send("Full", body).code == 0
        disk.full = True
        codes = [peer.send("Full", body).code for _ in range(40)]
        assert codes[-1] == 14
        stored = codes.count(0)
        assert codes == [0] * stored + [14] * (40 - stored)
        assert len(list(iter_records(peer.pull("Full", 0, 0, maxBytes=4 << 20, maxMsgNums=100).body))) == stored + 1
        disk.full = False
        assert peer.send("Full", body).ext["queueOffset"] == str(stored + 1)
        peer.close()


RESERVED = ["PENSTOCK_QUEUE", "PENSTOCK_ID", "PENSTOCK_CHANNEL", "PENSTOCK_", "PENSTOCK_not yet used"]


@pytest.mark.parametrize("serialize", [0, 1])
@pytest.mark.parametrize("more", [{}, {"DELAY": "1"}, {"TRAN_MSG": "true"}, {"TIMER_DELAY_MS": "5"}, {"PSEQ": "a.1.1"}])
@pytest.mark.parametrize("name", RESERVED)
def test_the_broker_s_own_properties_are_refused(
    peer: RawPeer, name: str, more: dict[str, str], serialize: int
) -> None:
    for properties in ({name: "abc"} | more, {"KEYS": "k"} | more | {name: "abc"}):
        answer = peer.send("Own", b"x", properties, serialize=serialize)
        assert (answer.code, "PENSTOCK_" in answer.remark) == (13, True)
    assert peer.send("Own", b"fine", {"xPENSTOCK_ID": "PENSTOCK_ID", "PENSTOCK": "1", "KEYS": "PENSTOCK_ID"}).code == 0


@pytest.mark.parametrize("at", [0, 1, 2])
@pytest.mark.parametrize("place", ["first", "last"])
def test_the_broker_s_own_properties_are_refused_in_a_batch(peer: RawPeer, at: int, place: str) -> None:
    own = b"PENSTOCK_ID\x01abc"
    properties = own + b"\x02a\x01b" if place == "first" else b"a\x01b\x02" + own
    fine = [record.BatchItem(b"PENSTOCK_ID\x01" * 3, b"KEYS\x01PENSTOCK_ID") for _ in range(3)]
    assert peer.ask(320, BATCH, record.encode_batch(fine)).code == 0
    items = [*fine[:at], record.BatchItem(b"x", properties), *fine[at + 1 :]]
    for fields in (BATCH, BATCH | {"i": "PSEQ\x01own.7.3"}):
        answer = peer.ask(320, fields, record.encode_batch(items))
        assert (answer.code, "PENSTOCK_" in answer.remark) == (13, True)


BATCH = {
    "a": "PG", "b": "OwnBatch", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1_700_000_000_000, "h": 0, "i": "", "m": "true",
}  # fmt: skip


def test_no_error_text_shows_an_object_of_ours(broker: Broker) -> None:
    with RawPeer(broker.remoting) as peer:
        assert peer.send("T", b"x").code == 0
        answer = peer.send("T", b"x", e=99)
        assert answer.code == 1
        assert "TopicConfig [topicName=T, readQueueNums=4, writeQueueNums=4, perm=RW-" in (answer.remark or "")
        assert "{" not in (answer.remark or "")


def test_a_oneway_send_is_stored_and_not_answered(tmp_path: Path) -> None:
    side = RemotingSide(tmp_path)
    session = side.session()
    assert isinstance(session.sender, Sender)
    fields = {"a": "P", "b": "T", "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "5", "h": "0"}
    for flag, answers in ((2, 0), (0, 1)):
        assert len(side.say(session, RemotingCommand(310, dict(fields), b"x", opaque=1, flag=flag))) == answers
    topic = side.broker.topics.get(b"T")
    assert topic is not None
    assert topic.queues[0].max_offset == 2
    side.close()
