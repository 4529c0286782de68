"""Level disk and delays: what is stored before and after the answer."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from fronts.frontside import RemotingSide
from fronts.raw_peer import RawPeer, wait_for
from penstock.fronts.remoting.storing import REGION
from penstock.testing import Broker
from penstock.wire import record
from penstock.wire.record import iter_records
from polling import eventually


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


def test_level_disk_answers_after_the_flush() -> None:
    with Broker(level="disk") as broker:
        peer = RawPeer(broker.remoting)
        for i in range(5):
            assert peer.send("Sure", b"%d" % i).ext["queueOffset"] == str(i)
            assert broker.call(lambda server: server.broker.store.flushed_position) > 0
            assert int(peer.ask(30, {"topic": "Sure", "queueId": 0, "durable": "true"}).ext["offset"]) == i + 1
        peer.close()


@pytest.mark.parametrize("more", [{"DELAY": "1"}, {"TIMER_DELAY_MS": "5"}])
def test_a_delayed_message_keeps_what_rocketmq_leaves_it(peer: RawPeer, more: dict[str, str]) -> None:
    topic = f"Kept{len(more)}{next(iter(more))}"
    properties = {"KEYS": "k", "x": "y"} | more
    assert peer.send(topic, b"later", properties, e=2).code == 0
    eventually(lambda: peer.pull(topic, 2, 0).code == 0)
    assert peer.send(topic, b"marker", more, e=2).code == 0
    eventually(lambda: b"marker" in peer.pull(topic, 2, 0).body)
    message, _ = iter_records(peer.pull(topic, 2, 0).body, check=True)  # it came once: what it keeps delays nothing
    assert message.body == b"later"
    kept = {"KEYS": "k", "x": "y", "REAL_TOPIC": topic, "REAL_QID": "2", "CLUSTER": "DefaultCluster"}
    assert dict(message.properties) == kept | ({"DELAY": "1"} if "DELAY" in more else {})


def test_a_repeated_sequence_gets_the_first_answer(tmp_path: Path) -> None:
    side = RemotingSide(tmp_path)
    session = side.session()
    sequence = "PSEQ\x01" + "a" * 16 + ".1.1"
    first, again = (side.send(session, "T", b"x", sequence) for _ in range(2))
    assert (first.code, again.code) == (0, 0)
    assert REGION.items() <= again.ext.items()
    assert (first.ext["msgId"], first.ext["queueOffset"]) == (again.ext["msgId"], again.ext["queueOffset"])
    topic = side.broker.topics.get(b"T")
    assert topic is not None
    assert topic.queues[0].max_offset == 1
    side.close()


def test_a_message_sent_to_its_retry_topic_too_often_is_a_dead_letter_that_says_so(tmp_path: Path) -> None:
    side = RemotingSide(tmp_path)
    session = side.session()
    side.broker.retry_topic_of("g")
    assert side.send(session, "%RETRY%g", b"x", "RETRY_TOPIC\x01T", j=16, l=16).code == 0
    dead = side.broker.topics.get(b"%DLQ%g")
    assert dead is not None
    entry = dead.queues[0].entry(0)
    assert entry is not None
    data = side.broker.store.record_at(entry[0])
    assert data is not None
    told = record.parse_properties(record.properties_text(data, 0, len(data)))
    assert (told["DLQ_REASON"], told["DLQ_GROUP"], told["DLQ_ATTEMPTS"]) == ("attempts", "g", "16")
    assert (told["DLQ_TIME"], told["RETRY_TOPIC"]) == (str(side.broker.now_ms), "T")
    side.close()
