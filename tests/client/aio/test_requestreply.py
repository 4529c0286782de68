"""Request-reply of our own client, against a real broker: who asks, who answers, and what may go wrong between."""

from __future__ import annotations

import asyncio
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock import Admin, Message, Producer, PushConsumer, ReceivedMessage, aio
from penstock.client.aio.requestreply import REPLY_TIMEOUT_S
from penstock.errors import Closed, TimedOut
from penstock.testing import Broker
from penstock.wire import names
from polling import eventually, until

LONG_S = 20 * REPLY_TIMEOUT_S


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> object:
    with Broker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker.registry


def echo(message: ReceivedMessage) -> bytes | None:
    return None if message.body.startswith(b"-") else b"re: " + message.body


def test_threads_ask_and_a_listener_answers(registry: str) -> None:
    with Producer(registry) as producer, PushConsumer("g1", registry, listener=echo, start="first") as consumer:
        consumer.subscribe("Asked")
        replies: dict[int, ReceivedMessage] = {}

        def ask(n: int) -> None:
            replies[n] = producer.request(Message("Asked", b"%d" % n), LONG_S)

        threads = [threading.Thread(target=ask, args=(n,)) for n in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert {n: reply.body for n, reply in replies.items()} == {n: b"re: %d" % n for n in range(12)}
    assert replies[3].properties[names.MSG_TYPE] == "reply"
    assert replies[3].topic == "DefaultCluster_REPLY_TOPIC"
    assert replies[3].born_ms > 0


async def test_tasks_ask_and_a_coroutine_answers(registry: str) -> None:
    async def answer(message: ReceivedMessage) -> bytes:
        return message.body[::-1]

    async with (
        aio.Producer(registry, group="askers") as producer,
        aio.PushConsumer("g2", registry, listener=answer, start="first") as consumer,
    ):
        await consumer.subscribe("AskedToo")
        found = await asyncio.gather(
            *(producer.request(Message("AskedToo", b"a%d" % n, properties={"x": "y"}), LONG_S) for n in range(20))
        )
    assert [reply.body for reply in found] == [(b"a%d" % n)[::-1] for n in range(20)]


def test_nobody_answers(registry: str) -> None:
    with Producer(registry) as producer:
        with pytest.raises(TimedOut, match="no reply"):
            producer.request(Message("Nobody", b"x"), 0.3)
        with pytest.raises(ValueError, match="queue topic"), Producer(registry, kind="queue") as other:
            other.request(Message("nobody.queue", b"x"), 0.3)
        assert producer.send(Message("Nobody", b"after")).queue_offset >= 0


def test_a_reply_that_comes_too_late_or_to_nobody_ends_nothing(registry: str) -> None:
    late, go_on = [], threading.Event()

    def slow(message: ReceivedMessage) -> bytes:
        late.append(message.body)
        if message.body == b"slow":
            go_on.wait(LONG_S)
        return b"re: " + message.body

    with PushConsumer("g3", registry, listener=slow, start="first", concurrency=1) as consumer:
        consumer.subscribe("Late")
        with Producer(registry, group="one") as producer:
            producer.send(Message("Late", b"no request"))
            with pytest.raises(TimedOut):
                producer.request(Message("Late", b"slow"), 1.0)
            go_on.set()  # its reply comes while nobody waits for it
            assert producer.request(Message("Late", b"next"), LONG_S).body == b"re: next"
        gone = Message("Late", b"gone", properties={names.REPLY_TO: "nobody@here", names.CORRELATION_ID: "1"})
        with Producer(registry, group="two") as producer:
            producer.send(gone)  # the replier is told that the requester is away
            assert producer.request(Message("Late", b"last"), LONG_S).body == b"re: last"
    assert sorted(late) == [b"gone", b"last", b"next", b"no request", b"slow"]


async def test_who_waits_is_told_that_the_client_was_closed(registry: str) -> None:
    producer = await aio.Producer(registry).start()
    waiting = asyncio.create_task(producer.request(Message("Nobody", b"x"), LONG_S))
    await until(lambda: producer._requester._waiting)
    await asyncio.sleep(0)
    await producer.close()
    with pytest.raises(Closed):
        await waiting
    assert not producer._requester._waiting


async def test_a_request_that_is_given_up_leaves_nothing(registry: str) -> None:
    async with aio.Producer(registry) as producer:
        waiting = asyncio.create_task(producer.request(Message("Nobody", b"x"), LONG_S))
        await until(lambda: producer._requester._waiting)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await asyncio.sleep(0)
        assert not producer._requester._waiting


def create_at_both(registry: str, queues: int) -> None:
    """The topic, when both brokers have registered."""
    with Admin(registry) as admin:

        def at_both() -> bool:
            admin.create_topic("Both", queues)
            return len({queue.broker for queue in admin.route("Both").subscribe_queues()}) == 2

        eventually(at_both)


def test_a_reply_goes_over_either_of_two_brokers(tmp_path: Path) -> None:
    with (
        Broker(tmp_path / "a", broker_name="broker-a") as first,
        Broker(tmp_path / "b", broker_name="broker-b", registry=first.registry, registry_port=-1),
        Producer(first.registry) as producer,
        PushConsumer("g", first.registry, listener=echo, start="first") as consumer,
    ):
        create_at_both(first.registry, 2)
        consumer.subscribe("Both")
        for queue in producer.queues("Both"):
            reply = producer.request(Message("Both", queue.broker.encode()), LONG_S, queue=queue)
            assert reply.body == b"re: " + queue.broker.encode()
        assert {queue.broker for queue in producer.queues("Both")} == {"broker-a", "broker-b"}


def test_a_requester_that_went_away_while_one_of_two_brokers_has_its_question(tmp_path: Path) -> None:
    """The replier is told, by whichever broker, and goes on; the same producer's next questions are answered by both."""
    asked, go_on = threading.Event(), threading.Event()
    told: list[str] = []

    def slow(message: ReceivedMessage) -> bytes:
        if message.body == b"slow":
            asked.set()
            go_on.wait(LONG_S)
        return b"re: " + message.body

    class Told(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            told.append(record.getMessage())

    handler = Told(logging.WARNING)
    logging.getLogger("penstock.client").addHandler(handler)
    with (
        Broker(tmp_path / "a", broker_name="broker-a") as first,
        Broker(tmp_path / "b", broker_name="broker-b", registry=first.registry, registry_port=-1),
        PushConsumer("g", first.registry, listener=slow, start="first") as consumer,
    ):
        create_at_both(first.registry, 1)
        consumer.subscribe("Both")
        with Producer(first.registry, group="here") as producer:
            queues = producer.queues("Both")
            assert {queue.broker for queue in queues} == {"broker-a", "broker-b"}
            for queue in queues:
                gone = Producer(first.registry, group="gone").start()
                with ThreadPoolExecutor(1) as other:
                    waiting = other.submit(gone.request, Message("Both", b"slow"), LONG_S, queue=queue)
                    assert asked.wait(LONG_S)
                    gone.close()
                    with pytest.raises(Closed):
                        waiting.result(LONG_S)
                go_on.set()
                reply = producer.request(Message("Both", queue.broker.encode()), LONG_S, queue=queue)
                assert reply.body == b"re: " + queue.broker.encode()
                asked.clear()
                go_on.clear()
        eventually(lambda: sum("not found" in line for line in told) == 2)  # once by each broker
    logging.getLogger("penstock.client").removeHandler(handler)
