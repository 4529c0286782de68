"""Changing who is the master, with a registry and brokers as processes: by switch, by promotion, by a return; kill -9."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from client.test_staging import contents, stage
from fronts.raw_peer import RawPeer
from ha_parts import SMALL, Process, eventually, log_bytes, record_in
from penstock.client.reader import LogReader
from penstock.client.results import SendStatus
from penstock.client.staging import SinkRun, StageClient
from penstock.disk.files import Files
from penstock.errors import PenstockError
from penstock.log import cutting
from penstock.log.cutting import cut_tails
from penstock.log.epochs import EpochFile
from penstock.wire.codes import RequestCode
from penstock.wire.record import iter_records
from penstock.wire.remoting import RemotingCommand, encode
from ports import free_port
from silence import silent

pytestmark = pytest.mark.chaos  # once is enough: processes, not modules


class Pair:
    """A registry and two nodes, a and b; a is the master at first."""

    def __init__(self, folder: Path, **settings: object) -> None:
        self.folder = folder
        self.registry = Process(
            "registry", folder / "r", folder / "r.log", registry_port=0, lookup_port=-1, lookup_http_port=-1
        ).start()
        self.name_server = self.registry.addresses["registry"]
        shared = {"registry": self.name_server, "nsq_port": -1, "http_port": -1, "remoting_port": 0,
                  "level": "pair", "register_broker_period_ms": 500, **SMALL, **settings}  # fmt: skip
        self.a = Process("broker", folder / "a", folder / "a.log", node="a", ha_port=free_port(), **shared)
        self.b = Process(
            "broker", folder / "b", folder / "b.log", node="b", role="slave", ha_port=free_port(), **shared
        )

    def start(self) -> Pair:
        self.a.start()
        self.b.start()
        self.in_sync("a", "b")
        return self

    def stop(self) -> None:
        for process in (self.b, self.a, self.registry):
            process.stop()

    def ha(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.ha_plain(words[0], "-n", self.name_server, *words[1:])

    @staticmethod
    def ha_plain(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "penstock.cli", "ha", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=120)

    def rows(self) -> dict[str, dict[str, object]]:
        """What each node says of itself, and masters of their slaves, by node."""
        found: dict[str, dict[str, object]] = {}
        with penstock.Admin(self.name_server) as admin:
            for members in admin.cluster_info().brokers.values():
                for address in members.values():
                    try:
                        told = json.loads(admin.runtime_info(address).get("replicaSet", "[]"))
                    except PenstockError:
                        continue
                    for row in told:
                        if row["in_sync"] or row["node"] not in found:
                            found[row["node"]] = row
        return found

    def in_sync(self, master: str, slave: str) -> None:
        def done() -> bool:
            rows = self.rows()
            one, other = rows.get(master, {}), rows.get(slave, {})
            return one.get("role") == "master" and other.get("role") == "slave" and other.get("in_sync") == "yes"

        eventually(done, 60, str(self.rows()))

    def bodies(self) -> list[bytes]:
        """All bodies of the topic, as readers of the master find them."""
        with LogReader(self.name_server) as reader:
            found = []
            for queue in reader.queues("orders"):
                first, last = reader.offsets(queue)
                while first < last:
                    fetched = reader.fetch(queue, first)
                    found += [record.body for record in iter_records(fetched.records)]
                    first = max(first + 1, fetched.next_offset)
            return found


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    try:
        yield made.start()
    finally:
        made.stop()


def send(pair: Pair, names: range) -> dict[bytes, SendStatus]:
    with penstock.Producer(pair.name_server) as producer:
        return {b"%d" % n: producer.send(penstock.Message("orders", b"%d" % n)).status for n in names}


def send_at_once(pair: Pair, names: range) -> dict[bytes, SendStatus]:
    """The same, and their answers are waited for together."""
    with penstock.Producer(pair.name_server) as producer:
        sends = {b"%d" % n: producer.send_nowait(penstock.Message("orders", b"%d" % n)) for n in names}
        return {body: sending.result(60).status for body, sending in sends.items()}


def same_logs(pair: Pair) -> None:
    one, other = (log_bytes(pair.folder / name, 1 << 40).rstrip(b"\0") for name in "ab")
    assert len(one) > 0
    assert one == other


def test_master_and_slave_change_places_and_back(pair: Pair) -> None:
    assert set(send(pair, range(50)).values()) == {SendStatus.SEND_OK}
    for n, (old, new) in enumerate((("a", "b"), ("b", "a"), ("a", "b"))):
        done = pair.ha("switch", "--to", new)
        assert done.returncode == 0, done.stderr
        assert f"{new} is the master of broker-a, epoch {n + 2}" in done.stdout
        pair.in_sync(new, old)
        assert set(send(pair, range(100 * n + 50, 100 * n + 90)).values()) == {SendStatus.SEND_OK}
    pair.a.stop()
    pair.b.stop()
    same_logs(pair)
    assert not list((pair.folder / "a").glob("lost+found/log-*"))
    pair.b.start()  # the role outlives the process, whatever the settings say
    pair.a.start()
    pair.in_sync("b", "a")


def test_settings_that_were_taken_anew_outlive_a_change_of_role(tmp_path: Path) -> None:
    """Else the node would go on with those of its start: delete what was to be kept longer, say."""
    pair = Pair(tmp_path)
    file = tmp_path / "p.toml"
    file.write_text("[broker]\nfile_reserved_time_hours = 5\n")
    for node in (pair.a, pair.b):
        node.words += ["--config", str(file)]
    try:
        pair.start()
        file.write_text("[broker]\nfile_reserved_time_hours = 500\nchannel_window = 5\n")
        with penstock.Admin(pair.name_server) as admin:
            told = {(row["setting"], row["to"], row["effect"]) for row in admin.reload_config()}
            assert told == {("broker.file_reserved_time_hours", 500, "now"), ("broker.channel_window", 5, "restart")}
            assert pair.ha("switch", "--to", "b").returncode == 0
            pair.in_sync("b", "a")
            (members,) = admin.cluster_info().brokers.values()
            for address in members.values():
                peer = RawPeer(address)
                peer.write(encode(RemotingCommand(RequestCode.GET_BROKER_CONFIG)))
                assert b"fileReservedTime=500\n" in peer.read().body
                peer.close()
            assert admin.reload_config() == []  # told once
    finally:
        pair.stop()


def test_a_slave_that_is_started_as_the_master_ends_no_publish_of_another_one(tmp_path: Path) -> None:
    """It had come by half. In the epoch of its former master its rest would be other bytes than that one has: it is cut off."""
    pair = Pair(tmp_path).start()
    try:
        with penstock.Admin(pair.name_server) as admin:
            admin.create_topic("T", 1, level="pair")
        run, rows = SinkRun("S", "q", "run"), [b"%06d" % n for n in range(100)]
        with StageClient(pair.name_server) as client:
            client.publish(run, 0, [stage(client, run, 0, rows)])
        end = int(str(pair.rows()["a"]["written"]))
        eventually(lambda: int(str(pair.rows()["b"]["written"])) == end)
        for node in (pair.a, pair.b):
            node.kill()
            (node.folder / "ha" / "confirmed").unlink(missing_ok=True)
        half = record_in(log_bytes(pair.b.folder, end), b"000050")
        cutting.intend(Files(), pair.b.folder, half, end, 1, "half of it had come")
        pair.b.words[pair.b.words.index("role=slave")] = "role=master"
        pair.b.start()
        assert pair.b.says("a publish came without its end") == 1
        pair.a.start()
        pair.in_sync("b", "a")
        assert contents(pair.name_server) == []
        with StageClient(pair.name_server) as client:
            client.publish(run, 0, [stage(client, run, 0, rows)])
        eventually(lambda: contents(pair.name_server) == rows)
        pair.a.stop()
        pair.b.stop()
        same_logs(pair)
    finally:
        pair.stop()


def diverge(tmp_path: Path, **settings: object) -> tuple[Pair, set[bytes]]:
    """A pair whose master was killed with 5 messages that its slave, which was in sync until then, never got; and what was
    acknowledged.
    """
    pair = Pair(tmp_path, ha_in_sync_ms=60_000, **settings)
    try:
        pair.start()
        acknowledged = {body for body, status in send(pair, range(100)).items() if status == SendStatus.SEND_OK}
        assert acknowledged
        assert pair.b.process is not None
        os.kill(pair.b.process.pid, signal.SIGSTOP)
        late = send_at_once(pair, range(1_000, 1_005))
        assert set(late.values()) == {SendStatus.FLUSH_SLAVE_TIMEOUT}
        pair.a.kill()
        os.kill(pair.b.process.pid, signal.SIGCONT)
        # what the kernel had of them was not read by the slave before its connection ended, or was: both may be
    except BaseException:
        if pair.b.process is not None:
            os.kill(pair.b.process.pid, signal.SIGCONT)
        pair.stop()
        raise
    return pair, acknowledged


def test_a_promoted_slave_goes_on_and_the_old_master_cuts_what_was_never_confirmed(tmp_path: Path) -> None:
    pair, acknowledged = diverge(tmp_path)
    try:
        assert "b would be the master of broker-a" in pair.ha("promote", "--node", "b", "--dry-run").stdout
        done = pair.ha("promote", "--node", "b")
        assert done.returncode == 0, done.stderr
        assert "b is the master of broker-a, epoch 2" in done.stdout
        fresh = send(pair, range(2_000, 2_050))
        assert set(fresh.values()) == {SendStatus.SLAVE_NOT_AVAILABLE}
        pair.a.start()  # with role=master, as ever
        pair.in_sync("b", "a")
        confirmed = send(pair, range(3_000, 3_010))
        assert set(confirmed.values()) == {SendStatus.SEND_OK}
        wanted = acknowledged | set(fresh) | set(confirmed)
        eventually(lambda: wanted <= set(pair.bodies()))
        seen = pair.bodies()
        assert len(seen) == len(set(seen))
    finally:
        pair.stop()
    same_logs(pair)
    for name in "ab":
        verify(pair, name)


def verify(pair: Pair, name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "penstock.cli", "store", "verify", str(pair.folder / name)], capture_output=True
    )
    assert done.returncode == 0, done.stdout


def test_a_tail_of_the_old_master_is_kept_in_lost_and_found(tmp_path: Path) -> None:
    pair, acknowledged = diverge(tmp_path)
    try:
        assert pair.b.process is not None
        pair.b.kill()  # with what came at the last moment, if any
        pair.b.start()
        assert pair.ha("promote", "--node", "b").returncode == 0
        ends = [int(row["written"]) for row in pair.rows().values() if row["node"] == "b"]
        kept = log_bytes(pair.folder / "a", 1 << 40).rstrip(b"\0")[ends[0] :]
        pair.a.start()
        pair.in_sync("b", "a")
        eventually(lambda: acknowledged <= set(pair.bodies()))
    finally:
        pair.stop()
    tails = list(cut_tails(pair.folder / "a"))
    assert len(tails) == (1 if kept else 0)
    for folder, manifest in tails:
        found = b"".join((folder / str(piece["file"])).read_bytes() for piece in manifest["pieces"])
        assert found == kept
        assert manifest["position"] == ends[0]
    same_logs(pair)


def test_a_master_that_was_alone_cuts_nothing_and_rejoins_when_told(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    try:
        pair.start()
        send(pair, range(20))
        pair.b.stop()
        eventually(lambda: set(send(pair, range(100, 110)).values()) == {SendStatus.SLAVE_NOT_AVAILABLE})
        pair.a.kill()
        pair.b.start()
        assert "BrokerRefused" not in pair.ha("status").stdout
        done = pair.ha("promote", "--node", "b")  # it was in sync when it heard of a last
        assert done.returncode == 0, done.stderr
        assert set(send(pair, range(200, 205)).values()) == {SendStatus.SLAVE_NOT_AVAILABLE}
        before = log_bytes(pair.folder / "a", 1 << 40)
        pair.a.start()
        eventually(lambda: pair.a.says("nothing is cut"))
        with penstock.Producer(pair.name_server) as producer:  # there is one master
            assert producer.send(penstock.Message("orders", b"x")).status == SendStatus.SLAVE_NOT_AVAILABLE
        pair.a.stop()
        assert log_bytes(pair.folder / "a", 1 << 40) == before
        done = pair.ha_plain("rejoin", str(pair.folder / "a"), "--discard", "--force")
        assert done.returncode == 0, done.stderr
        pair.a.start()
        pair.in_sync("b", "a")
    finally:
        pair.stop()
    same_logs(pair)
    [whole] = (pair.folder / "a" / "lost+found").glob("store-*")
    assert log_bytes(whole, 1 << 40) == before


def test_what_is_refused(pair: Pair) -> None:
    send(pair, range(3))
    alive = pair.ha("promote", "--node", "b")
    assert alive.returncode != 0
    assert "is alive" in alive.stderr
    assert "is the master already" in pair.ha("promote", "--node", "a").stderr
    for node, why in (("b", "master a answers"), ("a", "is the master already")):  # it says what the other one would
        tried = pair.ha("promote", "--node", node, "--dry-run")
        assert (tried.returncode, tried.stdout) == (1, "")
        assert why in tried.stderr
    assert "nodes are called c" in pair.ha("promote", "--node", "c").stderr
    assert "no master with the slave c" in pair.ha("switch", "--to", "c").stderr
    pair.b.kill()
    eventually(lambda: "no slave is in sync" in pair.ha("switch").stderr)
    replica = pair.folder / "b" / "ha" / "replica.json"
    table = json.loads(replica.read_bytes())
    table.pop("sum")
    replica.write_bytes(json.dumps({**table, "inSync": False}).encode())
    pair.a.kill()
    pair.b.start()
    refused = pair.ha("promote", "--node", "b")
    assert refused.returncode != 0
    assert "may lack messages" in refused.stderr
    assert pair.ha("promote", "--node", "b", "--accept-loss").returncode == 0


def test_a_slave_does_not_wait_for_the_machine_of_its_old_master(tmp_path: Path) -> None:
    """That is off: nobody refuses the connection. Another slave is promoted meanwhile, and is followed."""
    made = Pair(tmp_path)
    words = [*made.b.words]
    c = Process("broker", tmp_path / "c", tmp_path / "c.log")
    c.words = [word.replace(str(tmp_path / "b"), str(tmp_path / "c")).replace("node=b", "node=c") for word in words]
    (port,) = [word for word in words if word.startswith("ha_port=")]
    c.words[c.words.index(port)] = f"ha_port={free_port()}"
    try:
        made.start()
        c.start()
        made.in_sync("a", "b")
        made.in_sync("a", "c")
        (own,) = [word for word in made.a.words if word.startswith("ha_port=")]
        made.a.kill()
        with silent(int(own.removeprefix("ha_port="))):
            eventually(lambda: c.says("no answer in time") >= 1)
            eventually(lambda: made.ha("promote", "--node", "b", "--accept-loss").returncode == 0)
            made.in_sync("b", "c")
    finally:
        c.stop()
        made.stop()


def test_a_delayed_message_is_cancelled_when_the_slave_knows(tmp_path: Path) -> None:
    """At level `pair`, as it was stored; a master that dies behind the answer must not bring it back."""
    made = Pair(tmp_path, ha_in_sync_ms=60_000)
    try:
        made.start()
        with penstock.Producer(made.name_server) as producer:
            due_ms = time.time_ns() // 1_000_000 + 3_600_000
            for n in range(3):
                producer.send(penstock.Message("orders", b"%d" % n, deliver_at_ms=due_ms))
        with penstock.Admin(made.name_server) as admin:
            eventually(lambda: len(admin.delayed()) == 3)
            first, second, third = (row["id"] for row in admin.delayed())
            assert admin.cancel_delayed(first)["status"] == "SEND_OK"
            assert made.b.process is not None
            os.kill(made.b.process.pid, signal.SIGSTOP)
            try:
                assert admin.cancel_delayed(second)["status"] == "FLUSH_SLAVE_TIMEOUT"
                moved = admin.fire_delayed(third, at_ms=due_ms + 1)
                assert moved["status"] == "FLUSH_SLAVE_TIMEOUT"
            finally:
                os.kill(made.b.process.pid, signal.SIGCONT)
            made.b.stop()
            eventually(lambda: made.rows()["a"]["written"] and "b" not in made.rows())
            assert admin.cancel_delayed(moved["id"])["status"] == "SLAVE_NOT_AVAILABLE"
    finally:
        made.stop()


def test_a_promoted_slave_takes_messages_only_once_its_epoch_has_begun(tmp_path: Path) -> None:
    """It asks first whether somebody else is the master by now, and the machine it asks is off; its port is open meanwhile."""
    made = Pair(tmp_path)
    try:
        made.start()
        send(made, range(5))
        (own,) = [word for word in made.a.words if word.startswith("ha_port=")]
        address = made.b.addresses["remoting"]
        made.a.kill()
        with silent(int(own.removeprefix("ha_port="))):
            with penstock.Admin(made.name_server) as admin:
                admin.promote(address)
            first = b""

            def taken() -> bool:
                nonlocal first
                with contextlib.suppress(OSError, EOFError), RawPeer(address) as peer:
                    answer = peer.send("orders", b"the first of the second epoch")
                    first = bytes(answer.ext.get("msgId", ""), "ascii") if answer.code in (0, 11) else b""
                return first != b""

            eventually(taken)
        found = EpochFile(Files(), tmp_path / "b" / "ha" / "epochs").load()
        assert found is not None
        assert [epoch.number for epoch in found] == [1, 2]
        assert found[-1].start == int(first[16:], 16)  # a message id ends with its position
    finally:
        made.stop()


def test_a_master_that_nobody_can_follow_any_more_goes_on(tmp_path: Path) -> None:
    """It was one of a set, and is started without its ha_port."""
    made = Pair(tmp_path)
    try:
        made.start()
        send(made, range(5))
        made.b.stop()
        made.a.stop()
        made.a.words = ["ha_port=-1" if word.startswith("ha_port=") else word for word in made.a.words]
        made.a.start()
        eventually(lambda: set(send(made, range(5, 6)).values()) == {SendStatus.SLAVE_NOT_AVAILABLE})
        eventually(lambda: set(made.bodies()) >= {b"0", b"5"})
    finally:
        made.stop()
