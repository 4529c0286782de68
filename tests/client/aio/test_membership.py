"""Membership: what a heartbeat says, and when the queues are shared out anew."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from client.scripted import QUEUE, Scripted, body, scripted, settings
from client.steps import idle_time, mute, peer
from penstock.client.aio.channelconsumer import ChannelConsumer
from penstock.client.aio.cluster import Cluster
from penstock.client.aio.dispatch import Dispatcher
from penstock.client.aio.listening import Listeners
from penstock.client.aio.logconsumer import LogConsumer
from penstock.client.aio.membership import Membership
from penstock.client.routes import MessageQueue
from penstock.wire.codes import RequestCode, ResponseCode
from penstock.wire.fastjson import dumps
from penstock.wire.remoting import RemotingCommand
from polling import until
from ports import free_port

MEMBERS = RequestCode.GET_CONSUMER_LIST_BY_GROUP


@asynccontextmanager
async def member(**more: Any) -> AsyncIterator[tuple[Scripted, LogConsumer, Membership]]:
    listeners = Listeners("G", None, threads=1, timeout_s=20)
    async with scripted() as script:
        script.replies[RequestCode.QUERY_CONSUMER_OFFSET] = lambda command: command.reply(ext={"offset": "0"})
        script.replies[RequestCode.PULL_MESSAGE] = lambda command: command.reply(
            ResponseCode.PULL_NOT_FOUND, {"nextBeginOffset": "0"}
        )
        script.replies[RequestCode.GET_MIN_OFFSET] = lambda command: command.reply(ext={"offset": "0"})
        given, dispatcher = settings(**more), Dispatcher(listeners)
        logs = LogConsumer(script.cluster, given, dispatcher)
        group = Membership(script.cluster, given, logs, ChannelConsumer(script.cluster, given, dispatcher))
        yield script, logs, group
        logs.stop()
    listeners.close()


def name_two_brokers(script: Scripted, away: str) -> None:
    """Topics have a queue at the broker `a`, which is there, and one at `b`, which is the script."""
    addresses = {"a": away, "b": script.cluster.registries[0]}
    brokers = [
        {"brokerAddrs": {"0": address}, "brokerName": name, "cluster": "C"} for name, address in addresses.items()
    ]
    one = {"perm": 6, "readQueueNums": 1, "topicSysFlag": 0, "writeQueueNums": 1}
    queues = [{"brokerName": name, **one} for name in addresses]
    script.route = {"brokerDatas": brokers, "queueDatas": queues, "filterServerTable": {}}


async def test_a_heartbeat_says_what_is_read() -> None:
    async with member(model="broadcast", start="last") as (_, _, group):
        group.subscribe("T", "A || B")
        (about,) = group.heartbeat()["consumerDataSet"]
        assert (about["groupName"], about["messageModel"]) == ("G", "BROADCASTING")
        (subscription,) = about["subscriptionDataSet"]
        assert (subscription["topic"], subscription["subString"]) == ("T", "A || B")


async def test_each_member_takes_its_share() -> None:
    async with member() as (script, logs, group):
        names = sorted([script.cluster.client_id, "zzz"])
        script.replies[MEMBERS] = lambda command: command.reply(body=dumps({"consumerIdList": names}))
        group.subscribe("T")
        group.start()
        group.rebalance_soon()
        async with asyncio.timeout(20):
            while not logs.assigned:
                await script.cluster.route("T", fresh=True)
        assert len(logs.assigned) == 1
        assert set(logs.assigned) < {QUEUE, QUEUE._replace(queue_id=1)}


async def test_a_broadcast_reads_every_queue(tmp_path: Path) -> None:
    async with member(model="broadcast", offsets_folder=tmp_path) as (script, logs, group):
        group.subscribe("T")
        group.start()
        async with asyncio.timeout(20):
            while len(logs.assigned) < 2:
                await script.cluster.route("T", fresh=True)
        assert MEMBERS not in script.codes()


async def test_a_name_server_that_says_nothing_is_waited_for_once(tmp_path: Path) -> None:
    """A start waited for it as long as it may take, for each topic."""
    listeners = Listeners("G", None, threads=1, timeout_s=20)
    async with mute("silent") as (registry, asked):
        cluster = Cluster(registry, timeout_s=0.2)
        await cluster.start()
        given, dispatcher = settings(offsets_folder=tmp_path), Dispatcher(listeners)
        logs = LogConsumer(cluster, given, dispatcher)
        group = Membership(cluster, given, logs, ChannelConsumer(cluster, given, dispatcher))
        for number in range(5):
            group.subscribe(f"T{number}")
        await group.join(list(group.subscriptions))
        assert asked == ["silent"]
        await cluster.close()
    listeners.close()


async def test_news_of_another_group_changes_nothing() -> None:
    async with member() as (_, _, group):
        await group.members_changed(RemotingCommand(40, {"consumerGroup": "other"}))
        assert not group._rebalance_wanted.is_set()
        await group.members_changed(RemotingCommand(40, {"consumerGroup": "G"}))
        assert group._rebalance_wanted.is_set()


async def test_a_topic_that_is_left_while_its_queues_are_taken_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two answers of the broker; then another topic is shared out as ever."""
    async with member() as (script, logs, group):
        monkeypatch.setattr("penstock.client.aio.membership.REBALANCE_S", 0.01)
        script.replies[MEMBERS] = lambda command: command.reply(
            body=dumps({"consumerIdList": [script.cluster.client_id]})
        )
        asked = 0

        def leave(command: RemotingCommand) -> RemotingCommand:
            nonlocal asked
            asked += 1
            if asked == 1:
                del group.subscriptions["T"]
            return command.reply(ext={"offset": "0"})

        script.replies[RequestCode.QUERY_CONSUMER_OFFSET] = leave
        group.subscribe("T")
        group.start()
        group.rebalance_soon()
        await until(lambda: asked == 1)
        group.subscribe("T")
        group.rebalance_soon()
        await until(lambda: len(logs.assigned) > 0)


async def test_a_sharing_out_that_fails_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """`allocate` is the program's: what it raises must not leave the member without queues for ever."""
    monkeypatch.setattr("penstock.client.aio.membership.REBALANCE_S", 0.01)
    tries = 0

    def allocate(client_id: str, queues: list[MessageQueue], members: list[str]) -> list[MessageQueue]:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise ZeroDivisionError("a mistake of the program's")
        return queues

    async with member(allocate=allocate) as (script, logs, group):
        script.replies[MEMBERS] = lambda command: command.reply(
            body=dumps({"consumerIdList": [script.cluster.client_id]})
        )
        group.subscribe("T")
        group.start()
        group.rebalance_soon()
        await until(lambda: len(logs.assigned) > 0)
    assert "cannot share out T, tried again" in caplog.text


@pytest.mark.parametrize("orderly", [False, True])
async def test_a_broker_that_does_not_answer_costs_no_queue_of_another(orderly: bool) -> None:
    """Its route is known for a while, and its name may come first."""
    away, here = MessageQueue("T", "a", 0), MessageQueue("T", "b", 0)
    async with member(orderly=orderly, timeout_s=10.0) as (script, logs, group):
        addresses = {"a": f"127.0.0.1:{free_port()}", "b": script.cluster._directory.registries[0]}
        brokers = [
            {"brokerAddrs": {"0": address}, "brokerName": name, "cluster": "C"} for name, address in addresses.items()
        ]
        one = {"perm": 6, "readQueueNums": 1, "topicSysFlag": 0, "writeQueueNums": 1}
        queues = [{"brokerName": name, **one} for name in addresses]
        script.route = {"brokerDatas": brokers, "queueDatas": queues, "filterServerTable": {}}
        script.replies[RequestCode.LOCK_BATCH_MQ] = lambda command: command.reply(
            body=dumps({"lockOKMQSet": body(command)["mqSet"]})
        )
        script.replies[MEMBERS] = lambda command: command.reply(
            body=dumps({"consumerIdList": [script.cluster.client_id]})
        )
        group.subscribe("T")
        group.start()
        group.rebalance_soon()
        await until(lambda: here in logs.assigned)
        assert away not in logs.assigned


async def test_a_broker_that_says_nothing_is_waited_for_once_and_not_by_every_topic() -> None:
    """A group of six topics that began while one of two brokers stood still read the other one's after minutes."""
    asked: list[int] = []

    async def silent(command: RemotingCommand, writer: asyncio.StreamWriter) -> None:
        asked.append(command.code)

    topics = [f"T{n}" for n in range(4)]
    async with peer(silent) as away, member() as (script, logs, group):
        name_two_brokers(script, away)
        script.replies[MEMBERS] = lambda command: command.reply(
            body=dumps({"consumerIdList": [script.cluster.client_id]})
        )
        for topic in topics:
            group.subscribe(topic)
            await script.cluster.route(topic)
        with idle_time():
            group.start()
            await until(lambda: len(logs.assigned) == len(topics))
        assert {queue.broker for queue in logs.assigned} == {"b"}
        assert asked == [RequestCode.HEART_BEAT] * asked.count(RequestCode.HEART_BEAT) + [MEMBERS]


@pytest.mark.parametrize("orderly", [False, True])
async def test_a_broker_that_says_nothing_holds_up_no_queue_of_another_and_is_heard_when_it_answers(
    monkeypatch: pytest.MonkeyPatch, orderly: bool
) -> None:
    """The heartbeats, the members and where to begin were waited for one after the other: the others' queues came after 10 s
    to 30 s.
    """
    monkeypatch.setattr("penstock.client.aio.membership.SILENT_S", 0.02)
    monkeypatch.setattr("penstock.client.aio.membership.REBALANCE_SOON_S", 0.02)
    answers, topics = asyncio.Event(), ["T0", "T1"]
    async with member(orderly=orderly) as (script, logs, group):

        async def late(command: RemotingCommand, writer: asyncio.StreamWriter) -> None:
            await answers.wait()
            await script.answer(command, writer)

        async with peer(late) as away:
            name_two_brokers(script, away)
            script.replies[MEMBERS] = lambda command: command.reply(
                body=dumps({"consumerIdList": [script.cluster.client_id]})
            )
            script.replies[RequestCode.LOCK_BATCH_MQ] = lambda command: command.reply(
                body=dumps({"lockOKMQSet": body(command)["mqSet"]})
            )
            script.cluster.timeout_s = 3_600
            script.cluster.join(group.heartbeat, {}, group.rebalance_soon)
            for topic in topics:
                group.subscribe(topic)
            await group.join(topics)
            group.start()
            await until(lambda: set(logs.assigned) == {MessageQueue(t, "b", 0) for t in topics})
            answers.set()
            await until(lambda: set(logs.assigned) == {MessageQueue(t, n, 0) for t in topics for n in "ab"})
            await until(lambda: not group._owing)


async def test_a_lock_that_comes_when_another_member_has_the_queue_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """That member could not have read it for as long as a lock holds."""
    monkeypatch.setattr("penstock.client.aio.membership.SILENT_S", 0.02)
    monkeypatch.setattr("penstock.client.aio.membership.REBALANCE_SOON_S", 0.02)
    answers, unlocked = asyncio.Event(), []
    async with member(orderly=True) as (script, logs, group):

        async def late(command: RemotingCommand, writer: asyncio.StreamWriter) -> None:
            if command.code == RequestCode.LOCK_BATCH_MQ:
                await answers.wait()
            await script.answer(command, writer)

        def unlock(command: RemotingCommand) -> RemotingCommand:
            unlocked.extend(queue["brokerName"] for queue in body(command)["mqSet"])
            return command.reply()

        async with peer(late) as away:
            name_two_brokers(script, away)
            members = [script.cluster.client_id]
            script.replies[MEMBERS] = lambda command: command.reply(body=dumps({"consumerIdList": members}))
            script.replies[RequestCode.LOCK_BATCH_MQ] = lambda command: command.reply(
                body=dumps({"lockOKMQSet": body(command)["mqSet"]})
            )
            script.replies[RequestCode.UNLOCK_BATCH_MQ] = unlock
            script.cluster.timeout_s = 3_600
            group.subscribe("T")
            await script.cluster.route("T")
            group.start()
            await until(lambda: set(logs.assigned) == {MessageQueue("T", "b", 0)} and "a" in group._owing)
            members.insert(0, "!")  # the first of two: the queue of the first broker is its own
            group.rebalance_soon()
            await until(lambda: group._share["T"] == {MessageQueue("T", "b", 0)})
            answers.set()
            await until(lambda: unlocked == ["a"])
            assert set(logs.assigned) == {MessageQueue("T", "b", 0)}


async def test_many_topics_cost_few_heartbeats() -> None:
    """Each names all topics. None is pulled before its broker has heard of it."""
    topics = [f"T{number}" for number in range(60)]
    async with member() as (script, logs, group):
        script.replies[MEMBERS] = lambda command: command.reply(
            body=dumps({"consumerIdList": [script.cluster.client_id]})
        )
        script.cluster.join(group.heartbeat, {}, group.rebalance_soon)
        await script.cluster.route("T")  # a broker that is also the registry is not told when it is connected to
        group.start()
        for topic in topics:
            group.subscribe(topic)
            await group.add(topic)
        await until(lambda: len({queue.topic for queue in logs.assigned}) == len(topics))
        await until(lambda: script.codes().count(RequestCode.PULL_MESSAGE) >= 2 * len(topics))
        told: set[str] = set()
        beats = 0
        for command in list(script.asked):
            if command.code == RequestCode.HEART_BEAT:
                beats += 1
                (about,) = body(command)["consumerDataSet"]
                told = {subscription["topic"] for subscription in about["subscriptionDataSet"]}
            elif command.code == RequestCode.PULL_MESSAGE:
                assert command.ext["topic"] in told
        assert beats < 20


async def test_a_heartbeat_that_fails_is_no_end_of_the_sharing_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with member(model="broadcast") as (script, logs, group):
        monkeypatch.setattr(script.cluster, "send_heartbeats", None)
        group.subscribe("T")
        group.start()
        await until(lambda: len(logs.assigned) == 2)
    assert "cannot say what it reads, tried again" in caplog.text
