"""LogConsumer: where a queue is begun, what is committed, what goes back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

from client.scripted import QUEUE, Scripted, message, scripted, settings
from penstock.client.aio.assigned import Assigned
from penstock.client.aio.dispatch import Dispatcher
from penstock.client.aio.listening import Listeners
from penstock.client.aio.logconsumer import LogConsumer
from penstock.client.results import Retry
from penstock.client.subscriptions import Subscription
from penstock.wire.codes import RequestCode, ResponseCode


@asynccontextmanager
async def consumer(**more: Any) -> AsyncIterator[tuple[Scripted, LogConsumer]]:
    listeners = Listeners("G", None, threads=1, timeout_s=20)
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


async def test_closing_commits_and_unlocks() -> None:
    async with consumer(orderly=True) as (script, logs):
        logs.assigned[QUEUE] = Assigned(QUEUE, Subscription("T"), 3)
        logs.stop()
        await logs.close()
        assert script.codes() == [RequestCode.UPDATE_CONSUMER_OFFSET, RequestCode.UNLOCK_BATCH_MQ]
        assert logs.assigned == {}
