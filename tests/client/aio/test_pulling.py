"""Pulling a queue: what each answer of the broker leads to."""

from __future__ import annotations

import asyncio

import pytest

from client.scripted import QUEUE, message, scripted, settings
from penstock.client.aio import pulling
from penstock.client.aio.assigned import Assigned
from penstock.client.aio.pulling import HOLD_MS, Puller
from penstock.client.subscriptions import Subscription
from penstock.message import ReceivedMessage
from penstock.wire.codes import RequestCode, ResponseCode
from penstock.wire.record import encode_record
from penstock.wire.remoting import RemotingCommand

PULL = RequestCode.PULL_MESSAGE


def record(offset: int, tag: bytes) -> bytes:
    return encode_record(b"T", b"m%d" % offset, b"TAGS\x01" + tag, queue_id=0, queue_offset=offset,
                         physical_offset=offset * 100, store_ms=1)  # fmt: skip


async def pulled(
    answers: list[tuple[int, int, bytes]], count: int
) -> tuple[list[list[bytes]], list[RemotingCommand], Assigned]:
    """(code, next offset, body) of each pull in turn: what was handed out after `count` pulls, and what was asked."""
    handed: list[list[bytes]] = []
    enough = asyncio.Event()

    async with scripted() as script:

        def answer(command: RemotingCommand) -> RemotingCommand:
            code, next_offset, body = answers[min(sum(c == PULL for c in script.codes()), len(answers)) - 1]
            if script.codes().count(PULL) >= count:
                enough.set()
            return command.reply(code, {"nextBeginOffset": str(next_offset)}, body)

        def hand_out(assigned: Assigned, messages: list[ReceivedMessage], next_offset: int) -> None:
            handed.append([message.body for message in messages])
            assigned.window.go_on_at(next_offset)

        script.replies[PULL] = answer
        assigned = Assigned(QUEUE, Subscription("T", "A"), 3)
        task = asyncio.create_task(Puller(script.cluster, settings(), hand_out).run(assigned))
        await asyncio.wait_for(enough.wait(), 20)
        assigned.stop()
        task.cancel()
        await asyncio.wait([task], timeout=10)
        return handed, [command for command in script.asked if command.code == PULL], assigned


async def test_messages_that_are_wanted_are_handed_out() -> None:
    body = record(2, b"A") + record(3, b"A") + record(4, b"B")  # the first was read before
    handed, asked, _ = await pulled([(ResponseCode.SUCCESS, 5, body), (ResponseCode.PULL_NOT_FOUND, 5, b"")], 2)
    assert handed == [[b"m3"]]
    assert [command.ext["queueOffset"] for command in asked[:2]] == ["3", "5"]
    assert asked[0].ext["suspendTimeoutMillis"] == str(HOLD_MS)


async def test_an_offset_that_is_gone_is_passed_over() -> None:
    handed, asked, _ = await pulled([(ResponseCode.PULL_OFFSET_MOVED, 90, b"")], 2)
    assert handed == []
    assert [command.ext["queueOffset"] for command in asked[:2]] == ["3", "90"]


async def test_nothing_is_pulled_while_the_window_is_full() -> None:
    async with scripted() as script:
        assigned = Assigned(QUEUE, Subscription("T"), 0)
        assigned.window.add([message(n) for n in range(10)], 10)
        task = asyncio.create_task(Puller(script.cluster, settings(window_count=10), lambda *_: None).run(assigned))
        await script.cluster.route("T")  # a round trip: the puller had its turns
        assert script.asked == []
        script.replies[PULL] = lambda command: command.reply(ResponseCode.PULL_NOT_FOUND, {"nextBeginOffset": "10"})
        assigned.settle(0)
        async with asyncio.timeout(20):
            while not script.asked:
                await script.cluster.route("T", fresh=True)
        assert script.asked[0].ext["queueOffset"] == "10"
        task.cancel()


async def test_an_answer_that_lies_is_dropped_whole_and_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulling, "ERROR_WAIT_S", 0.01)
    good = record(3, b"A") + record(4, b"A")
    for lie in (good[:-1], good[: len(good) // 2] + b"\0" * 50, b"\xff" * 91, good + b"\0"):
        handed, asked, _ = await pulled([(ResponseCode.SUCCESS, 9, lie), (ResponseCode.SUCCESS, 5, good)], 3)
        assert handed[0] == [b"m3", b"m4"]
        assert [command.ext["queueOffset"] for command in asked[:3]] == ["3", "3", "5"]


async def test_an_answer_that_comes_twice_is_handed_out_once() -> None:
    body = record(3, b"A") + record(4, b"A")
    handed, asked, _ = await pulled([(ResponseCode.SUCCESS, 5, body), (ResponseCode.SUCCESS, 5, body)], 3)
    assert [found for found in handed if found] == [[b"m3", b"m4"]]
    assert [command.ext["queueOffset"] for command in asked[:3]] == ["3", "5", "5"]


async def test_a_pull_asks_for_what_the_window_has_room_for() -> None:
    _, asked, _ = await pulled([(ResponseCode.PULL_NOT_FOUND, 3, b"")], 1)
    assert asked[0].ext["maxMsgNums"] == "256"  # of a window of 10: pulls are never smaller
