"""`client.aio.connection` and `cluster` against a peer that does what we want it to, through our own codec."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from penstock.client.aio.cluster import Cluster
from penstock.client.aio.connection import Connection
from penstock.errors import BrokerRefused, Closed, ConnectionLost, TimedOut, WireError
from penstock.wire.remoting import FLAG_ONEWAY, CommandParser, RemotingCommand, encode

Answer = Callable[[RemotingCommand, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def peer(answer: Answer) -> AsyncIterator[str]:
    """A server that hands every command it gets to `answer`."""
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        parser = CommandParser()
        while data := await reader.read(65_536):
            for command in parser.feed(data):
                await answer(command, writer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for writer in writers:
            writer.close()
        await server.wait_closed()


async def echo(command: RemotingCommand, writer: asyncio.StreamWriter) -> None:
    if not command.response:
        writer.write(encode(command.reply(0, {"code": str(command.code)}, command.body)))


def ignore(connection: Connection, command: RemotingCommand) -> None:
    return None


async def test_answers_find_their_requests() -> None:
    async def backwards(command: RemotingCommand, writer: asyncio.StreamWriter) -> None:
        held.append(command)
        if len(held) == 20:
            for late in reversed(held):
                await echo(late, writer)

    held: list[RemotingCommand] = []
    async with peer(backwards) as address:
        connection = await Connection.open(address, 1, ignore)
        answers = await asyncio.gather(*(connection.call(RemotingCommand(i), 2) for i in range(20)))
        assert [answer.ext["code"] for answer in answers] == [str(i) for i in range(20)]
        connection.close()


async def test_a_late_answer_is_dropped() -> None:
    async def slow_first(command: RemotingCommand, writer: asyncio.StreamWriter) -> None:
        if command.code == 1:
            await asyncio.sleep(0.2)
        await echo(command, writer)

    async with peer(slow_first) as address:
        connection = await Connection.open(address, 1, ignore)
        with pytest.raises(TimedOut):
            await connection.call(RemotingCommand(1), 0.05)
        assert (await connection.call(RemotingCommand(2), 2)).ext["code"] == "2"
        connection.close()


@pytest.mark.parametrize("bad", [b"\0\0\0\1", b"HTTP/1.1 400 Bad Request\r\n\r\n", b""])
async def test_a_peer_that_breaks_the_protocol_or_leaves(bad: bytes) -> None:
    async def misbehave(command: RemotingCommand, writer: asyncio.StreamWriter) -> None:
        writer.write(bad)
        if not bad:
            writer.close()

    async with peer(misbehave) as address:
        connection = await Connection.open(address, 1, ignore)
        with pytest.raises(ConnectionLost):
            await connection.call(RemotingCommand(1), 2)
        assert connection.closed
        with pytest.raises(ConnectionLost):
            connection.send(RemotingCommand(1))


async def test_requests_that_the_peer_starts() -> None:
    got: list[RemotingCommand] = []
    all_there = asyncio.Event()

    async def ask_back(command: RemotingCommand, writer: asyncio.StreamWriter) -> None:
        if command.response:
            got.append(command)
            if len(got) == 3:
                all_there.set()
            return
        for code, flag in ((40, FLAG_ONEWAY), (999, FLAG_ONEWAY), (40, 0), (999, 0), (41, 0)):
            writer.write(encode(RemotingCommand(code, opaque=code, flag=flag)))
        await echo(command, writer)

    async def known(command: RemotingCommand) -> RemotingCommand:
        return command.reply(0, {"done": "yes"})

    async def broken(command: RemotingCommand) -> RemotingCommand:
        raise WireError("no")

    async with peer(ask_back) as address:
        cluster = Cluster(address, handlers={40: known, 41: broken})
        await cluster.start()
        await cluster.call(address, RemotingCommand(1))
        await asyncio.wait_for(all_there.wait(), 5)
        await cluster.close()
    assert {(c.opaque, c.code) for c in got} == {(40, 0), (999, 3), (41, 1)}


async def test_a_heartbeat_comes_first_on_a_broker_connection() -> None:
    codes: list[int] = []

    async def note(command: RemotingCommand, writer: asyncio.StreamWriter) -> None:
        codes.append(command.code)
        await echo(command, writer)

    async with peer(echo) as registry, peer(note) as broker:
        cluster = Cluster(registry, heartbeat=lambda: {"producerDataSet": [{"groupName": "P"}]})
        await cluster.start()
        await cluster.call(broker, RemotingCommand(10))
        await cluster.close()
        with pytest.raises(Closed):
            await cluster.connection(broker)
    assert codes == [34, 10]


async def test_refusals() -> None:
    async def refuse(command: RemotingCommand, writer: asyncio.StreamWriter) -> None:
        writer.write(encode(command.reply(16, remark="no")))

    async with peer(refuse) as address:
        cluster = Cluster(address)
        await cluster.start()
        with pytest.raises(BrokerRefused) as caught:
            await cluster.ask_registry(RemotingCommand(206))
        assert (caught.value.code, caught.value.remark, caught.value.retryable) == (16, "no", False)
        await cluster.close()
