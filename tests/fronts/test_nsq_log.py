"""One stored topic as an NSQ channel and as RocketMQ queues: what one side writes, the other reads."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from fronts.nsq_peer import NsqPeer, mpub, sized
from penstock import Admin, Message, Producer
from penstock.app import Server
from penstock.client.reader import LogReader
from penstock.testing import Broker
from penstock.wire.record import iter_records
from polling import eventually

RULES = ({"name": "events*", "kind": "log", "queues": 2},)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(tmp_path, topic=RULES) as running:
        yield running


def stored(broker: Broker, topic: str) -> list[bytes]:
    reader = LogReader(broker.registry)
    try:
        return sorted(
            record.body
            for queue in reader.queues(topic)
            for record in iter_records(reader.fetch(queue, 0, durable=False).records)
        )
    finally:
        reader.close()


def test_nsq_writes_and_everybody_reads(broker: Broker) -> None:
    peer = NsqPeer(broker.nsq)
    peer.publish(b"events", b"one", b"two")
    assert peer.ask(mpub(b"events", b"three", b"four", b"five")) == b"OK"
    assert stored(broker, "events") == sorted([b"one", b"two", b"three", b"four", b"five"])
    peer.subscribe(b"events", b"audit", 100)
    messages = [peer.message() for _ in range(5)]
    assert sorted(m.body for m in messages) == stored(broker, "events")
    assert {m.attempts for m in messages} == {1}
    peer.finish(*messages)
    assert peer.ask(b"FIN " + messages[0].id + b"\n").startswith(b"E_FIN_FAILED")
    reader = LogReader(broker.registry)
    assert sum(reader.committed("audit", queue) or 0 for queue in reader.queues("events")) == 5
    reader.close()
    peer.close()


def test_rocketmq_writes_and_a_channel_reads(broker: Broker) -> None:
    first = NsqPeer(broker.nsq)
    first.subscribe(b"events-r", b"c", 10)
    with Producer(broker.registry) as producer:
        producer.send(Message("events-r", b"plain", tags="a", keys=("k",)))
        producer.send(Message("events-r", b"long " * 2000))
    bodies = [first.message().body for _ in range(2)]
    assert sorted(bodies) == sorted([b"plain", b"long " * 2000])
    first.close()


def test_requeued_with_a_delay_it_comes_again_on_its_channel_alone(broker: Broker) -> None:
    one, other = NsqPeer(broker.nsq), NsqPeer(broker.nsq)
    one.subscribe(b"events", b"one", 10)
    other.subscribe(b"events", b"other", 10)
    other.publish(b"events", b"again")
    message = one.message()
    theirs = other.message()
    other.finish(theirs)
    began = time.monotonic()
    one.send(b"REQ " + message.id + b" 300\n")
    again = one.message()
    assert time.monotonic() - began >= 0.29
    assert (again.stamp_ns, again.id, again.body, again.attempts) == (message.stamp_ns, message.id, b"again", 2)
    one.finish(again)
    assert stored(broker, "events") == [b"again"]
    assert other.ask(b"FIN " + theirs.id + b"\n").startswith(b"E_FIN_FAILED")
    one.close()
    other.close()


def test_deferred_it_is_in_the_log_when_it_is_due(broker: Broker) -> None:
    peer = NsqPeer(broker.nsq)
    assert peer.ask(b"DPUB events 200\n" + sized(b"later")) == b"OK"
    peer.subscribe(b"events", b"c", 1)
    assert peer.message().body == b"later"
    assert stored(broker, "events") == [b"later"]
    peer.close()


def test_a_channel_goes_on_where_it_was(tmp_path: Path) -> None:
    with Broker(tmp_path, topic=RULES) as broker:
        peer = NsqPeer(broker.nsq)
        peer.publish(b"events", *(b"%d" % n for n in range(10)))
        peer.subscribe(b"events", b"c", 6)
        taken = [peer.message() for _ in range(6)]
        peer.send(b"RDY 0\n")
        peer.finish(*taken[::2])
        assert peer.ask(b"FIN 0123456789abcdef\n").startswith(b"E_FIN_FAILED")
        peer.close()
    with Broker(tmp_path, topic=RULES) as broker:
        peer = NsqPeer(broker.nsq)
        peer.subscribe(b"events", b"c", 100)
        left = [peer.message() for _ in range(7)]
        assert sorted(m.body for m in left) == sorted({b"%d" % n for n in range(10)} - {m.body for m in taken[::2]})
        assert all(m.attempts == 2 for m in left if m.id in {t.id for t in taken})
        peer.close()


def test_an_admin_resets_a_channel_as_a_group(broker: Broker) -> None:
    peer = NsqPeer(broker.nsq)
    peer.publish(b"events", b"a", b"b")
    peer.subscribe(b"events", b"c", 10)
    peer.finish(peer.message(), peer.message())
    assert peer.ask(b"FIN 0123456789abcdef\n").startswith(b"E_FIN_FAILED")
    reader = LogReader(broker.registry)
    for queue in reader.queues("events"):
        reader.commit("c", queue, 0)
    assert sorted(peer.message().body for _ in range(2)) == [b"a", b"b"]
    reader.close()
    peer.close()


def test_a_topic_has_one_kind(broker: Broker) -> None:
    peer = NsqPeer(broker.nsq)
    peer.publish(b"work", b"x")
    with Producer(broker.registry) as producer, pytest.raises(ValueError, match="queue topic"):
        producer.send(Message("work", b"y", tags="t"))
    peer.publish(b"work", b"z")
    peer.close()


def counts(broker: Broker, topic: str, *, by_name: bool) -> tuple[int, dict[str, tuple[int, int]]]:
    """What `/stats` says of a topic, asked for by name or in the list of all: messages, and (messages, depth) by channel."""
    path = "/stats?format=json" + (f"&topic={topic}" if by_name else "")
    with urllib.request.urlopen(f"http://{broker.http}{path}", timeout=30) as told:
        found = next(t for t in json.loads(told.read())["topics"] if t["topic_name"] == topic)
    return found["message_count"], {
        c["channel_name"]: (c["message_count"], c["depth"] + c["in_flight_count"]) for c in found["channels"]
    }


@pytest.mark.parametrize("kind", ["queue", "log"])
@pytest.mark.parametrize("by_name", [True, False])
def test_every_message_is_counted_whoever_asks(broker: Broker, kind: str, by_name: bool) -> None:
    topic = "events-counted" if kind == "log" else "jobs"
    writer, first, second = (NsqPeer(broker.nsq) for _ in range(3))
    first.subscribe(topic.encode(), b"one", 1)
    writer.publish(topic.encode(), *(b"%d" % n for n in range(10)))
    assert counts(broker, topic, by_name=by_name) == (10, {"one": (10, 10)})
    first.send(b"RDY 0\n")
    first.finish(first.message())
    assert first.ask(b"FIN " + b"0" * 16 + b"\n").startswith(b"E_FIN_FAILED")  # what was sent before is carried out
    second.subscribe(topic.encode(), b"two", 0)
    if kind == "log":
        with Producer(broker.registry) as producer:
            producer.send(Message(topic, b"by RocketMQ's door"))
            producer.send_batch([Message(topic, b"a"), Message(topic, b"b")])
    else:
        writer.publish(topic.encode(), b"x", b"y", b"z")
    messages, channels = counts(broker, topic, by_name=by_name)
    for peer in (writer, first, second):
        peer.close()
    assert messages == 13
    assert channels["one"] == (13, 12)
    assert channels["two"] == (3, 3)


def test_metrics_count_what_log_topics_receive(broker: Broker) -> None:
    with Producer(broker.registry) as producer:
        for n in range(5):
            producer.send(Message("events-unseen", b"%d" % n))  # no NSQ client has named it
    with urllib.request.urlopen(f"http://{broker.http}/metrics", timeout=30) as told:
        lines = told.read().decode().splitlines()
    assert 'penstock_messages_in_total{topic="events-unseen"} 5' in lines
    assert not [line for line in lines if "rmq_sys" in line or "SCHEDULE_TOPIC" in line]


def test_dead_letters_of_a_channel_are_a_log_topic_as_their_origin_is(broker: Broker) -> None:
    """`%DLQ%group`, which the tools, RocketMQ's clients and Spark read; with all the message had."""
    with Producer(broker.registry) as producer:
        producer.send(
            Message("events-dead", b"cannot be worked on", keys=("k",), tags="bad", properties={"color": "red"})
        )
    peer = NsqPeer(broker.nsq)
    peer.subscribe(b"events-dead", b"c.1", 5)
    message = peer.message()
    peer.send(b"REJECT " + message.id + b"\n")
    assert peer.ask(b"FIN " + message.id + b"\n").startswith(b"E_FIN_FAILED")
    peer.close()
    with Admin(broker.registry) as admin:
        assert sum(stats.max_offset for stats in admin.topic_stats("%DLQ%c%2E1").values()) == 1
        assert not [row for row in admin.queue_topics() if row["topic"].endswith(".dead")]
    reader = LogReader(broker.registry)
    try:
        (queue,) = reader.queues("%DLQ%c%2E1")
        (record,) = iter_records(reader.fetch(queue, 0, durable=False).records)
    finally:
        reader.close()
    assert (record.body, record.tags, record.keys) == (b"cannot be worked on", "bad", ("k",))
    assert record.properties["RETRY_TOPIC"] == "events-dead"
    assert record.properties["color"] == "red"
    assert record.properties["ORIGIN_MESSAGE_ID"]


@pytest.mark.parametrize("topic", [b"events-held", b"work-held"])  # a log topic, and a queue topic
@pytest.mark.parametrize("during", [False, True])
def test_what_is_due_during_a_pause_waits_for_its_end(broker: Broker, topic: bytes, during: bool) -> None:
    name = topic.decode()

    def post(what: str) -> None:
        url = f"http://{broker.http}/topic/{what}?topic={name}"
        urllib.request.urlopen(urllib.request.Request(url, data=b"", method="POST"), timeout=30).close()

    def depths() -> tuple[int, int, int]:
        with urllib.request.urlopen(f"http://{broker.http}/stats?format=json&topic={name}", timeout=30) as answer:
            (row,) = json.load(answer)["topics"]
        (channel,) = row["channels"]
        return row["depth"], channel["depth"] + channel["in_flight_count"], channel["deferred_count"]

    def is_held(server: Server) -> bool:
        assert server.broker is not None
        return topic in server.broker.queueing.deferral.held

    peer, reader = NsqPeer(broker.nsq), NsqPeer(broker.nsq)
    peer.publish(topic, b"first")
    reader.subscribe(topic, b"c", 10)
    reader.finish(reader.message())
    late = b"DPUB " + topic + b" 700\n" + sized(b"late")
    if not during:
        assert peer.ask(late) == b"OK"
    post("pause")
    if during:
        assert peer.ask(late) == b"OK"
    # Of a log it is a message of the topic by then; of a queue topic it is its channels' own, and not emptied with the topic.
    if topic.startswith(b"events"):
        eventually(lambda: depths() == (1, 0, 0), 60, "it is not due")
    else:
        eventually(lambda: broker.call(is_held), 60, "it is not due")
        assert depths() == (0, 0, 1)
    post("unpause")
    assert reader.message().body == b"late"
    for one in (peer, reader):
        one.close()


def test_topics_that_are_closed_to_senders_are_so_by_this_door_too(broker: Broker) -> None:
    """A record in the topic of ends would end other people's transactions at the next start."""
    with Admin(broker.registry) as admin:
        admin.create_topic("events-read-only", perm=4)
    for name in (b"RMQ_SYS_TRANS_OP_HALF_TOPIC", b"SCHEDULE_TOPIC_XXXX", b"rmq_sys_penstock_done", b"events-read-only"):
        for command, verb in ((b"PUB %s\n", b"PUB"), (b"DPUB %s 5\n", b"DPUB")):
            peer = NsqPeer(broker.nsq)
            answer = peer.ask(command % name + sized(b"0,1"))
            assert answer == b"E_%s_FAILED %s failed topic %s is closed to senders" % (verb, verb, name)
            peer.close()
        request = urllib.request.Request(f"http://{broker.http}/pub?topic={name.decode()}", b"0,1", method="POST")
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=60)
        assert refused.value.code == 403
        refused.value.close()
    assert stored(broker, "events-read-only") == []
