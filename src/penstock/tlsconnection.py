"""TLS between a socket and what speaks on it.

    socket ─▶ TlsConnection ─▶ Connection or HttpConnection, which read and write plain bytes
           ◀─ TlsTransport  ◀─

TLS is done in memory: what was read is decrypted into the one buffer that all connections read into, and a connection
that says nothing keeps no buffer of its own. A listener may take plain peers too: the first byte tells, and a plain
connection is handed over whole, so that nothing lies between its socket and itself from then on.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from penstock.admission import descriptor_of
from penstock.errors import WireError
from penstock.limits import Limits
from penstock.tls import Tls

HANDSHAKE = 0x16  # the first byte of TLS; a RocketMQ frame and a line of text begin with others


class Role(Protocol):
    """As `net.Role`."""

    mono_ms: int

    def update_time(self) -> int: ...


class House(Protocol):
    """The `Net` that the connections belong to."""

    loop: asyncio.AbstractEventLoop
    view: memoryview
    connections: Any
    handshakes: dict[str, int]
    limits: Limits

    @property
    def role(self) -> Role: ...
    def admit(self, remote: str, *, spare: bool = False, descriptor: int = -1) -> bool: ...
    def dismiss(self, remote: str) -> None: ...
    def begin(self) -> None: ...
    def rejected(self, remote: str, error: Exception, about: str = "") -> None: ...
    def count_waiting(self, size: int) -> None: ...


class TlsTransport:
    """What the protocol inside writes to: a transport whose bytes are encrypted on their way."""

    def __init__(self, transport: asyncio.Transport, context: ssl.SSLContext, wake: Callable[[], None]) -> None:
        self._transport = transport
        self._context = context
        self._wake = wake  # what was left unread is to be read now
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._in, self._out, server_side=True)
        self.paused = False
        self._ended = False

    # -- bytes from the socket

    def came(self, data: memoryview) -> None:
        """Bytes of the peer."""
        self._in.write(data)

    @property
    def unread(self) -> int:
        """Bytes of the peer that nobody has read."""
        return self._in.pending + self.tls.pending()

    def handshake(self) -> bool:
        """Go on with it; whether it is done. SSLError when it fails: the alert is written."""
        try:
            self.tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        finally:
            self.send_records()
        return True

    def read(self, room: memoryview) -> tuple[int, bool]:
        """Decrypt into the room: how many bytes, and whether the peer has ended it. SSLError."""
        filled, size, tls, came = 0, len(room), self.tls, self._in
        try:
            while filled < size and (came.pending or tls.pending()):
                count = int(tls.read(size - filled, room[filled:]))  # type: ignore[arg-type, call-overload]
                if not count:
                    return filled, True
                filled += count
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            return filled, True
        finally:
            if self._out.pending:
                self.send_records()
        return filled, False

    def send_records(self) -> None:
        """Write what TLS itself has to say."""
        if self._out.pending and not self._transport.is_closing():
            self._transport.write(self._out.read())

    # -- as a transport

    def write(self, data: bytes) -> None:
        if data and not self._ended and not self._transport.is_closing():
            self.tls.write(data)
            self._transport.write(self._out.read())

    def writelines(self, parts: Iterable[bytes | memoryview]) -> None:
        if not self._ended and not self._transport.is_closing():
            for part in parts:
                if len(part):
                    self.tls.write(part)
            self._transport.write(self._out.read())

    def _end(self) -> None:
        """Say that nothing more comes."""
        if not self._ended:
            self._ended = True
            with contextlib.suppress(ssl.SSLError):  # the peer has not said so yet, or is not to be spoken to
                self.tls.unwrap()
            self.send_records()

    def write_eof(self) -> None:
        self._end()
        self._transport.write_eof()

    def close(self) -> None:
        self._end()
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    def is_closing(self) -> bool:
        return bool(self._transport.is_closing())

    def pause_reading(self) -> None:
        if not self.paused:
            self.paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self.paused:
            self.paused = False
            self._transport.resume_reading()
            self._wake()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._transport.set_write_buffer_limits(high=high, low=low)

    def get_write_buffer_size(self) -> int:
        size: int = self._transport.get_write_buffer_size()
        return size

    def get_extra_info(self, name: str, default: object = None) -> object:
        if name == "sslcontext":
            return self._context
        return self._transport.get_extra_info(name, default)


class TlsConnection(asyncio.BufferedProtocol):
    """A socket until its peer has shaken hands or turned out to be a plain one; from then on what lies under TLS.

    `make` gives the protocol inside. With `plain` peers without TLS are taken too. `spare`: beyond the limit of connections, as
    those that it is for.
    """

    def __init__(self, net: House, tls: Tls, make: Callable[[], Any], *, plain: bool, spare: bool = False) -> None:
        self._net = net
        self._spare = spare
        self._tls = tls
        self._make = make
        self._plain = plain
        self._inner: Any = None
        self._buffered = False
        self._records: TlsTransport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._admitted = False
        self._held = 0  # bytes that wait to be decrypted
        self._later = False
        self.transport: asyncio.Transport | None = None
        self.remote = ""

    # -- life

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        net = self._net
        self.transport = transport
        peer = transport.get_extra_info("peername") or ("127.0.0.1", 0)
        self.remote = f"[{peer[0]}]:{peer[1]}" if ":" in peer[0] else f"{peer[0]}:{peer[1]}"
        net.role.update_time()
        self._heard_ms = net.role.mono_ms
        if not net.admit(self.remote, spare=self._spare, descriptor=descriptor_of(transport)):
            self.transport = None
            transport.close()
            return
        self._admitted = True
        net.connections.add(self)
        if not self._plain:
            self._begin_time()

    def connection_lost(self, error: Exception | None) -> None:
        self._leave()
        self._hold(0)
        self.transport = None
        if self._inner is not None:
            self._inner.connection_lost(error)

    def _begin_time(self) -> None:
        if self._timer is None:
            self._timer = self._net.loop.call_later(self._tls.handshake_s, self._too_slow)

    def _leave(self) -> None:
        """It is no connection that is about to become one any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._admitted:
            self._admitted = False
            self._net.connections.discard(self)
            self._net.dismiss(self.remote)

    def _too_slow(self) -> None:
        self._timer = None
        self._fail("slow", WireError(f"no TLS handshake within {self._tls.handshake_s:g} s"))

    def _fail(self, how: str, error: Exception) -> None:
        """No handshake: count it, say so once a second for an address, close."""
        self._net.handshakes[how] += 1
        if how == "slow":
            self._net.limits.count("tls_handshake")
        self._net.rejected(self.remote, error, f"TLS {how}")
        if self.transport is not None:
            self.transport.close() if how == "failed" else self.transport.abort()  # an alert is on its way, or nothing

    # -- among the connections of the net, while nothing is known of the peer

    def flush(self) -> None:
        """Nothing waits."""

    def close(self) -> None:
        """At once."""
        if self.transport is not None:
            self.transport.abort()

    def expired(self, mono_ms: int) -> str | None:
        """A peer that may be a plain one, and says nothing."""
        limits = self._net.limits
        if mono_ms - self._heard_ms <= limits.idle_timeout_ms:
            return None
        limits.count("idle")
        return "idle"

    # -- reading

    def get_buffer(self, size: int) -> memoryview:
        return self._net.view

    def buffer_updated(self, size: int) -> None:
        net = self._net
        net.begin()
        records = self._records
        if records is None:
            if self.transport is None or self.transport.is_closing():
                return
            if net.view[0] != HANDSHAKE:
                self._take_plain(size)
                return
            records = self._records = TlsTransport(self.transport, self._tls.context, self._soon)
            self._begin_time()
        records.came(net.view[:size])
        try:
            if self._inner is None and not self._shake(records):
                return
            self._work(records)
        except ssl.SSLError as error:
            if self._inner is None:
                self._fail("failed", WireError(f"TLS: {error.reason or error}"))
            else:
                net.rejected(self.remote, WireError(f"TLS: {error.reason or error}"), "TLS broken")
                self.close()

    def _take_plain(self, size: int) -> None:
        """The first bytes are no handshake's."""
        if not self._plain:
            self._fail("plain", WireError("it does not speak TLS, which is required here"))
            return
        data = bytes(self._net.view[:size])
        transport = self.transport
        assert transport is not None
        inner = self._make()
        self._leave()
        transport.set_protocol(inner)
        inner.connection_made(transport)
        if isinstance(inner, asyncio.BufferedProtocol):
            room = memoryview(inner.get_buffer(size))
            room[:size] = data
            inner.buffer_updated(size)
        else:
            inner.data_received(data)

    def _shake(self, records: TlsTransport) -> bool:
        """Whether the peers have shaken hands."""
        if not records.handshake():
            return False
        self._net.handshakes["done"] += 1
        self._leave()
        inner = self._inner = self._make()
        self._buffered = isinstance(inner, asyncio.BufferedProtocol)
        inner.connection_made(records)
        name = self._tls.client_name(records.tls)
        if name:
            inner.certify(name)
        return True

    def _work(self, records: TlsTransport) -> None:
        """Give what was decrypted to the protocol inside, until it wants no more for now."""
        inner, ended = self._inner, False
        while records.unread and not records.paused and not records.is_closing() and not ended:
            room = inner.get_buffer(-1) if self._buffered else self._net.view
            filled, ended = records.read(room)
            if filled and self._buffered:
                inner.buffer_updated(filled)
            elif filled:
                inner.data_received(bytes(room[:filled]))
            elif not ended:
                break
        self._hold(records.unread)
        if ended and not records.is_closing() and not inner.eof_received():
            records.close()

    def _hold(self, size: int) -> None:
        if size != self._held:
            self._net.count_waiting(size - self._held)
            self._held = size

    def _soon(self) -> None:
        """The protocol inside reads again: there may be something left for it."""
        if not self._later:
            self._later = True
            self._net.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._later = False
        if self.transport is not None and self._records is not None:
            self._net.begin()
            try:
                self._work(self._records)
            except ssl.SSLError as error:
                self._net.rejected(self.remote, WireError(f"TLS: {error.reason or error}"), "TLS broken")
                self.close()

    def eof_received(self) -> bool:
        if self._inner is not None and self._inner.eof_received():
            return True
        if self._records is not None:
            self._records.close()
        return False

    # -- writing

    def pause_writing(self) -> None:
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        if self._inner is not None:
            self._inner.resume_writing()
