"""The console's process: a bound socket, uvicorn, and an end when its parent's does."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from socket import socket

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from penstock.client.routes import split_addresses
from penstock.console.app import Console
from penstock.console.cluster import Brokers
from penstock.console.guard import Guard
from penstock.console.pages import Site
from penstock.console.upstream import Upstream
from penstock.listeners import address_of, bind
from penstock.security import Security

BROKER = "http://127.0.0.1:4151"
NICE = 10  # a broker that shares the cores goes first
REACHED = "Bind to 127.0.0.1, with a proxy before it that asks who one is, or say --insecure if that is what you want."
PATIENCE_S = 10.0  # so long a request may take to arrive, and the first one to begin
HEAD_BYTES_MAX = 32 << 10
PIPELINED_MAX = 16  # requests that wait behind one


@dataclass(frozen=True)
class Settings:
    """How a console is started."""

    broker: str = BROKER  # several with commas between; none: all that the registry knows
    registry: str = "127.0.0.1:9876"
    host: str = "127.0.0.1"
    port: int = 4171
    allow_changes: bool = False
    insecure: bool = False
    allowed_hosts: Iterable[str] = ()
    ends_with_input: bool = False


def console_of(settings: Settings, security: Security) -> Console:
    """A console, without a socket. ConfigError, ValueError for what is no address of a broker or a registry."""
    split_addresses(settings.registry)  # a wrong one is said now, and not by every page
    addresses = [part.strip() for part in settings.broker.split(",") if part.strip()]
    upstream = Upstream(addresses[0] if addresses else BROKER, security)
    site = Site(upstream, settings.registry, security, settings.allow_changes)
    for address in addresses:  # a wrong one is said now
        Upstream(address, security)
    brokers = None if len(addresses) == 1 else Brokers(site, addresses)
    return Console(site, Guard(settings.allowed_hosts), brokers)


def run(settings: Settings, security: Security) -> None:
    """Run until SIGTERM or SIGINT, or the end of standard input where that was asked for. ConfigError for the port."""
    flag = "--port (of `penstock up`: --console-port)"
    console = console_of(settings, security)
    listener = bind(settings.host, settings.port, settings.insecure, flag, REACHED)
    listener.listen()  # whoever reads the line may connect
    yield_to_others()
    server = Stoppable(config_of(console), console.end_streams)
    if settings.ends_with_input:
        threading.Thread(target=_wait_for_end, args=(server,), daemon=True).start()
    print("ready", json.dumps({"console": address_of(listener), "pid": os.getpid()}), flush=True)
    try:
        server.run(sockets=[listener])
    except KeyboardInterrupt:  # uvicorn raises the signal again, once all is closed
        sys.exit(0)


def config_of(console: Console) -> uvicorn.Config:
    """How uvicorn serves it."""
    return uvicorn.Config(
        console.app(), http=Patient, log_config=None, access_log=False, server_header=False, lifespan="off", ws="none",
        proxy_headers=False, timeout_graceful_shutdown=1,
    )  # fmt: skip


class Patient(HttpToolsProtocol):
    """A connection, within limits that uvicorn has none of: it ends when a request is too long on its way, its head has too
    many bytes, or too many wait behind one.
    """

    _late: asyncio.TimerHandle | None = None
    _in_head = True
    _head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._arrived()
        super().connection_lost(exc)

    def _wait(self) -> None:
        if self._late is None:
            self._late = self.loop.call_later(PATIENCE_S, self.transport.close)

    def _arrived(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def data_received(self, data: bytes) -> None:
        self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > HEAD_BYTES_MAX:
            self.transport.close()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._wait()

    def on_headers_complete(self) -> None:
        if len(self.pipeline) >= PIPELINED_MAX:
            raise ValueError("the answers come first")  # the parser ends with it, and uvicorn the connection
        super().on_headers_complete()
        self._in_head = False

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._in_head = True
        self._head_bytes = 0
        self._arrived()


def yield_to_others() -> None:
    """Pages are drawn when nobody else wants the core: drawing must not slow down the broker beside."""
    with suppress(OSError):  # somebody has given this process another priority, for good
        os.setpriority(os.PRIO_PROCESS, 0, max(NICE, os.getpriority(os.PRIO_PROCESS, 0)))


class Stoppable(uvicorn.Server):
    """A server that another thread may end, and whose endless answers end with it."""

    def __init__(self, config: uvicorn.Config, ending: Callable[[], None]) -> None:
        super().__init__(config)
        self._ending = ending

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        """Let go of everybody."""
        self._ending()
        await super().shutdown(sockets)

    def stop(self) -> None:
        """At the next look, which is soon."""
        self.should_exit = True


def _wait_for_end(server: Stoppable) -> None:
    while os.read(0, 1 << 12):
        pass
    server.stop()
