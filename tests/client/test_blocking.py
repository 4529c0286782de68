"""`client.blocking`: the same clients without an event loop."""

import asyncio
import inspect
import math
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import Message, aio
from penstock.client.aio import logconsumer, push
from penstock.client.blocking import Producer, PullConsumer, PushConsumer
from penstock.client.blockingadmin import Admin
from penstock.client.portal import portal
from penstock.client.routes import MessageQueue
from penstock.errors import Closed, ConnectionLost, NoRoute, TimedOut
from penstock.message import ReceivedMessage

Fresh = Callable[[str], str]


@pytest.mark.parametrize("name", ["Producer", "PushConsumer", "PullConsumer", "Admin", "Delivery"])
def test_both_faces_have_the_same_methods(name: str) -> None:
    blocking, inner = getattr(penstock, name), getattr(aio, name)

    def public(kind: type) -> dict[str, set[str]]:
        return {
            attribute: set(inspect.signature(member).parameters)
            for attribute, member in inspect.getmembers(kind)
            if callable(member) and not attribute.startswith("_")
        }

    theirs = public(inner)
    for attribute, parameters in public(blocking).items():
        assert parameters == theirs[attribute], attribute
    internal = {"drop", "move", "settle", "begin"}  # what the parts of the asyncio consumer share
    assert set(theirs) - set(public(blocking)) <= internal
    if name != "Delivery":  # which nobody makes
        constructor = set(inspect.signature(inner).parameters) - {"clock"}
        assert set(inspect.signature(blocking).parameters) == constructor


def test_public_names() -> None:
    assert {"Producer", "Message", "Retry", "SendStatus"} <= set(penstock._PUBLIC)
    for name in penstock._PUBLIC:
        assert getattr(penstock, name)
    with pytest.raises(AttributeError):
        penstock.nonsense  # noqa: B018


def test_importing_the_client_is_light() -> None:
    code = "import sys, penstock; penstock.Producer; print({'pyarrow', 'pyspark', 'numpy', 'lmdb'} & set(sys.modules))"
    source = Path(penstock.__file__).parents[1]
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONPATH": str(source)}
    )
    assert found.stdout.strip() == "set()", found.stderr


def test_everything_once(registry: str, fresh: Fresh) -> None:
    topic, group = fresh("blocking"), fresh("g")
    with Producer(registry) as producer, Admin(registry) as admin:
        admin.create_topic(topic, 1)
        receipt = producer.send(Message(topic, b"0"))
        producer.send_batch([Message(topic, b"1"), Message(topic, b"2")])
        producer.send_oneway(Message(topic, b"3"))
        reported = threading.Event()
        future = producer.send_nowait(Message(topic, b"4"), lambda result: reported.set())
        assert future.result(10).queue_offset == 4
        assert reported.wait(5)
        assert len(producer.queues(topic)) == 1
        assert admin.message(receipt.offset_msg_id).body == b"0"
        assert topic in admin.topics()
        assert admin.cluster_info().clusters
        assert admin.topic_stats(topic)[receipt.queue].max_offset == 5
    with PullConsumer(registry) as consumer:
        [queue] = consumer.assign(topic, start="first")
        assert [m.body for m in consumer.getmany(60)[queue]] == [b"0", b"1", b"2", b"3", b"4"]
        consumer.seek(queue, 3)
        assert (consumer.position(queue), consumer.lag(queue)) == (3, 2)
    got: list[bytes] = []
    with PushConsumer(group, registry, listener=lambda m: got.append(m.body), start="first") as push:
        push.subscribe(topic)
        deadline = time.monotonic() + 60
        while len(got) < 5 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert push.client_id
    assert sorted(got) == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("kind", ["log", "queue"])
def test_a_send_may_take_any_time(registry: str, fresh: Fresh, kind: Any) -> None:
    """A thread that sends again and again has a socket of its own, which takes no time of 300 years."""
    topic = fresh("any-time")
    for send_timeout_s in (math.inf, 1e300, 30 * 86_400.0):
        with Producer(registry, kind=kind, send_timeout_s=send_timeout_s) as producer:
            for _ in range(20):
                producer.send(Message(topic, b"x"))


def test_iteration(registry: str, fresh: Fresh) -> None:
    topic = fresh("for")
    with Producer(registry) as producer:
        for i in range(3):
            producer.send(Message(topic, b"%d" % i))
    seen = []
    with PushConsumer(fresh("g"), registry, start="first") as consumer:
        consumer.subscribe(topic)
        for delivery in consumer:
            seen.append(delivery.body)
            delivery.ack()
            if len(seen) == 3:
                break
    assert sorted(seen) == [b"0", b"1", b"2"]


def test_errors_come_through(registry: str) -> None:
    with pytest.raises(ConnectionLost):
        Producer("127.0.0.1:1").start()
    with PullConsumer(registry) as consumer, pytest.raises(NoRoute):
        consumer.assign("nobody-made-this")


async def test_a_blocking_call_in_the_loop_is_refused() -> None:
    async def inside() -> None:
        with pytest.raises(RuntimeError, match=r"penstock\.aio"):
            portal().run(asyncio.sleep(0))

    await asyncio.to_thread(portal().run, inside())


@pytest.mark.parametrize("where", [{}, {"nsqd": "127.0.0.1:1"}])
def test_who_iterates_over_a_consumer_that_was_never_started_is_told(where: dict[str, str]) -> None:
    consumer = PushConsumer("G", "127.0.0.1:1", **where)  # type: ignore[arg-type]
    with pytest.raises(Closed, match="never started"):
        next(iter(consumer))
    consumer.close()
    with pytest.raises(Closed):
        iter(consumer)


@pytest.mark.parametrize("orderly", [False, True])
def test_a_listener_may_close_its_consumer(
    registry: str, fresh: Fresh, monkeypatch: pytest.MonkeyPatch, orderly: bool
) -> None:
    """It does not wait for itself."""
    topic, closed = fresh("itself"), threading.Event()
    for module in (push, logconsumer):
        monkeypatch.setattr(module, "CLOSE_S", 600.0)

    def listener(message: ReceivedMessage) -> None:
        consumer.close()
        closed.set()

    with Producer(registry) as producer:
        producer.send(Message(topic, b"x"))
    consumer = PushConsumer(fresh("g"), registry, listener=listener, start="first", orderly=orderly)
    consumer.start()
    consumer.subscribe(topic)
    assert closed.wait(60)
    consumer.close()


@pytest.mark.parametrize("face", ["blocking", "asyncio"])
def test_both_faces_say_the_same_of_a_send_that_cannot_be(registry: str, fresh: Fresh, face: str) -> None:
    """One sent without any time, and named another topic's queue before it said that it was closed."""
    topic = fresh("same")
    producer = Producer(registry)

    def send(timeout_s: float | None = None, queue: MessageQueue | None = None) -> None:
        if face == "blocking":
            producer.send(Message(topic, b"x"), timeout_s=timeout_s, queue=queue)
        else:
            portal().run(producer._inner.send(Message(topic, b"x"), timeout_s=timeout_s, queue=queue))

    other = MessageQueue("other", "a", 0)
    with pytest.raises(Closed):
        send(queue=other)
    with producer:
        for _ in range(2):  # the second one knows the route
            send()
        queue = producer.queues(topic)[0]
        for timeout_s in (0, -1.0, math.nan):
            for at in (None, queue, other):
                with pytest.raises(TimedOut):
                    send(timeout_s, at)
        with pytest.raises(ValueError, match="not a queue of topic"):
            send(queue=other)
        with PullConsumer(registry) as reader:
            assert sum(reader.offsets(at)[1] for at in reader.queues(topic)) == 2
    for timeout_s in (None, 0):
        with pytest.raises(Closed):
            send(timeout_s, other)


def test_an_interrupt_takes_no_messages_along(registry: str, fresh: Fresh, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C that met `getmany` while messages came to its thread: they were lost, and `commit` said that they were read."""
    topic, group = fresh("interrupted-pull"), fresh("G")
    with Producer(registry) as producer:
        for i in range(20):
            producer.send(Message(topic, b"%d" % i))
    with PullConsumer(registry, group=group) as consumer:
        consumer.assign(topic)
        run = portal().run

        def interrupted(work: Any) -> None:
            run(work)
            monkeypatch.undo()
            raise KeyboardInterrupt

        seen: list[bytes] = []
        for _ in range(20):
            if len(seen) == 20:
                break
            monkeypatch.setattr(portal(), "run", interrupted)
            with pytest.raises(KeyboardInterrupt):
                consumer.getmany(1, 7)
            for messages in consumer.getmany(1, 7).values():
                seen += [message.body for message in messages]
        assert sorted(seen) == sorted(b"%d" % i for i in range(20))
        consumer.commit()
        assert sum(consumer.committed(queue) or 0 for queue in consumer.assignment) == 20
