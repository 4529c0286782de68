"""Reading a cluster with plain blocking sockets: no event loop, no thread, no group membership.

Made for Spark tasks and tools. One `LogReader` belongs to one task at a time; a lock keeps a second thread's calls
from mixing with it, no more.
"""

from __future__ import annotations

import itertools
import socket
import threading
import time
from types import TracebackType
from typing import NamedTuple

from penstock.client import requests
from penstock.client.routes import MessageQueue, Route, parse_route, split_address, split_addresses
from penstock.errors import BrokerRefused, ClientError, ConnectionLost, NoRoute, Refused, TimedOut, WireError
from penstock.wire.codes import DLQ_PREFIX, RETRY_PREFIX, RequestCode, ResponseCode, read_int
from penstock.wire.fastjson import loads
from penstock.wire.remoting import FLAG_ONEWAY, FRAME_BYTES_MAX, RemotingCommand, decode, encode

__all__ = ["Fetched", "LogReader", "MessageQueue"]

ROUTE_MS = 30_000

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
    """One connection, one request at a time."""

    def __init__(self, address: tuple[str, int], timeout_s: float) -> None:
        try:
            self._socket = socket.create_connection(address, timeout_s)
        except OSError as error:
            raise ConnectionLost(f"cannot connect to {address[0]}:{address[1]}: {error}") from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._opaques = itertools.count(1)

    def call(self, command: RemotingCommand, timeout_s: float) -> RemotingCommand:
        """The answer. TimedOut and ConnectionLost leave the line unusable."""
        command.opaque = next(self._opaques) & 0x7FFFFFFF
        deadline = time.monotonic() + timeout_s
        try:
            self._socket.settimeout(timeout_s)
            self._socket.sendall(encode(command))
            if command.flag & FLAG_ONEWAY:
                return command
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
        rest = self._exactly(length - 4, deadline)
        return decode(mark >> 24, bytes(rest[:header_size]), bytes(memoryview(rest)[header_size:]))

    def _exactly(self, size: int, deadline: float) -> bytearray:
        data = bytearray(size)
        view = memoryview(data)
        while view:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._socket.settimeout(left)
            count = self._socket.recv_into(view)
            if not count:
                raise ConnectionResetError("closed by the peer")
            view = view[count:]
        return data

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
    ) -> Fetched:
        """Records from an offset on, at once: as many as there are within max_bytes and max_count, at least one."""
        request = requests.pull(
            group, queue, offset, max_count=max_count, max_bytes=max_bytes, tags=tags, durable=durable
        )
        answer = self._ask(queue, request, _PULL_RESULTS)
        return Fetched(
            answer.code,
            _number(answer, "nextBeginOffset"),
            _number(answer, "minOffset"),
            _number(answer, "maxOffset"),
            answer.body,
        )

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


def _number(answer: RemotingCommand, name: str) -> int:
    try:
        return read_int(name, answer.ext.get(name, ""))
    except Refused as error:
        raise WireError(f"answer {answer.code}: {error}") from None


def _checked(answer: RemotingCommand, results: tuple[int, ...]) -> RemotingCommand:
    if answer.code not in results:
        raise BrokerRefused(answer.code, answer.remark or "")
    return answer
