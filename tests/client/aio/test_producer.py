"""`client.aio.producer` against a real broker: every way of sending, and what happens when it fails."""

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from client.steps import mute
from penstock.aio import Admin, PullConsumer
from penstock.client.aio.producer import Producer
from penstock.client.results import SendReceipt, SendStatus
from penstock.client.routes import MessageQueue
from penstock.errors import (
    BrokerRefused,
    ClientError,
    Closed,
    ConnectionLost,
    NoRoute,
    NotConnected,
    PenstockError,
    TimedOut,
)
from penstock.message import Message, ReceivedMessage

Fresh = Callable[[str], str]


async def eventually(attempt: Callable[[], Awaitable[object]]) -> None:
    """A new topic is registered just after its first message was answered."""
    until = time.monotonic() + 60
    while True:
        try:
            await attempt()
            return
        except NoRoute:
            if time.monotonic() > until:
                raise
            await asyncio.sleep(0.01)


async def read_all(registry: str, topic: str, count: int, timeout_s: float = 60.0) -> list[ReceivedMessage]:
    """`count` messages of a topic, from its start."""
    found: list[ReceivedMessage] = []
    async with PullConsumer(registry) as consumer:
        until = time.monotonic() + timeout_s
        await eventually(lambda: consumer.assign(topic, start="first"))
        while len(found) < count and time.monotonic() < until:
            for messages in (await consumer.getmany(timeout_s=0.5)).values():
                found += messages
    return found


async def test_send(registry: str, fresh: Fresh) -> None:
    topic = fresh("send")
    async with Producer(registry, group="P") as producer:
        receipt = await producer.send(
            Message(topic, b"hello", keys=("k1", "k2"), tags="TagA", properties={"colour": "röd"}, flag=7)
        )
    assert receipt.status is SendStatus.SEND_OK
    assert (receipt.queue.topic, receipt.queue_offset) == (topic, 0)
    [message] = await read_all(registry, topic, 1)
    assert (message.topic, message.body, message.keys, message.tags, message.flag) == (
        topic,
        b"hello",
        ("k1", "k2"),
        "TagA",
        7,
    )
    assert message.properties["colour"] == "röd"
    assert (message.msg_id, message.offset_msg_id) == (receipt.msg_id, receipt.offset_msg_id)
    assert (message.queue_id, message.queue_offset) == (receipt.queue.queue_id, 0)
    assert abs(message.born_ms - time.time() * 1000) < 60_000


async def test_round_robin(registry: str, fresh: Fresh) -> None:
    topic = fresh("turns")
    async with Producer(registry) as producer:
        receipts = [await producer.send(Message(topic, b"%d" % i)) for i in range(8)]
    ids = [receipt.queue.queue_id for receipt in receipts]
    assert sorted(ids) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert ids[:4] == ids[4:]


async def test_selector_sharding_key_and_queue(registry: str, fresh: Fresh) -> None:
    topic = fresh("select")

    def last(queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
        return queues[-1]

    async with Producer(registry) as producer:
        queues = await producer.queues(topic)
        assert [q.queue_id for q in queues] == [0, 1, 2, 3]
        assert (await producer.send(Message(topic, b""), selector=last)).queue.queue_id == 3
        assert (await producer.send(Message(topic, b""), queue=queues[2])).queue.queue_id == 2
        same = {(await producer.send(Message(topic, b"", sharding_key="order-7"))).queue for _ in range(5)}
        assert len(same) == 1
        with pytest.raises(ValueError):
            await producer.send(Message(topic, b""), queue=MessageQueue("other", "a", 0))


async def test_batch(registry: str, fresh: Fresh) -> None:
    topic = fresh("batch")
    async with Producer(registry) as producer:
        receipt = await producer.send_batch([Message(topic, b"%d" % i, tags=f"t{i}") for i in range(100)])
        with pytest.raises(ValueError, match="one sharding key"):
            await producer.send_batch([Message(topic, b"", sharding_key=key) for key in "ab"])
    assert (len(receipt.msg_ids), len(receipt.offset_msg_ids), receipt.queue_offset) == (100, 100, 0)
    messages = await read_all(registry, topic, 100)
    assert [m.body for m in messages] == [b"%d" % i for i in range(100)]
    assert [m.queue_offset for m in messages] == list(range(100))
    assert [m.msg_id for m in messages] == list(receipt.msg_ids)
    assert messages[5].tags == "t5"


async def test_oneway_and_nowait(registry: str, fresh: Fresh) -> None:
    topic = fresh("oneway")
    reported: list[SendReceipt | PenstockError] = []
    async with Producer(registry) as producer:
        ids = {await producer.send_oneway(Message(topic, b"o")) for _ in range(20)}
        sends = [producer.send_nowait(Message(topic, b"n"), reported.append) for _ in range(50)]
        ids |= {receipt.msg_id for receipt in await asyncio.gather(*sends)}
        assert {m.msg_id for m in await read_all(registry, topic, 70)} == ids
    assert len(ids) == 70
    assert len(reported) == 50
    assert all(isinstance(item, SendReceipt) for item in reported)


async def test_large_bodies_travel_compressed(registry: str, fresh: Fresh) -> None:
    topic = fresh("large")
    async with Producer(registry) as producer:
        await producer.send(Message(topic, b"x" * 1_000_000))
        await producer.send(Message(topic, bytes(4_194_304)))
        with pytest.raises(ValueError):
            await producer.send(Message(topic, bytes(4_194_305)))
    messages = await read_all(registry, topic, 2)
    assert sorted(len(m.body) for m in messages) == [1_000_000, 4_194_304]
    assert all(m.sys_flag & 1 and m.size < 50_000 for m in messages)


async def test_delays(registry: str, fresh: Fresh) -> None:
    topic = fresh("delay")
    async with Producer(registry) as producer:
        began = time.monotonic()
        await producer.send(Message(topic, b"level", delay_level=1))
        await producer.send(Message(topic, b"moment", deliver_at_ms=int(time.time() * 1000) + 1500))
        await producer.send(Message(topic, b"now"))
        messages = await read_all(registry, topic, 3)
    assert sorted(m.body for m in messages) == [b"level", b"moment", b"now"]
    assert time.monotonic() - began >= 1.4
    assert {m.topic for m in messages} == {topic}


async def test_refused(registry: str) -> None:
    async with Producer(registry, retries=1) as producer:
        with pytest.raises(BrokerRefused) as caught:
            await producer.send(Message("SCHEDULE_TOPIC_XXXX", b""))
        assert caught.value.code == 16
        with pytest.raises(BrokerRefused):
            await producer.send(Message("no/such", b""))


async def test_no_registry() -> None:
    with pytest.raises(ConnectionLost):
        await Producer("127.0.0.1:1").start()


async def test_second_registry_is_used(registry: str, fresh: Fresh) -> None:
    async with Producer(f"127.0.0.1:1;{registry}") as producer:
        assert (await producer.send(Message(fresh("second"), b""))).status is SendStatus.SEND_OK


async def test_a_restarted_broker_gets_the_message(own_cluster) -> None:  # type: ignore[no-untyped-def]
    async with Producer(own_cluster.registry, send_timeout_s=60.0, retries=6) as producer:
        await producer.send(Message("T", b"before"))
        own_cluster.stop(signal.SIGKILL)
        under_way = asyncio.create_task(producer.send(Message("T", b"during")))
        await asyncio.sleep(0)
        await asyncio.to_thread(own_cluster.start)
        assert (await under_way).status is SendStatus.SEND_OK
        await producer.send(Message("T", b"after"))
        bodies = {m.body for m in await read_all(own_cluster.registry, "T", 3)}
        assert bodies == {b"before", b"during", b"after"}


async def test_a_dead_broker_ends_in_an_error_within_the_timeout(own_cluster) -> None:  # type: ignore[no-untyped-def]
    async with Producer(own_cluster.registry, send_timeout_s=1.0) as producer:
        await producer.send(Message("T", b"before"), timeout_s=60.0)
        own_cluster.stop(signal.SIGKILL)
        with pytest.raises((ConnectionLost, NoRoute, TimedOut)):
            await asyncio.wait_for(
                producer.send(Message("T", b"lost")), 60
            )  # asyncio's own TimeoutError is none of them


async def test_a_stopped_process_times_out(own_cluster) -> None:  # type: ignore[no-untyped-def]
    async with Producer(own_cluster.registry, send_timeout_s=0.5) as producer:
        await producer.send(Message("T", b"before"), timeout_s=60.0)
        own_cluster.process.send_signal(signal.SIGSTOP)
        try:
            with pytest.raises(TimedOut) as caught:
                await producer.send(Message("T", b"late"))
            assert isinstance(caught.value, ClientError)
            assert caught.value.retryable
        finally:
            own_cluster.process.send_signal(signal.SIGCONT)


async def test_admin_sees_the_producer_topic(registry: str, fresh: Fresh) -> None:
    topic = fresh("seen")
    async with Producer(registry) as producer, Admin(registry) as admin:
        await producer.send(Message(topic, b""))
        await eventually(lambda: admin.route(topic))
        assert topic in await admin.topics()


async def test_another_broker_takes_over(own_cluster, second_broker) -> None:  # type: ignore[no-untyped-def]
    async with Admin(own_cluster.registry) as admin, Producer(own_cluster.registry) as producer:
        for _ in range(500):
            if len((await admin.cluster_info()).brokers) == 2:
                break
            await asyncio.sleep(0.01)
        await admin.create_topic("T", 2)
        for _ in range(500):
            if len(await producer.queues("T")) == 4:
                break
            await producer._cluster.refresh("T")
            await asyncio.sleep(0.01)
        brokers = [(await producer.send(Message("T", b"x"))).queue.broker for _ in range(8)]
        assert sorted(brokers) == ["broker-a"] * 4 + ["broker-b"] * 4
        second_broker.stop(signal.SIGKILL)
        for _ in range(8):
            receipt = await producer.send(Message("T", b"y"))
            assert (receipt.status, receipt.queue.broker) == (SendStatus.SEND_OK, "broker-a")
        second_broker.start()
        for _ in range(500):
            await producer._cluster.refresh("T")
            if len(await producer.queues("T")) == 4:
                break
            await asyncio.sleep(0.01)
        assert {(await producer.send(Message("T", b"z"))).queue.broker for _ in range(4)} == {"broker-a", "broker-b"}


@pytest.mark.parametrize(
    "wrong", [{"group": "a b"}, {"kind": "x"}, {"send_timeout_s": 0}, {"retries": -1}, {"linger_ms": -1}]
)
def test_settings_that_cannot_be(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        Producer("127.0.0.1:1", **wrong)


async def test_a_reply_may_take_any_time(registry: str, fresh: Fresh) -> None:
    topic = fresh("any-time")
    async with Producer(registry) as producer:
        receipt = await producer.send(Message(topic, b"first"))
        asked = asyncio.create_task(producer.request(Message(topic, b"x"), float("inf"), queue=receipt.queue))
        while (await producer.send(Message(topic, b"y"), queue=receipt.queue)).queue_offset < 3 and not asked.done():
            await asyncio.sleep(0)
        assert not asked.done()
        asked.cancel()


async def test_a_producer_that_was_not_started_says_so() -> None:
    with pytest.raises(Closed, match="never started"):
        await Producer("127.0.0.1:1").send(Message("t", b"x"))


async def test_one_that_is_closed_is_not_started_again(registry: str, fresh: Fresh) -> None:
    producer = await Producer(registry).start()
    async with producer:  # started twice is started once
        await producer.send(Message(fresh("once"), b"x"))
    with pytest.raises(Closed, match="make a new one"):
        await producer.start()


async def test_a_oneway_send_goes_round_a_broker_that_is_dead(own_cluster, second_broker) -> None:  # type: ignore[no-untyped-def]
    """Every other one was raised as NotConnected, while another broker had the topic."""
    async with Admin(own_cluster.registry) as admin, Producer(own_cluster.registry) as producer:
        deadline = time.monotonic() + 60
        while len((await admin.cluster_info()).brokers) < 2:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)
        await admin.create_topic("T", 4)
        while len({queue.broker for queue in await producer.queues("T")}) < 2:
            assert time.monotonic() < deadline
            await producer._cluster.refresh("T")
        dead = [queue for queue in await producer.queues("T") if queue.broker == "broker-b"]
        second_broker.stop(signal.SIGKILL)
        for _ in range(8):
            assert await producer.send_oneway(Message("T", b""))
        with pytest.raises((NotConnected, NoRoute)):  # who names its queue means that one
            await producer.send_oneway(Message("T", b""), queue=dead[0])


async def test_a_oneway_send_has_the_time_of_a_send() -> None:
    """It waited for each silent name server in turn."""
    async with mute("a", "b", "c") as (registry, asked), Producer(registry, send_timeout_s=0.6) as producer:
        with pytest.raises(TimedOut, match="no name server says where it is"):
            await producer.send_oneway(Message("T", b""))
        assert set(asked) == {"a", "b", "c"}


@pytest.mark.parametrize("kind", ["log", "queue"])
async def test_a_oneway_send_waits_for_a_broker_that_takes_nothing_and_no_longer(own_cluster, kind: str) -> None:  # type: ignore[no-untyped-def]
    """It waited for ever; to a queue topic not at all, and all that was sent stayed in memory."""
    async with Producer(own_cluster.registry, kind=kind, send_timeout_s=0.5) as producer:  # type: ignore[arg-type]
        await producer.send(Message("T", b"x"), timeout_s=60.0)
        own_cluster.process.send_signal(signal.SIGSTOP)
        try:
            with pytest.raises(TimedOut, match="broker broker-a takes nothing"):
                for _ in range(50):
                    await producer.send_oneway(Message("T", os.urandom(1 << 20)))
        finally:
            own_cluster.process.send_signal(signal.SIGCONT)
        receipt = await producer.send(Message("T", b"x"), timeout_s=60.0)
        assert receipt.status is SendStatus.SEND_OK


async def test_whoever_does_not_wait_for_the_end_leaves_nothing_running(
    registry: str, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = asyncio.all_tasks()
    producer = await Producer(registry).start()
    monkeypatch.setattr(producer.attempts, "send", lambda *sent: asyncio.Event().wait())
    sending = producer.send_nowait(Message(fresh("impatient"), b"without an answer"))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(producer.close(), 0.02)
    with pytest.raises(Closed):
        await sending
    with pytest.raises(Closed):
        await producer.send(Message(fresh("impatient"), b"too late"))
    assert asyncio.all_tasks() == before
    await producer.close()
