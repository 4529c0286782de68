"""LogConsumer: where a queue is begun, what is committed, what goes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from client.scripted import QUEUE, Scripted, message, scripted, settings
from client.steps import peer
from penstock.client.aio.assigned import Assigned
from penstock.client.aio.dispatch import Dispatcher
from penstock.client.aio.listening import Listener, Listeners
from penstock.client.aio.logconsumer import LogConsumer
from penstock.client.results import Reject, Retry
from penstock.client.subscriptions import Subscription
from penstock.message import ReceivedMessage
from penstock.threads import Threads
from penstock.wire.codes import RequestCode, ResponseCode
from penstock.wire.remoting import RemotingCommand, encode
from polling import until


@asynccontextmanager
async def consumer(listener: Listener | None = None, **more: Any) -> AsyncIterator[tuple[Scripted, LogConsumer]]:
    listeners = Listeners("G", listener, threads=1, timeout_s=20)
    async with scripted() as script:
        script.replies[RequestCode.QUERY_CONSUMER_OFFSET] = lambda command: command.reply(ResponseCode.QUERY_NOT_FOUND)
        for code, offset in (
            (RequestCode.GET_MIN_OFFSET, "1"),
            (RequestCode.GET_MAX_OFFSET, "9"),
            (RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, "5"),
        ):
            script.replies[code] = lambda command, offset=offset: command.reply(ext={"offset": offset})  # type: ignore[misc]
        yield script, LogConsumer(script.cluster, settings(**more), Dispatcher(listeners))
    listeners.close()


@pytest.mark.parametrize(
    ("start", "offset"), [("first", 1), ("last", 9), (datetime.fromtimestamp(1_700_000_000, UTC), 5)]
)
async def test_where_a_new_group_begins(start: Any, offset: int) -> None:
    async with consumer(start=start) as (_, logs):
        assert await logs.start_offset(QUEUE) == offset
        assert await logs.start_offset(QUEUE._replace(topic="%RETRY%G")) == 1


async def test_where_a_broadcast_begins_in_queues_that_have_come(tmp_path: Path) -> None:
    """It began at the end, and missed what was sent before it noticed the queue."""
    new, elsewhere = QUEUE._replace(queue_id=7), QUEUE._replace(broker="b")
    async with consumer(start="last", model="broadcast", offsets_folder=tmp_path) as (script, logs):
        script.route = {
            "brokerDatas": [
                {"brokerName": name, "cluster": "C", "brokerAddrs": {"0": script.cluster.registries[0]}}
                for name in "ab"
            ],
            "queueDatas": [],
        }
        logs.found("T", [QUEUE])
        logs.found("T", [QUEUE, new, elsewhere])
        assert [await logs.start_offset(queue) for queue in (QUEUE, new, elsewhere)] == [9, 1, 5]
        asked = int(script.asked[-1].ext["timestamp"])
        assert 0 <= script.cluster.clock.now_ms() - asked < 60_000
        await logs.drop_topic("T")
        logs.found("T", [])  # no broker has it
        assert await logs.start_offset(QUEUE) == 5
        await logs._offsets.commit(QUEUE, 3)
    async with consumer(start="last", model="broadcast", offsets_folder=tmp_path) as (_, logs):
        await logs.open()
        logs.found("T", [QUEUE, new])  # the new one came while it was not there
        assert [await logs.start_offset(queue) for queue in (QUEUE, new)] == [3, 1]


async def test_a_committed_offset_counts() -> None:
    async with consumer(start="first") as (script, logs):
        script.replies[RequestCode.QUERY_CONSUMER_OFFSET] = lambda command: command.reply(ext={"offset": "7"})
        assert await logs.start_offset(QUEUE) == 7


async def test_an_offset_moves_when_the_message_went_back() -> None:
    async with consumer() as (script, logs):
        assigned = Assigned(QUEUE, Subscription("T"), 3)
        assigned.window.add([message(3), message(4)], 5)
        await logs.settle(assigned, message(3), Retry(1.0))
        assert script.codes()[-1] == RequestCode.CONSUMER_SEND_MSG_BACK
        assert assigned.window.committed == 4
        await logs.settle(assigned, message(4), None)
        assert (assigned.window.committed, len(script.asked)) == (5, 1)


async def test_queues_that_are_moved_are_not_committed_over() -> None:
    async with consumer() as (script, logs):
        logs.assigned[QUEUE] = assigned = Assigned(QUEUE, Subscription("T"), 3)
        await logs.move({QUEUE: 77})
        assert (logs.assigned, assigned.dropped, assigned.uncommitted) == ({}, True, None)
        (asked,) = script.asked
        assert (asked.code, asked.ext["commitOffset"]) == (RequestCode.UPDATE_CONSUMER_OFFSET, "77")


async def test_the_queues_of_others_are_not_moved() -> None:
    """Each member is told of all queues; one that is late would undo what their readers have done since."""
    async with consumer() as (script, logs):
        await logs.move({QUEUE: 77})
        assert script.asked == []


async def test_a_queue_that_is_moved_while_it_is_taken_begins_where_it_was_moved_to() -> None:
    async with consumer() as (script, logs):
        moving: list[asyncio.Task[None]] = []

        def committed(command: RemotingCommand) -> RemotingCommand:
            if moving:
                return command.reply(ext={"offset": "2"})
            moving.append(asyncio.create_task(logs.move({QUEUE: 2})))
            return command.reply(ext={"offset": "7"})

        script.replies[RequestCode.QUERY_CONSUMER_OFFSET] = committed
        assert await logs.start_offset(QUEUE) == 2
        await moving[0]
        assert RequestCode.UPDATE_CONSUMER_OFFSET in script.codes()


async def test_a_queue_that_is_given_up_while_offsets_are_committed_is_committed_no_more() -> None:
    """Its next reader may have gone on meanwhile, or it was moved."""
    other = QUEUE._replace(queue_id=1)
    async with consumer() as (script, logs):
        for queue in (QUEUE, other):
            logs.assigned[queue] = Assigned(queue, Subscription("T"), 3)

        def commit(command: RemotingCommand) -> RemotingCommand:
            logs.assigned.pop(other, None)
            return command.reply()

        script.replies[RequestCode.UPDATE_CONSUMER_OFFSET] = commit
        logs.start()
        logs.finish(logs.assigned[QUEUE], [])
        await until(lambda: script.asked)
        logs.finish(logs.assigned[QUEUE], [])
        logs.assigned[QUEUE].window.go_on_at(4)
        await until(lambda: len(script.asked) > 1)
        assert [command.ext["queueId"] for command in script.asked] == ["0", "0"]


@pytest.mark.parametrize("says", ["nothing", "no"])
async def test_a_broker_that_cannot_be_told_an_offset_holds_up_no_other(
    monkeypatch: pytest.MonkeyPatch, says: str
) -> None:
    """Each of its queues was waited for in turn, for 10 s; and when one had failed, nothing was committed for 5 s."""
    monkeypatch.setattr("penstock.client.aio.logconsumer.COMMIT_AGAIN_S", 600.0)
    wakes = asyncio.Event()

    async def answers(command: RemotingCommand, writer: asyncio.StreamWriter) -> None:
        if says == "nothing":
            await wakes.wait()
        writer.write(encode(command.reply(ResponseCode.SYSTEM_ERROR)))

    elsewhere = QUEUE._replace(broker="b")
    async with peer(answers) as other, consumer() as (script, logs):
        script.route = {
            "brokerDatas": [
                {"brokerName": "a", "cluster": "C", "brokerAddrs": {"0": script.cluster.registries[0]}},
                {"brokerName": "b", "cluster": "C", "brokerAddrs": {"0": other}},
            ],
            "queueDatas": [],
        }
        for queue in (elsewhere, QUEUE, elsewhere._replace(queue_id=1)):
            logs.assigned[queue] = Assigned(queue, Subscription("T"), 3)
        logs.start()
        for offset in (4, 5, 6):
            logs.assigned[QUEUE].window.go_on_at(offset)
            logs.finish(logs.assigned[QUEUE], [])
            await until(lambda offset=offset: str(offset) in [command.ext["commitOffset"] for command in script.asked])  # type: ignore[misc]
        wakes.set()


async def test_where_a_queue_is_begun_is_committed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group that begins at the end, and dies before its first message is done, must not begin behind that message."""
    monkeypatch.setattr("penstock.client.aio.logconsumer.COMMIT_AGAIN_S", 600.0)
    async with consumer(start="last") as (script, logs):
        script.replies[RequestCode.PULL_MESSAGE] = lambda command: command.reply(
            ResponseCode.PULL_NOT_FOUND, {"nextBeginOffset": "9"}
        )
        logs.start()
        logs.take(QUEUE, Subscription("T"), await logs.start_offset(QUEUE))
        await until(lambda: RequestCode.UPDATE_CONSUMER_OFFSET in script.codes())
        logs.stop()


async def test_closing_commits_and_unlocks() -> None:
    async with consumer(orderly=True) as (script, logs):
        logs.assigned[QUEUE] = Assigned(QUEUE, Subscription("T"), 3)
        logs.stop()
        await logs.close()
        assert script.codes() == [RequestCode.UPDATE_CONSUMER_OFFSET, RequestCode.UNLOCK_BATCH_MQ]
        assert logs.assigned == {}


async def test_a_plain_listener_works_on_many_messages_of_a_queue_in_one_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One crossing into a thread and back for each message costs forty times its work."""
    heard: list[int] = []
    handed_over = 0
    real = Threads.submit

    def submit(threads: Threads, *args: Any, **named: Any) -> Any:
        nonlocal handed_over
        handed_over += 1
        return real(threads, *args, **named)

    def listener(message: ReceivedMessage) -> None:
        heard.append(message.queue_offset)
        if message.queue_offset in (7, 8) and heard.count(message.queue_offset) < 3:
            raise Retry(0)
        if message.queue_offset == 150:
            raise Reject("bad")

    async with consumer(listener, orderly=True) as (script, logs):
        script.replies[RequestCode.PULL_MESSAGE] = lambda command: command.reply(
            ResponseCode.PULL_NOT_FOUND, {"nextBeginOffset": command.ext["queueOffset"]}
        )
        monkeypatch.setattr(Threads, "submit", submit)
        monkeypatch.setattr("penstock.client.aio.dispatch.RUN_S", 60.0)
        assigned = logs.assigned[QUEUE] = Assigned(QUEUE, Subscription("T"), 0)
        logs._hand_out(assigned, [message(offset) for offset in range(300)], 300)
        assigned.work_by(asyncio.create_task(logs._work_in_order(assigned)))
        await until(lambda: assigned.window.committed == 300)
        assert heard == [*range(7), 7, 7, 7, 8, 8, 8, *range(9, 300)]
        assert RequestCode.CONSUMER_SEND_MSG_BACK in script.codes()
        assert handed_over < 150
        logs.stop()
        await logs.close()
