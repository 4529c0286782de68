"""The topics a broker makes for itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.queueside import Side
from penstock.broker.systemtopics import is_system_topic
from penstock.config import BrokerConfig
from penstock.errors import Refused

CONFIG = BrokerConfig(cluster_name="C", broker_name="B")


@pytest.mark.parametrize("name", ["TBW102", "RMQ_SYS_anything", "rmq_sys_penstock_done", "C", "B", "C_REPLY_TOPIC"])
def test_hidden(name: str) -> None:
    assert is_system_topic(CONFIG, name)


@pytest.mark.parametrize("name", ["orders", "%RETRY%g", "B2", "TBW1022"])
def test_shown(name: str) -> None:
    assert not is_system_topic(CONFIG, name)


def test_they_are_there_after_every_start(tmp_path: Path) -> None:
    side = Side(tmp_path)
    made = set(side.broker.topics.by_name)
    assert {b"TBW102", b"SCHEDULE_TOPIC_XXXX", b"rmq_sys_penstock_sinks", b"rmq_sys_penstock_done"} <= made
    assert all(side.broker.is_system_topic(name.decode()) for name in made)
    side.reopen(clean=False)
    assert set(side.broker.topics.by_name) == made
    side.close()


def test_they_do_not_count_against_the_limit(tmp_path: Path) -> None:
    """With max_topics below sixteen no topic could be made, and nobody saw one."""
    side = Side(tmp_path, max_topics=2)
    for _ in range(2):
        topics = side.broker.topics
        for name in (b"one", b"two"):
            topics.create(name, 1, 1, now_ms=side.broker.now_ms)
        with pytest.raises(Refused, match="no more than 2 topics"):
            topics.create(b"three", 1, 1, now_ms=side.broker.now_ms)
        topics.delete(b"one", side.broker.now_ms)
        topics.create(b"three", 1, 1, now_ms=side.broker.now_ms)
        topics.delete(b"three", side.broker.now_ms)
        side.reopen(clean=True)
    side.close()


def test_those_that_were_left_without_queues_get_them_back(tmp_path: Path) -> None:
    """Former versions let an administrator do that; the broker did not start any more."""
    side = Side(tmp_path)
    queues = {name: topic.queue_count for name, topic in side.broker.topics.by_name.items()}
    for name in queues:
        side.broker.topics.create(name, 0, 0, 0)
    side.reopen(clean=True)
    assert {name: topic.queue_count for name, topic in side.broker.topics.by_name.items() if name != b"TBW102"} == {
        name: count for name, count in queues.items() if name != b"TBW102"
    }
    side.close()
