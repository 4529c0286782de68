"""Consumer groups: their settings (subscriptionGroup.json) and committed offsets (consumerOffset.json).

Both files are RocketMQ's (rocketmq.md §6, §9.2, §9.6); SmartGo's spelling of them is read as well.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec

from penstock.broker import shapes
from penstock.broker.lately import Lately
from penstock.broker.topics import check_group_name
from penstock.errors import Refused
from penstock.limits import Limits
from penstock.log.consumequeue import ConsumeQueue
from penstock.log.store import LogStore
from penstock.wire.codes import PERM_READ, ResponseCode
from penstock.wire.names import SYSTEM_GROUPS, TRANSACTION_GROUP

log = logging.getLogger("penstock.broker")

DAMAGED_MAX = 100  # so many messages that cannot be read are passed over
CHANGED_MAX = 100_000  # groups on topics; a slave that knows fewer changes is told all offsets


class Group(msgspec.Struct, eq=False):
    """RocketMQ's SubscriptionGroupConfig, and what this group was given since the start."""

    name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    retry_queues: int = 1
    retry_max: int = 16
    broker_id: int = 0
    which_broker_when_slow: int = 1
    notify_changes: bool = True
    sent_back: int = 0
    # topic: [messages, bytes, pulls with, without any]
    get_counts: dict[bytes, list[int]] = msgspec.field(default_factory=dict)
    # topic: queue id: where its last pull began
    pulled: dict[bytes, dict[int, int]] = msgspec.field(default_factory=dict)
    forbidden: frozenset[str] = frozenset()  # topics that it may not read

    def was_sent_back(self) -> None:
        """One more message was given back."""
        self.sent_back += 1

    def change(self, told: Group) -> None:
        """Take another one's settings; sessions that hold this one see them at their next pull."""
        for name in _SETTINGS:
            setattr(self, name, getattr(told, name))

    def forbid(self, topic: str, forbidden: bool) -> None:
        """Whether it may not read a topic."""
        self.forbidden = self.forbidden | {topic} if forbidden else self.forbidden - {topic}

    def as_config(self) -> dict[str, object]:
        return {
            "brokerId": self.broker_id,
            "consumeBroadcastEnable": self.consume_broadcast_enable,
            "consumeEnable": self.consume_enable,
            "consumeFromMinEnable": self.consume_from_min_enable,
            "groupName": self.name,
            "notifyConsumerIdsChangedEnable": self.notify_changes,
            "retryMaxTimes": self.retry_max,
            "retryQueueNums": self.retry_queues,
            "whichBrokerWhenConsumeSlowly": self.which_broker_when_slow,
        }


_SETTINGS = (
    "consume_enable", "consume_from_min_enable", "consume_broadcast_enable", "retry_queues", "retry_max", "broker_id",
    "which_broker_when_slow", "notify_changes",
)  # fmt: skip


def group_of(config: Mapping[str, object]) -> Group:
    """A group with the settings of RocketMQ's SubscriptionGroupConfig. Refused where they are none."""
    name = config.get("groupName")
    if not isinstance(name, str):
        raise Refused("groupName is missing")
    check_group_name(name)
    try:
        return Group(
            name,
            consume_enable=bool(config.get("consumeEnable", True)),
            consume_from_min_enable=bool(config.get("consumeFromMinEnable", True)),
            consume_broadcast_enable=bool(config.get("consumeBroadcastEnable", True)),
            retry_queues=shapes.number(config, "retryQueueNums", 1),
            retry_max=shapes.number(config, "retryMaxTimes", 16),
            broker_id=shapes.number(config, "brokerId", 0),
            which_broker_when_slow=shapes.number(config, "whichBrokerWhenConsumeSlowly", 1),
            notify_changes=bool(config.get("notifyConsumerIdsChangedEnable", True)),
        )
    except (TypeError, ValueError):
        raise Refused(f"a number of the settings of group {name} is not a number") from None


class GroupTable:
    """Subscription groups by name; unknown ones are made on use when `auto_create` is on."""

    def __init__(self, *, auto_create: bool = True, limits: Limits | None = None) -> None:
        self.auto_create = auto_create
        self.limits = limits or Limits()
        self.by_name: dict[str, Group] = {name: Group(name) for name in SYSTEM_GROUPS}
        self.version = {"counter": 0, "timestamp": 0}
        self.lately: Lately[str] = Lately()
        self.changed: list[Callable[[str], None]] = []

    def find(self, name: str, now_ms: int) -> Group:
        """The group, made if need be. Refused (26) when unknown and not to be made."""
        group = self.by_name.get(name)
        if group is None:
            check_group_name(name)
            if not self.auto_create:
                raise Refused(
                    f"subscription group not exist, {name}",
                    remoting=ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                    http=404,
                )
            self.demand_room((name,))
            group = self.by_name[name] = Group(name)
            log.info("group made name=%s", name)
            self._changed(name, now_ms)
        return group

    def demand_room(self, names: Iterable[str]) -> None:
        """Refused when there would be too many groups with these. What is read at a start, or of a master, has room."""
        fresh = sum(name not in self.by_name for name in set(names))
        if fresh and len(self.by_name) + fresh > self.limits.max_groups:
            self.limits.count("groups")
            raise Refused(f"no more than {self.limits.max_groups} groups")

    def update(self, config: Mapping[str, object], now_ms: int) -> Group:
        """Make or change a group from RocketMQ's SubscriptionGroupConfig. Refused."""
        told = group_of(config)
        name = told.name
        if name not in self.by_name and now_ms:  # at 0 ms the table is read
            log.info("group made name=%s", name)
        group = self.by_name.setdefault(name, told)
        group.change(told)
        self._changed(name, now_ms)
        return group

    def forbid(self, name: str, topic: str, forbidden: bool, now_ms: int) -> None:
        """Say whether a group may not read a topic."""
        self.find(name, now_ms).forbid(topic, forbidden)
        self._changed(name, now_ms)

    def delete(self, name: str, now_ms: int) -> bool:
        """Forget a group's settings; False when it was not known."""
        if self.by_name.pop(name, None) is None:
            return False
        log.info("group deleted name=%s", name)
        self._changed(name, now_ms)
        return True

    def _changed(self, name: str, now_ms: int) -> None:
        self.version = {"counter": self.version["counter"] + 1, "timestamp": now_ms}
        self.lately.note(name)
        for call in self.changed:
            call(name)

    def as_table(self) -> dict[str, object]:
        table = {group.name: group.as_config() for group in self.by_name.values()}
        told: dict[str, object] = {"dataVersion": dict(self.version), "subscriptionGroupTable": table}
        forbidden = {
            g.name: dict.fromkeys(sorted(g.forbidden), PERM_READ) for g in self.by_name.values() if g.forbidden
        }
        return told | ({"forbiddenTable": forbidden} if forbidden else {})  # as RocketMQ 5 has it

    def as_change(self, name: str) -> dict[str, object]:
        """What is noted beside the table, and told a slave, when a group came, went or was changed."""
        group = self.by_name.get(name)
        told: dict[str, object] = {"name": name, "config": None, "dataVersion": dict(self.version)}
        if group is not None:
            told |= {"config": group.as_config(), "forbidden": sorted(group.forbidden)}
        return told

    def load_change(self, change: Mapping[str, object]) -> None:
        """Take over what `as_change` said, behind a table."""
        name, config, forbidden = str(change["name"]), change.get("config"), change.get("forbidden")
        self.by_name.pop(name, None)
        if isinstance(config, dict):
            self._load_group(name, config)
        for topic in forbidden if isinstance(forbidden, list) else ():
            if name in self.by_name:
                self.by_name[name].forbid(str(topic), True)
        self.version = shapes.version_of(change)

    def _load_group(self, name: str, config: Mapping[str, object]) -> None:
        try:
            self.update({"groupName": name, **config}, 0)
        except Refused:
            return  # a damaged entry costs one group, and that is made again when it is used

    def load(self, table: Mapping[str, object]) -> None:
        groups = table.get("subscriptionGroupTable")
        if not isinstance(groups, dict):  # SmartGo writes the groups beside dataVersion
            groups = {name: value for name, value in table.items() if name != "dataVersion"}
        for name, config in groups.items():
            if isinstance(config, dict):
                self._load_group(name, config)
        for name, topics in shapes.entries(table, "forbiddenTable").items():
            for topic, bits in topics.items():
                if name in self.by_name and isinstance(bits, int) and bits & PERM_READ:
                    self.by_name[name].forbid(topic, True)
        self.version = shapes.version_of(table)


def check_commits(group: str) -> None:
    """Refused when the offsets of a group are the broker's own: moved by a client, transactions would be forgotten."""
    if group == TRANSACTION_GROUP:
        raise Refused(f"the offsets of {group} are the broker's own", remoting=ResponseCode.NO_PERMISSION)


def owed(queues: Iterable[ConsumeQueue], offsets: Mapping[int, int]) -> Iterator[tuple[ConsumeQueue, int]]:
    """Each queue that a group with these committed offsets reads, and where it goes on there: at its first message where
    nothing is committed. What is gone is owed to nobody, and nothing to a group that has committed nowhere: nobody knows yet
    where it will begin.
    """
    if not offsets:
        return
    for number, queue in enumerate(queues):
        yield queue, max(offsets.get(number, 0), queue.min_offset)


def lag(queues: Iterable[ConsumeQueue], offsets: Mapping[int, int]) -> int:
    """Messages that a group with these committed offsets has before it."""
    return sum([max(0, queue.visible_end() - at) for queue, at in owed(queues, offsets)])


def oldest_ms(store: LogStore, queues: Iterable[ConsumeQueue], offsets: Mapping[int, int], now_ms: int) -> int:
    """How long the oldest of them has been stored; 0 when there is none."""
    return max((lag_ms(store, queue, at, now_ms) for queue, at in owed(queues, offsets)), default=0)


def lag_ms(store: LogStore, queue: ConsumeQueue, offset: int, now_ms: int) -> int:
    """How long the oldest message from an offset on has been stored; 0 when there is none."""
    first, end = max(offset, queue.min_offset), queue.visible_end()
    for at in range(first, min(end, first + DAMAGED_MAX)):
        stored_ms = store.store_time(queue, at)
        if stored_ms >= 0:
            return max(0, now_ms - stored_ms)
    return 0


class OffsetTable:
    """Committed offsets: (topic, group) → {queue id: next offset to read}, and which of them changed."""

    def __init__(self) -> None:
        self.table: dict[tuple[str, str], dict[int, int]] = {}
        self.lately: Lately[tuple[str, str]] = Lately(CHANGED_MAX)
        self.dirty = False
        self._tell: Callable[[str, str, int, int | None, int], None] | None = None

    def watch(self, tell: Callable[[str, str, int, int | None, int], None]) -> None:
        """Tell of each commit: group, topic, queue, the offset before and the new one."""
        self._tell = tell

    def changed(self) -> None:
        """The table must be written down."""
        self.dirty = True

    def saved(self) -> None:
        """The table is on the disk as it is now, or on its way there."""
        self.dirty = False

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set an offset, forward or back."""
        queues = self.table.setdefault((topic, group), {})
        self.dirty = True
        before = queues.get(queue_id)
        if before == offset:
            return
        if self._tell is not None:
            self._tell(group, topic, queue_id, before, offset)
        queues[queue_id] = offset
        self.lately.note((topic, group))

    def get(self, group: str, topic: str, queue_id: int) -> int | None:
        """The committed offset, or None."""
        return self.table.get((topic, group), {}).get(queue_id)

    def queues(self, group: str, topic: str) -> dict[int, int]:
        return self.table.get((topic, group), {})

    def topics_of(self, group: str) -> list[str]:
        return [topic for topic, name in self.table if name == group]

    def groups_of(self, topic: str) -> list[str]:
        return [name for name_of_topic, name in self.table if name_of_topic == topic]

    def drop_group(self, group: str) -> None:
        for topic in self.topics_of(group):
            self.drop(group, topic)

    def drop(self, group: str, topic: str) -> None:
        """The group has no place on a topic."""
        if self.table.pop((topic, group), None) is not None:
            self.lately.note((topic, group))
            self.dirty = True

    def clone(self, source: str, target: str, topic: str | None) -> None:
        """Give one group the offsets of another, for one topic or all."""
        for name, group in list(self.table):
            if group == source and topic in (None, "", name):
                self.table[name, target] = dict(self.table[name, group])
                self.lately.note((name, target))
                self.dirty = True

    def as_table(self) -> dict[str, object]:
        # The numbers of queues become text where it is written: a hundred thousand of these are copied in the loop.
        return {"offsetTable": {f"{topic}@{group}": dict(queues) for (topic, group), queues in self.table.items()}}

    def load(self, table: Mapping[str, object]) -> None:
        """RocketMQ's table, or SmartGo's: `offsets` with `group@topic` and keys such as "queue 1"."""
        for key, queues in shapes.entries(table, "offsetTable").items():
            topic, at, group = key.rpartition("@")
            if at:
                self._take(topic, group, queues)
        for key, queues in shapes.entries(table, "offsets").items():
            group, at, topic = key.partition("@")
            if at:
                self._take(topic, group, queues)

    def _take(self, topic: str, group: str, queues: Mapping[str, object]) -> None:
        for queue, offset in queues.items():
            number = str(queue).rpartition(" ")[2]
            if number.isdecimal() and isinstance(offset, int) and offset >= 0:
                self.table.setdefault((topic, group), {})[int(number)] = offset
