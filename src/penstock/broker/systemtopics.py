"""The topics a broker needs for itself, and those RocketMQ's clients expect."""

from __future__ import annotations

from penstock.broker.levels import LEVEL_DISK
from penstock.broker.topics import (
    DONE_TOPIC,
    HALF_TOPIC,
    OP_TOPIC,
    PERM_BOTH,
    PERM_INHERIT,
    PERM_READ,
    SCHEDULE_TOPIC,
    TEMPLATE_TOPIC,
    TIMER_TOPIC,
    TopicTable,
)
from penstock.config import BrokerConfig
from penstock.wire import names

_PERM_ALL = PERM_BOTH | PERM_INHERIT


def make_system_topics(config: BrokerConfig, topics: TopicTable, levels: int) -> None:
    """Make those that are missing, or were left without queues; `levels`: of delays."""
    make = topics.create
    if config.auto_create_topic_enable:
        make(
            TEMPLATE_TOPIC, config.default_topic_queue_nums, config.default_topic_queue_nums, _PERM_ALL, announce=False
        )
    wanted: list[tuple[bytes, int, int]] = [
        (names.SELF_TEST_TOPIC, 1, PERM_BOTH),
        (names.BENCHMARK_TOPIC, 1024, PERM_BOTH),
        (config.cluster_name.encode(), 16, _PERM_ALL),
        (config.broker_name.encode(), 1, _PERM_ALL),
        (names.OFFSET_MOVED_TOPIC, 1, PERM_BOTH),
        (SCHEDULE_TOPIC, levels, PERM_BOTH),
        (TIMER_TOPIC, 1, PERM_BOTH),
        (names.TRACE_TOPIC, 1, PERM_BOTH),
        (config.cluster_name.encode() + names.REPLY_SUFFIX.encode(), 1, PERM_BOTH),
        (HALF_TOPIC, 1, PERM_BOTH),
        (OP_TOPIC, 1, PERM_BOTH),
        (names.GIVEN_UP_TOPIC, 1, PERM_BOTH),
        (DONE_TOPIC, 1, PERM_BOTH),
    ]
    for name, queues, perm in wanted:
        known = topics.get(name)
        if known is None or not known.queues:
            make(name, queues, queues, perm, announce=False)
    sinks = topics.get(names.SINK_TOPIC)
    if sinks is None or not sinks.queues:
        make(names.SINK_TOPIC, 1, 1, PERM_READ, announce=False, level=LEVEL_DISK)
    topics.leave_out([TEMPLATE_TOPIC, names.SINK_TOPIC, *(name for name, _, _ in wanted)])


def is_system_topic(config: BrokerConfig, name: str) -> bool:
    """Whether a topic is hidden in lists, and not to be deleted."""
    own = (config.cluster_name, config.broker_name, f"{config.cluster_name}{names.REPLY_SUFFIX}")
    return name.lower().startswith(names.SYSTEM_PREFIX) or name in names.SYSTEM_TOPICS or name in own
