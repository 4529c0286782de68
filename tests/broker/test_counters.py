"""Counters under RocketMQ's names."""

from __future__ import annotations

from pathlib import Path

from broker.queueside import Side
from penstock.broker.counters import counters, totals


def test_what_was_put_got_and_given_back(tmp_path: Path) -> None:
    side = Side(tmp_path)
    broker = side.broker
    topic = broker.topics.create(b"T", 1, 1)
    for n in range(3):
        broker.put(topic, 0, b"x" * n, {}, born_host=broker.store_host, born_ms=1)
    group = broker.groups.find("G", 0)
    group.get_counts[b"T"] = [2, 50, 3, 4]
    group.sent_back += 1
    found = {(name, key): value for name, key, value in counters(broker.core)}
    assert totals(broker.core).items() <= found.items()
    assert found["TOPIC_PUT_NUMS", "T"] == found["BROKER_PUT_NUMS", broker.config.cluster_name] == 3
    assert found["TOPIC_PUT_SIZE", "T"] == topic.put_bytes > 3
    assert (found["GROUP_GET_NUMS", "T@G"], found["GROUP_GET_SIZE", "T@G"]) == (2, 50)
    assert found["BROKER_FOUND_TIMES", broker.config.cluster_name] == 3
    assert found["BROKER_MISS_TIMES", broker.config.cluster_name] == 4
    assert found["BROKER_GET_NUMS", broker.config.cluster_name] == 2
    assert found["SNDBCK_PUT_NUMS", "%RETRY%G@G"] == 1
    assert not any(key == "TBW102" for _, key in found)  # of topics that got nothing there is nothing
    side.close()
