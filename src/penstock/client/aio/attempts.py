"""One send, or one batch, tried until it is stored or its time is over: which queue, which broker, what after an error."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple, Protocol

from penstock.client.aio.cluster import Cluster
from penstock.client.aio.doubts import Doubts
from penstock.client.aio.nsqsending import QueueSender
from penstock.client.aio.numbers import WINDOW, Numbers
from penstock.client.choosing import Choosing
from penstock.client.gathering import Selector
from penstock.client.outgoing import Outgoing, Outgoings
from penstock.client.results import SendReceipt, SendStatus
from penstock.client.routes import MessageQueue, Route
from penstock.client.sending import (
    QUEUES_PER_NEW_TOPIC,
    add_sequence,
    by_sharding_key,
    is_tried_again,
    read_receipt,
)
from penstock.errors import BrokerRefused, ClientError, ConnectionLost, NoRoute, NotConnected, TimedOut
from penstock.message import Message
from penstock.wire.codes import DEFAULT_TOPIC, ResponseCode
from penstock.wire.remoting import RemotingCommand

log = logging.getLogger("penstock.client")

BUSY_WAIT_S = 0.05  # doubled with each pause
BUSY_WAIT_MAX_S = 0.25  # and so late may a send notice that there is a master again
ATTEMPT_S = 6.0  # an idempotent send that has no answer by then goes again; a slow flush is answered after 5


class SendSettings(NamedTuple):
    """What a producer's settings say of each send, in its words; `nsqd`: brokers by name, where there is no registry."""

    group: str
    as_queue: bool
    nsqd: Mapping[str, str]
    retries: int
    retry_unsure: bool
    compress_over: int
    idempotent: bool


class Tracing(Protocol):
    """Who is told of sends."""

    def sent(self, sent: Outgoing, receipt: SendReceipt | None, began_ms: int) -> None:
        """One has its receipt, or (None) has failed."""


class Attempts:
    """How a producer's requests reach a broker."""

    def __init__(self, cluster: Cluster, sender: QueueSender, settings: SendSettings) -> None:
        self.cluster = cluster
        self.sender = sender
        self.settings = settings
        self.doubts = Doubts(cluster, sender)
        self._numbered: dict[MessageQueue, Numbers] = {}
        self._made_as_queue: set[str] = set()
        self._short: set[str] = set()  # brokers that have stored with fewer copies, or flushes, than the level asks for
        self.choosing = Choosing(cluster.routes)
        self.outgoings = Outgoings(settings.group, cluster.clock, settings.compress_over)
        self.tracing: Tracing | None = None

    def trace_with(self, tracing: Tracing) -> None:
        """Tell it of every send."""
        self.tracing = tracing

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The message queues that can be sent to; for an unknown topic those it will have. NoRoute without a broker."""
        return self.choosing.queues_of(await self.route(topic))

    async def route(self, topic: str) -> Route:
        """The topic's route; for a topic that does not exist yet, for a moment, the one it will have."""
        if self.settings.nsqd:
            if topic not in self.cluster.routes:
                self.cluster.routes[topic] = Route(topic, {}, (), nsq=self.settings.nsqd)
            return self.cluster.routes[topic]
        as_queue = self.settings.as_queue or topic in self._made_as_queue
        known = self.choosing.route(topic)
        if known is not None:
            return known
        try:
            return await self.cluster.route(topic, kind="queue" if as_queue else "any")
        except NoRoute:
            if as_queue:
                raise
            try:
                default = await self.cluster.route(DEFAULT_TOPIC, fresh=True)
            except NoRoute:
                raise NoRoute(f"no broker serves topic {topic!r}, nor makes new topics") from None
        template = default.as_template_for(topic, QUEUES_PER_NEW_TOPIC)
        self.choosing.guess(template)
        return template

    async def route_by(self, topic: str, deadline: float) -> Route:
        """The same, by this time of the loop's clock: of several name servers each may be silent. TimedOut."""
        known = self.choosing.route(topic)
        if known is not None:
            return known
        try:
            async with asyncio.timeout_at(deadline):
                return await self.route(topic)
        except TimeoutError:
            raise TimedOut(f"not sent to {topic} in time: no name server says where it is") from None

    async def _call(self, to: MessageQueue, command: RemotingCommand, timeout_s: float) -> RemotingCommand:
        """The answer of a queue's master, whatever its code."""
        address = await self.address(to)
        return await self.doubts.watch(to, address, self.cluster.call(address, command, timeout_s))

    async def _refresh(self, topic: str, deadline: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                await self.cluster.refresh(topic)

    async def send(
        self,
        sent: Outgoing,
        deadline: float,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
    ) -> SendReceipt:
        """The receipt of a send, tried again as the producer's settings have it, until `deadline` of the loop's clock."""
        tracing = self.tracing
        if tracing is None:
            return await self._send(sent, deadline, queue, selector)
        began_ms, receipt = self.cluster.clock.now_ms(), None
        try:
            receipt = await self._send(sent, deadline, queue, selector)
        finally:
            tracing.sent(sent, receipt, began_ms)
        return receipt

    async def _send(
        self, sent: Outgoing, deadline: float, queue: MessageQueue | None, selector: Selector | None
    ) -> SendReceipt:
        loop, messages = asyncio.get_running_loop(), sent.messages
        message = messages[0]
        if self.settings.idempotent:
            try:
                return await self._send_once(sent, deadline, queue, selector)
            except BrokerRefused as error:
                if is_tried_again(error) or not is_tried_again(error, any_queue=queue is None):
                    raise
            # A new topic has fewer queues than was thought: nothing is stored, and by now it is known how many.
            self.choosing.forget_guess(message.topic)
            await self._refresh(message.topic, deadline)
            return await self._send_once(sent, deadline, queue, selector)
        avoid = sent.avoid
        attempt, pause = 0, BUSY_WAIT_S
        failing = {avoid}  # who has not taken it since the last pause: each is asked once between two
        forbidden: set[str] = set()  # brokers where nobody may write to the topic
        told: ClientError | None = None  # why it is not stored
        while True:
            to: MessageQueue | None = None
            if told is not None and not sent.unsure and loop.time() >= deadline:
                raise told  # it was over while the route was asked for anew
            try:
                route = await self.route_by(message.topic, deadline)
                to, free = await self.choose(message, queue, selector, avoid)
                left = deadline - loop.time()
                if left <= 0:
                    raise TimedOut(late(to.topic, sent=sent.unsure > 0))
                if self.settings.nsqd:
                    receipt = await self.sender.send(self.nsq_address(route, to), to, messages, left)
                elif route.nsq:
                    address = self.nsq_address(route, to)
                    receipt = await self.doubts.watch(to, address, self.sender.send(address, to, messages, left))
                else:
                    receipt = read_receipt(await self._call(to, sent.request(to), left), to, sent.keys)
                if receipt.status is SendStatus.SEND_OK:
                    if self._short:
                        self._short.discard(to.broker)
                    return receipt
                self._tell_short(to, message, receipt)
                sent.lost()
                if not self.settings.retry_unsure or sent.unsure > self.settings.retries:
                    return receipt
            except (ConnectionLost, BrokerRefused, NoRoute) as error:
                refused = isinstance(error, BrokerRefused) and not is_tried_again(error, any_queue=queue is None)
                # What was certainly not stored is tried again until the time is over, the rest `retries` times.
                if isinstance(error, ConnectionLost) and not isinstance(error, NotConnected):
                    sent.lost()
                if refused or sent.unsure > self.settings.retries or loop.time() + pause >= deadline:
                    raise
                told = error
                log.info("send to %s, attempt %d: %s", to or message.topic, attempt + 1, error)
                self.choosing.forget_guess(message.topic)
                if refused is False and isinstance(error, BrokerRefused) and "is a queue topic" in error.remark:
                    self._made_as_queue.add(message.topic)  # a rule of the broker's says what kind it will be
                if not self.settings.nsqd:
                    await self._refresh(message.topic, deadline)
                if to is not None and isinstance(error, BrokerRefused) and error.code == ResponseCode.NO_PERMISSION:
                    forbidden.add(to.broker)
                    if not free or not await self._has_other(message.topic, forbidden):
                        raise
                if to is None or to.broker in failing or not free:
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, BUSY_WAIT_MAX_S)
                    failing.clear()
                if to is not None:
                    failing.add(to.broker)
            attempt += 1
            if to is not None:
                avoid = to.broker

    def may_go_again(self, sent: Outgoing) -> bool:
        """Whether what a send that has failed held may be sent as something else: not what is perhaps stored and has a number,
        nor what was tried as often as is allowed.
        """
        return not sent.unsure or (not self.settings.idempotent and sent.unsure <= self.settings.retries)

    def _tell_short(self, to: MessageQueue, message: Message, receipt: SendReceipt) -> None:
        """A warning once until the broker does what the level asks for: there may be many such sends a second."""
        level = logging.INFO if to.broker in self._short else logging.WARNING
        self._short.add(to.broker)
        log.log(level, "send to %s: %s, keys %s, id %s", to, receipt.status.value, message.keys, receipt.msg_id)

    async def _send_once(
        self,
        sent: Outgoing,
        deadline: float,
        queue: MessageQueue | None,
        selector: Selector | None,
    ) -> SendReceipt:
        """Send under a number until there is a receipt, or no time left; always to the same queue."""
        loop, message = asyncio.get_running_loop(), sent.messages[0]
        to = await self._choose_once(message, queue, selector, deadline)
        numbers = self._numbered.get(to)
        if numbers is None:
            numbers = self._numbered[to] = Numbers()
        try:
            async with asyncio.timeout_at(deadline):
                number = await numbers.begin()
        except TimeoutError:
            raise TimedOut(f"not sent to {to.topic} in time: {WINDOW} sends before it have no answer") from None
        pause = BUSY_WAIT_S
        told: ClientError | None = None  # why it is not stored
        try:
            while True:
                lost = False
                try:
                    left = deadline - loop.time()
                    if left <= 0 and told is not None and not sent.unsure:
                        raise told
                    if left <= 0:
                        raise TimedOut(f"no receipt from {to} in time; whether the message is stored is unknown")
                    command = sent.request(to)
                    add_sequence(command, numbers.producer, number, len(sent.keys))
                    receipt = read_receipt(await self._call(to, command, min(left, ATTEMPT_S)), to, sent.keys)
                    if receipt.status is SendStatus.SEND_OK or loop.time() + pause >= deadline:
                        return receipt
                    told = None
                except (ConnectionLost, TimedOut, BrokerRefused, NoRoute) as error:
                    if isinstance(error, (ConnectionLost, TimedOut)) and not isinstance(error, NotConnected):
                        sent.lost()
                    refused = isinstance(error, BrokerRefused) and (
                        not is_tried_again(error) or error.code == ResponseCode.NO_PERMISSION
                    )
                    if refused or loop.time() + pause >= deadline:
                        raise
                    told = error
                    log.info("send %d to %s: %s", number, to, error)
                    lost = isinstance(error, (ConnectionLost, TimedOut))
                await asyncio.sleep(pause)
                if lost or pause > 2 * BUSY_WAIT_S:  # another broker may serve the queue by now
                    await self._refresh(message.topic, deadline)
                pause = min(2 * pause, 1.0)
        finally:
            numbers.end(number)

    async def _choose_once(
        self, message: Message, queue: MessageQueue | None, selector: Selector | None, deadline: float
    ) -> MessageQueue:
        """The queue of a send that goes to no other: while nobody says which there are, it is asked again."""
        pause = BUSY_WAIT_S
        while True:
            try:
                await self.route_by(message.topic, deadline)
                return (await self.choose(message, queue, selector, None))[0]
            except (ConnectionLost, NoRoute, TimedOut) as error:
                if asyncio.get_running_loop().time() + pause >= deadline:
                    raise
                log.info("send to %s: %s", message.topic, error)
            await asyncio.sleep(pause)
            pause = min(2 * pause, BUSY_WAIT_MAX_S)

    async def _has_other(self, topic: str, forbidden: set[str]) -> bool:
        """Whether a topic can be written to at another broker than these."""
        try:
            return any(queue.broker not in forbidden for queue in await self.queues(topic))
        except NoRoute:
            return False

    async def choose(
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
        if self.settings.idempotent and (await self.route(message.topic)).nsq:
            raise ValueError(f"{message.topic!r} is a queue topic, whose sends have no numbers: use another producer")
        if selector is not None:
            return selector(queues, message), False
        if message.sharding_key is not None:
            return by_sharding_key(message.sharding_key, queues), False
        return self.choosing.turn(message.topic).pick(queues, avoid), True

    @staticmethod
    def nsq_address(route: Route, queue: MessageQueue) -> str:
        if queue.broker not in route.nsq:
            raise NoRoute(f"broker {queue.broker!r} does not have queue topic {queue.topic!r} now")
        return route.nsq[queue.broker]

    async def address(self, queue: MessageQueue) -> str:
        route = await self.route(queue.topic)
        address = route.address(queue.broker)
        if address is None:
            raise NoRoute(f"broker {queue.broker!r} has no master now")
        return address


def late(topic: str, *, sent: bool) -> str:
    """What there is to say when the time of a send is over; `sent`: it went out, and may be stored."""
    if sent:
        return f"no receipt from {topic} in time; whether the message is stored is unknown"
    return f"not sent to {topic} in time"
