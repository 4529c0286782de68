"""What every client needs of a cluster: name servers, routes, one connection per address, heartbeats."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Literal, TypeVar

from penstock.client.aio.connection import Connection, opened
from penstock.client.aio.outages import Outages
from penstock.client.conversation import OK, Conversation, Directory, Patience, checked, of_log
from penstock.client.routes import Json, MessageQueue, Route
from penstock.clock import Clock
from penstock.errors import NOT_OPEN, ClientError, Closed, ConnectionLost, NoRoute, NotConnected, Refused, WireError
from penstock.security import Security, security_of
from penstock.wire.codes import MASTER_ID, RequestCode, ResponseCode
from penstock.wire.fastjson import dumps
from penstock.wire.remoting import RemotingCommand

log = logging.getLogger("penstock.client")

ROUTE_S = 30.0
HEARTBEAT_S = 30.0
RECONNECT_S = 1.0
GOODBYE_S = 3.0
T = TypeVar("T")

Handler = Callable[[RemotingCommand], Awaitable[RemotingCommand | None]]
_numbers = itertools.count()


class Cluster:
    """A client's side of a cluster. Belongs to one event loop.

    `heartbeat` gives the producer and consumer sets of the client's heartbeat, or None for a client that is a member
    of nothing. `handlers` are what to do with the requests that brokers start, by code.
    """

    def __init__(
        self,
        registry: str,
        *,
        timeout_s: float = 10.0,
        clock: Clock | None = None,
        heartbeat: Callable[[], Json | None] = lambda: None,
        handlers: dict[int, Handler] | None = None,
        security: Security | str | Path | None = None,
    ) -> None:
        if not timeout_s > 0:
            raise ValueError(f"timeout_s is above 0, not {timeout_s}")
        self.security = security_of(security)
        self.clock = clock or Clock()
        self.timeout_s = timeout_s
        self.client_id = ""
        self.local_host = "127.0.0.1"
        self._directory = Directory(registry, "any", self._route_learned)
        self.registries = self._directory.registries  # the one that answered last first
        self._heartbeat = heartbeat
        self._handlers = handlers or {}
        self._connections: dict[str, asyncio.Task[Connection]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._open = False
        self.outages = Outages()
        self._on_routes: Callable[[], None] = lambda: None

    def join(
        self,
        heartbeat: Callable[[], Json | None],
        handlers: dict[int, Handler],
        on_routes: Callable[[], None],
    ) -> None:
        """Say, before `start`, what this client is a member of; `on_routes` is called when routes were asked for again."""
        self._heartbeat, self._handlers, self._on_routes = heartbeat, handlers, on_routes

    async def start(self) -> None:
        """Find a name server and keep routes and heartbeats; nothing more when called again. ConnectionLost if none answers."""
        if self._open:
            return
        self._open = True
        try:
            connection = await self._first_registry()
        except BaseException:  # a start that was given up, too: the next one must begin anew
            await self.close()
            raise
        self.local_host = connection.local_host
        self.client_id = f"{self.local_host}@{os.getpid()}#{time.time_ns():x}{next(_numbers)}"
        # Each by itself: a broker forgets a client that it does not hear of for two minutes, however long routes may take.
        self.spawn(_again_and_again(self._refresh_all, ROUTE_S, "routes"))
        self.spawn(_again_and_again(self.send_heartbeats, HEARTBEAT_S, "heartbeats"))

    @property
    def is_open(self) -> bool:
        """Whether it was started, and not closed since."""
        return self._open

    async def close(self) -> None:
        """Stop everything that runs for this client and close its connections; they are closed when this is cancelled, too."""
        self._open = False
        here = asyncio.current_task()  # of a listener, perhaps, which nobody else waits for
        others = [task for task in self._tasks if task is not here]
        for task in others:
            task.cancel()
        try:
            await asyncio.gather(*others, return_exceptions=True)
        finally:
            connections, self._connections = self._connections, {}
            for opening in connections.values():
                if opening.done() and not opening.cancelled() and opening.exception() is None:
                    opening.result().close()
                else:
                    opening.cancel()
        await asyncio.gather(*connections.values(), return_exceptions=True)

    def spawn(self, work: Coroutine[object, None, None]) -> asyncio.Task[None]:
        """Run something in the background until it ends or the client closes."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a background task of the client failed", exc_info=error)

    # -- connections and calls

    async def connection(self, address: str, until_s: float | None = None) -> Connection:
        """The connection to an address, made when there is none; by this time of the loop's clock, or NotConnected, and who wants
        it later may still have it.
        """
        opening = self._connections.get(address)
        if opening is not None and opening.done() and not self.is_connected(address):
            opening = None
        if opening is None:
            if not self._open:
                raise Closed(NOT_OPEN)
            opening = self._connections[address] = asyncio.create_task(self._connect(address))
        if opening.done():
            return opening.result()
        try:
            async with asyncio.timeout_at(until_s):
                return await opened(opening, address)
        except TimeoutError:
            raise NotConnected(f"cannot connect to {address}: timed out") from None

    async def _connect(self, address: str) -> Connection:
        connection = await Connection.open(address, self.timeout_s, self._requested, self.security)
        if address not in self._directory.registries and (beat := self._beat()) is not None:
            connection.request(beat)  # before anything else, so that the broker knows the groups
        return connection

    def is_connected(self, address: str) -> bool:
        """Whether there is a connection now; each began with a heartbeat."""
        opening = self._connections.get(address)
        if opening is None or not opening.done() or opening.cancelled() or opening.exception() is not None:
            return False
        return not opening.result().closed

    def part(self, address: str) -> None:
        """Close the connection to an address, if there is one, or give up making it; who waits has ConnectionLost. It is made
        again when it is wanted.
        """
        if self.is_connected(address):
            self._connections[address].result().close()
        elif address in self._connections:
            self._connections[address].cancel()

    async def call(self, address: str, command: RemotingCommand, timeout_s: float | None = None) -> RemotingCommand:
        """The answer to a request, whatever its code."""
        connection = await self.connection(address)
        return await connection.call(command, self.timeout_s if timeout_s is None else timeout_s)

    async def ask(
        self,
        address: str,
        command: RemotingCommand,
        results: tuple[int, ...] = OK,
        timeout_s: float | None = None,
    ) -> RemotingCommand:
        """The answer to a request. BrokerRefused when its code is not one of `results`."""
        return checked(await self.call(address, command, timeout_s), results)

    async def _converse(self, conversation: Conversation[T]) -> T:
        """Make the calls of a conversation; its result."""
        patience, loop = Patience(self.timeout_s), asyncio.get_running_loop()
        try:
            call = next(conversation)
            while True:
                try:
                    if call.among:
                        until_s = loop.time() + patience.left_for(call.among, loop.time())
                        connection = await self.connection(call.address, until_s)
                        answer = await connection.call(call.command, max(until_s - loop.time(), 0.0))
                    else:
                        answer = await self.call(call.address, call.command)
                except (ClientError, WireError) as error:
                    call = conversation.throw(error)
                else:
                    call = conversation.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            conversation.close()

    async def ask_queue(
        self, queue: MessageQueue, command: RemotingCommand, results: tuple[int, ...] = OK
    ) -> RemotingCommand:
        """The answer of the master of a queue's broker; after a lost connection once more with a fresh route."""
        await self.route(queue.topic)
        return await self._converse(self._directory.ask_queue(queue, command, results))

    async def address(self, queue: MessageQueue, broker_id: int = MASTER_ID) -> str:
        """The address to read a queue at. NoRoute when its broker is away."""
        await self.route(queue.topic)
        return self._directory.address(queue, broker_id)

    async def ask_registry(self, command: RemotingCommand, results: tuple[int, ...] = OK) -> RemotingCommand:
        """The answer of the first name server that answers; it is asked first from then on."""
        return await self._converse(self._directory.ask_registry(command, results))

    async def _first_registry(self) -> Connection:
        patience, loop = Patience(self.timeout_s), asyncio.get_running_loop()
        lost: ClientError | None = None
        for among, address in self._directory.round():
            try:
                return await self.connection(address, loop.time() + patience.left_for(among, loop.time()))
            except ConnectionLost as error:
                lost = error
                self._directory.answered_not(address)
        assert lost is not None
        raise lost

    # -- routes

    @property
    def routes(self) -> dict[str, Route]:
        """The routes that are known."""
        return self._directory.routes

    async def route(self, topic: str, *, fresh: bool = False, kind: Literal["log", "any", "queue"] = "log") -> Route:
        """Where a topic lives, known or asked for. NoRoute when no broker serves it.

        ClientError for a queue topic where `kind` is "log"; "queue" is also answered for a topic yet to be made.
        """
        route = self.routes.get(topic)
        if route is None or fresh:
            route = await self._converse(self._directory.find_route(topic, "queue" if kind == "queue" else None))
        return of_log(route) if kind == "log" else route

    async def refresh(self, topic: str) -> None:
        """Ask for a route again; while no name server answers the old one stays."""
        await self._converse(self._directory.refresh_route(topic))

    def _route_learned(self, topic: str, error: ClientError | WireError | None) -> None:
        """Note who is away: the registry, or the brokers of a topic."""
        if error is not None and not isinstance(error, NoRoute):
            self.outages.failed("the registry", f"the route of {topic}", error)
            return
        self.outages.answered("the registry")
        if error is None:
            self.outages.answered(f"topic {topic}")
        else:
            self.outages.failed(f"topic {topic}", "its route", error)

    async def _refresh_all(self) -> None:
        for topic in list(self.routes):
            await self.refresh(topic)
        self._on_routes()

    # -- membership

    def _beat(self) -> RemotingCommand | None:
        about = self._heartbeat()
        if about is None:
            return None
        return RemotingCommand(RequestCode.HEART_BEAT, body=dumps({"clientID": self.client_id, **about}))

    def broker_addresses(self) -> list[str]:
        """The brokers in the routes this client uses: masters, and slaves too."""
        found = dict.fromkeys(
            address
            for route in self.routes.values()
            for members in route.brokers.values()
            for address in members.values()
        )
        return list(found)

    def broker_at(self, address: str) -> str:
        """The broker of an address, as outages name it."""
        for route in self.routes.values():
            for name, members in route.brokers.items():
                if address in members.values():
                    return f"broker {name}"
        return f"the broker at {address}"

    async def send_heartbeats(self, patience_s: float | None = None) -> None:
        """A heartbeat to every broker known, side by side, for one may say nothing; the unreachable ones are left for the next
        time, and whoever has not answered within `patience_s`, where that is given, is heard later.
        """
        if self._heartbeat() is None:
            return

        async def tell(address: str) -> None:
            try:
                connection = await self.connection(address)
                beat = self._beat()  # not before: what a new connection began with is not to be taken back
                if beat is not None:
                    await connection.call(beat, self.timeout_s)
            except (ClientError, WireError) as error:
                self.outages.failed(self.broker_at(address), "a heartbeat", error)
            else:
                self.outages.answered(self.broker_at(address))

        addresses = self.broker_addresses()
        if patience_s is None:
            await asyncio.gather(*map(tell, addresses))
        elif addresses:
            await asyncio.wait([self.spawn(tell(address)) for address in addresses], timeout=patience_s)

    async def unregister(self, *, producer: str = "", consumer: str = "") -> None:
        """Say goodbye to every broker connected to, side by side, for one may say nothing."""
        ext = {"clientID": self.client_id}  # RocketMQ makes a group of no name of one that is said to be empty
        ext |= {"producerGroup": producer} if producer else {"consumerGroup": consumer}

        async def leave(address: str) -> None:
            with contextlib.suppress(ClientError, Closed):
                goodbye = RemotingCommand(RequestCode.UNREGISTER_CLIENT, dict(ext))
                await self.call(address, goodbye, min(GOODBYE_S, self.timeout_s))

        await asyncio.gather(*(leave(address) for address in self.broker_addresses() if address in self._connections))

    # -- requests that brokers start

    def _requested(self, connection: Connection, command: RemotingCommand) -> None:
        handler = self._handlers.get(command.code)
        if handler is not None:
            self.spawn(self._handle(handler, connection, command))
        elif not command.oneway:
            remark = f" request type {command.code} not supported"
            connection.send(command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark))

    async def _handle(self, handler: Handler, connection: Connection, command: RemotingCommand) -> None:
        try:
            answer = await handler(command)
        except (ClientError, WireError, Refused) as error:
            answer = command.reply(ResponseCode.SYSTEM_ERROR, remark=str(error))
        if answer is not None and not command.oneway and not connection.closed:
            connection.send(answer)


async def _again_and_again(step: Callable[[], Awaitable[None]], pause_s: float, what: str) -> None:
    while True:
        await asyncio.sleep(pause_s)
        try:
            await step()
        except Exception:  # whatever it is
            log.exception("%s, tried again in %d s", what, pause_s)
