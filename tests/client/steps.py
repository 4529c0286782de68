"""Steps that several tests of the client take."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any

from penstock.aio import Producer
from penstock.message import Message
from penstock.wire.codes import RequestCode
from penstock.wire.remoting import CommandParser, RemotingCommand, encode

ARRIVES_S = 0.01  # within it, what was written is there at the other end

Answer = Callable[[RemotingCommand, asyncio.StreamWriter], Awaitable[None]]


async def send(registry: str, topic: str, *bodies: bytes, **more: Any) -> None:
    async with Producer(registry) as producer:
        for body in bodies:
            await producer.send(Message(topic, body, **more))


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % i for i in range(start, start + count)]


@asynccontextmanager
async def peer(answer: Answer) -> AsyncIterator[str]:
    """A server that hands every command it gets to `answer`."""
    writers: list[asyncio.StreamWriter] = []
    conversations: list[asyncio.Task[None] | None] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        conversations.append(asyncio.current_task())
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
        for task in filter(None, conversations):
            await asyncio.wait([task], timeout=20)


@contextmanager
def idle_time() -> Iterator[None]:
    """The clock of this event loop goes on only while nothing happens in it: that the machine was busy, or stood still, ends
    no wait. What is waited for in vain is over at once.
    """
    loop: Any = asyncio.get_running_loop()
    now_s, select = loop.time(), loop._selector.select

    def patient(timeout_s: float | None) -> Any:
        nonlocal now_s
        found = select(None if timeout_s is None else min(timeout_s, ARRIVES_S))
        if not found and timeout_s is not None:
            now_s += timeout_s
        return found

    loop.time, loop._selector.select = lambda: now_s, patient
    try:
        yield
    finally:
        del loop.time, loop._selector.select


@asynccontextmanager
async def mute(*names: str) -> AsyncIterator[tuple[str, list[str]]]:
    """Name servers that hear and say nothing, in idle time: their addresses, and which was asked, in order."""
    asked: list[str] = []

    def silent(name: str) -> Answer:
        async def answer(command: RemotingCommand, writer: asyncio.StreamWriter) -> None:
            if command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
                asked.append(name)

        return answer

    async with AsyncExitStack() as stack:
        stack.enter_context(idle_time())
        yield ";".join([await stack.enter_async_context(peer(silent(name))) for name in names]), asked


async def echo(command: RemotingCommand, writer: asyncio.StreamWriter) -> None:
    if not command.response:
        writer.write(encode(command.reply(0, {"code": str(command.code)}, command.body)))
