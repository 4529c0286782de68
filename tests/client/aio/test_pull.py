"""`client.aio.pull` against a real broker: positions are the caller's."""

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from penstock.aio import Producer
from penstock.client.aio.pull import PullConsumer
from penstock.client.routes import MessageQueue
from penstock.errors import NoRoute
from penstock.message import Message, ReceivedMessage
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
    found: list[ReceivedMessage] = (await consumer.getmany(2.0, max_count)).get(queue, [])
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
        assert await consumer.getmany(timeout_s=0.1) == {}  # and what is left has been looked at
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
        found = (await consumer.getmany(2.0))[queue]
        assert [m.tags for m in found] == ["b"] * 3


async def test_unknown_topic(registry: str) -> None:
    async with PullConsumer(registry) as consumer:
        with pytest.raises(NoRoute):
            await consumer.assign("nobody-made-this")
