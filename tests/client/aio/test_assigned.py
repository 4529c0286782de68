"""One message queue in a consumer's hands: what is to be committed, and who works on it."""

from __future__ import annotations

import asyncio

from client.scripted import QUEUE, message
from penstock.client.aio.assigned import Assigned
from penstock.client.subscriptions import Subscription


def assigned() -> Assigned:
    return Assigned(QUEUE, Subscription("T"), 5)


async def test_an_offset_is_committed_once() -> None:
    one = assigned()
    assert one.uncommitted == 5
    one.committed(5)
    assert one.uncommitted is None
    one.window.add([message(5), message(6)], 7)
    one.settle(6)
    assert one.uncommitted is None  # the one before it is not settled
    one.settle(5)
    assert one.uncommitted == 7


async def test_a_position_set_elsewhere_is_not_overwritten() -> None:
    one = assigned()
    one.forget_position()
    assert one.uncommitted is None


async def test_what_stops_its_tasks() -> None:
    one, other = assigned(), asyncio.Event()
    puller, worker = asyncio.ensure_future(other.wait()), asyncio.ensure_future(other.wait())
    one.pull_by(puller)  # type: ignore[arg-type]
    one.work_by(worker)  # type: ignore[arg-type]
    one.stop()
    await asyncio.wait([puller], timeout=10)
    assert (one.dropped, puller.cancelled(), worker.done()) == (True, True, False)
    one.cancel()
    await asyncio.wait([worker], timeout=10)
    assert worker.cancelled()


async def test_another_expression_stops_the_pull_alone() -> None:
    one = assigned()
    puller = asyncio.ensure_future(asyncio.Event().wait())
    one.pull_by(puller)  # type: ignore[arg-type]
    one.resubscribe(Subscription("T", "A"))
    await asyncio.wait([puller], timeout=10)
    assert (puller.cancelled(), one.dropped, one.subscription.expression) == (True, False, "A")
