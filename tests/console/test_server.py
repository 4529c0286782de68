"""The console as a process: its line, its pages, its end with its parent's."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from uvicorn.server import ServerState

from penstock.console import server
from penstock.console.server import HEAD_BYTES_MAX, NICE, PIPELINED_MAX, Settings, config_of, console_of, run
from penstock.errors import ConfigError
from penstock.security import PLAIN
from penstock.testing import Broker


def test_a_process_of_its_own(broker: Broker) -> None:
    command = [
        sys.executable, "-m", "penstock.cli", "console", "--broker", f"http://{broker.http}", "-n", broker.registry,
        "--port", "0", "--ends-with-input",
    ]  # fmt: skip
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        line = process.stdout.readline()
        assert line.startswith(b"ready "), line
        address = json.loads(line.removeprefix(b"ready "))["console"]
        with urllib.request.urlopen(f"http://{address}/topics") as answer:
            assert b"orders" in answer.read()
            assert "server" not in answer.headers
        process.stdin.close()
        assert process.wait(30) == 0


def test_it_is_not_opened_to_others_by_accident() -> None:
    with pytest.raises(ConfigError, match="other machines") as refused:
        run(Settings(host="0.0.0.0", port=0), PLAIN)
    assert "say --insecure " in refused.value.hint  # its own flag: it has no --set, and users are the broker's


@pytest.mark.parametrize("registry", ["host:port", "", "a:9876;b:0"])
def test_a_registry_that_is_no_address_is_told_before_anybody_can_connect(registry: str) -> None:
    """Pages that need it failed later, one by one."""
    with pytest.raises(ValueError, match=r"is not host:port|no registry address"):
        run(Settings(registry=registry, port=0), PLAIN)


def test_settings_make_a_console() -> None:
    console = console_of(Settings(broker="localhost:1", allow_changes=True, allowed_hosts=("a.example",)), PLAIN)
    assert console.site.allow_changes
    assert console.guard.host_is_ours("a.example")
    assert console.site.upstream.url == "http://localhost:1"


@pytest.mark.parametrize("end", ["input", "SIGTERM"])
def test_it_ends_at_once_with_pages_open_and_gives_way_to_others(broker: Broker, end: str) -> None:
    """A tab that is open holds nobody up, and is no error. Meanwhile a broker on the same cores goes first."""
    command = [
        sys.executable, "-m", "penstock.cli", "console", "--broker", f"http://{broker.http}", "-n", broker.registry,
        "--port", "0", "--ends-with-input",
    ]  # fmt: skip
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        address = json.loads(process.stdout.readline().removeprefix(b"ready "))["console"]
        with urllib.request.urlopen(f"http://{address}/live?of=/topics") as stream:
            assert stream.readline().startswith(b"data: ")
            assert os.getpriority(os.PRIO_PROCESS, process.pid) >= NICE
            if end == "input":
                process.stdin.close()
            else:
                process.send_signal(signal.SIGTERM)
            while stream.readline():
                pass
        told = process.stderr.read()
        process.wait(60)
    assert process.returncode in (0, -signal.SIGTERM)
    assert b'"error"' not in told
    assert b"Traceback" not in told


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection to a console, whose broker nobody asks."""
    config = config_of(console_of(Settings(broker="localhost:1"), PLAIN))
    config.load()
    loop = asyncio.get_running_loop()
    listener = await loop.create_server(lambda: config.http_protocol_class(config, ServerState(), {}), "127.0.0.1", 0)
    async with listener:
        reader, writer = await asyncio.open_connection(*listener.sockets[0].getsockname())
        yield reader, writer
        writer.close()


GET = b"GET /static/none HTTP/1.1\r\nHost: 127.0.0.1\r\n"


@pytest.mark.parametrize(
    "said",
    [b"", b"GE", GET, b"POST /do/topic-add HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\nab", GET + b"\r\n" + GET,
     GET + b"X-Long: " + b"x" * HEAD_BYTES_MAX, (GET + b"\r\n") * (2 * PIPELINED_MAX)],
    ids=["nothing", "a word", "half a head", "half a form", "half a second one", "a long head", "many"],
)  # fmt: skip
async def test_a_request_that_does_not_arrive_ends_its_connection(said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "PATIENCE_S", 0.2 if len(said) < 1_000 else 1_000.0)
    async with connected() as (reader, writer):
        writer.write(said)
        told = await asyncio.wait_for(reader.read(), 60)
        assert told.count(b"HTTP/1.1 404") <= PIPELINED_MAX + 1


async def test_a_request_that_arrives_in_pieces_is_answered() -> None:
    async with connected() as (reader, writer):
        form = b"POST /do/none HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 70000\r\n\r\n" + b"x" * 70_000
        for said in (GET + b"\r\n", form, GET + b"\r\n"):
            for at in range(0, len(said), 20_000):
                writer.write(said[at : at + 20_000])
                await writer.drain()
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"content-length:"))
            await reader.readexactly(length)
