"""Everything a broker knows of its topics, groups, channels and clients, in one answer: what consoles are drawn from."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import to_builtins

from penstock.broker.broker import Broker
from penstock.broker.clients import Member
from penstock.broker.groups import lag as group_lag
from penstock.broker.groups import lag_ms as group_lag_ms
from penstock.broker.groups import oldest_ms as group_oldest_ms
from penstock.broker.history import BROKER, DISK, DISK_FIELDS, FIELDS, Key
from penstock.broker.levels import LEVEL_NAMES
from penstock.broker.nsq.sources import lag_ms
from penstock.broker.nsq.topics import Topic
from penstock.broker.topics import LogTopic
from penstock.config import HIDDEN, defaults, is_secret, meanings
from penstock.delivery.channel import Channel
from penstock.version import __version__
from penstock.wire.fastjson import JsonObject

Reads = dict[str, dict[str, dict[int, int]]]  # topic → group → queue → offset


class Snapshot:
    """One moment of one broker. `topic`: only this one, with its queues and the age of its oldest message."""

    def __init__(self, broker: Broker, topic: str = "") -> None:
        self.broker = broker
        self.topic = topic
        self.now_ms = broker.now_ms

    def head(self) -> JsonObject:
        """What is no list."""
        broker = self.broker
        config, history = broker.config, broker.history
        rates = dict(zip(FIELDS, history.latest(BROKER), strict=True))
        disk = dict(zip(DISK_FIELDS, history.latest(DISK), strict=False))
        marks = (config.disk_used_clean_percent, config.disk_used_force_percent, config.disk_used_refuse_percent)
        return {
            "version": __version__,
            "name": config.broker_name,
            "cluster": config.cluster_name,
            "role": config.role,
            "started": broker.started_ms,
            "now": self.now_ms,
            "rates": rates,
            "disk": {
                **disk,
                "log": broker.store.end_position - broker.store.min_position,
                "delayed": len(broker.schedule),
                "marks": marks,
                "keep_ms": config.file_reserved_time_hours * 3_600_000,
            },
            "health": "" if broker.store.healthy and broker.queueing.healthy else self._trouble(),
            "replicas": self.replicas(),
        }

    def _trouble(self) -> str:
        queueing, store = self.broker.queueing, self.broker.store
        return str(queueing.error or store.upkeep.trouble)

    # -- topics --------------------------------------------------------------------------------------------------

    def topics(self) -> Iterator[JsonObject]:
        """Each with who reads it."""
        broker = self.broker
        reads = self._reads()
        queues = broker.queueing.topics
        wanted = self.topic.encode()
        for name, stored in sorted(broker.topics.by_name.items()):
            if wanted in (b"", name) and not broker.is_system_topic(name.decode()):
                yield self._log_topic(stored, queues.get(name), reads.get(name.decode(), {}))
        for name, topic in sorted(queues.items()):
            if wanted in (b"", name) and name not in broker.topics.by_name:
                yield self._queue_topic(topic)

    def _reads(self) -> Reads:
        """The committed offsets, and for groups that have committed nothing yet none."""
        found: Reads = {}
        for (topic, group), offsets in self.broker.offsets.table.items():
            found.setdefault(topic, {})[group] = offsets
        for name, known in self.broker.groups.by_name.items():
            for raw in known.get_counts:
                found.setdefault(raw.decode(), {}).setdefault(name, {})
        return found

    def _log_topic(self, stored: LogTopic, face: Topic | None, groups: dict[str, dict[int, int]]) -> JsonObject:
        name = stored.name.decode()
        channels = {} if face is None else {key.decode(): channel for key, channel in face.channels.items()}
        readers = [self._group(stored, group, offsets) for group, offsets in groups.items() if group not in channels]
        readers += [self._channel(name, channel) for channel in channels.values()]
        row = self._row(name, "log", LEVEL_NAMES[stored.level], readers)
        row["messages"] = sum([queue.visible_end() - queue.min_offset for queue in stored.queues])
        row["perm"] = stored.perm
        row["paused"] = bool(face is not None and face.paused)
        row["queues"] = len(stored.queues)
        if self.topic:
            row["kept"] = {"ms": stored.keep_ms, "bytes": stored.keep_bytes, "trace": bool(stored.traced)}
            row["offsets"] = [self._queue(stored, number) for number in range(len(stored.queues))]
            row["oldest"] = max((one["oldest_s"] or 0 for one in row["offsets"]), default=0)
            row["readers"] = [
                one | {"offsets": {str(q): at for q, at in groups.get(one["name"], {}).items()}} for one in readers
            ]
        return row

    def _queue(self, stored: LogTopic, number: int) -> JsonObject:
        queue = stored.queues[number]
        first, end = queue.min_offset, queue.visible_end()
        oldest = group_lag_ms(self.broker.store, queue, first, self.now_ms) if first < end else None
        return {
            "queue": number, "first": first, "end": end, "oldest_s": None if oldest is None else oldest / 1000,
            "read": number < stored.read_queues, "write": number < stored.write_queues,
        }  # fmt: skip

    def _queue_topic(self, topic: Topic) -> JsonObject:
        name = topic.name.decode()
        readers = [self._channel(name, channel) for channel in topic.channels.values()]
        row = self._row(name, "queue", LEVEL_NAMES[topic.level], readers)
        row["messages"] = topic.depth() + max((one["lag"] for one in readers), default=0)
        row["depth"] = topic.depth()
        row["lag"] = max(row["lag"], row["depth"])
        row["paused"] = bool(topic.paused)
        row["ephemeral"] = bool(topic.ephemeral)
        return row

    def _row(self, name: str, kind: str, level: str, readers: list[JsonObject]) -> JsonObject:
        rates = self.broker.history.latest(Key("topic", name))
        ages = [one["lag_s"] for one in readers if one["lag_s"] is not None]
        return {
            "topic": name,
            "kind": kind,
            "level": level,
            "in": rates[0],
            "out": rates[1],
            "bytes": rates[2],
            "lag": max((one["lag"] for one in readers), default=0),
            "lag_s": max(ages, default=0),
            "readers": sorted(readers, key=lambda one: (-one["lag"], one["name"])),
        }

    def _group(self, stored: LogTopic, group: str, offsets: dict[int, int]) -> JsonObject:
        queues, name = stored.queues[: stored.read_queues], stored.name.decode()
        lag = group_lag(queues, offsets)
        rates = self.broker.history.latest(Key("group", name, group))
        age_s = rates[4]
        if not lag:
            age_s = 0.0
        elif self.topic or not age_s:
            age_s = group_oldest_ms(self.broker.store, queues, offsets, self.now_ms) / 1000
        online = self.broker.clients.consumers.get(group)
        reading = online is not None and name in online.subscriptions
        return {
            "name": group,
            "kind": "group",
            "out": rates[1],
            "lag": lag,
            "lag_s": age_s,
            "consumers": len(online.members) if online is not None and reading else 0,
        }

    def _channel(self, topic: str, channel: Channel) -> JsonObject:
        name = channel.name.decode()
        lag = channel.depth() + channel.in_flight_count + channel.deferred_count
        age = lag_ms(channel, self.now_ms) if lag else 0
        attempts = {"attempts": channel.again.with_all(channel.finish_count).spread()} if self.topic else {}
        return attempts | {
            "name": name,
            "kind": "channel",
            "out": self.broker.history.latest(Key("channel", topic, name))[1],
            "lag": lag,
            "lag_s": None if age is None else age / 1000,
            "consumers": len(channel.consumers),
            "depth": channel.depth(),
            "in_flight": channel.in_flight_count,
            "deferred": channel.deferred_count,
            "requeued": channel.requeue_count,
            "timed_out": channel.timeout_count,
            "finished": channel.finish_count,
            "paused": bool(channel.paused),
        }

    # -- clients -------------------------------------------------------------------------------------------------

    def clients(self) -> Iterator[JsonObject]:
        """Producers and consumers of both protocols."""
        broker, now_s = self.broker, self.now_ms // 1000
        for topic in broker.queueing.topics.values():
            for channel in topic.channels.values():
                for consumer in channel.consumers:
                    told = consumer.describe(now_s)
                    yield {
                        "protocol": "nsq", "role": "consumer", "topic": topic.name.decode(), "group": channel.name.decode(),
                        "id": str(told.get("client_id", "")), "address": told["remote_address"],
                        "agent": str(told.get("user_agent", "")), "tls": bool(told.get("tls")),
                        "in_flight": told["in_flight_count"], "messages": told["message_count"],
                        "since": told["connect_ts"],
                    }  # fmt: skip
        for producer in list(broker.queueing.producers):
            told = producer.describe(now_s)
            counts = told.get("pub_counts")
            rows = counts if isinstance(counts, list) else []
            yield {
                "protocol": "nsq", "role": "producer", "topic": ", ".join(str(row["topic"]) for row in rows[:10]),
                "group": "", "id": str(told.get("client_id", "")), "address": told["remote_address"],
                "agent": str(told.get("user_agent", "")), "tls": bool(told.get("tls")), "in_flight": None,
                "messages": sum(int(row["count"]) for row in rows), "since": told["connect_ts"],
            }  # fmt: skip
        for group in broker.clients.consumers.values():
            for member in group.members.values():
                yield _member("consumer", ", ".join(list(group.subscriptions)[:10]), group.name, member)
        for name, members in broker.clients.producers.items():
            for member in members.values():
                yield _member("producer", "", name, member)

    # -- settings and Spark --------------------------------------------------------------------------------------

    def settings(self) -> Iterator[JsonObject]:
        """What holds now, beside what would hold if nothing were set. Secrets are not told."""
        config = self.broker.config
        about = meanings(type(config))
        for name, default in defaults(type(config)).items():
            value = getattr(config, name)
            yield {
                "name": name,
                "value": HIDDEN if value and is_secret(name) else _plain(value),
                "default": _plain(default),
                "set": value != default,
                "about": about[name],
            }

    def recovery(self) -> JsonObject | None:
        """What the last start found."""
        found = self.broker.recovered
        return None if found is None else {name: _plain(value) for name, value in found.as_dict().items()}

    def replicas(self) -> list[JsonObject]:
        """The replica set, where there is one."""
        return [dict(row) for row in self.broker.copies.rows(self.broker.mono_ms)]

    def sinks(self) -> list[JsonObject]:
        """Spark's sinks: who writes, what was published last, and what is staged."""
        staging = self.broker.staging
        staged: dict[str, list[int]] = {}
        for spool in staging.spools.values():
            waiting = staged.setdefault(spool.sink, [0, 0])
            waiting[0] += 1
            waiting[1] += spool.rows
        names = {**staging.sinks.by_name, **dict.fromkeys(set(staged) - staging.sinks.by_name.keys())}
        found: list[JsonObject] = []
        for name, sink in sorted(names.items()):
            stages, rows = staged.get(name, (0, 0))
            row: JsonObject = {"sink": name, "stages": stages, "rows": rows}
            if sink is not None:
                row |= {"query": sink.query, "run": sink.run, "batch": sink.last, "at": sink.at_ms}
                row["published"] = sink.answer.get("rows")
            found.append(row)
        return found


def _plain(value: object) -> object:
    """For JSON, and for people."""
    if isinstance(value, str | int | float | bool) or value is None:
        return value
    if isinstance(value, tuple | list):
        return [to_builtins(one) for one in value]
    return str(value)


def _member(role: str, topic: str, group: str, member: Member) -> JsonObject:
    return {
        "protocol": "rocketmq", "role": role, "topic": topic, "group": group, "id": member.client_id,
        "address": member.peer.remote, "agent": f"{member.language} {member.version}", "tls": None, "in_flight": None,
        "messages": None, "since": None,
    }  # fmt: skip
