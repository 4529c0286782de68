"""What a slave takes from its master beside the log: topics, groups, committed offsets, the time. And how both see that their
logs agree.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Iterator

from isal import isal_zlib

from penstock.broker import shapes
from penstock.broker.broker import Broker
from penstock.broker.clock import BrokerClock
from penstock.broker.levels import LEVELS
from penstock.broker.nsq.mirror import Mirror
from penstock.broker.systemtopics import is_system_topic
from penstock.broker.topics import details_of
from penstock.config import BrokerConfig
from penstock.errors import ConfigError, Refused, WireError
from penstock.log import epochs
from penstock.log.store import LogStore
from penstock.settingfiles import whole
from penstock.wire import fastjson, ha
from penstock.wire.codes import PERM_READ
from penstock.wire.fastjson import JsonObject
from penstock.wire.layout import FILLER_SIZE

log = logging.getLogger("penstock.broker")

SECRET_BYTES_MIN = 16
APART_MS = 10_000  # clocks that differ less are left alone
AGREE_MS, AGREE_AFTER_MS = 1_000, 250
LAST_MS = 253_402_300_800_000  # the end of the year 9999
DELIVERED_MAX = 5_000  # delayed messages that are looked at in one go
OFFSETS_MS = 1_000
PLACES_MAX = 100_000  # committed offsets that one frame tells of, or those of one group on one topic: some MiB


def secret_of(config: BrokerConfig) -> bytes:
    """The secret of the replica set; empty without one. ConfigError."""
    if not config.ha_secret_file:
        return b""
    try:
        secret = whole(config.ha_secret_file).strip()
    except OSError as error:
        raise ConfigError(f"ha_secret_file {config.ha_secret_file}: {error.strerror}") from None
    if len(secret) < SECRET_BYTES_MIN:
        raise ConfigError(f"ha_secret_file {config.ha_secret_file}: a secret has {SECRET_BYTES_MIN} bytes or more")
    return secret


def last_records(store: LogStore, position: int, most: int, exactly: int = -1) -> tuple[int, int]:
    """(size, CRC-32) of whole records right below a position of the log, at most so many bytes; with `exactly`, of those
    bytes, whatever they are. (0, 0) where there are none in that segment.
    """
    size = store.log.file.size
    first = (position // size) * size
    if exactly < 0:
        exactly = 0
        sidecar = store.log.sums.get(first) if position > first else None
        if sidecar is not None:
            n = sidecar.find(position - first)
            while n > 0 and 0 < position - first - sidecar.start(n - 1) <= most:
                n -= 1
                exactly = position - first - sidecar.start(n)
    if not 0 < exactly <= min(most, position - first) or position - exactly < store.min_position:
        return 0, 0
    return exactly, isal_zlib.crc32(store.log.bytes_at(position - exactly, exactly))


def sums_of(store: LogStore, position: int, size: int) -> int:
    """The CRC-32 of the places and sums of the records in so many bytes below a position; 0 where there are none. Two logs that
    differ in it differ, whatever has become of the bytes since.
    """
    first = (position // store.log.file.size) * store.log.file.size
    sidecar = store.log.sums.get(first) if size > 0 else None
    if sidecar is None:
        return 0
    said = 0
    for n in range(sidecar.find(position - size - first), sidecar.find(position - first)):
        said = isal_zlib.crc32(sidecar.start(n).to_bytes(4) + sidecar.sum(n).to_bytes(4), said)
    return said


def ends_untold(store: LogStore, position: int) -> dict[str, dict[str, int]]:
    """Where queues end of whose messages the log holds none, by topic and queue: who copies it from `position` on does not see
    that, and would give their offsets out again.
    """
    found: dict[str, dict[str, int]] = {}
    for topic, by_id in store.queues.items():
        for queue_id, queue in by_id.items():
            end = queue.max_offset
            last = queue.entry(end - 1) if 0 < end <= queue.min_offset else (position, 0, 0)
            if last is None or last[0] < position or last[1] == FILLER_SIZE:  # else it was purged, and is to be copied
                found.setdefault(topic.decode(), {})[str(queue_id)] = end
    return found


class Tables:
    """What a master has told one slave of its tables."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._known = (-1, -1)  # how many changes of topics and of groups it was told of
        self._by_row = False
        self._in_parts = False
        self._offsets_known = -1  # the same of committed offsets
        self._due_ms = 0
        self._ready: list[bytes] = []  # frames of offsets that are still to be told
        self._position = 0  # and where the log ended when they were looked at

    @property
    def fresh(self) -> bool:
        """Whether topics or groups have changed since."""
        return self._now() != self._known

    def _now(self) -> tuple[int, int]:
        return self._broker.topics.lately.count, self._broker.groups.lately.count

    def tell_changes(self) -> None:
        """This slave understands what is told of single topics and groups; a former version gets all of them each time."""
        self._by_row = True

    def tell_parts(self) -> None:
        """This slave understands offsets that are told in several frames; a former version gets all of them in one."""
        self._in_parts = True

    def due(self, mono_ms: int) -> bool:
        """Whether there is something to tell, or may be."""
        return bool(self._ready) or mono_ms >= self._due_ms or self.fresh

    def news(self) -> Iterator[tuple[int, bytes]]:
        """(kind, body) of the frame that says which topics and groups have changed since, or all there are."""
        topics, groups = self._broker.topics, self._broker.groups
        known, self._known = self._known, self._now()
        if known == self._known:
            return
        fresh_topics, fresh_groups = topics.lately.since(known[0]), groups.lately.since(known[1])
        if not self._by_row or fresh_topics is None or fresh_groups is None:
            yield ha.TABLES, fastjson.dumps({"topics": topics.as_file(), "groups": groups.as_table()})
            return
        told = {
            "topics": [topics.as_change(name) for name in fresh_topics],
            "groups": [groups.as_change(name) for name in fresh_groups],
        }
        yield ha.CHANGES, fastjson.dumps(told)

    def offsets(self, mono_ms: int, sent: int, at_once: bool = False) -> Iterator[bytes]:
        """Committed offsets that have changed since, once a second or `at_once`, for a slave that was sent the log up to `sent`.

        A group goes on behind a message because it stands elsewhere in the log, with the retries or the dead letters, or because
        the log says what became of it (a transaction): so they are told once the slave was sent the log up to where it ended
        then. One that became the master without would never deliver it again.
        """
        for _ in range(2):  # what waited, then what has changed since
            if self._ready and sent >= self._position:
                ready, self._ready = self._ready, []
                yield from ready
            if not self._ready and (at_once or mono_ms >= self._due_ms):
                self._due_ms = mono_ms + OFFSETS_MS
                self._position = self._broker.store.end_position
                self._ready = self._changed_offsets()

    def _changed_offsets(self) -> list[bytes]:
        offsets = self._broker.offsets
        known, self._offsets_known = self._offsets_known, offsets.lately.count
        keys = offsets.lately.since(known)
        if keys == []:
            return []
        parts: list[dict[str, dict[str, int]]] = [{}]
        places = 0
        for key in offsets.table if keys is None else keys:
            topic, group = key
            of_queues = {str(queue_id): offset for queue_id, offset in offsets.table.get(key, {}).items()}
            if self._in_parts and parts[-1] and places + len(of_queues) > PLACES_MAX:
                parts.append({})
                places = 0
            parts[-1][f"{topic}@{group}"] = of_queues
            places += 1 + len(of_queues)
        frames: list[dict[str, object]] = [{"offsets": part} for part in parts]
        if keys is None:  # what went while the slave was away is not known here
            for frame in frames[:-1]:
                frame["more"] = True
            frames[-1]["all"] = True
        return [fastjson.dumps(frame) for frame in frames]


class Taking:
    """Makes the tables of a slave those of its master."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._mirror = Mirror(broker.core, broker.queueing.registry)
        self._refused: dict[
            str, dict[str, object]
        ] = {}  # topics that could not be made: tried again with the next news
        self._told: set[str] = set()  # whose offsets came in the first parts of all there are

    def take(self, kind: int, body: bytes) -> None:
        """What one META frame says. WireError when it makes no sense."""
        told = ha.read_json(body)
        try:
            if kind == ha.TABLES:
                topics = shapes.entries(told, "topics")
                self.take_topics(shapes.entries(topics, "topicConfigTable"))
                self._broker.topics.take_ends(shapes.entries(topics, "deletedTopicEnds"), self._broker.now_ms)
                self.take_groups(told)
            elif kind == ha.CHANGES:
                self.take_changes(told)
            elif kind == ha.OFFSETS:
                self.take_offsets(told)
            elif kind == ha.ENDS:
                self.take_ends(told)
            elif kind in (ha.CHANNELS, ha.CHANNEL_CHANGES, ha.CURSORS):
                self._mirror.take(kind, told)
        except (TypeError, ValueError, AttributeError, KeyError, zlib.error) as error:
            raise WireError(f"tables that make no sense: {error}") from error

    def take_topics(self, table: dict[str, dict[str, object]]) -> None:
        """These topics, and no others."""
        self._refused.clear()
        for name, config in table.items():
            self._take_topic(name, config)
        for topic in list(self._broker.topics.by_name):
            if topic.decode() not in table:
                self._drop_topic(topic.decode())

    def _take_topic(self, name: str, config: dict[str, object]) -> None:
        topics = self._broker.topics
        known = topics.get(name.encode())
        level = config.get("level", "os")
        if known is not None and {"level": "os", **known.as_config()} == {**config, "level": level}:
            return
        try:
            topics.create(
                name.encode(), shapes.number(config, "readQueueNums", 4), shapes.number(config, "writeQueueNums", 4),
                shapes.number(config, "perm", 6), now_ms=self._broker.now_ms, level=LEVELS.get(str(level), 0),
                more=details_of(config),
            )  # fmt: skip
        except Refused as error:
            log.error("topic of the master not taken name=%s error=%s", name, error)
            self._refused[name] = config

    def _drop_topic(self, name: str) -> None:
        if not is_system_topic(self._broker.config, name):
            self._broker.topics.delete(name.encode(), self._broker.now_ms)

    def take_changes(self, told: dict[str, object]) -> None:
        """These topics and groups are so now, or gone; of all others nothing is said."""
        now_ms = self._broker.now_ms
        topics = {str(row["name"]): row for row in shapes.rows(told, "topics")}
        refused, self._refused = self._refused, {}
        for name, config in refused.items():
            if name not in topics:
                self._take_topic(name, config)
        for name, row in topics.items():
            made = row["config"]
            if isinstance(made, dict):
                self._take_topic(name, made)
            else:
                self._drop_topic(name)
        ends = {name: row["ends"] for name, row in topics.items() if row["ends"]}
        self._broker.topics.take_ends(ends, now_ms)
        for row in shapes.rows(told, "groups"):
            name = str(row["name"])
            made = row["config"]
            if isinstance(made, dict):
                self._take_group(name, made, set(map(str, row["forbidden"])))  # type: ignore[call-overload]
            else:
                self._broker.groups.delete(name, now_ms)

    def take_ends(self, told: dict[str, object]) -> None:
        """Where queues go on of which the log that is copied says nothing. StoreError."""
        ends = shapes.entries(told, "ends")
        found = {
            (topic.encode(), int(queue_id)): shapes.number(queues, queue_id, 0)
            for topic, queues in ends.items()
            for queue_id in queues
        }
        self._broker.store.begin_queues(found)

    def take_groups(self, told: dict[str, object]) -> None:
        """These groups, and no others."""
        groups, now_ms = self._broker.groups, self._broker.now_ms
        tables = shapes.entries(told, "groups")
        table, bans = (shapes.entries(tables, name) for name in ("subscriptionGroupTable", "forbiddenTable"))
        for name, config in table.items():
            banned = {topic for topic, bits in bans.get(name, {}).items() if isinstance(bits, int) and bits & PERM_READ}
            self._take_group(name, config, banned)
        for name in [name for name in groups.by_name if name not in table]:
            groups.delete(name, now_ms)

    def _take_group(self, name: str, config: dict[str, object], banned: set[str]) -> None:
        groups, now_ms = self._broker.groups, self._broker.now_ms
        known = groups.by_name.get(name)
        try:
            if known is None or known.as_config() != config:
                known = groups.update({"groupName": name, **config}, now_ms)
        except Refused as error:  # RocketMQ has one of no name, where a client has said goodbye to none
            log.error("group of the master not taken name=%s error=%s", ascii(name), error)
        for topic in banned ^ known.forbidden if known is not None else ():
            groups.forbid(name, topic, topic in banned, now_ms)

    def take_offsets(self, told: dict[str, object]) -> None:
        """These committed offsets beside those there are, or these, and those of the parts before, alone. Of a group on a topic
        all queues are told: it has none but these.
        """
        offsets = self._broker.offsets
        entries = shapes.entries(told, "offsets")
        if told.get("more") is True:
            self._told.update(entries)
        if told.get("all") is True:
            before, self._told = self._told, set()
            known = (f"{topic}@{group}" for topic, group in offsets.table)
            entries = {name: {} for name in known if name not in before} | entries
        for key, queues in entries.items():
            topic, _, group = key.rpartition("@")
            places = {int(queue_id): shapes.number(queues, queue_id, 0) for queue_id in queues}
            if not offsets.queues(group, topic).keys() <= places.keys():  # the group has gone, and may have come again
                offsets.drop(group, topic)
            for queue_id, offset in places.items():
                offsets.commit(group, topic, queue_id, offset)


class TakingTime:
    """The line of time of a set: a slave whose clock differs much from its master's goes by the master's, and goes on with it as
    the master, so that no delayed message comes years early or late. What one frame says is not believed: it may have waited
    while this process was stopped. A later one must say the same.
    """

    def __init__(self, time: BrokerClock) -> None:
        self._time = time
        self._first = (0, 0)  # when a difference was seen, and which; 0: none is

    def hear(self, wall_ms: int) -> None:
        """The master's clock says this in this turn."""
        time = self._time
        ahead = wall_ms - time.now_ms
        seen_ms, first = self._first
        if abs(ahead) < APART_MS or not 0 < wall_ms < LAST_MS:
            self._first = (0, 0)
        elif not first or abs(ahead - first) > AGREE_MS:
            self._first = (time.mono_ms, ahead)
        elif time.mono_ms - seen_ms >= AGREE_AFTER_MS:
            self._first = (0, 0)
            log.warning("this machine's clock is %.0f s %s that of the master, whose time is taken: look which is right",
                        abs(ahead) / 1000, "behind" if ahead > 0 else "ahead of")  # fmt: skip
            time.follow(wall_ms)


class TakingRocketmq:
    """Makes the tables of a slave those of a RocketMQ master, which answers requests for them."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._taking = Taking(broker)
        self._versions: dict[str, object] = {}
        self.more = False  # delayed messages to be looked at, whether they are delivered

    def take(self, what: str, body: bytes) -> None:
        """The answer to a request for "topics", "groups", "offsets" or "delays". WireError when it makes no sense."""
        told = ha.read_json(body)
        try:
            if what == "delays":
                self._take_delays(told)
            elif what == "offsets":
                self._take_offsets(told)
            elif self._versions.get(what) != told.get("dataVersion"):
                (self._take_topics if what == "topics" else self._take_groups)(told)
                self._versions[what] = told.get("dataVersion")
        except (TypeError, ValueError, AttributeError) as error:
            raise WireError(f"{what} of the master that make no sense: {error}") from error

    def _take_topics(self, told: JsonObject) -> None:
        config = self._broker.config
        table = shapes.entries(told, "topicConfigTable")
        if not table:  # a master has some at least
            raise ValueError("there are none")
        self._taking.take_topics({name: about for name, about in table.items() if not is_system_topic(config, name)})

    def _take_groups(self, told: JsonObject) -> None:
        self._taking.take_groups({"groups": told})

    def _take_offsets(self, told: JsonObject) -> None:
        if not shapes.offsets(told):
            raise ValueError("no table")
        table = shapes.entries(told, "offsetTable")
        gone = [f"{topic}@{group}" for topic, group in self._broker.offsets.table if f"{topic}@{group}" not in table]
        self._taking.take_offsets({"offsets": {**table, **{key: {} for key in gone}}})

    def _take_delays(self, told: JsonObject) -> None:
        if not shapes.delays(told):
            raise ValueError("no table")
        broker = self._broker
        table = told["offsetTable"]
        assert isinstance(table, dict)  # it is one of delays
        delivered = {int(level): int(offset) for level, offset in table.items()}
        end = max(0, broker.store.end_position - 1)
        self.more = broker.schedule.note_delivered(delivered, end, broker.now_ms, DELIVERED_MAX)


def log_end(body: bytes) -> int:
    """Where the log of a RocketMQ broker ends, as its runtime info says. WireError."""
    try:
        table = ha.read_json(body)["table"]
        assert isinstance(table, dict)
        return int(table["commitLogMaxOffset"])
    except (KeyError, TypeError, ValueError, AssertionError) as error:
        raise WireError("runtime info without commitLogMaxOffset") from error


def checked(table: tuple[ha.Epoch, ...]) -> tuple[ha.Epoch, ...]:
    """A table of epochs that came over the wire. WireError when it makes no sense."""
    try:
        if table:
            return epochs.checked(table)
    except ValueError as error:
        raise WireError(f"a table of epochs that makes no sense: {error}") from None
    raise WireError("a master without an epoch")


def peers_of(about: JsonObject) -> dict[str, str]:
    """Where the nodes of the set are found when they are masters, as a master says."""
    peers = about.get("peers")
    return {str(node): str(at) for node, at in peers.items()} if isinstance(peers, dict) else {}
