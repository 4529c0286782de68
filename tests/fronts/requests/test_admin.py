"""Requests of the tools: topics and configuration."""

from __future__ import annotations

import json
from pathlib import Path

from fronts.frontside import RemotingSide
from fronts.raw_peer import RawPeer
from penstock.fronts.requests.admin import Administration
from penstock.testing import Broker
from penstock.wire.names import SYSTEM_GROUPS
from penstock.wire.record import iter_records
from penstock.wire.remoting import RemotingCommand


def test_topic_of_a_million_queues(peer: RawPeer) -> None:
    ext = {"topic": "Wide", "defaultTopic": "TBW102", "readQueueNums": 10**6, "writeQueueNums": 10**6, "perm": 6,
           "topicFilterType": "SINGLE_TAG"}  # fmt: skip
    assert peer.ask(17, ext).code == 1
    assert peer.ask(17, ext | {"readQueueNums": 2, "writeQueueNums": 2}).code == 0
    assert peer.ask(17, ext | {"topic": "../../x", "readQueueNums": 2, "writeQueueNums": 2}).code == 1
    assert peer.ask(17, ext | {"readQueueNums": 2, "writeQueueNums": 2, "topicSysFlag": 1 << 30}).code == 1


def test_what_the_broker_needs_for_itself_is_not_changed(peer: RawPeer) -> None:
    """As RocketMQ has it. Without the queue of the halves no broker would start again."""
    ext = {
        "defaultTopic": "TBW102",
        "readQueueNums": 0,
        "writeQueueNums": 0,
        "perm": 0,
        "topicFilterType": "SINGLE_TAG",
    }
    for name in ("RMQ_SYS_TRANS_HALF_TOPIC", "SCHEDULE_TOPIC_XXXX", "TBW102", "rmq_sys_penstock_done"):
        answer = peer.ask(17, ext | {"topic": name, "order": "false", "force": "true"})
        assert (answer.code, answer.remark) == (1, f"The topic[{name}] is conflict with system topic.")
    body = json.dumps({"topicConfigList": [{"topicName": "SELF_TEST_TOPIC"}]}).encode()
    assert peer.ask(18, body=body).code == 1


def test_configuration_is_not_writable(peer: RawPeer) -> None:
    assert peer.ask(25, body=b"rocketmqHome=/tmp\n").code == 16


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


def test_each_request_of_the_table_has_its_method() -> None:
    assert Administration.TABLE
    for code, name in Administration.TABLE.items():
        assert callable(getattr(Administration, name, None)), code


def test_several_topics_at_once_or_none(peer: RawPeer) -> None:
    def update(*topics: object) -> int:
        return peer.ask(18, body=json.dumps({"topicConfigList": topics}).encode()).code

    def queues(name: str) -> int:
        answer = peer.ask(351, {"topic": name})
        return json.loads(answer.body)["readQueueNums"] if answer.code == 0 else 0

    assert update({"topicName": "L1", "readQueueNums": 3, "writeQueueNums": 3, "perm": 6}, {"topicName": "L2"}) == 0
    assert (queues("L1"), queues("L2")) == (3, 16)
    assert update({"topicName": "L1", "readQueueNums": 5, "writeQueueNums": 5}, {"topicName": "no good"}) == 1
    assert update({"topicName": "L1", "readQueueNums": 5}, {"topicName": "L3", "writeQueueNums": 10**6}) == 1
    assert update({"topicName": "L4", "perm": "six"}) == 1
    assert update({"topicName": "L4", "level": "memory"}) == 1
    for more in ({"perm": 16}, {"perm": -1}, {"topicSysFlag": 256}, {"topicSysFlag": -1}):
        assert update({"topicName": "L4"} | more) == 1  # its registry would refuse the broker, all topics of it
    assert (queues("L1"), queues("L3"), queues("L4")) == (3, 0, 0)
    for body in (b"", b"[]", b'{"topicConfigList": 7}', b'{"topicConfigList": [7]}'):
        assert peer.ask(18, body=body).code == 1


def test_several_groups_at_once(peer: RawPeer) -> None:
    def update(*groups: object) -> int:
        return peer.ask(225, body=json.dumps({"groupConfigList": groups}).encode()).code

    assert update({"groupName": "M1", "retryMaxTimes": 3}, {"groupName": "M2"}) == 0
    assert json.loads(peer.ask(352, {"group": "M1"}).body)["retryMaxTimes"] == 3
    assert update({"groupName": "M3"}, {"groupName": "no good"}) == 1
    assert update({"groupName": "M3"}, {"groupName": "M4", "retryMaxTimes": "many"}) == 1
    assert peer.ask(352, {"group": "M3"}).code == 26
    assert peer.ask(225, body=b"{}").code == 1


def test_no_more_groups_are_made_than_may_be(tmp_path: Path) -> None:
    """One that was made by its settings was not counted, so that a tool could make any number."""
    with Broker(tmp_path, max_groups=2 + len(SYSTEM_GROUPS)) as broker, RawPeer(broker.remoting) as peer:

        def update(name: str, retries: int) -> RemotingCommand:
            return peer.ask(200, body=json.dumps({"groupName": name, "retryMaxTimes": retries}).encode())

        assert [update(name, 3).code for name in ("A", "B", "A")] == [0, 0, 0]
        refused = update("C", 3)
        assert (refused.code, "no more than" in (refused.remark or "")) == (1, True)
        body = json.dumps({"groupConfigList": [{"groupName": "A", "retryMaxTimes": 9}, {"groupName": "C"}]}).encode()
        assert peer.ask(225, body=body).code == 1
        assert json.loads(peer.ask(352, {"group": "A"}).body)["retryMaxTimes"] == 3
        assert update("B", 5).code == 0


def test_a_group_is_told_not_to_read_a_topic(tmp_path: Path) -> None:
    ask = {"group": "G", "topic": "F"}
    with Broker(tmp_path) as broker, RawPeer(broker.remoting) as peer:
        peer.send("F", b"x")
        peer.send("Free", b"x")
        assert json.loads(peer.ask(353, ask).body) == {**ask, "readable": True}
        assert peer.pull("F", 0, 0).code == 0
        assert json.loads(peer.ask(353, {**ask, "readable": "false"}).body) == {**ask, "readable": False}
        refused = peer.pull("F", 0, 0)  # at once, for who is reading
        assert (refused.code, refused.remark) == (16, "the consumer group[G] is forbidden for topic[F]")
        assert peer.pull("Free", 0, 0).code == 0
        assert peer.ask(200, body=b'{"groupName": "G", "retryMaxTimes": 3}').code == 0
    with Broker(tmp_path) as broker, RawPeer(broker.remoting) as peer:
        assert peer.pull("F", 0, 0).code == 16
        assert peer.ask(353, {**ask, "readable": "true"}).code == 0
        assert peer.pull("F", 0, 0).code == 0


def test_a_group_that_is_switched_off_stops_reading_at_once(peer: RawPeer) -> None:
    peer.send("Off", b"x")
    config = {"groupName": "Offs", "consumeEnable": False}
    assert peer.pull("Off", 0, 0, consumerGroup="Offs").code == 0
    assert peer.ask(200, body=json.dumps(config).encode()).code == 0
    assert peer.pull("Off", 0, 0, consumerGroup="Offs").code == 16
    assert peer.ask(200, body=json.dumps({**config, "consumeEnable": True}).encode()).code == 0
    assert peer.pull("Off", 0, 0, consumerGroup="Offs").code == 0


def test_a_half_that_was_given_up_is_asked_about_again(tmp_path: Path) -> None:
    side = RemotingSide(
        tmp_path, transaction_check_max=1, transaction_check_interval_ms=1_000, transaction_timeout_ms=10
    )
    producer, tool = side.session(1), side.session(2)
    beat = {"clientID": "p", "producerDataSet": [{"groupName": "P"}]}
    side.ask(producer, 34, json.dumps(beat).encode())
    sent = side.send(producer, "Real", b"half", "TRAN_MSG\x01true\x02PGROUP\x01P\x02UNIQ_KEY\x01U", f=4)
    assert sent.code == 0
    asked = []
    for _ in range(4):
        side.clock.advance(2_000)
        side.broker.time.update()
        side.broker.transactions.tick(side.broker.mono_ms)
        asked += [command.code for command in side.answers(producer)]
    assert asked == [39]
    pull = {"consumerGroup": "G", "queueId": 0, "queueOffset": 0, "maxMsgNums": 32, "sysFlag": 4, "commitOffset": 0,
            "suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0}  # fmt: skip
    (given_up,) = iter_records(side.ask(tool, 11, topic="TRANS_CHECK_MAX_TIME_TOPIC", **pull).body)
    assert side.ask(tool, 323, msgId=given_up.offset_msg_id).code == 0
    side.clock.advance(2_000)
    side.broker.time.update()
    side.broker.transactions.tick(side.broker.mono_ms)
    (again,) = side.answers(producer)
    assert (again.code, again.ext["transactionId"]) == (39, "U")
    end = {"producerGroup": "P", "commitOrRollback": 8, "tranStateTableOffset": again.ext["tranStateTableOffset"],
           "commitLogOffset": again.ext["commitLogOffset"], "msgId": "U"}  # fmt: skip
    assert side.ask(producer, 37, **end).code == 0
    (real,) = iter_records(side.ask(tool, 11, topic="Real", **pull).body)
    assert real.body == b"half"
    for wrong in (sent.ext["msgId"], real.offset_msg_id, "0" * 32, "nonsense"):
        assert side.ask(tool, 323, msgId=wrong).code == 1
    side.close()


def test_a_change_of_a_topic_leaves_its_order(tmp_path: Path) -> None:
    side = RemotingSide(tmp_path)
    topic = side.broker.topics.create(b"T", 4, 4)
    topic.keep_order(True)
    change = {"topic": "T", "defaultTopic": "TBW102", "readQueueNums": 8, "writeQueueNums": 8, "perm": 6,
              "topicFilterType": "SINGLE_TAG", "order": "false"}  # fmt: skip
    assert side.ask(side.session(), 17, **change).code == 0
    assert topic.as_config()["order"] is True
    side.close()
