"""`tracing`: where each message of a topic went that asks for it, at a real broker with clients that trace nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.queueside import Side
from penstock import Admin, Message, Producer, PushConsumer
from penstock.broker.tracing import WAITING_MAX, Tracing
from penstock.client.results import Reject, Retry
from penstock.errors import NotFound
from penstock.testing import Broker
from penstock.wire.record import decode_record
from polling import eventually


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(message_delay_level="1s " * 17 + "1s") as broker:
        yield broker


def steps(admin: Admin, id_: str) -> list[tuple[str, str, bool]]:
    try:
        return [(one.what, one.group, one.success) for one in admin.traces(id_)]
    except NotFound:
        return []


def test_given_given_back_again_and_done(broker: Broker) -> None:
    tries: list[bytes] = []

    def once_in_vain(message: object) -> None:
        tries.append(b"")
        if len(tries) == 1:
            raise Retry(1.0)

    with Admin(broker.registry) as admin, Producer(broker.registry) as producer:
        admin.create_topic("seen", 1)
        admin.keep_topic("seen", trace=True)
        sent = producer.send(Message("seen", b"x", keys=("order-7",)))
        with PushConsumer("g", broker.registry, listener=once_in_vain, start="first") as consumer:
            consumer.subscribe("seen")
            eventually(lambda: len(tries) == 2)
            wanted = {("SubBefore", "g", True), ("SubAfter", "g", False), ("SubAfter", "g", True)}
            eventually(lambda: set(steps(admin, sent.msg_ids[0])) == wanted)
            eventually(lambda: sum(what == "SubBefore" for what, _, _ in steps(admin, sent.msg_ids[0])) >= 2)
        assert steps(admin, "order-7") == steps(admin, sent.msg_ids[0]) == steps(admin, sent.offset_msg_ids[0])
        assert any(one.host for one in admin.traces("order-7"))


def test_a_dead_one_and_one_that_nobody_asked_about(broker: Broker) -> None:
    def refuse(message: object) -> None:
        raise Reject("no")

    with Admin(broker.registry) as admin, Producer(broker.registry) as producer:
        for topic in ("seen", "unseen"):
            admin.create_topic(topic, 1)
        admin.keep_topic("seen", trace=True)
        ids = [producer.send(Message(topic, b"x")).msg_ids[0] for topic in ("seen", "unseen")]
        with PushConsumer("g", broker.registry, listener=refuse, start="first") as consumer:
            consumer.subscribe("seen")
            consumer.subscribe("unseen")
            eventually(lambda: "%DLQ%g" in admin.topics(system=True))
            eventually(lambda: sum(one.max_offset for one in admin.topic_stats("%DLQ%g").values()) == 2)
            eventually(lambda: ("SubAfter", "g", False) in steps(admin, ids[0]))
        assert steps(admin, ids[1]) == []
        admin.keep_topic("seen", trace=False)
        third = producer.send(Message("seen", b"x")).msg_ids[0]
        with PushConsumer("other", broker.registry, listener=lambda message: None, start="first") as consumer:
            consumer.subscribe("seen")
            eventually(lambda: all(lag == 0 for lag in lags(admin)))
        assert steps(admin, third) == []


def lags(admin: Admin) -> list[int]:
    found = admin.group_stats("other", "seen")
    ends = admin.topic_stats("seen")
    return [ends[queue].max_offset - stats.committed for queue, stats in found.items()] or [1]


def test_what_it_does_not_do(tmp_path: Path) -> None:
    side = Side(tmp_path, topic=({"name": "*", "kind": "log", "queues": 1},))
    topic = side.broker.topic_to_write(b"t")
    tracing = Tracing(side.broker.core)
    side.broker.topics.keep(topic, topic.settings().more._replace(traced=True), 1)
    for n in range(3):
        side.broker.put(topic, 0, b"%d" % n, {"UNIQ_KEY": f"u{n}"}, born_host=side.broker.store_host, born_ms=1)
    tracing.committed("g", "t", 0, 3, 1)  # back: nothing was done
    tracing.committed("g", "t", 7, None, 1)  # no such queue
    tracing.committed("g", "nosuch", 0, None, 1)
    assert len(tracing) == 0
    tracing.committed("g", "t", 0, None, 99)  # beyond the end
    assert len(tracing) == 3
    data = side.broker.store.record_at(topic.queues[0].entry(0)[0])
    assert data is not None
    for _ in range(WAITING_MAX):
        tracing.handed(topic, "g", "c", data)
    assert len(tracing) == WAITING_MAX  # the oldest give way
    before = side.broker.topics.by_name[b"RMQ_SYS_TRACE_TOPIC"].queues[0].max_offset
    tracing.settle()
    queue = side.broker.topics.by_name[b"RMQ_SYS_TRACE_TOPIC"].queues[0]
    assert (len(tracing), queue.max_offset - before) == (0, WAITING_MAX // 100)
    told = side.broker.store.record_at(queue.entry(before)[0])
    assert told is not None
    message = decode_record(told, 0)
    assert message is not None
    assert "u0" in message.keys
    side.close()
