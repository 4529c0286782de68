"""What a slave asks a RocketMQ master for, here of a broker that answers as one: topics, groups, offsets, delays."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

import penstock
from ha_parts import SMALL, eventually
from penstock.app import Server
from penstock.broker.broker import Broker as Core
from penstock.broker.taking import DELIVERED_MAX, TakingRocketmq, log_end
from penstock.config import BrokerConfig, RegistryConfig
from penstock.errors import WireError
from penstock.registration.mastertables import REQUESTS, MasterTables
from penstock.registration.registrar import Registration
from penstock.testing import Broker
from penstock.wire import fastjson
from polling import until

NO_LOOKUP = {"lookup_port": -1, "lookup_http_port": -1}
ALONE = {"registry_port": -1, **NO_LOOKUP}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Core]:
    made = Core(BrokerConfig(data=str(tmp_path / "data"), role="slave", **SMALL))  # type: ignore[arg-type]
    made.open()
    yield made
    made.close()


def topic(name: str, queues: int = 4, **more: object) -> dict[str, object]:
    return {
        "topicName": name, "readQueueNums": queues, "writeQueueNums": queues, "perm": 6, "order": False,
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, **more,
    }  # fmt: skip


def topics(counter: int, *found: dict[str, object]) -> bytes:
    table = {str(about["topicName"]): about for about in found}
    return fastjson.dumps({"dataVersion": {"counter": counter, "timestamp": 1}, "topicConfigTable": table})


def test_topics_are_the_masters_and_its_own_stay_out(broker: Core) -> None:
    taking = TakingRocketmq(broker)
    system = [topic("TBW102", 8, perm=7), topic("SELF_TEST_TOPIC", 1), topic("SCHEDULE_TOPIC_XXXX", 18)]
    before = {name: one.read_queues for name, one in broker.topics.by_name.items()}
    taking.take("topics", topics(1, *system, topic("orders", 3), topic("%RETRY%g", 1)))
    added = {name: one.read_queues for name, one in broker.topics.by_name.items() if name not in before}
    assert added == {b"orders": 3, b"%RETRY%g": 1}
    assert {name: broker.topics.by_name[name].read_queues for name in before} == before
    taking.take("topics", topics(1, *system, topic("not looked at")))
    assert b"orders" in broker.topics.by_name
    taking.take("topics", topics(2, *system, topic("orders", 5, perm=4)))
    assert (broker.topics.by_name[b"orders"].read_queues, broker.topics.by_name[b"orders"].perm) == (5, 4)
    assert b"%RETRY%g" not in broker.topics.by_name


def test_groups_and_offsets_are_the_masters(broker: Core) -> None:
    taking = TakingRocketmq(broker)
    group = {"groupName": "g", "consumeEnable": False, "retryMaxTimes": 3, "retryQueueNums": 1, "brokerId": 0}
    version = b'{"counter":1,"timestamp":2}'
    taking.take("groups", b'{"dataVersion":%s,"subscriptionGroupTable":{"g":%s}}' % (version, fastjson.dumps(group)))
    assert broker.groups.by_name["g"].retry_max == 3
    assert broker.groups.by_name["g"].consume_enable is False
    taking.take("offsets", b'{"offsetTable":{"T@g":{0:12,1:7},"U@g":{0:1}}}')  # keys as Java writes them
    assert broker.offsets.table[("T", "g")] == {0: 12, 1: 7}
    taking.take("offsets", b'{"offsetTable":{"T@g":{0:13,1:7}}}')
    assert broker.offsets.table == {("T", "g"): {0: 13, 1: 7}}
    taking.take("offsets", b'{"offsetTable":{}}')
    assert broker.offsets.table == {}


@pytest.mark.parametrize(
    ("what", "body"),
    [("topics", b"{}"), ("topics", b"[]"), ("topics", b'{"topicConfigTable":{}}'), ("topics", b'{"topicConfigTable":7}'),
     ("topics", topics(1, topic("x", readQueueNums="many"))), ("offsets", b"{}"), ("offsets", b'{"offsetTable":{"T@g":{0:"x"}}}'),
     ("delays", b"{}"), ("delays", b'{"offsetTable":{"x":1}}'), ("delays", b"\0"), ("groups", b"nonsense")],
)  # fmt: skip
def test_answers_that_make_no_sense_change_nothing(broker: Core, what: str, body: bytes) -> None:
    """A master that was emptied, say, does not empty its slave."""
    taking = TakingRocketmq(broker)
    taking.take("topics", topics(0, topic("orders", 3)))
    taking.take("offsets", b'{"offsetTable":{"orders@g":{0:12}}}')
    with pytest.raises(WireError):
        taking.take(what, body)
    assert broker.topics.by_name[b"orders"].read_queues == 3
    assert broker.offsets.table == {("orders", "g"): {0: 12}}


class Bridge:
    """Copies the log of a broker of ours to a slave, as RocketMQ's masters do."""

    def __init__(self, master: Broker) -> None:
        self._master = master
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._over = False
        self._pause = threading.Event()
        self.copies = threading.Event()  # cleared: it holds what it would send
        self.copies.set()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self._threads.append(threading.Thread(target=self._serve, args=(connection,), daemon=True))
                self._threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            told = connection.recv(8)
            at = struct.unpack(">q", told)[0]
            if at < 0:
                connection.sendall(told + bytes(4))
                connection.recv(1)
                return
            while not self._over:
                self.copies.wait()
                piece = self._master.call(partial(self._piece, at=at))
                connection.sendall(struct.pack(">qi", at, len(piece)) + piece)
                at += len(piece)
                if not piece:
                    self._pause.wait(0.05)

    @staticmethod
    def _piece(server: Server, at: int) -> bytes:
        store = server.broker.store
        size = min(store.end_position - at, store.log.file.size - at % store.log.file.size)
        return bytes(store.log.bytes_at(at, size)) if size else b""

    def close(self) -> None:
        self._over = True
        self.copies.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(30)


def test_a_slave_asks_the_master_that_the_registry_names(tmp_path: Path) -> None:
    """The whole way: the registry's answer, the requests, and what is delivered there is no more waited for here."""
    with Broker(tmp_path / "a", ha_port=0, message_delay_level="1s 1s", **SMALL) as master:
        bridge = Bridge(master)
        with penstock.Producer(master.registry) as producer:
            for number in range(20):
                producer.send(penstock.Message("T", b"%d" % number, delay_level=number % 2))
        settings = {"ha_rocketmq": "127.0.0.1", "ha_master": bridge.address, "registry": master.registry}
        with Broker(tmp_path / "b", role="slave", **settings, **ALONE, **SMALL) as slave:
            eventually(lambda: slave.call(lambda server: b"T" in server.broker.topics.by_name))
            eventually(lambda: slave.call(lambda server: server.broker.store.end_position) > 0)
            eventually(lambda: master.call(lambda server: len(server.broker.schedule)) == 0)
            eventually(lambda: slave.call(lambda server: len(server.broker.schedule)) == 0)
        bridge.close()


def test_every_request_is_known() -> None:
    assert sorted(REQUESTS) == ["delays", "end", "groups", "offsets", "topics"]
    assert DELIVERED_MAX > 100


def test_offsets_and_delays_wait_for_the_log_that_they_are_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slave that had them before the records would, once it is the master, never deliver those again."""
    monkeypatch.setattr("penstock.registration.mastertables.MORE_S", 0.01)
    monkeypatch.setattr("penstock.registration.mastertables.PERIOD_S", 0.05)
    with Broker(tmp_path / "a", ha_port=0, message_delay_level="1s 1s", **SMALL) as master:
        bridge = Bridge(master)
        with penstock.Producer(master.registry) as producer:
            producer.send(penstock.Message("T", b"0"))
            settings = {"ha_rocketmq": "127.0.0.1", "ha_master": bridge.address, "registry": master.registry}
            with Broker(tmp_path / "b", role="slave", **settings, **ALONE, **SMALL) as slave:

                def taken() -> tuple[dict[int, int], bool, int]:
                    return slave.call(
                        lambda server: (
                            server.broker.offsets.table.get(("T", "g"), {}),
                            b"U" in server.broker.topics.by_name,
                            len(server.broker.schedule),
                        )
                    )

                master.call(lambda server: server.broker.offsets.commit("g", "T", 0, 1))
                eventually(lambda: taken() == ({0: 1}, False, 0))
                producer.send(penstock.Message("T", b"late", delay_level=1))
                eventually(lambda: taken()[2] == 1)
                bridge.copies.clear()
                for number in range(8):
                    producer.send(penstock.Message("U", b"%d" % number))
                master.call(lambda server: server.broker.offsets.commit("g", "T", 0, 2))
                eventually(lambda: master.call(lambda server: len(server.broker.schedule)) == 0)
                eventually(lambda: taken()[1])  # topics are taken at once
                producer.send(penstock.Message("V", b"0"))
                eventually(lambda: slave.call(lambda server: b"V" in server.broker.topics.by_name))
                # It has asked again, so the offsets of its first question are held.
                assert taken() == ({0: 1}, True, 1)
                bridge.copies.set()
                eventually(lambda: taken() == ({0: 2}, True, 0))
        bridge.close()


def test_a_master_that_does_not_say_where_its_log_ends() -> None:
    assert log_end(b'{"table":{"commitLogMaxOffset":"12","other":"1"}}') == 12
    for body in (
        b"{}",
        b'{"table":{}}',
        b'{"table":[]}',
        b'{"table":{"commitLogMaxOffset":"?"}}',
        b"",
        b"[]",
        b'{"table":{"commitLogMaxOffset":[]}}',
    ):
        with pytest.raises(WireError):
            log_end(body)


async def test_a_master_whose_address_makes_no_sense_is_asked_again(
    broker: Core, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("penstock.registration.mastertables.MORE_S", 0.001)
    registration = Registration(broker, "127.0.0.1:1")
    registration.master_address = "nowhere"
    async with Server(None, RegistryConfig(data=str(tmp_path / "registry"), registry_port=0, **NO_LOOKUP)) as server:
        asking = asyncio.create_task(MasterTables(server.net, registration).run())
        await until(lambda: "not taken master=nowhere" in caplog.text)
        registration.master_address = server.addresses["registry"]  # which answers, and is no broker
        await until(lambda: "refused with code" in caplog.text)
        assert not asking.done()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
