"""RocketMQ's Java client, unchanged, is sent to a slave while it is far behind, and misses nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.test_guide import filled, follower, in_sync, master
from peers.rocketmq_broker import Installed
from penstock import Admin
from penstock.testing import Broker
from polling import eventually

__all__ = ["master"]

COUNT = 50
GROUP = "peer-sql"


def asked(broker: Broker) -> list[int]:
    """What the group was given here: messages, bytes, pulls with some, pulls without any."""

    def look(server: object) -> list[int]:
        group = server.broker.groups.by_name.get(GROUP)  # type: ignore[attr-defined]
        return list(group.get_counts.get(b"T", [0] * 4)) if group is not None else [0] * 4

    return broker.call(look)


@pytest.fixture
def pair(master: Broker, tmp_path: Path) -> Iterator[tuple[Broker, Broker]]:
    filled(master)
    with follower(tmp_path, master) as slave:
        in_sync(master, slave)
        with Admin(master.registry) as admin:
            eventually(lambda: 1 in admin.cluster_info().brokers["broker-a"])
        yield master, slave


def test_the_java_client_goes_to_a_slave_and_back(pair: tuple[Broker, Broker], tmp_path: Path) -> None:
    """It passes over 4,300 messages that it does not want, and reads those it wants at the end."""
    one, slave = pair
    java = Installed().client(one.registry, tmp_path)
    lines = java.run("subscribe", "T", COUNT, "n >= 0")
    assert sorted(line["n"] for line in lines) == list(range(COUNT + 1))
    assert sum(asked(slave)[2:]) > 0
    assert sum(asked(one)[2:]) > 0
