"""The broker as the console sees it: its HTTP API, asked once for however many look at the same."""

from __future__ import annotations

import asyncio
import http.client
import json
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from penstock.errors import ConfigError, PenstockError
from penstock.security import Security
from penstock.wire.addresses import split_address

TIMEOUT_S = 10.0
ANSWER_BYTES_MAX = 256 << 20
FRESH_S = 1.0  # an answer is as good as new for so long …
SHARE = 100  # … or for so many times what it took: the broker is not kept busy by those who look …
SHARE_OF_ALL = 60  # … or so many times what all answers took that are looked at, however many pages are open

EMPTY = (("", "", ""), ("/", "", ""))  # behind host and port

Json = Any  # what a broker told


class Unreachable(PenstockError):
    """The broker does not answer."""


class Refusal(PenstockError):
    """The broker says no; `status` is its HTTP status."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Source(Protocol):
    """What pages are drawn from."""

    url: str

    async def get(self, path: str, query: Mapping[str, object] | None = None) -> Json:
        """The answer to a GET. Unreachable, Refusal."""

    async def change(self, method: str, path: str, body: bytes = b"") -> bytes:
        """Ask for a change; what was known is asked anew."""

    def forget(self) -> None:
        """Something has changed."""


class Upstream(Source):
    """One broker by its HTTP API."""

    def __init__(self, url: str, security: Security, clock: Callable[[], float] = time.monotonic) -> None:
        try:
            parts = urlsplit(url if "//" in url else f"http://{url}")
            if parts.scheme not in ("http", "https") or (parts.path, parts.query, parts.fragment) not in EMPTY:
                raise ValueError(url)
            self._host, self._port = split_address(parts.netloc, 443 if parts.scheme == "https" else 4151)
        except ValueError:
            raise ConfigError(
                f"{url!r} is no address of a broker's HTTP port", "Such as http://127.0.0.1:4151"
            ) from None
        self.url = f"{parts.scheme}://{parts.netloc}"
        self._secure = parts.scheme == "https"
        self._security = security
        self._clock = clock
        self._kept: dict[str, tuple[float, Json]] = {}  # path → (good until, answer)
        self._took: dict[str, tuple[float, float]] = {}  # path → (told when, how long that took)
        self._asking: dict[str, asyncio.Future[Json]] = {}
        self.asked = 0

    async def get(self, path: str, query: Mapping[str, object] | None = None) -> Json:
        """The answer to a GET. Unreachable, Refusal."""
        given = {name: str(value) for name, value in (query or {}).items() if value not in (None, "")}
        target = path + (f"?{urlencode(given, quote_via=quote)}" if given else "")
        until, answer = self._kept.get(target, (0.0, None))
        if self._clock() < until:
            return answer
        asking = self._asking.get(target)
        if asking is None:
            asking = self._asking[target] = asyncio.ensure_future(self._ask(target))
            asking.add_done_callback(lambda done: self._done(target, done))
        return await asyncio.shield(asking)

    def _done(self, target: str, asked: asyncio.Future[Json]) -> None:
        self._asking.pop(target, None)
        if not asked.cancelled():
            asked.exception()  # was told to those who wait

    async def _ask(self, target: str) -> Json:
        begun = self._clock()
        self.asked += 1
        data = await asyncio.to_thread(self._exchange, "GET", target, b"")
        try:
            answer = msgspec.json.decode(data)
        except msgspec.DecodeError as error:
            raise Unreachable(f"what answers at {self.url} is no broker: {error}") from None
        now = self._clock()
        self._kept = {key: kept for key, kept in self._kept.items() if kept[0] > now}
        self._kept[target] = now + self._fresh_s(target, now, now - begun), answer
        return answer

    def _fresh_s(self, target: str, now: float, took: float) -> float:
        """How long an answer is as good as new."""
        all_s = sum(one for _, one in self._took.values())
        lately = now - 2 * max(FRESH_S, SHARE_OF_ALL * all_s)  # who was not asked since is looked at by nobody
        self._took = {key: told for key, told in self._took.items() if told[0] > lately}
        self._took[target] = now, took
        return max(FRESH_S, SHARE * took, SHARE_OF_ALL * sum(one for _, one in self._took.values()))

    async def change(self, method: str, path: str, body: bytes = b"") -> bytes:
        """Ask for a change; what was known is asked anew."""
        self.forget()
        try:
            return await asyncio.to_thread(self._exchange, method, path, body)
        finally:
            self.forget()

    def forget(self) -> None:
        """Something has changed."""
        self._kept.clear()

    def _exchange(self, method: str, target: str, body: bytes) -> bytes:
        connection = (
            http.client.HTTPSConnection(self._host, self._port, timeout=TIMEOUT_S, context=self._security.context)
            if self._secure
            else http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT_S)
        )
        try:
            connection.request(method, target, body=body or None, headers=self._security.http_headers)
            answer = connection.getresponse()
            data = answer.read(ANSWER_BYTES_MAX)
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(f"the broker at {self.url} does not answer: {error or type(error).__name__}") from None
        finally:
            connection.close()
        if answer.status >= 400:
            raise Refusal(answer.status, _message(data) or f"{answer.status} {answer.reason}")
        return data


def _message(data: bytes) -> str:
    try:
        told = json.loads(data)
    except ValueError:
        return ""
    return str(told.get("message", "")) if isinstance(told, dict) else ""
