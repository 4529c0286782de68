"""What every administration call stands on: name servers and masters are asked, and answer with JSON."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from penstock.client.aio.cluster import Cluster
from penstock.client.conversation import making_sense, number
from penstock.client.routes import Json, MessageQueue, join_address, split_addresses
from penstock.client.rows import ChangeRow, ClientRow, KnownRow, rows_of
from penstock.clock import Clock
from penstock.errors import (
    BrokerRefused,
    ConnectionLost,
    NoRoute,
    NotEverywhere,
    NotFound,
    PenstockError,
    TimedOut,
    WireError,
)
from penstock.security import Security
from penstock.wire.codes import RequestCode, ResponseCode
from penstock.wire.fastjson import loads
from penstock.wire.remoting import RemotingCommand

QUEUE_COUNT = 8  # of a new topic, on each broker
AT_ONCE = 256  # requests on their way, of calls that make many
LEFT_ALONE_MS = 60_000  # is a broker that did not answer
T = TypeVar("T")


@dataclass(frozen=True)
class ClusterInfo:
    """`brokers`: broker name to broker id to address; `clusters`: cluster to its broker names."""

    brokers: dict[str, dict[int, str]]
    clusters: dict[str, list[str]]


class ClusterAdmin:
    """A client that looks at a cluster; of one event loop.

    With `partial` what is asked of all brokers is what those say that answer, and `missed` says which did not, by name, and
    why: they are asked again after a minute, and named no more once they answer. One that does not know a request (RocketMQ's
    own broker, or an older one) is missed, too, and asked everything else. When none answers the first one's error is raised,
    as without `partial` any one's is.
    """

    def __init__(
        self,
        registry: str = "127.0.0.1:9876",
        *,
        timeout_s: float = 10.0,
        security: Security | str | Path | None = None,
        clock: Clock | None = None,
        partial: bool = False,
    ) -> None:
        self.missed: dict[str, PenstockError] = {}
        self._missed_ms: dict[str, int] = {}  # when each did not answer, by the monotonic clock
        self._partial = partial
        self._cluster = Cluster(registry, timeout_s=timeout_s, clock=clock, security=security)
        self._registries = [join_address(*address) for address in split_addresses(registry)]

    async def start(self) -> Self:
        """Connect to a name server. ConnectionLost when none answers."""
        await self._cluster.start()
        return self

    async def close(self) -> None:
        """Close the connections."""
        await self._cluster.close()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    async def cluster_info(self) -> ClusterInfo:
        """Which brokers there are."""
        value = await self._json(RequestCode.GET_BROKER_CLUSTER_INFO)
        with making_sense(self._cluster.registries[0]):
            brokers = {
                str(name): {int(i): str(address) for i, address in data["brokerAddrs"].items()}
                for name, data in (value.get("brokerAddrTable") or {}).items()
            }
            clusters = {str(c): list(map(str, names)) for c, names in (value.get("clusterAddrTable") or {}).items()}
        return ClusterInfo(brokers, clusters)

    async def runtime_info(self, address: str) -> dict[str, str]:
        """What one broker, master or slave, says of itself: RocketMQ's figures, and more."""
        table = (await self._own(address, RequestCode.GET_BROKER_RUNTIME_INFO)).get("table")
        with making_sense(address):
            if not isinstance(table, dict):
                raise WireError("not a table of figures")
        return {str(name): str(value) for name, value in table.items()}

    async def runtime_infos(self, addresses: Iterable[str]) -> dict[str, dict[str, str] | PenstockError]:
        """The same of several that are asked side by side: by address what each says, or why it does not."""
        asked = dict.fromkeys(addresses)
        told = await asyncio.gather(*map(self.runtime_info, asked), return_exceptions=True)
        found: dict[str, dict[str, str] | PenstockError] = {}
        for address, one in zip(asked, told, strict=True):
            if isinstance(one, BaseException) and not isinstance(one, PenstockError):
                raise one
            found[address] = one
        return found

    async def clients(self) -> list[Json]:
        """Who is connected to each broker: producers and consumers of both protocols."""

        async def connected(address: str) -> list[Json]:
            found: list[Json] = []
            after: str | None = ""
            while after is not None:
                rows, after = await self._page(address, RequestCode.CLIENTS, ClientRow, after=after)
                found += rows
            return found

        answers = await self._each(connected)
        return [{"broker": broker, **row} for broker, rows in answers.items() for row in rows]

    async def disconnect(self, address: str) -> int:
        """End the connections that clients have from this address, at whichever broker; how many those were. They may come
        again. NotFound when there are none.
        """

        async def end(at: str) -> int:
            answer = await self._own(at, RequestCode.CLIENT_DISCONNECT, address=address)
            with making_sense(at):
                return int(answer["count"])

        count = sum((await self._at_all(end, await self._by_name(away=True))).values())
        if not count:
            raise NotFound(f"no client is connected from {address}", "`penstock client ls` lists them.")
        return count

    async def drop_stage(self, sink: str, run: str) -> int:
        """Forget all rows that are staged for a sink, at every broker; how many stages those were. BrokerRefused when a
        newer run than this one writes to it.
        """

        async def drop(at: str) -> int:
            request = RemotingCommand(RequestCode.STAGE_DROP, {"sink": sink, "run": run}, b"{}")
            return int((await self._cluster.ask(at, request)).ext.get("count", "0"))

        return sum((await self._at_all(drop, await self._by_name(away=True))).values())

    async def reload_config(self, broker: str | None = None) -> list[Json]:
        """Have all brokers, or those of one name, read their settings again, slaves as well: what changed, and whether that holds
        now. NotEverywhere where some do not.
        """
        brokers = (await self.cluster_info()).brokers
        nodes = [
            (name, *node)
            for name in sorted(brokers)
            if broker in (None, name)
            for node in sorted(brokers[name].items())
        ]
        if not nodes:
            raise NoRoute(f"no broker {broker!r} is there" if broker else "no broker is there")
        addresses = {f"{name}/{number}" if number else name: address for name, number, address in nodes}

        async def reload(at: str) -> list[Json]:
            answer = await self._own(at, RequestCode.CONFIG_RELOAD)
            with making_sense(at):
                return rows_of(answer["changes"], ChangeRow)

        answers = await self._at_all(reload, addresses)
        return [
            {"broker": name, "id": number, **row}
            for (name, number, _), answer in zip(nodes, answers.values(), strict=True)
            for row in answer
        ]

    async def promote(self, address: str, *, accept_loss: bool = False) -> None:
        """Let the slave at this address be the master of its replica set; its old master must be stopped. BrokerRefused where
        acknowledged messages could be lost, unless `accept_loss`.
        """
        ext = {"acceptLoss": _word(accept_loss)}
        await self._cluster.ask(address, RemotingCommand(RequestCode.HA_PROMOTE, ext))

    async def switch(self, address: str, node: str = "") -> str:
        """Let the master at this address begin to change places with a slave in sync, the one of this name or any; its name."""
        return str((await self._own(address, RequestCode.HA_SWITCH, node=node)).get("node", ""))

    async def pause_failover(self, address: str, paused: bool) -> bool:
        """Let the replica set of the node at this address have no failover by itself, or have it again; whether that is new.
        BrokerRefused without an engine, or when it does not answer.
        """
        return bool((await self._own(address, RequestCode.HA_PAUSE, paused=_word(paused))).get("changed"))

    async def forget_node(self, address: str, node: str, *, dry_run: bool = False) -> Json:
        """Let the node at this address know nothing of another one of its replica set any more: what it knew. BrokerRefused
        while that one is there.
        """
        known = await self._own(address, RequestCode.HA_FORGET, node=node, dryRun=_word(dry_run))
        with making_sense(address):
            return rows_of([known], KnownRow)[0]

    async def _own(self, address: str, code: RequestCode, /, **ext: str) -> Json:
        answer = await self._cluster.ask(address, RemotingCommand(code, dict(ext)))
        with making_sense(address):
            return object_of(answer.body)

    async def _page(
        self, address: str, code: RequestCode, shape: type, /, *, field: str = "rows", **ext: str
    ) -> tuple[list[Json], str | None]:
        """Some rows, of this shape, of an answer that comes in pages, and where to go on; None at the end."""
        page = await self._own(address, code, **ext)
        with making_sense(address):
            rows, after = rows_of(page[field], shape), page["next"]
            if not isinstance(after, str | None):
                raise WireError(f"{after!r} is no place to go on from")
        return rows, after

    async def _number(self, queue: MessageQueue, request: RemotingCommand, name: str) -> int:
        """A number of what a queue's broker answers."""
        answer = await self._cluster.ask_queue(queue, request)
        with making_sense(f"broker {queue.broker}"):
            return number(answer, name)

    async def _forget_route(self, topic: str) -> None:
        """Let every name server forget where a log topic was: they keep what brokers no longer tell, and tell each other nothing.
        One that does not answer is passed over, for it knows nothing after its next start; unless none does.
        """
        request = RemotingCommand(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": topic})
        asked = [self._cluster.ask(address, request) for address in self._registries]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        failed = [answer for answer in answers if isinstance(answer, BaseException)]
        for error in failed:
            if len(failed) == len(answers) or not isinstance(error, ConnectionLost | TimedOut):
                raise error
        self._cluster.routes.pop(topic, None)

    async def _json(self, code: int, ext: dict[str, str] | None = None) -> Json:
        answer = await self._cluster.ask_registry(RemotingCommand(code, ext))
        with making_sense(self._cluster.registries[0]):
            return object_of(answer.body)

    async def _names(self, code: int) -> list[str]:
        value = await self._json(code)
        with making_sense(self._cluster.registries[0]):
            return list(map(str, value.get("topicList") or ()))

    async def _masters(self, broker: str | None = None) -> list[str]:
        return list((await self._by_name(broker)).values())

    async def _by_name(self, broker: str | None = None, *, away: bool = False) -> dict[str, str]:
        """Broker name to its master's address, of all or of one; with `away` also those that have none now: "". NoRoute when
        there is no master.
        """
        brokers = (await self.cluster_info()).brokers
        named = {name: brokers[name].get(0, "") for name in sorted(brokers) if broker in (None, name)}
        if not any(named.values()):
            raise NoRoute(f"no broker {broker!r} is there" if broker else "no broker is there")
        return {name: address for name, address in named.items() if address or away}

    async def _address_of(self, broker: str) -> str:
        """Of the master of this name. NoRoute, TypeError."""
        if not isinstance(broker, str):
            raise TypeError(f"the name of a broker is text, not {broker!r}")
        return (await self._by_name(broker))[broker]

    async def _each(self, ask: Callable[[str], Awaitable[T]], brokers: Mapping[str, str] | None = None) -> dict[str, T]:
        """What the masters, or these brokers, answer to a question, by name; they are asked side by side, each by its address.
        What one that cannot be reached would say is missing where this client is `partial`.
        """
        found, missed = await self._answers(ask, brokers)
        if missed and not self._partial:
            raise next(iter(missed.values()))
        return found

    async def _answers(
        self, ask: Callable[[str], Awaitable[T]], brokers: Mapping[str, str] | None = None
    ) -> tuple[dict[str, T], dict[str, PenstockError]]:
        """The same, and which do not answer, whether this client is `partial` or not; the error of the first where none does. A
        refusal is raised: where one does not answer it is not known to be the last word, and `missed` says so.
        """
        every = await self._by_name() if brokers is None else brokers
        asked = {name: address for name, address in every.items() if not self._is_left_alone(name)} or every
        answers = await asyncio.gather(*[told(ask, at) for at in asked.values()], return_exceptions=True)
        found: dict[str, T] = {}
        missed: dict[str, PenstockError] = {}
        refused: list[PenstockError] = []
        for name, answer in zip(asked, answers, strict=True):
            if isinstance(answer, PenstockError):
                if _is_away(answer) or (self._partial and _is_unknown(answer)):
                    missed[name] = answer
                else:
                    refused.append(answer)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                found[name] = answer
        if missed and not found and not (refused and self._partial):
            raise next(iter(missed.values()))
        if self._partial:
            self._note(found, missed)
        if refused:
            raise refused[0] if self._partial or not missed else next(iter(missed.values()))
        return found, missed

    def _note(self, found: Iterable[str], missed: Mapping[str, PenstockError]) -> None:
        """These brokers answered, and those did not."""
        for name in found:
            if name in self.missed and _is_away(self.missed[name]):
                del self.missed[name]
        self.missed |= missed
        away = [name for name, error in missed.items() if _is_away(error)]
        self._missed_ms |= dict.fromkeys(away, self._cluster.clock.monotonic_ms())

    def _is_left_alone(self, broker: str) -> bool:
        """Whether a broker is not asked now: it did not answer a moment ago."""
        since_ms = self._cluster.clock.monotonic_ms() - self._missed_ms.get(broker, 0)
        return broker in self.missed and since_ms < LEFT_ALONE_MS

    async def _at_all(self, ask: Callable[[str], Awaitable[T]], brokers: Mapping[str, str]) -> dict[str, T]:
        """What brokers answer to a change, by name; they are asked side by side, each by its address ("": it has no master).
        NotEverywhere says which did not make it, when others did; when none did, the first one's error is raised.
        """

        async def one(address: str) -> T:
            if not address:
                raise NoRoute("it has no master now")
            return await told(ask, address)

        answers = await asyncio.gather(*map(one, brokers.values()), return_exceptions=True)
        done: dict[str, T] = {}
        missed: dict[str, Exception] = {}
        for name, answer in zip(brokers, answers, strict=True):
            if isinstance(answer, PenstockError):
                missed[name] = answer
            elif isinstance(answer, BaseException):
                raise answer
            else:
                done[name] = answer
        if missed and done:
            raise NotEverywhere(missed)
        if missed:
            raise next(iter(missed.values()))
        return done


def _is_away(error: PenstockError) -> bool:
    """Whether a broker could not be reached."""
    return isinstance(error, ConnectionLost | TimedOut)


def _is_unknown(error: PenstockError) -> bool:
    """Whether a broker does not know what it was asked for."""
    return isinstance(error, BrokerRefused) and error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


async def told(ask: Callable[[str], Awaitable[T]], address: str) -> T:
    """What the broker at an address answers to a question. WireError, which names it, where that makes no sense."""
    with making_sense(address):
        return await ask(address)


def object_of(body: bytes) -> Json:
    """The JSON object that a body is. WireError."""
    value = loads(body)
    if not isinstance(value, dict):
        raise WireError("the body is no object")
    return value


def objects(rows: object) -> list[Json]:
    """The rows themselves. WireError where they are not a list of JSON objects."""
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise WireError("rows that are no objects")
    return rows


def _word(flag: bool) -> str:
    return "true" if flag else "false"
