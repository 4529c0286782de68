"""Traces of our own client, against a real broker: what was sent, received, failed and came again."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from penstock import Admin, Message, Producer, PushConsumer, Retry, aio
from penstock.client.aio import tracing
from penstock.client.aio.tracing import TOPIC, Tracer
from penstock.errors import NotFound, PenstockError
from penstock.message import ReceivedMessage
from penstock.testing import Broker
from penstock.wire.traces import Trace
from polling import eventually, until

Told = Callable[..., list[Trace]]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("data")) as broker:
        yield broker


@pytest.fixture
def told(broker: Broker) -> Told:
    """The traces of a message, as soon as there are so many."""

    def wait(msg_id: str, count: int) -> list[Trace]:
        found: list[Trace] = []

        def enough() -> bool:
            try:
                with Admin(broker.registry) as admin:
                    found[:] = admin.traces(msg_id)
            except PenstockError:
                return False
            return len(found) >= count

        eventually(enough)
        return found

    return wait


def test_a_message_that_fails_once_and_then_is_done(broker: Broker, told: Told) -> None:
    def listener(message: ReceivedMessage) -> None:
        if message.reconsume_times == 0:
            raise Retry(0.01)

    with PushConsumer("billing", broker.registry, listener=listener, start="first", trace=True) as consumer:
        consumer.subscribe("traced")
        with Producer(broker.registry, group="shop", trace=True) as producer:
            receipt = producer.send(Message("traced", b"12345", keys=("order-7", "k2"), tags="paid"))
            producer.send(Message("traced", b"another"))
        found = told(receipt.msg_id, 5)
    assert [(trace.what, trace.success) for trace in found] == [
        ("Pub", True), ("SubBefore", True), ("SubAfter", False), ("SubBefore", True), ("SubAfter", True)
    ]  # fmt: skip
    sent, first, failed, second, done = found
    assert (sent.group, sent.topic, sent.tags, sent.keys, sent.body_bytes) == (
        "shop",
        "traced",
        "paid",
        "order-7 k2",
        5,
    )
    assert (sent.host, sent.offset_msg_id) == (broker.remoting, receipt.offset_msg_id)
    assert (first.group, first.retry_times, second.retry_times) == ("billing", 0, 1)
    assert (failed.request_id, done.request_id) == (first.request_id, second.request_id)
    assert {trace.msg_id for trace in found} == {receipt.msg_id}
    assert told("order-7", 5) == found
    assert told(receipt.offset_msg_id, 5) == found


async def test_batches_and_what_is_iterated_over(broker: Broker, told: Told) -> None:
    async with aio.Producer(broker.registry, trace=True) as producer:
        receipt = await producer.send_batch([Message("iterated", b"%d" % n) for n in range(150)])
        oneway = await producer.send_oneway(Message("iterated", b"150"))
    async with aio.PushConsumer("walkers", broker.registry, start="first", trace=True) as consumer:
        await consumer.subscribe("iterated")
        count = 0
        async for delivery in consumer:
            await (delivery.reject("no") if delivery.body == b"149" else delivery.ack())
            count += 1
            if count == 151:
                break
    for msg_id in (receipt.msg_ids[0], receipt.msg_ids[99], oneway):
        assert [trace.what for trace in told(msg_id, 3)] == ["Pub", "SubBefore", "SubAfter"]
    assert [trace.success for trace in told(receipt.msg_ids[149], 3)] == [True, True, False]


def test_a_send_that_fails(broker: Broker, told: Told) -> None:
    with Producer(broker.registry, trace=True, send_timeout_s=1) as producer, pytest.raises(PenstockError):
        producer.send(Message("no good name", b"x", keys=("failing",)))
    assert [(trace.what, trace.success) for trace in told("failing", 1)] == [("Pub", False)]


def test_without_being_told_to_nothing_is_traced(broker: Broker) -> None:
    with Producer(broker.registry) as producer, Admin(broker.registry) as admin:
        receipt = producer.send(Message("untraced", b"x", keys=("quiet",)))
        for key in ("quiet", receipt.msg_id, receipt.offset_msg_id):
            with pytest.raises(NotFound, match="no trace"):
                admin.traces(key)
    with Producer(broker.registry, kind="queue", trace=True) as producer:
        producer.send(Message("traced.queue", b"x"))  # has no id to be traced by


async def test_traces_that_cannot_be_sent_hold_nobody_up(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "WAITING_MAX", 50)
    monkeypatch.setattr(tracing, "TOPIC", "no good name")
    async with aio.Producer(broker.registry, trace=True) as producer:
        assert isinstance(producer._tracer, Tracer)
        for n in range(100):
            assert (await producer.send(Message("unheard", b"%d" % n))).queue_offset >= 0
        assert len(producer._tracer._waiting) <= 50
        await until(lambda: not producer._tracer._waiting)
    assert TOPIC == "RMQ_SYS_TRACE_TOPIC"
