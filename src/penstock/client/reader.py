"""Reading a cluster with plain blocking sockets: no event loop, no thread, no group membership.

Made for Spark tasks and tools. One `LogReader` belongs to one task at a time; a lock keeps a second thread's calls
from mixing with it, no more. In a forked child a reader has connections of its own.
"""

from __future__ import annotations

import math
import os
import threading
import time
import weakref
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self, TypeVar

from penstock.client import requests
from penstock.client.conversation import OK, Conversation, Directory, Patience, checked, number, of_log
from penstock.client.line import Line
from penstock.client.requests import Pull
from penstock.client.routes import BROKER_PORT, MessageQueue, Route
from penstock.client.subscriptions import Subscription
from penstock.errors import BrokerRefused, ClientError, ConnectionLost, TimedOut, WireError
from penstock.security import Security, security_of
from penstock.wire import names
from penstock.wire.addresses import split_address
from penstock.wire.codes import DLQ_PREFIX, RETRY_PREFIX, RequestCode, ResponseCode
from penstock.wire.fastjson import loads
from penstock.wire.remoting import RemotingCommand

T = TypeVar("T")

ROUTE_MS = 30_000
SLAVE_S = 5.0  # for a slave to answer
LEFT_S = 10.0  # a slave that did not is left alone

_NO_QUEUE = "queueId["  # what brokers of all versions say of a queue that a topic does not have begins with this
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


class LogReader:
    """Topics, offsets and records of a cluster.

    `registry` is one or more name servers, ``a:9876;b:9876``; every call is done or fails within `timeout_s` seconds.
    With `slaves` records are fetched at a slave, where the broker has one that has them, else as ever.
    Calls raise NoRoute for an unknown topic, ClientError for a queue topic, BrokerRefused for an error answer,
    ConnectionLost and TimedOut.
    """

    def __init__(
        self,
        registry: str = "127.0.0.1:9876",
        *,
        timeout_s: float = 10.0,
        security: Security | str | Path | None = None,
        slaves: bool = False,
    ) -> None:
        if not timeout_s > 0:
            raise ValueError(f"timeout_s is above 0, not {timeout_s}")
        self._security = security_of(security)
        self._directory = Directory(registry, "any")  # so that queue topics can be told from none
        self._timeout_s = timeout_s
        self._slaves = slaves
        self._left_s: dict[
            tuple[str, int], float
        ] = {}  # slaves that did not answer, and until when they are left alone
        self._lines: dict[tuple[str, int], Line] = {}
        self._asked_s: dict[str, float] = {}  # when each route was asked for
        self._lock = threading.RLock()
        self._ahead: tuple[Pull, Line, RemotingCommand] | None = None  # what was asked, where, the request
        _readers.add(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; the reader may go on being used."""
        with self._lock:
            for line in self._lines.values():
                line.close()
            self._lines.clear()

    def _leave_to_parent(self) -> None:
        """This process is a child of the one that made the reader, whose connections are not ours: make others."""
        self._lock = threading.RLock()
        self._ahead = None
        self.close()  # which the parent's end of them does not notice

    def line(self, address: tuple[str, int], timeout_s: float | None = None) -> Line:
        """A new connection. ConnectionLost."""
        return Line(address, timeout_s or self._timeout_s, security=self._security)

    def topics(self) -> list[str]:
        """The users' topics, sorted: without the broker's own, retry and dead-letter topics."""
        every = loads(self._ask_registry(RemotingCommand(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)).body)
        system = loads(self._ask_registry(RemotingCommand(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)).body)
        hidden = {*_HIDDEN, *(system.get("topicList") or ())}
        return sorted(
            topic
            for topic in every.get("topicList") or ()
            if topic not in hidden
            and not topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
            and not topic.lower().startswith(names.SYSTEM_PREFIX)
            and not topic.endswith(names.REPLY_SUFFIX)
        )

    def queues(self, topic: str) -> list[MessageQueue]:
        """The message queues that can be read, sorted."""
        return self._route(topic).subscribe_queues()

    def forget_routes(self) -> None:
        """Ask the registry about each topic anew: it may have more queues, or be at other brokers, since it was asked last."""
        with self._lock:
            self._asked_s.clear()

    def offsets(self, queue: MessageQueue, *, durable: bool = True) -> tuple[int, int]:
        """(oldest offset, end offset); with `durable` the end of what is flushed."""
        low = self._ask(queue, requests.min_offset(queue))
        high = self._ask(queue, requests.max_offset(queue, durable=durable))
        return number(low, "offset"), number(high, "offset")

    def offset_at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The first offset with a store time >= timestamp_ms; the end offset when there is none."""
        return number(self._ask(queue, requests.offset_at(queue, timestamp_ms, lower=True)), "offset")

    def fetch(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        max_bytes: int = 4 << 20,
        max_count: int = 65_536,
        selection: Subscription | None = None,
        group: str = "TOOLS_CONSUMER",
        durable: bool = True,
        until: int | None = None,
    ) -> Fetched:
        """Records from an offset on, at once: as many as there are within max_bytes and max_count, at least one.

        Of these the broker gives those in the `selection`. `until`: the caller goes on from `next_offset` up to this
        offset with the same wishes, so what comes next is asked for before this returns.
        """
        chosen = Subscription(queue.topic) if selection is None else selection

        def pull(offset: int) -> Pull:
            count = max_count if until is None else min(max_count, until - offset)
            return Pull(group, queue, offset, count, max_bytes, chosen.expression, chosen.kind, durable=durable)

        with self._lock:
            asked = pull(offset)
            answer = (
                self._asked_before(asked) or self._at_slave(asked) or self._ask(queue, asked.command(), _PULL_RESULTS)
            )
            fetched = Fetched(
                answer.code,
                number(answer, "nextBeginOffset"),
                number(answer, "minOffset"),
                number(answer, "maxOffset"),
                answer.body,
            )
            if until is not None and answer.code == ResponseCode.SUCCESS and fetched.next_offset < until:
                self._ask_ahead(pull(fetched.next_offset))
        return fetched

    def _at_slave(self, pull: Pull) -> RemotingCommand | None:
        """A slave's answer; None where there is no slave, or it does not have what is asked for, or does not answer."""
        address = self._slave_of(pull.queue)
        if address is None:
            return None
        try:
            answer = checked(self._call(address, pull.command(), SLAVE_S), _PULL_RESULTS)
            return answer if answer.code == ResponseCode.SUCCESS else None  # what it has not, the master may have
        except (ClientError, WireError):
            self._left_s[address] = time.monotonic() + LEFT_S
            return None

    def _slave_of(self, queue: MessageQueue) -> tuple[str, int] | None:
        found = self._route(queue.topic).slave_address(queue) if self._slaves else None
        address = split_address(found, BROKER_PORT) if found else None
        return None if address is None or time.monotonic() < self._left_s.get(address, 0.0) else address

    def _ask_ahead(self, pull: Pull) -> None:
        address = self._slave_of(pull.queue)
        if address is None:
            master = self._route(pull.queue.topic).read_address(pull.queue.broker)
            address = split_address(master, BROKER_PORT) if master else None
        line = self._lines.get(address) if address else None
        if line is not None:
            request = pull.command()
            try:
                line.ask(request, self._timeout_s)
            except (ConnectionLost, TimedOut):  # the next request meets the same error and reports it
                return
            self._ahead = pull, line, request

    def _asked_before(self, pull: Pull) -> RemotingCommand | None:
        """The answer to what was asked ahead, if it was this and its line holds; errors are for the repetition."""
        ahead, self._ahead = self._ahead, None
        if ahead is None or ahead[0] != pull or ahead[1] not in self._lines.values():
            return None
        try:
            answer = checked(ahead[1].hear(ahead[2], self._timeout_s), _PULL_RESULTS)
            return answer if not self._slaves or answer.code == ResponseCode.SUCCESS else None
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

    def masters_now(self) -> dict[str, str]:
        """The brokers that take writes, as a registry knows them now: name to address."""
        value = loads(self._ask_registry(RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO)).body)
        try:
            return {
                str(name): str(data["brokerAddrs"]["0"])
                for name, data in value["brokerAddrTable"].items()
                if "0" in data["brokerAddrs"]
            }
        except (AttributeError, KeyError, TypeError) as error:
            raise WireError(f"not a cluster: {error!r}") from error

    def is_gone(self, queue: MessageQueue, *, group: str = "TOOLS_CONSUMER") -> bool:
        """Whether the topic was deleted, or made anew with fewer queues: the queue's broker is there and says so. Of one that
        is away this is not known.
        """
        address = self.masters_now().get(queue.broker)
        if address is None:
            return False
        first = Pull(group, queue, 0, 1, 1, "*", "TAG", durable=True)
        answer = self._call(split_address(address, BROKER_PORT), first.command())
        none_such = answer.code == ResponseCode.SYSTEM_ERROR and (answer.remark or "").startswith(_NO_QUEUE)
        return none_such or answer.code == ResponseCode.TOPIC_NOT_EXIST

    def committed(self, group: str, queue: MessageQueue) -> int | None:
        """The group's committed offset, None when it has none."""
        answer = self._ask(queue, requests.committed(group, queue), (*OK, ResponseCode.QUERY_NOT_FOUND))
        return number(answer, "offset") if answer.code == ResponseCode.SUCCESS else None

    def commit(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Set the group's committed offset."""
        self._ask(queue, requests.commit(group, queue, offset))

    def _route(self, topic: str, *, fresh: bool = False) -> Route:
        with self._lock:
            route = self._directory.routes.get(topic)
            if route is None or fresh or self._is_old(topic):
                route = self._converse(self._directory.find_route(topic))
                self._asked_s[topic] = time.monotonic()
            return of_log(route)

    def _is_old(self, topic: str) -> bool:
        return time.monotonic() - self._asked_s.get(topic, -math.inf) > ROUTE_MS / 1000

    def _ask_registry(self, command: RemotingCommand) -> RemotingCommand:
        """The answer of the first registry that answers; the one that did is asked first next time."""
        return self._converse(self._directory.ask_registry(command))

    def _ask(self, queue: MessageQueue, command: RemotingCommand, results: tuple[int, ...] = OK) -> RemotingCommand:
        """The answer of the queue's broker; a lost connection is made again once, with a fresh route."""
        self._route(queue.topic)
        return self._converse(self._directory.ask_queue(queue, command, results))

    def _converse(self, conversation: Conversation[T]) -> T:
        """Make the calls of a conversation; its result."""
        patience = Patience(self._timeout_s)
        try:
            call = next(conversation)
            while True:
                try:
                    timeout_s = patience.left_for(call.among, time.monotonic())
                    answer = self._call(split_address(call.address, BROKER_PORT), call.command, timeout_s)
                except (ClientError, WireError) as error:
                    call = conversation.throw(error)
                else:
                    call = conversation.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result

    def _call(
        self, address: tuple[str, int], command: RemotingCommand, timeout_s: float | None = None
    ) -> RemotingCommand:
        """The answer; a connection that broke while it was idle is made again. All requests of a reader can repeat."""
        with self._lock:
            if address in self._lines:
                try:
                    return self._call_on(address, command, timeout_s)
                except ConnectionLost:
                    pass
            return self._call_on(address, command, timeout_s)

    def _call_on(self, address: tuple[str, int], command: RemotingCommand, timeout_s: float | None) -> RemotingCommand:
        line = self._lines.get(address)
        if line is None:
            line = self._lines[address] = self.line(address, timeout_s)
        try:
            return line.call(command, timeout_s or self._timeout_s)
        except BaseException:  # an answer may still be on its way: never mistake it for the next one's
            line.close()
            del self._lines[address]
            raise


_readers: weakref.WeakSet[LogReader] = weakref.WeakSet()


def _forked() -> None:
    """In the child."""
    for reader in list(_readers):
        reader._leave_to_parent()


os.register_at_fork(after_in_child=_forked)

_HIDDEN = frozenset((*names.SYSTEM_TOPICS, "DefaultCluster"))
