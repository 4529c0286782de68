"""Queue locks: which of the queues are ours, and waiting for one."""

from __future__ import annotations

import asyncio

import pytest

from client.scripted import QUEUE, body, scripted
from penstock.client.aio import locks as module
from penstock.client.aio.assigned import Assigned
from penstock.client.aio.locks import LIFE_S, MemberLocks
from penstock.client.subscriptions import Subscription
from penstock.wire.codes import RequestCode
from penstock.wire.fastjson import dumps
from penstock.wire.remoting import RemotingCommand

LOCK = RequestCode.LOCK_BATCH_MQ
OTHER = QUEUE._replace(queue_id=1)


async def test_what_the_broker_grants_is_ours() -> None:
    async with scripted() as script:
        script.replies[LOCK] = lambda command: command.reply(body=dumps({"lockOKMQSet": [OTHER.as_json()]}))
        locks = MemberLocks(script.cluster, "G")
        assert set(await locks.lock([QUEUE, OTHER])) == {OTHER}
        (asked,) = script.asked
        assert body(asked)["consumerGroup"] == "G"
        assert body(asked)["clientId"] == script.cluster.client_id
        assert len(body(asked)["mqSet"]) == 2
        await locks.unlock(OTHER)
        assert script.codes() == [LOCK, RequestCode.UNLOCK_BATCH_MQ]


async def test_a_fresh_lock_is_trusted_and_an_old_one_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AGAIN_S", 0.001)
    async with scripted() as script:
        answers = iter([[], [], [QUEUE.as_json()]])
        script.replies[LOCK] = lambda command: command.reply(body=dumps({"lockOKMQSet": next(answers)}))
        locks, assigned = MemberLocks(script.cluster, "G"), Assigned(QUEUE, Subscription("T"), 0)
        await locks.wait(assigned)
        assert script.asked == []
        assigned.locked_s -= LIFE_S + 1
        await asyncio.wait_for(locks.wait(assigned), 20)
        assert script.codes() == [LOCK] * 3
        assigned.locked_s -= LIFE_S + 1
        assigned.stop()
        await locks.wait(assigned)  # nobody waits for a queue that is dropped
        assert len(script.asked) == 3


async def test_a_lock_counts_from_when_it_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever was held up between the question and its answer has a lock that the broker may have given to another."""
    monkeypatch.setattr(module, "LIFE_S", 1.0)
    loop = asyncio.get_running_loop()
    time, ahead = loop.time, 0.0
    monkeypatch.setattr(loop, "time", lambda: time() + ahead)

    def late(command: RemotingCommand) -> RemotingCommand:
        nonlocal ahead
        ahead += 2.0 if len(script.asked) == 1 else 0.0
        return command.reply(body=dumps({"lockOKMQSet": body(command)["mqSet"]}))

    async with scripted() as script:
        script.replies[LOCK] = late
        locks, assigned = MemberLocks(script.cluster, "G"), Assigned(QUEUE, Subscription("T"), 0)
        assigned.locked_s -= 2.0
        await asyncio.wait_for(locks.wait(assigned), 60)
        assert script.codes() == [LOCK] * 2  # the first answer is no lock any more
        assert locks.surely_until_s(assigned) > loop.time()
