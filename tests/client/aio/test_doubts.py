"""`doubts`: a master that is cut off says nothing, and closes nothing; the registry knows who has its place."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

import penstock
from client.steps import idle_time, peer
from penstock.aio import Producer
from penstock.client.aio.doubts import DOUBT_S, Owing
from penstock.client.routes import MessageQueue
from penstock.errors import TimedOut
from penstock.message import Message
from penstock.wire.codes import RequestCode
from penstock.wire.fastjson import dumps
from penstock.wire.remoting import RemotingCommand, encode

QUEUE = MessageQueue("T", "a", 0)


class Set:
    """A registry that names one of two brokers; neither answers a send unless it is `alive`."""

    def __init__(self) -> None:
        self.names = 0
        self.alive = [True, True]
        self.brokers: list[str] = []
        self.registry = ""
        self.sends = [0, 0]
        self.asked = 0

    async def name(self, command: RemotingCommand, writer: asyncio.StreamWriter) -> None:
        addresses = {"0": self.brokers[self.names]}
        if command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            self.asked += 1
            queue = {"brokerName": "a", "perm": 6, "readQueueNums": 1, "topicSysFlag": 0, "writeQueueNums": 1}
            broker = {"brokerAddrs": addresses, "brokerName": "a", "cluster": "C"}
            reply = command.reply(body=dumps({"brokerDatas": [broker], "queueDatas": [queue], "filterServerTable": {}}))
        else:
            reply = command.reply()
        if not command.oneway:
            writer.write(encode(reply))

    async def store(self, number: int, command: RemotingCommand, writer: asyncio.StreamWriter) -> None:
        if command.oneway or command.code == RequestCode.HEART_BEAT:
            return
        self.sends[number] += 1
        if self.alive[number]:
            ext = {"queueId": "0", "queueOffset": str(self.sends[number]), "msgId": f"{number:032X}"}
            writer.write(encode(command.reply(0, ext)))


@asynccontextmanager
async def replaced() -> AsyncIterator[Set]:
    made = Set()
    async with AsyncExitStack() as stack:
        for number in range(2):
            made.brokers.append(
                await stack.enter_async_context(peer(lambda c, w, number=number: made.store(number, c, w)))
            )
        made.registry = await stack.enter_async_context(peer(made.name))
        yield made


@pytest.mark.parametrize("idempotent", [False, True])
async def test_a_send_goes_to_whoever_has_the_place_of_a_silent_master(idempotent: bool) -> None:
    """Well before its time is over, and the next one at once."""
    async with replaced() as made, Producer(made.registry, idempotent=idempotent, send_timeout_s=60) as producer:
        await producer.send(Message("T", b"before"))
        made.alive[0] = False
        waiting = [asyncio.create_task(producer.send(Message("T", b"%d" % n))) for n in range(3)]
        await asyncio.sleep(0)
        made.names = 1
        begin = time.monotonic()
        await asyncio.gather(*waiting)
        assert time.monotonic() - begin < 60  # the time of the send
        assert made.sends[1] >= 1
        sends = made.sends[0]
        await producer.send(Message("T", b"next"))
        assert made.sends[0] == sends


@pytest.mark.parametrize("idempotent", [False, True])
async def test_one_that_is_the_master_still_is_waited_for(idempotent: bool) -> None:
    """However long it says nothing: nobody else has its place, and the registry is asked no more often for many sends."""
    async with AsyncExitStack() as stack:
        stack.enter_context(idle_time())
        made = await stack.enter_async_context(replaced())
        producer = await stack.enter_async_context(
            Producer(made.registry, idempotent=idempotent, send_timeout_s=2 * DOUBT_S + 1)
        )
        await producer.send(Message("T", b"before"))
        made.alive[0] = False
        asked = made.asked
        waiting = [asyncio.create_task(producer.send(Message("T", b"%d" % n))) for n in range(50)]
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert {type(result) for result in results} == {TimedOut}
        assert made.asked - asked <= 4
        assert made.sends[1] == 0
        made.alive[0] = True
        await producer.send(Message("T", b"after"))


async def test_a_thread_that_had_no_answer_goes_elsewhere_next() -> None:
    """Its own socket waits until its time is over; the send behind it does not."""
    async with replaced() as made:
        producer = penstock.Producer(made.registry, send_timeout_s=2)
        await asyncio.to_thread(producer.start)
        try:
            await asyncio.to_thread(producer.send, Message("T", b"before"), timeout_s=60.0)
            made.alive[0] = False
            made.names = 1
            with pytest.raises(TimedOut):
                await asyncio.to_thread(producer.send, Message("T", b"cut off"))
            await asyncio.to_thread(producer.send, Message("T", b"next"), timeout_s=60.0)
            assert made.sends == [2, 1]
        finally:
            await asyncio.to_thread(producer.close)


def test_what_is_owed() -> None:
    owing = Owing()
    assert not owing.is_silent()
    owing.begin(QUEUE)
    assert owing.is_silent()  # nothing came since it was asked
    owing.hear()
    assert not owing.is_silent()
    assert owing.is_silent()
    owing.begin(QUEUE)
    owing.end()
    owing.end()
    assert not owing.is_silent()
