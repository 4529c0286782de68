"""What a client says to name servers and brokers, without saying how: no socket, no loop, no thread here.

A conversation is a generator. It yields a `Call` and is sent the answer, or the error is thrown into it; what it returns is
the result. `aio.cluster` drives conversations over its connections, `reader` over blocking sockets:

    talk = directory.ask_queue(queue, request)      call = next(talk)      call = talk.send(answer) …      StopIteration
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Literal, NamedTuple, TypeVar

from penstock.client import requests
from penstock.client.routes import MessageQueue, Route, join_address, parse_route, split_addresses
from penstock.errors import BrokerRefused, ClientError, ConnectionLost, NoRoute, Refused, TimedOut, WireError
from penstock.wire.codes import MASTER_ID, ResponseCode, read_int
from penstock.wire.remoting import RemotingCommand

T = TypeVar("T")
OK = (ResponseCode.SUCCESS,)
AT_LEAST_S = 0.001  # where those asked before left nothing
SILENT_S = 30.0  # so long a name server that gave no answer is asked last by clients that begin


class Call(NamedTuple):
    """Ask this address and hand back the answer, whatever its code.

    `among`: how many name servers are still to be asked, this one too.
    """

    address: str
    command: RemotingCommand
    among: int = 0


Conversation = Generator[Call, RemotingCommand, T]


class Patience:
    """How long each answer of a conversation is waited for: a broker's `timeout_s`, those of name servers so long together."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._among = 0
        self._until_s = 0.0

    def left_for(self, among: int, now_s: float) -> float:
        """Seconds for the next answer: that of one `among` so many name servers, 0 for a broker's."""
        if not among:
            return self._timeout_s
        if among >= self._among:  # the first of a round
            self._until_s = now_s + self._timeout_s
        self._among = among
        return max((self._until_s - now_s) / among, AT_LEAST_S)


_silent_s: dict[str, float] = {}  # name servers of any client of this process that gave no answer, and when


def _was_silent(address: str) -> bool:
    """Whether this process has waited for a name server in vain lately: a task of Spark's is a client of its own."""
    since_s = _silent_s.get(address)
    if since_s is not None and time.monotonic() - since_s > SILENT_S:
        _silent_s.pop(address, None)
        return False
    return since_s is not None


class Directory:
    """The name servers a client asks, the one that answered last first, and the routes they gave.

    `kind` is what routes are asked for: "" finds log topics alone, "any" queue topics too. `route_learned` is called after
    every route that a conversation asked for again: with the error where there was one.
    """

    def __init__(
        self,
        registry: str,
        kind: Literal["", "any"] = "",
        route_learned: Callable[[str, ClientError | WireError | None], None] = lambda topic, error: None,
    ) -> None:
        self.registries = sorted((join_address(*address) for address in split_addresses(registry)), key=_was_silent)
        self.routes: dict[str, Route] = {}
        self._kind = kind
        self._route_learned = route_learned

    def answered_not(self, address: str) -> None:
        """Ask this name server last from now on; as do, for a while, the clients of this process that begin."""
        _silent_s[address] = time.monotonic()
        self.registries.remove(address)
        self.registries.append(address)

    def round(self) -> list[tuple[int, str]]:
        """The name servers as they are asked, each with the number of those still to be asked, itself among them."""
        return list(zip(range(len(self.registries), 0, -1), self.registries, strict=True))

    def ask_registry(self, command: RemotingCommand, results: tuple[int, ...] = OK) -> Conversation[RemotingCommand]:
        """The answer of the first name server that answers."""
        lost: ClientError | None = None
        for among, address in self.round():
            try:
                answer = yield Call(address, command, among)
            except (ConnectionLost, TimedOut) as error:
                if lost is None or error.retryable:  # one of them may be there again
                    lost = error
                self.answered_not(address)
                continue
            except GeneratorExit:  # the caller has no more time: the next one begins with another
                self.answered_not(address)
                raise
            return checked(answer, results)
        assert lost is not None
        raise lost

    def find_route(self, topic: str, kind: str | None = None) -> Conversation[Route]:
        """Ask where a topic lives. NoRoute when no broker serves it; its old route is then dropped."""
        request = requests.route(topic, self._kind if kind is None else kind)
        answer = yield from self.ask_registry(request, (ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST))
        if answer.code != ResponseCode.SUCCESS:
            self.routes.pop(topic, None)
            raise NoRoute(f"no broker serves topic {topic!r}")
        with making_sense(self.registries[0]):  # the one that answered
            route = self.routes[topic] = parse_route(topic, answer.body)
        return route

    def refresh_route(self, topic: str) -> Conversation[None]:
        """Ask for a route again; while no name server answers the old one stays."""
        try:
            yield from self.find_route(topic)
        except (ClientError, WireError) as error:
            self._route_learned(topic, error)
        else:
            self._route_learned(topic, None)

    def ask_queue(
        self, queue: MessageQueue, command: RemotingCommand, results: tuple[int, ...] = OK
    ) -> Conversation[RemotingCommand]:
        """The answer of the master of a queue's broker; after a lost connection once more with a fresh route."""
        if queue.topic not in self.routes:
            yield from self.find_route(queue.topic)
        try:
            return checked((yield Call(self.address(queue), command)), results)
        except (ConnectionLost, NoRoute):
            yield from self.refresh_route(queue.topic)
            return checked((yield Call(self.address(queue), command)), results)

    def address(self, queue: MessageQueue, broker_id: int = MASTER_ID) -> str:
        """The address to read a queue at, by the route that is known. NoRoute when its broker is away."""
        route = self.routes.get(queue.topic)
        if route is None:
            raise NoRoute(f"no broker serves topic {queue.topic!r}")
        address = route.read_address(queue.broker, broker_id)
        if address is None:
            raise NoRoute(f"broker {queue.broker!r} is away")
        return address


def checked(answer: RemotingCommand, results: tuple[int, ...] = OK) -> RemotingCommand:
    """The answer itself. BrokerRefused when its code is not one of `results`."""
    if answer.code not in results:
        raise BrokerRefused(answer.code, answer.remark or "")
    return answer


class Unaskable(TypeError):
    """An argument that no request can hold: the caller's mistake."""


class Senseless(WireError):
    """An answer that is nothing that was asked for; it names who gave it."""

    def __init__(self, who: str, why: str, limit: str = "") -> None:
        super().__init__(f"the answer of {who} makes no sense: {why}", limit)
        self.who = who
        self.why = why

    def __reduce__(self) -> tuple[type[Senseless], tuple[str, str, str]]:
        return type(self), (self.who, self.why, self.limit)


def check_texts(command: RemotingCommand) -> None:
    """Unaskable where a field of a request is no text: JSON would hold it, and the broker take it for another name."""
    for name, value in command.ext.items():
        if not isinstance(value, str):
            raise Unaskable(f"{name} is text, not {value!r}")


@contextmanager
def making_sense(who: str) -> Iterator[None]:
    """Around what reads an answer: WireError, which names who gave it, where that is nothing that was asked for."""
    try:
        yield
    except (Senseless, Unaskable, UnicodeEncodeError):  # told already, or of what is asked for
        raise
    except (AttributeError, LookupError, TypeError, ValueError, OverflowError) as error:
        raise Senseless(who, repr(error)) from error
    except WireError as error:
        raise Senseless(who, str(error), error.limit) from error


def of_log(route: Route) -> Route:
    """The route itself. ClientError when it is a queue topic's."""
    if route.kind == "queue":
        raise ClientError(
            f"{route.topic!r} is a queue topic, which has no offsets: a PushConsumer reads it, a Producer sends to it, and"
            " `penstock topic convert` makes a log topic of one that is empty"
        )
    return route


def number(answer: RemotingCommand, name: str) -> int:
    """A number of an answer's header. WireError when it is not there."""
    try:
        return read_int(name, answer.ext.get(name, ""))
    except Refused as error:
        raise WireError(f"answer with code {answer.code}: {error}") from None
