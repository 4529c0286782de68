"""The counters that rates are made of, and what else is told of the log as a whole."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.broker.core import Core
from penstock.broker.topics import RETRY_PREFIX
from penstock.log.store import LogStore
from penstock.wire import record


def counters(core: Core) -> Iterator[tuple[str, str, int]]:
    """Every one: RocketMQ's name of its statistics, the key within, and the value. It may be gone on with in later turns."""
    for topic in list(core.topics.by_name.values()):
        if topic.put_count:
            name = topic.name.decode()
            yield "TOPIC_PUT_NUMS", name, topic.put_count
            yield "TOPIC_PUT_SIZE", name, topic.put_bytes
    for group in list(core.groups.by_name.values()):
        for topic_name, (count, size, _, _) in list(group.get_counts.items()):
            key = f"{topic_name.decode()}@{group.name}"
            yield "GROUP_GET_NUMS", key, count
            yield "GROUP_GET_SIZE", key, size
        if group.sent_back:
            yield "SNDBCK_PUT_NUMS", f"{RETRY_PREFIX.decode()}{group.name}@{group.name}", group.sent_back
    for (name, key), value in totals(core).items():
        yield name, key, value


def totals(core: Core) -> dict[tuple[str, str], int]:
    """Those of the whole broker, by name and key."""
    cluster = core.config.cluster_name
    put = sum([topic.put_count for topic in core.topics.by_name.values()])
    got = found = missed = 0
    for group in core.groups.by_name.values():
        for count, _, hits, misses in group.get_counts.values():
            got += count
            found += hits
            missed += misses
    return {
        ("BROKER_PUT_NUMS", cluster): put,
        ("BROKER_GET_NUMS", cluster): got,
        ("BROKER_FOUND_TIMES", cluster): found,
        ("BROKER_MISS_TIMES", cluster): missed,
    }


def earliest_ms(store: LogStore) -> int:
    """When the oldest record of the log was stored; -1 without one."""
    data = store.record_at(store.min_position) if store.end_position > store.min_position else None
    message = None if data is None else record.decode_record(data, 0, decompress=False)
    return -1 if message is None else message.store_ms
