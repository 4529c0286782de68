"""The clients' `Admin` for programs without an event loop: each call waits. The work is done by `client.aio`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Literal

from penstock.client.aio.admin import Admin as AioAdmin
from penstock.client.aio.admin import QueueStats
from penstock.client.aio.admincluster import ClusterInfo
from penstock.client.aio.admingroups import GroupMember, GroupStats, OffsetMove
from penstock.client.face import Client
from penstock.client.portal import portal
from penstock.client.routes import Json, MessageQueue, Route
from penstock.client.subscriptions import Start
from penstock.errors import PenstockError
from penstock.message import ReceivedMessage
from penstock.security import Security
from penstock.wire.traces import Trace


class _GroupAdmin(Client):
    """The part of `Admin` that is about consumer groups."""

    _inner: AioAdmin

    def group_stats(self, group: str, topic: str | None = None) -> dict[MessageQueue, GroupStats]:
        """How far a group is in every queue, its retry topic included."""
        return portal().run(self._inner.group_stats(group, topic))

    def groups(self) -> list[str]:
        """The consumer groups that the brokers know: those with settings, and those with committed offsets; sorted."""
        return portal().run(self._inner.groups())

    def check_group(self, group: str) -> None:
        """NotFound when no broker knows the group."""
        portal().run(self._inner.check_group(group))

    def reset_offset(
        self, group: str, topic: str, start: Start = "first", *, new: bool = False
    ) -> dict[MessageQueue, int]:
        """Move a group to a time, "first" or "last" in a topic; the new offsets."""
        return portal().run(self._inner.reset_offset(group, topic, start, new=new))

    def plan_reset(
        self, group: str, topic: str, start: Start = "first", *, offset: int | None = None
    ) -> dict[MessageQueue, OffsetMove]:
        """What `reset_offset`, or with `offset` `set_offset`, would do now, by queue; nothing is changed."""
        return portal().run(self._inner.plan_reset(group, topic, start, offset=offset))

    def set_offset(self, group: str, topic: str, offset: int, *, new: bool = False) -> dict[MessageQueue, int]:
        """Commit an offset in every queue of a topic, or what is nearest to it there, of a group that is offline."""
        return portal().run(self._inner.set_offset(group, topic, offset, new=new))

    def all_group_stats(self) -> dict[str, dict[MessageQueue, GroupStats]]:
        """How far every group is that has committed anything."""
        return portal().run(self._inner.all_group_stats())

    def group_members(self, group: str, *, queues: bool = True) -> list[GroupMember]:
        """Who of a group is connected; with `queues` each is asked what it reads."""
        return portal().run(self._inner.group_members(group, queues=queues))

    def group_subscriptions(self, group: str) -> dict[str, str]:
        """What those that are connected read: topic to expression."""
        return portal().run(self._inner.group_subscriptions(group))

    def member_counts(self, groups: list[str]) -> dict[str, int]:
        """How many consumers of each group are connected."""
        return portal().run(self._inner.member_counts(groups))

    def check_offline(self, group: str) -> None:
        """BrokerRefused when a consumer of the group is connected."""
        portal().run(self._inner.check_offline(group))

    def oldest_ms(self, topic: str) -> int | None:
        """When the oldest message of a log topic was stored; None when it holds none."""
        return portal().run(self._inner.oldest_ms(topic))

    def groups_of(self, topic: str) -> list[str]:
        """The groups that read a log topic or committed an offset in it; sorted."""
        return portal().run(self._inner.groups_of(topic))

    def delete_group(self, group: str) -> None:
        """Forget a group's settings and its committed offsets; its retry topic and dead letters stay."""
        portal().run(self._inner.delete_group(group))


class _BrokerAdmin(_GroupAdmin):
    """What brokers of ours alone are asked."""

    def convert_topic(self, topic: str, kind: Literal["log", "queue"], *, dry_run: bool = False) -> list[Json]:
        """A topic becomes of this kind, if nothing would be lost; what would."""
        return portal().run(self._inner.convert_topic(topic, kind, dry_run=dry_run))

    def redrive_page(self, broker: str, topic: str, wanted: Mapping[str, str]) -> tuple[list[Json], str | None]:
        """Have one broker send some dead letters of a queue topic again, or say which; where to go on, None at the end."""
        return portal().run(self._inner.redrive_page(broker, topic, wanted))

    def keep_topic(
        self,
        topic: str,
        *,
        retention_ms: int | None = None,
        retention_bytes: int | None = None,
        trace: bool | None = None,
    ) -> None:
        """How long, and how many bytes at each broker, a log topic keeps its messages; 0: as the broker does."""
        portal().run(
            self._inner.keep_topic(topic, retention_ms=retention_ms, retention_bytes=retention_bytes, trace=trace)
        )

    def disconnect(self, address: str) -> int:
        """End the connections that clients have from this address; how many those were. NotFound."""
        return portal().run(self._inner.disconnect(address))

    def drop_stage(self, sink: str, run: str) -> int:
        """Forget all rows that are staged for a sink, at every broker; how many stages those were."""
        return portal().run(self._inner.drop_stage(sink, run))

    def clients(self) -> list[Json]:
        """Who is connected to each broker: producers and consumers of both protocols."""
        return portal().run(self._inner.clients())

    def reload_config(self, broker: str | None = None) -> list[Json]:
        """Have all brokers, or one, read their settings again, slaves as well: what changed, and whether that holds now."""
        return portal().run(self._inner.reload_config(broker))


class Admin(_BrokerAdmin):
    """Looking at a cluster and changing it. See `penstock.aio.Admin`."""

    def __init__(
        self,
        registry: str = "127.0.0.1:9876",
        *,
        timeout_s: float = 10.0,
        security: Security | str | Path | None = None,
        partial: bool = False,
    ) -> None:
        self._inner: AioAdmin = AioAdmin(registry, timeout_s=timeout_s, security=security, partial=partial)

    @property
    def missed(self) -> dict[str, PenstockError]:
        """With `partial`: the brokers that did not answer what all were asked, and why; they are asked again after a minute."""
        return self._inner.missed

    def cluster_info(self) -> ClusterInfo:
        """Which brokers there are."""
        return portal().run(self._inner.cluster_info())

    def runtime_info(self, address: str) -> dict[str, str]:
        """What one broker, master or slave, says of itself: RocketMQ's figures, and more."""
        return portal().run(self._inner.runtime_info(address))

    def runtime_infos(self, addresses: Iterable[str]) -> dict[str, dict[str, str] | PenstockError]:
        """The same of several that are asked side by side: by address what each says, or why it does not."""
        return portal().run(self._inner.runtime_infos(addresses))

    def promote(self, address: str, *, accept_loss: bool = False) -> None:
        """Let the slave at this address be the master of its replica set; its old master must be stopped. BrokerRefused where
        acknowledged messages could be lost, unless `accept_loss`.
        """
        portal().run(self._inner.promote(address, accept_loss=accept_loss))

    def switch(self, address: str, node: str = "") -> str:
        """Let the master at this address begin to change places with a slave in sync, the one of this name or any; its name."""
        return portal().run(self._inner.switch(address, node))

    def pause_failover(self, address: str, paused: bool) -> bool:
        """Let the replica set of the node at this address have no failover by itself, or have it again; whether that is new.
        BrokerRefused without an engine, or when it does not answer.
        """
        return portal().run(self._inner.pause_failover(address, paused))

    def forget_node(self, address: str, node: str, *, dry_run: bool = False) -> Json:
        """Let the node at this address know nothing of another one of its replica set any more: what it knew. BrokerRefused
        while that one is there.
        """
        return portal().run(self._inner.forget_node(address, node, dry_run=dry_run))

    def topics(self, *, system: bool = False) -> list[str]:
        """The topics, sorted; with `system` also the broker's own, retry and dead-letter topics."""
        return portal().run(self._inner.topics(system=system))

    def route(self, topic: str) -> Route:
        """Where a topic lives. NoRoute when no broker serves it."""
        return portal().run(self._inner.route(topic))

    def create_topic(
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
        """Create a topic, or change what is named of it, on every broker or on one; not `new`: only where it is there."""
        portal().run(
            self._inner.create_topic(topic, queue_count, broker=broker, perm=perm, level=level, force=force, new=new)
        )

    def create_topics(
        self,
        topics: Iterable[str],
        queue_count: int | None = None,
        *,
        broker: str | None = None,
        perm: int | None = None,
        level: str | None = None,
        force: bool = False,
    ) -> None:
        """The same for many, in one go; all are tried, then the first error is raised."""
        portal().run(self._inner.create_topics(topics, queue_count, broker=broker, perm=perm, level=level, force=force))

    def delete_topic(self, topic: str) -> None:
        """Delete a topic of either kind from every broker that has it, and from the routes."""
        portal().run(self._inner.delete_topic(topic))

    def queue_topics(self, topic: str = "") -> list[Json]:
        """The topics that NSQ sees, or one of them: a row for each broker that has it, with its channels."""
        return portal().run(self._inner.queue_topics(topic))

    def change_queue(
        self,
        topic: str,
        action: Literal["add", "rm", "pause", "unpause", "empty"],
        *,
        channel: str | None = None,
        level: str | None = None,
        broker: str | None = None,
    ) -> list[str]:
        """Change a queue topic, or a channel of a topic of either kind, on every broker that has it."""
        return portal().run(self._inner.change_queue(topic, action, channel=channel, level=level, broker=broker))

    def purge_topic(
        self,
        topic: str,
        to: Literal["end"] | int | datetime = "end",
        *,
        queue: int | None = None,
        broker: str | None = None,
        dry_run: bool = False,
    ) -> list[Json]:
        """Take the messages of a topic of either kind below a place out of the sight of all groups and channels."""
        return portal().run(self._inner.purge_topic(topic, to, queue=queue, broker=broker, dry_run=dry_run))

    def browse(
        self,
        topic: str,
        *,
        channel: str = "",
        state: Literal["ready", "in-flight", "deferred"] = "ready",
        start: Start = "first",
        key: str = "",
        queue: int | None = None,
        limit: int = 100,
        body_bytes: int = 64 << 10,
    ) -> list[Json]:
        """Messages of a topic of either kind, or of a channel; nothing is changed by looking."""
        asked = self._inner.browse(
            topic, channel=channel, state=state, start=start, key=key, queue=queue, limit=limit, body_bytes=body_bytes
        )
        return portal().run(asked)

    def brokers(self) -> dict[str, str]:
        """The masters: name to address."""
        return portal().run(self._inner.brokers())

    def browse_page(
        self, broker: str, after: str, *, topic: str, channel: str, state: str, body_bytes: int, body_from: int = 0
    ) -> tuple[list[Json], str | None]:
        """Some rows of one broker behind the place `after`, and where to go on; None at the end. With `body_from` one row
        alone, and of its body what is behind so many bytes. NotFound.
        """
        return portal().run(
            self._inner.browse_page(
                broker, after, topic=topic, channel=channel, state=state, body_bytes=body_bytes, body_from=body_from
            )
        )

    def delayed(
        self, *, topic: str = "", channel: str = "", text: str = "", key: str = "", limit: int = 100
    ) -> list[Json]:
        """The delayed messages of both kinds of topic, by due time."""
        return portal().run(self._inner.delayed(topic=topic, channel=channel, text=text, key=key, limit=limit))

    def delayed_counts(self, edges: Sequence[int], *, topic: str = "", channel: str = "") -> list[int]:
        """How many are due before the first of these moments (ms), before the second …, and after the last; of no moments, how
        many there are.
        """
        return portal().run(self._inner.delayed_counts(edges, topic=topic, channel=channel))

    def cancel_delayed(self, id_: str) -> Json:
        """A delayed message is not to be delivered; its row."""
        return portal().run(self._inner.cancel_delayed(id_))

    def fire_delayed(self, id_: str, *, at_ms: int | None = None) -> Json:
        """A delayed message is to be delivered now, or at another time, which gives it another id; its row."""
        return portal().run(self._inner.fire_delayed(id_, at_ms=at_ms))

    def topic_stats(self, topic: str) -> dict[MessageQueue, QueueStats]:
        """How much every queue of a topic holds."""
        return portal().run(self._inner.topic_stats(topic))

    def describe_topic(self, topic: str) -> list[Json]:
        """A row for each broker that has a topic of either kind, with its channels and groups. NotFound."""
        return portal().run(self._inner.describe_topic(topic))

    def query_by_key(
        self,
        topic: str,
        key: str,
        *,
        max_count: int = 32,
        begin: datetime | int = 0,
        end: datetime | int = (1 << 62),
    ) -> list[ReceivedMessage]:
        """The messages with a key, or with this producer-given id, newest last."""
        return portal().run(self._inner.query_by_key(topic, key, max_count=max_count, begin=begin, end=end))

    def traces(self, msg_id: str) -> list[Trace]:
        """What clients that trace have told of a message, by its id or one of its keys, in order. NotFound: nothing."""
        return portal().run(self._inner.traces(msg_id))

    def message(self, msg_id: str, topic: str | None = None) -> ReceivedMessage:
        """One message by its offset message id, or, when `topic` is given, by the id its producer gave it."""
        return portal().run(self._inner.message(msg_id, topic))
