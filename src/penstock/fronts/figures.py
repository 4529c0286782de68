"""What a broker counts, as nsqd's `/stats` shows it (JSON and text), as statsd lines and as Prometheus text.

Large brokers have many topics: the functions over topics are generators, a piece per topic, so that the caller can
let others have the loop between pieces.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping

from penstock.broker.broker import Broker
from penstock.broker.counters import earliest_ms
from penstock.broker.groups import lag as group_lag
from penstock.broker.groups import oldest_ms as group_oldest_ms
from penstock.broker.nsq.sources import lag_ms
from penstock.broker.nsq.topics import Topic
from penstock.config import parts
from penstock.delivery.channel import Channel
from penstock.fronts.prometheus import FAMILIES as FAMILIES
from penstock.fronts.prometheus import PYTHON, histogram_samples, memory, sample
from penstock.version import __version__
from penstock.wire.fastjson import JsonObject
from penstock.wire.names import DEAD_PREFIX, EPHEMERAL, NSQD_VERSION


def version_line(name: str) -> str:
    """What `-version` prints, in nsqd's shape."""
    return f"{name} v{NSQD_VERSION} (built w/{PYTHON})"


def percentiles(text: str) -> list[float]:
    """The setting `e2e_processing_latency_percentile` as numbers, the largest first as nsqd has them: the page for people has
    the times alone, in this order.
    """
    return sorted((float(part) for part in parts(text)), reverse=True)


OVERDUE_MAX = 10_000  # so many delayed messages that are late are counted
Rejections = Mapping[str, Mapping[str, int] | Mapping[bytes, int]]  # protocol → reason → how often


def latency(of: Iterable[Channel], quantiles: list[float]) -> JsonObject:
    """End-to-end times of a channel, or of all the channels of a topic."""
    held = [channel.latency for channel in of if channel.latency is not None]
    if not held or not quantiles:
        return {"count": 0, "percentiles": None}
    values = held[0].quantiles(quantiles, tuple(held[1:]))
    return {
        "count": sum(one.count for one in held),
        "percentiles": [{"quantile": q, "value": v} for q, v in zip(quantiles, values, strict=True)],
    }


def channel_stats(channel: Channel, quantiles: list[float], clients: bool, now_ms: int) -> JsonObject:
    """One channel; its lag in time where `now_ms` is not 0."""
    return {
        "channel_name": channel.name.decode(),
        "depth": channel.depth(),
        "backend_depth": channel.backend_depth(),
        "in_flight_count": channel.in_flight_count,
        "deferred_count": channel.deferred_count,
        "message_count": channel.message_count,
        "requeue_count": channel.requeue_count,
        "timeout_count": channel.timeout_count,
        "handed_count": channel.handed_count,  # ours: each time that a message was given
        "handed_bytes": channel.handed_bytes,
        "dropped_count": getattr(channel.source, "dropped", 0),  # ours: what an ephemeral channel had no room for
        "client_count": len(channel.consumers),
        "clients": [consumer.describe(now_ms // 1000) for consumer in channel.consumers] if clients else None,
        "paused": bool(channel.paused),
        "e2e_processing_latency": latency([channel], quantiles),
    } | ({"lag_ms": lag_ms(channel, now_ms)} if now_ms else {})  # ours


def topic_stats(
    topics: Iterable[Topic], channel: bytes, quantiles: list[float], clients: bool, now_ms: int
) -> Iterator[JsonObject]:
    """Topics with their channels, or with one of them; topics that do not have that one are left out."""
    for topic in topics:
        channels = sorted(topic.channels.values(), key=lambda one: one.name)
        if channel:
            channels = [one for one in channels if one.name == channel]
            if not channels:
                continue
        yield {
            "topic_name": topic.name.decode(),
            "channels": [channel_stats(one, quantiles, clients, now_ms) for one in channels],
            "depth": topic.depth(),
            "backend_depth": topic.backend_depth(),
            "message_count": topic.message_count,
            "message_bytes": topic.message_bytes,
            "paused": bool(topic.paused),
            "e2e_processing_latency": latency(topic.channels.values(), quantiles),
        }


# -- /stats as text


def duration(seconds: int) -> str:
    """As Go prints one: 1h2m3s."""
    hours, rest = divmod(seconds, 3600)
    minutes, seconds = divmod(rest, 60)
    return f"{hours}h{minutes}m{seconds}s" if hours else f"{minutes}m{seconds}s" if minutes else f"{seconds}s"


def _nanoseconds(value: float) -> str:
    for limit, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "us")):
        if value > limit:
            return f"{value / limit:.1f}{unit}"
    return f"{value:.1f}ns"


def _latencies(found: JsonObject) -> str:
    return ", ".join(_nanoseconds(one["value"]) for one in found["percentiles"] or ())


def _client(client: JsonObject, now_s: int) -> str:
    port = client["remote_address"].rpartition(":")[2]
    name = f"{client['hostname']}:{port} {client['user_agent']}"
    connected = duration(max(0, now_s - client["connect_ts"]))
    counts = client.get("pub_counts")
    if counts:
        total = sum(one["count"] for one in counts)
        topics = ",".join(f"{one['topic']}={one['count']}" for one in counts)
        return f"[{client['version']} {name:<21}] msgs: {total:<8} topics: {topics} connected: {connected}"
    return (
        f"[{client['version']} {name:<21}] state: {client['state']} inflt: {client['in_flight_count']:<4} "
        f"rdy: {client['ready_count']:<4} fin: {client['finish_count']:<8} re-q: {client['requeue_count']:<8} "
        f"msgs: {client['message_count']:<8} connected: {connected}"
    )


def stats_lines(
    topics: list[JsonObject],
    producers: list[JsonObject] | None,
    mem: Mapping[str, int] | None,
    health: str,
    started_ms: int,
    now_ms: int,
) -> Iterator[str]:
    """The page that people read, line by line."""
    now_s = now_ms // 1000
    start = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started_ms // 1000))
    up = f"{duration((now_ms - started_ms) // 1000)[:-1]}.{(now_ms - started_ms) % 1000:03}s"
    yield from (version_line("nsqd"), f"start_time {start}", f"uptime {up}", "", f"Health: {health}")
    if mem is not None:
        yield from ("", "Memory:", *(f"   {name:<25}\t{value}" for name, value in mem.items()))
    yield from ("", "Topics:" if topics else "Topics: None")
    for number, topic in enumerate(topics):
        if number:
            yield ""
        yield (
            f"{'*P ' if topic['paused'] else '   '}[{topic['topic_name']:<15}] depth: {topic['depth']:<5} "
            f"be-depth: {topic['backend_depth']:<5} msgs: {topic['message_count']:<8} "
            f"e2e%: {_latencies(topic['e2e_processing_latency'])}"
        )
        for one in topic["channels"]:
            yield (
                f"{'   *P ' if one['paused'] else '      '}[{one['channel_name']:<25}] depth: {one['depth']:<5} "
                f"be-depth: {one['backend_depth']:<5} inflt: {one['in_flight_count']:<4} "
                f"def: {one['deferred_count']:<4} re-q: {one['requeue_count']:<5} timeout: {one['timeout_count']:<5} "
                f"msgs: {one['message_count']:<8} e2e%: {_latencies(one['e2e_processing_latency'])}"
            )
            for client in one["clients"] or ():
                yield f"        {_client(client, now_s)}"
    yield from ("", "Producers:" if producers else "Producers: None")
    for client in producers or ():
        yield f"   {_client(client, now_s)}"
    yield ""


# -- statsd


def statsd_prefix(prefix: str, broadcast_address: str, http_port: int) -> str:
    """The first part of every name: `nsq.host_name_4151.`"""
    host = f"{broadcast_address}:{http_port}".replace(".", "_").replace(":", "_")
    found = prefix.replace("%s", host)
    return found if not found or found.endswith(".") else found + "."


def statsd_lines(topics: Iterable[JsonObject], exclude_ephemeral: bool) -> Iterator[tuple[str, int, bool]]:
    """(name, value, whether it is a counter)."""

    def left_out(name: str) -> bool:
        return exclude_ephemeral and name.encode().endswith(EPHEMERAL)

    for topic in topics:
        name = topic["topic_name"]
        if left_out(name):
            continue
        yield from _statsd(f"topic.{name}", topic, ("message_count", "message_bytes"), ("depth", "backend_depth"))
        for channel in topic["channels"]:
            if left_out(channel["channel_name"]):
                continue
            yield from _statsd(
                f"topic.{name}.channel.{channel['channel_name']}",
                {**channel, "clients": channel["client_count"]},
                ("message_count", "requeue_count", "timeout_count"),
                ("depth", "backend_depth", "in_flight_count", "deferred_count", "clients"),
            )


def _statsd(
    prefix: str, found: JsonObject, counters: tuple[str, ...], gauges: tuple[str, ...]
) -> Iterator[tuple[str, int, bool]]:
    for name in counters:
        yield f"{prefix}.{name}", found[name], True
    for name in gauges:
        yield f"{prefix}.{name}", found[name], False
    for one in found["e2e_processing_latency"]["percentiles"] or ():
        yield f"{prefix}.e2e_processing_latency_{one['quantile'] * 100:.0f}", one["value"], False


def statsd_packets(
    prefix: str, lines: Iterable[tuple[str, int, bool]], before: dict[str, int], bytes_max: int
) -> list[bytes]:
    """Lines as packets of at most so many bytes. `before` is brought up to date: a counter that is less than it was, or that was
    not there, is of a topic or channel made anew, and counts from nothing.
    """
    packets: list[bytes] = []
    packet = b""
    now: dict[str, int] = {}
    for name, value, counter in lines:
        told = value
        if counter:
            former = before.get(name, 0)
            told = value - former if value >= former else value
            now[name] = value
        line = f"{prefix}{name}:{told}|{'c' if counter else 'g'}\n".encode()
        if packet and len(packet) + len(line) > bytes_max:
            packets.append(packet)
            packet = b""
        packet += line
    before.clear()
    before.update(now)
    return [*packets, packet] if packet else packets


# -- Prometheus


def topic_samples(topics: Iterable[JsonObject]) -> Iterator[tuple[str, str]]:
    """The samples of topics and channels."""
    for topic in topics:
        name = topic["topic_name"]
        yield sample("messages_in_total", topic["message_count"], topic=name)
        yield sample("throughput_in_bytes_total", topic["message_bytes"], topic=name)
        yield sample("topic_messages", topic["depth"], topic=name)
        for one in topic["channels"]:
            labels = {"topic": name, "channel": one["channel_name"]}
            ready, flying, deferred = one["depth"], one["in_flight_count"], one["deferred_count"]
            yield sample("channel_messages_total", one["message_count"], **labels)
            yield sample("messages_out_total", one["handed_count"], **labels)
            yield sample("throughput_out_bytes_total", one["handed_bytes"], **labels)
            yield sample("consumer_lag_messages", ready + flying + deferred, **labels)
            if one.get("lag_ms") is not None:
                yield sample("consumer_lag_seconds", one["lag_ms"] / 1000, **labels)
            yield sample("consumer_ready_messages", ready, **labels)
            yield sample("consumer_inflight_messages", flying, **labels)
            yield sample("consumer_deferred_messages", deferred, **labels)
            yield sample("requeued_messages_total", one["requeue_count"], **labels)
            yield sample("timed_out_messages_total", one["timeout_count"], **labels)
            if one["dropped_count"]:
                yield sample("dropped_messages_total", one["dropped_count"], **labels)
            yield sample("consumers", one["client_count"], **labels)
            found = one["e2e_processing_latency"]
            for at in found["percentiles"] or ():
                yield sample("processing_latency_seconds", at["value"] / 1e9, **labels, quantile=f"{at['quantile']:g}")
            if found["percentiles"]:
                yield sample("processing_latency_seconds_count", found["count"], **labels)


def broker_samples(broker: Broker, rejected: Rejections) -> Iterator[tuple[str, str]]:
    """The samples of the broker as a whole, and of its log topics."""
    queueing, store = broker.queueing, broker.store
    yield sample("info", 1, version=__version__, nsq_version=NSQD_VERSION, python=PYTHON)
    yield sample("start_time_seconds", broker.started_ms / 1000)
    yield sample("healthy", int(bool(queueing.healthy and store.healthy)))
    yield sample("delayed_messages", len(broker.schedule))
    due_ms = broker.schedule.next_due_ms()
    yield sample("delayed_late_seconds", 0 if due_ms is None else max(0, broker.now_ms - due_ms) / 1000)
    staging = broker.staging
    yield sample("staged_rows", sum(spool.rows for spool in staging.spools.values()))
    yield sample("staged_bytes", staging.staged_bytes)
    yield sample("staged_seconds", max(0, staging.oldest_age_ms()) / 1000)
    oldest_ms = earliest_ms(store)
    unwritten, overdue = broker.schedule.behind(broker.now_ms, OVERDUE_MAX)
    yield sample("timer_enqueue_lag_messages", unwritten)
    yield sample("timer_dequeue_lag_messages", overdue)
    yield sample("processor_watermark", broker.held_pulls.count, processor="pull")
    yield sample("processor_watermark", len(broker.stored) + len(queueing.flushes), processor="flush")
    yield sample("storage_message_reserve_seconds", 0 if oldest_ms < 0 else max(0, broker.now_ms - oldest_ms) / 1000)
    yield sample("storage_size_bytes", store.end_position - store.min_position)
    yield sample("storage_written_bytes_total", store.end_position)
    retention = store.upkeep.retention
    for why, count in ({} if retention is None else retention.deleted).items():
        yield sample("storage_deleted_segments_total", count, reason=why)
    yield sample("storage_dispatch_behind_bytes", store.end_position - store.underived if store.underived >= 0 else 0)
    known = store.upkeep.checkpoint.value
    yield sample("storage_replay_bytes", max(0, store.end_position - (0 if known is None else known.derived)))
    yield sample("storage_flush_behind_bytes", store.end_position - store.flushed_position)
    used, total = broker.files.usage(broker.folder)
    yield sample("disk_size_bytes", total)
    yield sample("disk_free_bytes", max(0, total - used))
    yield from histogram_samples("append_seconds", broker.core.append_took)
    yield from histogram_samples("delivery_seconds", broker.core.handed_log, kind="log")
    yield from histogram_samples("delivery_seconds", broker.core.handed_queue, kind="queue")
    yield from acknowledge_samples(broker)
    yield from replica_samples(broker)
    for protocol, reasons in rejected.items():
        for reason, count in sorted(reasons.items()):
            text = reason.decode() if isinstance(reason, bytes) else str(reason)
            yield sample("rejected_total", count, protocol=protocol, reason=text)
    yield sample("process_resident_memory_bytes", memory()["heap_in_use_bytes"])
    # Others have the loop between two samples, and may take away what these tables name.
    for group in list(broker.groups.by_name.values()):
        for topic, (count, size, *_) in list(group.get_counts.items()):
            yield sample("messages_out_total", count, topic=topic.decode(), group=group.name)
            yield sample("throughput_out_bytes_total", size, topic=topic.decode(), group=group.name)
    for name, stored in list(broker.topics.by_name.items()):
        if name not in queueing.topics and not broker.is_system_topic(name.decode()):
            yield sample("messages_in_total", stored.message_count, topic=name.decode())
            if name.startswith(DEAD_PREFIX):
                of = name.removeprefix(DEAD_PREFIX).decode()
                yield sample("send_to_dlq_messages_total", stored.message_count, group=of)
            yield sample("throughput_in_bytes_total", stored.put_bytes, topic=name.decode())
    for queue in list(queueing.topics.values()):
        for channel in list(queue.channels.values()):
            if channel.buried_count:
                labels = {"topic": queue.name.decode(), "channel": channel.name.decode()}
                yield sample("send_to_dlq_messages_total", channel.buried_count, **labels)
    yield from group_samples(broker)


def replica_samples(broker: Broker) -> Iterator[tuple[str, str]]:
    """The samples of a broker that has slaves, or is one."""
    copies = broker.copies
    if copies.replica is None:
        return
    yield sample("replica_epoch", copies.replica.epoch)
    yield sample("replica_confirmed_bytes", copies.confirmed)
    yield sample("replica_bad_blocks_total", copies.bad_blocks)
    if broker.repairs is not None:
        yield sample("replica_repaired_total", broker.repairs.repaired)
        yield sample("replica_damaged", len(broker.repairs.wanted))
    if copies.engine_says is not None:
        said = copies.engine_says(broker.mono_ms)
        yield sample("engine_reached", int(said["engine"] == "reached"))
        yield sample("engine_silent_seconds", int(str(said["engine_silent_ms"])) / 1000)
        yield sample("replica_leads", int(not copies.following and copies.leads))
        yield sample("replica_lease_seconds", int(str(said["lease_ms"] or 0)) / 1000)
    end = broker.store.end_position
    if copies.following:
        yield sample("replica_lag_bytes", max(0, copies.master_written - end), node=copies.replica.node)
    for member in list(copies.members.values()):
        yield sample("replica_in_sync", int(member.in_sync), node=member.node)
        yield sample("replica_lag_bytes", max(0, end - member.written), node=member.node)


def acknowledge_samples(broker: Broker) -> Iterator[tuple[str, str]]:
    """The samples of messages that are finished: how long that took, and how often they were given."""
    acknowledged = broker.queueing.acknowledged
    yield from histogram_samples("acknowledge_seconds", acknowledged.log, kind="log")
    yield from histogram_samples("acknowledge_seconds", acknowledged.queue, kind="queue")
    for kind in ("log", "queue"):
        attempts = acknowledged.past(kind)
        for topic in broker.queueing.topics.values():
            if topic.kind == kind:
                for channel in topic.channels.values():
                    attempts.join(channel.again)
                    attempts.finished(channel.finish_count)
        yield from histogram_samples("finish_attempts", attempts, kind=kind)


def group_inflight(broker: Broker, group: str, topic: str, offsets: Mapping[int, int]) -> int:
    """Messages that the members of a group have been given and have not committed, as RocketMQ counts them: up to where the
    last pull of each queue began.
    """
    known, online = broker.groups.by_name.get(group), broker.clients.consumers.get(group)
    if known is None or online is None or not online.members:
        return 0
    pulled = known.pulled.get(topic.encode(), {})
    return sum(max(0, at - offsets.get(queue, at)) for queue, at in pulled.items())


def group_samples(broker: Broker) -> Iterator[tuple[str, str]]:
    """How far behind the groups of log topics are, by what they have committed."""
    for (name, group), offsets in list(broker.offsets.table.items()):
        topic = broker.topics.get(name.encode())
        if topic is not None:
            queues = topic.queues[: topic.read_queues]
            lag = group_lag(queues, offsets)
            yield sample("consumer_lag_messages", lag, topic=name, group=group)
            flying = min(lag, group_inflight(broker, group, name, offsets))
            yield sample("consumer_inflight_messages", flying, topic=name, group=group)
            yield sample("consumer_ready_messages", lag - flying, topic=name, group=group)
            oldest_ms = group_oldest_ms(broker.store, queues, offsets, broker.now_ms)
            yield sample("consumer_lag_seconds", oldest_ms / 1000, topic=name, group=group)
