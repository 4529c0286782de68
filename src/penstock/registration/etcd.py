"""etcd as the engine, by its gateway: plain HTTP and JSON. Members are asked one after the other, the last good one first.

Each member has `CALL_S` for its answer, all of it, however it comes. A connection that was used before may have died unheard
of: then the same member is asked once more on a fresh one. A change that may have been made is asked for again as it is: its
conditions do not hold any more then.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from contextlib import suppress

import httptools

from penstock.config import BrokerConfig
from penstock.errors import ConfigError, WireError
from penstock.registration.engine import EngineAway, endpoints_of
from penstock.security import Security, secret_of
from penstock.wire import etcd
from penstock.wire.etcd import Condition, Entry, Put

CALL_S = 0.5
LOGIN_S = 2.0  # a password is checked by bcrypt
ANSWER_BYTES_MAX = 1 << 20
READ_BYTES = 64 << 10
OK = 200
SURE = (etcd.LEASE_GONE, *etcd.NO_LOGIN, *etcd.DENIED)  # errors that say: it was not done

Endpoint = tuple[str, int]


class Refusal(WireError):
    """An answer with another status than 200: gRPC's code, and its text."""

    def __init__(self, status: int, code: int, text: str) -> None:
        super().__init__(f"{text or 'no text'} (status {status}, code {code})")
        self.code = code


class Answer:
    """What a parser has found so far."""

    def __init__(self) -> None:
        self.body = bytearray()
        self.whole = False
        self.lives = False  # the connection may be used again
        self._parser = httptools.HttpResponseParser(self)
        self.status = 0

    def on_body(self, data: bytes) -> None:
        """A piece."""
        self.body += data

    def on_message_complete(self) -> None:
        """The end of it."""
        self.whole = True
        self.status = self._parser.get_status_code()
        self.lives = self._parser.should_keep_alive()

    def feed(self, data: bytes) -> None:
        """Some bytes. WireError."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            raise WireError("the engine does not speak HTTP") from None
        if len(self.body) > ANSWER_BYTES_MAX:
            raise WireError("an answer of the engine that does not end")


class Line:
    """One connection to one member."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.used = False  # for an answer before

    async def ask(self, head: bytes, body: bytes) -> Answer:
        """Send a request and wait for the whole answer. WireError, OSError."""
        self._writer.write(head + body)
        answer = Answer()
        while not answer.whole:
            data = await self._reader.read(READ_BYTES)
            if not data:
                raise ConnectionResetError("the engine has closed the connection")
            answer.feed(data)
        self.used = True
        return answer

    def close(self) -> None:
        """Let go of it."""
        self._writer.transport.abort()


class Tries:
    """What became of one request so far."""

    def __init__(self) -> None:
        self.unheard = 0  # how often it may have been carried out, and no answer came

    def lose(self) -> None:
        """Once more."""
        self.unheard += 1


class Etcd:
    """The members of one etcd; an `Engine`."""

    def __init__(self, config: BrokerConfig) -> None:
        tls, self.endpoints = endpoints_of(config)
        self._tls = _context(config) if tls else None
        self._user = config.engine_user
        self._password = secret_of(config.engine_password_file) if config.engine_user else ""
        self._token = ""
        self._first = 0  # who answered last
        self._idle: dict[Endpoint, list[Line]] = {}
        self._lines: set[Line] = set()  # all that are open

    # -- what an engine does -----------------------------------------------------------------------------------------

    async def grant(self, ttl_s: int) -> int:
        """See Engine."""
        return etcd.read_grant(await self._ask(etcd.GRANT, etcd.grant(ttl_s)))

    async def keep(self, lease: int) -> bool:
        """See Engine."""
        try:
            return etcd.read_keep(await self._ask(etcd.KEEP, etcd.lease(lease)), lease)
        except Refusal:
            return False

    async def revoke(self, lease: int) -> None:
        """See Engine."""
        with suppress(Refusal):
            await self._ask(etcd.REVOKE, etcd.lease(lease))

    async def read(self, prefix: str) -> dict[str, Entry]:
        """See Engine."""
        return etcd.read_entries(await self._ask(etcd.RANGE, etcd.below(prefix)))

    async def change(self, conditions: Sequence[Condition], puts: Sequence[Put]) -> int:
        """See Engine."""
        tries = Tries()
        try:
            revision = etcd.read_change(await self._ask(etcd.CHANGE, etcd.change(conditions, puts), tries))
        except Refusal:
            revision = 0
        if not revision and tries.unheard:
            raise EngineAway("no answer to a change, and one that it cannot be made any more to the same one")
        return revision

    async def close(self) -> None:
        """See Engine."""
        self._idle.clear()
        lines, self._lines = self._lines, set()
        for line in lines:
            line.close()
        await asyncio.sleep(0)  # a loop that ends must not find them open

    # -- members and connections -------------------------------------------------------------------------------------

    async def _ask(self, path: str, body: bytes, tries: Tries | None = None) -> bytes:
        """The body of the first answer that says something. EngineAway; Refusal when a lease is gone."""
        tries, why = tries or Tries(), []
        count = len(self.endpoints)
        for n in range(self._first, self._first + count):
            endpoint = self.endpoints[n % count]
            try:
                data = await self._ask_member(endpoint, path, body, tries)
            except Refusal as refusal:
                if refusal.code == etcd.LEASE_GONE:
                    self._first = n % count
                    raise
                why.append(f"{_name(endpoint)}: {refusal}")
            except TimeoutError:
                why.append(f"{_name(endpoint)}: no answer in time")
            except (OSError, WireError, ValueError) as error:
                why.append(f"{_name(endpoint)}: {str(error) or type(error).__name__}")
            else:
                self._first = n % count
                return data
        raise EngineAway("; ".join(why))

    async def _ask_member(self, endpoint: Endpoint, path: str, body: bytes, tries: Tries) -> bytes:
        if self._user and not self._token:
            await self._log_in(endpoint)
        try:
            return await self._call(endpoint, path, body, CALL_S, tries)
        except Refusal as refusal:
            if not self._user or refusal.code not in etcd.NO_LOGIN:
                raise
        await self._log_in(endpoint)  # tokens end
        return await self._call(endpoint, path, body, CALL_S, tries)

    async def _log_in(self, endpoint: Endpoint) -> None:
        self._token = ""
        answer = await self._call(endpoint, etcd.LOGIN, etcd.login(self._user, self._password), LOGIN_S, Tries())
        self._token = etcd.read_login(answer)

    async def _call(self, endpoint: Endpoint, path: str, body: bytes, limit_s: float, tries: Tries) -> bytes:
        token = f"Authorization: {self._token}\r\n" if self._token else ""
        head = (
            f"POST /v3/{path} HTTP/1.1\r\nHost: {_name(endpoint)}\r\nContent-Type: application/json\r\n{token}"
            f"Content-Length: {len(body)}\r\n\r\n"
        ).encode()
        idle = self._idle.setdefault(endpoint, [])
        async with asyncio.timeout(limit_s):
            while True:
                line = idle.pop() if idle else await self._connect(endpoint)
                try:
                    answer = await line.ask(head, body)
                except BaseException as error:
                    self._drop(line)
                    tries.lose()
                    if isinstance(error, OSError) and line.used:
                        continue
                    raise
                break
        if answer.lives:
            idle.append(line)
        else:
            self._drop(line)
        data = bytes(answer.body)
        if answer.status != OK:
            code, text = etcd.read_error(data)
            if code not in SURE:
                tries.lose()
            raise Refusal(answer.status, code, text)
        return data

    async def _connect(self, endpoint: Endpoint) -> Line:
        host, port = endpoint
        line = Line(*await asyncio.open_connection(host, port, ssl=self._tls, limit=READ_BYTES))
        self._lines.add(line)
        return line

    def _drop(self, line: Line) -> None:
        self._lines.discard(line)
        line.close()


def _name(endpoint: Endpoint) -> str:
    host, port = endpoint
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _context(config: BrokerConfig) -> ssl.SSLContext:
    context = Security(True, config.engine_ca_file, config.engine_cert, config.engine_key).context
    if context is None:
        raise ConfigError("the engine is asked by TLS, and there is none")
    return context


def try_member(config: BrokerConfig, member: Endpoint) -> tuple[str, str]:
    """(address, why this one member does not answer; empty: it does), from outside of any loop."""

    async def ask() -> str:
        etcd = Etcd(config)
        etcd.endpoints = [member]
        try:
            await etcd.read(f"{config.engine_prefix}/")
        except EngineAway as error:
            return str(error)
        finally:
            await etcd.close()
        return ""

    try:
        return _name(member), asyncio.run(ask())
    except ConfigError as error:
        return _name(member), str(error)
