"""Looking at a cluster and changing it: topics, statistics, offsets, single messages."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterable
from datetime import datetime
from functools import partial
from typing import NamedTuple

from penstock.client.aio.admincluster import object_of, told
from penstock.client.aio.admingroups import GroupAdmin, pairs
from penstock.client.aio.admingroups import GroupStats as GroupStats
from penstock.client.conversation import OK, making_sense
from penstock.client.routes import Json, MessageQueue, Route
from penstock.client.rows import MessageRow
from penstock.client.subscriptions import start_ms
from penstock.errors import BrokerRefused, NoRoute, NotFound, WireError
from penstock.message import ReceivedMessage
from penstock.msgid import parse_offset_msg_id
from penstock.wire import traces
from penstock.wire.addresses import split_address
from penstock.wire.codes import (
    DEFAULT_TOPIC,
    DLQ_PREFIX,
    PERM_READ,
    PERM_WRITE,
    RETRY_PREFIX,
    RequestCode,
    ResponseCode,
)
from penstock.wire.fastjson import loads
from penstock.wire.names import TRACE_TOPIC
from penstock.wire.record import decode_record, iter_records
from penstock.wire.remoting import RemotingCommand
from penstock.wire.traces import Trace

QUEUE_COUNT = 8  # of a new topic, on each broker
TRACES_MAX = 64  # messages of traces, each of many records
AT_ONCE = 256  # requests on their way, of calls that make many


class QueueStats(NamedTuple):
    """One message queue: oldest offset, end offset, store time of the last message in ms (0: none)."""

    min_offset: int
    max_offset: int
    last_ms: int


_NOT_FOUND = "can not find message"  # as RocketMQ has it


class Admin(GroupAdmin):
    """Administration; of one event loop. Every change is asked of all brokers concerned.

    Raises NoRoute, BrokerRefused, ConnectionLost, TimedOut.
    """

    # -- topics

    async def topics(self, *, system: bool = False) -> list[str]:
        """The topics, sorted; with `system` also the broker's own, retry and dead-letter topics."""
        every = set(await self._names(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER))
        own: set[str] = set()  # a registry of ours names none of them

        async def names(address: str) -> set[str]:
            request = RemotingCommand(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
            return set(map(str, object_of((await self._cluster.ask(address, request)).body).get("topicList") or ()))

        if every or not system:
            own = own.union(*(await self._each(names)).values())
        if system:
            return sorted(every | own)
        hidden = own.union(await self._names(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS))
        return sorted(t for t in every if t not in hidden and not t.startswith((RETRY_PREFIX, DLQ_PREFIX)))

    async def route(self, topic: str) -> Route:
        """Where a topic of either kind lives. NoRoute when no broker serves it."""
        return await self._cluster.route(topic, fresh=True, kind="any")

    async def create_topic(
        self,
        topic: str,
        queue_count: int | None = None,
        *,
        broker: str | None = None,
        perm: int | None = None,
        level: str | None = None,
        force: bool = False,
        new: bool = True,
    ) -> None:
        """Create a topic, or change it, on every broker or on one; not `new`: on those alone that have it. NotEverywhere when
        some brokers do not answer.

        What is not named stays as it is: of a new topic, 8 queues on each broker, to be read and written, and the broker's
        `level` of durability (os, disk, pair or pair-disk). Fewer queues than hold messages are BrokerRefused, unless
        `force`: what lies in the others can then only be read by asking for them by number.
        """

        async def create(address: str) -> None:
            known = await self._config(address, topic)
            if not (known or new):
                return
            ext = {
                "topic": topic,
                "defaultTopic": DEFAULT_TOPIC,
                "readQueueNums": str(known.get("readQueueNums", QUEUE_COUNT) if queue_count is None else queue_count),
                "writeQueueNums": str(known.get("writeQueueNums", QUEUE_COUNT) if queue_count is None else queue_count),
                "perm": str(known.get("perm", PERM_READ | PERM_WRITE) if perm is None else perm),
                "topicFilterType": str(known.get("topicFilterType", "SINGLE_TAG")),
                "topicSysFlag": str(known.get("topicSysFlag", 0)),
                "order": str(bool(known.get("order", False))).lower(),
            }
            if level is not None:
                ext["level"] = level
            if force:
                ext["force"] = "true"
            await self._cluster.ask(address, RemotingCommand(RequestCode.UPDATE_AND_CREATE_TOPIC, ext))

        await self._at_all(create, await self._by_name(broker, away=True))

    async def _config(self, address: str, topic: str) -> Json:
        """A broker's settings of a log topic; empty when it has none such."""
        request = RemotingCommand(RequestCode.GET_TOPIC_CONFIG, {"topic": topic})
        codes = (*OK, ResponseCode.TOPIC_NOT_EXIST, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
        answer = await self._cluster.ask(address, request, codes)
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:  # a RocketMQ older than 4.9
            table = await self._own(address, RequestCode.GET_ALL_TOPIC_CONFIG)
            found = (table.get("topicConfigTable") or {}).get(topic)
        else:
            found = loads(answer.body) if answer.code == ResponseCode.SUCCESS else None
        return found if isinstance(found, dict) else {}

    async def create_topics(
        self,
        topics: Iterable[str],
        queue_count: int | None = None,
        *,
        broker: str | None = None,
        perm: int | None = None,
        level: str | None = None,
        force: bool = False,
    ) -> None:
        """`create_topic` for many: a broker writes its table, and registers, once for all that are on their way together.

        All are tried; then the first error is raised. TypeError for one name in place of several.
        """
        if isinstance(topics, str):  # each of its letters would be one
            raise TypeError(f"topics are several names: [{topics!r}]")
        names = list(dict.fromkeys(topics))
        errors: list[BaseException] = []
        for at in range(0, len(names), AT_ONCE):
            asked = [
                self.create_topic(name, queue_count, broker=broker, perm=perm, level=level, force=force)
                for name in names[at : at + AT_ONCE]
            ]
            results = await asyncio.gather(*asked, return_exceptions=True)
            errors += [error for error in results if error is not None]
        if errors:
            raise errors[0]

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic of either kind from every broker that has it, and from the routes. NotEverywhere when some brokers do
        not answer: the routes keep it then.
        """
        try:
            route = await self.route(topic)
        except NoRoute:  # a broker says that it has made a topic before the registry has heard of it
            masters = await self._by_name()
            having = {
                name: address
                for name, address in masters.items()
                if await told(partial(self._config, topic=topic), address)
            }
            if not having:
                await self._delete_queue(topic)
                return
        else:
            if route.kind == "queue":
                await self.change_queue(topic, "rm")
                return
            having = {broker: route.address(broker) or "" for broker in route.brokers}

        async def delete(address: str) -> None:
            await self._cluster.ask(address, RemotingCommand(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic}))

        await self._at_all(delete, having)
        await self._forget_route(topic)

    async def _delete_queue(self, topic: str) -> None:
        """Delete what is no log topic. NoRoute when no broker has it; RocketMQ's have none such."""
        try:
            await self.change_queue(topic, "rm")
        except BrokerRefused as error:
            if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise
            raise NoRoute(f"no broker has topic {topic!r}") from None

    async def topic_stats(self, topic: str) -> dict[MessageQueue, QueueStats]:
        """How much every queue of a topic holds. BrokerRefused where no broker has it (any more)."""
        route = await self._cluster.route(topic, fresh=True)

        async def stats(address: str) -> list[tuple[MessageQueue, QueueStats]] | str:
            try:
                table = pairs(await self._own(address, RequestCode.GET_TOPIC_STATS_INFO, topic=topic))
            except BrokerRefused as refused:  # deleted there: name servers keep what they have heard
                if refused.code != ResponseCode.TOPIC_NOT_EXIST:
                    raise
                return refused.remark
            return [(queue, _queue_stats(item)) for queue, item in table]

        answers = await self._each(stats, {broker: route.read_address(broker) or "" for broker in route.brokers})
        remarks = [part for part in answers.values() if isinstance(part, str)]
        if remarks and len(remarks) == len(answers):
            raise BrokerRefused(ResponseCode.TOPIC_NOT_EXIST, remarks[0])
        return {queue: row for part in answers.values() if not isinstance(part, str) for queue, row in part}

    async def oldest_ms(self, topic: str) -> int | None:
        """When the oldest message of a log topic was stored; None when it holds none."""
        found = []
        for queue, stats in (await self.topic_stats(topic)).items():
            if stats.max_offset > stats.min_offset:
                ext = {"topic": topic, "queueId": str(queue.queue_id)}
                request = RemotingCommand(RequestCode.GET_EARLIEST_MSG_STORETIME, ext)
                found.append(await self._number(queue, request, "timestamp"))
        return min((ms for ms in found if ms >= 0), default=None)

    async def describe_topic(self, topic: str) -> list[Json]:
        """A row for each broker that has a topic of either kind: kind, level, permission, when the `oldest` message that it
        holds was stored (ms; None: there is none), its channels with their figures; of a queue topic its `depth`, what no
        channel has; of a log topic its queues, how many messages are `stored`, and its groups with their lag. NotFound.
        """
        of_nsq = {row["broker"]: row for row in (await self.queue_topics(topic) if topic else ())}
        names = {address: broker for broker, address in (await self._by_name()).items()}

        async def describe(address: str) -> Json | None:
            return await self._describe_at(address, topic, names[address], of_nsq.get(names[address]))

        found = [row for row in (await self._each(describe)).values() if row is not None]
        if not found:
            raise NotFound(f"no broker has topic {topic!r}", "`penstock topic ls` lists the topics.")
        return found

    async def _describe_at(self, address: str, topic: str, broker: str, seen: Json | None) -> Json | None:
        """A row of `describe_topic`; `seen` is what that broker tells NSQ's clients of the topic. None: it has no such topic."""
        config = await self._config(address, topic)
        if not config and seen is None:
            return None
        page, _ = await self._page(address, RequestCode.BROWSE, MessageRow, topic=topic, limit="1", bodyBytes="0")
        channels = [] if seen is None else seen["channels"]
        row: Json = {"topic": topic, "broker": broker}
        if config:
            row |= {"kind": "log", "level": config.get("level", "os"), "paused": False}
            row |= {"readQueues": config.get("readQueueNums"), "writeQueues": config.get("writeQueueNums")}
            row |= {"retentionMs": config.get("retentionMs", 0), "retentionBytes": config.get("retentionBytes", 0)}
            row["trace"] = bool(config.get("trace", False))
            stats = await self._own(address, RequestCode.GET_TOPIC_STATS_INFO, topic=topic)
            ends = [(int(item.get("minOffset", 0)), int(item.get("maxOffset", 0))) for _, item in pairs(stats)]
            row |= {
                "perm": int(config.get("perm", PERM_READ | PERM_WRITE)),
                "depth": None,
                "stored": sum(end - begin for begin, end in ends),
            }
        elif seen is not None:
            row |= {name: seen[name] for name in ("kind", "level", "paused")}
            row |= {
                "readQueues": None,
                "writeQueues": None,
                "retentionMs": None,
                "retentionBytes": None,
                "trace": None,
                "perm": PERM_READ | PERM_WRITE,
            }
            row |= {"depth": seen["depth"], "stored": None}
        row["oldest"] = page[0]["stored"] if page else None
        row["channels"], row["groups"] = channels, await self._groups_of(address, topic) if config else []
        return row

    async def _groups_of(self, address: str, topic: str) -> list[Json]:
        """The groups that read a topic at one broker, with their lag."""
        told = await self._own(address, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, topic=topic)
        found = []
        for group in told.get("groupList") or ():
            ext = {"consumerGroup": str(group), "topic": topic}
            table = pairs(await self._own(address, RequestCode.GET_CONSUME_STATS, **ext))
            lag = sum(int(item.get("brokerOffset", 0)) - int(item.get("consumerOffset", 0)) for _, item in table)
            found.append({"group": str(group), "lag": lag})
        return found

    async def groups_of(self, topic: str) -> list[str]:
        """The groups that read a log topic or committed an offset in it; sorted."""

        async def readers(address: str) -> set[str]:
            request = RemotingCommand(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": topic})
            answer = loads((await self._cluster.ask(address, request)).body)
            return set(map(str, answer.get("groupList") or ()) if isinstance(answer, dict) else ())

        route = await self._cluster.route(topic, fresh=True)
        brokers = {name: address for name in route.brokers if (address := route.address(name))}
        return sorted(set[str]().union(*(await self._each(readers, brokers)).values()))

    # -- messages

    async def query_by_key(
        self,
        topic: str,
        key: str,
        *,
        max_count: int = 32,
        begin: datetime | int = 0,
        end: datetime | int = (1 << 62),
    ) -> list[ReceivedMessage]:
        """The messages with a key, or with this producer-given id, newest last."""
        messages = await self._query(topic, key, max_count, begin, end, unique=False)
        return [m for m in messages if m.topic == topic and (key in m.keys or key == m.uniq_key)]

    async def traces(self, msg_id: str) -> list[Trace]:
        """What clients that trace have told of a message, by its id or one of its keys, in order. NotFound: nothing."""
        found = await self._traces(msg_id)
        if not found and len(msg_id) in (32, 56):
            address, _ = parse_offset_msg_id(msg_id)
            if address in await self._known_addresses():
                found = await self._traces((await self.message(msg_id)).msg_id)
        if not found:
            raise NotFound(
                f"no trace of {msg_id}",
                "`penstock topic alter TOPIC --trace` has brokers write them, trace=True clients of ours.",
            )
        return traces.in_order(found)

    async def _traces(self, key: str) -> list[Trace]:
        messages = await self._query(TRACE_TOPIC.decode(), key, TRACES_MAX, 0, 1 << 62, unique=False)
        told = [trace for message in messages for trace in traces.read(message.body)]
        return [trace for trace in told if key == trace.msg_id or key in trace.keys.split()]

    async def _query(
        self, topic: str, key: str, max_count: int, begin: datetime | int, end: datetime | int, *, unique: bool
    ) -> list[ReceivedMessage]:
        ext = {
            "topic": topic,
            "key": key,
            "maxNum": str(max_count),
            "beginTimestamp": str(start_ms(begin)),
            "endTimestamp": str(start_ms(end)),
        }
        if unique:
            ext["_UNIQUE_KEY_QUERY"] = "true"
        route = await self._cluster.route(topic, fresh=True)
        brokers = {broker: route.read_address(broker) or "" for broker in route.brokers}
        names = {address: broker for broker, address in brokers.items()}

        async def query(address: str) -> list[ReceivedMessage]:
            request = RemotingCommand(RequestCode.QUERY_MESSAGE, dict(ext))
            answer = await self._cluster.ask(address, request, (*OK, ResponseCode.QUERY_NOT_FOUND))
            return list(iter_records(answer.body, broker=names[address])) if answer.code == ResponseCode.SUCCESS else []

        answers = await self._each(query, brokers)
        found = [message for messages in answers.values() for message in messages]
        return sorted(found, key=lambda message: (message.store_ms, message.physical_offset))

    async def message(self, msg_id: str, topic: str | None = None) -> ReceivedMessage:
        """One message by its offset message id, or, when `topic` is given, by the id its producer gave it.

        An offset message id names a broker; only one that the registry knows is asked. Without a topic the id of a producer
        is looked for in all of them. NotFound when it is not there; ValueError when the id is none.
        """
        if topic is not None:
            found = [m for m in await self._query(topic, msg_id, 32, 0, 1 << 62, unique=True) if m.uniq_key == msg_id]
            if found:
                return found[-1]
            if len(msg_id) not in (32, 56):
                raise NotFound(
                    f"no message {msg_id} in topic {topic}", "An id is what `penstock message find` prints as msgId."
                )
        address, physical = parse_offset_msg_id(msg_id)
        if address not in await self._known_addresses():
            for name in await self.topics() if topic is None else ():
                found = [
                    m for m in await self._query(name, msg_id, 32, 0, 1 << 62, unique=True) if m.uniq_key == msg_id
                ]
                if found:
                    return found[-1]
            where = "any topic" if topic is None else f"topic {topic}"
            raise NotFound(f"no message {msg_id} in {where}", "An id is what `penstock message find` prints as msgId.")
        request = RemotingCommand(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(physical)})
        try:
            answer = await self._cluster.ask(address, request)
        except BrokerRefused as refused:
            if _NOT_FOUND in refused.remark:  # with code 1, which says many things
                raise NotFound(
                    f"no message {msg_id}", "An id is what `penstock message find` prints as msgId."
                ) from None
            raise
        with making_sense(address):
            message = decode_record(answer.body)
            if message is None:
                raise WireError("the body is no record")
        return message

    async def _known_addresses(self) -> set[str]:
        """Every broker's, as message ids have them: with the numbers of its host."""
        loop = asyncio.get_running_loop()
        found = set()
        for members in (await self.cluster_info()).brokers.values():
            for address in members.values():
                host, port = split_address(address)
                found.add(address)
                with contextlib.suppress(OSError):
                    for info in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
                        found.add(f"[{info[4][0]}]:{port}" if ":" in str(info[4][0]) else f"{info[4][0]}:{port}")
        return found


def _queue_stats(item: Json) -> QueueStats:
    offsets = int(item.get("minOffset", 0)), int(item.get("maxOffset", 0))
    return QueueStats(*offsets, int(item.get("lastUpdateTimestamp", 0)))
