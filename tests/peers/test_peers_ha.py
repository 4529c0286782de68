"""RocketMQ 4.9.7 itself in a replica set with ours: its slave copies our log, we copy its master's, in its own protocol."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ha_parts import Process, eventually
from peers.rocketmq_broker import SEGMENT_BYTES, Installed, Rocketmq
from penstock import Admin
from penstock.app import Server
from penstock.testing import Broker
from penstock.wire import fastjson
from ports import free_port, staying

TOPIC = "Peer"
NAME = "broker-a"
COUNT = 600
ALONE: dict[str, Any] = {"registry_port": -1, "lookup_port": -1, "lookup_http_port": -1}
SIZES: dict[str, Any] = {
    "mapped_file_size_commit_log": SEGMENT_BYTES, "mapped_file_size_consume_queue": 6000, "max_hash_slot_num": 500,
    "max_index_num": 2000, "message_delay_level": " ".join(["1s"] * 18), "broker_name": NAME, "ha_rocketmq": "127.0.0.1",
    "nsq_port": -1, "http_port": -1,
}  # fmt: skip


@pytest.fixture(scope="module")
def installed() -> Installed:
    return Installed()


def whole_log(folder: Path) -> bytes:
    """All that stands in the log; behind it are zeros."""
    return b"".join(path.read_bytes() for path in sorted((folder / "commitlog").glob("0*"))).rstrip(b"\0")


def tables(folder: Path, name: str) -> Any:
    """A table of the config folder; RocketMQ's have keys without quotes."""
    path = folder / "config" / name
    return fastjson.loads(path.read_bytes()) if path.exists() else {}


def registered(registry: str) -> None:
    """The master is, and the topic: a client looks for it at once."""
    with Admin(registry) as admin:
        eventually(lambda: 0 in admin.cluster_info().brokers.get(NAME, {}))
        if TOPIC not in admin.topics():
            admin.create_topic(TOPIC, 4)
        eventually(lambda: TOPIC in admin.topics())


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
    registered(registry)
    slave = Rocketmq(
        installed, tmp_path / "theirs", name=NAME, brokerId="1", brokerRole="SLAVE", namesrvAddr=registry
    )  # fmt: skip
    slave.folder.mkdir()

    def same() -> bool:
        log = whole_log(slave.store)
        return len(log) > 0 and log == whole_log(ours.folder)

    assert {line["status"] for line in client.run("send", TOPIC, COUNT)} == {"SEND_OK"}
    with slave:
        eventually(same, 60)
        client.run("send", TOPIC, COUNT)
        eventually(same, 60)
        ours.kill()
        ours.start()
        registered(registry)
        client.run("send", TOPIC, COUNT)
        eventually(same, 60)
        with Admin(registry) as admin:
            admin.create_topic("OnlyAtTheMaster")
        client.run("read", TOPIC)
        eventually(lambda: "OnlyAtTheMaster" in tables(slave.store, "topics.json").get("topicConfigTable", {}), 60)
    client.run("send", TOPIC, COUNT)  # while it is away
    with slave:
        eventually(same, 60)
        assert len(list((ours.folder / "commitlog").glob("0*"))) > 4
    ours.stop()


def test_we_follow_its_master_and_take_its_place(installed: Installed, tmp_path: Path) -> None:
    """Log, topics, groups, committed offsets; over segments and restarts of either side; then we are the master, and what it
    has delivered of delayed messages is not delivered again.
    """
    (tmp_path / "theirs").mkdir()
    with Rocketmq(
        installed, tmp_path / "theirs", name=NAME, brokerIP2="127.0.0.1", enablePropertyFilter="true"
    ) as theirs:
        client = installed.client(theirs.registry, tmp_path)
        client.run("send", TOPIC, COUNT)
        ours = Process(
            "broker", tmp_path / "ours", tmp_path / "ours.log", remoting_port=0, ha_port=0, role="slave",
            registry=theirs.registry, **SIZES,
        ).start()  # fmt: skip
        begin = 0

        def same() -> bool:
            nonlocal begin
            segments = sorted((ours.folder / "commitlog").glob("0*"))
            begin = int(segments[0].name) if segments else 0
            log = whole_log(ours.folder)
            return len(log) > 0 and whole_log(theirs.store)[begin:] == log

        eventually(same, 60)
        assert begin > 0  # a RocketMQ master gives a new slave its last segment
        client.run("send", TOPIC, COUNT)
        eventually(same, 60)
        ours.kill()
        client.run("send", TOPIC, COUNT)
        ours.start()
        eventually(same, 60)
        assert client.run("subscribe", "Consumed", 40, "TRUE")
        ours.stop()
        ports = staying("remoting", "ha")  # it keeps them when its role changes
        with Broker(ours.folder, role="slave", registry=theirs.registry, **ports, **ALONE, **SIZES) as slave:

            def tables() -> bool:
                def look(server: Server) -> bool:
                    topic = server.broker.topics.by_name.get(b"Consumed")
                    offsets = server.broker.offsets.table.get(("Consumed", "peer-sql"), {})
                    known = "peer-sql" in server.broker.groups.by_name and topic is not None
                    return known and sum(offsets.values()) == 41 and len(server.broker.schedule) == 0

                return bool(slave.call(look))

            eventually(tables)
            eventually(same)
            assert slave.call(lambda server: server.broker.topics.by_name[b"Consumed"].read_queues) == 4
            slave.call(lambda server: server.broker.mastership.promote(True))
        before = [line for line in client.run("read", TOPIC) if line["physical"] >= begin]
    with Broker(ours.folder, role="slave", ha_port=0, **SIZES) as master:
        client = installed.client(master.registry, tmp_path)
        sent = client.run("send", TOPIC, 10)  # the tenth is delayed
        more = sum(line["how"] != "rolled back" for line in sent) + 4 * sum(line["how"] == "batch" for line in sent)
        after: list[Any] = []

        def delivered() -> bool:
            after[:] = client.run("read", TOPIC)
            return len(after) >= len(before) + more

        eventually(delivered)
        assert len(after) == len(before) + more
        assert [line for line in after if line in before] == before
