"""`client.aio.control`: what the admin tools ask of a running consumer, through the broker."""

import asyncio
from collections.abc import Callable

from client.steps import numbered, send
from penstock.aio import PushConsumer
from penstock.client.aio.cluster import Cluster
from penstock.client.aio.control import Control
from penstock.message import ReceivedMessage
from penstock.wire.fastjson import loads
from penstock.wire.remoting import RemotingCommand
from polling import until

Fresh = Callable[[str], str]


async def ask(cluster, code: int, **ext: str) -> RemotingCommand:  # type: ignore[no-untyped-def]
    tool = Cluster(cluster.registry)
    await tool.start()
    try:
        return await tool.call(cluster.broker, RemotingCommand(code, ext))
    finally:
        await tool.close()


async def test_positions_and_a_look_inside(cluster, fresh: Fresh) -> None:  # type: ignore[no-untyped-def]
    topic, group = fresh("look"), fresh("g")
    got: list[ReceivedMessage] = []
    await send(cluster.registry, topic, *numbered(8))
    async with PushConsumer(group, cluster.registry, listener=got.append, start="first") as consumer:
        await consumer.subscribe(topic)
        await until(lambda: len(got) == 8)
        info = loads((await ask(cluster, 307, consumerGroup=group, clientId=consumer.client_id)).body)
        assert {s["topic"] for s in info["subscriptionSet"]} == {topic, f"%RETRY%{group}"}
        table = [(queue, state["commitOffset"]) for queue, state in info["mqTable"] if queue["topic"] == topic]
        assert sum(offset for _, offset in table) == 8
        control = consumer._control
        assert isinstance(control, Control)
        status = loads((await control.status(RemotingCommand(221, {"topic": topic}))).body)
        assert sum(offset for _, offset in status["messageQueueTable"]) == 8


async def test_one_message_directly(cluster, fresh: Fresh) -> None:  # type: ignore[no-untyped-def]
    topic, group = fresh("direct"), fresh("g")
    got: list[ReceivedMessage] = []

    def listener(message: ReceivedMessage) -> bool:
        got.append(message)
        return message.body != b"bad"

    await send(cluster.registry, topic, b"good", b"bad")
    async with PushConsumer(group, cluster.registry, listener=listener, start="first") as consumer:
        await consumer.subscribe(topic)
        await until(lambda: len(got) >= 2)
        for body, result in ((b"good", "CR_SUCCESS"), (b"bad", "CR_LATER")):
            msg_id = next(m.offset_msg_id for m in got if m.body == body)
            answer = await ask(cluster, 309, consumerGroup=group, clientId=consumer.client_id, msgId=msg_id)
            assert answer.code == 0, answer.remark
            assert loads(answer.body)["consumeResult"] == result
        assert sum(m.body == b"good" for m in got) == 2


async def test_a_client_unknown(cluster) -> None:  # type: ignore[no-untyped-def]
    assert (await ask(cluster, 307, consumerGroup="nobody", clientId="x")).code == 1
    await asyncio.sleep(0)
