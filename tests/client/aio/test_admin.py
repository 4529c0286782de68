"""`client.aio.admin` against a real broker."""

import asyncio
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from client.conftest import Cluster
from penstock.aio import Producer, PullConsumer
from penstock.client.aio.admin import Admin
from penstock.client.routes import MessageQueue
from penstock.disk import tables
from penstock.disk.changes import noted
from penstock.disk.files import Files
from penstock.errors import BrokerRefused, NoRoute, NotFound
from penstock.message import Message
from penstock.testing import Broker
from penstock.wire.codes import RequestCode
from penstock.wire.remoting import RemotingCommand
from polling import later_ms

Fresh = Callable[[str], str]


async def make(admin: Admin, topic: str, queue_count: int = 2) -> list[MessageQueue]:
    await admin.create_topic(topic, queue_count)
    for _ in range(500):
        try:
            return (await admin.route(topic)).subscribe_queues()
        except NoRoute:
            await asyncio.sleep(0.01)
    raise AssertionError("the topic was not registered")


async def test_topics(registry: str, fresh: Fresh) -> None:
    topic = fresh("admin")
    async with Admin(registry) as admin:
        info = await admin.cluster_info()
        assert info.clusters == {"DefaultCluster": ["broker-a"]}
        assert list(info.brokers["broker-a"]) == [0]
        assert len(await make(admin, topic, 3)) == 3
        assert topic in await admin.topics()
        assert "TBW102" not in await admin.topics()
        assert {topic, "TBW102"} <= set(await admin.topics(system=True))
        await admin.delete_topic(topic)
        with pytest.raises(NoRoute):
            await admin.route(topic)
        with pytest.raises(NoRoute):
            await admin.create_topic(topic, broker="broker-z")
        with pytest.raises(BrokerRefused):
            await admin.create_topic("a/b")
        with pytest.raises(BrokerRefused):
            await admin.create_topic(topic, 1_000_000)


async def test_every_name_server_forgets_a_topic_that_is_deleted(tmp_path: Path) -> None:
    """One that does not answer is passed over."""
    with Broker(tmp_path / "b", broker_name="broker-b") as other, Broker(registry=other.registry) as own:
        async with Admin(f"{own.registry};{other.registry};127.0.0.1:1") as admin, Admin(other.registry) as second:
            await make(admin, "deleted")
            await knows(second, "deleted")
            await admin.delete_topic("deleted")
            await admin.change_queue("turned", "add", broker="broker-a")
            await admin.convert_topic("turned", "log")
            await knows(second, "turned")
            await admin.convert_topic("turned", "queue")
            for one in (admin, second):
                assert not {"deleted", "turned"} & set(await one.topics())


async def knows(admin: Admin, topic: str) -> None:
    for _ in range(5_000):
        if topic in await admin.topics():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the topic was not registered")


async def test_a_topic_that_the_registry_has_not_heard_of_yet_is_deleted(registry: str, fresh: Fresh) -> None:
    topic = fresh("unheard")
    async with Admin(registry) as admin:
        await make(admin, topic)
        forget = RemotingCommand(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": topic})
        await admin._cluster.ask_registry(forget)  # as if the broker had just made it
        with pytest.raises(NoRoute):
            await admin.route(topic)
        await admin.delete_topic(topic)
        (address,) = await admin._masters()
        assert await admin._config(address, topic) == {}
        with pytest.raises(NoRoute):
            await admin.delete_topic(topic)


async def test_a_queue_topic_that_the_registry_has_not_heard_of_yet_is_deleted(registry: str, fresh: Fresh) -> None:
    async with Admin(registry) as admin:
        for _ in range(10):
            topic = fresh("unheard-queue")
            await admin.change_queue(topic, "add")
            await admin.delete_topic(topic)
            assert await admin.queue_topics(topic) == []
        with pytest.raises(NoRoute):
            await admin.delete_topic(topic)


async def test_many_topics_at_once(own_cluster: Cluster) -> None:
    names = [f"many-{n}" for n in range(600)]
    async with Admin(own_cluster.registry) as admin:
        began = time.monotonic()
        with pytest.raises(BrokerRefused, match="illegal characters"):
            await admin.create_topics([*names[:300], "a/b", *names], 2)
        while len(await admin.topics()) < 600:
            assert time.monotonic() - began < 60
            await asyncio.sleep(0.01)
        assert await admin.topics() == sorted(names)
        assert len((await admin.route(names[-1])).subscribe_queues()) == 2
    own_cluster.stop(signal.SIGKILL)
    path = own_cluster.data / "config" / "topics.json"
    table = tables.load(Files(), path)
    assert table is not None
    assert set(names) <= set(table["topicConfigTable"]) | {change["name"] for change in noted(Files(), path, table)}


async def test_statistics(registry: str, fresh: Fresh) -> None:
    topic, group = fresh("stats"), fresh("g")
    async with Admin(registry) as admin, Producer(registry) as producer:
        queues = await make(admin, topic)
        for _ in range(3):
            await producer.send(Message(topic, b"x"), queue=queues[1])
        stats = await admin.topic_stats(topic)
        assert [s[:2] for s in stats.values()] == [(0, 0), (0, 3)]
        assert abs(stats[queues[1]].last_ms - time.time() * 1000) < 60_000
        async with PullConsumer(registry, group=group) as consumer:
            await consumer.commit({queues[1]: 1})
        group_stats = await admin.group_stats(group, topic)
        assert group_stats[queues[1]][:3] == (3, 1, 2)
        assert (group_stats[queues[1]].lag_ms or 0) >= 0


async def test_messages(registry: str, fresh: Fresh) -> None:
    topic = fresh("find")
    async with Admin(registry) as admin, Producer(registry) as producer:
        await make(admin, topic)
        receipt = await producer.send(Message(topic, b"one", keys=("red", "blue")))
        await producer.send(Message(topic, b"two", keys=("red",)))
        assert [m.body for m in await admin.query_by_key(topic, "red")] == [b"one", b"two"]
        assert [m.body for m in await admin.query_by_key(topic, "blue")] == [b"one"]
        assert await admin.query_by_key(topic, "green") == []
        assert (await admin.message(receipt.offset_msg_id)).body == b"one"
        assert (await admin.message(receipt.msg_id, topic)).body == b"one"
        with pytest.raises(ValueError):
            await admin.message("nonsense")
        with pytest.raises(NotFound):
            await admin.message(f"{int(receipt.offset_msg_id, 16) + 1:032X}")
        with pytest.raises(NotFound):
            await admin.message("nonsense", topic)


async def test_reset_of_a_group_that_is_offline(registry: str, fresh: Fresh) -> None:
    topic, group = fresh("offline"), fresh("g")
    async with Admin(registry) as admin, Producer(registry) as producer:
        queues = await make(admin, topic, 1)
        for _ in range(3):
            await producer.send(Message(topic, b"x"))
        moment = later_ms()
        await producer.send(Message(topic, b"x"))
        async with PullConsumer(registry, group=group) as consumer:
            await consumer.commit({queues[0]: 2})
            for start, offset in (("first", 0), ("last", 4), (moment, 3)):
                assert await admin.reset_offset(group, topic, start) == {queues[0]: offset}  # type: ignore[arg-type]
                assert await consumer.committed(queues[0]) == offset


async def test_one_name_is_not_several() -> None:
    with pytest.raises(TypeError, match=r"several names: \['abc'\]"):
        await Admin("127.0.0.1:1").create_topics("abc")


WRONG = {
    "topic": lambda admin: admin.create_topic(5),
    "no topic": lambda admin: admin.route(None),
    "bytes": lambda admin: admin.browse(b"T"),
    "an object": lambda admin: admin.change_queue(object(), "add"),
    "a list": lambda admin: admin.change_queue("T", "add", channel=["c"]),
    "key": lambda admin: admin.query_by_key("TBW102", 7),
    "level": lambda admin: admin.create_topic("T", level=object()),
    "group": lambda admin: admin.check_offline(object()),
    "limit": lambda admin: admin.delayed(limit=None),
}  # fmt: skip


@pytest.mark.parametrize("call", WRONG)
async def test_an_argument_of_another_type_is_the_callers_mistake(registry: str, call: str) -> None:
    """The broker's answer was said to make no sense, or a topic of another name was made."""
    async with Admin(registry) as admin:
        with pytest.raises(TypeError):
            await WRONG[call](admin)
        assert "5" not in await admin.topics()
