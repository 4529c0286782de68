"""RocketMQ 4.9.7 itself in a replica set with ours: its slave copies our log, we copy its master's, in its own protocol."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ha_parts import Process, eventually
from peers.rocketmq_broker import SEGMENT_BYTES, Installed, Rocketmq
from penstock import Admin
from ports import free_port

TOPIC = "Peer"
NAME = "broker-a"
COUNT = 600
SIZES: dict[str, Any] = {
    "mapped_file_size_commit_log": SEGMENT_BYTES, "mapped_file_size_consume_queue": 6000, "max_hash_slot_num": 500,
    "max_index_num": 2000, "message_delay_level": " ".join(["1s"] * 18), "broker_name": NAME, "ha_rocketmq": "127.0.0.1",
}  # fmt: skip


@pytest.fixture(scope="module")
def installed() -> Installed:
    return Installed()


def whole_log(folder: Path) -> bytes:
    """All that stands in the log; behind it are zeros."""
    return b"".join(path.read_bytes() for path in sorted((folder / "commitlog").glob("0*"))).rstrip(b"\0")


def tables(folder: Path, name: str) -> Any:
    """A table of the config folder; RocketMQ's have keys without quotes."""
    from penstock.wire import fastjson

    path = folder / "config" / name
    return fastjson.loads(path.read_bytes()) if path.exists() else {}


@pytest.fixture
def ours(tmp_path: Path) -> Iterator[Process]:
    """A registry, and a master of ours on ports of its own, so that it is found again after a restart."""
    registry = Process("registry", tmp_path / "registry", tmp_path / "registry.log", registry_port=0).start()
    master = Process(
        "broker", tmp_path / "ours", tmp_path / "ours.log", remoting_port=free_port(), ha_port=free_port(),
        registry=registry.addresses["registry"], **SIZES,
    )  # fmt: skip
    master.addresses = {"registry": registry.addresses["registry"]}
    yield master
    master.stop()
    registry.stop()


def test_its_slave_follows_our_master_over_segments_and_restarts(
    installed: Installed, ours: Process, tmp_path: Path
) -> None:
    registry = ours.addresses["registry"]
    client = installed.client(registry, tmp_path)
    ours.start()
    slave = Rocketmq(
        installed, tmp_path / "theirs", name=NAME, brokerId="1", brokerRole="SLAVE", namesrvAddr=registry
    )  # fmt: skip
    slave.folder.mkdir()

    def same() -> bool:
        log = whole_log(slave.store)
        return len(log) > 0 and log == whole_log(ours.folder)

    assert {line["status"] for line in client.run("send", TOPIC, COUNT)} == {"SEND_OK"}
    with slave:
        eventually(same, 120)
        client.run("send", TOPIC, COUNT)
        eventually(same, 120)
        ours.kill()
        ours.start()
        client.run("send", TOPIC, COUNT)
        eventually(same, 120)
        with Admin(registry) as admin:
            admin.create_topic("OnlyAtTheMaster")
        client.run("read", TOPIC)
        eventually(lambda: "OnlyAtTheMaster" in tables(slave.store, "topics.json").get("topicConfigTable", {}), 120)
    client.run("send", TOPIC, COUNT)  # while it is away
    with slave:
        eventually(same, 120)
        assert len(list((ours.folder / "commitlog").glob("0*"))) > 4
    ours.stop()
