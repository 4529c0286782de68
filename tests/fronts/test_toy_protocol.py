"""A protocol of one's own needs its own file and one registration: it publishes, consumes and acknowledges."""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fronts.nsq_peer import NsqPeer, sized
from fronts.toy import ToyFront
from penstock.embedded import Broker
from penstock.listeners import bind

WITHIN_S = 30


class Peer:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def line(self) -> bytes:
        return (await asyncio.wait_for(self.reader.readline(), WITHIN_S)).rstrip(b"\n")

    async def ask(self, line: bytes) -> bytes:
        self.writer.write(line + b"\n")
        return await self.line()


def get(url: str) -> tuple[int, bytes]:
    with urllib.request.urlopen(url, timeout=WITHIN_S) as answer:
        return answer.status, answer.read()


@asynccontextmanager
async def toys(folder: Path, **settings: object) -> AsyncIterator[tuple[Broker, str, int]]:
    async with Broker(folder, mapped_file_size_commit_log=1 << 20, **settings) as server:
        front = ToyFront(server.broker)
        server.add_front(front)
        listener = bind("127.0.0.1", 0, False, "--toy-port")
        await server.net.listen(listener, front.session, front.name)
        yield server, *listener.getsockname()


@pytest.mark.parametrize("level", ["os", "disk"])
@pytest.mark.parametrize("kind", ["queue", "log"])
async def test_it_publishes_consumes_and_acknowledges(tmp_path: Path, kind: str, level: str) -> None:
    async with toys(tmp_path, level=level) as (server, host, port):
        if kind == "log":
            server.broker.topics.create(b"jobs", 2, 2, 6)
        one, other = Peer(*await asyncio.open_connection(host, port)), Peer(*await asyncio.open_connection(host, port))
        assert await one.ask(b"READ jobs work") == b"OK"
        for text in (b"first", b"second of two"):
            assert await other.ask(b"PUT jobs " + text) == b"OK"
        seen = []
        for _ in range(2):
            message, number, attempts, text = (await one.line()).split(b" ", 3)
            assert (message, attempts) == (b"MSG", b"1")
            seen.append(text)
            one.writer.write(b"DONE " + number + b"\n")
            assert await one.line() == b"OK"  # before the next message
            assert await other.ask(b"DONE " + number) == b"NO READ first"
        assert sorted(seen) == [b"first", b"second of two"]
        assert (await one.ask(b"DONE 12345")) == b"NO such message"
        assert (await one.ask(b"WHAT")).startswith(b"NO")
        channel = server.broker.queueing.find(b"jobs").channels[b"work"]
        assert (channel.depth(), channel.in_flight_count, channel.finish_count) == (0, 0, 2)
        one.writer.close()
        other.writer.close()


async def test_a_message_of_one_protocol_is_read_in_another(tmp_path: Path) -> None:
    async with toys(tmp_path) as (server, host, port):
        toy = Peer(*await asyncio.open_connection(host, port))
        assert await toy.ask(b"READ jobs work") == b"OK"
        nsq = await asyncio.to_thread(NsqPeer, server.nsq)
        assert await asyncio.to_thread(nsq.ask, b"PUB jobs\n" + sized(b"from NSQ")) == b"OK"
        assert (await toy.line()).endswith(b" 1 from NSQ")
        for form in ("text", "json"):
            status, body = await asyncio.to_thread(get, f"http://{server.http}/stats?format={form}")
            assert status == 200
            assert b"work" in body
        nsq.close()
        toy.writer.close()
