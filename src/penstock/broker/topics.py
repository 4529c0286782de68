"""The topic table: which topics there are, their queues, permission and level, and the rules for new ones.

A `LogTopic` is kept for as long as the broker runs and changed in place, so that sessions may hold on to one;
`open` says whether it still exists. Persistence is RocketMQ's `topics.json` (rocketmq.md §6); the level of a topic
stands there as one more field, which RocketMQ ignores.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import cython

from penstock.broker import shapes
from penstock.broker.lately import Lately
from penstock.broker.levels import LEVEL_NAMES, LEVEL_OS, LEVELS, LOG_LEVELS
from penstock.broker.rules import TopicRule
from penstock.errors import LimitReached, OtherKind, Refused
from penstock.limits import QUEUES_MAX, CreationRate, Limits
from penstock.log.consumequeue import ConsumeQueue
from penstock.wire.codes import PERM_INHERIT as PERM_INHERIT
from penstock.wire.codes import PERM_READ as PERM_READ
from penstock.wire.codes import PERM_WRITE as PERM_WRITE
from penstock.wire.codes import ResponseCode
from penstock.wire.layout import FILLER_SIZE
from penstock.wire.layout import TOPIC_BYTES_MAX as TOPIC_BYTES_MAX
from penstock.wire.names import DEAD_PREFIX as DEAD_PREFIX
from penstock.wire.names import DONE_TOPIC as DONE_TOPIC
from penstock.wire.names import (
    GIVEN_UP_TOPIC,
    GROUP_BYTES_MAX,
    LOG_NAME,
    OFFSET_MOVED_TOPIC,
    SELF_TEST_TOPIC,
    SINK_TOPIC,
)
from penstock.wire.names import HALF_TOPIC as HALF_TOPIC
from penstock.wire.names import OP_TOPIC as OP_TOPIC
from penstock.wire.names import RETRY_PREFIX as RETRY_PREFIX
from penstock.wire.names import SCHEDULE_TOPIC as SCHEDULE_TOPIC
from penstock.wire.names import TEMPLATE_TOPIC as TEMPLATE_TOPIC
from penstock.wire.names import TIMER_TOPIC as TIMER_TOPIC

if cython.compiled:
    from cython.cimports.penstock import words
else:
    from penstock import words

PERM_BOTH = PERM_READ | PERM_WRITE
PERM_MAX, SYS_FLAG_MAX = 15, 255  # a registry refuses a broker with a topic that has more bits
_PERM_LETTERS = (("R", PERM_READ), ("W", PERM_WRITE), ("X", PERM_INHERIT))
DEFAULT_QUEUES = 4  # of a table that does not say

_QUEUES = 8  # of the template
_CONFLICT, _FULL = 409, 503  # HTTP's statuses

_NAME = re.compile(LOG_NAME)
# Closed to senders (rocketmq.md §9.1).
PROTECTED = frozenset(
    (
        SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC, OP_TOPIC, GIVEN_UP_TOPIC, SELF_TEST_TOPIC, OFFSET_MOVED_TOPIC, SINK_TOPIC,
        DONE_TOPIC,
    )
)  # fmt: skip

log = logging.getLogger("penstock.broker")


def check_topic_name(name: bytes) -> None:
    """Refuse what RocketMQ refuses, in its words."""
    if not name.strip():
        raise Refused("The specified topic is blank.")
    if not _NAME.fullmatch(name):
        raise Refused(
            "The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$",
            hint="Use letters, digits, % | _ and - only.",
        )
    if len(name) > TOPIC_BYTES_MAX:
        raise Refused("The specified topic is longer than topic max length.")


def check_group_name(name: str) -> None:
    """A consumer or producer group: the same letters as a topic, at most 255 bytes."""
    if not name or len(name) > GROUP_BYTES_MAX or not _NAME.fullmatch(name.encode()):
        raise Refused(
            "the specified group is blank, longer than 255 or contains illegal characters, "
            "allowing only ^[%|a-zA-Z0-9_-]+$"
        )


class TopicDetails(NamedTuple):
    """What RocketMQ keeps of a topic, and no rule of ours asks for; then how long, and how many bytes of it, ours keeps: 0
    is as the broker does; whether each of its messages is traced; whether they stay until every NSQ channel has finished them.
    """

    order: bool = False
    filter_type: str = "SINGLE_TAG"
    sys_flag: int = 0
    keep_ms: int = 0
    keep_bytes: int = 0
    traced: bool = False
    owed: bool = False


PLAIN = TopicDetails()


class TopicSettings(NamedTuple):
    """A topic as an administrator has set it."""

    read_queues: int
    write_queues: int
    perm: int
    level: int
    more: TopicDetails


def details_of(config: Mapping[str, object]) -> TopicDetails:
    """From a TopicConfig."""
    kind = config.get("topicFilterType")
    return TopicDetails(
        config.get("order") is True,
        kind if isinstance(kind, str) else PLAIN.filter_type,
        shapes.number(config, "topicSysFlag", 0) & SYS_FLAG_MAX,
        max(0, shapes.number(config, "retentionMs", 0)),
        max(0, shapes.number(config, "retentionBytes", 0)),
        config.get("trace") is True,
        config.get("keptForChannels") is True,
    )


def _log_level(name: object, otherwise: int) -> int:
    """The level of that name, if a log topic can have it."""
    return LEVELS[name] if isinstance(name, str) and name in LOG_LEVELS else otherwise


def _any_from(queue: ConsumeQueue, offset: int) -> bool:
    """Whether a message stands at offset or behind it; fillers are none."""
    entries = (queue.entry(n) for n in range(max(offset, queue.min_offset), queue.max_offset))
    return any(entry is not None and entry[1] != FILLER_SIZE for entry in entries)


def _keep_visible(queue: ConsumeQueue, below: int | None) -> None:
    """The level rises: what readers see now, records below this position (None: all), they see on."""
    end = queue.visible_end()
    if below is not None:
        end = min(end, queue.durable_end(below))
    queue.show(end)


class LogTopic:
    """One log topic of this broker."""

    def __init__(self, name: bytes, read_queues: int, write_queues: int, perm: int, level: int) -> None:
        self.name = name
        self.read_queues = read_queues
        self.write_queues = write_queues
        self.perm = perm
        self.level = level
        self.order = False
        self.filter_type = "SINGLE_TAG"
        self.sys_flag = 0
        self.keep_ms = 0
        self.keep_bytes = 0
        self.traced = self.owed = False
        self.open = True
        self.protected = name in PROTECTED
        self.is_retry = name.startswith(RETRY_PREFIX)
        self.queues: list[ConsumeQueue] = []
        self.stored_before = 0  # messages of these queues when they were taken up
        self.put_count = 0
        self.put_bytes = 0

    @property
    def queue_count(self) -> int:
        """How many message queues exist: those that may be read or written."""
        return int(max(self.read_queues, self.write_queues))

    @property
    def message_count(self) -> int:
        """Messages stored since the start, by whichever door."""
        return int(sum([queue.max_offset for queue in self.queues]) - self.stored_before)

    def change(self, read_queues: int, write_queues: int, perm: int, level: int) -> None:
        """Its queues and what may be done with them."""
        self.read_queues, self.write_queues, self.perm, self.level = read_queues, write_queues, perm, level

    def detail(self, more: TopicDetails) -> None:
        """What is kept beside that."""
        self.order, self.filter_type, self.sys_flag, self.keep_ms, self.keep_bytes, self.traced, self.owed = more

    def trace(self, on: bool) -> None:
        """Tell of each of its messages where it goes."""
        self.traced = on

    def keep_order(self, ordered: bool) -> None:
        """Whether the registry says that it is an order topic."""
        self.order = ordered

    def writable(self) -> bool:
        """Whether producers may write to it."""
        return self.perm & words.PERM_WRITE != 0

    def count(self, messages: int, size: int) -> None:
        """So many more messages of so many bytes are stored."""
        self.put_count += messages
        self.put_bytes += size

    def close(self) -> None:
        """The topic is deleted: sessions that hold on to it see that."""
        self.open = False

    def count_put(self, messages: int, size: int) -> None:
        """So many messages were stored, `size` bytes of log together."""
        self.put_count += messages
        self.put_bytes += size

    def add_queue(self, queue: ConsumeQueue) -> None:
        """One more message queue."""
        self.queues.append(queue)
        self.stored_before += queue.max_offset

    def keeps(self, queue_id: int) -> bool:
        """Whether a queue that is no longer to be read still holds messages: whoever asks for them gets them."""
        if queue_id >= len(self.queues):
            return False
        queue = self.queues[queue_id]
        return bool(queue.min_offset < queue.max_offset)

    def settings(self) -> TopicSettings:
        """What an administrator may change, for `TopicTable.undo`."""
        more = TopicDetails(
            self.order,
            self.filter_type,
            self.sys_flag,
            self.keep_ms,
            self.keep_bytes,
            bool(self.traced),
            bool(self.owed),
        )
        return TopicSettings(self.read_queues, self.write_queues, self.perm, self.level, more)

    def described(self) -> str:
        """The topic in an error text, as RocketMQ's brokers write it."""
        perm = "".join(letter if self.perm & bit else "-" for letter, bit in _PERM_LETTERS)
        return (
            f"TopicConfig [topicName={self.name.decode()}, readQueueNums={self.read_queues}, "
            f"writeQueueNums={self.write_queues}, perm={perm}, topicFilterType={self.filter_type}, "
            f"topicSysFlag={self.sys_flag}, order={str(bool(self.order)).lower()}]"
        )

    def as_config(self, broker_perm: int = PERM_BOTH) -> dict[str, object]:
        """RocketMQ's TopicConfig; `broker_perm` takes away what the broker does not grant."""
        config: dict[str, object] = {
            "order": bool(self.order),
            "perm": self.perm & (broker_perm | PERM_INHERIT),
            "readQueueNums": self.read_queues,
            "topicFilterType": self.filter_type,
            "topicName": self.name.decode(),
            "topicSysFlag": self.sys_flag,
            "writeQueueNums": self.write_queues,
        }
        if self.level != LEVEL_OS:
            config["level"] = LEVEL_NAMES[self.level]
        if self.keep_ms:
            config["retentionMs"] = self.keep_ms
        if self.keep_bytes:
            config["retentionBytes"] = self.keep_bytes
        if self.traced and not self.is_retry:  # that one is, for as long as the broker runs, because another is
            config["trace"] = True
        if self.owed:
            config["keptForChannels"] = True
        return config


class TopicTable:
    """All topics by name. `queue_of(name, id)` gives a topic's consume queue; `changed(name)` is called after each change."""

    def __init__(
        self,
        queue_of: Callable[[bytes, int], ConsumeQueue],
        *,
        level: int = LEVEL_OS,
        auto_create: bool = True,
        default_queues: int = _QUEUES,
        rules: Iterable[tuple[re.Pattern[str], TopicRule]] = (),
        limits: Limits | None = None,
    ) -> None:
        self._queue_of = queue_of
        self._level = level
        self._rules = list(rules)
        self.limits = limits or Limits()
        self.creations = CreationRate(self.limits.max_topic_creations_per_second)  # of topics made by their first use
        self.auto_create = auto_create
        self.default_queues = default_queues
        self.by_name: dict[bytes, LogTopic] = {}
        self._own = 0  # topics that the broker needs for itself
        self._floors: dict[bytes, dict[int, int]] = {}  # where deleted topics ended
        self.behind: set[bytes] = set()  # topics with queues that end below their floors: a copy has yet to come so far
        self.version = {"counter": 0, "timestamp": 0}
        self.lately: Lately[bytes] = Lately()
        self.changed: list[Callable[[bytes], None]] = []
        self._taken: Callable[[bytes], bool] = lambda name: False
        self._seen: Callable[[int], int | None] = lambda level: None

    def leave_out(self, own: Iterable[bytes]) -> None:
        """These are the broker's own: nobody sees them, and they do not count against the limit."""
        self._own = sum(name in self.by_name for name in own)

    def share_names_with(self, taken: Callable[[bytes], bool]) -> None:
        """`taken(name)` says whether a queue topic has the name already."""
        self._taken = taken

    def readers_see(self, seen: Callable[[int], int | None]) -> None:
        """`seen(level)` says below which position of the log readers of a topic of this level see records; None: all."""
        self._seen = seen

    def get(self, name: bytes) -> LogTopic | None:
        return self.by_name.get(name)

    def create(
        self,
        name: bytes,
        read_queues: int,
        write_queues: int,
        perm: int = PERM_BOTH,
        *,
        now_ms: int = 0,
        level: int | None = None,
        more: TopicDetails = PLAIN,
        announce: bool = True,
    ) -> LogTopic:
        """Make a topic, or change the one of that name. Refuses bad names, and what is beyond the limits.

        They do not hold for the broker's own topics and those of before (`announce` is False), nor do kind and queues of the
        rules."""
        check_topic_name(name)
        limits = self.limits
        most = limits.max_queues_per_topic if announce else QUEUES_MAX
        if not (0 <= read_queues <= most and 0 <= write_queues <= most):
            if read_queues > most or write_queues > most:
                limits.count("queues")
            raise Refused(f"a topic has 0 to {most} queues, not {max(read_queues, write_queues)}")
        topic = self.by_name.get(name)
        if topic is None:
            self._check_new(name, announce)
            rule = self.rule(name)
            if level is None:
                level = _log_level(rule.get("level"), self._level)
            if announce and "queues" in rule:
                read_queues = write_queues = rule["queues"]
            topic = LogTopic(name, read_queues, write_queues, perm, level)
            self.by_name[name] = topic
            if announce:
                log.info("topic made name=%s kind=log queues=%d level=%s", name.decode(), topic.queue_count,
                         LEVEL_NAMES[level])  # fmt: skip
        else:
            if level is not None and level > topic.level:
                below = self._seen(topic.level)
                for queue in topic.queues:
                    _keep_visible(queue, below)
            topic.change(read_queues, write_queues, perm, topic.level if level is None else level)
        topic.detail(more)
        floors = self._floors.get(name, {})
        for queue_id in range(len(topic.queues), topic.queue_count):
            queue = self._queue_of(name, queue_id)
            topic.add_queue(queue)
            self._begin_at_floor(name, queue, floors.get(queue_id, 0))
        if announce:
            self._announce(name, now_ms)
        return topic

    def _check_new(self, name: bytes, announce: bool) -> None:
        """Refuses a topic there is no room for, and one that is of the other kind."""
        if announce and len(self.by_name) - self._own >= self.limits.max_topics:
            self.limits.count("topics")
            raise LimitReached(
                f"no more than {self.limits.max_topics} topics",
                remoting=ResponseCode.SERVICE_NOT_AVAILABLE,
                nsq="E_BAD_TOPIC",
                http=_FULL,
            )
        if self._taken(name) or (announce and self.rule(name).get("kind") == "queue"):
            raise OtherKind(
                f"topic[{name.decode()}] is a queue topic of the NSQ side",
                nsq="E_BAD_TOPIC",
                http=_CONFLICT,
                hint="Use an NSQ client, or another name.",
            )

    def create_from_template(self, name: bytes, template: bytes, queues: int, now_ms: int) -> LogTopic | None:
        """The rule of automatic creation (rocketmq.md §9.1); None where it does not apply."""
        if name.startswith((RETRY_PREFIX, DEAD_PREFIX)):
            return self.create(name, 1, 1, now_ms=now_ms)
        model = self.by_name.get(template)
        if model is None or not model.perm & PERM_INHERIT or not self.auto_create:
            return None
        most = min(model.write_queues, self.limits.max_queues_per_topic)  # clients ask for a number of their own
        count = min(queues, most) if queues > 0 else most
        check_topic_name(name)
        self._check_new(name, True)  # what is refused counts for nothing
        self.demand_creation(now_ms)
        return self.create(
            name,
            count,
            count,
            model.perm & ~PERM_INHERIT,
            now_ms=now_ms,
            more=TopicDetails(filter_type=model.filter_type),
        )

    def keep(self, topic: LogTopic, more: TopicDetails, now_ms: int) -> Callable[[], None]:
        """How long and how much a topic keeps from now on, and whether it is traced. What takes it back."""
        before = topic.settings()
        topic.detail(more)
        self._announce(topic.name, now_ms)

        def undo() -> None:
            topic.detail(before.more)
            self.lately.note(topic.name)

        return undo

    def demand_creation(self, now_ms: int) -> None:
        """A topic is about to be made by its first use. Refused when there were too many of late."""
        if not self.creations.take(now_ms):
            self.limits.count("topic_creations")
            raise LimitReached(
                f"more than {self.creations.per_second} new topics a second: try again later",
                remoting=ResponseCode.SERVICE_NOT_AVAILABLE,
                nsq="E_BAD_TOPIC",
                http=_FULL,
            )

    def delete(self, name: bytes, now_ms: int) -> LogTopic | None:
        """Take a topic out of the table, and all it holds out of sight; None when there was none.

        A topic made anew under the name goes on behind the old offsets: an offset never gets a second meaning.
        """
        topic = self.by_name.pop(name, None)
        if topic is not None:
            log.info("topic deleted name=%s kind=log", name.decode())
            topic.close()
            floors = self._floors.setdefault(name, {})
            for queue_id, queue in enumerate(topic.queues):
                floors[queue_id] = queue.max_offset
                queue.retire()
            self._announce(name, now_ms)
        return topic

    def purge(self, topic: LogTopic, places: Mapping[int, int], now_ms: int) -> Callable[[], None]:
        """What lies below these places (queue id → offset) is gone for readers, and stays gone. What takes it back."""
        floors = self._floors.setdefault(topic.name, {})
        before = {queue_id: (floors.get(queue_id), topic.queues[queue_id].min_offset) for queue_id in places}
        for queue_id, place in places.items():
            floors[queue_id] = max(floors.get(queue_id, 0), place)
            queue = topic.queues[queue_id]
            queue.begin_at(max(queue.min_offset, place))
        self._announce(topic.name, now_ms)

        def undo() -> None:
            for queue_id, (floor, begin) in before.items():
                floors.pop(queue_id, None)
                if floor is not None:
                    floors[queue_id] = floor
                topic.queues[queue_id].begin_at(begin)
            self.lately.note(topic.name)

        return undo

    def undo(self, topic: LogTopic, before: TopicSettings | None) -> None:
        """Take a `create` back that could not be stored: as before, or (None) not there."""
        self.lately.note(topic.name)
        if before is None:
            topic.close()
            self.by_name.pop(topic.name, None)
            return
        topic.change(before.read_queues, before.write_queues, before.perm, before.level)
        topic.detail(before.more)
        for call in self.changed:  # whoever was told of the change
            call(topic.name)

    def rule(self, name: bytes) -> TopicRule:
        """The first `[[topic]]` rule whose pattern fits, or an empty one."""
        text = name.decode("utf-8", "replace")
        return next((rule for pattern, rule in self._rules if pattern.fullmatch(text)), TopicRule())

    def _announce(self, name: bytes, now_ms: int) -> None:
        self.version = {"counter": self.version["counter"] + 1, "timestamp": now_ms}
        self.lately.note(name)
        for call in self.changed:
            call(name)

    def take_up(self, queues: Mapping[bytes, Mapping[int, ConsumeQueue]]) -> None:
        """Make the topics that the store has messages of and topics.json does not know: it is older than they are.

        A topic whose queues hold no message behind where they ended when it was deleted stays deleted. One that was given
        fewer queues than the store has of it keeps the others, to be read.
        """
        self._lower_floors(queues)
        for name, by_id in queues.items():
            topic = self.by_name.get(name)
            floors = self._floors.get(name, {})
            if topic is not None:
                for queue_id in range(len(topic.queues), max(by_id, default=-1) + 1):
                    queue = self._queue_of(name, queue_id)
                    topic.add_queue(queue)
                    self._begin_at_floor(name, queue, floors.get(queue_id, 0))
            if topic is not None or not by_id:
                continue
            if any(
                _any_from(queue, floors[queue_id]) if queue_id in floors else queue.max_offset > 0
                for queue_id, queue in by_id.items()
            ):
                count = max(by_id) + 1
                self.create(name, count, count, announce=False)
            else:
                for queue in by_id.values():
                    queue.retire()

    def _lower_floors(self, queues: Mapping[bytes, Mapping[int, ConsumeQueue]]) -> None:
        """A slave that was told of a purge before it had what was purged, and gets no more of that: its queues go on where they
        end, and what is stored there is not what was purged. A master says it again to its slaves.
        """
        for name, floors in self._floors.items():
            by_id = queues.get(name, {})
            for queue_id, floor in floors.items():
                floors[queue_id] = min(floor, by_id[queue_id].max_offset if queue_id in by_id else 0)

    # -- topics.json ---------------------------------------------------------------------------------------------

    def as_table(self, broker_perm: int = PERM_BOTH, names: Iterable[bytes] | None = None) -> dict[str, object]:
        """What code 21 answers and registries are told; `names`: of these topics alone."""
        found = self.by_name.values() if names is None else [self.by_name[n] for n in names if n in self.by_name]
        table = {topic.name.decode(): topic.as_config(broker_perm) for topic in found}
        return {"dataVersion": dict(self.version), "topicConfigTable": table}

    def as_file(self) -> dict[str, object]:
        """What topics.json holds: the table, and in a field of ours where deleted topics ended."""
        ends = {
            name.decode(): {str(q): end for q, end in floors.items() if end} for name, floors in self._floors.items()
        }
        table = {topic.name.decode(): self._written(topic) for topic in self.by_name.values()}
        ends = {name: queues for name, queues in ends.items() if queues}
        return self.as_table(names=()) | {"topicConfigTable": table, "deletedTopicEnds": ends}

    def _written(self, topic: LogTopic) -> dict[str, object]:
        """A topic as it is read again. One without a level is RocketMQ's, and gets that of new topics."""
        level = {} if self._level == LEVEL_OS else {"level": LEVEL_NAMES[topic.level]}
        return topic.as_config() | level

    def as_change(self, name: bytes) -> dict[str, object]:
        """What is noted beside topics.json when a topic came, went or was changed."""
        topic = self.by_name.get(name)
        ends = {str(queue_id): end for queue_id, end in self._floors.get(name, {}).items() if end}
        config = None if topic is None else self._written(topic)
        return {"name": name.decode(), "config": config, "ends": ends, "dataVersion": dict(self.version)}

    def _take_ends(self, name: str, ends: object) -> None:
        if isinstance(ends, dict) and ends:
            self._floors[name.encode()] = {
                int(q): end for q, end in ends.items() if q.isdecimal() and isinstance(end, int)
            }

    def take_ends(self, told: Mapping[str, object], now_ms: int) -> None:
        """Where topics were purged or ended at a master: they begin there, here and after the next start."""
        for name, ends in told.items():
            known = self._floors.get(name.encode(), {})
            if isinstance(ends, dict) and ends != {str(queue): end for queue, end in known.items() if end}:
                self._take_ends(name, ends)
                if name.encode() in self.by_name:
                    self._begin_at_floors(name.encode())
                self._announce(name.encode(), now_ms)

    def load_change(self, change: Mapping[str, object]) -> None:
        """Take over what `as_change` said, behind a table."""
        name, config = str(change["name"]), change.get("config")
        self._take_ends(name, change.get("ends"))
        if isinstance(config, dict):
            self._load_topic(name, config)
        elif (topic := self.by_name.pop(name.encode(), None)) is not None:
            topic.close()
        self.version = shapes.version_of(change)

    def _begin_at_floors(self, name: bytes) -> None:
        """A purge was noted behind the line that made the topic: its queues were there when that was read."""
        queues = self.by_name[name].queues
        for queue_id, floor in self._floors.get(name, {}).items():
            if queue_id < len(queues):
                self._begin_at_floor(name, queues[queue_id], floor)

    def _begin_at_floor(self, name: bytes, queue: ConsumeQueue, floor: int) -> None:
        queue.begin_at(max(queue.min_offset, min(floor, queue.max_offset)))
        if queue.max_offset < floor:
            self.behind.add(name)

    def hide_copied(self) -> None:
        """Some more of its master's log is here: what was purged there before it came is out of sight here, too."""
        behind, self.behind = self.behind, set()
        for name in behind:
            if name in self.by_name:
                self._begin_at_floors(name)

    def load(self, table: Mapping[str, object]) -> None:
        """Take over a topics.json, RocketMQ's or SmartGo's (which nests the table once more)."""
        ends = table.get("deletedTopicEnds")
        for name, queues in ends.items() if isinstance(ends, dict) else ():
            self._take_ends(name, queues)
        topics = shapes.entries(table, "topicConfigTable")
        if "topicConfigTable" in topics:
            topics = shapes.entries(topics, "topicConfigTable")
        for name, config in topics.items():
            self._load_topic(name, config)
        self.version = shapes.version_of(table)

    def _load_topic(self, name: str, config: Mapping[str, object]) -> None:
        try:
            self.create(
                name.encode(),
                shapes.number(config, "readQueueNums", DEFAULT_QUEUES),
                shapes.number(config, "writeQueueNums", DEFAULT_QUEUES),
                shapes.number(config, "perm", PERM_BOTH) & PERM_MAX,
                level=_log_level(config.get("level"), self._level),
                more=details_of(config),
                announce=False,
            )
            self._begin_at_floors(name.encode())
        except (Refused, TypeError, ValueError, AttributeError):
            return  # a damaged entry costs one topic, and that is made again by its next sender
