"""The sockets of a process: reads are fed to sessions, what they want written goes out once per turn of the loop.

    buffer_updated ─▶ session.feed … (every connection that has something)    ┐ one turn
    Net.turn: role.end_turn ─▶ one write for each connection that is dirty    ┘

All connections read into one buffer: between `get_buffer` and `buffer_updated` of a read nothing else happens. Only
an incomplete frame is copied out of it, to the front of the connection's next read.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from penstock.errors import WireError

log = logging.getLogger("penstock.net")

READ_BYTES = 256 << 10
LEFT_BYTES_MAX = 64 << 10  # more than this of an incomplete frame is not moved again: the frame gets its own buffer
WRITE_BYTES_MAX = 8 << 20
SLOW_READER_MS = 30_000
FRAME_MS_MAX = 30_000
IDLE_MS = 120_000
SWEEP_MS = 5_000
TICK_MS_MAX = 1_000
BACKLOG = 1024


class Role(Protocol):
    """What a process does: a broker, a registry, or both."""

    mono_ms: int

    def update_time(self) -> None: ...
    def end_turn(self) -> None: ...
    def take_jobs(self) -> list[Any]: ...
    def tick(self) -> int: ...
    def next_due_ms(self) -> int | None: ...


class Connection(asyncio.BufferedProtocol):
    """One socket and its session."""

    __slots__ = (
        "_ending", "_filled", "_frame_ms", "_full_ms", "_large", "_left", "_net",
        "dirty", "heard_ms", "make", "remote", "session", "transport",
    )  # fmt: skip

    def __init__(self, net: Net, make: Callable[[str, Callable[[], None]], Any]) -> None:
        self._net = net
        self.make = make
        self._left = b""
        self._large: bytearray | None = None
        self._filled = 0
        self._frame_ms = 0
        self._full_ms = 0
        self._ending = False
        self.dirty = False
        self.transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        peer = transport.get_extra_info("peername") or ("127.0.0.1", 0)
        address = f"[{peer[0]}]" if ":" in peer[0] else peer[0]
        self.remote = f"{address}:{peer[1]}"
        transport.set_write_buffer_limits(high=WRITE_BYTES_MAX)
        self._net.role.update_time()
        self.heard_ms = self._net.role.mono_ms
        self.session = self.make(self.remote, self.wake)
        self._net.connections.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._net.connections.discard(self)
        self.transport = None
        self._net.role.update_time()
        self.session.lost()

    # -- reading -------------------------------------------------------------------------------------------------

    def get_buffer(self, size: int) -> memoryview:
        if self._large is not None:
            return self._large_room()
        left = len(self._left)
        if left:
            self._net.buffer[:left] = self._left
            return self._net.view[left:]
        return self._net.view

    def _large_room(self) -> memoryview:
        """Room behind what a large frame has so far; doubled when full, up to the frame's end: bytes must come first."""
        assert self._large is not None
        filled = self._filled
        if filled == len(self._large):
            self._large = self._large + bytearray(min(len(self._large), max(1, self.session.need - filled)))
        return memoryview(self._large)[filled:]

    def buffer_updated(self, size: int) -> None:
        net = self._net
        if not net.in_turn:
            net.begin_turn()
        self.heard_ms = net.role.mono_ms
        large = self._large
        if large is None:
            owner: Any = net.buffer
            total = len(self._left) + size
        else:
            owner = large
            self._filled += size
            total = self._filled
            if total < self.session.need:
                return
        try:
            used = self.session.feed(owner, total)
        except WireError as error:
            net.rejected(self.remote, error)
            data = self.session.take()
            if data and self.transport is not None:  # a last word
                self.transport.write(data)
                self._end(self.transport)
            else:
                self.close()
            return
        rest = total - used
        if rest:
            if used or not self._frame_ms:
                self._frame_ms = self.heard_ms
            if rest > LEFT_BYTES_MAX:
                self._large = bytearray(owner[used:total]) + bytearray(READ_BYTES)
                self._filled = rest
                self._left = b""
            else:
                self._left = bytes(owner[used:total])
                self._large = None
        else:
            self._frame_ms = 0
            self._left = b""
            self._large = None
        self.wake()

    def eof_received(self) -> bool:
        """The peer sends nothing more: what its session still answers is written before the end."""
        eof = getattr(self.session, "eof", None)
        if eof is not None:
            self._net.begin()
            eof()
            self.flush()
        return False

    # -- writing -------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """The session may have something to write: look at it when this turn ends."""
        if not self.dirty:
            self.dirty = True
            self._net.mark(self)

    def flush(self) -> None:
        """Write what the session has, in one call."""
        self.dirty = False
        session = self.session
        data = session.take()
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        if data and not self._ending:
            transport.write(data)
        if getattr(session, "closing", False) and not self._ending:
            self._end(transport)

    def _end(self, transport: Any) -> None:
        """The session has said its last word. The peer may be in the middle of a sentence: it is heard out, or the word
        would be lost with the reset that unread bytes cause; the next sweep closes for good.
        """
        self._ending = True
        try:
            transport.write_eof()
        except (OSError, RuntimeError, NotImplementedError):
            transport.close()

    def pause_writing(self) -> None:
        # The peer does not read its answers: take no more of its requests until it does.
        self._full_ms = self._net.role.mono_ms
        self._congested(True)
        if self.transport is not None and not self._ending:
            self.transport.pause_reading()

    def resume_writing(self) -> None:
        self._full_ms = 0
        if self.transport is not None:
            self.transport.resume_reading()
            self._congested(False)

    def _congested(self, full: bool) -> None:
        congested = getattr(self.session, "congested", None)
        if congested is not None:
            self._net.begin()
            congested(full)

    def close(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def expired(self, mono_ms: int) -> str | None:
        """Why this connection should be closed now, or None."""
        if self._ending:
            return "ended"
        if self._full_ms and mono_ms - self._full_ms > SLOW_READER_MS:
            return "it does not read its answers"
        if self._frame_ms and mono_ms - self._frame_ms > FRAME_MS_MAX:
            return "half a frame and then silence"
        if not getattr(self.session, "beats", False) and mono_ms - self.heard_ms > IDLE_MS:
            return "idle"
        return None


class Net:
    """The loop side of one role: listeners, turns, one timer, and the threads that jobs run in."""

    def __init__(self, role: Any) -> None:
        self.role: Role = role
        self.loop = asyncio.get_running_loop()
        self.buffer = bytearray(READ_BYTES)
        self.view = memoryview(self.buffer)
        self.connections: set[Connection] = set()
        self.in_turn = False
        self._dirty: list[Connection] = []
        self._servers: list[asyncio.AbstractServer] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._sweep_ms = 0
        # One thread flushes, another does what may take long (allocating segments, writing tables).
        self._flush_thread = ThreadPoolExecutor(1, "penstock-flush")
        self._slow_thread = ThreadPoolExecutor(1, "penstock-files")
        self._jobs = 0
        self._rejected: dict[tuple[str, str], int] = {}

    # -- listening -----------------------------------------------------------------------------------------------

    async def listen(self, listener: socket.socket, make: Callable[[str, Callable[[], None]], Any]) -> None:
        """Accept connections on a bound socket."""
        await self.serve(listener, lambda: Connection(self, make))

    async def serve(self, listener: socket.socket, protocol: Callable[[], Any], tls: Any = None) -> None:
        """The same for connections of another kind: they have what `Connection` has of `flush`, `expired` and `close`,
        and put themselves into `connections`."""
        create: Any = self.loop.create_server
        if listener.family == socket.AF_UNIX:
            create = self.loop.create_unix_server
        self._servers.append(await create(protocol, sock=listener, backlog=BACKLOG, ssl=tls))

    async def connect(self, host: str, port: int, make: Callable[[str, Callable[[], None]], Any]) -> Connection:
        """Open a connection of our own. OSError when nobody listens there."""
        _, connection = await self.loop.create_connection(lambda: Connection(self, make), host, port)
        return connection

    def rejected(self, remote: str, error: Exception) -> None:
        """Say that a peer was no peer, at most once a second for each address and reason."""
        key = (remote.rpartition(":")[0], type(error).__name__)
        if self.role.mono_ms - self._rejected.get(key, -1000) >= 1000:
            self._rejected[key] = self.role.mono_ms
            if len(self._rejected) > 1000:
                self._rejected.clear()
            log.warning("connection closed peer=%s reason=%s", remote, ascii(str(error))[:200])

    # -- turns ---------------------------------------------------------------------------------------------------

    def begin_turn(self) -> None:
        """The first thing in a turn: look at the clock."""
        self.in_turn = True
        self.role.update_time()
        self.loop.call_soon(self._end_turn)

    def begin(self) -> None:
        """Something is about to happen that no read began."""
        if not self.in_turn:
            self.begin_turn()

    def mark(self, connection: Connection) -> None:
        self._dirty.append(connection)
        if not self.in_turn:
            self.begin_turn()

    def _end_turn(self) -> None:
        self.role.end_turn()  # may make more connections dirty
        dirty, self._dirty = self._dirty, []
        for connection in dirty:
            connection.flush()
        self.in_turn = False
        self._start_jobs()
        due_ms = self.role.next_due_ms()
        if due_ms is not None and due_ms < self._timer_ms:
            self._arm(due_ms)

    # -- time ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to keep time."""
        self.role.update_time()
        self._tick()

    def _tick(self) -> None:
        if not self.in_turn:
            self.begin_turn()
        mono_ms = self.role.mono_ms
        due_ms = self.role.tick()
        if mono_ms >= self._sweep_ms:
            self._sweep_ms = mono_ms + SWEEP_MS
            for connection in list(self.connections):
                why = connection.expired(mono_ms)
                if why:
                    log.info("connection closed peer=%s reason=%s", connection.remote, why)
                    connection.close()
        self._arm(min(due_ms, mono_ms + TICK_MS_MAX))

    def _arm(self, due_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = due_ms
        self._timer = self.loop.call_later(max(0, due_ms - self.role.mono_ms) / 1000, self._tick)

    # -- threads -------------------------------------------------------------------------------------------------

    def _start_jobs(self) -> None:
        for job in self.role.take_jobs():
            thread = self._flush_thread if job.kind == "flush" else self._slow_thread
            self._jobs += 1
            thread.submit(self._run, job)

    def _run(self, job: Any) -> None:
        error: BaseException | None = None
        try:
            job.run()
        except Exception as caught:
            error = caught
        try:
            self.loop.call_soon_threadsafe(self._finish, job, error)
        except RuntimeError:
            return  # the loop was closed under a job that nobody waits for any more

    def _finish(self, job: Any, error: BaseException | None) -> None:
        self._jobs -= 1
        if not self.in_turn:
            self.begin_turn()
        job.finish(error, self.role.mono_ms)

    # -- the end -------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Stop listening and reading, send what is there, wait for the jobs, close every connection."""
        for server in self._servers:
            server.close()
        for connection in self.connections:  # under load there would always be one more turn to wait for
            if connection.transport is not None and not connection.transport.is_closing():
                connection.transport.pause_reading()
        if self._timer is not None:
            self._timer.cancel()
        await asyncio.sleep(0)
        while self._jobs or self.in_turn:
            await asyncio.sleep(0.001)
        if self._timer is not None:
            self._timer.cancel()
        for connection in list(self.connections):
            connection.flush()
            if connection.transport is not None:
                connection.transport.close()
        for _ in range(100):
            if not self.connections:
                break
            await asyncio.sleep(0.005)
        for connection in list(self.connections):
            connection.close()
        await asyncio.sleep(0)
        self._flush_thread.shutdown()
        self._slow_thread.shutdown()
