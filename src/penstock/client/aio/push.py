"""Consuming as a member of a group: the face that programs see.

group            which topics, which queues are this member's share, heartbeats
logconsumer      the message queues of log topics: pulled, committed, given up
channelconsumer  queue topics, by NSQ's protocol
dispatch         `concurrency` workers hand messages to listeners, or `async for` takes them
control          what brokers ask on behalf of the admin tools
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Literal

from penstock.client.aio.assigned import Assigned
from penstock.client.aio.channelconsumer import ChannelConsumer
from penstock.client.aio.cluster import Cluster, Handler
from penstock.client.aio.consumersettings import ConsumerSettings
from penstock.client.aio.control import Control
from penstock.client.aio.delivery import Delivery
from penstock.client.aio.dispatch import Dispatcher
from penstock.client.aio.listening import Listener, Listeners, check_listener
from penstock.client.aio.logconsumer import CLOSE_S, LogConsumer
from penstock.client.aio.membership import Membership
from penstock.client.aio.requestreply import Replier
from penstock.client.aio.tracing import Tracer
from penstock.client.rebalance import Allocate, average
from penstock.client.routes import NSQ_PORT, MessageQueue, direct
from penstock.client.subscriptions import Start, check_group, check_topic
from penstock.clock import Clock
from penstock.errors import Closed
from penstock.message import ReceivedMessage
from penstock.security import Security, security_of
from penstock.wire.codes import RETRY_PREFIX, RequestCode


class PushConsumer:
    """Receives the messages of the topics it subscribed to; of one event loop.

    A `listener` is called once per message: a plain function in a thread of its own pool, a coroutine function in the
    loop. It returns for "done", and bytes that it returns are the reply to a request; any exception, or returning
    False, brings the message again later, `Retry`, raised or returned, says when. After `attempts_max` deliveries it goes
    to the dead-letter topic: ``%DLQ%group``, of a queue topic ``topic.group.dead``.
    Without a listener, iterate:

        async with PushConsumer("billing", registry) as consumer:
            await consumer.subscribe("orders", "paid || refunded")
            async for delivery in consumer:
                ...

    `model`: "cluster" shares the queues among the group's members by `allocate`, "broadcast" gives each member all.
    `start`: where a group without committed offsets begins, "last", "first", or a time (aware datetime, or ms).
    `orderly`: one message of a queue at a time, the queue locked at the broker, failures tried again in place.
    At most `window_count` messages and `window_bytes` of a queue are held unsettled. Messages come at least once.

    Topics of both kinds are subscribed to alike; of a queue topic the group is the channel, and `in_flight_max` messages
    (by default `concurrency`) are here at a time. `kind`: that of a topic which exists nowhere yet; "queue" makes it.
    `nsqd`: addresses to read at without a registry, ``a:4150;b:4150``.
    `trace`: what becomes of messages of log topics is told to the trace topic: `penstock message trace ID`.
    """

    def __init__(
        self,
        group: str,
        registry: str = "127.0.0.1:9876",
        *,
        listener: Listener | None = None,
        model: Literal["cluster", "broadcast"] = "cluster",
        start: Start = "last",
        orderly: bool = False,
        concurrency: int = 16,
        attempts_max: int = 16,
        window_count: int = 1_000,
        window_bytes: int = 100 << 20,
        in_flight_max: int | None = None,
        kind: Literal["log", "queue"] = "log",
        nsqd: str | None = None,
        consume_timeout_s: float = 900.0,
        allocate: Allocate = average,
        offsets_folder: str | Path | None = None,
        timeout_s: float = 10.0,
        security: Security | str | Path | None = None,
        trace: bool = False,
        clock: Clock | None = None,
    ) -> None:
        check_listener(listener)
        self.group = group
        settings = ConsumerSettings(
            group=group, model=model, start=start, orderly=orderly, concurrency=concurrency, attempts_max=attempts_max,
            window_count=window_count, window_bytes=window_bytes,
            in_flight_max=concurrency if in_flight_max is None else in_flight_max, kind=kind,
            allocate=allocate, offsets_folder=Path(offsets_folder or Path.home() / ".penstock" / "offsets"),
            timeout_s=timeout_s, consume_timeout_s=consume_timeout_s, security=security_of(security),
        )  # fmt: skip
        self._settings = settings
        self._nsqd = direct(nsqd, NSQ_PORT)
        self._cluster = Cluster(registry, timeout_s=timeout_s, clock=clock, security=settings.security)
        self._listeners = Listeners(group, listener, threads=concurrency, timeout_s=consume_timeout_s)
        self.dispatcher = Dispatcher(self._listeners, concurrency)
        self._logs = LogConsumer(self._cluster, settings, self.dispatcher)
        self._channels = ChannelConsumer(self._cluster, settings, self.dispatcher)
        self._group = Membership(self._cluster, settings, self._logs, self._channels)
        self._control = Control(self._logs, self._group, self._listeners)
        handlers: dict[int, Handler] = {
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._group.members_changed,
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET: self._control.reset_offsets,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: self._control.status,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._control.running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self._control.consume_directly,
        }
        self._cluster.join(self._group.heartbeat, handlers, self._group.rebalance_soon)
        self._replier = Replier(self._cluster, group)
        self._tracer = Tracer(self._cluster, group) if trace and not self._nsqd else None
        if self._tracer is not None:
            self._listeners.trace_with(self._tracer)
            self._logs.trace_with(self._tracer)
        self._started = False
        self._closing = False
        self._closed = asyncio.Event()

    async def start(self) -> PushConsumer:
        """Join the group. ConnectionLost when no name server answers; Closed after `close`: make a new one."""
        if self._closing:
            raise Closed("the consumer is closed: make a new one")
        if self._started:
            return self
        self._started = True
        try:
            await self._start()
        except BaseException:
            self._started = False
            await self._cluster.close()
            raise
        return self

    async def _start(self) -> None:
        if self._nsqd:
            self._start_workers()
            for topic, subscription in self._group.subscriptions.items():
                self._channels.follow(topic, subscription.expression, self._nsqd)
            return
        await self._cluster.start()
        await self._logs.open()
        if self._settings.shared:
            self._group.subscribe(RETRY_PREFIX + self.group)
        self._start_workers()
        await self._group.join(list(self._group.subscriptions))
        self._group.start()
        self._logs.start()
        if self._tracer is not None:
            self._tracer.start()

    def _start_workers(self) -> None:
        self._listeners.answer_with(partial(self._reply, asyncio.get_running_loop()))
        if not self._settings.orderly:
            for _ in range(self._settings.concurrency):
                self._cluster.spawn(self.dispatcher.work())

    def _reply(self, loop: asyncio.AbstractEventLoop, message: ReceivedMessage, body: bytes) -> None:
        """A listener, of any thread, has replied."""
        loop.call_soon_threadsafe(lambda: self._cluster.spawn(self._replier.reply(message, body)))

    async def close(self) -> None:
        """Stop pulling, let listeners finish (5 s at most), commit, leave the group.

        Messages not settled come again, to other members or at the next start. A listener may close its consumer: its own
        message comes again, too.
        """
        with self._listeners.leaving():
            await self._close_once()

    async def _close_once(self) -> None:
        self._listeners.look_who_works()
        if self._closing:
            await self._closed.wait()
            return
        self._closing = True
        try:
            await self._close()
        finally:
            self._closed.set()

    async def _close(self) -> None:
        self._group.close()
        self.dispatcher.stop()
        self._logs.stop()
        try:
            await self._channels.quiet()
            await self._listeners.wait_done(CLOSE_S)
            await self._logs.close()
            await self._channels.close()
            if self._tracer is not None:
                await self._tracer.close()
            await self._cluster.unregister(consumer=self.group)
        finally:  # a close that is cancelled leaves no member behind for which the group keeps queues
            await self._cluster.close()
            self._listeners.close()

    async def __aenter__(self) -> PushConsumer:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    async def subscribe(
        self,
        topic: str,
        expression: str = "*",
        *,
        where: str | None = None,
        listener: Listener | None = None,
    ) -> None:
        """Read a topic: all messages, those with one of some tags (``a || b``), or those for whose properties the
        expression `where` is true (``price >= 50 AND city <> 'Rome'``).

        All members of a group must subscribe alike. May be called before `start` and at any time after. ValueError for a
        selection, an order or a broadcast of a queue topic, which has none, for a `where` that is no expression, and for names
        that no topic or group can have: such a consumer would read nothing, and say nothing.
        """
        check_listener(listener)
        check_group(self.group)
        check_topic(topic)
        if self._nsqd:
            self._channels.check(topic, expression if where is None else where)
        subscription = self._group.subscribe(topic, expression, where)
        if listener is not None:
            self._listeners.by_topic[topic] = listener
        interrupted = self._logs.interrupt(subscription)
        try:
            if interrupted:
                await self._group.join([topic])  # a pull by what the brokers do not know yet would be refused
            elif self._cluster.client_id:
                await self._group.add(topic)
            elif self._nsqd and self._started:
                self._channels.follow(topic, subscription.expression, self._nsqd)
        finally:  # the caller may have given it up: what is read already is read on
            self._logs.go_on(interrupted)

    async def unsubscribe(self, topic: str) -> None:
        """Read a topic no longer."""
        self._group.unsubscribe(topic)
        self._listeners.by_topic.pop(topic, None)
        await self._logs.drop_topic(topic)
        await self._channels.drop(topic)

    def __aiter__(self) -> AsyncIterator[Delivery]:
        if not self._started:
            raise Closed("the consumer was never started: nothing would come")
        return self.dispatcher.iterate()

    @property
    def client_id(self) -> str:
        """This member's name in its group; empty before the start."""
        return self._cluster.client_id

    @property
    def assigned(self) -> dict[MessageQueue, Assigned]:
        """The message queues that this member reads now."""
        return self._logs.assigned
