"""Heartbeats, members of a group, locks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from fronts.frontside import RemotingSide
from fronts.raw_peer import RawPeer, heartbeat
from penstock.fronts.requests.members import Members
from penstock.wire import fastjson, remoting
from penstock.wire.record import iter_records
from penstock.wire.remoting import RemotingCommand


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


def test_a_reset_is_kept_before_the_members_have_heard_of_it(peer: RawPeer) -> None:
    """Of a queue that changes hands just then nobody would keep it."""
    for body in (b"1", b"2"):
        peer.send("Reset", body)
    heartbeat(peer, "c1", "Resets", "Reset")
    key = {"consumerGroup": "Resets", "topic": "Reset", "queueId": 0}
    assert peer.ask(15, key | {"commitOffset": 2}).code == 0
    ext = {"topic": "Reset", "group": "Resets", "timestamp": 0, "isForce": "true"}
    assert peer.ask(222, ext).code == 0
    assert peer.ask(14, key).ext["offset"] == "0"


def test_queue_locks(peer: RawPeer) -> None:
    def ask(code: int, client: str) -> list[dict[str, object]]:
        mq = {"topic": "L", "brokerName": "broker-a", "queueId": 0}
        body = json.dumps({"consumerGroup": "G", "clientId": client, "mqSet": [mq, mq]}).encode()
        answer = peer.ask(code, body=body)
        return json.loads(answer.body)["lockOKMQSet"] if answer.body else []

    assert ask(41, "one") == []  # there is no such queue yet
    peer.send("L", b"x")
    assert len(ask(41, "one")) == 1
    assert ask(41, "two") == []
    ask(42, "one")
    assert len(ask(41, "two")) == 1
    here = {"topic": "L", "brokerName": "broker-a", "queueId": 1}
    for bad in (
        here | {"brokerName": "b" * 256},
        here | {"topic": "no name"},
    ):  # behind a good one, too: nothing is locked
        body = json.dumps({"consumerGroup": "G", "clientId": "c", "mqSet": [here, bad]}).encode()
        assert peer.ask(41, body=body).code == 1
    body = json.dumps({"consumerGroup": "G", "clientId": "d", "mqSet": [here, here | {"brokerName": "b"}]}).encode()
    assert json.loads(peer.ask(41, body=body).body)["lockOKMQSet"] == [here]
    for wrong in (5, "x", {"topic": "L"}, [None]):
        answer = peer.ask(41, body=json.dumps({"consumerGroup": "G", "clientId": "c", "mqSet": wrong}).encode())
        assert (answer.code, answer.remark) == (1, "mqSet holds no message queues")


def test_each_request_of_the_table_has_its_method() -> None:
    assert Members.TABLE
    for code, name in Members.TABLE.items():
        assert callable(getattr(Members, name, None)), code


def test_members_say_how_far_they_are(connect: Callable[[], RawPeer]) -> None:
    one, two, tool = connect(), connect(), connect()
    heartbeat(one, "c1", "Asked", "T")
    heartbeat(two, "c2", "Asked", "T")
    ask = {"topic": "T", "group": "Asked"}

    def answer(peer: RawPeer, offset: int) -> None:
        question = peer.read()
        while question.code != 221:
            question = peer.read()
        assert question.ext == ask
        table = b'{"messageQueueTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:%d}}' % offset
        peer.write(remoting.encode(question.reply(body=table)))

    tool.write(remoting.encode(RemotingCommand(223, {**ask, "clientAddr": ""}, opaque=1)))
    answer(one, 5)
    answer(two, 7)
    found = fastjson.loads(tool.read().body)
    assert {client: table[0][1] for client, table in found["consumerTable"].items()} == {"c1": 5, "c2": 7}
    tool.write(remoting.encode(RemotingCommand(223, {**ask, "clientAddr": "c2"}, opaque=2)))
    answer(two, 9)
    assert list(fastjson.loads(tool.read().body)["consumerTable"]) == ["c2"]
    assert fastjson.loads(tool.ask(223, {**ask, "clientAddr": "c3"}).body)["consumerTable"] == {}
    assert tool.ask(223, {"topic": "T", "group": "nobody"}).code == 1


def test_a_member_that_does_not_say_how_far_it_is_is_left_out(tmp_path: Path) -> None:
    side = RemotingSide(tmp_path)
    silent, tool = side.session(1), side.session(2)
    consumer = {"groupName": "Quiet", "consumeType": "CONSUME_PASSIVELY", "subscriptionDataSet": []}
    body = json.dumps({"clientID": "c1", "consumerDataSet": [consumer]}).encode()
    side.say(silent, RemotingCommand(34, {}, body))
    assert side.say(tool, RemotingCommand(223, {"topic": "T", "group": "Quiet"}, opaque=1)) == []
    side.clock.advance(6_000)
    side.broker.time.update()
    side.front.tick()
    (answer,) = side.answers(tool)
    assert fastjson.loads(answer.body) == {"consumerTable": {}, "messageQueueTable": {}}
    side.close()


def test_what_a_group_reads_and_how(peer: RawPeer) -> None:
    peer.send("How", b"x")
    ask = {"group": "Hows", "topic": "How"}
    assert json.loads(peer.ask(345, ask).body) == ask
    heartbeat(peer, "c1", "Hows", "How", "TagA")
    assert json.loads(peer.ask(345, ask).body)["subscriptionData"]["tagsSet"] == ["TagA"]

    def mode(**about: object) -> int:
        told = {"topic": "How", "consumerGroup": "Hows", "mode": "PULL", "popShareQueueNum": 0, **about}
        return peer.ask(401, body=json.dumps(told).encode()).code

    assert mode() == 0
    assert mode(mode="POP") == 1
    assert (mode(topic="nosuch"), mode(consumerGroup="nosuch"), mode(topic="%RETRY%Hows")) == (17, 26, 16)
