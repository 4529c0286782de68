"""`client.aio.pull` against a real broker: positions are the caller's."""

import asyncio
import gc
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from client.steps import mute
from penstock.aio import Admin, Producer
from penstock.client.aio.pull import PullConsumer
from penstock.client.routes import MessageQueue
from penstock.errors import Closed, ConnectionLost, NoRoute, TimedOut
from penstock.message import Message, ReceivedMessage
from penstock.testing import Broker
from polling import later_ms

Fresh = Callable[[str], str]


async def fill(registry: str, topic: str, count: int, **more: str) -> MessageQueue:
    """`count` messages in one queue."""
    async with Producer(registry) as producer:
        queue = (await producer.queues(topic))[0]
        await producer.send_batch([Message(topic, b"%d" % i, **more) for i in range(count)], queue=queue)  # type: ignore[arg-type]
        for _ in range(500):
            try:
                async with PullConsumer(registry) as consumer:
                    await consumer.queues(topic)
                    break
            except NoRoute:
                await asyncio.sleep(0.01)
    return queue


async def bodies(consumer: PullConsumer, queue: MessageQueue, max_count: int = 1000) -> list[bytes]:
    found: list[ReceivedMessage] = (await consumer.getmany(60.0, max_count)).get(queue, [])
    return [m.body for m in found]


async def test_positions(registry: str, fresh: Fresh) -> None:
    topic = fresh("pull")
    queue = await fill(registry, topic, 10)
    async with PullConsumer(registry) as consumer:
        assert queue in await consumer.assign(topic, start="first")
        assert await consumer.offsets(queue) == (0, 10)
        assert await bodies(consumer, queue, 3) == [b"0", b"1", b"2"]
        assert (consumer.position(queue), await consumer.lag(queue)) == (3, 7)
        assert len(await bodies(consumer, queue)) == 7
        assert await consumer.lag(queue) == 0
        consumer.seek(queue, 8)
        assert await bodies(consumer, queue) == [b"8", b"9"]
        await consumer.seek_to_start(queue)
        assert consumer.position(queue) == 0
        await consumer.seek_to_end()
        assert consumer.position(queue) == 10
        assert await consumer.getmany(timeout_s=0.1) == {}


async def test_where(registry: str, fresh: Fresh) -> None:
    topic = fresh("where")
    async with Producer(registry) as producer:
        queue = (await producer.queues(topic))[0]
        messages = [Message(topic, b"%d" % i, properties={"n": str(i)}, tags="a" if i < 6 else "b") for i in range(10)]
        await producer.send_batch(messages, queue=queue)
    async with PullConsumer(registry) as consumer:
        for wrong in ({"where": "n >"}, {"where": "n > 1", "tags": "a"}):
            with pytest.raises(ValueError):
                await consumer.assign(topic, [queue], start="first", **wrong)  # type: ignore[arg-type]
        assert consumer.assignment == []
        await consumer.assign(topic, [queue], where="n > 2 AND TAGS = 'a'", start="first")
        assert await bodies(consumer, queue, 2) == [b"3", b"4"]
        assert consumer.position(queue) == 5
        assert await bodies(consumer, queue) == [b"5"]
        async with asyncio.timeout(60):
            while consumer.position(queue) < 10:  # what is left is looked at, too
                assert await consumer.getmany(timeout_s=0.1) == {}
        assert (consumer.position(queue), await consumer.lag(queue)) == (10, 0)


async def test_pause(registry: str, fresh: Fresh) -> None:
    topic = fresh("pause")
    queue = await fill(registry, topic, 5)
    async with PullConsumer(registry) as consumer:
        await consumer.assign(topic, [queue], start="first")
        consumer.pause(queue)
        assert await consumer.getmany(timeout_s=0.2) == {}
        consumer.resume(queue)
        assert len(await bodies(consumer, queue)) == 5
        await consumer.unassign(queue)
        assert consumer.assignment == []


async def test_seek_to_time(registry: str, fresh: Fresh) -> None:
    topic = fresh("time")
    queue = await fill(registry, topic, 5)
    moment = datetime.fromtimestamp(later_ms() / 1000, UTC)
    await fill(registry, topic, 5)
    async with PullConsumer(registry) as consumer:
        await consumer.assign(topic, [queue], start=moment)
        assert consumer.position(queue) == 5
        await consumer.seek_to_time(0)
        assert consumer.position(queue) == 0
        await consumer.seek_to_time(int(time.time() * 1000) + 60_000, queue)
        assert consumer.position(queue) == 10
        with pytest.raises(ValueError):
            await consumer.seek_to_time(datetime.now())


async def test_committed(registry: str, fresh: Fresh) -> None:
    topic = fresh("commit")
    queue = await fill(registry, topic, 5)
    async with PullConsumer(registry, group="pullers") as consumer:
        await consumer.assign(topic, [queue])
        assert consumer.position(queue) == 0
        assert len(await bodies(consumer, queue, 2)) == 2
        await consumer.commit()
    async with PullConsumer(registry, group="pullers") as consumer:
        await consumer.assign(topic, [queue])
        assert consumer.position(queue) == 2
        assert await consumer.committed(queue) == 2


async def test_hold_ends_with_arrival(registry: str, fresh: Fresh) -> None:
    topic = fresh("hold")
    queue = await fill(registry, topic, 1)
    async with PullConsumer(registry) as consumer:
        await consumer.assign(topic, [queue], start="last")
        waiting = asyncio.create_task(consumer.getmany(timeout_s=300.0))
        for _ in range(2):  # round trips behind the pull: it is held by now
            await consumer.committed(queue)
        await fill(registry, topic, 1)
        assert [m.body for m in (await asyncio.wait_for(waiting, 60))[queue]] == [b"0"]


async def test_tags(registry: str, fresh: Fresh) -> None:
    topic = fresh("tags")
    queue = await fill(registry, topic, 3, tags="a")
    await fill(registry, topic, 3, tags="b")
    async with PullConsumer(registry) as consumer:
        await consumer.assign(topic, [queue], tags="b || c", start="first")
        found = (await consumer.getmany(60.0))[queue]
        assert [m.tags for m in found] == ["b"] * 3


async def test_unknown_topic(registry: str) -> None:
    async with PullConsumer(registry) as consumer:
        with pytest.raises(NoRoute):
            await consumer.assign("nobody-made-this")


async def test_a_commit_of_no_offsets_commits_none(registry: str, fresh: Fresh) -> None:
    topic = fresh("none")
    queue = await fill(registry, topic, 3)
    async with PullConsumer(registry, group=topic) as consumer:
        await consumer.assign(topic, [queue], start="first")
        assert len(await bodies(consumer, queue)) == 3
        await consumer.commit({})
        assert await consumer.committed(queue) in (None, 0)
        await consumer.commit()
        assert await consumer.committed(queue) == 3


async def test_who_does_not_wait_gets_what_is_there(registry: str, fresh: Fresh) -> None:
    topic = fresh("now")
    queue = await fill(registry, topic, 3)
    async with PullConsumer(registry) as consumer:
        await consumer.assign(topic, [queue], start="first")
        found: dict[MessageQueue, list[ReceivedMessage]] = {}
        until = time.monotonic() + 60
        while not found and time.monotonic() < until:
            found = await consumer.getmany(timeout_s=0)
            await asyncio.sleep(0.001)
        assert [m.body for m in found[queue]] == [b"0", b"1", b"2"]


async def test_a_lost_broker_is_told_to_who_waits_shorter_than_a_pull_takes_to_fail() -> None:
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: noise.append(context))
    noise: list[dict[str, object]] = []
    with Broker() as broker:
        queue = await fill(broker.registry, "lost", 1)
        consumer = PullConsumer(broker.registry)
        await consumer.start()
        await consumer.assign("lost", [queue], start="last")
    with pytest.raises(ConnectionLost):
        for _ in range(2_000):
            await consumer.getmany(timeout_s=0.02)
    await consumer.getmany(timeout_s=0.02)  # told once; this one begins the next try
    await consumer.close()
    gc.collect()
    assert noise == []


async def test_while_a_broker_is_away_the_others_are_read(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "penstock.client")
    with Broker(broker_name="here") as here:
        with Broker(broker_name="away", registry=here.registry, registry_port=-1):
            async with Admin(here.registry) as admin:
                while len((await admin.cluster_info()).brokers) < 2:
                    await asyncio.sleep(0.01)
                await admin.create_topic("T", queue_count=1)
            consumer = PullConsumer(here.registry)
            await consumer.start()
            while len(await consumer.queues("T")) < 2:
                await asyncio.sleep(0.01)
            first, second = sorted(await consumer.assign("T", start="first"))
            assert (first.broker, second.broker) == ("away", "here")
        async with Producer(here.registry) as producer:
            for n in range(3):
                await producer.send(Message("T", b"%d" % n), queue=second)
                found: list[bytes] = []
                while not found:  # first it is tried at both, and nothing is there
                    got = await consumer.getmany(timeout_s=0.2)
                    found = [message.body for message in got.get(second, [])]
                assert found == [b"%d" % n]
            assert await consumer.getmany(timeout_s=1.5) == {}
        consumer.pause(second)
        with pytest.raises((ConnectionLost, NoRoute)):  # now there is no other
            for _ in range(100):
                await consumer.getmany(timeout_s=1.0)
        assert consumer.position(first) == 0
        consumer.resume(second)
        await consumer.close()
    said = [record for record in caplog.records if record.message.startswith("broker away is away")]
    assert [record.levelno for record in said] == [logging.WARNING]


async def test_a_time_to_wait_is_a_number(registry: str, fresh: Fresh) -> None:
    queue = await fill(registry, fresh("nan"), 1)
    async with PullConsumer(registry) as consumer:
        with pytest.raises(ValueError, match="timeout_s is a number"):
            await consumer.getmany(float("nan"))
        await consumer.assign(queue.topic, [queue], start="first")
        with pytest.raises(ValueError, match="timeout_s is a number"):
            await consumer.getmany(float("nan"))
        assert await bodies(consumer, queue) == [b"0"]


async def test_some_messages_are_one_at_least(registry: str, fresh: Fresh) -> None:
    queue = await fill(registry, fresh("none"), 2)
    async with PullConsumer(registry) as consumer:
        await consumer.assign(queue.topic, [queue], start="first")
        for max_count in (0, -1):
            with pytest.raises(ValueError, match="max_count is 1 at least"):
                await consumer.getmany(0.5, max_count)
        assert await bodies(consumer, queue, 1) == [b"0"]


async def test_a_position_is_a_number_and_a_moment_a_time(registry: str, fresh: Fresh) -> None:
    queue = await fill(registry, fresh("odd"), 1)
    async with PullConsumer(registry) as consumer:
        await consumer.assign(queue.topic, [queue], start="first")
        for offset in (None, "5", 1.5, float("nan")):
            with pytest.raises(TypeError):
                consumer.seek(queue, offset)  # type: ignore[arg-type]
        for moment in (None, "first", 1.5, datetime(2026, 1, 1)):
            with pytest.raises(ValueError, match="time"):
                await consumer.seek_to_time(moment)  # type: ignore[arg-type]
        assert await bodies(consumer, queue) == [b"0"]


async def test_what_is_read_of_an_assigned_queue_can_be_changed(registry: str, fresh: Fresh) -> None:
    topic = fresh("reassigned")
    async with Producer(registry) as producer:
        queue = (await producer.queues(topic))[0]
        await producer.send_batch([Message(topic, b"%d" % i, tags="ab"[i % 2]) for i in range(6)], queue=queue)
    async with PullConsumer(registry) as consumer:
        await consumer.assign(topic, [queue], tags="a", start="first")
        assert await bodies(consumer, queue, 2) == [b"0", b"2"]
        await consumer.assign(topic, [queue], tags="b")
        assert await bodies(consumer, queue) == [b"5"]  # from its position on
        await consumer.seek_to_start(queue)
        assert await bodies(consumer, queue) == [b"1", b"3", b"5"]


async def test_name_servers_that_say_nothing_are_asked_once_each() -> None:
    """They were asked for the route, and then for the route again."""
    async with mute("a", "b") as (registry, asked), PullConsumer(registry, timeout_s=0.6) as consumer:
        with pytest.raises(TimedOut):
            await consumer.assign("T")
        assert asked == ["a", "b"]


async def test_who_waits_is_told_of_the_close(registry: str, fresh: Fresh) -> None:
    """Else a thread that waits for messages for ever would never end."""
    consumer = PullConsumer(registry)
    with pytest.raises(Closed):
        await consumer.getmany(0)
    for assigned in (True, False):
        await consumer.start()
        if assigned:
            await consumer.assign((await fill(registry, fresh("closed"), 1)).topic, start="last")
        waits = asyncio.ensure_future(consumer.getmany(float("inf")))
        await asyncio.sleep(0.01)
        await consumer.close()
        with pytest.raises(Closed):
            await waits
        with pytest.raises(Closed):
            await consumer.getmany(0)
