"""`client.aio.admingroups` against a real broker, and against one that says less than ours."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from client.scripted import Scripted
from client.steps import peer
from penstock.aio import Producer, PullConsumer
from penstock.client.aio.admin import Admin
from penstock.client.aio.admingroups import GroupStats, OffsetMove
from penstock.client.routes import MessageQueue
from penstock.errors import BrokerRefused, NotFound
from penstock.message import Message
from penstock.wire.codes import RequestCode, ResponseCode
from penstock.wire.fastjson import dumps

Fresh = Callable[[str], str]


async def test_a_group_is_looked_at_moved_and_forgotten(registry: str, fresh: Fresh) -> None:
    topic, group = fresh("groups"), fresh("g")
    async with (
        Producer(registry) as producer,
        Admin(registry) as admin,
        PullConsumer(registry, group=group) as consumer,
    ):
        receipts = [await producer.send(Message(topic, b"x", sharding_key="k")) for _ in range(3)]
        queue = receipts[0].queue
        await consumer.commit({queue: 1})
        stats = (await admin.all_group_stats())[group][queue]
        assert stats[:3] == (3, 1, 2)
        assert stats.lag_ms is not None
        assert await admin.group_members(group) == []
        assert await admin.group_subscriptions(group) == {}
        assert await admin.member_counts([group]) == {group: 0}
        assert (await admin.plan_reset(group, topic, "last"))[queue] == OffsetMove(1, 3)
        assert (await admin.plan_reset(group, topic, offset=2))[queue] == OffsetMove(1, 2)
        assert (await admin.set_offset(group, topic, 2))[queue] == 2
        assert (await admin.group_stats(group, topic))[queue].lag == 1
        await admin.check_offline(group)
        await admin.delete_group(group)
        with pytest.raises(NotFound):
            await admin.set_offset(group, topic, 2)
        assert group not in await admin.groups()


async def test_a_broker_that_does_not_say_the_lag_in_time() -> None:
    script = Scripted()
    table = [[MessageQueue("t", "a", 0).as_json(), {"brokerOffset": 5, "consumerOffset": 3}]]
    body = {"consumeStatsList": [{"g": [{"offsetTable": table}]}]}
    script.replies[RequestCode.GET_BROKER_CONSUME_STATS] = lambda command: command.reply(body=dumps(body))
    script.replies[RequestCode.GET_CONSUMER_CONNECTION_LIST] = lambda command: command.reply(
        ResponseCode.NO_PERMISSION, remark="no"
    )
    async with peer(script.answer) as address, Admin(address) as admin:
        assert await admin.all_group_stats() == {"g": {MessageQueue("t", "a", 0): GroupStats(5, 3, 2, None)}}
        with pytest.raises(BrokerRefused):
            await admin.group_members("g")
