"""The RocketMQ front through real sockets: sends, pulls, holds, and every row of the bad-input catalogue."""

from __future__ import annotations

import json
import struct
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from fronts.raw_peer import RawPeer, json_frame, raw_frame
from penstock.disk.files import Files
from penstock.errors import DiskFull, StoreError
from penstock.testing import Broker
from penstock.wire import record, remoting
from penstock.wire.record import iter_records
from penstock.wire.remoting import RemotingCommand

ILLEGAL = "The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
TOO_LARGE = (
    "the message is illegal, maybe msg body or properties length not matched. "
    "msg body length limit 4194304B, msg properties length limit 32KB."
)


@pytest.mark.parametrize("serialize", [0, 1])
def test_what_is_sent_is_pulled(peer: RawPeer, serialize: int) -> None:
    topic = f"Basic{serialize}"
    answer = peer.send(topic, b"hello", {"KEYS": "k1 k2", "WAIT": "true", "TAGS": "TagA"}, e=1, serialize=serialize)
    assert (answer.code, answer.serialize) == (0, serialize)
    assert answer.ext["queueId"] == "1"
    assert answer.ext["queueOffset"] == "0"
    assert (answer.ext["MSG_REGION"], answer.ext["TRACE_ON"]) == ("DefaultRegion", "true")
    pulled = peer.pull(topic, 1, 0, serialize=serialize)
    assert (pulled.code, pulled.remark) == (0, "FOUND")
    assert {k: pulled.ext[k] for k in ("nextBeginOffset", "minOffset", "maxOffset", "suggestWhichBrokerId")} == {
        "nextBeginOffset": "1", "minOffset": "0", "maxOffset": "1", "suggestWhichBrokerId": "0",
    }  # fmt: skip
    (message,) = iter_records(pulled.body, check=True)
    assert message.body == b"hello"
    assert message.offset_msg_id == answer.ext["msgId"]
    assert dict(message.properties) == {"KEYS": "k1 k2", "TAGS": "TagA", "CLUSTER": "DefaultCluster"}
    assert message.born_ms == 1_700_000_000_000
    assert message.born_host.startswith("127.0.0.1:")


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


def test_any_cutting_of_the_stream(broker: Broker, connect: Callable[[], RawPeer]) -> None:
    frames = b"".join(
        remoting.encode(
            RemotingCommand(
                310,
                {"a": "P", "b": "Cuts", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0"},
                b"%d" % i * (1 + i * 40),
                opaque=i,
                serialize=i & 1,
            )
        )
        for i in range(30)
    )
    peer = connect()
    for at in range(0, len(frames), 97):
        peer.write(frames[at : at + 97])
    assert [peer.read().ext["queueOffset"] for _ in range(30)] == [str(i) for i in range(30)]


def test_a_frame_larger_than_the_shared_buffer(peer: RawPeer) -> None:
    body = bytes(range(256)) * 16_384  # 4 MiB
    assert peer.send("Large", body).code == 0
    (message,) = iter_records(peer.pull("Large", 0, 0).body, check=True)
    assert message.body == body
    assert peer.send("Large", b"and on").ext["queueOffset"] == "1"


def test_a_header_beyond_its_limit_ends_the_connection(connect: Callable[[], RawPeer]) -> None:
    for size in (65_537, 4_000_124):
        peer = connect()
        peer.write((4 + size).to_bytes(4) + size.to_bytes(4))  # refused before its bytes come
        assert peer.socket.recv(1) == b""


@pytest.mark.parametrize(
    "header",
    [
        b'{"opaque":7,"weight":3,"code":361,"extFields":{"topic":"Odd"}}',
        b'{"opaque":7,"code":361,"extFields":{"topic":"Odd","b":"Even","x":"\\u0041"}}',
        b'{"opaque":7,"code":361,\n"extFields":{"topic":"Odd","queueId":null,"b":[1]}}\n',
    ],
)
def test_an_unusual_header_is_answered_under_its_opaque(peer: RawPeer, header: bytes) -> None:
    peer.write(raw_frame(header))
    answer = peer.read()
    assert answer.opaque == 7
    assert answer.code != 0


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


def test_tags_are_filtered_by_the_broker(peer: RawPeer) -> None:
    for tag in ("A", "B", "A", "C"):
        peer.send("Tagged", tag.encode(), {"TAGS": tag})
    pulled = peer.pull("Tagged", 0, 0, subscription="A || C")
    assert [m.body for m in iter_records(pulled.body)] == [b"A", b"A", b"C"]
    none = peer.pull("Tagged", 0, 0, subscription="nothing")
    assert (none.code, none.ext["nextBeginOffset"]) == (20, "4")


def test_a_held_pull_is_woken_by_its_message(connect: Callable[[], RawPeer]) -> None:
    consumer, producer = connect(), connect()
    producer.send("Held", b"0")
    ext = {"consumerGroup": "G", "topic": "Held", "queueId": 0, "queueOffset": 1, "maxMsgNums": 32, "sysFlag": 6,
           "commitOffset": 0, "suspendTimeoutMillis": 15000, "subscription": "B", "subVersion": 0}  # fmt: skip
    consumer.write(remoting.encode(RemotingCommand(11, {k: str(v) for k, v in ext.items()}, opaque=900)))
    assert consumer.ask(30, ext).ext["offset"] == "1"  # the pull before it is held by now
    producer.send("Held", b"other tag", {"TAGS": "A"})
    producer.send("Held", b"mine", {"TAGS": "B"})
    answer = consumer.read()
    assert (answer.code, answer.opaque) == (0, 900)
    assert [m.body for m in iter_records(answer.body)] == [b"mine"]


def test_a_held_pull_ends_with_its_time(peer: RawPeer) -> None:
    peer.send("HeldEmpty", b"0")
    began = time.monotonic()
    answer = peer.pull("HeldEmpty", 0, 1, sysFlag=6, suspendTimeoutMillis=300)
    assert (answer.code, answer.ext["nextBeginOffset"]) == (19, "1")
    assert time.monotonic() - began > 0.2


def test_pull_answers(peer: RawPeer) -> None:
    for i in range(3):
        peer.send("Pulls", b"%d" % i)
    assert (peer.pull("Pulls", 0, -1).code, peer.pull("Pulls", 0, -1).remark) == (21, "OFFSET_TOO_SMALL")
    beyond = peer.pull("Pulls", 0, 1 << 62)
    assert (beyond.code, beyond.remark, beyond.ext["nextBeginOffset"]) == (21, "OFFSET_OVERFLOW_BADLY", "3")
    at_end = peer.pull("Pulls", 0, 3)
    assert (at_end.code, at_end.remark) == (19, "OFFSET_OVERFLOW_ONE")
    empty = peer.pull("Pulls", 1, 0)  # golden vector 6
    assert (empty.code, empty.remark) == (19, "NO_MESSAGE_IN_QUEUE")
    assert [empty.ext[k] for k in ("nextBeginOffset", "minOffset", "maxOffset", "suggestWhichBrokerId")] == ["0"] * 4
    assert len(list(iter_records(peer.pull("Pulls", 0, 0, maxMsgNums=0).body))) == 1
    assert len(list(iter_records(peer.pull("Pulls", 0, 0, maxMsgNums=10**9).body))) == 3
    missing = peer.pull("nope", 0, 0)
    assert (missing.code, missing.remark[:41]) == (17, "topic[nope] not exist, apply first please")
    bad_queue = peer.pull("Pulls", 99, 0)
    assert bad_queue.code == 1
    assert bad_queue.remark.startswith("queueId[99] is illegal, ")
    assert peer.pull("Pulls", 0, 0, maxMsgNums=-5).code == 1
    sql = peer.pull("Pulls", 0, 0, expressionType="SQL92", subscription="a = 1")
    assert (sql.code, sql.remark) == (1, "The broker does not support consumer to filter message by SQL92")
    assert peer.pull("Pulls", 0, 0, consumerGroup="../x").code == 1
    assert peer.pull("Pulls", 0, 0, consumerGroup="g" * 300).code == 1
    no_heartbeat = peer.pull("Pulls", 0, 0, sysFlag=0)
    assert no_heartbeat.code == 24


# -- reliability.md 8.4 ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">I", 0), struct.pack(">I", 3), struct.pack(">I", 16_777_217), struct.pack(">I", 0xFFFFFFFF),
        struct.pack(">II", 20, 100) + b"x" * 16,
        raw_frame(b"{}", kind=2), raw_frame(b"junk", kind=1), raw_frame(b"junk"), raw_frame(b""), raw_frame(b"null"),
        raw_frame(b"[]"), json_frame({"code": "ten"}), raw_frame(b'{"a":' * 20_000 + b"1" + b"}" * 20_000),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"x" * 100,
    ],
)  # fmt: skip
def test_bytes_no_peer_sends_close_the_connection(peer: RawPeer, connect: Callable[[], RawPeer], data: bytes) -> None:
    peer.write(data)
    assert peer.closed()
    assert connect().send("StillThere", b"x").code == 0


def test_unknown_code(peer: RawPeer) -> None:
    answer = peer.ask(9999)
    assert (answer.code, answer.flag & 1, answer.remark) == (3, 1, " request type 9999 not supported")
    peer.write(remoting.encode(RemotingCommand(9999, opaque=5, flag=2)))
    peer.write(remoting.encode(RemotingCommand(0, opaque=12345, flag=1)))  # an answer nobody asked for
    assert peer.ask(9999).code == 3


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


def test_view_by_offset_gives_records_only(peer: RawPeer) -> None:
    placed = peer.send("View", b"x" * 100)
    physical = int(placed.ext["msgId"][16:], 16)
    found = peer.ask(33, {"offset": physical})
    assert found.code == 0
    assert next(iter_records(found.body)).body == b"x" * 100
    for offset in (1 << 60, 3, -1, physical + 50, physical + 1):
        answer = peer.ask(33, {"offset": offset})
        assert (answer.code, answer.remark) == (1, f"can not find message by the offset, {offset}")


def test_topic_of_a_million_queues(peer: RawPeer) -> None:
    ext = {"topic": "Wide", "defaultTopic": "TBW102", "readQueueNums": 10**6, "writeQueueNums": 10**6, "perm": 6,
           "topicFilterType": "SINGLE_TAG"}  # fmt: skip
    assert peer.ask(17, ext).code == 1
    assert peer.ask(17, ext | {"readQueueNums": 2, "writeQueueNums": 2}).code == 0
    assert peer.ask(17, ext | {"topic": "../../x", "readQueueNums": 2, "writeQueueNums": 2}).code == 1


def test_heartbeat_junk(peer: RawPeer) -> None:
    assert peer.ask(34, body=b"junk").code == 1
    assert peer.ask(34, body=b"[]").code == 1
    assert peer.ask(34, body=json.dumps({"clientID": "x" * 100_000}).encode()).code == 1
    many = [{"topic": f"t{i}", "subString": "*"} for i in range(10_000)]
    consumer = {"groupName": "G", "consumeType": "CONSUME_PASSIVELY", "subscriptionDataSet": many}
    assert peer.ask(34, body=json.dumps({"clientID": "c", "consumerDataSet": [consumer]}).encode()).code == 1
    assert (
        peer.ask(34, body=b'{"clientID":"13110-127.0.0.1@DEFAULT","producerDataSet":[{"groupName":"PID-py"}]}\n').code
        == 0
    )


def test_configuration_is_not_writable(peer: RawPeer) -> None:
    assert peer.ask(25, body=b"rocketmqHome=/tmp\n").code == 16


# -- groups ------------------------------------------------------------------------------------------------------


def heartbeat(peer: RawPeer, client_id: str, group: str, topic: str, sub: str = "*", version: int = 1) -> None:
    subscription = {"topic": topic, "subString": sub, "subVersion": version}
    consumer = {"groupName": group, "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
                "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "subscriptionDataSet": [subscription]}  # fmt: skip
    assert peer.ask(34, body=json.dumps({"clientID": client_id, "consumerDataSet": [consumer]}).encode()).code == 0


def test_members_are_told_of_each_other(connect: Callable[[], RawPeer]) -> None:
    one, two = connect(), connect()
    heartbeat(one, "c1", "Told", "T")
    heartbeat(two, "c2", "Told", "T")
    notices = [c for c in [one.read(), one.read()] if c.code == 40]
    assert [n.ext["consumerGroup"] for n in notices] == ["Told", "Told"]
    ids = json.loads(one.ask(38, {"consumerGroup": "Told"}).body)
    assert ids == {"consumerIdList": ["c1", "c2"]}
    two.close()
    assert one.read().code == 40
    assert json.loads(one.ask(38, {"consumerGroup": "Told"}).body) == {"consumerIdList": ["c1"]}
    assert one.ask(35, {"clientID": "c1", "consumerGroup": "Told", "producerGroup": ""}).code == 0
    assert one.ask(38, {"consumerGroup": "Told"}).code == 1


def test_subscription_of_the_heartbeat_filters(peer: RawPeer) -> None:
    for tag in ("A", "B"):
        peer.send("Beat", tag.encode(), {"TAGS": tag})
    heartbeat(peer, "c1", "Beats", "Beat", "B", 5)
    pulled = peer.pull("Beat", 0, 0, consumerGroup="Beats", sysFlag=0, subVersion=5)
    assert [m.body for m in iter_records(pulled.body)] == [b"B"]
    assert peer.pull("Beat", 0, 0, consumerGroup="Beats", sysFlag=0, subVersion=6).code == 25
    heartbeat(peer, "c1", "Beats", "Beat", "A", 6)
    pulled = peer.pull("Beat", 0, 0, consumerGroup="Beats", sysFlag=0, subVersion=6)
    assert [m.body for m in iter_records(pulled.body)] == [b"A"]


def test_offsets(peer: RawPeer) -> None:
    key = {"consumerGroup": "Offs", "topic": "Offsets", "queueId": 0}
    for _ in range(3):
        peer.send("Offsets", b"x")
    assert peer.ask(14, key).ext["offset"] == "0"  # a young queue is read from its start
    assert peer.ask(15, key | {"commitOffset": 2}).code == 0
    assert peer.ask(14, key).ext["offset"] == "2"
    assert peer.ask(30, key).ext["offset"] == "3"
    assert peer.ask(31, key).ext["offset"] == "0"
    assert int(peer.ask(32, key).ext["timestamp"]) > 1_700_000_000_000
    assert peer.ask(29, key | {"timestamp": 0}).ext["offset"] == "0"
    assert peer.ask(29, key | {"timestamp": 1 << 50}).ext["offset"] == "2"
    assert peer.ask(29, key | {"timestamp": 1 << 50, "boundaryType": "LOWER"}).ext["offset"] == "3"
    stats = peer.ask(208, {"consumerGroup": "Offs"}).body
    assert b'"consumerOffset":2' in stats
    assert b'{"brokerName":"broker-a","queueId":0,"topic":"Offsets"}:{' in stats


def test_query_by_key(peer: RawPeer) -> None:
    peer.send("Keyed", b"one", {"KEYS": "a b", "UNIQ_KEY": "U1"})
    peer.send("Keyed", b"two", {"KEYS": "b", "UNIQ_KEY": "U2"})
    span = {"topic": "Keyed", "maxNum": 10, "beginTimestamp": 0, "endTimestamp": 1 << 60}
    assert sorted(m.body for m in iter_records(peer.ask(12, span | {"key": "b"}).body)) == [b"one", b"two"]
    unique = peer.ask(12, span | {"key": "U2", "_UNIQUE_KEY_QUERY": "true"})
    assert [m.body for m in iter_records(unique.body)] == [b"two"]
    assert peer.ask(12, span | {"key": "nothing"}).code == 22


def test_queue_locks(peer: RawPeer) -> None:
    def ask(code: int, client: str) -> list[dict[str, object]]:
        mq = {"topic": "L", "brokerName": "broker-a", "queueId": 0}
        body = json.dumps({"consumerGroup": "G", "clientId": client, "mqSet": [mq]}).encode()
        answer = peer.ask(code, body=body)
        return json.loads(answer.body)["lockOKMQSet"] if answer.body else []

    assert len(ask(41, "one")) == 1
    assert ask(41, "two") == []
    ask(42, "one")
    assert len(ask(41, "two")) == 1


# -- delay, retry, transactions ----------------------------------------------------------------------------------


def wait_for(peer: RawPeer, topic: str, queue_id: int = 0, offset: int = 0) -> list[record.ReceivedMessage]:
    """What comes to a queue, by held pulls."""
    ends = time.monotonic() + 60
    while time.monotonic() < ends:
        answer = peer.pull(topic, queue_id, offset, sysFlag=6, suspendTimeoutMillis=1000)
        if answer.code == 0:
            return list(iter_records(answer.body, check=True))
    raise AssertionError(f"nothing came to {topic}")


def test_delays_send_back_and_dead_letters() -> None:
    with Broker(message_delay_level=" ".join(["200ms".replace("200ms", "1s")] * 18)) as broker:
        peer = RawPeer(broker.remoting)
        now = int(time.time() * 1000)
        peer.send("Later", b"level", {"DELAY": "1", "TAGS": "A"})
        peer.send("Later", b"moment", {"TIMER_DELIVER_MS": str(now + 600)}, e=1)
        (moment,) = wait_for(peer, "Later", 1)
        assert moment.body == b"moment"
        assert moment.store_ms >= now + 600
        (level,) = wait_for(peer, "Later", 0)
        assert level.body == b"level"
        assert level.store_ms >= now + 1000
        kept = {"DELAY": "1", "REAL_TOPIC": "Later", "REAL_QID": "0"}
        assert dict(level.properties) == {"TAGS": "A", "CLUSTER": "DefaultCluster"} | kept
        back = {"offset": level.physical_offset, "group": "Back", "delayLevel": 0, "originTopic": "Later",
                "originMsgId": level.offset_msg_id, "maxReconsumeTimes": 1}  # fmt: skip
        assert peer.ask(36, back).code == 0
        heartbeat(peer, "c", "Back", "Later")
        (again,) = wait_for(peer, "%RETRY%Back")
        assert again.reconsume_times == 1
        assert again.properties["RETRY_TOPIC"] == "Later"
        assert (again.properties["DELAY"], again.properties["REAL_TOPIC"]) == ("3", "%RETRY%Back")
        assert again.properties["ORIGIN_MESSAGE_ID"] == level.offset_msg_id
        assert peer.ask(36, back | {"offset": again.physical_offset}).code == 0
        (dead,) = wait_for(peer, "%DLQ%Back")
        assert dead.body == b"level"
        assert peer.ask(36, back | {"offset": 7}).code == 1
        peer.close()


def test_delays_survive_a_kill_and_a_restart(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        peer = RawPeer(broker.remoting)
        due = int(time.time() * 1000) + 1500
        for i in range(20):
            peer.send("Survive", b"%d" % i, {"TIMER_DELIVER_MS": str(due)})
        peer.close()
    with Broker(tmp_path) as broker:
        peer = RawPeer(broker.remoting)
        found: list[record.ReceivedMessage] = []
        while len(found) < 20:
            found += wait_for(peer, "Survive", 0, len(found))
        assert sorted(int(m.body) for m in found) == list(range(20))
        assert min(m.store_ms for m in found) >= due
        peer.close()


def test_transactions() -> None:
    with Broker(transaction_timeout_ms=100, transaction_check_interval_ms=200) as broker:
        peer = RawPeer(broker.remoting)
        beat = {"clientID": "p", "producerDataSet": [{"groupName": "PG"}]}
        assert peer.ask(34, body=json.dumps(beat).encode()).code == 0
        properties = {"TRAN_MSG": "true", "PGROUP": "PG", "UNIQ_KEY": "U1"}

        def half(body: bytes) -> RemotingCommand:
            answer = peer.send("Tx", body, properties, f=4, g=int(time.time() * 1000))
            assert answer.code == 0, answer.remark
            assert answer.ext["transactionId"] == "U1"
            return answer

        def end(answer: RemotingCommand, what: int, group: str = "PG") -> int:
            fields = {"producerGroup": group, "tranStateTableOffset": answer.ext["queueOffset"],
                      "commitLogOffset": int(answer.ext["msgId"][16:], 16), "commitOrRollback": what,
                      "fromTransactionCheck": "false", "msgId": "U1"}  # fmt: skip
            return peer.ask(37, fields).code

        committed, rolled, asked = half(b"yes"), half(b"no"), half(b"asked")
        assert peer.pull("Tx", 0, 0).code in (17, 19)
        assert end(committed, 8, "Other") == 1
        assert end(committed, 8) == 0
        assert end(rolled, 12) == 0
        (message,) = wait_for(peer, "Tx")
        assert message.body == b"yes"
        assert message.sys_flag & 0xC == 8
        assert message.prepared_offset == int(committed.ext["msgId"][16:], 16)
        check = peer.got.pop(0) if peer.got else peer.read()
        assert (check.code, check.ext["transactionId"]) == (39, "U1")
        half_message = next(iter_records(check.body))
        assert (half_message.body, half_message.properties["TRANSACTION_CHECK_TIMES"]) == (b"asked", "1")
        assert end(asked, 8) == 0
        assert [m.body for m in wait_for(peer, "Tx", 0, 1)] == [b"asked"]
        peer.close()


def test_level_disk_answers_after_the_flush() -> None:
    with Broker(level="disk") as broker:
        peer = RawPeer(broker.remoting)
        for i in range(5):
            assert peer.send("Sure", b"%d" % i).ext["queueOffset"] == str(i)
            assert broker.call(lambda server: server.broker.store.flushed_position) > 0
            assert int(peer.ask(30, {"topic": "Sure", "queueId": 0, "durable": "true"}).ext["offset"]) == i + 1
        peer.close()


def test_compressed_body_is_kept_as_it_is(peer: RawPeer) -> None:
    body = zlib.compress(b"long " * 1000)
    peer.send("Zip", body, f=1)
    (message,) = iter_records(peer.pull("Zip", 0, 0).body, check=True)
    assert message.body == b"long " * 1000


def test_a_topic_made_anew_goes_on_behind_the_old_offsets(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        peer = RawPeer(broker.remoting)
        for i in range(3):
            peer.send("Anew", b"old %d" % i)
        assert peer.ask(215, {"topic": "Anew"}).code == 0
        assert peer.pull("Anew", 0, 0).code == 17
        assert peer.ask(215, {"topic": "TBW102"}).code == 1
        peer.close()
    with Broker(tmp_path) as broker:
        peer = RawPeer(broker.remoting)
        assert peer.send("Anew", b"new").ext["queueOffset"] == "3"
        moved = peer.pull("Anew", 0, 0)
        assert (moved.code, moved.ext["nextBeginOffset"]) == (21, "3")
        assert [m.body for m in iter_records(peer.pull("Anew", 0, 3).body)] == [b"new"]
        assert peer.ask(329).code == 0
        peer.close()


# -- a disk that fails -------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("more", [{"DELAY": "1"}, {"TIMER_DELAY_MS": "5"}])
def test_a_delayed_message_keeps_what_rocketmq_leaves_it(peer: RawPeer, more: dict[str, str]) -> None:
    topic = f"Kept{len(more)}{next(iter(more))}"
    properties = {"KEYS": "k", "x": "y"} | more
    assert peer.send(topic, b"later", properties, e=2).code == 0
    deadline = time.monotonic() + 60
    while (pulled := peer.pull(topic, 2, 0)).code != 0:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    time.sleep(1.2)  # it is delivered once: what it keeps delays nothing
    (message,) = iter_records(peer.pull(topic, 2, 0).body, check=True)
    assert pulled.code == 0
    kept = {"KEYS": "k", "x": "y", "REAL_TOPIC": topic, "REAL_QID": "2", "CLUSTER": "DefaultCluster"}
    assert dict(message.properties) == kept | ({"DELAY": "1"} if "DELAY" in more else {})


def test_no_error_text_shows_an_object_of_ours(broker: Broker) -> None:
    with RawPeer(broker.remoting) as peer:
        assert peer.send("T", b"x").code == 0
        answer = peer.send("T", b"x", e=99)
        assert answer.code == 1
        assert "TopicConfig [topicName=T, readQueueNums=4, writeQueueNums=4, perm=RW-" in (answer.remark or "")
        assert "{" not in (answer.remark or "")
