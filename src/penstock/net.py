"""The sockets of a process: reads are fed to sessions, what they want written goes out once per turn of the loop.

    buffer_updated ─▶ session.feed … (every connection that has something)    ┐ one turn
    Net.turn: role.end_turn ─▶ one write for each connection that is dirty    ┘

All connections read into one buffer: between `get_buffer` and `buffer_updated` of a read nothing else happens. Only
an incomplete frame is copied out of it, to the front of the connection's next read.

A session whose answers pile up within one turn says `full`: the frames it has not looked at are kept, nothing more is
read from its socket, and it goes on when those answers were written; meanwhile the others are served.

No exception ends the loop's work half way: a session that raises loses its connection, a role that raises is reported
to `Faults`, and the turn and the timer go on. What fails again and again stops the process.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import cython

from penstock.admission import Admission, descriptor_of
from penstock.disk.job import Job
from penstock.disk.workers import Workers
from penstock.errors import ConfigError, WireError
from penstock.faults import Faults
from penstock.histogram import Histogram
from penstock.limits import Limits
from penstock.tls import Tls
from penstock.tlsconnection import TlsConnection
from penstock.wire.outbox import Part, unwritten
from penstock.words import MS_A_SECOND

if cython.compiled:
    from cython.cimports.penstock.octets import address, send_now
else:
    from penstock.octets import address, send_now

log = logging.getLogger("penstock.net")

READ_BYTES = 256 << 10
LEFT_BYTES_MAX = 64 << 10  # more than this of an incomplete frame is not moved again: the frame gets its own buffer
GROWTH = 7  # a large frame's buffer grows by so many times what has come of it, up to its end
EARLY_BYTES = 16 << 10  # a read of this is a turn of its own while slaves are waited for: they begin with it
SWEEP_MS = 5_000
TICK_MS_MAX = 1_000
BACKLOG = 1024
ALONE_MS = 20
_CLOSING_LOOKS = 100  # whether connections are gone, when the process ends
BACKLOG_BYTES_MAX = 1 << 20  # with no memory left for connections, one that owes its peer more than this is closed


class Role(Protocol):
    """What a process does: a broker, a registry, or both."""

    mono_ms: int
    faults: Faults

    @property
    def flush_wanted(self) -> bool: ...
    @property
    def copy_wanted(self) -> bool: ...
    def update_time(self) -> int: ...
    def end_turn(self) -> None: ...
    def take_jobs(self) -> Sequence[Job]: ...
    def tick(self) -> int: ...
    def next_due_ms(self) -> int: ...


class Session(Protocol):
    """One peer of a front: bytes in, bytes out, no socket.

    `need` is the size of a frame that is not complete. It may have more: `take_parts` (a list instead), `full` (enough is
    answered), `closing` (`take` gives its last word), `eof`, `congested`, `beats`, `certify` (the name in a certificate).
    """

    need: int

    def feed(self, owner: bytearray, total: int) -> int: ...
    def take(self) -> bytes: ...
    def lost(self) -> None: ...


MakeSession = Callable[[str, Callable[[], None]], Session]


class Connection:
    """One socket and its session. Loops get it as a `Peer`."""

    def __init__(self, net: Net, make: MakeSession, *, protocol: str = "", refusal: bytes = b"") -> None:
        self._net = net
        self.make = make
        self._protocol = protocol  # of a peer that connected to us
        self.to_slave = protocol == "ha"
        self._counted = bool(protocol)  # among the connections that limits are for
        self._refusal = refusal
        self._reading = True
        self._stopped = False  # the session has answered enough for now: the rest of what was read waits
        self._memory = 0  # of a large frame
        self._unsent = 0  # bytes given to the transport that the peer has not taken
        self._left = b""
        self._large: bytearray | None = None
        self._filled = self._frame_ms = self._full_ms = self.heard_ms = 0
        self._ending = self._heard_out = self.dirty = False
        self._fd = -1  # of a socket that nothing lies between
        self.session: Session | None = None
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        peer = transport.get_extra_info("peername") or ("127.0.0.1", 0)
        address = f"[{peer[0]}]" if ":" in peer[0] else peer[0]
        self.remote = f"{address}:{peer[1]}"
        transport.set_write_buffer_limits(high=self._net.limits.max_unread_bytes)
        net: Net = self._net
        self.heard_ms = net.role.update_time()
        if self._counted and not net.admit(self.remote, spare=self.to_slave, descriptor=descriptor_of(transport)):
            self._counted = False
            if self._refusal:
                transport.write(self._refusal)
            self.transport = None
            transport.close()
            return
        session = self.session = self.make(self.remote, self.wake)
        self._take: Callable[[], bytes | list[Part]] = getattr(session, "take_parts", session.take)
        self._stops = hasattr(session, "full")
        self._closes = hasattr(session, "closing")
        if transport.get_extra_info("sslcontext") is None:
            self._fd = transport.get_extra_info("socket").fileno()
        net.connections.add(self)
        if self._protocol:
            log.info("client connected protocol=%s peer=%s", self._protocol, self.remote)

    def certify(self, name: str) -> None:
        """The peer has shown a certificate with this name, and it was checked."""
        if (certify := getattr(self.session, "certify", None)) is not None:
            certify(name)

    def connection_lost(self, error: Exception | None) -> None:
        net: Net = self._net
        net.connections.discard(self)
        net.count_waiting(-self._memory - self._unsent)
        self._memory = self._unsent = 0
        if self._counted:
            net.dismiss(self.remote)
            log.info("client left protocol=%s peer=%s reason=%s", self._protocol, self.remote, error or "closed")
        self.transport = None
        self._large = None
        self._left = b""
        session = self.session
        if session is not None:
            net.role.update_time()
            session.lost()

    # -- reading -------------------------------------------------------------------------------------------------

    def get_buffer(self, size: int) -> memoryview:
        if self._large is not None:
            if self._filled == len(self._large):
                self._grow_large(memoryview(self._large))
            return memoryview(self._large)[self._filled :]
        if left := len(self._left):
            self._net.buffer[:left] = self._left
            return self._net.view[left:]
        return self._net.view

    def _grow_large(self, filled: memoryview) -> None:
        """A buffer for the whole of a large frame, or for many times what has come of it: bytes must come first."""
        assert self.session is not None
        size = len(filled)
        room = min(max(0, self.session.need - size), GROWTH * size) or READ_BYTES
        large = unwritten(size + room)
        memoryview(large)[:size] = filled
        self._keep_large(large)
        self._filled = size

    def _keep_large(self, large: bytearray | None) -> None:
        """The buffer of a large frame, counted among the memory of all connections."""
        self._large = large
        size = 0 if large is None else len(large)
        self._net.count_waiting(size - self._memory)
        self._memory = size

    def buffer_updated(self, size: int) -> None:
        net: Net = self._net
        if not net.in_turn:
            net.begin_turn()
        self.heard_ms = net.mono_ms
        if net.speaker is not self and not self.to_slave:  # that one does not mind to wait for its master's disk
            net.speaker, net.alone_since_ms = self, self.heard_ms
        large = self._large
        if large is None:
            owner = net.buffer
            total = len(self._left) + size
        else:
            assert self.session is not None  # nothing large comes before it has said how much it needs
            owner = large
            self._filled += size
            total = self._filled
            if total < self.session.need:
                return
        self._feed(owner, total)
        if size >= EARLY_BYTES and net.role.copy_wanted:
            net.end_turn()

    def _feed(self, owner: bytearray, total: int) -> None:
        """Give the session what there is; keep what it has no use for yet."""
        net: Net = self._net
        session = self.session
        if session is None or self._ending:  # refused at the door, or its last word is said: it is only heard out
            return
        try:
            used = session.feed(owner, total)
        except WireError as error:
            self._reject(error)
            return
        except Exception as error:
            net.broken(self.remote, error)
            self._reject(None)
            return
        rest = total - used
        if rest:
            if used or not self._frame_ms:
                self._frame_ms = self.heard_ms
            if rest > LEFT_BYTES_MAX:
                if net.waiting_bytes > net.memory_bytes_max:
                    net.refuse("memory", self.remote)
                    self.close()
                    return
                self._grow_large(memoryview(owner)[used:total])
                self._left = b""
            else:
                self._left = bytes(owner[used:total])
                self._keep_large(None)
            if self._stops and session.full:  # type: ignore[attr-defined]
                self._frame_ms = 0  # the peer is not slow: we are behind
                self._stopped = True
                self._look_at_reading()
        else:
            self._frame_ms = 0
            self._left = b""
            if self._large is not None:
                self._keep_large(None)
        self.wake()

    def _reject(self, error: WireError | None) -> None:
        """The peer is no peer, or its session broke: a last word if there is one, then the end."""
        if error is not None:
            self._net.rejected(self.remote, error)
            if error.limit:
                self._net.limits.count(error.limit)
        try:
            data = self.session.take() if self.session is not None else b""
        except Exception:
            data = b""
        if data and self.transport is not None:
            self.transport.write(data)
            self._end(self.transport)
        else:
            self.close()

    def _go_on(self) -> None:
        """What was kept while the session was full."""
        transport = self.transport
        if not self._stopped or self._full_ms or transport is None or transport.is_closing() or self._ending:
            return
        self._stopped = False
        self._net.begin()
        self.heard_ms = self._net.mono_ms
        if self._large is not None:
            self._feed(self._large, self._filled)
        elif self._left:
            self._feed(bytearray(self._left), len(self._left))
        self._look_at_reading()

    def _look_at_reading(self) -> None:
        """Read from the socket unless answers wait to be taken."""
        transport = self.transport
        if transport is None or transport.is_closing() or self._ending:
            return
        wanted = not self._stopped and not self._full_ms
        if wanted != self._reading:
            self._reading = wanted
            (transport.resume_reading if wanted else transport.pause_reading)()

    def eof_received(self) -> bool:
        """The peer sends nothing more: what its session still answers is written before the end."""
        if (eof := getattr(self.session, "eof", None)) is None or self._stopped:
            return False
        self._net.begin()
        try:
            eof()
            self.flush()
        except Exception as error:
            self._net.broken(self.remote, error)
            return False
        self._heard_out = True
        return not self._ending

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
        assert session is not None
        data = self._take()
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        if data and not self._ending:
            if isinstance(data, list):
                transport.writelines(data)
                self._count_unsent(transport)
            elif (sent := self._send(transport, data)) < len(data):
                transport.write(memoryview(data)[sent:])
                self._count_unsent(transport)
        if self._stopped and not self._full_ms and not getattr(session, "parked", False):
            self._net.loop.call_soon(self._go_on)  # behind what the others have sent
        if self._closes and session.closing and not self._ending:  # type: ignore[attr-defined]
            self._end(transport)

    def _send(self, transport: asyncio.Transport, data: bytes) -> int:
        """Give the socket what it takes at once, past a transport that holds nothing back: how much that was."""
        if self._unsent:
            self._count_unsent(transport)
        return 0 if self._fd < 0 or self._unsent else send_now(self._fd, address(data), 0, len(data))

    def _count_unsent(self, transport: asyncio.Transport) -> None:
        """Count what the peer has not taken yet; close it when there is no memory for so slow a reader."""
        net: Net = self._net
        unsent: int = transport.get_write_buffer_size()
        if unsent != self._unsent:
            net.count_waiting(unsent - self._unsent)
            self._unsent = unsent
        if net.waiting_bytes > net.memory_bytes_max and unsent > BACKLOG_BYTES_MAX:
            net.refuse("memory", self.remote)
            self.close()

    def _end(self, transport: asyncio.Transport) -> None:
        """The last word is said. A peer in mid-sentence is heard out until a sweep, or the reset would swallow the word."""
        self._ending = True
        try:
            transport.close() if self._heard_out else transport.write_eof()
        except (OSError, RuntimeError, NotImplementedError):
            transport.close()

    def pause_writing(self) -> None:
        # The peer does not read its answers: take no more of its requests until it does.
        self._full_ms = self._net.role.mono_ms or 1
        self._net.limits.count("unread")
        self._congested(True)
        self._look_at_reading()

    def resume_writing(self) -> None:
        self._full_ms = 0
        transport = self.transport
        if transport is not None and not transport.is_closing():
            self._count_unsent(transport)
            self._congested(False)
            self._go_on()
            self._look_at_reading()

    def _congested(self, full: bool) -> None:
        if (congested := getattr(self.session, "congested", None)) is not None:
            self._net.begin()
            try:
                congested(full)
            except Exception as error:
                self._net.broken(self.remote, error)
                self.close()

    def close(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def expired(self, mono_ms: int) -> str | None:
        """Why this connection should be closed now, or None."""
        if self._ending:
            return "ended"
        limits = self._net.limits
        if self._full_ms and mono_ms - self._full_ms > limits.slow_reader_timeout_ms:
            limits.count("slow_reader")
            return "it does not read its answers"
        if self._frame_ms and mono_ms - self._frame_ms > limits.request_timeout_ms:
            limits.count("slow_request")
            return "half a frame and then silence"
        if not getattr(self.session, "beats", False) and mono_ms - self.heard_ms > limits.idle_timeout_ms:
            limits.count("idle")
            return "idle"
        return None


class Peer(Connection, asyncio.BufferedProtocol):  # type: ignore[misc]
    """A `Connection` as asyncio wants it: its own loop looks at the class, and a compiled class has no such base."""

    __slots__ = ()


class Net:
    """The loop side of one role: listeners, turns, one timer, and the threads that jobs run in."""

    def __init__(self, role: Role, limits: Limits | None = None) -> None:
        self.role = role
        self.limits = limits or Limits()
        self.memory_bytes_max = self.limits.memory_bytes
        self.waiting_bytes = 0  # of unfinished large frames and of answers that peers have not taken
        # What connections ask for, by the part that does it.
        admission = self.admission = Admission(self.limits, lambda: role.mono_ms, self._no_memory)
        self.admit, self.dismiss = admission.admit, admission.dismiss
        self.refuse, self.rejected = admission.refuse, admission.rejected
        self.handshakes = {"done": 0, "slow": 0, "plain": 0, "failed": 0}  # of TLS
        self.loop = asyncio.get_running_loop()
        self.buffer = bytearray(READ_BYTES)
        self.view = memoryview(self.buffer)
        self.connections: set[Connection] = set()
        self.in_turn = False
        self.mono_ms = role.mono_ms  # of this turn
        self._call_soon, self._last = self.loop.call_soon, self.end_turn  # what each turn asks for, bound once
        self._update_time, self._end_role = role.update_time, role.end_turn
        self._take_jobs, self._next_due_ms = role.take_jobs, role.next_due_ms
        self._failing = role.faults.failing
        self._dirty: list[Connection] = []
        self._servers: list[asyncio.AbstractServer] = []
        self._timer: asyncio.TimerHandle | None = None
        self.late = Histogram()  # how late the timer comes: so long was the loop busy with something else
        self._timer_ms = self._sweep_ms = 0
        self.workers = Workers(self.loop.call_soon_threadsafe, self._finish)
        self.speaker: Connection | None = None  # who was heard last, and since when nobody else
        self.alone_since_ms = 0

    # -- listening -----------------------------------------------------------------------------------------------

    async def listen(
        self,
        listener: socket.socket,
        make: MakeSession,
        protocol: str,
        *,
        refusal: bytes = b"",
        tls: Tls | None = None,
        plain: bool = False,
    ) -> None:
        """Accept connections on a bound socket; `refusal` is what one too many is told. TLS as of `serve`."""
        make_one = partial(Peer, self, make, protocol=protocol, refusal=refusal)
        await self.serve(listener, make_one, tls, plain, spare=protocol == "ha")

    async def serve(
        self, listener: socket.socket, protocol: Callable[[], asyncio.BaseProtocol], tls: Tls | None = None, plain: bool = False,
        spare: bool = False,
    ) -> None:  # fmt: skip
        """The same for connections of another kind: they have what `Connection` has of `flush`, `expired`, `close` and
        `certify`, and put themselves into `connections`. With `tls` peers must speak it, with `plain` as well they may;
        `spare` as of `admit`. ConfigError when somebody else, who had the same port at the same time, listens on it already.
        """
        door = protocol if tls is None else lambda: TlsConnection(self, tls, protocol, plain=plain, spare=spare)
        try:
            listener.listen(BACKLOG)  # uvloop would pass over the error
        except OSError as error:
            name, why = listener.getsockname(), error.strerror or error
            where = name if isinstance(name, str) else f"{name[0]}:{name[1]}"
            raise ConfigError(
                f"cannot listen on {where}: {why}", "Stop what listens there, or choose another port."
            ) from None
        if listener.family == socket.AF_UNIX:
            server = await self.loop.create_unix_server(door, sock=listener, backlog=BACKLOG)
        else:
            server = await self.loop.create_server(door, sock=listener, backlog=BACKLOG)
        self._servers.append(server)

    async def connect(self, host: str, port: int, make: MakeSession, tls: ssl.SSLContext | None = None) -> Connection:
        """Open a connection of our own, with `tls` to a peer whose certificate has this name. OSError when nobody, or
        somebody else, listens there.
        """
        _, connection = await self.loop.create_connection(lambda: Peer(self, make), host, port, ssl=tls)
        return connection

    def _no_memory(self) -> bool:
        return self.waiting_bytes > self.memory_bytes_max

    def count_waiting(self, size: int) -> None:
        """So many more bytes wait, or fewer: of unfinished frames, or of answers that peers have not taken."""
        self.waiting_bytes += size

    def broken(self, remote: str, error: BaseException) -> None:
        """A session raised what it should not: its connection ends, the others go on."""
        log.error("session failed peer=%s", remote, exc_info=error)

    # -- turns ---------------------------------------------------------------------------------------------------

    def begin_turn(self) -> None:
        """The first thing in a turn: look at the clock."""
        self.in_turn = True
        self._call_soon(self._last)  # first: whatever is raised from here on, the turn ends
        self.mono_ms = self._update_time()

    def begin(self) -> None:
        """Something is about to happen that no read began."""
        if not self.in_turn:
            self.begin_turn()

    def mark(self, connection: Connection) -> None:
        self._dirty.append(connection)
        if not self.in_turn:
            self.begin_turn()

    def end_turn(self) -> None:
        """The last thing in a turn, behind what all connections have sent or one of them. Nothing, where none has begun."""
        if not self.in_turn:
            return
        role = self.role
        try:
            self._end_role()  # may make more connections dirty
        except Exception as error:
            role.faults.report("the end of a turn", error, role.mono_ms)
        if (
            self.mono_ms - self.alone_since_ms >= ALONE_MS
            and role.flush_wanted
            and self.workers.brief
            and not self.workers.under_way
        ):
            self._flush_here()
        dirty, self._dirty = self._dirty, []
        for connection in dirty:
            try:
                connection.flush()
            except Exception as error:
                self.broken(connection.remote, error)
                connection.close()
        self.in_turn = False
        try:
            for job in self._take_jobs():
                self.workers.start(job)
            due_ms = self._next_due_ms()
            if due_ms < self._timer_ms:
                self._arm(due_ms)
        except Exception as error:
            role.faults.report("the jobs of a turn", error, role.mono_ms)
        else:
            if self._failing:
                role.faults.settle(("the end of a turn", "the jobs of a turn"))

    # -- time ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to keep time."""
        self.role.update_time()
        self._tick()

    def _tick(self) -> None:
        role = self.role
        if (when := getattr(self._timer, "when", None)) is not None:  # uvloop's has none where it was due at once
            self.late.add(self.loop.time() - when())
        try:
            self.begin()
            due_ms = min(role.tick(), role.mono_ms + TICK_MS_MAX)
        except Exception as error:
            role.faults.report("the timer", error, role.mono_ms)
            due_ms = role.mono_ms + TICK_MS_MAX
        else:
            if role.faults.failing:
                role.faults.settle(("the timer",))
        mono_ms = role.mono_ms
        if mono_ms >= self._sweep_ms:
            self._sweep_ms = mono_ms + SWEEP_MS
            for connection in list(self.connections):
                self._sweep(connection, mono_ms)
        self._arm(due_ms)

    def _sweep(self, connection: Connection, mono_ms: int) -> None:
        try:
            why = connection.expired(mono_ms)
        except Exception as error:
            self.broken(connection.remote, error)
            why = "it failed"
        if why:
            log.info("connection closed peer=%s reason=%s", connection.remote, why)
            connection.close()

    def _arm(self, due_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = due_ms
        self._timer = self.loop.call_later(max(0, due_ms - self.role.mono_ms) / MS_A_SECOND, self._tick)

    # -- threads -------------------------------------------------------------------------------------------------

    def _flush_here(self) -> None:
        """The flush that this turn's answers wait for. It is mostly over sooner than a thread is woken and heard of again."""
        role, workers = self.role, self.workers
        try:
            for slave in [connection for connection in self._dirty if connection.to_slave]:
                slave.flush()  # it flushes the same at the same time
            for job in role.take_jobs():
                (workers.run_here if job.kind == "flush" else workers.start)(job)
            role.end_turn()
        except Exception as error:
            role.faults.report("the end of a turn", error, role.mono_ms)

    def _finish(self, job: Job, error: BaseException | None) -> None:
        role = self.role
        try:
            self.begin()
            job.finish(error, role.mono_ms)
        except Exception as caught:
            role.faults.report(f"the end of a job ({job.kind})", caught, role.mono_ms)
        else:
            if role.faults.failing:
                role.faults.settle((f"the end of a job ({job.kind})",))

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
        while not self.workers.are_done() or self.in_turn:
            await asyncio.sleep(0.001)
        if self._timer is not None:
            self._timer.cancel()
        for connection in list(self.connections):
            connection.flush()
            if connection.transport is not None:
                connection.transport.close()
        for _ in range(_CLOSING_LOOKS):
            if not self.connections:
                break
            await asyncio.sleep(0.005)
        for connection in list(self.connections):
            connection.close()
        await asyncio.sleep(0)
        self.workers.close()
