"""Offsets, messages given back, dead letters."""

from __future__ import annotations

import json
import time
import urllib.request
from pathlib import Path

from fronts.nsq_peer import NsqPeer
from fronts.raw_peer import RawPeer, heartbeat, wait_for
from penstock.fronts.requests.consuming import Consuming
from penstock.testing import Broker
from polling import eventually


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


def test_a_slaves_channel_goes_where_its_masters_is(tmp_path: Path) -> None:
    key = {"topic": "jobs"}
    with Broker(tmp_path / "a", ha_port=0, node="a") as master:
        peer = NsqPeer(master.nsq)
        peer.subscribe(b"jobs", b"c", 1)
        peer.publish(b"jobs", b"x")  # in hand of nobody's cursor: it is not finished
        with Broker(
            tmp_path / "b", ha_port=0, node="b", role="slave", registry=master.registry, registry_port=-1,
            lookup_port=-1, lookup_http_port=-1, ha_master=master.addresses["ha"],
        ) as slave:  # fmt: skip

            def depth() -> int:
                with urllib.request.urlopen(f"http://{slave.http}/stats?format=json&topic=jobs", timeout=30) as answer:
                    (topic,) = json.load(answer)["topics"] or [{"channels": []}]
                return next((one["depth"] for one in topic["channels"]), -1)

            eventually(lambda: depth() == 1, 60, "the slave has not got the channel")
            there = RawPeer(slave.remoting)
            reset = there.ask(222, key | {"group": "c", "timestamp": -1, "isForce": "true"})
            assert (reset.code, "this broker is a slave" in reset.remark) == (1, True)
            assert there.ask(15, key | {"consumerGroup": "c", "queueId": 0, "commitOffset": 1}).code == 0
            assert depth() == 1
            there.close()
        peer.close()


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


def test_each_request_of_the_table_has_its_method() -> None:
    assert Consuming.TABLE
    for code, name in Consuming.TABLE.items():
        assert callable(getattr(Consuming, name, None)), code
