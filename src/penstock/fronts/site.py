"""What the HTTP fronts share: an ASGI application over a table of routes, with nsqd's manners.

    guard (Host, Origin) ─▶ route ─▶ handler(request) ─▶ Answer

A handler returns an `Answer`, or raises Refused with nsqd's code as its message and the status as its `http`.
Parameters come from the query string only. A page in a browser may not ask: it has an Origin, or, when its owner made
a name of theirs point here (DNS rebinding), a Host that is not ours.
"""

from __future__ import annotations

import inspect
import ipaddress
import logging
import re
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from typing import Any, NamedTuple
from urllib.parse import quote, unquote_plus

import msgspec

from penstock.access.audit import audit
from penstock.access.http import user_of
from penstock.access.needs import ADMIN, MONITOR, Need
from penstock.access.rights import Rights
from penstock.access.users import User
from penstock.errors import Refused, StoreError
from penstock.histogram import Histogram
from penstock.wire.names import NSQ_NAME

log = logging.getLogger("penstock.http")

HOSTS_MAX = 256
NAME = ":name"  # of a route: any word
V1 = (b"x-nsq-content-type", b"nsq; version=1.0")
TEXT = (b"content-type", b"text/plain; charset=utf-8")
JSON = (b"content-type", b"application/json; charset=utf-8")

dumps = msgspec.json.Encoder().encode

_NAME = re.compile(NSQ_NAME)
_BAD_ESCAPE = re.compile(r"%(?![0-9a-fA-F]{2})")


# What ASGI gives an application.
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Scope]]
Send = Callable[[Scope], Awaitable[None]]


class Answer(NamedTuple):
    """A whole answer."""

    status: int
    body: bytes = b""
    headers: tuple[tuple[bytes, bytes], ...] = (TEXT, V1)


class Request(NamedTuple):
    """A request without its body, which `body` fetches: `await request.body(limit)`, Refused 413 when there is more."""

    method: str
    path: str
    raw_query: bytes
    query: dict[str, str]
    headers: Iterable[tuple[bytes, bytes]]
    remote: str
    body: Callable[[int], Awaitable[bytes | None]]
    user: User | None = None
    certificate: str = ""  # the name in the client's certificate, once that was checked

    def header(self, name: bytes) -> bytes:
        """The value of a header (lower case), or nothing."""
        return next((value for key, value in self.headers if key == name), b"")


Handler = Callable[[Request], Answer | Awaitable[Answer]]
Needs = Callable[[Mapping[str, str]], Iterable[Need]]  # of a query

OK = Answer(200, b"OK")
DONE = Answer(200, b"", (V1,))
LOGIN = (b"www-authenticate", b'Basic realm="penstock", charset="UTF-8"')


def json_answer(value: object) -> Answer:
    """Data."""
    return Answer(200, dumps(value), (JSON, V1))


def error(status: int, code: str, *headers: tuple[bytes, bytes]) -> Answer:
    """`{"message":"CODE"}`."""
    return Answer(status, b'{"message":"%s"}' % code.encode(), (JSON, V1, *headers))


def refuse(status: int, code: str) -> Refused:
    """To be raised: the handler stops here, and the client is told this."""
    return Refused(code, http=status)


def parse_query(raw: bytes) -> dict[str, str]:
    """The first value of every parameter. Refused (INVALID_REQUEST) for what is no query string."""
    text = raw.decode("latin-1")
    if ";" in text or _BAD_ESCAPE.search(text):
        raise refuse(400, "INVALID_REQUEST")
    found: dict[str, str] = {}
    for pair in text.split("&"):
        if pair:
            name, _, value = pair.partition("=")
            if "%" in pair or "+" in pair:
                name, value = unquote_plus(name), unquote_plus(value)
            found.setdefault(name, value)
    return found


def valid_name(name: str) -> bool:
    """Whether a topic or channel may have this name."""
    raw = name.encode("utf-8", "replace")
    return 1 <= len(raw) <= 64 and _NAME.fullmatch(raw) is not None


def topic_and_channel(query: Mapping[str, str]) -> tuple[bytes, bytes]:
    """What the channel routes are asked for."""
    names = []
    for what in ("topic", "channel"):
        if what not in query:
            raise refuse(400, f"MISSING_ARG_{what.upper()}")
        if not valid_name(query[what]):
            raise refuse(400, f"INVALID_ARG_{what.upper()}")
        names.append(query[what].encode())
    return names[0], names[1]


class Site:
    """An ASGI application. `routes` is path → method → handler; a word of a path that is `:name` stands for any,
    the last one or the one before.

    `begin` is called before anything else happens for a request: the turn of the loop begins, the clock is read.
    Where there are users, `needs` says by `METHOD path` what a request needs; a route without a row needs an administrator.
    """

    def __init__(
        self,
        allowed_hosts: Iterable[str] = (),
        begin: Callable[[], None] = lambda: None,
        rights: Rights | None = None,
    ) -> None:
        self.begin = begin
        self.rights = rights or Rights()
        self.routes: dict[str, dict[str, Handler]] = {}
        self.needs: Mapping[str, Needs] = {}
        self.watched: dict[str, Handler] = {}  # what monitoring reads beside the routes: path → GET
        self.rejected: dict[str, int] = {}  # reason → how often
        self.took: dict[str, Histogram] = {}  # route → how long its requests took
        self._hosts = {name.lower() for name in (*allowed_hosts, "localhost", socket.gethostname()) if name}
        self._any_host = "*" in self._hosts
        self._good_hosts: set[bytes] = set()

    # -- who may ask

    def guard(self, headers: Iterable[tuple[bytes, bytes]], local: bool = False) -> Answer | None:
        """The refusal of a request that no program of ours or of a peer's sends, or None. `local`: by a Unix socket,
        which has no name that could be made to point at it."""
        host: bytes | None = None
        for name, value in headers:
            if name == b"origin":
                return self.reject(403, "ORIGIN_NOT_ALLOWED")
            if name == b"host":
                host = value
        if host is None or local or self._any_host or host in self._good_hosts:
            return None
        if not self._is_ours(host):
            return self.reject(403, "HOST_NOT_ALLOWED")
        if len(self._good_hosts) < HOSTS_MAX:
            self._good_hosts.add(host)
        return None

    def _is_ours(self, host: bytes) -> bool:
        """Whether a Host header names this server. An address always may: DNS rebinding, where somebody's own name is made
        to point here, needs a name.
        """
        name = host.decode("latin-1").lower()
        name = name.partition("]")[0].lstrip("[") if name.startswith("[") else name.partition(":")[0]
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name.rstrip(".") in self._hosts or name == ""
        return True

    def reject(self, status: int, code: str) -> Answer:
        """An answer to something that should not have been sent; counted."""
        self.rejected[code] = self.rejected.get(code, 0) + 1
        return error(status, code)

    def admit(
        self, method: str, path: str, query: Mapping[str, str], headers: Iterable[tuple[bytes, bytes]], remote: str,
        certificate: str = "",
    ) -> User | None:  # fmt: skip
        """Who asks, where there are users. Refused 401 or 403 when it may not."""
        if not self.rights.on:
            return None
        authorization = next((value for name, value in headers if name == b"authorization"), b"")
        user = user_of(self.rights, authorization, remote, certificate)
        route, word = self.route(path)
        row = self.needs.get(f"{'GET' if method == 'HEAD' else method} {route}")
        needs = row({**query, NAME: word}) if row is not None else (MONITOR if path in self.watched else ADMIN,)
        self.rights.demand(user, needs)
        return user

    def unadmitted(self, refused: Refused) -> Answer:
        """The answer to who may not."""
        if refused.http == 401:
            self.rejected["UNAUTHORIZED"] = self.rejected.get("UNAUTHORIZED", 0) + 1
            return error(401, "UNAUTHORIZED", LOGIN)
        return self.reject(403, "FORBIDDEN")

    def timed(self, path: str, seconds: float) -> None:
        """A request was answered. Routes that there are not count together: anybody can think of more."""
        histogram = self.took.get(path)
        if histogram is None:
            route = self.route(path)[0]
            if route not in self.routes and route not in self.watched:
                route = "other"
            histogram = self.took.setdefault(route, Histogram())
        histogram.add(seconds)

    # -- finding the handler

    def route(self, path: str) -> tuple[str, str]:
        """The route that a path goes, and the word in it that stands for a name."""
        words = path.split("/")
        for at in (-1, -2) if path not in self.routes else ():
            if len(words) > 1 - at and words[at]:
                route = "/".join([*words[:at], NAME, *words[at:][1:]])
                if route in self.routes:
                    return route, words[at]
        return path, ""

    def find(self, method: str, path: str) -> tuple[Handler | None, Answer]:
        """The handler of a route, or the answer when there is none: as of nsqd, the way to the one that was meant, if there are
        slashes, dots or capitals too many.
        """
        methods = self.routes.get(self.route(path)[0])
        if methods is None and path in self.watched:
            methods = {"GET": self.watched[path]}
        if methods is not None:
            handler = methods.get(method)
            if handler is not None:
                return handler, DONE
            allow = (b"allow", ", ".join(sorted({*methods, "OPTIONS"})).encode())
            if method == "OPTIONS":
                return None, Answer(200, b"", (allow,))
            return None, error(405, "METHOD_NOT_ALLOWED", allow)
        meant = "/" + "/".join(word for word in path.split("/") if word not in ("", "."))
        for near in (meant, meant.lower()):
            if method in self.routes.get(self.route(near)[0], {}):
                location = quote(near, errors="replace").encode()
                return None, Answer(301 if method == "GET" else 307, b"", ((b"location", location),))
        return None, error(404, "NOT_FOUND")

    # -- ASGI

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        self.begin()
        answer = await self._answer(scope, receive)
        body = b"" if scope["method"] == "HEAD" else answer.body
        headers = [*answer.headers, (b"content-length", b"%d" % len(answer.body))]
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, scope: Scope, receive: Receive) -> Answer:
        refusal = self.guard(scope["headers"], scope.get("client") is None)
        if refusal is not None:
            return refusal
        method, path = scope["method"], scope["path"]
        handler, answer = self.find(method, path)
        if handler is None:
            if 300 <= answer.status < 400 and scope["query_string"]:
                location = answer.headers[0][1] + b"?" + scope["query_string"]
                answer = answer._replace(headers=((b"location", location),))
            return answer
        client = scope.get("client")
        remote = f"{client[0]}:{client[1]}" if client else "local"
        user: User | None = None
        certificate = scope.get("state", {}).get("certificate", "")
        try:
            query = parse_query(scope["query_string"])
            try:
                user = self.admit(method, path, query, scope["headers"], remote, certificate)
            except Refused as refused:
                return self.unadmitted(refused)
            request = Request(
                method, path, scope["query_string"], query, scope["headers"], remote, _body_reader(receive), user,
                certificate,
            )  # fmt: skip
            given = handler(request)
            answer = await given if inspect.isawaitable(given) else given
        except Refused as refused:
            answer = error(refused.http, str(refused))
        except StoreError as failed:
            log.error("not stored method=%s path=%s error=%s", method, ascii(path)[:200], failed)
            answer = error(503, f"NOT_STORED: {failed}")
        except Exception:
            log.exception("request failed method=%s path=%s", method, ascii(path)[:200])
            answer = error(500, "INTERNAL_ERROR")
        if method != "GET" and path not in ("/pub", "/mpub"):
            asked = f"{method} {path}?{scope['query_string'].decode('latin-1')}"
            audit(user, remote, asked, "ok" if answer.status < 400 else str(answer.status))
        return answer


def _body_reader(receive: Receive) -> Callable[[int], Awaitable[bytes | None]]:
    async def body(limit: int) -> bytes | None:
        """The body; None when it is longer than `limit`."""
        pieces, size, more = [], 0, True
        while more:
            message = await receive()
            if message["type"] != "http.request":
                raise refuse(400, "INVALID_REQUEST")
            piece = message.get("body", b"")
            size += len(piece)
            if size > limit:
                return None
            pieces.append(piece)
            more = message.get("more_body", False)
        return b"".join(pieces)

    return body
