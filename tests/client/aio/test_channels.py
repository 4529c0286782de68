"""Queue topics through the same producer and consumer: every level, the four verbs, dead letters, lost connections."""

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import penstock
from client.steps import numbered
from penstock.aio import Admin, Producer, PullConsumer, PushConsumer
from penstock.client.aio import channels
from penstock.client.results import Reject, Retry, SendStatus
from penstock.errors import BrokerRefused, ClientError, NoRoute
from penstock.message import Message, ReceivedMessage
from penstock.testing import Broker, FakeClock
from polling import until
from ports import free_port

Fresh = Callable[[str], str]
RULES = (
    {"name": "q-os*", "kind": "queue", "level": "os"},
    {"name": "q-disk*", "kind": "queue", "level": "disk"},
    {"name": "q-memory*", "kind": "queue", "level": "memory"},
    {"name": "q-twice*", "kind": "queue", "max_attempts": 2},
)
LEVELS = ["q-os", "q-disk", "q-memory", "q-short"]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(topic=RULES, msg_timeout_ms=5_000) as broker:  # longer than a busy machine stands still
        yield broker


def made(fresh: Fresh, prefix: str) -> str:
    """A topic's name; `q-short` is an ephemeral one."""
    return fresh(prefix) + ("#ephemeral" if prefix == "q-short" else "")


def joined(consumer: PushConsumer, topic: str, *brokers: str) -> bool:
    """Whether its channel is subscribed to at these brokers."""
    reader = consumer._channels.readers.get(topic)
    return reader is not None and reader.connected == list(brokers or ("broker-a",))


def channel(broker: Broker, topic: str, name: str) -> Any:
    def find(server: Any) -> Any:
        return server.broker.queueing.find(topic.encode()).channels[name.encode()]

    return broker.call(find)


def times_out_ms(broker: Broker, topic: str, name: str, message_id: str) -> int:
    """When the broker will take a message back from its consumer."""

    def due_ms(server: Any) -> int:
        slots = server.broker.queueing.find(topic.encode()).channels[name.encode()].slots
        return int(slots.due[slots.find(int(message_id, 16))])

    return broker.call(due_ms)


@pytest.mark.parametrize("prefix", LEVELS)
async def test_what_is_sent_comes_once(broker: Broker, fresh: Fresh, prefix: str) -> None:
    topic = made(fresh, prefix)
    got: list[ReceivedMessage] = []
    async with (
        PushConsumer("billing", broker.registry, listener=got.append, kind="queue") as consumer,
        Producer(broker.registry, kind="queue") as producer,
    ):
        await consumer.subscribe(topic)
        await until(lambda: joined(consumer, topic))
        receipt = await producer.send(Message(topic, b"0"))
        assert (receipt.status, receipt.queue_offset, receipt.msg_id) == (SendStatus.SEND_OK, -1, "")
        assert receipt.queue == (topic, "broker-a", 0)
        await producer.send_batch([Message(topic, body) for body in numbered(5, 1)])
        await producer.send_oneway(Message(topic, b"6"))
        await until(lambda: len(got) >= 7)
    assert sorted(int(m.body) for m in got) == list(range(7))
    first = next(m for m in got if m.body == b"0")
    assert (first.topic, first.attempts, first.queue_offset, first.broker) == (topic, 1, -1, "broker-a")
    assert len(first.msg_id) == 16
    assert abs(first.store_ms - time.time() * 1000) < 60_000


async def test_a_rule_of_the_broker_makes_the_kind(broker: Broker, fresh: Fresh) -> None:
    """Neither side says what kind of topic it is."""
    topic = fresh("q-os-rule")
    async with Producer(broker.registry) as producer, PushConsumer("g", broker.registry) as consumer:
        await producer.send(Message(topic, b"x"))
        await consumer.subscribe(topic)
        delivery = await anext(aiter(consumer))
        assert delivery.message.nsq_id
        assert delivery.attempts == 1
        await delivery.ack()


async def test_groups_are_channels(broker: Broker, fresh: Fresh) -> None:
    topic = fresh("q-os")
    got: dict[str, list[bytes]] = {"a": [], "b": []}

    def listener(group: str) -> Callable[[ReceivedMessage], None]:
        return lambda message: got[group].append(message.body)

    async with Producer(broker.registry, kind="queue") as producer:
        consumers = [
            await PushConsumer(group, broker.registry, listener=listener(group), kind="queue").start()
            for group in ("a", "a", "b")
        ]
        for consumer in consumers:
            await consumer.subscribe(topic)
            await until(lambda: joined(consumer, topic))  # noqa: B023
        for body in numbered(20):
            await producer.send(Message(topic, body))
        await until(lambda: len(got["a"]) >= 20 and len(got["b"]) >= 20)
        for consumer in consumers:
            await consumer.close()
    assert sorted(map(int, got["a"])) == sorted(map(int, got["b"])) == list(range(20))


@pytest.mark.parametrize("prefix", LEVELS)
async def test_the_four_verbs(broker: Broker, fresh: Fresh, prefix: str) -> None:
    topic = made(fresh, prefix)
    group = "verbs"
    dead = topic.partition("#")[0] + ".verbs.dead"
    began = time.monotonic()
    seen: list[tuple[bytes, int, float]] = []
    async with (
        Producer(broker.registry, kind="queue") as producer,
        PushConsumer(group, broker.registry, kind="queue") as consumer,
    ):
        await consumer.subscribe(topic)
        await until(lambda: joined(consumer, topic))
        for body in (b"ack", b"nack", b"extend", b"reject"):
            await producer.send(Message(topic, body))
        async for delivery in consumer:
            seen.append((delivery.body, delivery.attempts, time.monotonic() - began))
            if delivery.body == b"nack" and delivery.attempts == 1:
                nacked = time.monotonic()
                await delivery.nack(0.3)
                await delivery.ack()  # not heard: it is settled
            elif delivery.body == b"extend":
                for _ in range(2):
                    before_ms = times_out_ms(broker, topic, group, delivery.message.nsq_id)
                    await asyncio.sleep(0.02)
                    await delivery.extend()
                    await until(lambda: times_out_ms(broker, topic, group, delivery.message.nsq_id) > before_ms)  # noqa: B023
                await delivery.ack()
            elif delivery.body == b"reject":
                await delivery.reject("not for us")
            else:
                await delivery.ack()
                if delivery.attempts == 2:
                    again = time.monotonic()
                    break
        await until(lambda: channel(broker, topic, group).in_flight_count == 0)
        ended = channel(broker, topic, group)
        assert (ended.finish_count, ended.requeue_count, ended.timeout_count, ended.buried_count) == (3, 1, 0, 1)
        await consumer.subscribe(dead)
        buried = await anext(aiter(consumer))
        assert (buried.body, buried.attempts) == (b"reject", 1)
    assert again - nacked >= 0.3
    assert [(body, attempts) for body, attempts, _ in seen if body != b"nack"] == [
        (b"ack", 1), (b"extend", 1), (b"reject", 1),
    ]  # fmt: skip


async def test_a_listener_says_retry_reject_or_fails(broker: Broker, fresh: Fresh) -> None:
    topic = fresh("q-os")
    tries: list[tuple[bytes, int]] = []

    def listener(message: ReceivedMessage) -> None:
        tries.append((message.body, message.attempts))
        if message.body == b"again" and message.attempts < 3:
            raise Retry(0.05)
        if message.body == b"bad":
            raise Reject("bad")
        if message.body == b"spent":
            raise Retry(0)

    async with (
        Producer(broker.registry, kind="queue") as producer,
        PushConsumer("g", broker.registry, listener=listener, kind="queue", attempts_max=4) as consumer,
    ):
        await consumer.subscribe(topic)
        for body in (b"again", b"bad", b"spent"):
            await producer.send(Message(topic, body))
        await until(lambda: (b"again", 3) in tries and (b"spent", 4) in tries)
        await until(lambda: channel(broker, topic, "g").buried_count == 2)
    assert [attempts for body, attempts in tries if body == b"spent"] == [1, 2, 3, 4]


async def test_slow_listeners_are_waited_for(broker: Broker, fresh: Fresh) -> None:
    """A listener takes longer than the message's timeout, and others wait for it: none of them comes twice."""
    topic = fresh("q-os")
    got: list[bytes] = []

    async def listener(message: ReceivedMessage) -> None:
        await asyncio.sleep(1.5)
        got.append(message.body)

    async with (
        Producer(broker.registry, kind="queue") as producer,
        PushConsumer("g", broker.registry, listener=listener, kind="queue", concurrency=1, in_flight_max=4) as consumer,
    ):
        await consumer.subscribe(topic)
        await producer.send_batch([Message(topic, body) for body in numbered(4)])
        await until(lambda: len(got) >= 4)
        await until(lambda: channel(broker, topic, "g").in_flight_count == 0)
        assert channel(broker, topic, "g").timeout_count == 0
    assert got == numbered(4)


async def test_the_broker_limits_attempts(broker: Broker, fresh: Fresh) -> None:
    topic = fresh("q-twice")
    async with Producer(broker.registry) as producer, PushConsumer("g", broker.registry) as consumer:
        await producer.send(Message(topic, b"x"))
        await consumer.subscribe(topic)
        deliveries = aiter(consumer)
        for attempt in (1, 2):
            delivery = await anext(deliveries)
            assert delivery.attempts == attempt
            await delivery.nack(0)
        await consumer.subscribe(topic + ".g.dead")
        delivery = await anext(deliveries)
        assert (delivery.body, delivery.topic) == (b"x", topic + ".g.dead")


async def test_due_times(tmp_path: Any) -> None:
    """By the broker's clock, which stands: a machine that is busy makes none of them early or late."""
    got: list[bytes] = []
    clock = FakeClock(now_ms=time.time_ns() // 1_000_000)
    with Broker(tmp_path, clock=clock) as broker:

        async def goes_on(ms: int) -> None:
            # What the listener has had may not be finished at the broker yet, and would time out, and come again.
            await until(lambda: channel(broker, "q", "g").in_flight_count == 0)
            broker.call(lambda server: clock.advance(ms))

        async with (
            Producer(broker.registry, kind="queue") as producer,
            PushConsumer("g", broker.registry, kind="queue", listener=lambda m: got.append(m.body)) as consumer,
        ):
            await consumer.subscribe("q")
            await until(lambda: joined(consumer, "q"))
            await producer.send(Message("q", b"level", delay_level=1))
            await producer.send(Message("q", b"due", deliver_at_ms=time.time_ns() // 1_000_000 + 600_000))
            await producer.send(Message("q", b"past", deliver_at_ms=1))
            await until(lambda: got == [b"past"])
            await goes_on(999)
            await producer.send(Message("q", b"now"))
            await until(lambda: got == [b"past", b"now"])
            await goes_on(1)
            await until(lambda: got == [b"past", b"now", b"level"])
            await goes_on(500_000)  # the producer counts from when it sends
            await producer.send(Message("q", b"then"))
            await until(lambda: got == [b"past", b"now", b"level", b"then"])
            await goes_on(99_000)
            await until(lambda: got[4:] == [b"due"])


async def test_closing_gives_back_what_is_in_hand(broker: Broker, fresh: Fresh) -> None:
    topic = fresh("q-os")
    async with Producer(broker.registry, kind="queue") as producer:
        await producer.send_batch([Message(topic, body) for body in numbered(8)])
        async with PushConsumer("g", broker.registry, kind="queue") as consumer:
            await consumer.subscribe(topic)
            held = await anext(aiter(consumer))
            await until(lambda: channel(broker, topic, "g").in_flight_count == 8)
        await until(lambda: channel(broker, topic, "g").in_flight_count == 0)
        assert channel(broker, topic, "g").depth() == 8
        assert held.gone
    again: list[int] = []
    async with PushConsumer("g", broker.registry, listener=lambda m: again.append(m.attempts)) as consumer:
        await consumer.subscribe(topic)
        await until(lambda: len(again) == 8)
    assert set(again) == {2}


async def test_without_a_registry(broker: Broker, fresh: Fresh) -> None:
    topic = fresh("direct")
    got: list[bytes] = []
    async with (
        Producer(nsqd=broker.nsq) as producer,
        PushConsumer("g", nsqd=broker.nsq, listener=lambda m: got.append(m.body)) as consumer,
    ):
        await consumer.subscribe(topic)
        receipt = await producer.send(Message(topic, b"x"))
        assert receipt.queue.broker == broker.nsq
        await until(lambda: got)


async def test_a_log_topic_is_reached_over_nsq_too(broker: Broker, fresh: Fresh) -> None:
    topic = fresh("log")
    async with (
        Producer(broker.registry) as producer,
        PushConsumer("g", nsqd=broker.nsq) as consumer,
    ):
        await producer.send(Message(topic, b"x", tags="t"))
        await consumer.subscribe(topic)
        delivery = await anext(aiter(consumer))
        assert delivery.body == b"x"
        await delivery.ack()


@pytest.mark.parametrize(
    "more",
    [{"keys": ("k",)}, {"tags": "t"}, {"properties": {"a": "b"}}, {"flag": 1}, {"sharding_key": "s"}, {"body": b""}],
)
async def test_what_a_queue_topic_cannot_take(broker: Broker, fresh: Fresh, more: dict[str, Any]) -> None:
    async with Producer(broker.registry, kind="queue") as producer:
        with pytest.raises(ValueError, match="queue topic"):
            await producer.send(Message(**{"topic": fresh("q-os"), "body": b"x", **more}))


async def test_what_cannot_be_read(broker: Broker, fresh: Fresh) -> None:
    topic = fresh("q-os")
    async with Producer(broker.registry, kind="queue") as producer:
        await producer.send(Message(topic, b"x"))
        with pytest.raises(BrokerRefused, match="E_BAD_MESSAGE") as refused:
            await producer.send(Message(topic, bytes(2 << 20)))
        assert not refused.value.retryable
        with pytest.raises(ValueError, match="cannot be an NSQ topic"):
            await producer.send(Message(f"{topic}\nFIN", b"x"))
    async with PullConsumer(broker.registry) as pull:
        with pytest.raises(ClientError, match="queue topic"):
            await pull.assign(topic)
    for settings, expression in (({"orderly": True}, "*"), ({"model": "broadcast"}, "*"), ({}, "tag")):
        async with PushConsumer("g", broker.registry, **settings) as consumer:
            with pytest.raises(ValueError, match="queue topic"):
                await consumer.subscribe(topic, expression)
    async with PushConsumer("a group", broker.registry) as consumer:
        with pytest.raises(ValueError, match="channel"):
            await consumer.subscribe(topic)
    async with Admin(broker.registry) as admin:
        with pytest.raises(ClientError, match="queue topic"):
            await admin.topic_stats(topic)
        assert (await admin.route(topic)).nsq == {"broker-a": broker.nsq}
        with pytest.raises(NoRoute):
            await admin.route(fresh("never"))
    async with Producer(broker.registry, kind="queue", idempotent=True) as producer:
        with pytest.raises(ValueError, match="numbers"):
            await producer.send(Message(topic, b"x"))


async def test_unchanged_clients_see_no_queue_topics(broker: Broker, fresh: Fresh) -> None:
    from penstock.client import requests
    from penstock.client.aio.cluster import Cluster

    topic = fresh("q-os")
    async with Producer(broker.registry, kind="queue") as producer:
        await producer.send(Message(topic, b"x"))
    cluster = Cluster(broker.registry)
    await cluster.start()
    answer = await cluster.call(broker.registry, requests.route(topic))
    assert (answer.code, answer.body) == (17, b"")
    await cluster.close()


async def test_a_broker_that_comes_back(fresh: Fresh, tmp_path: Any) -> None:
    topic = "work"
    got: list[bytes] = []
    ports = {f"{name}_port": free_port() for name in ("registry", "remoting", "nsq")}
    with Broker(tmp_path, **ports) as first:
        producer = await Producer(first.registry, kind="queue", retries=30).start()
        consumer = PushConsumer("g", first.registry, listener=lambda m: got.append(m.body), kind="queue")
        await consumer.start()
        await consumer.subscribe(topic)
        await producer.send(Message(topic, b"before"))
        await until(lambda: got == [b"before"])
        await until(lambda: channel(first, topic, "g").finish_count == 1)
    await until(lambda: not consumer._channels.readers[topic].connected)
    sending = producer.send_nowait(Message(topic, b"meanwhile"))
    with Broker(tmp_path, **ports):
        await sending
        await until(lambda: b"meanwhile" in got)
        await consumer.close()
        await producer.close()
    assert got == [b"before", b"meanwhile"]


async def test_a_killed_broker_comes_back_with_everything(own_cluster: Any) -> None:
    """What was acknowledged comes, what was finished does not come again after its flush, deferred ones are kept."""
    got: list[bytes] = []
    async with Producer(own_cluster.registry, kind="queue", retries=30, send_timeout_s=30) as producer:
        consumer = await PushConsumer("g", own_cluster.registry, kind="queue").start()
        await consumer.subscribe("work")
        await until(lambda: joined(consumer, "work"))
        for body in numbered(50):
            await producer.send(Message("work", body))
        await producer.send(Message("work", b"50", deliver_at_ms=int(time.time() * 1000) + 2_500))
        deliveries = aiter(consumer)
        held = await anext(deliveries)  # and 15 more are in flight
        own_cluster.stop(signal.SIGKILL)
        await until(lambda: held.gone)
        sending = producer.send_nowait(Message("work", b"51"))
        own_cluster.start()
        await sending
        async for delivery in consumer:
            got.append(delivery.body)
            if len(set(got)) == 52:
                break
        await consumer.close()
    assert sorted(map(int, set(got))) == list(range(52))


async def test_two_brokers_share_what_may_be_in_flight(tmp_path: Any) -> None:
    with (
        Broker(tmp_path / "a") as first,
        Broker(tmp_path / "b", broker_name="broker-b", registry=first.registry) as second,
        penstock.Producer(first.registry, kind="queue") as producer,
    ):
        await until(lambda: first.call(known_brokers) == 2)
        got: list[str] = []
        async with PushConsumer("g", first.registry, kind="queue", in_flight_max=5) as consumer:
            await consumer.subscribe("work")
            await until(lambda: joined(consumer, "work", "broker-a", "broker-b"))
            await until(lambda: sorted(ready_count(server) for server in (first, second)) == [2, 3])
            for body in numbered(10):
                producer.send(Message("work", body))
            async for delivery in consumer:
                got.append(delivery.message.broker)
                if len(got) == 10:
                    break
        assert set(got) == {"broker-a", "broker-b"}


async def test_fewer_messages_than_brokers(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One message at a time: the brokers take turns, and none is left out."""
    monkeypatch.setattr(channels, "TURN_S", 0.1)
    with (
        Broker(tmp_path / "a") as first,
        Broker(tmp_path / "b", broker_name="broker-b", registry=first.registry),
        penstock.Producer(first.registry, kind="queue") as producer,
    ):
        await until(lambda: first.call(known_brokers) == 2)
        for body in numbered(6):
            producer.send(Message("work", body))
        async with PushConsumer("g", first.registry, in_flight_max=1) as consumer:
            await consumer.subscribe("work")
            got: list[tuple[str, bytes]] = []
            async for delivery in consumer:
                got.append((delivery.message.broker, delivery.body))
                await delivery.ack()
                if len(got) == 6:
                    break
    assert {broker for broker, _ in got} == {"broker-a", "broker-b"}
    assert sorted(body for _, body in got) == numbered(6)


def known_brokers(server: Any) -> int:
    return len(server._process.name_server.routes.nsq)


def ready_count(broker: Broker) -> int:
    return int(channel(broker, "work", "g").consumers[0].ready_count)


def test_the_blocking_face(broker: Broker, fresh: Fresh) -> None:
    topic = fresh("q-os")
    done = threading.Event()
    with penstock.Producer(broker.registry, kind="queue") as producer:
        producer.send(Message(topic, b"1"))
        with penstock.PushConsumer("g", broker.registry) as consumer:
            consumer.subscribe(topic)
            for delivery in consumer:
                if delivery.attempts == 1:
                    delivery.extend()
                    delivery.nack(0)
                    continue
                delivery.reject("enough")
                assert not delivery.gone or delivery.attempts == 2
                break
        with penstock.PushConsumer("g", broker.registry, listener=lambda m: done.set()) as consumer:
            consumer.subscribe(f"{topic}.g.dead")
            assert done.wait(10)
