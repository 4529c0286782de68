"""A topic over two masters, each with a slave: all of one set is killed, and the other goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

import penstock
from ha_parts import SMALL, Process, eventually
from penstock.client.reader import LogReader
from penstock.client.results import SendStatus
from penstock.errors import PenstockError
from ports import free_port

pytestmark = pytest.mark.chaos  # once is enough: processes, not modules


def test_a_set_is_killed_and_the_other_goes_on(tmp_path: Path) -> None:
    registry = Process(
        "registry", tmp_path / "r", tmp_path / "r.log", registry_port=0, lookup_port=-1, lookup_http_port=-1
    ).start()
    names = registry.addresses["registry"]
    shared = {"registry": names, "nsq_port": -1, "http_port": -1, "vip_port": "false", "level": "pair",
              "register_broker_period_ms": 500, **SMALL}  # fmt: skip
    sets: dict[str, list[Process]] = {}
    try:
        for name in ("one", "two"):
            sets[name] = [
                Process(
                    "broker", tmp_path / f"{name}-{role}", tmp_path / f"{name}-{role}.log", broker_name=name, role=role,
                    node=f"{name}-{role}", remoting_port=free_port(), ha_port=free_port(), **shared,
                ).start()
                for role in ("master", "slave")
            ]  # fmt: skip
        for name, (master, _) in sets.items():
            eventually(lambda master=master, name=name: master.says(f"slave in sync node={name}-slave") == 1)
        with penstock.Admin(names) as admin:
            admin.create_topic("T", 2, level="pair")
        with LogReader(names) as reader:
            eventually(lambda: len({queue.broker for queue in reader.queues("T")}) == 2)  # each tells the registry
        acknowledged: dict[bytes, str] = {}
        with penstock.Producer(names) as producer, penstock.PushConsumer("G", names, start="first") as consumer:

            def send(numbers: range) -> set[str]:
                """The sets that have taken them."""
                taken = set()
                for n in numbers:
                    receipt = producer.send(penstock.Message("T", b"%d" % n))
                    assert receipt.status == SendStatus.SEND_OK
                    acknowledged[b"%d" % n] = receipt.queue.broker
                    taken.add(receipt.queue.broker)
                return taken

            assert send(range(40)) == {"one", "two"}
            for process in sets["two"]:
                process.kill()
            assert send(range(100, 101)) <= {"one"}  # the producer tries the other set by itself
            assert send(range(200, 240)) == {"one"}
            for process in sets["two"]:
                process.start()

            def both() -> bool:
                try:
                    return send(range(len(acknowledged) + 1_000, len(acknowledged) + 1_004)) == {"one", "two"}
                except (PenstockError, AssertionError):
                    return False  # its slave is not in sync yet: 11

            eventually(both)
            consumer.subscribe("T")
            seen: set[bytes] = set()
            for message in consumer:
                seen.add(message.body)
                if acknowledged.keys() <= seen:
                    break
        assert set(acknowledged.values()) == {"one", "two"}
    finally:
        for process in [*(one for pair in sets.values() for one in pair), registry]:
            process.stop()
