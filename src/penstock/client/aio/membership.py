"""Membership in a group: heartbeats say what this member reads, and the members share the queues out among them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Literal

from penstock.client.aio.channelconsumer import ChannelConsumer
from penstock.client.aio.cluster import Cluster
from penstock.client.aio.consumersettings import ConsumerSettings
from penstock.client.aio.logconsumer import LogConsumer
from penstock.client.rebalance import changes
from penstock.client.routes import Json, MessageQueue, Route
from penstock.client.subscriptions import Subscription, consume_from, selection
from penstock.errors import ClientError, NoRoute, NotConnected, TimedOut, WireError
from penstock.wire.codes import DLQ_PREFIX, RETRY_PREFIX, RequestCode, ResponseCode
from penstock.wire.fastjson import loads
from penstock.wire.remoting import RemotingCommand

log = logging.getLogger("penstock.client")

REBALANCE_S = 20.0
REBALANCE_SOON_S = 1.0  # when a route, a lock or a member list is still missing
SILENT_S = 1.0  # a broker that has not answered by then is listened to beside the sharing out: others have queues, too


class Membership:
    """One member of a consumer group: what it subscribed to, and which queues are its share."""

    def __init__(
        self, cluster: Cluster, settings: ConsumerSettings, logs: LogConsumer, channels: ChannelConsumer
    ) -> None:
        self.subscriptions: dict[str, Subscription] = {}
        self._cluster = cluster
        self._settings = settings
        self._name = settings.group
        self._logs = logs
        self._channels = channels
        self._rebalance_wanted = asyncio.Event()
        self._untold = False  # whether the brokers have yet to hear what is read now
        self._closing = False
        self._share: dict[str, set[MessageQueue]] = {}  # by topic, as it was shared out last
        self._owing: set[str] = (
            set()
        )  # brokers that owe an answer: they are asked nothing more until it has come, or is lost
        self._slow: set[str] = set()  # those whose answer was not waited for: others are asked for the members first

    def heartbeat(self) -> Json:
        """The producer and consumer sets that this member's heartbeats carry."""
        return {
            "producerDataSet": [],
            "consumerDataSet": [
                {
                    "groupName": self._name,
                    "consumeType": "CONSUME_PASSIVELY",
                    "messageModel": "CLUSTERING" if self._settings.shared else "BROADCASTING",
                    "consumeFromWhere": consume_from(self._settings.start),
                    "subscriptionDataSet": [s.as_json() for s in self.subscriptions.values()],
                    "unitMode": False,
                }
            ],
        }

    async def members_changed(self, command: RemotingCommand) -> None:
        """A broker says that members came or went."""
        if command.ext.get("consumerGroup", self._name) == self._name:
            self.rebalance_soon()

    def rebalance_soon(self) -> None:
        """Share the queues out again, in the background."""
        self._rebalance_wanted.set()

    def subscribe(self, topic: str, expression: str = "*", where: str | None = None) -> Subscription:
        """Want a topic; nothing is asked of a broker yet. ValueError when `where` is no expression."""
        subscription = selection(topic, expression, where, self._cluster.clock.now_ms())
        self.subscriptions[topic] = subscription
        self._untold = True
        return subscription

    def unsubscribe(self, topic: str) -> None:
        """Want a topic no longer."""
        self._untold = self.subscriptions.pop(topic, None) is not None or self._untold
        self.rebalance_soon()

    def start(self) -> None:
        """Keep the queues shared out."""
        self._cluster.spawn(self._keep_balance())

    def close(self) -> None:
        """Take no queue any more."""
        self._closing = True

    async def join(self, topics: list[str]) -> None:
        """Make the brokers of some topics know this member, then share the queues out."""
        await self._find(topics)
        self._untold = False
        await self._cluster.send_heartbeats(SILENT_S)
        self.rebalance_soon()

    async def add(self, topic: str) -> None:
        """Read one more topic. Its brokers hear of it before its queues are shared out, in the background: a heartbeat names
        all topics, so one is enough for many that come together.
        """
        await self._find([topic])
        self.rebalance_soon()

    async def _find(self, topics: list[str]) -> None:
        for topic in topics:
            try:
                route = await self._route(topic, fresh=True)
            except (ClientError, WireError) as error:
                log.info("group %s: no route of %s yet: %s", self._name, topic, error)
                if isinstance(error, TimedOut):
                    return  # for the others it would be waited as long: the sharing out asks for them
                continue
            if route.kind == "queue":
                self._follow(topic, route)

    def _follow(self, topic: str, route: Route) -> None:
        """Read the group's channel of a queue topic at the brokers of its route."""
        if (subscription := self.subscriptions.get(topic)) is not None:
            self._channels.follow(topic, subscription.expression, route.nsq)

    async def _route(self, topic: str, *, fresh: bool = False) -> Route:
        of_group = topic.startswith((RETRY_PREFIX, DLQ_PREFIX))  # only log topics have these
        kind: Literal["any", "queue"] = "queue" if self._settings.kind == "queue" and not of_group else "any"
        return await self._cluster.route(topic, fresh=fresh, kind=kind)

    def _topics(self) -> list[str]:
        """What is to be shared out; the retry topic only beside a log topic, for queue topics have none."""
        routes = (self._cluster.routes.get(topic) for topic in self.subscriptions)
        logs = any(route is not None and route.kind == "log" for route in routes)
        return [topic for topic in self.subscriptions if logs or not topic.startswith(RETRY_PREFIX)]

    async def _tell(self) -> None:
        self._untold = False
        try:
            await self._cluster.send_heartbeats(SILENT_S)
        except Exception:  # whatever it is, the queues are shared out none the less
            self._untold = True
            log.exception("group %s cannot say what it reads, tried again", self._name)

    async def _keep_balance(self) -> None:
        wait_s = 0.0
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):  # wait_for may lose a cancellation that comes with the event
                    await self._rebalance_wanted.wait()
            self._rebalance_wanted.clear()
            topics = self._topics()  # what comes while the brokers are told is told, and shared out, the next time
            if self._untold:
                await self._tell()
            complete, outages = True, self._cluster.outages
            silent: dict[str, ClientError] = {}  # brokers that did not answer: they are asked of no further topic now
            for topic in topics:
                try:
                    complete &= await self._rebalance(topic, silent)
                    outages.answered(f"the sharing of {topic}")
                except NoRoute:
                    self._logs.found(topic, ())
                    complete = False
                except NotConnected as error:
                    log.info("group %s cannot share out %s now: %s", self._name, topic, error)
                    complete = False
                except (ClientError, WireError) as error:
                    outages.failed(f"the sharing of {topic}", f"group {self._name}", error)
                    complete = False
                except Exception:  # of `allocate`, which is the program's: other topics are shared out none the less
                    log.exception("group %s cannot share out %s, tried again", self._name, topic)
            wait_s = REBALANCE_S if complete else REBALANCE_SOON_S

    async def _rebalance(self, topic: str, silent: dict[str, ClientError]) -> bool:
        """Take and give up queues of a topic; whether all that is this member's share could be taken. Brokers in `silent` are
        not asked, and those that do not answer are put there.
        """
        route = await self._route(topic)
        if route.kind == "queue":
            self._follow(topic, route)
            return True
        queues = sorted(route.subscribe_queues())
        self._logs.found(topic, queues)
        if self._settings.shared:
            members = await self._members(topic, silent)
            if self._cluster.client_id not in members:
                await self._cluster.send_heartbeats(SILENT_S)
                return False
            share = list(self._settings.allocate(self._cluster.client_id, queues, members))
        else:
            share = queues
        self._share[topic] = set(share)
        gone, new = changes(self._logs.assigned, share, topic)
        if gone:  # a broker that says nothing to the commit of the last offset has until then only, too
            await asyncio.wait([self._cluster.spawn(self._logs.drop(queue)) for queue in gone], timeout=SILENT_S)
        # Brokers that do not say where to begin: the others' queues are taken.
        failed: list[ClientError | WireError] = []
        asked: dict[str, list[MessageQueue]] = {}
        for queue in new:
            if (error := self._unasked(queue.broker, silent)) is not None:
                failed.append(error)
            else:
                asked.setdefault(queue.broker, []).append(queue)
        taking = {
            self._cluster.spawn(self._take(topic, queues, silent, failed)): broker for broker, queues in asked.items()
        }
        if taking:
            await asyncio.wait(taking, timeout=SILENT_S)
        for task, broker in taking.items():
            if task.done():
                self._slow.discard(broker)
            else:
                self._owes(broker, task)
                failed.append(_not_yet(broker))
        if failed:
            raise failed[0]
        return all(queue in self._logs.assigned for queue in share)

    async def _take(
        self,
        topic: str,
        queues: list[MessageQueue],
        silent: dict[str, ClientError],
        failed: list[ClientError | WireError],
    ) -> None:
        """Take queues of one broker, as far as they are this member's share still when it has said where to begin."""
        locked = await self._logs.lock(queues)
        for queue in queues:
            if queue not in locked:
                continue
            try:
                offset = await self._logs.start_offset(queue)
            except (ClientError, WireError) as error:
                failed.append(error)
                _note_silent(silent, queue.broker, error)
                return
            if (subscription := self.subscriptions.get(topic)) is None or self._closing:  # meanwhile
                return
            if queue not in self._share[topic]:  # it was shared out anew since this broker was asked
                await self._logs.unlock(queue)
            elif queue not in self._logs.assigned:
                self._logs.take(queue, subscription, offset, locked[queue])

    def _unasked(self, broker: str, silent: dict[str, ClientError]) -> ClientError | None:
        """Why a broker is asked nothing now, if it is not."""
        return silent.get(broker) or (_not_yet(broker) if broker in self._owing else None)

    def _owes(self, broker: str, task: asyncio.Task[object]) -> None:
        """A broker has not answered yet, and is heard whenever it does."""
        self._owing.add(broker)

        def end(task: asyncio.Task[object]) -> None:
            self._owing.discard(broker)
            if not task.cancelled():
                task.exception()  # whatever it is: it is asked again
                self.rebalance_soon()

        task.add_done_callback(end)

    async def _members(self, topic: str, silent: dict[str, ClientError]) -> list[str]:
        """The client ids of the group, sorted; empty when the brokers do not know it yet."""
        request = RemotingCommand(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": self._name})
        route = await self._cluster.route(topic)
        failed: ClientError = NoRoute(f"no broker serves topic {topic!r}")
        others = []
        for broker in sorted(route.brokers, key=self._slow.__contains__):  # else in the route's order, for all members
            if (error := self._unasked(broker, silent)) is not None:
                failed = error
            else:
                others.append(broker)
        asked: dict[asyncio.Task[RemotingCommand], str] = {}
        try:
            while others or asked:
                if others:
                    broker = others.pop(0)
                    call = self._cluster.call(route.read_address(broker) or "", request)
                    asked[asyncio.create_task(call)] = broker
                patience_s = SILENT_S if others else None
                done, _ = await asyncio.wait(asked, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    broker = asked.pop(task)
                    try:
                        answer = task.result()
                    except ClientError as error:
                        failed = error
                        _note_silent(silent, broker, error)
                        continue
                    if answer.code != ResponseCode.SUCCESS:
                        return []
                    found = loads(answer.body)
                    return sorted(map(str, found.get("consumerIdList") or ())) if isinstance(found, dict) else []
        finally:
            self._slow.update(asked.values())
            for task, broker in asked.items():
                self._owes(broker, task)
        raise failed


def _not_yet(broker: str) -> TimedOut:
    return TimedOut(f"broker {broker} has not answered yet")


def _note_silent(silent: dict[str, ClientError], broker: str, error: ClientError | WireError) -> None:
    """A broker said nothing, and would be waited for as long by every topic."""
    if isinstance(error, TimedOut):
        silent[broker] = error
