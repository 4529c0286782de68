"""`client.aio.nsqconnection` against a peer that answers as it is told."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from penstock.client import nsqframes
from penstock.client.aio import nsqconnection
from penstock.client.aio.nsqconnection import NsqConnection
from penstock.errors import BrokerRefused, ConnectionLost, TimedOut
from penstock.message import ReceivedMessage
from penstock.wire.nsq import ERROR, HEARTBEAT_FRAME, MESSAGE, OK_FRAME, RESPONSE, frame, message_data

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
WELCOME = frame(RESPONSE, json.dumps({"msg_timeout": 3_000, "max_rdy_count": 7}).encode())


@asynccontextmanager
async def peer(talk: Talk, welcome: bytes = WELCOME) -> AsyncIterator[str]:
    """An address where `talk` answers, after the introduction."""
    left = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(4 + len(b"IDENTIFY\n"))
        await reader.readexactly(int.from_bytes(await reader.readexactly(4)))
        writer.write(welcome)
        try:
            await talk(reader, writer)
            await reader.read()
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()
            left.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        await asyncio.wait_for(left.wait(), 5)


async def test_introduction_heartbeat_and_messages() -> None:
    answered = asyncio.Event()
    got: list[ReceivedMessage] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEARTBEAT_FRAME + frame(MESSAGE, message_data(1, 2, 3, b"x")))
        if await reader.readexactly(4) == b"NOP\n":
            answered.set()

    async with peer(talk) as address:
        connection = await NsqConnection.open(address, 5, lambda connection, messages: got.extend(messages))
        assert (connection.msg_timeout_s, connection.ready_max) == (3.0, 7)
        await asyncio.wait_for(answered.wait(), 5)
        assert [(m.nsq_id, m.attempts, m.body) for m in got] == [("0000000000000003", 2, b"x")]
        connection.close()
        with pytest.raises(ConnectionLost):
            connection.send(b"NOP\n")


async def test_answers_find_their_commands() -> None:
    """Errors about messages answer nothing; an answer that comes too late is dropped with its command."""
    late = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(len(nsqframes.publish("t", [b"1"])))
        await late.wait()
        writer.write(frame(ERROR, b"E_FIN_FAILED FIN 3 failed ID not in flight") + OK_FRAME)
        for answer in (
            frame(RESPONSE, b"second"),
            frame(ERROR, b"E_PUB_FAILED PUB failed full"),
            frame(ERROR, b"E_BAD_TOPIC"),
        ):
            await reader.readexactly(len(nsqframes.publish("t", [b"1"])))
            writer.write(answer)

    async with peer(talk) as address:
        connection = await NsqConnection.open(address, 5)
        with pytest.raises(TimedOut):
            await connection.call(nsqframes.publish("t", [b"1"]), 0.01)
        late.set()
        assert await connection.call(nsqframes.publish("t", [b"2"]), 5) == b"second"
        with pytest.raises(BrokerRefused, match="full") as full:
            await connection.call(nsqframes.publish("t", [b"3"]), 5)
        with pytest.raises(BrokerRefused) as bad:
            await connection.call(nsqframes.publish("t", [b"4"]), 5)
        assert (full.value.code, full.value.retryable, bad.value.code, bad.value.retryable) == (14, True, 13, False)
        connection.close()


async def test_a_lost_connection_fails_what_waits() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.transport.abort()

    async with peer(talk) as address:
        connection = await NsqConnection.open(address, 5)
        waiting = [connection.request(nsqframes.publish("t", [b"1"])) for _ in range(2)]
        for future in waiting:
            with pytest.raises(ConnectionLost):
                await future
        await asyncio.wait_for(connection.lost.wait(), 60)
        assert connection.closed


async def test_nothing_more_is_written_to_a_broker_that_takes_nothing() -> None:
    wakes = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await wakes.wait()
        while (await reader.readexactly(4)) != b"END\n":
            await reader.readexactly(1 << 20)
        writer.write(OK_FRAME)

    async with peer(talk) as address:
        connection = await NsqConnection.open(address, 20)
        transport = connection._transport
        assert transport is not None
        while transport.get_write_buffer_size() < 8 << 20:  # more than any system takes for it
            connection.send(b"PUB\n" + bytes(1 << 20))
            await asyncio.sleep(0)
        kept = transport.get_write_buffer_size()
        for _ in range(3):
            with pytest.raises(TimedOut, match="did not take a command within"):
                await connection.call(bytes(1 << 20), 0.02)
        assert transport.get_write_buffer_size() <= kept
        wakes.set()
        assert await connection.call(b"END\n", 60) == b"OK"
        connection.close()


async def test_a_silent_broker_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nsqconnection, "SILENT_S", 0.05)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Says nothing, and stays."""

    async with peer(talk) as address:
        connection = await NsqConnection.open(address, 5)
        await asyncio.wait_for(connection.lost.wait(), 60)


async def test_bytes_that_are_no_frames_end_it() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request")

    async with peer(talk) as address:
        connection = await NsqConnection.open(address, 5)
        await asyncio.wait_for(connection.lost.wait(), 60)


async def test_nobody_and_somebody_else() -> None:
    with pytest.raises(ConnectionLost):
        await NsqConnection.open("127.0.0.1:1", 5)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Has said enough."""

    async with peer(talk, OK_FRAME) as address:
        with pytest.raises(ConnectionLost, match="does not speak"):
            await NsqConnection.open(address, 5)
