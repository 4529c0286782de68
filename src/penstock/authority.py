"""Asks auth servers what a client may do (NSQ's AUTH), in threads, and asks again when an answer has grown old.

The secret goes by POST, or in the URL when `auth_http_request_method` is get, which is all that old auth servers know.
Redirects are not followed and proxies of the environment are not used: the servers are those of the settings.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import re
from collections.abc import Callable
from typing import NamedTuple

from penstock.config import BrokerConfig, parts
from penstock.errors import ConfigError
from penstock.fronts.nsq.shared import Asking
from penstock.wire.fastjson import folded

log = logging.getLogger("penstock.auth")

ANSWER_BYTES_MAX = 1 << 20
RULES_MAX = 1_000
TTL_S_MAX = 365 * 86_400
LOOK_S = 30.0  # how long a session that is gone may be remembered


class Rule(NamedTuple):
    """An entry of `authorizations`."""

    topic: re.Pattern[str]
    channels: tuple[re.Pattern[str], ...]
    permissions: frozenset[str]


class Rights:
    """What an auth server granted."""

    def __init__(self, identity: str, identity_url: str, ttl_s: int, rules: tuple[Rule, ...]) -> None:
        self.identity = identity
        self.identity_url = identity_url
        self.ttl_s = ttl_s
        self.rules = rules

    def grants(self, permission: bytes, topic: bytes, channel: bytes, mono_ms: int) -> bool:
        """Whether some rule allows this. Expressions are searched for, as nsqd does, not anchored."""
        wanted, topic_name, channel_name = permission.decode(), topic.decode(), channel.decode()
        return any(
            wanted in rule.permissions
            and rule.topic.search(topic_name)
            and any(one.search(channel_name) for one in rule.channels)
            for rule in self.rules
        )


NONE = Rights("", "", 0, ())


def read_rights(data: bytes) -> Rights:
    """The rights in an answer. ValueError for what is no proper one."""
    try:
        told = json.loads(data)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    told = folded(told) if isinstance(told, dict) else {}
    entries, ttl = told.get("authorizations"), told.get("ttl")
    if type(ttl) is not int or ttl <= 0:
        raise ValueError("ttl is not a number of seconds")
    if entries is None:
        entries = []
    if not isinstance(entries, list) or len(entries) > RULES_MAX:
        raise ValueError("authorizations is no list, or too long a one")
    rules = tuple(_rule(entry) for entry in entries)
    return Rights(_text(told, "identity"), _text(told, "identity_url"), min(ttl, TTL_S_MAX), rules)


def _rule(entry: object) -> Rule:
    if not isinstance(entry, dict):
        raise ValueError("an authorization is an object")
    entry = folded(entry)
    channels, permissions = entry.get("channels") or [], entry.get("permissions") or []
    if not all(isinstance(one, list) for one in (channels, permissions)):
        raise ValueError("channels and permissions are lists")
    for word in permissions:
        if word not in ("subscribe", "publish"):
            raise ValueError(f"unknown permission {ascii(word)[:100]}")
    try:
        return Rule(
            re.compile(_text(entry, "topic")), tuple(re.compile(str(one)) for one in channels), frozenset(permissions)
        )
    except re.error as error:
        raise ValueError(f"no regular expression: {error}") from None


def _text(told: dict[str, object], name: str) -> str:
    value = told.get(name)
    if not isinstance(value, str | None):
        raise ValueError(f"{name} is no text")
    return value or ""


class Authority:
    """The auth servers of one broker. `ask` is what an `NsqFront` calls."""

    def __init__(self, config: BrokerConfig, begin: Callable[[], None]) -> None:
        if config.auth_http_request_method.lower() not in ("get", "post"):
            raise ConfigError(
                f"auth_http_request_method cannot be {config.auth_http_request_method!r}", "It is get or post."
            )
        self.begin = begin  # the turn of the loop in which a session goes on
        self.servers = parts(config.auth_http_address)
        self.method = config.auth_http_request_method.upper()
        self.connect_s = config.http_client_connect_timeout_ms / 1000
        self.request_s = config.http_client_request_timeout_ms / 1000
        self._tasks: set[asyncio.Task[None]] = set()

    def ask(self, session: Asking, secret: bytes, done: Callable[[Rights | None], None]) -> None:
        """`done` gets the rights, or None when no server gives a proper answer."""
        task = asyncio.ensure_future(self._ask(session, secret, done))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Ask no more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _ask(self, session: Asking, secret: bytes, done: Callable[[Rights | None], None]) -> None:
        values = {
            "common_name": session.certificate,
            "remote_ip": session.remote.rpartition(":")[0].strip("[]"),
            "secret": secret.decode("utf-8", "replace"),
            "tls": "true" if any(layer.name == "tls" for layer in session.layers) else "false",
        }
        loop = asyncio.get_running_loop()
        rights = await self._query(values)
        if not session.ended:
            self.begin()
            done(rights)
        while rights is not None and rights.rules and not session.ended:
            old_s = loop.time() + rights.ttl_s
            while loop.time() < old_s and not session.ended:
                await asyncio.sleep(min(LOOK_S, max(0.0, old_s - loop.time())))
            if not session.ended:
                rights = await self._query(values)
                session.grant(rights or NONE)

    async def _query(self, values: dict[str, str]) -> Rights | None:
        """What `query` finds. Where the system gives no thread for it, nobody is asked, and nothing is granted."""
        try:
            return await asyncio.get_running_loop().run_in_executor(None, self.query, values)
        except RuntimeError as error:
            log.warning("auth servers are not asked error=%s", error)
            return None

    def query(self, values: dict[str, str]) -> Rights | None:
        """Ask one server after the other, beginning with any; in a thread."""
        first = random.randrange(len(self.servers))
        for server in self.servers[first:] + self.servers[:first]:
            try:
                return read_rights(self._fetch(server, values))
            except (OSError, ValueError) as error:
                log.warning("auth server gave no answer server=%s error=%s", server, error)
        return None

    def _fetch(self, server: str, values: dict[str, str]) -> bytes:
        from http.client import HTTPConnection, HTTPException, HTTPSConnection
        from urllib.parse import urlencode, urlsplit

        url = urlsplit(server if "://" in server else f"http://{server}/auth")
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ValueError("not an http or https address")
        make = HTTPSConnection if url.scheme == "https" else HTTPConnection
        connection = make(url.hostname, url.port, timeout=self.connect_s)
        headers = {"Accept": "application/vnd.nsq; version=1.0"}
        path, body = url.path or "/", None
        if self.method == "POST":
            headers["Content-Type"] = "application/json"
            body = json.dumps({name: [value] for name, value in values.items()})
            path += f"?{url.query}" if url.query else ""
        else:
            path += f"?{url.query}&{urlencode(values)}" if url.query else f"?{urlencode(values)}"
        try:
            connection.connect()
            connection.sock.settimeout(self.request_s)
            connection.request(self.method, path, body, headers)
            answer = connection.getresponse()
            data = answer.read(ANSWER_BYTES_MAX)
        except HTTPException as error:
            raise ValueError(f"no HTTP: {type(error).__name__}") from None
        finally:
            connection.close()
        if answer.status != 200:
            raise ValueError(f"status {answer.status}")
        return data
