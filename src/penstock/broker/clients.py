"""Who is connected: producers and consumers by group, what each group reads, and the queue locks of orderly consumers.

Heartbeats keep an entry alive; 120 s without one, or the loss of its connection, ends it (rocketmq.md §9.4, §9.5).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

import msgspec

from penstock.access.users import User
from penstock.broker.topics import LogTopic
from penstock.errors import Refused
from penstock.limits import Limits
from penstock.wire import record
from penstock.wire.codes import ResponseCode
from penstock.wire.remoting import RemotingCommand
from penstock.wire.sql92 import Selector, compile_selector
from penstock.words import FAR_MS

EXPIRY_MS = 120_000
LOCK_MS = 60_000
FORGET_MS = 10_000  # so often locks that ran out are forgotten
SHARE_AGAIN_MS = 100  # so long the members of a group have peace behind each time they were told that it changed
NAMED_MAX = 1_024  # groups that one connection is in, each as often as under another client id
LOCKS_MAX = 200_000  # of all groups together: beyond, nothing is locked


class Peer(Protocol):
    """The connection of a client, as far as this floor knows it."""

    remote: str
    acting: User | None  # whose request is carried out, where there are users
    closed: bool  # it has left

    def push(self, command: RemotingCommand) -> None:
        """Send a one-way request, or an answer that took its time."""

    def disconnect(self) -> None:
        """End the connection behind what it is owed."""

    def call(self, command: RemotingCommand, done: Callable[[RemotingCommand | None], None], deadline_ms: int) -> None:
        """Ask the peer; `done` gets its answer, or None after the deadline or the end of the connection."""

    def answer_when_stored(self, topic: LogTopic, answer: RemotingCommand) -> None:
        """Answer as the topic's level demands: now, or when the disk has what was just appended."""


class Member(msgspec.Struct):
    """One client of a group."""

    client_id: str
    peer: Peer
    language: str
    version: int
    heard_ms: int
    user: User | None = None


def parse_tags(expression: str) -> tuple[list[str], list[int]]:
    """The tags of a TAG expression and their hashes; both empty for all messages."""
    if not expression or expression.strip() == "*":
        return [], []
    tags = [tag for tag in (part.strip() for part in expression.split("||")) if tag]
    if not tags:
        raise Refused("parse the consumer's subscription failed", remoting=ResponseCode.SUBSCRIPTION_PARSE_FAILED)
    return tags, [record.java_hash(tag) for tag in tags]


_LIMITS = Limits()


def _selector(expression: str, limits: Limits) -> Selector:
    return compile_selector(expression, limits.max_filter_size, limits.max_filter_depth, limits.count)


class Subscription(msgspec.Struct):
    """What a group reads of one topic."""

    topic: str
    expression: str = "*"
    kind: str = "TAG"
    version: int = 0
    tags: list[str] = msgspec.field(default_factory=list)
    codes: list[int] = msgspec.field(default_factory=list)
    selector: Selector | None = None

    def compile(self, limits: Limits | None = None) -> None:
        """Find tags and their codes, or the selector, from the expression. Refused (23) when it is none."""
        if self.kind == "TAG":
            self.tags, self.codes = parse_tags(self.expression)
        elif self.kind == "SQL92":
            self.selector = _selector(self.expression, limits or _LIMITS)
        else:
            raise Refused(f"there is no filter of kind {self.kind}", remoting=ResponseCode.SUBSCRIPTION_PARSE_FAILED)

    def as_json(self) -> dict[str, object]:
        return {
            "classFilterMode": False,
            "codeSet": self.codes,
            "expressionType": self.kind,
            "subString": self.expression,
            "subVersion": self.version,
            "tagsSet": self.tags,
            "topic": self.topic,
        }


class ConsumerGroup(msgspec.Struct):
    """The online side of a consumer group."""

    name: str
    members: dict[str, Member] = msgspec.field(default_factory=dict)
    subscriptions: dict[str, Subscription] = msgspec.field(default_factory=dict)
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from: str = "CONSUME_FROM_LAST_OFFSET"
    revision: int = 0  # grows with each change of what is read; sessions compare it

    def describe(self, about: Mapping[str, object]) -> None:
        """How a member says the group consumes."""
        self.consume_type = str(about.get("consumeType") or self.consume_type)
        self.message_model = str(about.get("messageModel") or self.message_model)
        self.consume_from = str(about.get("consumeFromWhere") or self.consume_from)

    def subscribe(self, subscriptions: dict[str, Subscription]) -> bool:
        """What a member says the group reads; True when that is something else than before.

        Members that started at different times report versions of their own: the greatest one stands.
        """
        old = self.subscriptions
        found = {
            topic: old[topic] if topic in old and old[topic].version > told.version else told
            for topic, told in subscriptions.items()
        }
        before = {topic: (s.expression, s.kind) for topic, s in old.items()}
        changed = before != {topic: (s.expression, s.kind) for topic, s in found.items()}
        if changed or any(old[topic].version != s.version for topic, s in found.items()):
            self.revision += 1
        self.subscriptions = found
        return changed


class _Named(NamedTuple):
    """One place of a client in a group."""

    consumes: bool
    group: str
    client_id: str


class Sharing:
    """Groups whose members must share the queues anew: they are told in the turn of a change, and of all changes of the next
    100 ms at the end of these. A thousand members that come or go one by one would be told a million times otherwise.
    """

    def __init__(self) -> None:
        self.due_ms = FAR_MS  # when somebody is to be told; in the past for at once
        self._changed: dict[str, int] = {}  # group: when its members are to be told
        self._told: dict[str, int] = {}  # group: since when they may be told again; the oldest first

    def change(self, group: str) -> None:
        """The members of a group are others, or it reads something else."""
        due_ms = self._changed.setdefault(group, self._told.get(group, 0))
        self.due_ms = min(self.due_ms, due_ms)

    def take(self, mono_ms: int) -> list[str]:
        """The groups whose members are told now."""
        due = [group for group, due_ms in self._changed.items() if due_ms <= mono_ms]
        for group in [group for group, since_ms in self._told.items() if since_ms <= mono_ms]:
            del self._told[group]
        for group in due:
            del self._changed[group]
            self._told[group] = mono_ms + SHARE_AGAIN_MS
        self.due_ms = min(self._changed.values(), default=FAR_MS)
        return due


class ClientTable:
    """Producers and consumers now online."""

    def __init__(self) -> None:
        self.producers: dict[str, dict[str, Member]] = {}
        self.consumers: dict[str, ConsumerGroup] = {}
        self.sharing = Sharing()
        self._named: dict[int, set[_Named]] = {}  # by the identity of a connection that members hold

    def demand_room(self, peer: Peer, client_id: str, producers: list[str], consumers: list[str]) -> None:
        """Refused when a connection would be in more groups than any client needs: each is kept for 120 s."""
        wanted = {_Named(False, group, client_id) for group in producers}
        wanted |= {_Named(True, group, client_id) for group in consumers}
        if len(wanted.union(self._named.get(id(peer), ()))) > NAMED_MAX:
            raise Refused(f"a connection is in at most {NAMED_MAX} groups, those of all its client ids together")

    def _note(self, former: Member | None, member: Member, named: _Named) -> None:
        if former is not None and former.peer is not member.peer:
            self._forget(former, named)
        self._named.setdefault(id(member.peer), set()).add(named)

    def _forget(self, member: Member, named: _Named) -> None:
        key = id(member.peer)
        left = self._named.get(key, set())
        left.discard(named)
        if not left:
            self._named.pop(key, None)

    def producer_heard(self, group: str, member: Member) -> None:
        members = self.producers.setdefault(group, {})
        self._note(members.get(member.client_id), member, _Named(False, group, member.client_id))
        members[member.client_id] = member

    def producer(self, client_id: str) -> Member | None:
        """The producer with this id, in whichever group it is; the one that was heard last."""
        found = [members[client_id] for members in self.producers.values() if client_id in members]
        return max(found, key=lambda member: member.heard_ms, default=None)

    def consumer_heard(
        self, group: str, member: Member, about: Mapping[str, object], subscriptions: dict[str, Subscription]
    ) -> None:
        """Take in a consumer's heartbeat."""
        online = self.consumers.get(group)
        if online is None:
            online = self.consumers[group] = ConsumerGroup(group)
        known = online.members.get(member.client_id)
        changed = known is None or known.peer is not member.peer
        self._note(known, member, _Named(True, group, member.client_id))
        online.members[member.client_id] = member
        online.describe(about)
        if online.subscribe(subscriptions) or changed:
            self.sharing.change(group)

    def leave(self, peer: Peer, client_id: str, producer_group: str, consumer_group: str) -> None:
        """A client says goodbye to its groups. One that has come back under the same id by another connection stays, as in
        RocketMQ.
        """
        producer = self.producers.get(producer_group, {}).get(client_id)
        if producer is not None and producer.peer is peer:
            self._drop_producer(producer_group, client_id)
        online = self.consumers.get(consumer_group)
        if online is not None and client_id in online.members and online.members[client_id].peer is peer:
            self._drop_consumer(online, client_id)

    def lost(self, peer: Peer) -> None:
        """A connection is gone, and all that was behind it."""
        for consumes, group, client_id in list(self._named.get(id(peer), ())):
            if consumes:
                self._drop_consumer(self.consumers[group], client_id)
            else:
                self._drop_producer(group, client_id)

    def expire(self, now_ms: int) -> None:
        """Forget who was not heard for 120 s. `now_ms` is monotonic, as `Member.heard_ms`."""
        for group, members in list(self.producers.items()):
            for client_id in _silent(members, now_ms):
                self._drop_producer(group, client_id)
        for online in list(self.consumers.values()):
            for client_id in _silent(online.members, now_ms):
                self._drop_consumer(online, client_id)

    def _drop_producer(self, group: str, client_id: str) -> None:
        members = self.producers[group]
        self._forget(members.pop(client_id), _Named(False, group, client_id))
        if not members:
            del self.producers[group]

    def _drop_consumer(self, online: ConsumerGroup, client_id: str) -> None:
        self._forget(online.members.pop(client_id), _Named(True, online.name, client_id))
        if online.members:
            self.sharing.change(online.name)
        else:
            del self.consumers[online.name]


def _silent(members: dict[str, Member], now_ms: int) -> list[str]:
    return [client_id for client_id, member in members.items() if now_ms - member.heard_ms > EXPIRY_MS]


class QueueLocks:
    """(group, topic, broker, queue) → the client that may read it in order, for 60 s after its last call.

    What nobody holds any more is forgotten soon.
    """

    def __init__(self) -> None:
        self._held: dict[str, dict[tuple[str, str, int], tuple[str, int]]] = {}
        self._count = 0
        self._forget_ms = 0

    @property
    def count(self) -> int:
        """Locks that are remembered."""
        return self._count

    def lock(
        self, group: str, client_id: str, queues: list[tuple[str, str, int]], now_ms: int
    ) -> list[tuple[str, str, int]]:
        """Lock, or renew; the queues the client holds afterwards, out of those asked for."""
        if now_ms >= self._forget_ms:
            self._forget(now_ms)
        held = self._held.setdefault(group, {})
        granted = []
        for queue in queues:
            lock = held.get(queue)
            if lock is None:
                if self._count >= LOCKS_MAX:
                    continue
                self._count += 1
            elif lock[0] != client_id and lock[1] > now_ms:
                continue
            held[queue] = (client_id, now_ms + LOCK_MS)
            granted.append(queue)
        if not held:
            del self._held[group]
        return granted

    def _forget(self, now_ms: int) -> None:
        self._forget_ms = now_ms + FORGET_MS
        for group, held in list(self._held.items()):
            held = {queue: lock for queue, lock in held.items() if lock[1] > now_ms}
            if held:
                self._held[group] = held
            else:
                del self._held[group]
        self._count = sum(map(len, self._held.values()))

    def unlock(self, group: str, client_id: str, queues: list[tuple[str, str, int]]) -> None:
        held = self._held.get(group, {})
        for queue in queues:
            if held.get(queue, ("", 0))[0] == client_id:
                del held[queue]
                self._count -= 1
        if not held:
            self._held.pop(group, None)
