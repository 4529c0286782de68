"""What administration stands on: brokers by name, and answers that are none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import pytest

from client.scripted import Scripted, scripted
from client.steps import Answer, peer
from penstock.client.aio.admin import Admin
from penstock.client.aio.admincluster import ClusterAdmin
from penstock.clock import FakeClock
from penstock.errors import BrokerRefused, ConnectionLost, NoRoute, NotEverywhere, PenstockError, WireError
from penstock.wire.codes import RequestCode, ResponseCode
from penstock.wire.fastjson import dumps
from penstock.wire.remoting import RemotingCommand, encode


async def test_brokers_and_masters() -> None:
    async with peer(Scripted().answer) as address, ClusterAdmin(address) as admin:
        info = await admin.cluster_info()
        assert (info.brokers, info.clusters) == ({"a": {0: address}}, {"C": ["a"]})
        assert await admin._masters() == [address]
        with pytest.raises(NoRoute, match="no broker 'b' is there"):
            await admin._masters("b")


@pytest.mark.parametrize(
    "body", [b"[]", b'{"brokerAddrTable": {"a": {}}}', b'{"brokerAddrTable": {"a": {"brokerAddrs": {"x": ""}}}}']
)
async def test_an_answer_that_is_no_cluster(body: bytes) -> None:
    async def answer(command: RemotingCommand, writer) -> None:  # type: ignore[no-untyped-def]
        assert command.code == RequestCode.GET_BROKER_CLUSTER_INFO
        writer.write(encode(command.reply(body=body)))

    async with peer(answer) as address, ClusterAdmin(address) as admin:
        with pytest.raises(WireError):
            await admin.cluster_info()


async def test_a_scripted_cluster_is_one() -> None:
    async with scripted() as script:
        assert (await script.cluster.route("T")).brokers


@asynccontextmanager
async def of_three(
    answer_of_b: Answer, answer_of_a: Answer | None = None
) -> AsyncIterator[tuple[str, list[tuple[str, int]]]]:
    """A registry and its brokers: `a` does all, unless it answers so, `b` answers so, `c` has a slave alone. The address, and
    (broker, code) asked.
    """
    asked: list[tuple[str, int]] = []

    async def noted(name: str, command: RemotingCommand, writer: asyncio.StreamWriter) -> None:
        asked.append((name, command.code))
        if name == "b":
            await answer_of_b(command, writer)
        elif answer_of_a is not None and name == "a":
            await answer_of_a(command, writer)
        else:
            told = {
                "table": {"x": "1"},
                "count": 1,
                "counts": [1, 2],
                "rows": [],
                "topics": [],
                "changes": [],
                "next": None,
            }
            if command.code == RequestCode.QUERY_MESSAGE:
                reply = command.reply(ResponseCode.QUERY_NOT_FOUND)
            else:
                reply = command.reply(body=dumps(told))
            writer.write(encode(reply))

    async with peer(partial(noted, "a")) as a, peer(partial(noted, "b")) as b:
        members = {"a": {"0": a}, "b": {"0": b}, "c": {"1": b}}
        datas = [{"brokerName": name, "cluster": "C", "brokerAddrs": of} for name, of in members.items()]
        queues = [
            {"brokerName": name, "perm": 6, "readQueueNums": 1, "topicSysFlag": 0, "writeQueueNums": 1}
            for name in members
        ]

        async def registry(command: RemotingCommand, writer: asyncio.StreamWriter) -> None:
            value: object = {"brokerDatas": datas, "queueDatas": queues, "filterServerTable": {}}
            if command.code == RequestCode.GET_BROKER_CLUSTER_INFO:
                value = {"brokerAddrTable": {data["brokerName"]: data for data in datas}, "clusterAddrTable": {}}
            asked.append(("registry", command.code))
            writer.write(encode(command.reply(body=dumps(value))))

        async with peer(registry) as address:
            yield address, asked


async def refused(command: RemotingCommand, writer: asyncio.StreamWriter) -> None:
    writer.write(encode(command.reply(1, remark="it hangs")))


CHANGES: dict[str, Callable[[Admin], Awaitable[object]]] = {
    "disconnect": lambda admin: admin.disconnect("1.2.3.4:5"),
    "drop_stage": lambda admin: admin.drop_stage("s", "1"),
    "create_topic": lambda admin: admin.create_topic("T"),
    "delete_topic": lambda admin: admin.delete_topic("T"),
    "change_queue": lambda admin: admin.change_queue("T", "rm"),
    "keep_topic": lambda admin: admin.keep_topic("T", retention_ms=5),
    "reload_config": lambda admin: admin.reload_config(),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_a_change_says_which_brokers_it_missed(change: str) -> None:
    async with of_three(refused) as (address, asked), Admin(address) as admin:
        with pytest.raises(NotEverywhere) as told:
            await CHANGES[change](admin)
    away = "c/1" if change == "reload_config" else "c"
    assert list(told.value.missed) == ["b", away]
    assert "not at broker b: refused with code 1: it hangs; not at broker " + away in str(told.value)
    assert {"a", "b"} <= {name for name, _ in asked}
    assert ("registry", RequestCode.DELETE_TOPIC_IN_NAMESRV) not in asked  # it is still there


async def gone(command: RemotingCommand, writer: asyncio.StreamWriter) -> None:
    writer.close()


LOOKS: dict[str, Callable[[Admin], Awaitable[object]]] = {
    "topics": lambda admin: admin.topics(),
    "topic_stats": lambda admin: admin.topic_stats("T"),
    "describe_topic": lambda admin: admin.describe_topic("T"),
    "queue_topics": lambda admin: admin.queue_topics(),
    "browse": lambda admin: admin.browse("T"),
    "query_by_key": lambda admin: admin.query_by_key("T", "k"),
    "delayed": lambda admin: admin.delayed(),
    "delayed_counts": lambda admin: admin.delayed_counts([1]),
    "groups": lambda admin: admin.groups(),
    "group_stats": lambda admin: admin.group_stats("g"),
    "all_group_stats": lambda admin: admin.all_group_stats(),
    "group_members": lambda admin: admin.group_members("g"),
    "clients": lambda admin: admin.clients(),
}


@pytest.mark.parametrize("look", LOOKS)
async def test_a_look_may_be_partial(look: str) -> None:
    """It names whom it missed, and does not ask there again; where that is not wanted it fails."""
    async with of_three(gone) as (address, asked):
        async with Admin(address) as admin:
            with pytest.raises(ConnectionLost):
                await LOOKS[look](admin)
        assert {"a", "b"} <= {name for name, _ in asked}
        async with Admin(address, partial=True) as admin:
            await LOOKS[look](admin)
            assert "b" in admin.missed
            assert "a" not in admin.missed
            asked.clear()
            await LOOKS[look](admin)
            assert "b" not in {name for name, _ in asked}


async def test_that_it_is_nowhere_is_not_said_while_one_is_missed() -> None:
    """The refusal of one that has no such topic hid that another one could not be asked."""

    async def known(command: RemotingCommand, writer: asyncio.StreamWriter) -> None:
        writer.write(encode(command.reply(ResponseCode.TOPIC_NOT_EXIST, remark="no such topic")))

    async with of_three(gone, known) as (address, _):
        async with Admin(address) as admin:
            with pytest.raises(ConnectionLost):
                await admin.topic_stats("T")
        async with Admin(address, partial=True) as admin:
            with pytest.raises(BrokerRefused, match="no such topic"):
                await admin.topic_stats("T")
            assert "b" in admin.missed
    async with of_three(known) as (address, _), Admin(address) as admin:  # deleted at one of them
        await admin.topic_stats("T")
        with pytest.raises(BrokerRefused, match="no such topic"):
            await admin.groups_of("T")
    async with of_three(gone, known) as (address, _), Admin(address, partial=True) as admin:
        with pytest.raises(BrokerRefused, match="no such topic"):
            await admin.groups_of("T")
        assert "b" in admin.missed


async def test_who_was_missed_is_asked_again_after_a_minute() -> None:
    """It was left out for ever, however long the client lived and the broker was back."""
    back = False

    async def answer_of_b(command: RemotingCommand, writer: asyncio.StreamWriter) -> None:
        if back:
            writer.write(encode(command.reply(body=dumps({"rows": [], "next": None}))))
        else:
            writer.close()

    clock = FakeClock()
    async with of_three(answer_of_b) as (address, asked), Admin(address, partial=True, clock=clock) as admin:

        async def is_asked(waited_ms: int) -> bool:
            clock.advance(waited_ms)
            asked.clear()
            await admin.clients()
            return "b" in {name for name, _ in asked}

        assert await is_asked(0)
        assert not await is_asked(59_999)
        assert await is_asked(1)
        back = True
        assert not await is_asked(59_999)
        assert "b" in admin.missed
        assert await is_asked(1)
        assert admin.missed == {}
        assert await is_asked(0)


async def test_of_those_that_were_missed_alone_is_asked_all_the_same() -> None:
    """Nobody was asked, and that was the answer."""
    async with of_three(gone) as (address, _), Admin(address, partial=True) as admin:
        await admin.clients()
        at = {name: one for name, one in (await admin._by_name()).items() if name in admin.missed}
        with pytest.raises(ConnectionLost):
            await admin._each(admin.runtime_info, at)


async def test_where_nobody_answers_a_look_fails() -> None:
    async def answer(command: RemotingCommand, writer: asyncio.StreamWriter) -> None:
        if command.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            await Scripted().answer(command, writer)
        else:
            writer.close()

    async with peer(answer) as address, Admin(address, partial=True) as admin:
        for _ in range(2):
            with pytest.raises(ConnectionLost):
                await admin.clients()
        assert admin.missed == {}


async def test_brokers_are_asked_side_by_side() -> None:
    everybody = asyncio.Event()

    async def waits(command: RemotingCommand, writer: asyncio.StreamWriter) -> None:
        await everybody.wait()
        await refused(command, writer)

    async def waits_for_b(command: RemotingCommand, writer: asyncio.StreamWriter) -> None:
        everybody.set()
        await refused(command, writer)

    async with peer(waits) as hangs, peer(waits_for_b) as other, ClusterAdmin(hangs) as admin:
        told = await admin.runtime_infos([hangs, other])
    assert [str(one) for one in told.values()] == ["refused with code 1: it hangs"] * 2
    assert list(told) == [hangs, other]


async def test_where_all_fail_it_is_the_error_itself() -> None:
    async with peer(Scripted().answer) as address, Admin(address) as admin:

        async def fails(address: str) -> None:
            raise BrokerRefused(16, "no")

        with pytest.raises(BrokerRefused, match="no"):
            await admin._at_all(fails, {"a": "x", "b": ""})
        with pytest.raises(NoRoute, match="it has no master now"):
            await admin._at_all(fails, {"b": ""})


ALIEN = [b"", b"hello", b"[]", b"7", b"null", b"{}", b"[[1]]"]
ALIEN += [b'{"%s": %s}' % (name, value) for value in (b"7", b"[7]", b'{"a": 7}') for name in (
    b"rows", b"topics", b"queues", b"changes", b"against", b"count", b"counts", b"table", b"topicList", b"groupList",
    b"offsetTable", b"connectionSet", b"subscriptionTable", b"subscriptionGroupTable", b"consumeStatsList", b"mqTable",
)]  # fmt: skip
CALLS: dict[str, Callable[[Admin], Awaitable[object]]] = {
    "topics": lambda admin: admin.topics(),
    "create": lambda admin: admin.create_topic("T"),
    "describe": lambda admin: admin.describe_topic("T"),
    "stats": lambda admin: admin.topic_stats("T"),
    "oldest": lambda admin: admin.oldest_ms("T"),
    "groups of": lambda admin: admin.groups_of("T"),
    "by key": lambda admin: admin.query_by_key("T", "k"),
    "delete": lambda admin: admin.delete_topic("T"),
    "groups": lambda admin: admin.groups(),
    "group": lambda admin: admin.group_stats("G"),
    "all groups": lambda admin: admin.all_group_stats(),
    "members": lambda admin: admin.group_members("G"),
    "subscriptions": lambda admin: admin.group_subscriptions("G"),
    "reset": lambda admin: admin.reset_offset("G", "T", new=True),
    "plan": lambda admin: admin.plan_reset("G", "T"),
    "set": lambda admin: admin.set_offset("G", "T", 1, new=True),
    "queue topics": lambda admin: admin.queue_topics(),
    "change": lambda admin: admin.change_queue("T", "empty"),
    "purge": lambda admin: admin.purge_topic("T"),
    "redrive": lambda admin: admin.redrive_page("a", "T", {}),
    "keep": lambda admin: admin.keep_topic("T"),
    "convert": lambda admin: admin.convert_topic("T", "log"),
    "browse": lambda admin: admin.browse("T"),
    "page": lambda admin: admin.browse_page("a", "", topic="T", channel="", state="ready", body_bytes=1),
    "delayed": lambda admin: admin.delayed(),
    "delayed counts": lambda admin: admin.delayed_counts((1,)),
    "cancel": lambda admin: admin.cancel_delayed("a/1"),
    "fire": lambda admin: admin.fire_delayed("a/1", at_ms=1),
    "runtime": lambda admin: admin.runtime_info(admin._cluster.registries[0]),
    "clients": lambda admin: admin.clients(),
    "disconnect": lambda admin: admin.disconnect("1.2.3.4:5"),
    "stage": lambda admin: admin.drop_stage("s", "1"),
    "reload": lambda admin: admin.reload_config(),
    "switch": lambda admin: admin.switch(admin._cluster.registries[0]),
    "forget": lambda admin: admin.forget_node(admin._cluster.registries[0], "n"),
}  # fmt: skip


@pytest.mark.parametrize("call", CALLS)
async def test_an_answer_of_another_shape_is_named_with_who_gave_it(call: str) -> None:
    """It was a KeyError, an AttributeError or a TypeError, of whatever read it."""
    script = Scripted()
    async with peer(script.answer) as address, Admin(address) as admin:
        named = []
        for body in ALIEN:
            for code in RequestCode:
                script.replies[code] = partial(RemotingCommand.reply, body=body)
            try:
                await CALLS[call](admin)
            except PenstockError as error:
                said = str(error)
                if isinstance(error, WireError):
                    named.append(f"the answer of {address} makes no sense" in said or "the answer of broker a" in said)
        assert all(named)
