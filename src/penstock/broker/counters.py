"""The counters that rates are made of, and what else is told of the log as a whole."""

from __future__ import annotations

from penstock.broker.core import Core
from penstock.broker.topics import RETRY_PREFIX
from penstock.log.store import LogStore
from penstock.wire import record


def counters(core: Core) -> dict[tuple[str, str], int]:
    """Every one, by RocketMQ's name of its statistics and the key within."""
    found: dict[tuple[str, str], int] = {}
    total_put = total_got = found_times = missed_times = 0
    for topic in core.topics.by_name.values():
        if topic.put_count:
            name = topic.name.decode()
            found["TOPIC_PUT_NUMS", name] = topic.put_count
            found["TOPIC_PUT_SIZE", name] = topic.put_bytes
            total_put += topic.put_count
    for group in core.groups.by_name.values():
        for topic_name, (count, size, hits, misses) in group.get_counts.items():
            key = f"{topic_name.decode()}@{group.name}"
            found["GROUP_GET_NUMS", key] = count
            found["GROUP_GET_SIZE", key] = size
            total_got += count
            found_times += hits
            missed_times += misses
        if group.sent_back:
            found["SNDBCK_PUT_NUMS", f"{RETRY_PREFIX.decode()}{group.name}@{group.name}"] = group.sent_back
    found["BROKER_PUT_NUMS", core.config.cluster_name] = total_put
    found["BROKER_GET_NUMS", core.config.cluster_name] = total_got
    found["BROKER_FOUND_TIMES", core.config.cluster_name] = found_times
    found["BROKER_MISS_TIMES", core.config.cluster_name] = missed_times
    return found


def earliest_ms(store: LogStore) -> int:
    """When the oldest record of the log was stored; -1 without one."""
    data = store.record_at(store.min_position) if store.end_position > store.min_position else None
    message = None if data is None else record.decode_record(data, 0, decompress=False)
    return -1 if message is None else message.store_ms
