"""`doubts`: a master that is cut off says nothing, and closes nothing; the registry knows who has its place."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import pytest

import penstock
from client.steps import idle_time, peer
from penstock.aio import Producer
from penstock.client.aio.doubts import DOUBT_S, Owing
from penstock.client.line import LOOK_S
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


@pytest.mark.parametrize("batch", [False, True])
async def test_a_send_of_a_thread_goes_there_too(batch: bool) -> None:
    """While it waits at a socket of its own the registry is asked, too; the next send goes there at once."""
    async with replaced() as made:
        producer = penstock.Producer(made.registry, send_timeout_s=60)
        await asyncio.to_thread(producer.start)
        try:
            await asyncio.to_thread(producer.send, Message("T", b"before"))
            made.alive[0] = False
            made.names = 1
            if batch:
                await asyncio.to_thread(producer.send_batch, [Message("T", b"cut"), Message("T", b"off")])
            else:
                await asyncio.to_thread(producer.send, Message("T", b"cut off"))
            assert made.sends == [2, 1]
            await asyncio.to_thread(producer.send, Message("T", b"next"))
            assert made.sends == [2, 2]
        finally:
            await asyncio.to_thread(producer.close)


async def interrupted(call: Callable[[], object]) -> None:
    """Do it in a thread that a signal reaches again and again, as it is where a process is stopped and goes on: whatever waits
    with a time of its own in the system is ended before that is over.
    """
    threads: list[int] = []

    def work() -> None:
        threads.append(threading.get_ident())
        call()

    former = signal.signal(signal.SIGUSR1, lambda number, frame: None)
    try:
        working = asyncio.create_task(asyncio.to_thread(work))
        while not working.done():
            if threads:
                signal.pthread_kill(threads[0], signal.SIGUSR1)
            await asyncio.sleep(LOOK_S / 10)
        await working
    finally:
        signal.signal(signal.SIGUSR1, former)


@pytest.mark.parametrize("kind", ["one", "batch", "queue"])
async def test_signals_do_not_put_off_the_question(kind: str) -> None:
    """A process that was stopped and went on every few milliseconds waited at its socket until the time of the send was over."""
    async with publishing() if kind == "queue" else replaced() as found:
        made = found[0] if isinstance(found, tuple) else found
        producer = penstock.Producer(made.registry, kind="queue" if kind == "queue" else "log", send_timeout_s=60)
        await asyncio.to_thread(producer.start)
        try:
            if kind == "queue":
                await asyncio.to_thread(producer.queues, "T")
            else:
                await asyncio.to_thread(producer.send, Message("T", b"before"))
                made.alive[0] = False
            made.names = 1
            messages = [Message("T", b"cut"), Message("T", b"off")]
            if kind == "batch":
                await interrupted(lambda: producer.send_batch(messages))
            else:
                await interrupted(lambda: producer.send(messages[0]))
            assert made.sends[1] == 1 or (isinstance(found, tuple) and found[1] == [1, 1])
        finally:
            await asyncio.to_thread(producer.close)


async def test_a_thread_waits_for_one_that_is_the_master_still() -> None:
    async with replaced() as made:
        producer = penstock.Producer(made.registry)
        await asyncio.to_thread(producer.start)
        try:
            await asyncio.to_thread(producer.send, Message("T", b"before"))
            made.alive[0], asked = False, made.asked
            with pytest.raises(TimedOut):
                await asyncio.to_thread(producer.send, Message("T", b"slow"), timeout_s=4 * LOOK_S)
            assert made.asked > asked
            assert made.sends == [2, 0]
        finally:
            await asyncio.to_thread(producer.close)


async def test_a_thread_that_had_no_answer_goes_elsewhere_next() -> None:
    """Its time was over before the registry was asked; the send behind it goes to the other at once."""
    async with replaced() as made:
        producer = penstock.Producer(made.registry, send_timeout_s=2)
        await asyncio.to_thread(producer.start)
        try:
            await asyncio.to_thread(producer.send, Message("T", b"before"), timeout_s=60.0)
            made.alive[0] = False
            made.names = 1
            with pytest.raises(TimedOut):
                await asyncio.to_thread(producer.send, Message("T", b"cut off"), timeout_s=LOOK_S / 2)
            await asyncio.to_thread(producer.send, Message("T", b"next"), timeout_s=60.0)
            assert made.sends == [2, 1]
        finally:
            await asyncio.to_thread(producer.close)


@asynccontextmanager
async def publishing() -> AsyncIterator[tuple[Set, list[int]]]:
    """A registry and two NSQ brokers of a queue topic: the first says who it is and answers no publish. How many each got."""
    made, published = Set(), [0, 0]

    async def serve(number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            published[number] += data.count(b"PUB T\n")
            if b"IDENTIFY" in data:
                writer.write(bytes([0, 0, 0, 6, 0, 0, 0, 0]) + b"{}")
            elif number:
                writer.write(bytes([0, 0, 0, 6, 0, 0, 0, 0]) + b"OK")
        writer.close()

    async def name(command: RemotingCommand, writer: asyncio.StreamWriter) -> None:
        nsq = {"kind": "queue", "nsq": {"a": made.brokers[made.names]}}
        asked = command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC
        if not command.oneway:
            writer.write(encode(command.reply(body=dumps(nsq)) if asked else command.reply()))

    async with AsyncExitStack() as stack:
        for number in range(2):
            server = await stack.enter_async_context(await asyncio.start_server(partial(serve, number), "127.0.0.1", 0))
            made.brokers.append(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
        made.registry = await stack.enter_async_context(peer(name))
        yield made, published


@pytest.mark.parametrize("thread", [False, True])
async def test_a_publish_goes_elsewhere_too(thread: bool) -> None:
    async with publishing() as (made, published), Producer(made.registry, kind="queue", send_timeout_s=60) as producer:
        other = penstock.Producer(made.registry, kind="queue", send_timeout_s=60)
        await asyncio.to_thread(other.start)
        try:
            await asyncio.to_thread(other.queues, "T")  # from now on a thread needs no loop
            sending = asyncio.create_task(
                asyncio.to_thread(other.send, Message("T", b"x")) if thread else producer.send(Message("T", b"x"))
            )
            while not (published[0] or sending.done()):
                await asyncio.sleep(0.01)
            made.names = 1
            await sending
            assert published == [1, 1]
        finally:
            await asyncio.to_thread(other.close)


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
