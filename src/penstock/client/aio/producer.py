"""Sending messages from asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Literal

from penstock.client.aio.attempts import Attempts, SendSettings, late
from penstock.client.aio.cluster import Cluster
from penstock.client.aio.lanes import Lanes
from penstock.client.aio.nsqsending import QueueSender
from penstock.client.aio.requestreply import Requester
from penstock.client.aio.tracing import Tracer
from penstock.client.gathering import BATCH_BYTES, BUFFER_BYTES, Selector, Waiting, WhenFull, blocks
from penstock.client.line import WAIT_MAX_S
from penstock.client.outgoing import Outgoing
from penstock.client.results import SendReceipt, SendStatus
from penstock.client.routes import NSQ_PORT, Json, MessageQueue, Route, direct
from penstock.client.sending import COMPRESS_OVER_BYTES, check_batch
from penstock.client.subscriptions import check_group
from penstock.clock import Clock
from penstock.errors import ClientError, NotConnected, PenstockError, TimedOut
from penstock.message import Message, ReceivedMessage
from penstock.msgid import pack_host
from penstock.security import Security
from penstock.wire.codes import RequestCode
from penstock.wire.remoting import RemotingCommand

RETRIES = 3
SEND_TIMEOUT_S = 10.0

Done = asyncio.Future[SendReceipt] | Future[SendReceipt]


class Producer:
    """Sends messages; of one event loop, any number of tasks.

    `registry`: name servers, ``a:9876;b:9876``. A send tries up to `retries` times more, on another broker where there
    is one, all within `send_timeout_s`; a message may then be stored twice, with the same `msg_id`. A receipt whose
    status is not SEND_OK is sent again only with `retry_unsure`. Bodies larger than `compress_over` bytes travel
    compressed.

    Sends that come while another to the same place is under way leave together, as one batch of up to `batch_bytes`,
    and each gets its own receipt; `linger_ms` lets the first one wait for more. What is delayed or compressed goes
    by itself.

    Topics of both kinds are sent to alike; those of kind `queue` take a body and a due time only. `kind` is the kind of
    topics that the first send makes. `nsqd`: addresses to publish to without a registry, ``a:4150;b:4150``.

    `idempotent`: every request has a number, by which the broker knows it when it comes again. A send is then tried until
    `send_timeout_s` is over, always at the same message queue, and the message is stored once, whatever was lost or
    restarted on the way. It needs a Penstock broker.

    `trace`: what is sent to log topics is told to the trace topic, as RocketMQ's clients do: `penstock message trace ID`.

        async with Producer("127.0.0.1:9876") as producer:
            await producer.send(Message("orders", b"…", keys=("42",)))

    `security`: TLS, user and secret (`penstock.Security`, or the path of a file); without it that of the environment.

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
        linger_ms: float = 0.0,
        batch_bytes: int = BATCH_BYTES,
        buffer_bytes: int = BUFFER_BYTES,
        when_full: WhenFull = "block",
        security: Security | str | Path | None = None,
        trace: bool = False,
        clock: Clock | None = None,
    ) -> None:
        check_group(group)
        if not (send_timeout_s > 0 and retries >= 0):
            raise ValueError("send_timeout_s is above 0, retries is not below it")
        if not 0 <= linger_ms < send_timeout_s * 1000:
            raise ValueError(
                f"linger_ms is 0 or more and less than send_timeout_s, not {linger_ms:g}: nothing would be sent"
            )
        if kind not in ("log", "queue"):
            raise ValueError(f"kind is log or queue, not {kind!r}")
        self.group = group
        self.kind = kind
        self._nsqd = direct(nsqd, NSQ_PORT)
        self._timeout_s = send_timeout_s
        self._cluster = Cluster(
            registry, timeout_s=send_timeout_s, clock=clock, heartbeat=self._heartbeat, security=security,
            handlers={RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: self._pushed},
        )  # fmt: skip
        self._requester = Requester(self._cluster)
        self._sender = QueueSender(self._cluster.clock, send_timeout_s, self._cluster.security)
        settings = SendSettings(
            group, kind == "queue", self._nsqd, retries, retry_unsure, compress_over, idempotent
        )  # fmt: skip
        self.attempts = Attempts(self._cluster, self._sender, settings)
        self._tracer = Tracer(self._cluster, group) if trace and not self._nsqd else None
        if self._tracer is not None:
            self.attempts.trace_with(self._tracer)
        self.lanes = Lanes(
            self.attempts, blocks=blocks(when_full), linger_s=linger_ms / 1000, batch_bytes=batch_bytes,
            buffer_bytes=buffer_bytes, body_bytes=batch_bytes if kind == "queue" or self._nsqd else compress_over,
        )  # fmt: skip

    async def start(self) -> Producer:
        """Connect to a name server. ConnectionLost when none answers; Closed after `close`: make a new one."""
        self.lanes.check_open()
        if self._nsqd or self._cluster.is_open:
            return self
        await self._cluster.start()
        try:
            address = pack_host(f"{self._cluster.local_host}:0")[:4]
        except ValueError:
            address = os.urandom(4)
        self.attempts.outgoings.start(address)
        if self._tracer is not None:
            self._tracer.start()
        return self

    async def close(self) -> None:
        """Wait for the sends under way, say goodbye and close. What has no receipt within the send timeout fails."""
        try:
            with contextlib.suppress(TimedOut):
                await self.lanes.flush(self._timeout_s)
            await self.lanes.close()
            if self._tracer is not None:
                await self._tracer.close()
            self._requester.close()
            await self._sender.close()
            await self._cluster.unregister(producer=self.group)
        finally:  # a close that is cancelled leaves nothing running, either
            await self.lanes.close()
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
        return await self.attempts.queues(topic)

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
        next in turn. One with a `timeout_s` of its own goes by itself.
        """
        return await self._send((message,), queue, selector, timeout_s)

    async def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        timeout_s: float | None = None,
    ) -> SendReceipt:
        """Send messages of one topic as one: stored in one message queue, or queue topic, in order, all or none.

        With a `queue`, a `selector` or a sharding key it is stored behind what was sent to that queue before. The selector is
        asked for the first message. ValueError for messages of several sharding keys without a `queue` or a `selector`.
        """
        check_batch(messages, queue is not None or selector is not None)
        return await self._send(messages, queue, selector, timeout_s)

    async def _send(
        self,
        messages: Sequence[Message],
        queue: MessageQueue | None,
        selector: Selector | None,
        timeout_s: float | None,
    ) -> SendReceipt:
        self.lanes.check_send(messages[0].topic, timeout_s)
        apart = timeout_s is not None
        deadline = asyncio.get_running_loop().time() + (self._timeout_s if timeout_s is None else timeout_s)
        return await self.lanes.send(messages, deadline, queue, selector, apart)

    async def request(
        self,
        message: Message,
        timeout_s: float,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
    ) -> ReceivedMessage:
        """Send a message to a log topic and wait for what one of its consumers replies, `timeout_s` for both together.

        A listener of ours replies with the bytes that it returns. TimedOut without a reply; the message may then still
        be consumed. ValueError for a
        queue topic, where nobody can reply.
        """
        self.lanes.check_send(message.topic, timeout_s)
        timeout_s = min(timeout_s, WAIT_MAX_S)
        deadline = asyncio.get_running_loop().time() + timeout_s
        if (await self.attempts.route_by(message.topic, deadline)).nsq:
            raise ValueError(f"{message.topic!r} is a queue topic, where nobody can reply")
        sent, reply = await self._requester.prepare(message, timeout_s)
        try:
            await self.lanes.send((sent,), deadline, queue, selector, True)
            return await self._requester.wait(reply, deadline, message.topic)
        finally:
            reply.cancel()

    async def _pushed(self, command: RemotingCommand) -> RemotingCommand:
        return await self._requester.pushed(command)

    async def send_oneway(
        self, message: Message, *, queue: MessageQueue | None = None, selector: Selector | None = None
    ) -> str:
        """Write the message to the connection and promise nothing; its msg_id, empty for a queue topic.

        It waits for a broker that takes nothing as long as a send does for its receipt; then TimedOut, and nothing is written.
        """
        self.lanes.check_send(message.topic)
        attempts = self.attempts
        sent = attempts.outgoings.make((message,))
        deadline = asyncio.get_running_loop().time() + self._timeout_s
        route = await attempts.route_by(message.topic, deadline)
        to, free = await attempts.choose(message, queue, selector, None)
        try:
            async with asyncio.timeout_at(deadline):
                try:
                    return await self._send_oneway(sent, route, to)
                except NotConnected:  # certainly not written
                    if not free:
                        raise
                to, _ = await attempts.choose(message, queue, selector, to.broker)
                return await self._send_oneway(sent, route, to)
        except TimeoutError:
            raise TimedOut(f"{late(message.topic, sent=False)}: broker {to.broker} takes nothing") from None

    async def _send_oneway(self, sent: Outgoing, route: Route, to: MessageQueue) -> str:
        if route.nsq:
            await self._sender.send_oneway(self.attempts.nsq_address(route, to), sent.messages[0])
            return ""
        connection = await self._cluster.connection(await self.attempts.address(to))
        await connection.drain()
        connection.send_oneway(sent.request(to))
        if self._tracer is not None:
            nothing = ("",) * len(sent.keys)
            receipt = SendReceipt(SendStatus.SEND_OK, to, 0, tuple(sent.keys), nothing)
            self._tracer.sent(sent, receipt, self._cluster.clock.now_ms())
        return sent.keys[0]

    def send_nowait(
        self, message: Message, callback: Callable[[SendReceipt | PenstockError], object] | None = None
    ) -> asyncio.Future[SendReceipt]:
        """Begin a send. The future gets the receipt; `callback` is called with the receipt or the error.

        BufferFull when `buffer_bytes` are under way: wait for some of them, or use `send`.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[SendReceipt] = loop.create_future()
        self.lanes.check_room()
        if callback is not None:
            future.add_done_callback(partial(report, callback))
        deadline = loop.time() + self._timeout_s
        self.lanes.begin_all([Waiting(message, future, deadline, self.lanes.body_bytes)], deadline)
        return future

    async def flush(self, timeout_s: float | None = None) -> None:
        """Wait until every send begun so far has its receipt or its error. TimedOut when that takes longer."""
        await self.lanes.flush(self._timeout_s if timeout_s is None else timeout_s)


def report(callback: Callable[[SendReceipt | PenstockError], object], done: Done) -> None:
    """Tell a callback how a send ended, unless it was given up."""
    if done.cancelled():
        return
    error = done.exception()
    if error is None:
        callback(done.result())
    elif isinstance(error, PenstockError):
        callback(error)
    else:
        callback(ClientError(str(error)))
