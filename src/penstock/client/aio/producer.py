"""Sending messages from asyncio."""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Literal

from penstock.client.aio.cluster import Cluster
from penstock.client.aio.nsqconnection import NSQ_PORT
from penstock.client.aio.nsqsending import QueueSender
from penstock.client.aio.numbers import WINDOW, Numbers
from penstock.client.results import SendReceipt, SendStatus
from penstock.client.routes import Json, MessageQueue, Route, direct
from penstock.client.sending import (
    COMPRESS_OVER_BYTES,
    QUEUES_PER_NEW_TOPIC,
    RETRY_CODES,
    RoundRobin,
    add_sequence,
    batch_request,
    by_sharding_key,
    read_receipt,
    send_request,
)
from penstock.clock import Clock
from penstock.errors import BrokerRefused, ClientError, ConnectionLost, NoRoute, NotConnected, PenstockError, TimedOut
from penstock.message import Message
from penstock.msgid import UniqueKeys, pack_host
from penstock.wire.codes import DEFAULT_TOPIC
from penstock.wire.remoting import RemotingCommand

log = logging.getLogger("penstock.client")

Selector = Callable[[Sequence[MessageQueue], Message], MessageQueue]

RETRIES = 3
SEND_TIMEOUT_S = 10.0
BUSY_WAIT_S = 0.05  # doubled with each retry
BUSY_WAIT_MAX_S = 0.5
ATTEMPT_S = 6.0  # an idempotent send that has no answer by then goes again; a slow flush is answered after 5
TEMPLATE_S = 1.0  # how long a new topic's route may be guessed before the name server is asked again


class Producer:
    """Sends messages; of one event loop, any number of tasks.

    `registry`: name servers, ``a:9876;b:9876``. A send tries up to `retries` times more, on another broker where there
    is one, all within `send_timeout_s`; a message may then be stored twice, with the same `msg_id`. A receipt whose
    status is not SEND_OK is sent again only with `retry_unsure`. Bodies larger than `compress_over` bytes travel
    compressed.

    Topics of both kinds are sent to alike; those of kind `queue` take a body and a due time only. `kind` is the kind of
    topics that the first send makes. `nsqd`: addresses to publish to without a registry, ``a:4150;b:4150``.

    `idempotent`: every send has a number, by which the broker knows it when it comes again. A send is then tried until
    `send_timeout_s` is over, always at the same message queue, and the message is stored once, whatever was lost or
    restarted on the way. It needs a Penstock broker.

        async with Producer("127.0.0.1:9876") as producer:
            await producer.send(Message("orders", b"…", keys=("42",)))

    Raises NoRoute (no broker), TimedOut, ConnectionLost, BrokerRefused; ValueError for a message that is too large.
    """

    def __init__(
        self,
        registry: str = "127.0.0.1:9876",
        *,
        group: str = "DEFAULT_PRODUCER",
        kind: Literal["log", "queue"] = "log",
        nsqd: str | None = None,
        send_timeout_s: float = SEND_TIMEOUT_S,
        retries: int = RETRIES,
        retry_unsure: bool = False,
        compress_over: int = COMPRESS_OVER_BYTES,
        idempotent: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self.group = group
        self.kind = kind
        self._nsqd = direct(nsqd, NSQ_PORT)
        self._timeout_s = send_timeout_s
        self._retries = retries
        self._retry_unsure = retry_unsure
        self._compress_over = compress_over
        self._idempotent = idempotent
        self._numbered: dict[MessageQueue, Numbers] = {}
        self._cluster = Cluster(registry, timeout_s=send_timeout_s, clock=clock, heartbeat=self._heartbeat)
        self._sender = QueueSender(self._cluster.clock, send_timeout_s)
        self._made_as_queue: set[str] = set()
        self._turns: dict[str, RoundRobin] = {}
        self._queues: dict[str, tuple[object, list[MessageQueue]]] = {}
        self._templates: dict[str, tuple[float, Route]] = {}
        self._keys = UniqueKeys(bytes(4), 0, bytes(4))

    async def start(self) -> Producer:
        """Connect to a name server. ConnectionLost when none answers."""
        if self._nsqd:
            return self
        await self._cluster.start()
        try:
            address = pack_host(f"{self._cluster.local_host}:0")[:4]
        except ValueError:
            address = os.urandom(4)
        self._keys = UniqueKeys(address, os.getpid(), os.urandom(4))
        return self

    async def close(self) -> None:
        """Say goodbye and close. Sends still under way fail."""
        await self._sender.close()
        await self._cluster.unregister(producer=self.group)
        await self._cluster.close()

    async def __aenter__(self) -> Producer:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    def _heartbeat(self) -> Json:
        return {"producerDataSet": [{"groupName": self.group}]}

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The message queues that can be sent to; for an unknown topic those it will have. NoRoute without a broker."""
        route = await self._route(topic)
        known, queues = self._queues.get(topic, (None, []))
        if known is not route:
            queues = route.publish_queues()
            self._queues[topic] = route, queues
        return queues

    async def _route(self, topic: str) -> Route:
        """The topic's route; for a topic that does not exist yet the one it will have, kept for a short time."""
        if self._nsqd:
            if topic not in self._cluster.routes:
                self._cluster.routes[topic] = Route(topic, {}, (), nsq=self._nsqd)
            return self._cluster.routes[topic]
        as_queue = self.kind == "queue" or topic in self._made_as_queue
        until_s, template = self._templates.get(topic, (0.0, None))
        if template is not None and until_s > asyncio.get_running_loop().time():
            return template
        try:
            return await self._cluster.route(topic, kind="queue" if as_queue else "any")
        except NoRoute:
            if as_queue:
                raise
            try:
                default = await self._cluster.route(DEFAULT_TOPIC, fresh=True)
            except NoRoute:
                raise NoRoute(f"no broker serves topic {topic!r}, nor makes new topics") from None
        template = default.as_template_for(topic, QUEUES_PER_NEW_TOPIC)
        self._templates[topic] = asyncio.get_running_loop().time() + TEMPLATE_S, template
        return template

    async def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        timeout_s: float | None = None,
    ) -> SendReceipt:
        """Send and wait for the receipt.

        The message goes to `queue`, or to the one that `selector` chooses, or to that of its sharding key, or to the
        next in turn.
        """
        key = self._keys.next(self._cluster.clock.now_ms())

        def request(to: MessageQueue) -> RemotingCommand:
            now_ms = self._cluster.clock.now_ms()
            return send_request(self.group, message, to, key, now_ms, compress_over=self._compress_over)

        return await self._send((message,), request, (key,), queue, selector, timeout_s)

    async def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        timeout_s: float | None = None,
    ) -> SendReceipt:
        """Send messages of one topic as one: stored in one message queue, or queue topic, in order, all or none."""
        now_ms = self._cluster.clock.now_ms()
        keys = [self._keys.next(now_ms) for _ in messages]
        if not messages:
            raise ValueError("a batch holds at least one message, all of one topic")

        def request(to: MessageQueue) -> RemotingCommand:
            return batch_request(self.group, messages, to, keys, self._cluster.clock.now_ms())

        return await self._send(messages, request, keys, queue, selector, timeout_s)

    async def send_oneway(
        self, message: Message, *, queue: MessageQueue | None = None, selector: Selector | None = None
    ) -> str:
        """Write the message to the connection and promise nothing; its msg_id, empty for a queue topic."""
        key = self._keys.next(self._cluster.clock.now_ms())
        to, _ = await self._choose(message, queue, selector, None)
        route = await self._route(message.topic)
        if route.nsq:
            await self._sender.send_oneway(self._nsq_address(route, to), message)
            return ""
        request = send_request(
            self.group, message, to, key, self._cluster.clock.now_ms(), compress_over=self._compress_over
        )
        connection = await self._cluster.connection(await self._address(to))
        connection.send_oneway(request)
        await connection.drain()
        return key

    def send_nowait(
        self, message: Message, callback: Callable[[SendReceipt | PenstockError], object] | None = None
    ) -> asyncio.Task[SendReceipt]:
        """Begin a send. The task ends with the receipt; `callback` is called with the receipt or the error."""
        task = asyncio.create_task(self.send(message))
        if callback is not None:
            task.add_done_callback(lambda done: _report(done, callback))
        return task

    async def _send(
        self,
        messages: Sequence[Message],
        request: Callable[[MessageQueue], RemotingCommand],
        keys: Sequence[str],
        queue: MessageQueue | None,
        selector: Selector | None,
        timeout_s: float | None,
    ) -> SendReceipt:
        loop, message = asyncio.get_running_loop(), messages[0]
        deadline = loop.time() + (self._timeout_s if timeout_s is None else timeout_s)
        if self._idempotent:
            return await self._send_once(message, request, keys, queue, selector, deadline)
        avoid: str | None = None
        attempt = unsure = 0
        while True:
            to: MessageQueue | None = None
            try:
                to, free = await self._choose(message, queue, selector, avoid)
                route = await self._route(to.topic)
                left = deadline - loop.time()
                if left <= 0:
                    raise TimedOut(f"not sent to {to.topic} in time")
                if route.nsq:
                    receipt = await self._sender.send(self._nsq_address(route, to), to, messages, left)
                else:
                    receipt = read_receipt(
                        await self._cluster.call(await self._address(to), request(to), left), to, keys
                    )
                if receipt.status is SendStatus.SEND_OK:
                    return receipt
                log.warning("send to %s: %s, keys %s, id %s", to, receipt.status.value, message.keys, receipt.msg_id)
                unsure += 1
                if not self._retry_unsure or unsure > self._retries:
                    return receipt
            except (ConnectionLost, BrokerRefused, NoRoute) as error:
                refused = isinstance(error, BrokerRefused) and error.code not in RETRY_CODES
                # What was certainly not stored is tried again until the time is over, the rest `retries` times.
                unsure += isinstance(error, ConnectionLost) and not isinstance(error, NotConnected)
                pause = min(BUSY_WAIT_S * 2**attempt, BUSY_WAIT_MAX_S)
                if refused or unsure > self._retries or loop.time() + pause >= deadline:
                    raise
                log.info("send to %s, attempt %d: %s", to or message.topic, attempt + 1, error)
                self._templates.pop(message.topic, None)
                if refused is False and isinstance(error, BrokerRefused) and "is a queue topic" in error.remark:
                    self._made_as_queue.add(message.topic)  # a rule of the broker's says what kind it will be
                if not self._nsqd:
                    await self._cluster.refresh(message.topic)
                if to is None or avoid == to.broker or not free:
                    await asyncio.sleep(pause)
            attempt += 1
            if to is not None:
                avoid = to.broker

    async def _send_once(
        self,
        message: Message,
        request: Callable[[MessageQueue], RemotingCommand],
        keys: Sequence[str],
        queue: MessageQueue | None,
        selector: Selector | None,
        deadline: float,
    ) -> SendReceipt:
        """Send under a number until there is a receipt, or no time left; always to the same queue."""
        loop = asyncio.get_running_loop()
        to, _ = await self._choose(message, queue, selector, None)
        numbers = self._numbered.get(to)
        if numbers is None:
            numbers = self._numbered[to] = Numbers()
        try:
            async with asyncio.timeout_at(deadline):
                number = await numbers.begin()
        except TimeoutError:
            raise TimedOut(f"not sent to {to.topic} in time: {WINDOW} sends before it have no answer") from None
        pause = BUSY_WAIT_S
        try:
            while True:
                try:
                    left = deadline - loop.time()
                    if left <= 0:
                        raise TimedOut(f"no receipt from {to} in time; whether the message is stored is unknown")
                    command = request(to)
                    add_sequence(command, numbers.producer, number, len(keys))
                    answer = await self._cluster.call(await self._address(to), command, min(left, ATTEMPT_S))
                    receipt = read_receipt(answer, to, keys)
                    if receipt.status is SendStatus.SEND_OK or loop.time() + pause >= deadline:
                        return receipt
                except (ConnectionLost, TimedOut, BrokerRefused, NoRoute) as error:
                    refused = isinstance(error, BrokerRefused) and error.code not in RETRY_CODES
                    if refused or loop.time() + pause >= deadline:
                        raise
                    log.info("send %d to %s: %s", number, to, error)
                await asyncio.sleep(pause)
                if pause > 2 * BUSY_WAIT_S:  # after a long pause another broker may serve the queue
                    await self._cluster.refresh(message.topic)
                pause = min(2 * pause, 1.0)
        finally:
            numbers.end(number)

    async def _choose(
        self, message: Message, queue: MessageQueue | None, selector: Selector | None, avoid: str | None
    ) -> tuple[MessageQueue, bool]:
        """(the queue to send to, whether another one would do as well)."""
        if queue is not None:
            if queue.topic != message.topic:
                raise ValueError(f"{queue} is not a queue of topic {message.topic!r}")
            return queue, False
        queues = await self.queues(message.topic)
        if not queues:
            raise NoRoute(f"no broker takes messages for topic {message.topic!r}")
        if self._idempotent and (await self._route(message.topic)).nsq:
            raise ValueError(f"{message.topic!r} is a queue topic, whose sends have no numbers: use another producer")
        if selector is not None:
            return selector(queues, message), False
        if message.sharding_key is not None:
            return by_sharding_key(message.sharding_key, queues), False
        turn = self._turns.get(message.topic)
        if turn is None:
            turn = self._turns[message.topic] = RoundRobin(random.randrange(1 << 16))
        return turn.pick(queues, avoid), True

    @staticmethod
    def _nsq_address(route: Route, queue: MessageQueue) -> str:
        if queue.broker not in route.nsq:
            raise NoRoute(f"broker {queue.broker!r} does not have queue topic {queue.topic!r} now")
        return route.nsq[queue.broker]

    async def _address(self, queue: MessageQueue) -> str:
        route = await self._route(queue.topic)
        address = route.address(queue.broker)
        if address is None:
            raise NoRoute(f"broker {queue.broker!r} has no master now")
        return address


def _report(done: asyncio.Task[SendReceipt], callback: Callable[[SendReceipt | PenstockError], object]) -> None:
    if done.cancelled():
        return
    error = done.exception()
    if error is None:
        callback(done.result())
    elif isinstance(error, PenstockError):
        callback(error)
    else:
        callback(ClientError(str(error)))
