"""`LogReader(slaves=True)`: what a slave has is read there, the rest at the master; a silent slave holds nobody up for long."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from ha_parts import SMALL, Process, eventually
from penstock.client import reader as readers
from penstock.client.reader import LogReader
from penstock.client.routes import MessageQueue, Route
from penstock.wire.record import iter_records
from ports import free_port

QUEUE = MessageQueue("T", "broker-a", 0)
COUNT = 300


class Pair:
    def __init__(self, folder: Path) -> None:
        settings = {"nsq_port": -1, "http_port": -1, "level": "pair", "register_broker_period_ms": 300, **SMALL}
        lookups = {"lookup_port": -1, "lookup_http_port": -1}
        self.registry = Process("registry", folder / "r", folder / "r.log", registry_port=0, **lookups).start()
        self.name_server = self.registry.addresses["registry"]
        self.master, self.slave = (
            Process("broker", folder / name, folder / f"{name}.log", node=name, role=role, registry=self.name_server,
                    ha_port=free_port(), remoting_port=free_port(), **settings)
            for name, role in (("a", "master"), ("b", "slave"))
        )  # fmt: skip

    def start(self) -> None:
        for process in (self.master, self.slave):
            process.start()
        eventually(self.in_sync, 60, "no slave in sync")

    def rows(self, process: Process) -> dict[str, str]:
        with penstock.Admin(self.name_server) as admin:
            return admin.runtime_info(process.addresses["remoting"])

    def in_sync(self) -> bool:
        rows = json.loads(self.rows(self.master)["replicaSet"])
        return any(row["role"] == "slave" and row["in_sync"] == "yes" for row in rows)

    def given(self, process: Process) -> int:
        return int(self.rows(process)["msgGetTotalTodayNow"])

    def stop(self) -> None:
        for process in (self.slave, self.master, self.registry):
            if process.process is not None and process.process.poll() is None:
                process.process.send_signal(signal.SIGCONT)
            process.stop()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    try:
        made.start()
        with penstock.Admin(made.name_server) as admin:
            eventually(lambda: admin.create_topic("T", 1) is None)
            eventually(lambda: "T" in admin.topics(), 60)
        with penstock.Producer(made.name_server) as producer:
            for n in range(COUNT):
                producer.send(penstock.Message("T", b"%d" % n))
        yield made
    finally:
        made.stop()


def bodies(reader: LogReader, first: int = 0) -> list[bytes]:
    found, end = [], reader.offsets(QUEUE)[1]
    while first < end:
        fetched = reader.fetch(QUEUE, first, max_count=40, until=end)
        assert fetched.status == 0
        found += [bytes(record.body) for record in iter_records(fetched.records)]
        first = fetched.next_offset
    return found


def all_there(reader: LogReader) -> list[bytes]:
    eventually(lambda: reader.offsets(QUEUE)[1] >= COUNT, 60, "it is not flushed")
    return [b"%d" % n for n in range(reader.offsets(QUEUE)[1])]


def test_it_is_read_at_the_slave_and_goes_on_when_that_is_stopped_or_gone(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "SLAVE_S", 0.5)
    with LogReader(pair.name_server, slaves=True) as reader:
        eventually(lambda: reader._route("T", fresh=True).slave_address(QUEUE), 60, "no slave in the route")
        wanted = all_there(reader)

        def all_at_the_slave() -> bool:
            """It has all once it has heard what is confirmed."""
            before = pair.given(pair.slave), pair.given(pair.master)
            assert bodies(reader) == wanted
            return (pair.given(pair.slave), pair.given(pair.master)) == (before[0] + COUNT, before[1])

        eventually(all_at_the_slave, 60, "it is not read at the slave")
        assert reader.fetch(QUEUE, COUNT).status == 19  # behind the end: the master says so
        assert reader.fetch(QUEUE, COUNT + 50).status == 21
        process = pair.slave.process
        assert process is not None
        process.send_signal(signal.SIGSTOP)
        assert bodies(reader) == wanted
        process.send_signal(signal.SIGCONT)
        monkeypatch.setattr(readers, "LEFT_S", 0.0)
        reader._left_s.clear()
        eventually(all_at_the_slave, 60, "it is not read at the slave again")
        pair.slave.kill()
        assert bodies(reader) == wanted


def test_a_slave_that_lags_gives_what_it_has_and_the_master_the_rest(pair: Pair) -> None:
    with LogReader(pair.name_server, slaves=True) as reader:
        eventually(lambda: reader._route("T", fresh=True).slave_address(QUEUE), 60, "no slave in the route")
        all_there(reader)
        process = pair.slave.process
        assert process is not None
        process.send_signal(signal.SIGSTOP)
        with penstock.Producer(pair.name_server) as producer:
            for n in range(COUNT, COUNT + 50):
                producer.send(penstock.Message("T", b"%d" % n))
        eventually(lambda: reader.offsets(QUEUE)[1] == COUNT + 50, 60, "it is not flushed")
        process.send_signal(signal.SIGCONT)
        begin = time.monotonic()
        assert bodies(reader, 200) == [b"%d" % n for n in range(200, COUNT + 50)]
        assert time.monotonic() - begin < 60


def test_each_queue_has_its_slave() -> None:
    route = Route("T", {"x": {0: "m:1", 2: "s:2", 1: "s:1"}, "y": {0: "m:1"}}, ())
    at = [route.slave_address(MessageQueue("T", "x", n)) for n in range(4)]
    assert at == ["s:1", "s:2", "s:1", "s:2"]
    assert route.slave_address(MessageQueue("T", "y", 0)) is None
    assert route.slave_address(MessageQueue("T", "z", 0)) is None
