"""Consuming as a member of a group: queues are shared out, pulled with hold, handed to a listener, committed.

One task per queue pulls; `concurrency` workers hand messages to listeners, or, for an orderly consumer, one task per
queue does. A message that failed goes back to the broker, which brings it again later and in the end puts it into the
dead-letter topic. Offsets go to the broker, for a broadcast consumer to a local file.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import msgspec

from penstock.client import requests
from penstock.client.aio.assigned import Assigned
from penstock.client.aio.channels import ChannelReader
from penstock.client.aio.cluster import Cluster, Handler, number
from penstock.client.aio.control import Control
from penstock.client.aio.delivery import Delivery, Hand
from penstock.client.aio.giveback import GiveBack
from penstock.client.aio.listening import Listener, Listeners
from penstock.client.aio.locks import QueueLocks
from penstock.client.aio.nsqconnection import NSQ_PORT
from penstock.client.aio.offsets import BrokerOffsets, FileOffsets, Offsets
from penstock.client.aio.pulling import Puller
from penstock.client.nsqsending import check_channel
from penstock.client.rebalance import Allocate, average, changes
from penstock.client.results import Outcome, Reject, Retry
from penstock.client.routes import MessageQueue, Route, direct
from penstock.client.subscriptions import Start, Subscription, consume_from, start_ms
from penstock.clock import Clock
from penstock.errors import ClientError, Closed, NoRoute, NotConnected, WireError
from penstock.message import ReceivedMessage
from penstock.wire.codes import DLQ_PREFIX, RETRY_PREFIX, RequestCode, ResponseCode
from penstock.wire.fastjson import loads
from penstock.wire.remoting import RemotingCommand

log = logging.getLogger("penstock.client")

REBALANCE_S = 20.0
REBALANCE_SOON_S = 1.0  # when a route, a lock or a member list is still missing
COMMIT_SOON_S = 0.02  # what is settled is committed so soon: a stopped process brings little of it again
COMMIT_FILE_S = 0.5
COMMIT_AGAIN_S = 5.0
GIVE_BACK_WAIT_S = 5.0
ORDERLY_WAIT_S = 1.0
CLOSE_S = 5.0  # how long listeners may take when their queue is given up


class _Pulled:
    """Messages in hand of one message queue (a `Hand`)."""

    __slots__ = ("_assigned", "_consumer")

    def __init__(self, consumer: PushConsumer, assigned: Assigned) -> None:
        self._consumer = consumer
        self._assigned = assigned

    @property
    def gone(self) -> bool:
        return self._assigned.dropped

    def begin(self, for_s: float | None) -> None:
        """Nothing runs out."""

    async def settle(self, message: ReceivedMessage, outcome: Outcome) -> None:
        await self._consumer.settle(self._assigned, message, outcome)

    async def extend(self, message: ReceivedMessage) -> None:
        """Nothing runs out."""


class PushConsumer:
    """Receives the messages of the topics it subscribed to; of one event loop.

    A `listener` is called once per message: a plain function in a thread of its own pool, a coroutine function in the
    loop. It returns for "done"; any exception, or returning False, brings the message again later, `Retry` says when.
    After `attempts_max` deliveries it goes to the dead-letter topic: ``%DLQ%group``, of a queue topic ``topic.group.dead``.
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
        offsets_folder: Path | None = None,
        timeout_s: float = 10.0,
        clock: Clock | None = None,
    ) -> None:
        self.group = group
        self.model = model
        self.orderly = orderly
        self.assigned: dict[MessageQueue, Assigned] = {}
        self.subscriptions: dict[str, Subscription] = {}
        self.listeners = Listeners(group, listener, threads=concurrency, timeout_s=consume_timeout_s)
        self.kind = kind
        self._start = start
        self._concurrency = concurrency
        self._in_flight_max = in_flight_max or concurrency
        self._nsqd = direct(nsqd, NSQ_PORT)
        self._timeout_s = timeout_s
        self._channels: dict[str, ChannelReader] = {}
        self._attempts_max = attempts_max
        self._allocate = allocate
        self._control = Control(self)
        self._cluster = Cluster(
            registry, timeout_s=timeout_s, clock=clock, heartbeat=self._heartbeat, handlers=self._handlers()
        )
        folder = offsets_folder or Path.home() / ".penstock" / "offsets"
        self._offsets: Offsets = (
            BrokerOffsets(self._cluster, group) if model == "cluster" else FileOffsets(folder / f"{group}.json")
        )
        self._locks = QueueLocks(self._cluster, group) if orderly and model == "cluster" else None
        self._give_back = GiveBack(self._cluster, group, attempts_max)
        self._puller = Puller(
            self._cluster,
            group,
            self._hand_out,
            window_count=window_count,
            window_bytes=window_bytes,
            orderly=orderly,
        )
        self._ready: asyncio.Queue[Delivery] = asyncio.Queue()
        self._deliveries: asyncio.Queue[Delivery | None] = asyncio.Queue()
        self._rebalance_wanted = asyncio.Event()
        self._settled = asyncio.Event()
        self._started = False
        self._closing = False

    # -- life

    async def start(self) -> PushConsumer:
        """Join the group. ConnectionLost when no name server answers."""
        if self._nsqd:
            self._start_workers()
            for topic in self.subscriptions:
                self._follow(topic, self._nsqd)
            return self
        await self._cluster.start()
        self._cluster.on_routes = self._rebalance_wanted.set
        await self._offsets.open()
        if self.model == "cluster":
            self._subscribe(Subscription(RETRY_PREFIX + self.group, version=self._cluster.clock.now_ms()))
        self._start_workers()
        await self._join(list(self.subscriptions))
        self._cluster.spawn(self._keep_balance())
        self._cluster.spawn(self._keep_offsets())
        if self._locks is not None:
            self._cluster.spawn(self._locks.keep(self.assigned))
        return self

    def _start_workers(self) -> None:
        self._started = True
        if not self.orderly:
            for _ in range(self._concurrency):
                self._cluster.spawn(self._work())

    async def close(self) -> None:
        """Stop pulling, let listeners finish (5 s at most), commit, leave the group.

        Messages not settled come again, to other members or at the next start.
        """
        if self._closing:
            return
        self._closing = True
        self._deliveries.put_nowait(None)
        for assigned in list(self.assigned.values()):
            self._stop(assigned)
        await asyncio.gather(*(channel.quiet() for channel in self._channels.values()))
        await self.listeners.wait_done(CLOSE_S)
        await asyncio.gather(*(self._release(assigned) for assigned in self.assigned.values()))
        self.assigned.clear()
        await asyncio.gather(*(channel.close() for channel in self._channels.values()))
        await self._cluster.unregister(consumer=self.group)
        await self._cluster.close()
        self.listeners.close()

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
        listener: Listener | None = None,
        kind: Literal["TAG", "SQL92"] = "TAG",
    ) -> None:
        """Read a topic: all messages, those with one of some tags (``a || b``), or an SQL expression over properties.

        All members of a group must subscribe alike. May be called before `start` and at any time after. ValueError for a
        selection, an order or a broadcast of a queue topic, which has none.
        """
        if self._nsqd:
            self._check_queue(topic, expression)
        self._subscribe(Subscription(topic, expression, kind, self._cluster.clock.now_ms()), listener)
        again = [assigned for queue, assigned in self.assigned.items() if queue.topic == topic]
        for assigned in again:  # a pull under way would pass over what only the new expression wants
            assigned.tasks[0].cancel()
            assigned.subscription = self.subscriptions[topic]
        if self._cluster.client_id:
            await self._join([topic])
        elif self._nsqd and self._started:
            self._follow(topic, self._nsqd)
        for assigned in again:
            if not assigned.dropped:
                assigned.tasks[0] = self._cluster.spawn(self._puller.run(assigned))

    async def unsubscribe(self, topic: str) -> None:
        """Read a topic no longer."""
        self.subscriptions.pop(topic, None)
        self.listeners.by_topic.pop(topic, None)
        for queue in [queue for queue in self.assigned if queue.topic == topic]:
            await self.drop(self.assigned[queue])
        if (channel := self._channels.pop(topic, None)) is not None:
            await channel.quiet()
            await channel.close()
        await self._cluster.send_heartbeats()

    def _subscribe(self, subscription: Subscription, listener: Listener | None = None) -> None:
        self.subscriptions[subscription.topic] = subscription
        if listener is not None:
            self.listeners.by_topic[subscription.topic] = listener

    async def _join(self, topics: list[str]) -> None:
        """Make the brokers of some topics know us, then share the queues out."""
        for topic in topics:
            try:
                route = await self._route(topic, fresh=True)
            except (ClientError, WireError) as error:
                log.info("group %s: no route of %s yet: %s", self.group, topic, error)
                continue
            if route.kind == "queue":
                self._follow(topic, route.nsq)
        await self._cluster.send_heartbeats()
        self._rebalance_wanted.set()

    # -- iteration

    def __aiter__(self) -> AsyncIterator[Delivery]:
        return self._iterate()

    async def _iterate(self) -> AsyncIterator[Delivery]:
        while (delivery := await self._deliveries.get()) is not None:
            if delivery.gone:
                continue
            delivery.begin(None)
            yield delivery
            await delivery.ack()
        self._deliveries.put_nowait(None)  # for the next iterator

    # -- membership

    def _heartbeat(self) -> dict[str, Any]:
        return {
            "producerDataSet": [],
            "consumerDataSet": [
                {
                    "groupName": self.group,
                    "consumeType": "CONSUME_PASSIVELY",
                    "messageModel": "CLUSTERING" if self.model == "cluster" else "BROADCASTING",
                    "consumeFromWhere": consume_from(self._start),
                    "subscriptionDataSet": [s.as_json() for s in self.subscriptions.values()],
                    "unitMode": False,
                }
            ],
        }

    def _handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._members_changed,
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET: self._control.reset_offsets,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: self._control.status,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._control.running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self._control.consume_directly,
        }

    async def _members_changed(self, command: RemotingCommand) -> None:
        if command.ext.get("consumerGroup", self.group) == self.group:
            self._rebalance_wanted.set()

    @property
    def client_id(self) -> str:
        """This member's name in its group; empty before the start."""
        return self._cluster.client_id

    # -- queue topics

    def _check_queue(self, topic: str, expression: str) -> None:
        check_channel(topic, self.group)
        if self.orderly or self.model != "cluster" or expression.strip() not in ("", "*"):
            raise ValueError(f"{topic!r} is a queue topic: it has no tags, no order of queues and no broadcast")

    def _follow(self, topic: str, brokers: Mapping[str, str]) -> None:
        """Read the group's channel of a queue topic at these brokers."""
        if self._closing or topic not in self.subscriptions:
            return
        if topic not in self._channels:
            self._check_queue(topic, self.subscriptions[topic].expression)
            self._channels[topic] = ChannelReader(
                topic,
                self.group,
                self._offer,
                self._cluster.spawn,
                self._cluster.outages,
                in_flight_max=self._in_flight_max,
                attempts_max=self._attempts_max,
                timeout_s=self._timeout_s,
            )
        self._channels[topic].follow(brokers)

    async def _route(self, topic: str, *, fresh: bool = False) -> Route:
        of_group = topic.startswith((RETRY_PREFIX, DLQ_PREFIX))  # only log topics have these
        kind: Literal["any", "queue"] = "queue" if self.kind == "queue" and not of_group else "any"
        return await self._cluster.route(topic, fresh=fresh, kind=kind)

    def _topics(self) -> list[str]:
        """What is to be shared out; the retry topic only beside a log topic, for queue topics have none."""
        routes = (self._cluster.routes.get(topic) for topic in self.subscriptions)
        logs = any(route is not None and route.kind == "log" for route in routes)
        return [topic for topic in self.subscriptions if logs or not topic.startswith(RETRY_PREFIX)]

    # -- sharing queues out

    async def _keep_balance(self) -> None:
        wait_s = 0.0
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):  # wait_for may lose a cancellation that comes with the event
                    await self._rebalance_wanted.wait()
            self._rebalance_wanted.clear()
            complete, outages = True, self._cluster.outages
            for topic in self._topics():
                try:
                    complete &= await self._rebalance(topic)
                    outages.answered(f"the sharing of {topic}")
                except NoRoute:
                    complete = False
                except NotConnected as error:
                    log.info("group %s cannot share out %s now: %s", self.group, topic, error)
                    complete = False
                except (ClientError, WireError) as error:
                    outages.failed(f"the sharing of {topic}", f"group {self.group}", error)
                    complete = False
            wait_s = REBALANCE_S if complete else REBALANCE_SOON_S

    async def _rebalance(self, topic: str) -> bool:
        """Take and give up queues of a topic; whether all that is ours could be taken."""
        route = await self._route(topic)
        if route.kind == "queue":
            self._follow(topic, route.nsq)
            return True
        queues = sorted(route.subscribe_queues())
        if self.model == "cluster":
            members = await self._members(topic)
            if self.client_id not in members:
                await self._cluster.send_heartbeats()
                return False
            wanted = list(self._allocate(self.client_id, queues, members))
        else:
            wanted = queues
        gone, new = changes(self.assigned, wanted, topic)
        for queue in gone:
            await self.drop(self.assigned[queue])
        locked = await self._locks.lock(new) if self._locks is not None else set(new)
        for queue in new:
            if queue in locked and topic in self.subscriptions and not self._closing:
                self._take(queue, await self._start_offset(queue))
        return len(locked) == len(new)

    async def _members(self, topic: str) -> list[str]:
        """The client ids of the group, sorted; empty when the brokers do not know it yet."""
        request = RemotingCommand(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": self.group})
        route = await self._cluster.route(topic)
        failed: ClientError = NoRoute(f"no broker serves topic {topic!r}")
        for broker in route.brokers:
            try:
                answer = await self._cluster.call(route.read_address(broker) or "", request)
            except ClientError as error:
                failed = error
                continue
            if answer.code != ResponseCode.SUCCESS:
                return []
            found = loads(answer.body)
            return sorted(map(str, found.get("consumerIdList") or ())) if isinstance(found, dict) else []
        raise failed

    def _take(self, queue: MessageQueue, offset: int) -> None:
        assigned = Assigned(queue, self.subscriptions[queue.topic], offset)
        assigned.locked_s = asyncio.get_running_loop().time()
        self.assigned[queue] = assigned
        assigned.tasks.append(self._cluster.spawn(self._puller.run(assigned)))
        if self.orderly:
            assigned.tasks.append(self._cluster.spawn(self._work_in_order(assigned)))
        log.debug("group %s takes %s from %d on", self.group, queue, offset)

    async def drop(self, assigned: Assigned) -> None:
        """Give a queue up."""
        self._stop(assigned)
        self.assigned.pop(assigned.queue, None)
        if self.orderly:
            self._cluster.spawn(self._release(assigned))  # not before the message in hand is done
        else:
            await self._release(assigned)

    def _stop(self, assigned: Assigned) -> None:
        assigned.dropped = True
        assigned.room.set()
        assigned.tasks[0].cancel()

    async def _release(self, assigned: Assigned) -> None:
        """Commit, and unlock, a queue that was stopped."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await assigned.idle.wait()
        for task in assigned.tasks:
            task.cancel()
        try:
            await self._commit(assigned)
            if self._locks is not None:
                await self._locks.unlock(assigned.queue)
        except (ClientError, WireError, Closed) as error:
            log.warning("group %s could not commit %s: %s", self.group, assigned.queue, error)

    async def _start_offset(self, queue: MessageQueue) -> int:
        """Where to begin: the committed offset, else what `start` says."""
        committed = await self._offsets.get(queue)
        if committed is not None:
            return committed
        moment = start_ms(self._start)
        if queue.topic.startswith(RETRY_PREFIX) or self._start == "first":
            request = requests.min_offset(queue)
        elif moment is not None:
            request = requests.offset_at(queue, moment, lower=True)
        else:
            request = requests.max_offset(queue)
        return number(await self._cluster.ask_queue(queue, request), "offset")

    # -- consuming

    def _hand_out(self, assigned: Assigned, messages: list[ReceivedMessage], next_offset: int) -> None:
        assigned.window.add(messages, next_offset)
        for message in messages:
            origin = message.properties.get("RETRY_TOPIC")
            if origin and assigned.queue.topic.startswith(RETRY_PREFIX):
                message = msgspec.structs.replace(message, topic=origin)
            if self.orderly:
                assigned.inbox.put_nowait(message)
            else:
                self._offer(_Pulled(self, assigned), message)

    def _offer(self, hand: Hand, message: ReceivedMessage) -> None:
        """To the listeners, or to whoever iterates."""
        offered = self._ready if self.listeners.take(message.topic) else self._deliveries
        offered.put_nowait(Delivery(hand, message))

    async def _work(self) -> None:
        while True:
            delivery = await self._ready.get()
            if not delivery.gone:
                async with self.listeners.in_hand():
                    delivery.begin(self.listeners.timeout_s)
                    await delivery.settle(await self.listeners.call(delivery.message))

    async def _work_in_order(self, assigned: Assigned) -> None:
        while not assigned.dropped:
            message = await assigned.inbox.get()
            assigned.idle.clear()
            try:
                await self._settle_in_order(assigned, message)
            finally:
                assigned.idle.set()

    async def _settle_in_order(self, assigned: Assigned, message: ReceivedMessage) -> None:
        """Have one message worked on, again and again in place, until it is settled."""
        while not assigned.dropped:
            if self._locks is not None:
                await self._locks.wait(assigned)
            if not self.listeners.take(message.topic):
                delivery = Delivery(_Pulled(self, assigned), message)
                self._deliveries.put_nowait(delivery)
                await delivery.done.wait()
                return
            outcome = await self.listeners.call(message)
            if not isinstance(outcome, Retry) or message.attempts >= self._attempts_max:
                await self.settle(assigned, message, Reject("attempts") if isinstance(outcome, Retry) else outcome)
                return
            message = msgspec.structs.replace(message, reconsume_times=message.reconsume_times + 1)
            await asyncio.sleep(ORDERLY_WAIT_S if outcome.delay is None else outcome.delay)

    async def settle(self, assigned: Assigned, message: ReceivedMessage, outcome: Outcome) -> None:
        """A message is done or goes back to the broker, and only then its offset may move on."""
        if outcome is not None:
            if self.model == "broadcast":
                log.error("broadcast group %s gives up %s of %s", self.group, message.msg_id, message.topic)
            else:
                while not await self._give_back.give(assigned.queue, message, outcome):
                    if assigned.dropped:
                        return
                    await asyncio.sleep(GIVE_BACK_WAIT_S)
        assigned.consumed_s = asyncio.get_running_loop().time()
        assigned.settle(message.queue_offset)
        self._settled.set()

    # -- offsets

    async def _keep_offsets(self) -> None:
        outages = self._cluster.outages
        soon_s = COMMIT_SOON_S if self.model == "cluster" else COMMIT_FILE_S
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(COMMIT_AGAIN_S):  # positions move without a message, too
                    await self._settled.wait()
            await asyncio.sleep(soon_s)  # those that are settled meanwhile go with it
            self._settled.clear()
            failed = False
            for assigned in list(self.assigned.values()):
                broker = f"broker {assigned.queue.broker}"
                try:
                    await self._commit(assigned)
                    outages.answered(broker)
                except (ClientError, WireError) as error:
                    outages.failed(broker, f"group {self.group} commits {assigned.queue}", error)
                    failed = True
            if failed:
                await asyncio.sleep(COMMIT_AGAIN_S)
                self._settled.set()

    async def _commit(self, assigned: Assigned) -> None:
        """Tell the committed offset to the broker, or write it to the file."""
        offset = assigned.window.committed
        if offset == assigned.sent_offset:
            return
        await self._offsets.commit(assigned.queue, offset)
        assigned.sent_offset = offset

    async def move(self, offsets: dict[MessageQueue, int]) -> None:
        """Go on elsewhere in some queues; what is in hand of them is let go."""
        for queue, offset in offsets.items():
            assigned = self.assigned.pop(queue, None)
            if assigned is not None:
                assigned.sent_offset = assigned.window.committed  # the old position must not be committed again
                self._stop(assigned)
                for task in assigned.tasks[1:]:
                    task.cancel()
            await self._offsets.commit(queue, offset)
        self._rebalance_wanted.set()
