"""Reading a cluster with plain blocking sockets: no event loop, no thread, no group membership.

Made for Spark tasks and tools. One `LogReader` belongs to one task at a time; a lock keeps a second thread's calls
from mixing with it, no more.
"""

from __future__ import annotations

import itertools
import socket
import threading
import time
from struct import Struct
from types import TracebackType
from typing import Any, NamedTuple

from penstock.client import requests
from penstock.client.routes import MessageQueue, Route, parse_route, split_address, split_addresses
from penstock.errors import BrokerRefused, ClientError, ConnectionLost, NoRoute, Refused, TimedOut, WireError
from penstock.wire.codes import DLQ_PREFIX, RETRY_PREFIX, RequestCode, ResponseCode, read_int
from penstock.wire.fastjson import loads
from penstock.wire.remoting import FLAG_ONEWAY, RemotingCommand, decode, encode
from penstock.words import FRAME_BYTES_MAX

__all__ = ["Fetched", "LogReader", "MessageQueue"]

ROUTE_MS = 30_000
_TIMEVAL = Struct("@ll")

# pull answers that are results, not errors
_PULL_RESULTS = (
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)


class Fetched(NamedTuple):
    """What a fetch brought: status 0 found, 19 nothing there, 20 none matched, 21 the offset is out of range.

    `next_offset` is where to go on. `records` is the concatenated records as the broker stores them.
    """

    status: int
    next_offset: int
    min_offset: int
    max_offset: int
    records: bytes


class Line:
    """One connection; requests are answered in turn, an answer that nobody waits for any more is passed over."""

    def __init__(self, address: tuple[str, int], timeout_s: float) -> None:
        try:
            self._socket = socket.create_connection(address, timeout_s)
        except OSError as error:
            raise ConnectionLost(f"cannot connect to {address[0]}:{address[1]}: {error}") from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # The system keeps the time, and so a body of megabytes can be waited for in one call.
        self._socket.settimeout(None)
        self._patience = 0.0
        self._wait_at_most(timeout_s)
        self._opaques = itertools.count(1)

    def call(self, command: RemotingCommand, timeout_s: float) -> RemotingCommand:
        """The answer. TimedOut and ConnectionLost leave the line unusable."""
        self.ask(command, timeout_s)
        return command if command.flag & FLAG_ONEWAY else self.hear(command, timeout_s)

    def ask(self, command: RemotingCommand, timeout_s: float) -> None:
        """Send a request; errors as of `call`."""
        command.opaque = next(self._opaques) & 0x7FFFFFFF
        try:
            self._wait_at_most(timeout_s)
            self._socket.sendall(encode(command))
        except BlockingIOError as error:
            raise TimedOut(f"request {command.code} could not be sent within {timeout_s:g} s") from error
        except OSError as error:
            raise ConnectionLost(f"connection broke: {error}") from error

    def hear(self, command: RemotingCommand, timeout_s: float) -> RemotingCommand:
        """The answer to a request that was sent; errors as of `call`."""
        deadline = time.monotonic() + timeout_s
        try:
            while True:
                answer = self._receive(deadline)
                if answer.response and answer.opaque == command.opaque:
                    return answer
        except TimeoutError as error:
            raise TimedOut(f"no answer to request {command.code} within {timeout_s:g} s") from error
        except OSError as error:
            raise ConnectionLost(f"connection broke: {error}") from error

    def _receive(self, deadline: float) -> RemotingCommand:
        prefix = self._exactly(8, deadline)
        length = int.from_bytes(prefix[:4], "big")
        mark = int.from_bytes(prefix[4:], "big")
        header_size = mark & 0xFFFFFF
        if not 4 <= length <= FRAME_BYTES_MAX or header_size > length - 4:
            raise WireError(f"frame of {length} bytes with a header of {header_size}")
        header = self._exactly(header_size, deadline)
        return decode(mark >> 24, header, self._exactly(length - 4 - header_size, deadline))

    def _exactly(self, size: int, deadline: float) -> bytes:
        """So many bytes, received in place: nearly always in one call."""
        if not size:
            return b""
        parts: list[bytes] = []
        while size:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._wait_at_most(left)
            try:
                part = self._socket.recv(size, socket.MSG_WAITALL)
            except BlockingIOError:
                raise TimeoutError from None
            if not part:
                raise ConnectionResetError("closed by the peer")
            parts.append(part)
            size -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _wait_at_most(self, seconds: float) -> None:
        """Set how long one call to the system may take, when the time set before is not about the same."""
        if not 0.9 * self._patience <= seconds <= self._patience:
            self._patience = seconds
            micros = max(int(seconds * 1_000_000), 1)
            span = _TIMEVAL.pack(*divmod(micros, 1_000_000))
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, span)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, span)

    def close(self) -> None:
        self._socket.close()


class LogReader:
    """Topics, offsets and records of a cluster.

    `registry` is one or more name servers, ``a:9876;b:9876``; every call is done or fails within `timeout_s` seconds.
    Calls raise NoRoute for an unknown topic, BrokerRefused for an error answer, ConnectionLost and TimedOut.
    """

    def __init__(self, registry: str = "127.0.0.1:9876", *, timeout_s: float = 10.0) -> None:
        self._registries = split_addresses(registry)
        self._timeout_s = timeout_s
        self._lines: dict[tuple[str, int], Line] = {}
        self._routes: dict[str, tuple[float, Route]] = {}
        self._lock = threading.RLock()
        self._ahead: tuple[Any, Line, RemotingCommand] | None = None  # what was asked, where, the request

    def __enter__(self) -> LogReader:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; the reader may go on being used."""
        with self._lock:
            for line in self._lines.values():
                line.close()
            self._lines.clear()

    def topics(self) -> list[str]:
        """The users' topics, sorted: without the broker's own, retry and dead-letter topics."""
        every = loads(self._ask_registry(RemotingCommand(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)).body)
        system = loads(self._ask_registry(RemotingCommand(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)).body)
        hidden = {*_SYSTEM_TOPICS, *(system.get("topicList") or ())}
        return sorted(
            topic
            for topic in every.get("topicList") or ()
            if topic not in hidden
            and not topic.startswith((RETRY_PREFIX, DLQ_PREFIX, "rmq_sys_"))
            and not topic.endswith("_REPLY_TOPIC")
        )

    def queues(self, topic: str) -> list[MessageQueue]:
        """The message queues that can be read, sorted."""
        return self._route(topic).subscribe_queues()

    def offsets(self, queue: MessageQueue, *, durable: bool = True) -> tuple[int, int]:
        """(oldest offset, end offset); with `durable` the end of what is flushed."""
        low = self._ask(queue, requests.min_offset(queue))
        high = self._ask(queue, requests.max_offset(queue, durable=durable))
        return _number(low, "offset"), _number(high, "offset")

    def offset_at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The first offset with a store time >= timestamp_ms; the end offset when there is none."""
        return _number(self._ask(queue, requests.offset_at(queue, timestamp_ms, lower=True)), "offset")

    def fetch(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        max_bytes: int = 4 << 20,
        max_count: int = 65_536,
        tags: str = "*",
        group: str = "TOOLS_CONSUMER",
        durable: bool = True,
        until: int | None = None,
    ) -> Fetched:
        """Records from an offset on, at once: as many as there are within max_bytes and max_count, at least one.

        `until`: the caller goes on from `next_offset` up to this offset with the same wishes, so what comes next is asked
        for before this returns.
        """

        def asked(offset: int) -> tuple[Any, ...]:
            count = max_count if until is None else min(max_count, until - offset)
            return queue, offset, count, max_bytes, tags, group, durable

        with self._lock:
            answer = self._asked_before(asked(offset)) or self._ask(queue, _pull(*asked(offset)), _PULL_RESULTS)
            fetched = Fetched(
                answer.code,
                _number(answer, "nextBeginOffset"),
                _number(answer, "minOffset"),
                _number(answer, "maxOffset"),
                answer.body,
            )
            if until is not None and answer.code == ResponseCode.SUCCESS and fetched.next_offset < until:
                self._ask_ahead(asked(fetched.next_offset))
        return fetched

    def _ask_ahead(self, asked: tuple[Any, ...]) -> None:
        address = self._route(asked[0].topic).read_address(asked[0].broker)
        line = self._lines.get(split_address(address, 10911)) if address else None
        if line is not None:
            request = _pull(*asked)
            try:
                line.ask(request, self._timeout_s)
            except (ConnectionLost, TimedOut):  # whoever asks again learns it
                return
            self._ahead = asked, line, request

    def _asked_before(self, asked: tuple[Any, ...]) -> RemotingCommand | None:
        """The answer to what was asked ahead, if it was this and its line holds; errors are for the repetition."""
        ahead, self._ahead = self._ahead, None
        if ahead is None or ahead[0] != asked or ahead[1] not in self._lines.values():
            return None
        try:
            return _checked(ahead[1].hear(ahead[2], self._timeout_s), _PULL_RESULTS)
        except (ClientError, WireError):
            for address in [address for address, line in self._lines.items() if line is ahead[1]]:
                self._lines.pop(address).close()
            return None

    def data_folder(self, queue: MessageQueue) -> str:
        """The data folder of the queue's broker, as the broker names it; empty when it does not say."""
        try:
            body = self._ask(queue, RemotingCommand(RequestCode.GET_BROKER_CONFIG)).body
        except BrokerRefused:
            return ""
        lines = body.decode("utf-8", "replace").splitlines()
        return next((line.partition("=")[2] for line in lines if line.startswith("storePathRootDir=")), "")

    def committed(self, group: str, queue: MessageQueue) -> int | None:
        """The group's committed offset, None when it has none."""
        answer = self._ask(
            queue, requests.committed(group, queue), (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)
        )
        return _number(answer, "offset") if answer.code == ResponseCode.SUCCESS else None

    def commit(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Set the group's committed offset."""
        self._ask(queue, requests.commit(group, queue, offset))

    def _route(self, topic: str, *, fresh: bool = False) -> Route:
        with self._lock:
            asked, route = self._routes.get(topic, (0.0, None))
            if route is None or fresh or time.monotonic() - asked > ROUTE_MS / 1000:
                answer = self._ask_registry(requests.route(topic), (ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST))
                if answer.code != ResponseCode.SUCCESS:
                    self._routes.pop(topic, None)
                    raise NoRoute(f"no broker serves topic {topic!r}")
                route = parse_route(topic, answer.body)
                self._routes[topic] = time.monotonic(), route
            return route

    def _ask_registry(
        self, command: RemotingCommand, results: tuple[int, ...] = (ResponseCode.SUCCESS,)
    ) -> RemotingCommand:
        """The answer of the first registry that answers; the one that did is asked first next time."""
        lost: ClientError | None = None
        for address in list(self._registries):
            try:
                answer = self._call(address, command)
            except (ConnectionLost, TimedOut) as error:
                lost = error
                self._registries.append(self._registries.pop(0))
                continue
            return _checked(answer, results)
        assert lost is not None
        raise lost

    def _ask(
        self, queue: MessageQueue, command: RemotingCommand, results: tuple[int, ...] = (ResponseCode.SUCCESS,)
    ) -> RemotingCommand:
        """The answer of the queue's broker; a lost connection is made again once, with a fresh route."""
        for fresh in (False, True):
            address = self._route(queue.topic, fresh=fresh).read_address(queue.broker)
            try:
                if address is None:
                    raise NoRoute(f"broker {queue.broker!r} is away")
                return _checked(self._call(split_address(address, 10911), command), results)
            except (ConnectionLost, NoRoute):
                if fresh:
                    raise
        raise AssertionError("unreachable")

    def _call(self, address: tuple[str, int], command: RemotingCommand) -> RemotingCommand:
        """The answer; a connection that broke while it was idle is made again. All requests of a reader can repeat."""
        with self._lock:
            if address in self._lines:
                try:
                    return self._call_on(address, command)
                except ConnectionLost:
                    pass
            return self._call_on(address, command)

    def _call_on(self, address: tuple[str, int], command: RemotingCommand) -> RemotingCommand:
        line = self._lines.get(address)
        if line is None:
            line = self._lines[address] = Line(address, self._timeout_s)
        try:
            return line.call(command, self._timeout_s)
        except BaseException:  # an answer may still be on its way: never mistake it for the next one's
            line.close()
            del self._lines[address]
            raise


_SYSTEM_TOPICS = frozenset(
    (
        "TBW102",
        "SELF_TEST_TOPIC",
        "BenchmarkTest",
        "OFFSET_MOVED_EVENT",
        "SCHEDULE_TOPIC_XXXX",
        "RMQ_SYS_TRACE_TOPIC",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "DefaultCluster",
    )
)


def _pull(
    queue: MessageQueue, offset: int, max_count: int, max_bytes: int, tags: str, group: str, durable: bool
) -> RemotingCommand:
    return requests.pull(group, queue, offset, max_count=max_count, max_bytes=max_bytes, tags=tags, durable=durable)


def _number(answer: RemotingCommand, name: str) -> int:
    try:
        return read_int(name, answer.ext.get(name, ""))
    except Refused as error:
        raise WireError(f"answer {answer.code}: {error}") from None


def _checked(answer: RemotingCommand, results: tuple[int, ...]) -> RemotingCommand:
    if answer.code not in results:
        raise BrokerRefused(answer.code, answer.remark or "")
    return answer
