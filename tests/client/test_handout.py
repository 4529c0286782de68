"""`client.handout`: messages of a group from the loop to the threads that iterate, and their acknowledgements back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress

import pytest

from client.scripted import message
from penstock import Message, Producer, PullConsumer, PushConsumer
from penstock.client.aio import delivery as aio_delivery
from penstock.client.aio.logconsumer import Pulled
from penstock.client.handout import Delivery, Handout
from penstock.client.portal import portal
from penstock.message import ReceivedMessage
from penstock.testing import Broker

Fresh = Callable[[str], str]


def fill(registry: str, topic: str, count: int, kind: str = "log") -> None:
    with Producer(registry, kind=kind) as producer:  # type: ignore[arg-type]
        for number in range(count):
            producer.send_nowait(Message(topic, b"%d" % number))


def committed(registry: str, topic: str, group: str) -> int:
    with PullConsumer(registry, group=group) as consumer:
        return sum(consumer.committed(queue) or 0 for queue in consumer.queues(topic))


def test_every_acknowledgement_is_committed_before_the_consumer_is_closed(registry: str, fresh: Fresh) -> None:
    topic, group = fresh("acked"), fresh("G")
    fill(registry, topic, 700)
    with PushConsumer(group, registry, start="first") as consumer:
        assert isinstance(consumer._handout, Handout)
        consumer.subscribe(topic)
        for number, delivery in enumerate(consumer, 1):
            delivery.ack()
            if number == 700:
                break
    assert committed(registry, topic, group) == 700


def test_what_was_not_handed_out_is_not_acknowledged(registry: str, fresh: Fresh) -> None:
    """The consumer has hundreds of messages in hand, of which its program has seen ten; the tenth is not acknowledged."""
    topic, group = fresh("left"), fresh("G")
    fill(registry, topic, 300)
    with PushConsumer(group, registry, start="first") as consumer:
        consumer.subscribe(topic)
        for number, _ in enumerate(consumer, 1):
            if number == 10:
                break
    assert committed(registry, topic, group) <= 9
    with PushConsumer(group, registry, start="first") as consumer:
        consumer.subscribe(topic)
        seen = set()
        for delivery in consumer:
            seen.add(delivery.body)
            if len(seen) >= 291:
                break
    assert len(seen) >= 291


def test_another_loop_goes_on_where_one_ended(registry: str, fresh: Fresh) -> None:
    topic, seen = fresh("again"), []
    fill(registry, topic, 50)
    with PushConsumer(fresh("G"), registry, start="first") as consumer:
        consumer.subscribe(topic)
        while len(seen) < 50:
            for delivery in consumer:
                delivery.ack()
                seen.append(delivery.body)
                if len(seen) % 7 == 0 or len(seen) == 50:
                    break
    assert sorted(seen) == sorted(b"%d" % number for number in range(50))


def test_threads_share_what_is_there(registry: str, fresh: Fresh) -> None:
    """One thread that works for long keeps no message from the others."""
    topic, seen = fresh("threads"), set()
    release, over = threading.Event(), threading.Event()
    fill(registry, topic, 100)
    with PushConsumer(fresh("G"), registry, start="first") as consumer:
        consumer.subscribe(topic)

        def work(slow: bool) -> None:
            for delivery in consumer:
                if slow:
                    release.wait(60)
                seen.add(delivery.body)
                if len(seen) == 99:
                    over.set()

        threads = [threading.Thread(target=work, args=(slow,)) for slow in (True, False)]
        for thread in threads:
            thread.start()
        assert over.wait(60)  # all but the one that the slow thread has
        release.set()
        consumer.close()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()


@pytest.mark.parametrize("kind", ["log", "queue"])
def test_the_first_word_counts(registry: str, fresh: Fresh, kind: str) -> None:
    topic, group, seen = fresh("first"), fresh("G"), []
    with PushConsumer(group, registry, kind=kind, start="first") as consumer:  # type: ignore[arg-type]
        consumer.subscribe(topic)
        if kind == "queue":
            with Producer(registry, kind="queue") as producer:
                producer.send(Message(topic, b"made"))
            assert next(iter(consumer)).body == b"made"
        fill(registry, topic, 1, kind)
        for delivery in consumer:
            seen.append((delivery.body, delivery.attempts))
            if delivery.body == b"made":
                continue
            if delivery.attempts == 1:
                with pytest.raises(ValueError, match="a hundred years"):
                    delivery.nack(1e30)
                delivery.nack(0.01)
                delivery.ack()  # not heard
            else:
                delivery.ack()
                delivery.nack(0.01)  # not heard, either
                break
    assert [attempts for body, attempts in seen if body == b"0"] == [1, 2]


def test_a_listener_that_is_slow_gets_company(registry: str, fresh: Fresh) -> None:
    """Eight messages are worked on at the same time, though the first thread took the first of them alone."""
    topic = fresh("company")
    together = threading.Barrier(8)
    met: list[int] = []

    def listener(message: object) -> None:
        together.wait(60)
        met.append(1)

    fill(registry, topic, 8)
    with PushConsumer(fresh("G"), registry, start="first", listener=listener, concurrency=8) as consumer:
        consumer.subscribe(topic)
        over = threading.Event()
        for _ in range(600):
            if len(met) == 8 or over.wait(0.1):
                break
    assert len(met) == 8


@pytest.mark.parametrize("kind", ["log", "queue"])
def test_acknowledged_by_other_threads_and_twice(fresh: Fresh, kind: str) -> None:
    topic, group, seen = fresh("elsewhere"), "G", []
    with (
        Broker() as broker,
        ThreadPoolExecutor(4) as others,
        PushConsumer(group, broker.registry, kind=kind, start="first", in_flight_max=50) as consumer,  # type: ignore[arg-type]
    ):
        consumer.subscribe(topic)
        fill(broker.registry, topic, 400, kind)
        for delivery in consumer:
            seen.append(delivery.body)
            acks = [others.submit(delivery.ack) for _ in range(2)]
            if len(seen) % 2:  # before the next one is asked for, or after
                wait(acks)
            if len(seen) == 400:
                wait(acks)
                break
        consumer.close()
        assert sorted(seen) == sorted(b"%d" % number for number in range(400))
        if kind == "log":
            assert committed(broker.registry, topic, group) == 400
        else:
            found = broker.call(lambda server: server.broker.queueing.find(topic.encode()).channels[group.encode()])
            assert (found.finish_count, found.requeue_count, found.timeout_count) == (400, 0, 0)


@pytest.mark.parametrize("kind", ["log", "queue"])
def test_closed_while_threads_wait_and_work(fresh: Fresh, kind: str) -> None:
    """Iterations end, those that wait and those with a message in hand; what is said then is not heard, and breaks nothing."""
    topic, ended = fresh("closed"), []
    working, closed = threading.Event(), threading.Event()
    with Broker() as broker:
        consumer = PushConsumer("G", broker.registry, kind=kind, start="first").start()  # type: ignore[arg-type]
        consumer.subscribe(topic)

        def work() -> None:
            for delivery in consumer:
                working.set()
                closed.wait(60)
                delivery.ack()
            ended.append(1)

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        fill(broker.registry, topic, 1, kind)
        assert working.wait(60)
        consumer.close()
        closed.set()
        for thread in threads:
            thread.join(60)
        assert len(ended) == 3
        with PushConsumer("G", broker.registry, kind=kind, start="first") as again:  # type: ignore[arg-type]
            again.subscribe(topic)
            assert next(iter(again)).body == b"0"  # nobody had settled it


def test_an_interrupt_leaves_the_message_to_the_next_one_who_asks(
    registry: str, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C that met an iteration as it took a message: nobody got that one, and nothing behind it was committed."""
    topic, group = fresh("interrupted"), fresh("G")
    fill(registry, topic, 30)
    left = [KeyboardInterrupt] * 3
    begin = Pulled.begin

    def interrupted(self: Pulled, for_s: float | None) -> None:
        if left:
            raise left.pop()
        begin(self, for_s)

    monkeypatch.setattr(Pulled, "begin", interrupted)
    with PushConsumer(group, registry, start="first") as consumer:
        consumer.subscribe(topic)
        messages = iter(consumer)
        seen = []
        while len(seen) < 30:
            with suppress(KeyboardInterrupt):
                delivery = next(messages)
                seen.append(delivery.body)
                delivery.ack()
    assert sorted(seen) == sorted(b"%d" % number for number in range(30))
    assert committed(registry, topic, group) == 30


class Silent:
    """The hand of a message whose broker says nothing until it is told to."""

    gone = False

    def __init__(self) -> None:
        self.answers, self.said = asyncio.Event(), threading.Event()

    async def settle(self, message: ReceivedMessage, outcome: object) -> None:
        await self.answers.wait()
        self.said.set()


@pytest.mark.parametrize("way", ["nack", "reject"])
def test_a_broker_that_does_not_take_a_message_back_holds_no_thread_up(
    monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """It held the iteration up until some broker took the message back."""
    monkeypatch.setattr(aio_delivery, "GIVE_BACK_S", 0.01)
    hand = Silent()
    getattr(Delivery(hand, message(1)), way)()  # type: ignore[arg-type]
    assert not hand.said.is_set()

    async def answer() -> None:
        hand.answers.set()

    portal().run(answer())
    assert hand.said.wait(60)
