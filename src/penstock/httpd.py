"""HTTP listeners: uvicorn's httptools protocol on sockets of ours, in the broker's own loop, within limits.

    bytes ─▶ httptools ─▶ /pub, /mpub ─▶ Publishing.publish              ┐ answers wait in `Wire`
                      └─▶ anything else ─▶ uvicorn's cycle ─▶ ASGI app   ┘ until the turn ends: one write per connection

uvicorn parses and frames; it has no server of its own here, no signals, no log. What it does not do is done here: a
head, a URL or a body that is too long or too slow, two lengths for one body, addresses that are not paths. Publishing
goes round ASGI, in its place in the order of the connection's requests.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from penstock.admission import descriptor_of
from penstock.errors import Refused
from penstock.fronts.http.nsqd import NsqHttp
from penstock.fronts.http.publishing import PUBLISH_PATHS, answer_of
from penstock.fronts.site import OK, Answer, Receive, Scope, Send, Site, error, parse_query
from penstock.net import Net

log = logging.getLogger("penstock.http")

HEADERS_MAX = 100
BODY_BYTES_PER_S_MIN = 1 << 10  # a body that comes at least this fast may take longer than a request may
UNREAD_BYTES_MAX = 16 << 20  # of a body that was refused
# What a peer asks before it has read its answers is parsed in pieces, and no further than this: a parsed request takes a
# hundred times as much memory as its bytes.
PIECE_BYTES = 2 << 10
PIPELINED_MAX = 16  # requests that wait behind one
UNSENT_BYTES_MAX = 64 << 10  # answers of one turn
SMALL_BYTES = 4 << 10  # pieces of a body that are put together: as an object, one of two bytes takes fifty
LARGE_BYTES = 64 << 10  # from this size on a body counts among the memory of all connections
STOP_S = 1.0

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_PUBLISH_PATHS = tuple(path.encode() for path in PUBLISH_PATHS)


class Httpd:
    """The HTTP listeners of one application."""

    def __init__(self, net: Net, site: Site, refusal: Answer | None = None) -> None:
        self.net = net
        self.site = site
        self.publisher = site.publishing if isinstance(site, NsqHttp) else None
        self.refusal = refusal  # the answer to every request, if there is one
        self.config = uvicorn.Config(
            self._timed, interface="asgi3", http=HttpToolsProtocol, ws="none", lifespan="off", log_config=None,
            access_log=False, proxy_headers=False, server_header=False, date_header=False,
        )  # fmt: skip
        self.config.load()
        self.state = ServerState()

    async def _timed(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A request to the site."""
        began = time.perf_counter()
        try:
            await self.site(scope, receive, send)
        finally:
            self.site.timed(scope["path"], time.perf_counter() - began)

    def connection(self) -> HttpConnection:
        """For a socket that was accepted."""
        return HttpConnection(self)

    async def close(self) -> None:
        """Answer what was asked, then close; nothing is waited for longer than `STOP_S`."""
        for connection in list(self.state.connections):
            connection.shutdown()
        tasks = [task for task in self.state.tasks if not task.done()]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=STOP_S)
            for task in late:
                task.cancel()


class Wire:
    """A transport whose writes go out together when the turn of the loop ends."""

    def __init__(self, transport: asyncio.Transport, connection: HttpConnection, net: Net) -> None:
        self._transport = transport
        self._connection = connection
        self._net = net
        self._parts: list[bytes] = []
        self._closing = False
        self.unsent_bytes = 0  # since the last flush

    def write(self, data: bytes) -> None:
        self._parts.append(data)
        self.unsent_bytes += len(data)
        self._connection.wake()

    def flush(self) -> None:
        parts, self._parts = self._parts, []
        self.unsent_bytes = 0
        if parts and not self._transport.is_closing():
            self._transport.write(b"".join(parts))
        if self._closing:
            self._transport.close()

    def close(self) -> None:
        self._closing = True
        if not self._parts:
            self._transport.close()

    def is_closing(self) -> bool:
        return self._closing or bool(self._transport.is_closing())

    def abort(self) -> None:
        self._transport.abort()

    def get_extra_info(self, name: str, default: object = None) -> object:
        return self._transport.get_extra_info(name, default)

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()


class _Nobody:
    """Stands for the event of a request that no task waits for."""

    def set(self) -> None: ...
    def clear(self) -> None: ...


class Direct:
    """A request that is answered without ASGI; uvicorn sees a cycle like its own and keeps the order."""

    message_event = _Nobody()

    def __init__(self, path: str, query: bytes, keep_alive: bool) -> None:
        self.path = path
        self.query = query
        self.keep_alive = keep_alive
        self.pieces: list[bytes | bytearray] = []
        self.size = 0
        self.more_body = True
        self.disconnected = False
        self.response_complete = False
        self.began_s = time.perf_counter()

    def add(self, piece: bytes) -> None:
        """More of its body."""
        if self.pieces and len(piece) < SMALL_BYTES:
            if not isinstance(self.pieces[-1], bytearray):
                self.pieces.append(bytearray())
            self.pieces[-1] += piece
        else:
            self.pieces.append(piece)


class Kept:
    """How much of a body is kept, counted among the memory of all connections."""

    def __init__(self, net: Net) -> None:
        self._net = net
        self._size = 0

    def keep(self, size: int) -> None:
        """It is so much by now."""
        if size != self._size:
            self._net.count_waiting(size - self._size)
            self._size = size


class HttpConnection(HttpToolsProtocol):
    """One connection. It lives among `net.connections` like any other: swept, flushed and closed with them."""

    to_slave = False

    def __init__(self, httpd: Httpd) -> None:
        super().__init__(httpd.config, httpd.state, {}, httpd.net.loop)
        self._httpd = httpd
        self._net = httpd.net
        self._counted = False  # among the connections that limits are for
        self.dirty = False
        self.remote = "local"
        self.certificate = ""  # the name in the client's certificate, once that was checked
        self._refused: Answer | None = None  # set inside the parser, which stops then
        self._done = False  # nothing more is read
        self._kept = Kept(httpd.net)
        self._rest = b""  # what was read, and is not parsed yet
        self._parsing = False
        self._in_head = True
        self._head_bytes = 0
        self._completed = 0  # requests
        self._since_ms = 0  # when the head or body that is being read began; 0: none is
        self._body_bytes = 0
        self._length = 0

    # -- life

    def wake(self) -> None:
        """There is something to be written when the turn ends."""
        if not self.dirty:
            self.dirty = True
            self._net.mark(self)  # type: ignore[arg-type]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        net = self._net
        net.role.update_time()
        self._since_ms = net.role.mono_ms
        wire: Any = Wire(transport, self, net)
        super().connection_made(wire)
        if self.client:
            host = f"[{self.client[0]}]" if ":" in self.client[0] else self.client[0]
            self.remote = f"{host}:{self.client[1]}"
        self._counted = net.admit(self.remote, spare=True, descriptor=descriptor_of(transport))
        net.connections.add(self)  # type: ignore[arg-type]
        if not self._counted:
            self._refuse_all(self._httpd.site.reject(503, "TOO_MANY_CONNECTIONS"))

    def certify(self, name: str) -> None:
        """The client has shown a certificate with this name."""
        self.certificate = name
        self.app_state["certificate"] = name  # where requests find it: scope["state"]

    def connection_lost(self, exc: Exception | None) -> None:
        self._net.connections.discard(self)  # type: ignore[arg-type]
        if self._counted:
            self._net.dismiss(self.remote)
        self._done = True
        self._kept.keep(0)
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def eof_received(self) -> bool:  # type: ignore[override]
        """The peer says nothing more: what it has asked is answered before the end. True: the socket stays open."""
        if self.scheme == "https":
            return False  # there is no half of a TLS connection
        cycle: Any = self.cycle
        if cycle is None or cycle.response_complete:
            self.transport.close()
        elif cycle.more_body:
            self.transport.abort()  # half a request
        else:
            cycle.keep_alive = False
        return True

    def flush(self) -> None:
        """The turn ends: write."""
        self.dirty = False
        self.transport.flush()  # type: ignore[attr-defined]
        self._wait_or_parse()

    def close(self) -> None:
        """At once."""
        self.transport.abort()

    def expired(self, mono_ms: int) -> str | None:
        """Too slow: told so and closed. One that said nothing at all gets no answer."""
        if self._done or not self._since_ms:
            return None
        taken_ms, limits = mono_ms - self._since_ms, self._net.limits
        if self._in_head:
            if taken_ms <= limits.greeting_timeout_ms:
                return None
            limits.count("greeting")
            if not self._head_bytes:
                return "it asked nothing"
        elif taken_ms <= limits.request_timeout_ms or self._body_bytes * 1000 >= taken_ms * BODY_BYTES_PER_S_MIN:
            return None
        else:
            limits.count("slow_request")
        self._refuse_all(self._httpd.site.reject(408, "REQUEST_TIMEOUT"))
        return None

    # -- reading

    def data_received(self, data: bytes) -> None:
        net = self._net
        if not net.in_turn:
            net.begin_turn()
        if not self._done:
            self._rest += data
            self._parse()

    def _parse(self) -> None:
        """As much as its answers leave room for; the rest then."""
        self._parsing = True
        rest, at = self._rest, 0
        while at < len(rest) and not self._done and not self._is_full():
            end = at + (PIECE_BYTES if self._in_head else max(PIECE_BYTES, self._length - self._body_bytes))
            self._feed(rest if at == 0 and end >= len(rest) else rest[at:end])
            at = end
        self._rest = b"" if self._done else rest[at:]
        self._parsing = False
        if self._rest:
            self.flow.pause_reading()

    def _is_full(self) -> bool:
        """Whether the peer is to read answers before more of what it says is parsed."""
        unsent_bytes = self.transport.unsent_bytes  # type: ignore[attr-defined]
        return len(self.pipeline) >= PIPELINED_MAX or self.flow.write_paused or unsent_bytes > UNSENT_BYTES_MAX

    def _wait_or_parse(self) -> None:
        """Answers went: what waits for that is parsed soon."""
        if self._rest and not self._parsing:
            self.flow.pause_reading()
            self._httpd.net.loop.call_soon(self._parse_rest)

    def _parse_rest(self) -> None:
        if not self._rest or self._done or self.transport.is_closing():
            return
        if not self._net.in_turn:
            self._net.begin_turn()
        self._parse()
        if not self._rest:
            self.flow.resume_reading()

    def resume_writing(self) -> None:
        """The peer has read."""
        super().resume_writing()
        self._wait_or_parse()

    def on_response_complete(self) -> None:
        """The next request that waits begins."""
        self.timeout_keep_alive = max(1, self._net.limits.idle_timeout_ms // 1_000)  # a reload may have changed it
        super().on_response_complete()
        self._wait_or_parse()

    def _feed(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        completed = self._completed
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            return  # it wants to speak something else; what it asked is answered all the same
        except httptools.HttpParserError:
            self._refuse_all(self._refused or self._httpd.site.reject(400, "BAD_REQUEST"))
            return
        if self._in_head:
            # Of a head that begins behind another request only its later pieces are counted.
            self._head_bytes += len(data) if self._completed == completed else 1
            limits = self._net.limits
            if self._head_bytes > limits.max_http_header_size + limits.max_http_url_size:
                limits.count("http_header")
                self._refuse_all(self._httpd.site.reject(431, "HEADERS_TOO_LARGE"))

    def _stop(self, status: int, code: str, limit: str = "") -> None:
        """Refuse from inside the parser."""
        if limit:
            self._net.limits.count(limit)
        self._refused = self._httpd.site.reject(status, code)
        raise ValueError(code)

    def _refuse_all(self, answer: Answer) -> None:
        """The last answer on this connection."""
        self._done = True
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True  # what it was about to be told can no longer be told apart from this
            self.cycle.message_event.set()
        self.transport.write(_render(answer, keep_alive=False))
        self.transport.close()

    # -- the parser calls these

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._since_ms = self._net.role.mono_ms
        self._length = -1
        self._header_bytes = 0
        self._in_head = True

    def on_url(self, url: bytes) -> None:
        super().on_url(url.replace(b"#", b"%23"))  # no fragment is sent: it is part of a name, as `t#ephemeral`
        if len(self.url) > self._net.limits.max_http_url_size:
            self._stop(414, "URI_TOO_LONG", "http_url")

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        self._header_bytes += len(name) + len(value) + 4
        if len(self.headers) > HEADERS_MAX or self._header_bytes > self._net.limits.max_http_header_size:
            self._stop(431, "HEADERS_TOO_LARGE", "http_header")

    def on_headers_complete(self) -> None:
        self._check_head()
        self._in_head = False
        self._body_bytes = 0
        self._since_ms = self._net.role.mono_ms
        httpd = self._httpd
        url = self.url
        path, _, query = url.partition(b"?")
        if httpd.refusal is not None:
            self._begin("", b"")
            self._answer(self.cycle, httpd.refusal)  # type: ignore[arg-type]
        elif (
            httpd.publisher is not None
            and path in _PUBLISH_PATHS
            and (self.cycle is None or self.cycle.response_complete)
            and self.parser.get_method() == b"POST"
        ):
            direct = self._begin(path.decode(), query)
            refusal = httpd.site.guard(self.headers, self.client is None)
            if refusal is None and self._length > httpd.publisher.body_max(direct.path):
                refusal = httpd.publisher.too_big(direct.path)
            if refusal is None and httpd.site.rights.on:
                refusal = self._not_admitted(direct.path, query)
            if refusal is not None:
                self._answer(direct, refusal)
            elif self.expect_100_continue:
                self.transport.write(_CONTINUE)
        else:
            super().on_headers_complete()

    def _not_admitted(self, path: str, query: bytes) -> Answer | None:
        """The refusal of a publisher that may not."""
        site = self._httpd.site
        try:
            site.admit("POST", path, parse_query(query), self.headers, self.remote, self.certificate)
        except Refused as refused:
            return site.unadmitted(refused) if refused.http in (401, 403) else error(refused.http, str(refused))
        return None

    def _begin(self, path: str, query: bytes) -> Direct:
        direct = Direct(path, query, self.parser.get_http_version() != "1.0" and self.parser.should_keep_alive())
        self.cycle = direct  # type: ignore[assignment]
        return direct

    def _check_head(self) -> None:
        """What no client of ours sends, and what proxies and servers are made to disagree about."""
        path = self.url.partition(b"?")[0]
        if path[:1] != b"/" or b"/../" in path + b"/" or b"%00" in path or b"%2e%2e" in path.lower():
            self._stop(400, "BAD_PATH")
        hosts = lengths = 0
        chunked = False
        for name, value in self.headers:
            if name == b"host":
                hosts += 1
            elif name == b"content-length":
                lengths += 1
                self._length = int(value)
            elif name == b"transfer-encoding":
                chunked = True
        if lengths > 1 or (lengths and chunked):
            self._stop(400, "AMBIGUOUS_LENGTH")
        version = self.parser.get_http_version()
        if version not in ("1.0", "1.1"):
            self._stop(400, "BAD_VERSION")
        if hosts > 1 or (not hosts and version == "1.1"):
            self._stop(400, "ONE_HOST_REQUIRED")

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        cycle: Any = self.cycle
        if cycle.response_complete:
            if self._body_bytes > UNREAD_BYTES_MAX:
                self._stop(413, "BODY_TOO_BIG")
        elif type(cycle) is Direct:
            publisher = self._httpd.publisher
            assert publisher is not None
            cycle.size += len(body)
            if cycle.size > publisher.body_max(cycle.path):
                cycle.pieces.clear()
                self._kept.keep(0)
                self._answer(cycle, publisher.too_big(cycle.path))
                return
            if cycle.size > LARGE_BYTES:
                if self._net.waiting_bytes > self._net.memory_bytes_max:
                    self._stop(503, "NO_MEMORY", "memory")
                self._kept.keep(cycle.size)
            cycle.add(body)
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_head = True
        self._since_ms = self._head_bytes = 0
        self._completed += 1
        cycle: Any = self.cycle
        if type(cycle) is not Direct:
            super().on_message_complete()
            return
        cycle.more_body = False
        if cycle.response_complete:
            self._next(cycle)
            return
        assert self._httpd.publisher is not None
        outcome = self._httpd.publisher.publish(cycle.path, cycle.query, b"".join(cycle.pieces))
        cycle.pieces.clear()
        self._kept.keep(0)
        if isinstance(outcome, Answer):
            self._answer(cycle, outcome)
        else:
            outcome.then(lambda good: self._answer(cycle, answer_of(outcome, good)))

    # -- answering without ASGI

    def _answer(self, direct: Direct, answer: Answer) -> None:
        if direct.disconnected or direct.response_complete:
            return
        direct.response_complete = True
        self.transport.write(_render(answer, direct.keep_alive))
        self._httpd.site.timed(direct.path, time.perf_counter() - direct.began_s)
        if not direct.more_body:
            self._next(direct)

    def _next(self, direct: Direct) -> None:
        """A request is read and answered: go on with the one that waits behind it, or wait for one."""
        if direct.keep_alive:
            self.on_response_complete()
        else:
            self._done = True
            self.transport.close()


def _bytes(answer: Answer, keep_alive: bool) -> bytes:
    lines = [STATUS_LINE[answer.status]]
    lines += [b"%s: %s\r\n" % header for header in answer.headers]
    lines.append(b"content-length: %d\r\n" % len(answer.body))
    if not keep_alive:
        lines.append(b"connection: close\r\n")
    return b"".join([*lines, b"\r\n", answer.body])


_OK_KEPT = _bytes(OK, True)


def _render(answer: Answer, keep_alive: bool) -> bytes:
    return _OK_KEPT if answer is OK and keep_alive else _bytes(answer, keep_alive)
