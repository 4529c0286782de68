"""The topics a broker needs for itself, and those RocketMQ's clients expect."""

from __future__ import annotations

from penstock.broker.levels import LEVEL_DISK
from penstock.broker.sinks import SINK_TOPIC
from penstock.broker.topics import (
    DONE_TOPIC,
    HALF_TOPIC,
    OP_TOPIC,
    SCHEDULE_TOPIC,
    TEMPLATE_TOPIC,
    TIMER_TOPIC,
    TopicTable,
)
from penstock.config import BrokerConfig

_NAMED = frozenset(
    (TEMPLATE_TOPIC.decode(), "SELF_TEST_TOPIC", "BenchmarkTest", "OFFSET_MOVED_EVENT", SCHEDULE_TOPIC.decode(),
     "TRANS_CHECK_MAX_TIME_TOPIC")
)  # fmt: skip


def make_system_topics(config: BrokerConfig, topics: TopicTable, levels: int) -> None:
    """Make those that are missing; `levels`: of delays."""
    make = topics.create
    if config.auto_create_topic_enable:
        make(TEMPLATE_TOPIC, config.default_topic_queue_nums, config.default_topic_queue_nums, 7, announce=False)
    wanted: list[tuple[bytes, int, int]] = [
        (b"SELF_TEST_TOPIC", 1, 6),
        (b"BenchmarkTest", 1024, 6),
        (config.cluster_name.encode(), 16, 7),
        (config.broker_name.encode(), 1, 7),
        (b"OFFSET_MOVED_EVENT", 1, 6),
        (SCHEDULE_TOPIC, levels, 6),
        (TIMER_TOPIC, 1, 6),
        (b"RMQ_SYS_TRACE_TOPIC", 1, 6),
        (config.cluster_name.encode() + b"_REPLY_TOPIC", 1, 6),
        (HALF_TOPIC, 1, 6),
        (OP_TOPIC, 1, 6),
        (b"TRANS_CHECK_MAX_TIME_TOPIC", 1, 6),
        (DONE_TOPIC, 1, 6),
    ]
    for name, queues, perm in wanted:
        if topics.get(name) is None:
            make(name, queues, queues, perm, announce=False)
    if topics.get(SINK_TOPIC) is None:
        make(SINK_TOPIC, 1, 1, 4, announce=False, level=LEVEL_DISK)


def is_system_topic(config: BrokerConfig, name: str) -> bool:
    """Whether a topic is hidden in lists, and not to be deleted."""
    own = (config.cluster_name, config.broker_name, f"{config.cluster_name}_REPLY_TOPIC")
    return name.lower().startswith("rmq_sys_") or name in _NAMED or name in own
