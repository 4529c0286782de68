"""PULL through real sockets: answers, filters, held pulls."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fronts.frontside import RemotingSide
from fronts.raw_peer import RawPeer
from penstock.app import Server
from penstock.broker.levels import LEVEL_DISK
from penstock.broker.roll import Roll
from penstock.fronts.remoting.pulling import Puller
from penstock.testing import Broker
from penstock.wire import remoting
from penstock.wire.record import iter_records
from penstock.wire.remoting import RemotingCommand
from polling import eventually


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


def test_a_reader_of_a_node_that_may_be_no_master_sees_what_was_confirmed(tmp_path: Path) -> None:
    with Broker(tmp_path, level="pair") as broker, RawPeer(broker.remoting) as peer:
        ends = []
        for body in (b"confirmed", b"not"):
            assert peer.send("Pair", body).code == 11  # stored, and nobody else has it
            ends.append(broker.call(lambda server: server.broker.store.end_position))
        eventually(lambda: peer.pull("Pair", 0, 1).code == 0)
        broker.call(lambda server: server.broker.copies.lead(False, ends[0]))
        assert [message.body for message in iter_records(peer.pull("Pair", 0, 0).body)] == [b"confirmed"]
        assert peer.pull("Pair", 0, 1).code == 19
        broker.call(lambda server: server.broker.copies.lead(True))
        assert [message.body for message in iter_records(peer.pull("Pair", 0, 1).body)] == [b"not"]


def test_a_new_master_takes_nobody_back_whom_the_one_before_may_have_shown_more(tmp_path: Path) -> None:
    """What it has was confirmed perhaps, and it has to find that out: a Java client gave its queue up meanwhile, and a Spark
    query ended with DataLoss.
    """
    with Broker(tmp_path, level="pair") as broker, RawPeer(broker.remoting) as peer:
        ends = []
        for body in (b"confirmed", b"perhaps", b"as well"):
            assert peer.send("Pair", body).code == 11
            ends.append(broker.call(lambda server: server.broker.store.end_position))
        eventually(lambda: peer.pull("Pair", 0, 2).code == 0)

        def succeed(server: Server) -> None:
            roll = Roll("a", {"a": 1, "b": 5}, server.broker.mono_ms + 3_600_000, lambda: None)
            server.broker.copies.enroll(roll, ends[0])

        broker.call(succeed)
        assert [message.body for message in iter_records(peer.pull("Pair", 0, 0).body)] == [b"confirmed"]
        for offset, code in ((1, 19), (2, 20)):
            told = peer.pull("Pair", 0, offset)
            assert (told.code, told.ext["nextBeginOffset"], told.ext["maxOffset"]) == (code, str(offset), "3")
        broker.call(lambda server: server.broker.copies.told(ends[1], ends[1]))
        assert [message.body for message in iter_records(peer.pull("Pair", 0, 1).body)] == [b"perhaps"]
        broker.call(lambda server: server.broker.copies.told(ends[2], ends[2]))
        told = peer.pull("Pair", 0, 4)  # nobody has been shown that
        assert (told.code, told.ext["nextBeginOffset"], told.ext["maxOffset"]) == (21, "3", "3")


def test_what_a_slave_may_not_show_yet_is_told_as_there(tmp_path: Path) -> None:
    """Readers ask it while there is no master, and may have been shown that by the one there was."""
    with Broker(tmp_path, level="pair") as broker, RawPeer(broker.remoting) as peer:
        for body in (b"one", b"two"):
            assert peer.send("Pair", body).code == 11
    slave = {"role": "slave", "ha_master": "127.0.0.1:1", "node": "b"}
    with Broker(tmp_path, level="pair", **slave) as broker, RawPeer(broker.remoting) as peer:
        for offset in (0, 1):
            told = peer.pull("Pair", 0, offset)
            assert told.code != 0
            assert (told.ext["nextBeginOffset"], told.ext["maxOffset"]) == (str(offset), "2")


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
    for kind, wrong in (("SQL92", "a = "), ("REGEX", "a")):
        assert peer.pull("Pulls", 0, 0, expressionType=kind, subscription=wrong).code == 23
    assert peer.pull("Pulls", 0, 0, consumerGroup="../x").code == 1
    assert peer.pull("Pulls", 0, 0, consumerGroup="g" * 300).code == 1
    no_heartbeat = peer.pull("Pulls", 0, 0, sysFlag=0)
    assert no_heartbeat.code == 24


def test_a_held_pull_remembers_what_it_wants(tmp_path: Path) -> None:
    side = RemotingSide(tmp_path)
    producer, consumer = side.session(1), side.session(2)
    side.send(producer, "T", b"0")
    assert isinstance(consumer.puller, Puller)
    pull = {"consumerGroup": "G", "topic": "T", "queueId": "0", "queueOffset": "1", "maxMsgNums": "32", "sysFlag": "6",
            "commitOffset": "0", "suspendTimeoutMillis": "5000", "subscription": "B", "subVersion": "0"}  # fmt: skip
    assert side.say(consumer, RemotingCommand(11, pull, opaque=7)) == []
    side.send(producer, "T", b"other tag", "TAGS\x01A")
    assert side.answers(consumer) == []
    side.send(producer, "T", b"mine", "TAGS\x01B")
    (answer,) = side.answers(consumer)
    assert [m.body for m in iter_records(answer.body)] == [b"mine"]
    side.close()


def test_a_held_pull_sees_what_has_reached_the_level_that_its_topic_has_by_then(tmp_path: Path) -> None:
    side = RemotingSide(tmp_path)
    producer, consumer = side.session(1), side.session(2)
    side.broker.topics.create(b"T", 1, 1)
    pull = {"consumerGroup": "G", "topic": "T", "queueId": "0", "queueOffset": "0", "maxMsgNums": "32", "sysFlag": "6",
            "commitOffset": "0", "suspendTimeoutMillis": "5000", "subscription": "*", "subVersion": "0"}  # fmt: skip
    assert side.say(consumer, RemotingCommand(11, pull, opaque=7)) == []
    side.broker.topics.create(b"T", 1, 1, level=LEVEL_DISK)
    fields = {"a": "P", "b": "T", "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "5", "h": "0", "i": ""}
    assert side.say(producer, RemotingCommand(310, fields, b"x", opaque=8)) == []  # not flushed yet
    assert side.answers(consumer) == []
    side.turn()
    (answer,) = side.answers(consumer)
    assert [m.body for m in iter_records(answer.body)] == [b"x"]
    side.close()


def test_a_level_that_rises_takes_nothing_back_from_readers(tmp_path: Path) -> None:
    """Who asks for what is durable alone has never seen it."""
    side = RemotingSide(tmp_path)
    producer, consumer = side.session(1), side.session(2)
    side.broker.topics.create(b"T", 1, 1)
    fields = {"a": "P", "b": "T", "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "5", "h": "0", "i": ""}
    pull = {"consumerGroup": "G", "topic": "T", "queueId": "0", "queueOffset": "0", "maxMsgNums": "32", "sysFlag": "4",
            "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0"}  # fmt: skip

    def seen(**more: str) -> list[bytes]:
        (answer,) = side.say(consumer, RemotingCommand(11, pull | more, opaque=7))
        return [m.body for m in iter_records(answer.body)]

    assert len(side.say(producer, RemotingCommand(310, fields, b"x", opaque=8))) == 1
    assert seen() == [b"x"]
    side.broker.topics.create(b"T", 1, 1, level=LEVEL_DISK)
    assert side.say(producer, RemotingCommand(310, fields, b"y", opaque=9)) == []
    assert (seen(), seen(durable="true")) == ([b"x"], [])
    side.turn()
    assert seen() == seen(durable="true") == [b"x", b"y"]
    side.close()
