"""Queue topics and delayed messages as an administrator asks for them: pages are joined, ids name their broker."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from client.scripted import DELAYED, MESSAGE, TOPIC, Scripted
from client.steps import peer
from penstock.client.aio.adminqueues import QueueAdmin
from penstock.errors import BrokerRefused, NoRoute, NotFound
from penstock.wire.codes import RequestCode, ResponseCode
from penstock.wire.fastjson import dumps
from penstock.wire.remoting import RemotingCommand


def pages(*bodies: object) -> Callable[[RemotingCommand], RemotingCommand]:
    rest = list(bodies)
    return lambda command: command.reply(body=dumps(rest.pop(0)))


async def test_pages_are_joined() -> None:
    script = Scripted()
    script.replies[RequestCode.QUEUE_TOPICS] = pages(
        {"topics": [TOPIC | {"topic": "p"}], "next": "p"}, {"topics": [TOPIC | {"topic": "q"}], "next": None}
    )
    script.replies[RequestCode.DELAYED_LIST] = pages(
        {"rows": [DELAYED | {"id": 1}], "next": "5:1"}, {"rows": [DELAYED | {"id": 2}], "next": None}
    )
    script.replies[RequestCode.DELAYED_COUNT] = pages(
        {"counts": [1, 2], "next": "x"}, {"counts": ["3", "4"], "next": ""}
    )
    async with peer(script.answer) as address, QueueAdmin(address) as admin:
        assert await admin.queue_topics() == [{"broker": "a", **TOPIC, "topic": name} for name in "pq"]
        assert [row["id"] for row in await admin.delayed(limit=2)] == ["a/1", "a/2"]
        assert await admin.delayed_counts([10]) == [4, 6]
    assert [command.ext.get("after") for command in script.asked] == ["", "p", "", "5:1", "", "x"]


async def test_a_change_that_no_broker_could_make() -> None:
    script = Scripted()
    script.replies[RequestCode.QUEUE_CHANGE] = lambda command: command.reply(ResponseCode.TOPIC_NOT_EXIST)
    async with peer(script.answer) as address, QueueAdmin(address) as admin:
        with pytest.raises(NoRoute, match="no broker has topic 'q' with a channel 'c'"):
            await admin.change_queue("q", "pause", channel="c")
        script.replies[RequestCode.QUEUE_CHANGE] = lambda command: command.reply(1, remark="no")
        with pytest.raises(BrokerRefused):
            await admin.change_queue("q", "empty")
        del script.replies[RequestCode.QUEUE_CHANGE]
        assert await admin.change_queue("q", "add", level="disk") == ["a"]
    assert script.asked[-1].ext == {"topic": "q", "action": "add", "level": "disk"}


async def test_messages_are_looked_at_by_pages() -> None:
    script = Scripted()
    script.replies[RequestCode.BROWSE] = pages(
        {"rows": [MESSAGE | {"id": "1"}], "next": "c/q1"}, {"rows": [MESSAGE | {"id": "2"}], "next": None}
    )
    async with peer(script.answer) as address, QueueAdmin(address) as admin:
        assert [row["id"] for row in await admin.browse("t", channel="c", limit=3)] == ["1", "2"]
        assert [(command.ext["limit"], command.ext["after"]) for command in script.asked[-2:]] == [
            ("3", ""),
            ("2", "c/q1"),
        ]
        script.replies[RequestCode.BROWSE] = pages({"rows": [], "next": None})
        assert await admin.browse("t", start=datetime(2026, 1, 1, tzinfo=UTC), queue=2) == []
        assert (script.asked[-1].ext["from"], script.asked[-1].ext["queue"]) == ("time:1767225600000", "2")
        script.replies[RequestCode.BROWSE] = lambda command: command.reply(17, remark="no topic t")
        with pytest.raises(NotFound, match="no topic t"):
            await admin.browse("t")
        script.replies[RequestCode.BROWSE] = lambda command: command.reply(1, remark="state is none of them")
        with pytest.raises(BrokerRefused, match="state is none"):
            await admin.browse("t")
        with pytest.raises(ValueError, match="limit"):
            await admin.browse("t", limit=0)
        with pytest.raises(ValueError, match="time zone"):
            await admin.browse("t", start=datetime(2026, 1, 1))


@pytest.mark.parametrize("bad", ["", "7", "a/", "a/x", "a/-1", "/"])
async def test_what_is_no_id_is_asked_of_nobody(bad: str) -> None:
    script = Scripted()
    async with peer(script.answer) as address, QueueAdmin(address) as admin:
        with pytest.raises((ValueError, NoRoute, KeyError)):
            await admin.cancel_delayed(bad)
    assert script.asked == []


@pytest.mark.parametrize("bad", [5, None, b"a/7"])
async def test_an_id_of_a_delayed_message_is_text(bad: object) -> None:
    script = Scripted()
    async with peer(script.answer) as address, QueueAdmin(address) as admin:
        for ask in (admin.cancel_delayed, admin.fire_delayed):
            with pytest.raises(TypeError, match="the id of a delayed message is text"):
                await ask(bad)  # type: ignore[arg-type]
    assert script.asked == []


@pytest.mark.parametrize("bad", [5, None, b"a"])
async def test_the_name_of_a_broker_whose_pages_are_asked_for_is_text(bad: Any) -> None:
    script = Scripted()
    async with peer(script.answer) as address, QueueAdmin(address) as admin:
        with pytest.raises(TypeError, match="the name of a broker is text"):
            await admin.browse_page(bad, "", topic="t", channel="", state="ready", body_bytes=1)
        with pytest.raises(TypeError, match="the name of a broker is text"):
            await admin.redrive_page(bad, "t.dead", {})
    assert script.asked == []


async def test_an_older_broker_does_not_fire_what_is_to_be_moved() -> None:
    """It knows `id` alone, and needs it."""
    script = Scripted()

    def older(command: RemotingCommand) -> RemotingCommand:
        if "id" not in command.ext:
            return command.reply(1, remark="the custom field <id> is null")
        return command.reply(body=dumps({"id": 7, "fired": True}))

    script.replies[RequestCode.DELAYED_FIRE] = older
    async with peer(script.answer) as address, QueueAdmin(address) as admin:
        with pytest.raises(BrokerRefused, match="older version"):
            await admin.fire_delayed("a/7", at_ms=1_700_000_000_000)
        assert "id" not in script.asked[-1].ext
        assert (await admin.fire_delayed("a/7"))["fired"]
        script.replies[RequestCode.DELAYED_FIRE] = lambda command: command.reply(404, remark="no delayed message 7")
        with pytest.raises(BrokerRefused, match="no delayed"):
            await admin.fire_delayed("a/7", at_ms=1)
