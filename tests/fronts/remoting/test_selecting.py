"""SQL92 subscriptions: pulls, held pulls, heartbeats, and our own consumer."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from fronts.frontside import RemotingSide
from fronts.raw_peer import RawPeer
from penstock import Message, Producer, PushConsumer
from penstock.fronts.remoting.selecting import LOOKED_AT_MAX
from penstock.testing import Broker
from penstock.wire.record import iter_records
from penstock.wire.remoting import RemotingCommand
from polling import eventually


def pulled(
    peer: RawPeer, topic: str, expression: str, offset: int = 0, **fields: object
) -> tuple[int, list[bytes], int]:
    """(code, bodies, where to go on)."""
    answer = peer.pull(topic, 0, offset, expressionType="SQL92", subscription=expression, **fields)
    return answer.code, [m.body for m in iter_records(answer.body, check=True)], int(answer.ext["nextBeginOffset"])


def test_a_pull_gets_what_it_selects(peer: RawPeer) -> None:
    for n in range(20):
        peer.send("Sel", b"%d" % n, {"n": str(n), "TAGS": "even" if n % 2 == 0 else "odd"})
    assert pulled(peer, "Sel", "n > 4 AND n < 8") == (0, [b"5", b"6", b"7"], 20)
    assert pulled(peer, "Sel", "TAGS = 'even' AND n >= 16") == (0, [b"16", b"18"], 20)
    assert pulled(peer, "Sel", "n < 0") == (20, [], 20)
    assert pulled(peer, "Sel", "gone IS NULL", maxMsgNums=3) == (0, [b"0", b"1", b"2"], 3)
    assert pulled(peer, "Sel", "n = 19", maxMsgNums=3) == (0, [b"19"], 20)  # looked for behind what does not match
    assert [m.body for m in iter_records(peer.pull("Sel", 0, 0, subscription="odd", maxMsgNums=2).body)] == [b"1", b"3"]
    assert pulled(peer, "Sel", "n = 1", 19) == (20, [], 20)


def test_pulls_of_one_session_do_not_take_each_others_filter(peer: RawPeer) -> None:
    for n in range(4):
        peer.send("Mix", b"%d" % n, {"n": str(n), "TAGS": "a"})
    for _ in range(2):
        assert pulled(peer, "Mix", "n = 1")[1] == [b"1"]
        assert pulled(peer, "Mix", "n = 2")[1] == [b"2"]
        assert len(list(iter_records(peer.pull("Mix", 0, 0, subscription="a").body))) == 4
        assert pulled(peer, "Mix", "a")[0] == 20  # as SQL92 a property that is missing
        assert len(list(iter_records(peer.pull("Mix", 0, 0, subscription="*", expressionType="").body))) == 4


def test_a_pull_that_finds_nothing_for_long_is_answered(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker, Producer(broker.registry) as producer:
        producer.send(Message("Long", b"first"))
        queue = producer.send_batch([Message("Long", b"x", properties={"n": "1"}) for _ in range(3000)]).queue
        producer.send_batch([Message("Long", b"x", properties={"n": "1"}) for _ in range(3000)], queue=queue)
        with RawPeer(broker.addresses["remoting"]) as peer:
            fields = {"expressionType": "SQL92", "subscription": "n = 2", "queueId": queue.queue_id}
            answer = peer.pull("Long", queue.queue_id, 0, **{k: v for k, v in fields.items() if k != "queueId"})
            assert answer.code == 20
            assert LOOKED_AT_MAX <= int(answer.ext["nextBeginOffset"]) < 6000


def test_a_held_pull_waits_for_what_it_selects(tmp_path: Path) -> None:
    side = RemotingSide(tmp_path)
    producer, consumer = side.session(1), side.session(2)
    side.send(producer, "T", b"0")
    pull = {"consumerGroup": "G", "topic": "T", "queueId": "0", "queueOffset": "1", "maxMsgNums": "32", "sysFlag": "6",
            "commitOffset": "0", "suspendTimeoutMillis": "5000", "subscription": "n > 4", "expressionType": "SQL92",
            "subVersion": "0"}  # fmt: skip
    assert side.say(consumer, RemotingCommand(11, pull, opaque=7)) == []
    side.send(producer, "T", b"low", "n\x011")
    side.send(producer, "T", b"none")
    assert side.answers(consumer) == []
    side.send(producer, "T", b"mine", "n\x015")
    (answer,) = side.answers(consumer)
    assert [m.body for m in iter_records(answer.body)] == [b"mine"]
    assert answer.ext["nextBeginOffset"] == "4"
    side.close()


def beat(peer: RawPeer, expression: str, version: int) -> int:
    about = {"topic": "Beat", "subString": expression, "expressionType": "SQL92", "subVersion": version}
    consumer = {"groupName": "Beats", "consumeType": "CONSUME_PASSIVELY", "subscriptionDataSet": [about]}
    return peer.ask(34, body=json.dumps({"clientID": "c1", "consumerDataSet": [consumer]}).encode()).code


def test_a_heartbeat_brings_the_expression(peer: RawPeer) -> None:
    for n in range(4):
        peer.send("Beat", b"%d" % n, {"n": str(n)})
    assert beat(peer, "n > 2", 1) == 0
    pull = {"consumerGroup": "Beats", "sysFlag": 0}
    assert [m.body for m in iter_records(peer.pull("Beat", 0, 0, subVersion=1, **pull).body)] == [b"3"]
    assert peer.pull("Beat", 0, 0, subVersion=2, **pull).code == 25
    assert beat(peer, "n < 1", 2) == 0
    assert [m.body for m in iter_records(peer.pull("Beat", 0, 0, subVersion=2, **pull).body)] == [b"0"]
    assert beat(peer, "n <", 3) == 0  # the heartbeat of its other topics counts
    assert peer.pull("Beat", 0, 0, subVersion=3, **pull).code == 27


@pytest.mark.parametrize(("expression", "code"), [("a = 1", 0), ("a = ", 23), ("a LIKE 'x'", 23)])
def test_a_client_asks_whether_an_expression_is_one(peer: RawPeer, expression: str, code: int) -> None:
    about = {"topic": "T", "subString": expression, "expressionType": "SQL92"}
    body = json.dumps({"clientId": "c", "group": "G", "subscriptionData": about}).encode()
    assert peer.ask(46, body=body).code == code


def test_our_consumer_gets_what_it_subscribes_to(tmp_path: Path) -> None:
    source = random.Random(5)
    with Broker(tmp_path) as broker, Producer(broker.registry) as producer:
        wanted = set()
        for n in range(200):
            price, city = source.randrange(100), source.choice(["Oslo", "Rome", None])
            properties = {"price": str(price)} | ({"city": city} if city else {})
            producer.send_nowait(Message("Offers", b"%d" % n, properties=properties))
            if price >= 50 and city != "Rome" and city is not None:
                wanted.add(b"%d" % n)
        producer.flush()
        found: list[bytes] = []
        with PushConsumer("g", broker.registry, listener=lambda got: found.append(got.body), start="first") as consumer:
            consumer.subscribe("Offers", where="price >= 50 AND city <> 'Rome'")
            eventually(lambda: set(found) == wanted)
        assert set(found) == wanted


def test_records_over_segments_and_with_other_heads_are_read(connect: Callable[[], RawPeer]) -> None:
    peer = connect()
    for n in range(3):
        peer.send("Big", bytes(300_000), {"n": str(n)})
    for n in range(3):
        code, bodies, _ = pulled(peer, "Big", f"n = {n}")
        assert (code, [len(body) for body in bodies]) == (0, [300_000])
