"""A registry, a master and a slave as processes: what is answered, what is copied, what outlives kill -9."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import penstock
from ha_parts import SMALL, Process, eventually, log_bytes
from penstock.app import Server
from penstock.client.reader import LogReader
from penstock.client.results import SendStatus
from penstock.disk.files import Files
from penstock.errors import BrokerRefused, ClientError
from penstock.fronts.ha import HaFront
from penstock.log.epochs import EpochFile
from penstock.registration import replication
from penstock.registration.replication import node_of
from penstock.testing import Broker
from ports import free_port

pytestmark = pytest.mark.chaos  # once is enough: processes, not modules


class Set:
    """The three of them."""

    def __init__(self, folder: Path, **settings: object) -> None:
        self.folder = folder
        self.port = free_port()
        self.registry = Process(
            "registry", folder / "r", folder / "r.log", registry_port=0, lookup_port=-1, lookup_http_port=-1
        ).start()
        self.name_server = self.registry.addresses["registry"]
        shared = {"registry": self.name_server, "nsq_port": -1, **SMALL, **settings}
        self.master = Process(
            "broker",
            folder / "a",
            folder / "a.log",
            remoting_port=self.port,
            http_port=0,
            ha_port=0,
            node="a",
            **shared,
        )
        self.slave = Process(
            "broker", folder / "b", folder / "b.log", remoting_port=0, http_port=0, role="slave", node="b", **shared
        )

    def start(self) -> Set:
        self.master.start()
        self.slave.start()
        self.wait_in_sync()
        return self

    def wait_in_sync(self, times: int = 1) -> None:
        """The slave is in the set, so many times since the master's log begins."""
        eventually(lambda: self.master.says("slave in sync node=b") >= times, say=self.master._log.read_text())

    def stop(self) -> None:
        for process in (self.slave, self.master, self.registry):
            process.stop()

    def ends(self) -> tuple[int, int]:
        """How many bytes of the log are the same on both, and how many the master has."""
        one, other = (log_bytes(self.folder / name, 1 << 40).rstrip(b"\0") for name in "ab")
        return len(other), len(one)


@pytest.fixture
def trio(tmp_path: Path) -> Iterator[Set]:
    made = Set(tmp_path, level="pair", register_broker_period_ms=500)
    try:
        yield made
    finally:
        made.stop()


def same_logs(trio: Set) -> None:
    one, other = (log_bytes(trio.folder / name, 1 << 40).rstrip(b"\0") for name in "ab")
    assert len(one) > 0
    assert one == other


def send(producer: penstock.Producer, count: int, size: int = 200) -> list[SendStatus]:
    return [producer.send(penstock.Message("orders", b"%d" % n + b"x" * size)).status for n in range(count)]


def test_sends_at_pair_over_kills_of_slave_and_master(trio: Set) -> None:
    trio.start()
    with penstock.Producer(trio.name_server) as producer:
        assert set(send(producer, 200)) == {SendStatus.SEND_OK}
        trio.slave.kill()
        lonely = set(send(producer, 20))
        assert lonely <= {SendStatus.SLAVE_NOT_AVAILABLE, SendStatus.FLUSH_SLAVE_TIMEOUT}
        assert SendStatus.SLAVE_NOT_AVAILABLE in lonely
        trio.slave.start()
        trio.wait_in_sync(2)
        assert set(send(producer, 6_000, 300)) == {SendStatus.SEND_OK}  # over a segment's end
    confirmed = len(log_bytes(trio.folder / "a", 1 << 40).rstrip(b"\0"))
    trio.master.kill()
    copied = log_bytes(trio.folder / "b", confirmed)
    assert confirmed > 1 << 20
    assert copied == log_bytes(trio.folder / "a", confirmed)
    with LogReader(trio.name_server) as reader:  # the slave answers
        queues = reader.queues("orders")
        eventually(lambda: sum(reader.offsets(queue)[1] for queue in queues) == 6_220)
    trio.master.start()
    trio.wait_in_sync(3)
    with penstock.Producer(trio.name_server) as producer:
        eventually(lambda: set(send(producer, 1)) == {SendStatus.SEND_OK})
    trio.slave.stop()
    trio.master.stop()
    same_logs(trio)
    for name in "ab":
        done = subprocess.run(
            [sys.executable, "-m", "penstock.cli", "store", "verify", str(trio.folder / name)], capture_output=True
        )
        assert done.returncode == 0, done.stdout


def test_a_slave_that_comes_late_gets_everything_and_goes_on_where_it_was(trio: Set) -> None:
    trio.master.start()
    with penstock.Producer(trio.name_server) as producer:
        assert set(send(producer, 8_000, 300)) == {SendStatus.SLAVE_NOT_AVAILABLE}
        trio.slave.start()
        trio.wait_in_sync()
        assert set(send(producer, 10)) == {SendStatus.SEND_OK}
        for round_ in range(3):  # killed while it catches up
            trio.slave.kill()
            send(producer, 3_000, 300)
            trio.slave.start()
            if round_ == 2:
                trio.wait_in_sync(2)
    eventually(lambda: trio.ends()[0] == trio.ends()[1])
    trio.slave.stop()
    trio.master.stop()
    same_logs(trio)


def consume(trio: Set, group: str, count: int) -> set[bytes]:
    """So many different messages of a group that begins at the first."""
    seen: set[bytes] = set()
    with penstock.PushConsumer(group, trio.name_server, start="first") as consumer:
        consumer.subscribe("orders")
        for delivery in consumer:
            seen.add(delivery.message.body)
            if len(seen) == count:
                return seen
    return seen


def test_consumers_go_on_at_the_slave_with_offsets_and_groups_of_the_master(trio: Set) -> None:
    trio.start()
    with penstock.Producer(trio.name_server) as producer:
        send(producer, 40)
    read = consume(trio, "readers", 40)
    config = trio.folder / "b" / "config"
    offsets = config / "consumerOffset.json"
    eventually(lambda: offsets.is_file() and b"orders@readers" in offsets.read_bytes())
    trio.master.kill()
    assert consume(trio, "others", 40) == read  # from the slave
    trio.slave.stop()
    assert b"orders" in (config / "topics.json").read_bytes()
    assert b"readers" in (config / "subscriptionGroup.json").read_bytes()


def change_places(trio: Set) -> tuple[Process, Process]:
    """The slave started as master, and the old master, which is stopped, as its slave."""
    trio.slave.stop()
    shared = {"registry": trio.name_server, "nsq_port": -1, "http_port": -1, "level": "pair", "node": "b", **SMALL}
    new = Process("broker", trio.slave.folder, trio.folder / "new.log", remoting_port=0, ha_port=0, **shared).start()
    shared |= {"node": "a", "role": "slave", "broker_id": 1}
    return new, Process("broker", trio.master.folder, trio.folder / "old.log", remoting_port=0, **shared).start()


def cut_short(trio: Set) -> None:
    """100 messages are acknowledged; a power cut takes the last 50 of them from the master."""
    master, before = trio.master.folder, trio.folder / "before"
    with penstock.Producer(trio.name_server) as producer:
        assert set(send(producer, 50)) == {SendStatus.SEND_OK}
        shutil.copytree(master, before, ignore=shutil.ignore_patterns("lock", "live*"))
        assert set(send(producer, 50)) == {SendStatus.SEND_OK}
    trio.master.kill()
    shutil.rmtree(master)
    shutil.copytree(before, master)


def test_a_master_that_may_have_lost_what_its_slave_has_does_not_go_on_by_itself(trio: Set) -> None:
    trio.start()
    cut_short(trio)
    for _ in range(2):  # the second start finds the same
        said = subprocess.run(trio.master.words, capture_output=True, text=True, timeout=60)
        assert said.returncode == 1
        assert "ha_accept_loss" in said.stderr
        assert "Traceback" not in said.stderr
    new, old = change_places(trio)
    try:
        eventually(lambda: new.says("slave in sync node=a"))
        with LogReader(trio.name_server) as reader:
            queues = reader.queues("orders")
            eventually(lambda: sum(reader.offsets(queue)[1] for queue in queues) == 100)  # what is durable
    finally:
        old.stop()
        new.stop()
    same_logs(trio)


def test_a_loss_that_is_accepted_is_where_a_new_epoch_begins(trio: Set) -> None:
    trio.start()
    cut_short(trio)
    trio.master.words += ["--set", "ha_accept_loss=true"]
    trio.master.start()
    eventually(lambda: trio.slave.says("nothing is cut"))  # its log is longer, and confirmed
    with penstock.Producer(trio.name_server) as producer:
        assert set(send(producer, 5)) == {SendStatus.SLAVE_NOT_AVAILABLE}
    epochs = EpochFile(Files(), trio.master.folder / "ha" / "epochs").load() or ()
    assert [epoch.number for epoch in epochs] == [1, 2]


def test_the_slave_started_as_master_goes_on_and_the_old_master_follows_it(trio: Set) -> None:
    trio.start()
    with penstock.Producer(trio.name_server) as producer:
        assert set(send(producer, 100)) == {SendStatus.SEND_OK}
    trio.master.kill()
    new, old = change_places(trio)
    try:
        eventually(lambda: new.says("slave in sync node=a"))
        with penstock.Producer(trio.name_server) as producer:
            eventually(lambda: set(send(producer, 1)) == {SendStatus.SEND_OK})
            assert set(send(producer, 50)) == {SendStatus.SEND_OK}
        with LogReader(trio.name_server) as reader:
            queues = reader.queues("orders")
            eventually(lambda: sum(reader.offsets(queue)[1] for queue in queues) >= 151)  # what is durable
    finally:
        old.stop()
        new.stop()
    same_logs(trio)


def test_a_slave_refuses_to_store(trio: Set) -> None:
    trio.start()
    with penstock.Producer(trio.name_server) as producer:
        send(producer, 1)
    host, _, port = trio.slave.addresses["remoting"].rpartition(":")
    from penstock.client.line import Line
    from penstock.wire.codes import RequestCode
    from penstock.wire.remoting import RemotingCommand

    line = Line((host, int(port)), 30)
    fields = {
        "a": "p", "b": "orders", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1700000000000", "h": "0", "i": "",
        "j": "0", "k": "false",
    }  # fmt: skip
    answer = line.call(RemotingCommand(RequestCode.SEND_MESSAGE_V2, fields, b"x"), 30)
    assert answer.code == 14
    assert "slave" in (answer.remark or "")
    answer = line.call(RemotingCommand(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "orders"}), 30)
    line.close()
    assert answer.code == 1
    assert "slave; its master is 127.0.0.1" in (answer.remark or "")


def test_min_in_sync_refuses_before_anything_is_stored(tmp_path: Path) -> None:
    trio = Set(tmp_path, level="pair", min_in_sync=2)
    try:
        trio.master.start()
        with penstock.Producer(trio.name_server, retries=0, send_timeout_s=1) as producer:

            def refused() -> bool:
                with pytest.raises(ClientError) as told:  # there may be no route yet
                    send(producer, 1)
                return isinstance(told.value, BrokerRefused) and "min_in_sync" in str(told.value)

            eventually(refused)
        trio.slave.start()
        trio.wait_in_sync()
        with penstock.Producer(trio.name_server, retries=0) as producer:
            assert set(send(producer, 5)) == {SendStatus.SEND_OK}
    finally:
        trio.stop()
    assert log_bytes(tmp_path / "a", 1 << 40).count(b"orders") == 5


@pytest.mark.parametrize("level", ["pair-disk", "os", "disk"])
def test_the_other_levels(tmp_path: Path, level: str) -> None:
    trio = Set(tmp_path, level=level)
    try:
        trio.start()
        with penstock.Producer(trio.name_server) as producer:
            assert set(send(producer, 100)) == {SendStatus.SEND_OK}
            trio.slave.kill()
            alone = SendStatus.SLAVE_NOT_AVAILABLE if level == "pair-disk" else SendStatus.SEND_OK
            eventually(lambda: set(send(producer, 1)) == {alone})
    finally:
        trio.stop()


def test_a_slave_that_was_a_master_of_its_own_is_refused(tmp_path: Path) -> None:
    other = Set(tmp_path / "one", level="os") if (tmp_path / "one").mkdir() is None else None
    assert other is not None
    try:
        alone = Process("broker", other.slave.folder, tmp_path / "x.log", remoting_port=0, http_port=-1, nsq_port=-1,
                        ha_port=0, node="b", registry=other.name_server, broker_name="x", **SMALL).start()  # fmt: skip
        with penstock.Producer(other.name_server) as producer:
            send(producer, 3)
        alone.stop()
        other.master.start()
        other.slave.start()
        eventually(lambda: other.slave.says("another replica set"))
        assert other.slave.says("nothing of it is cut") == 0
        assert log_bytes(other.slave.folder, 1 << 40).count(b"orders") == 3
    finally:
        other.stop()


def test_a_slave_that_is_refused_says_so_once(tmp_path: Path) -> None:
    """It asks again each second."""
    made = Set(tmp_path)
    try:
        alone = Process("broker", made.slave.folder, tmp_path / "x.log", remoting_port=0, http_port=-1, nsq_port=-1,
                        ha_port=0, node="b", registry=made.name_server, broker_name="x", **SMALL).start()  # fmt: skip
        alone.stop()
        made.master.start()
        made.slave.start()
        eventually(lambda: made.master.says("client connected protocol=ha") >= 4, 60, "it does not ask again")
        assert made.slave.says("the master refuses this slave") == 1
    finally:
        made.stop()


def test_the_name_of_a_node() -> None:
    from penstock.config import BrokerConfig

    assert node_of(BrokerConfig(node="left")) == "left"
    assert node_of(BrokerConfig(remoting_port=4711)).endswith("-4711")


def test_a_slave_soon_tries_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A master that gives its place away starts anew and finds its heir starting, too: it followed a second later, and until
    then nobody had a second copy.
    """
    monkeypatch.setattr(replication, "RECONNECT_S", 600.0)
    port = free_port()
    with Broker(tmp_path / "b", role="slave", node="b", ha_port=0, ha_master=f"127.0.0.1:{port}"):
        eventually(lambda: any("master not reached" in message for message in caplog.messages))
        with Broker(tmp_path / "a", node="a", ha_port=port) as master:
            eventually(lambda: master.call(_in_sync) == 2)


def test_a_node_that_says_nothing_is_asked_by_one_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its disk hangs, say: a master without slaves asks it again and again, and left each connection to its silence."""
    monkeypatch.setattr(replication, "RECONNECT_S", 0.02)
    monkeypatch.setattr(replication, "ASK_S", 0.1)
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        Broker(tmp_path / "a", node="a", ha_port=0) as master,
        ExitStack() as stack,
    ):
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        master.call(lambda server: _front(server).replica.note_peers({"b": address}))
        for _ in range(5):
            stack.enter_context(silent.accept()[0])
        assert master.call(lambda server: len(_front(server).sessions)) <= 1


def _front(server: Server) -> HaFront:
    return next(front for front in server._process.fronts if isinstance(front, HaFront))


def _in_sync(server: Server) -> int:
    assert server.broker is not None
    return server.broker.copies.in_sync
