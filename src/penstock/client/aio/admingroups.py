"""Looking at consumer groups, and moving and deleting them."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from penstock.client import requests
from penstock.client.aio.admincluster import object_of, objects
from penstock.client.aio.adminqueues import AT_ONCE, QueueAdmin
from penstock.client.conversation import OK, making_sense, number
from penstock.client.routes import Json, MessageQueue, Route
from penstock.client.subscriptions import Start, read_offsets, start_ms
from penstock.errors import BrokerRefused, NoRoute, NotFound, TimedOut, WireError
from penstock.wire.codes import RequestCode, ResponseCode
from penstock.wire.fastjson import Pairs, loads
from penstock.wire.remoting import RemotingCommand

MEMBER_S = 3.0  # a member has so long to say what it reads


class GroupStats(NamedTuple):
    """One message queue of a group: end offset, committed offset, their difference, and how many ms the oldest message
    behind has been stored (None: the broker does not say).
    """

    max_offset: int
    committed: int
    lag: int
    lag_ms: int | None = None


class OffsetMove(NamedTuple):
    """One message queue of a group that is to be moved: where it is, and where it goes."""

    committed: int
    target: int


@dataclass(frozen=True)
class GroupMember:
    """A consumer that is connected. `queues` None: it did not say which it reads."""

    client_id: str
    address: str
    language: str
    version: int
    queues: tuple[MessageQueue, ...] | None


class GroupAdmin(QueueAdmin):
    """The administration of consumer groups."""

    async def groups(self) -> list[str]:
        """The consumer groups that the brokers know: those with settings, and those with committed offsets; sorted."""
        return sorted(set[str]().union(*(await self._each(self._groups_at)).values()))

    async def _groups_at(self, address: str) -> set[str]:
        settings = await self._own(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        offsets = await self._own(address, RequestCode.GET_ALL_CONSUMER_OFFSET)
        committed = {key.rpartition("@")[2] for key in offsets.get("offsetTable") or ()}
        return committed.union(settings.get("subscriptionGroupTable") or ())

    async def check_group(self, group: str) -> None:
        """NotFound when no broker knows the group; one that does is enough, whoever else does not answer."""
        told, missed = await self._answers(self._groups_at)
        known = sorted(set[str]().union(*told.values()))
        if group not in known:
            if missed and not self._partial:
                raise next(iter(missed.values()))
            near = difflib.get_close_matches(group, known, 1)
            raise NotFound(
                f"no broker knows a group {group!r}",
                f"Did you mean {near[0]}?" if near else "`penstock group ls` lists the groups.",
            )

    async def group_stats(self, group: str, topic: str | None = None) -> dict[MessageQueue, GroupStats]:
        """How far a group is in every queue, its retry topic included."""
        ext = {"consumerGroup": group} | ({"topic": topic} if topic else {})

        async def stats(address: str) -> dict[MessageQueue, GroupStats]:
            answer = await self._cluster.ask(address, RemotingCommand(RequestCode.GET_CONSUME_STATS, dict(ext)))
            return {queue: _row(item) for queue, item in pairs(loads(answer.body))}

        answers = await self._each(stats)
        return {queue: row for part in answers.values() for queue, row in part.items()}

    async def all_group_stats(self) -> dict[str, dict[MessageQueue, GroupStats]]:
        """The same of every group that has committed anything; one request for each broker."""
        found: dict[str, dict[MessageQueue, GroupStats]] = {}

        async def told(address: str) -> list[tuple[str, dict[MessageQueue, GroupStats]]]:
            value = await self._own(address, RequestCode.GET_BROKER_CONSUME_STATS, isOrder="false")
            return [(group, {queue: _row(item) for queue, item in pairs(stats)}) for group, stats in _entries(value)]

        for entries in (await self._each(told)).values():
            for group, rows in entries:
                found.setdefault(group, {}).update(rows)
        return found

    async def group_members(self, group: str, *, queues: bool = True) -> list[GroupMember]:
        """Who of a group is connected; with `queues` each is asked what it reads. Empty when nobody is."""
        told: dict[str, Json] = {}
        for address, answer in await self._connections(group):
            for one in answer.get("connectionSet") or ():
                told.setdefault(str(one.get("clientId")), {**one, "at": address})
        reads: list[tuple[MessageQueue, ...] | None] = [None] * len(told)
        members = sorted(told.items())
        for at in range(0, len(members) if queues else 0, AT_ONCE):
            asked = [self._reads(one["at"], group, client_id) for client_id, one in members[at : at + AT_ONCE]]
            reads[at : at + AT_ONCE] = await asyncio.gather(*asked)
        found = []
        for (client_id, one), read in zip(members, reads, strict=True):
            found.append(
                GroupMember(
                    client_id,
                    str(one.get("clientAddr", "")),
                    str(one.get("language", "")),
                    one["version"],
                    read,
                )
            )
        return found

    async def group_subscriptions(self, group: str) -> dict[str, str]:
        """What those that are connected read: topic to expression."""
        found: dict[str, str] = {}
        for _, answer in await self._connections(group):
            for topic, said in (answer.get("subscriptionTable") or {}).items():
                found[str(topic)] = str(said.get("subString", "*"))
        return dict(sorted(found.items()))

    async def member_counts(self, groups: list[str]) -> dict[str, int]:
        """How many consumers of each group are connected."""
        found: dict[str, int] = {}
        for at in range(0, len(groups), AT_ONCE):
            some = groups[at : at + AT_ONCE]
            members = await asyncio.gather(*[self.group_members(group, queues=False) for group in some])
            found.update({group: len(of) for group, of in zip(some, members, strict=True)})
        return found

    async def _connections(self, group: str, *, whole: bool = True) -> list[tuple[str, Json]]:
        """What each broker says of a group's members; not `whole`: each that answers."""

        async def connected(address: str) -> list[tuple[str, Json]]:
            request = RemotingCommand(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": group})
            answer = await self._cluster.call(address, request)
            if answer.code == ResponseCode.SUCCESS:
                value = object_of(answer.body)
                for one in objects(value.get("connectionSet") or []):
                    one["version"] = int(one.get("version", 0))
                objects(list((value.get("subscriptionTable") or {}).values()))
                return [(address, value)]
            if answer.code != ResponseCode.CONSUMER_NOT_ONLINE:
                raise BrokerRefused(answer.code, answer.remark or "")
            return []

        told = await self._each(connected) if whole else (await self._answers(connected))[0]
        return [one for part in told.values() for one in part]

    async def _reads(self, address: str, group: str, client_id: str) -> tuple[MessageQueue, ...] | None:
        """What a member reads; None where it does not say so: one that hangs is just what people look for."""
        ext = {"consumerGroup": group, "clientId": client_id, "jstackEnable": "false"}
        try:
            request = RemotingCommand(RequestCode.GET_CONSUMER_RUNNING_INFO, ext)
            answer = await self._cluster.call(address, request, min(MEMBER_S, self._cluster.timeout_s))
        except TimedOut:
            return None
        if answer.code != ResponseCode.SUCCESS:
            return None
        with making_sense(address):
            value = loads(answer.body)
            table = value.get("mqTable") if isinstance(value, dict) else None
            return tuple(sorted(queue for queue, _ in pairs({"offsetTable": table})))

    # -- changes

    async def reset_offset(
        self, group: str, topic: str, start: Start = "first", *, new: bool = False
    ) -> dict[MessageQueue, int]:
        """Move a group to a time, "first" or "last" in a topic; the new offsets.

        Members that are online are moved at once; for a group that is offline the committed offsets are set. NotFound for
        a group that no broker knows, unless it is to be a `new` one; NotEverywhere when some brokers do not answer.
        """
        if not new:
            await self.check_group(group)
        moment = start_ms(start)
        when_ms = moment if moment is not None else -1 if start == "last" else 0
        ext = {"topic": topic, "group": group, "timestamp": str(when_ms), "isForce": "true"}
        route = await self._cluster.route(topic, fresh=True)
        brokers = {broker: route.address(broker) or "" for broker in route.brokers}
        names = {address: broker for broker, address in brokers.items()}

        async def reset(address: str) -> dict[MessageQueue, int]:
            request = RemotingCommand(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, dict(ext))
            answer = await self._cluster.call(address, request)
            if answer.code == ResponseCode.SUCCESS:
                return dict(read_offsets(loads(answer.body)))
            if answer.code == ResponseCode.CONSUMER_NOT_ONLINE or (new and answer.code == ResponseCode.SYSTEM_ERROR):
                targets = await self._targets(route, start, names[address])
                for queue, offset in targets.items():
                    await self._cluster.ask_queue(queue, requests.commit(group, queue, offset))
                return targets
            raise BrokerRefused(answer.code, answer.remark or "")

        moved = await self._at_all(reset, brokers)
        return {queue: offset for part in moved.values() for queue, offset in part.items()}

    async def plan_reset(
        self, group: str, topic: str, start: Start = "first", *, offset: int | None = None
    ) -> dict[MessageQueue, OffsetMove]:
        """What `reset_offset`, or with `offset` `set_offset`, would do now, by queue; nothing is changed. NoRoute."""
        route = await self._cluster.route(topic, fresh=True)

        async def plan(broker: str) -> dict[MessageQueue, OffsetMove]:
            targets = await (
                self._targets(route, start, broker) if offset is None else self._nearest(route, offset, broker)
            )
            return {queue: OffsetMove(await self._committed(group, queue), target) for queue, target in targets.items()}

        plans = await self._each(plan, {broker: broker for broker in _of_log(route)})
        return dict(sorted((queue, move) for part in plans.values() for queue, move in part.items()))

    async def set_offset(self, group: str, topic: str, offset: int, *, new: bool = False) -> dict[MessageQueue, int]:
        """Commit an offset in every queue of a topic, or what is nearest to it there; the new offsets.

        The group must be offline: BrokerRefused when it is not. NotFound, NotEverywhere as `reset_offset`.
        """
        if not new:
            await self.check_group(group)
        await self._demand_offline(group)
        route = await self._cluster.route(topic, fresh=True)

        async def move(broker: str) -> dict[MessageQueue, int]:
            targets = await self._nearest(route, offset, broker)
            for queue, target in targets.items():
                await self._cluster.ask_queue(queue, requests.commit(group, queue, target))
            return targets

        moved = await self._at_all(move, {broker: broker for broker in _of_log(route)})
        return {queue: target for part in moved.values() for queue, target in part.items()}

    async def check_offline(self, group: str) -> None:
        """BrokerRefused when a consumer of the group is connected: its next commit, or heartbeat, would undo the change."""
        await self._demand_offline(group, whole=True)

    async def _demand_offline(self, group: str, *, whole: bool = False) -> None:
        """The same, of the brokers that answer: a change that follows says which do not, and leaves those as they are."""
        told = await self._connections(group, whole=whole)
        if members := sorted({str(one.get("clientId")) for _, said in told for one in said.get("connectionSet") or ()}):
            said = f"group {group} has {len(members)} members connected, {members[0]} one of them: stop them first"
            raise BrokerRefused(ResponseCode.SYSTEM_ERROR, said)

    async def delete_group(self, group: str) -> None:
        """Forget a group's settings and its committed offsets at every broker; its retry topic and dead letters stay.

        NotFound for one that no broker knows; BrokerRefused while a consumer of it is connected; NotEverywhere when some brokers
        do not answer: they know it still.
        """
        await self.check_group(group)
        await self._demand_offline(group)

        async def delete(address: str) -> None:
            ext = {"groupName": group, "removeOffset": "true"}
            await self._cluster.ask(address, RemotingCommand(RequestCode.DELETE_SUBSCRIPTIONGROUP, ext))

        await self._at_all(delete, await self._by_name(away=True))

    async def _targets(self, route: Route, start: Start, broker: str | None = None) -> dict[MessageQueue, int]:
        found = {}
        moment = start_ms(start)
        for queue in (q for q in route.subscribe_queues() if broker in (None, q.broker)):
            if moment is not None:
                request = requests.offset_at(queue, moment, lower=True)
            else:
                request = requests.min_offset(queue) if start == "first" else requests.max_offset(queue)
            found[queue] = await self._number(queue, request, "offset")
        return found

    async def _nearest(self, route: Route, offset: int, broker: str) -> dict[MessageQueue, int]:
        low, high = await self._targets(route, "first", broker), await self._targets(route, "last", broker)
        return {queue: max(low[queue], min(offset, high[queue])) for queue in low}

    async def _committed(self, group: str, queue: MessageQueue) -> int:
        request = requests.committed(group, queue)
        answer = await self._cluster.ask_queue(queue, request, (*OK, ResponseCode.QUERY_NOT_FOUND))
        if answer.code != ResponseCode.SUCCESS:
            return 0
        with making_sense(f"broker {queue.broker}"):
            return number(answer, "offset")


def _of_log(route: Route) -> Iterable[str]:
    """The brokers of a log topic. NoRoute where it is none."""
    if not route.brokers:
        raise NoRoute(f"topic {route.topic!r} is no log topic: it has no offsets")
    return route.brokers


def _row(item: Json) -> GroupStats:
    end, at = int(item.get("brokerOffset", 0)), int(item.get("consumerOffset", 0))
    lag_ms = item.get("lagMillis")
    return GroupStats(end, at, end - at, None if lag_ms is None else int(lag_ms))


def _entries(value: Json) -> Iterator[tuple[str, object]]:
    """(group, consume stats) of an answer about all groups of a broker."""
    for entry in value.get("consumeStatsList") or ():
        if not isinstance(entry, Mapping):
            raise WireError("not the figures of a group")
        for group, parts in entry.items():
            for stats in parts:
                yield str(group), stats


def pairs(value: object) -> list[tuple[MessageQueue, Json]]:
    """The entries of an offsetTable with queues as keys. WireError when it is none."""
    table = value.get("offsetTable") if isinstance(value, dict) else None
    if not isinstance(table, list | Pairs):
        if table in ({}, None):
            return []
        raise WireError("not a table by message queue")
    return [(MessageQueue.from_json(queue), item if isinstance(item, dict) else {}) for queue, item in table]
