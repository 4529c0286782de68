"""`client.aio.connection` against a peer that does what we want it to, through our own codec."""

import asyncio

import pytest

from client.steps import echo, peer
from penstock.client.aio.connection import Connection, unreachable
from penstock.errors import ConnectionLost, NotConnected, TimedOut
from penstock.wire.remoting import RemotingCommand


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
    late: list[RemotingCommand] = []

    async def slow_first(command: RemotingCommand, writer: asyncio.StreamWriter) -> None:
        late.append(command)
        if command.code == 2:
            for one in late:
                await echo(one, writer)

    async with peer(slow_first) as address:
        connection = await Connection.open(address, 1, ignore)
        with pytest.raises(TimedOut):
            await connection.call(RemotingCommand(1), 0.02)
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


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (TimeoutError(), "timed out"),
        (ConnectionResetError(), "the other side has closed it"),
        (OSError(111, "Connection refused"), "[Errno 111] Connection refused"),
    ],
)
def test_no_connection_is_without_a_reason(error: OSError, why: str) -> None:
    """asyncio has no words for two of them, and an error is never false."""
    assert str(unreachable("there:1", error)) == f"cannot connect to there:1: {why}"


async def test_nothing_more_is_written_to_a_peer_that_takes_nothing() -> None:
    """What had no answer in time stayed in memory, with every further request, as long as the broker was stopped."""
    wakes = asyncio.Event()

    async def sleeps(command: RemotingCommand, writer: asyncio.StreamWriter) -> None:
        await wakes.wait()
        await echo(command, writer)

    async with peer(sleeps) as address:
        connection = await Connection.open(address, 20, ignore)
        transport = connection._transport
        assert transport is not None
        waiting = []
        while transport.get_write_buffer_size() < 8 << 20:  # more than any system takes for it
            waiting.append(connection.request(RemotingCommand(1, body=bytes(1 << 20))))
            await asyncio.sleep(0)
        kept = transport.get_write_buffer_size()
        for _ in range(3):
            with pytest.raises(TimedOut, match="did not take request 2 within"):
                await connection.call(RemotingCommand(2, body=bytes(1 << 20), opaque=1), 0.02)
        assert transport.get_write_buffer_size() <= kept
        wakes.set()
        assert (await connection.call(RemotingCommand(3), 60)).ext["code"] == "3"
        assert {answer.ext["code"] for answer in await asyncio.gather(*waiting)} == {"1"}
        connection.close()


async def test_a_connection_that_ends_is_waited_for_no_longer() -> None:
    wakes = asyncio.Event()

    async def sleeps(command: RemotingCommand, writer: asyncio.StreamWriter) -> None:
        await wakes.wait()

    async with peer(sleeps) as address:
        connection = await Connection.open(address, 20, ignore)
        transport = connection._transport
        assert transport is not None
        while transport.get_write_buffer_size() < 8 << 20:
            connection.request(RemotingCommand(1, body=bytes(1 << 20)))
            await asyncio.sleep(0)
        waits = asyncio.create_task(connection.call(RemotingCommand(2), 60))
        await asyncio.sleep(0)
        connection.close()
        with pytest.raises(NotConnected):
            await waits
        wakes.set()
