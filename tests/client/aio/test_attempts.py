"""`client.aio.attempts`: which queue a send goes to, and what is known of a topic without asking anybody."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

import penstock
from client.scripted import scripted
from client.steps import idle_time, mute, peer
from penstock.aio import Producer
from penstock.client.aio.attempts import BUSY_WAIT_MAX_S, Attempts
from penstock.client.aio.cluster import Cluster
from penstock.client.results import SendStatus
from penstock.client.routes import MessageQueue, Route
from penstock.errors import BrokerRefused, NoRoute, NotConnected, TimedOut
from penstock.message import Message
from penstock.testing import Broker
from penstock.wire.codes import RequestCode
from penstock.wire.fastjson import dumps
from penstock.wire.remoting import RemotingCommand, encode
from polling import until

Fresh = Callable[[str], str]


async def test_ids_are_this_producers(registry: str) -> None:
    async with Producer(registry) as one, Producer(registry) as other:
        sent = [producer.attempts.outgoings.make([Message("T", b"")] * 3) for producer in (one, other)]
        keys = [key for outgoing in sent for key in outgoing.keys]
        assert len(set(keys)) == 6
        assert all(len(key) == 32 and int(key, 16) for key in keys)


async def test_a_queue_whose_broker_is_away(registry: str, fresh: Fresh) -> None:
    topic = fresh("away")
    async with Producer(registry) as producer:
        await producer.send(Message(topic, b""))
        with pytest.raises(NoRoute):
            await producer.attempts.address(MessageQueue(topic, "nobody", 0))
        with pytest.raises(NoRoute):
            producer.attempts.nsq_address(await producer.attempts.route(topic), MessageQueue(topic, "nobody", 0))


@pytest.mark.parametrize("idempotent", [False, True])
async def test_a_registry_that_is_away_for_the_first_send(
    registry: str, fresh: Fresh, idempotent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Producer(registry, idempotent=idempotent, send_timeout_s=300) as producer:
        attempts: Attempts = producer.attempts
        cluster, asked = attempts.cluster, []

        async def route(topic: str, **more: Any) -> Route:
            asked.append(topic)
            if len(asked) < 4:
                raise NotConnected("gone") if len(asked) % 2 else NoRoute("not known yet")
            return await Cluster.route(cluster, topic, **more)

        monkeypatch.setattr(cluster, "route", route)
        assert (await producer.send(Message(fresh("patient"), b"x"))).status is SendStatus.SEND_OK
        assert len(asked) >= 4


@pytest.mark.parametrize("idempotent", [False, True])
async def test_name_servers_that_say_nothing_take_no_more_than_the_time_of_a_send(idempotent: bool) -> None:
    async with (
        mute("a", "b") as (registry, asked),
        Producer(registry, send_timeout_s=100, idempotent=idempotent) as producer,
    ):
        for _ in range(2):
            with pytest.raises(TimedOut, match="no name server says where it is"):
                await producer.send(Message("T", b""), timeout_s=0.04)
        with pytest.raises(TimedOut, match="no name server says where it is"):
            await producer.request(Message("T", b""), 0.04)
    assert asked == ["a", "b", "a"]  # one that was silent is asked last


@pytest.mark.parametrize("idempotent", [False, True])
@pytest.mark.parametrize("key", [None, "a key"])
def test_a_new_topic_with_fewer_queues_than_was_thought(idempotent: bool, key: str | None) -> None:
    """A rule of the broker's gives it one; whoever has sent to no topic before thinks of four. Each message is there, once."""
    with (
        Broker(topic=[{"name": "few*", "queues": 1}], nsq_port=-1, lookup_port=-1, lookup_http_port=-1) as broker,
        penstock.Producer(broker.registry, idempotent=idempotent, send_timeout_s=600) as producer,
    ):
        for topic in range(8):
            for n in range(3):
                receipt = producer.send(Message(f"few{topic}", b"%d" % n, sharding_key=key))
                assert (receipt.status, receipt.queue.queue_id, receipt.queue_offset) == (SendStatus.SEND_OK, 0, n)
        sends = [producer.send_nowait(Message("few-soon", b"%d" % n, sharding_key=key)) for n in range(50)]
        producer.flush()
        assert sorted(send.result().queue_offset for send in sends) == list(range(50))
        other = receipt.queue._replace(queue_id=3)
        began = time.monotonic()
        with pytest.raises(BrokerRefused, match="queueId"):
            producer.send(Message(other.topic, b"x"), queue=other)
        assert time.monotonic() - began < 60  # not as long as `send_timeout_s` allows


async def test_stored_with_fewer_copies_is_a_warning_once(caplog: pytest.LogCaptureFixture) -> None:
    """A line for each of a million messages hid all else; the next time that it begins is told again."""
    caplog.set_level("WARNING", "penstock.client")
    codes = iter([11, 11, 11, 0, 11])

    def stored(command: RemotingCommand) -> RemotingCommand:
        return command.reply(next(codes), {"queueId": "0", "queueOffset": "1", "msgId": "A"})

    async with scripted() as script, Producer(script.cluster.registries[0]) as producer:
        script.replies = dict.fromkeys((RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE), stored)
        statuses = [(await producer.send(Message("T", b"x"))).status.value for _ in range(5)]
    short = "SLAVE_NOT_AVAILABLE"
    assert statuses == [short, short, short, "SEND_OK", short]
    assert sum(short in line.getMessage() for line in caplog.records) == 2


class Silent:
    """A registry, which answers as long as `named`, and a broker: what becomes of each send is up to `store`."""

    brokers: tuple[str, ...] = ("a",)

    def __init__(self) -> None:
        self.got: list[tuple[RemotingCommand, asyncio.StreamWriter]] = []
        self.named = True

    async def answer(self, command: RemotingCommand, writer: asyncio.StreamWriter) -> None:
        if command.oneway:
            return
        if command.code == RequestCode.SEND_MESSAGE_V2:
            self.got.append((command, writer))
            await self.store()
        elif command.code != RequestCode.GET_ROUTEINFO_BY_TOPIC:
            writer.write(encode(command.reply()))
        elif self.named:
            host, port = writer.get_extra_info("sockname")
            queue = {"perm": 6, "readQueueNums": 1, "topicSysFlag": 0, "writeQueueNums": 1}
            broker = {"brokerAddrs": {"0": f"{host}:{port}"}, "cluster": "C"}
            datas = [[{**data, "brokerName": name} for name in self.brokers] for data in (broker, queue)]
            route = {"brokerDatas": datas[0], "queueDatas": datas[1], "filterServerTable": {}}
            writer.write(encode(command.reply(body=dumps(route))))

    async def store(self) -> None:
        """One more send came."""


class Closing(Silent):
    """It has the message and closes the connection, and the registry is silent from then on."""

    async def store(self) -> None:
        self.named = False
        self.got[-1][1].close()


async def test_what_may_be_stored_is_not_told_as_not_sent() -> None:
    """The time of a send is over before it could be tried again."""
    made = Closing()
    with idle_time():
        async with peer(made.answer) as address, Producer(address, send_timeout_s=2) as producer:
            with pytest.raises(TimedOut, match="whether the message is stored is unknown"):
                await producer.send(Message("T", b"m"))
    assert len(made.got) == 1


class Refusing(Silent):
    """It is busy, and the registry is silent from then on."""

    async def store(self) -> None:
        self.named = False
        command, writer = self.got[-1]
        writer.write(encode(command.reply(2, remark="too busy")))


@pytest.mark.parametrize("idempotent", [False, True])
async def test_why_a_send_was_refused_is_told_when_its_time_is_over(idempotent: bool) -> None:
    """It was over while the route was asked for anew, and nothing said that a broker had refused it, or why."""
    made = Refusing()
    with idle_time():
        async with peer(made.answer) as address, Producer(address, send_timeout_s=2, idempotent=idempotent) as producer:
            with pytest.raises(BrokerRefused, match="too busy"):
                await producer.send(Message("T", b"m"))
    assert made.got


class AllRefusing(Silent):
    """Two brokers, both busy all the time."""

    brokers = ("a", "b")

    async def store(self) -> None:
        command, writer = self.got[-1]
        writer.write(encode(command.reply(2, remark="too busy")))


async def test_where_every_broker_refuses_each_is_asked_once_between_two_pauses() -> None:
    """A send went from one to the other and back without a pause, and after a thousand times ended with OverflowError."""
    made = AllRefusing()
    with idle_time():
        async with peer(made.answer) as address, Producer(address, send_timeout_s=10) as producer:
            with pytest.raises(BrokerRefused, match="too busy"):
                await producer.send(Message("T", b"m"))
    assert len(made.got) < 2 * 10 / BUSY_WAIT_MAX_S + 10


async def test_a_send_behind_another_was_sent_or_was_not() -> None:
    """One with a time of its own waits for the one before it: it says whether it had gone out when that was over."""
    made = Silent()
    with idle_time():
        async with peer(made.answer) as address, Producer(address, send_timeout_s=60) as producer:
            queue = (await producer.queues("T"))[0]
            first = asyncio.create_task(producer.send(Message("T", b"first"), queue=queue))
            await until(lambda: made.got)
            with pytest.raises(TimedOut, match="not sent to T in time"):
                await producer.send(Message("T", b"behind"), queue=queue, timeout_s=0.05)
            second = asyncio.create_task(producer.send(Message("T", b"second"), queue=queue, timeout_s=3))
            await asyncio.sleep(0)
            command, writer = made.got[0]
            writer.write(encode(command.reply(0, {"queueId": "0", "queueOffset": "1", "msgId": "0" * 32})))
            await first
            with pytest.raises(TimedOut, match=r"whether the message is stored is unknown|did not answer"):
                await second
    assert len(made.got) == 2
