"""Automatic failover with real etcd, a registry and brokers as processes: who is killed, stopped, or loses the engine."""

from __future__ import annotations

import contextlib
import shutil
import signal
import time
from base64 import b64encode
from pathlib import Path
from urllib.error import HTTPError

import pytest

import penstock
from client.test_staging import contents, stage
from etcd_parts import ElectedSet, Etcd, Forwarder
from fronts.raw_peer import RawPeer
from fronts.remoting.test_sending import FailingDisk
from ha_parts import SMALL, Process, log_bytes, record_in
from penstock.client.results import SendStatus
from penstock.client.staging import SinkRun, StageClient
from penstock.disk.files import Files
from penstock.errors import StoreError
from penstock.log import cutting, status
from penstock.registration import campaign
from penstock.testing import Broker
from penstock.wire.remoting import RemotingCommand, encode
from polling import eventually
from ports import free_port

pytestmark = pytest.mark.chaos  # once is enough: processes, not modules

OK = SendStatus.SEND_OK


def acknowledged(found: dict[bytes, SendStatus]) -> set[bytes]:
    return {body for body, status in found.items() if status == OK}


def test_a_killed_master_is_replaced_and_comes_back_as_a_slave(pair: ElectedSet) -> None:
    wanted = acknowledged(pair.send(range(20)))
    assert len(wanted) == 20
    for n in range(1, 4):
        old = pair.master()
        pair.nodes[old].kill()
        begin = time.monotonic()
        pair.send(range(1_000 * n, 1_000 * n + 1))
        took_s = time.monotonic() - begin
        assert took_s < 60  # the figure of this machine stands in docs/replication.md
        assert pair.master() != old
        pair.nodes[old].start()
        pair.in_sync("a", "b")
        wanted |= acknowledged(pair.send(range(1_000 * n + 1, 1_000 * n + 20)))
    assert len(wanted) == 20 + 3 * 19
    pair.holds(wanted)
    assert pair.state()["epoch"] == 4
    assert pair.rows()[pair.master()]["epoch"] == 4
    pair.same_logs()


def test_a_master_that_slept_longer_than_its_lease_says_ok_to_nothing(pair: ElectedSet) -> None:
    """Those who have sent while it slept get no answer that says it is stored, whatever the level."""
    wanted = acknowledged(pair.send(range(10)))
    old = pair.master()
    process, address = pair.nodes[old].process, pair.nodes[old].addresses["remoting"]
    assert process is not None
    with penstock.Admin(pair.name_server) as admin:
        for level in ("os", "disk"):
            admin.create_topic(f"level-{level}", 4, level=level)
    peers = [RawPeer(address) for _ in range(6)]
    assert [peer.send("level-os", b"before").code for peer in peers] == [0] * 6
    process.send_signal(signal.SIGSTOP)
    for n, peer in enumerate(peers):
        topic = ("level-os", "level-disk", "orders")[n % 3]
        ext = {"a": "PG", "b": topic, "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1_700_000_000_000, "h": 0, "i": ""}
        command = RemotingCommand(310, {k: str(v) for k, v in ext.items()}, b"asleep", opaque=99)
        peer.write(encode(command) * 20)
    wanted |= acknowledged(pair.send(range(100, 110)))
    assert pair.address_of_registry() != address
    process.send_signal(signal.SIGCONT)
    codes = set()
    for peer in peers:
        try:
            while True:
                codes.add(peer.read().code)
        except (EOFError, ConnectionError):
            peer.close()
    assert codes <= {14}
    pair.in_sync("a", "b")
    wanted |= acknowledged(pair.send(range(200, 210)))
    pair.holds(wanted)
    assert b"asleep" not in pair.bodies()
    assert pair.nodes[old].says("starting anew reason=fenced") == 1
    pair.same_logs()


LEASES_S = 10.0  # two leases of a test, and more


def passes(seconds: float) -> None:
    """So much time goes by, while what is tested must not happen."""
    begin = time.monotonic()
    eventually(lambda: time.monotonic() > begin + seconds)


def test_the_engine_is_away_for_longer_than_the_lease(tmp_path: Path, etcd: Etcd) -> None:
    """Everybody who could stand has promised not to: the master goes on, and after it in the same epoch."""
    pair = ElectedSet(tmp_path, etcd, lease_ms=8_000)
    try:
        pair.start()
        old = pair.master()
        etcd.signal(signal.SIGSTOP)
        passes(1.5 * LEASES_S)
        wanted = acknowledged(pair.send(range(5)))
        assert len(wanted) == 5
        assert "the members keep the master" in str(pair.row(old)["engine"])
        etcd.signal(signal.SIGCONT)
        eventually(lambda: pair.row(old)["engine"] == "reached")
        wanted |= acknowledged(pair.send(range(100, 105)))
        passes(LEASES_S)
        assert pair.master() == old
        assert pair.state()["epoch"] == 1
        pair.nodes[old].kill()  # and promises end
        wanted |= acknowledged(pair.send(range(200, 205)))
        pair.nodes[old].start()
        pair.in_sync()
        pair.holds(wanted)
        pair.same_logs()
    finally:
        pair.stop()


def test_without_the_engine_a_master_that_loses_a_member_stops(pair: ElectedSet, etcd: Etcd) -> None:
    old = pair.master()
    other = next(iter(set("ab") - {old}))
    wanted = acknowledged(pair.send(range(5)))
    etcd.signal(signal.SIGSTOP)
    pair.nodes[other].kill()
    eventually(lambda: pair.nodes[old].says("starting anew reason=fenced") == 1)
    pair.nodes[other].start()
    passes(LEASES_S)
    assert {row["role"] for row in pair.rows().values()} == {"slave"}
    etcd.signal(signal.SIGCONT)
    wanted |= acknowledged(pair.send(range(100, 105)))
    pair.in_sync()
    pair.holds(wanted)
    pair.same_logs()


def test_without_the_engine_a_slave_that_was_restarted_finds_its_master(tmp_path: Path, etcd: Etcd) -> None:
    pair = ElectedSet(tmp_path, etcd, lease_ms=15_000)  # a start takes its time on a busy machine
    try:
        pair.start()
        old = pair.master()
        other = next(iter(set("ab") - {old}))
        wanted = acknowledged(pair.send(range(5)))
        etcd.signal(signal.SIGSTOP)
        pair.nodes[other].kill()
        pair.nodes[other].start()
        eventually(lambda: len(acknowledged(pair.send(range(50, 51)))) == 1)
        passes(2 * LEASES_S)
        wanted |= acknowledged(pair.send(range(100, 105)))
        assert pair.row(old)["role"] == "master"
        etcd.signal(signal.SIGCONT)
        eventually(lambda: pair.row(old)["engine"] == "reached")
        assert pair.state()["epoch"] == 1
        wanted |= acknowledged(pair.send(range(200, 205)))
        assert len(wanted) == 15
        pair.holds(wanted, once=False)
        pair.same_logs()
    finally:
        pair.stop()


def test_without_the_engine_nobody_takes_the_place_of_a_lost_master(pair: ElectedSet, etcd: Etcd) -> None:
    old = pair.master()
    wanted = acknowledged(pair.send(range(5)))
    etcd.signal(signal.SIGSTOP)
    passes(LEASES_S / 2)
    pair.nodes[old].kill()
    passes(LEASES_S)
    assert {row["role"] for row in pair.rows().values()} == {"slave"}
    etcd.signal(signal.SIGCONT)
    wanted |= acknowledged(pair.send(range(100, 105)))
    assert pair.master() != old
    pair.nodes[old].start()
    pair.in_sync()
    pair.holds(wanted)
    pair.same_logs()


def test_three_members_of_the_engine_one_after_the_other(tmp_path: Path) -> None:
    """Each is killed or stopped in turn, its leader among them, and nothing happens; a failover goes with two of them."""
    three = Etcd(tmp_path, 3).start()
    made = ElectedSet(tmp_path, three, lease_ms=10_000)
    try:
        made.start()
        old = made.master()
        wanted: set[bytes] = set()
        for n in range(3):
            three.kill(n)
            sent = acknowledged(made.send(range(100 * n, 100 * n + 10)))
            passes(LEASES_S / 2)
            sent |= acknowledged(made.send(range(100 * n + 50, 100 * n + 60)))
            assert len(sent) == 20
            three.start_member(n)
            wanted |= sent
            eventually(lambda: made.row(old)["engine"] == "reached")
        assert made.state()["epoch"] == 1
        for n in range(3):
            three.signal(signal.SIGSTOP, n)
            passes(LEASES_S / 2)
            wanted |= acknowledged(made.send(range(1_000 + n, 1_001 + n)))
            three.signal(signal.SIGCONT, n)
        assert made.row(old)["role"] == "master"
        assert made.row(old)["epoch"] == 1
        three.signal(signal.SIGSTOP, 1)
        made.nodes[old].kill()
        wanted |= acknowledged(made.send(range(2_000, 2_010)))
        three.signal(signal.SIGCONT, 1)
        made.nodes[old].start()
        made.in_sync()
        assert made.state()["epoch"] == 2
        made.holds(wanted)
        made.same_logs()
    finally:
        made.stop()
        three.stop()


def test_a_master_that_is_the_whole_set_goes_on_without_the_engine(tmp_path: Path, etcd: Etcd) -> None:
    made = ElectedSet(tmp_path, etcd, "a", lease_ms=8_000)
    try:
        made.start()
        assert made.master() == "a"  # as it knows itself: the engine knew it before
        etcd.kill()
        passes(1.5 * LEASES_S)
        assert set(made.send(range(5)).values()) == {SendStatus.SLAVE_NOT_AVAILABLE}
        assert made.row("a")["role"] == "master"
        etcd.start_member(0)
        etcd.answers()
        eventually(lambda: made.row("a")["engine"] == "reached")
        assert made.state()["epoch"] == 1
    finally:
        made.stop()


def test_the_engine_is_killed_and_comes_back(pair: ElectedSet, etcd: Etcd) -> None:
    wanted = acknowledged(pair.send(range(10)))
    etcd.kill()
    etcd.start_member(0)
    etcd.answers()
    wanted |= acknowledged(pair.send(range(100, 110)))
    pair.in_sync("a", "b")
    pair.holds(wanted)
    pair.same_logs()


def test_an_engine_that_has_lost_its_data_names_nobody(pair: ElectedSet, etcd: Etcd) -> None:
    wanted = acknowledged(pair.send(range(10)))
    etcd.empty()

    def orphans() -> bool:
        rows = pair.rows().values()
        return [row["role"] for row in rows] == ["slave", "slave"] and all(
            "knows nothing of this replica set" in str(row["why_not"]) for row in rows
        )

    eventually(orphans)
    done = pair.ha("promote", "--node", "b")
    assert done.returncode == 0, done.stderr
    assert pair.master() == "b"
    pair.in_sync("a", "b")
    wanted |= acknowledged(pair.send(range(100, 110)))
    pair.holds(wanted)
    pair.same_logs()


def test_an_engine_without_room_is_named_as_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers whatever is read, and makes no change: whoever looks is told so, and not that it is reached, or not reached."""
    monkeypatch.setenv("ETCD_QUOTA_BACKEND_BYTES", str(1 << 20))
    etcd = Etcd(tmp_path)
    pair = None
    try:
        pair = ElectedSet(tmp_path, etcd.start()).start()
        assert pair.master() == "a"
        with pytest.raises(HTTPError, match="429") as full:
            for n in range(100):
                filler = {"key": b64encode(b"/filler/%d" % n).decode(), "value": b64encode(bytes(100_000)).decode()}
                etcd.ask("kv/put", filler)
        full.value.close()
        pair.nodes["b"].kill()

        def said(name: str, word: str) -> bool:
            return "space exceeded" in str(pair.row(name)[word])

        eventually(lambda: said("a", "engine"), 30, "the master does not say why its set is not changed")
        pair.nodes["b"].start()
        eventually(lambda: pair.row("b")["engine"] == "reached")
        pair.nodes["a"].kill()
        eventually(
            lambda: said("b", "why_not") and said("b", "engine"), 60, "the slave does not say why it does not stand"
        )
        assert not pair.nodes["a"].says("engine not reached")
    finally:
        if pair is not None:
            pair.stop()
        etcd.stop()


def test_of_two_who_stand_one_wins_and_the_other_follows(tmp_path: Path, etcd: Etcd) -> None:
    made = ElectedSet(tmp_path, etcd, "abc")
    try:
        made.start()
        wanted = acknowledged(made.send(range(20)))
        for n in range(2):
            old = made.master()
            made.nodes[old].kill()
            made.send(range(1_000 * n + 100, 1_000 * n + 101))
            made.in_sync(*(set("abc") - {old}))
            made.nodes[old].start()
            made.in_sync()
            wanted |= acknowledged(made.send(range(1_000 * n + 200, 1_000 * n + 210)))
        assert made.state()["epoch"] == 3
        made.holds(wanted)
        made.same_logs()
    finally:
        made.stop()


def test_a_master_that_alone_has_lost_the_engine_goes_on_while_its_slave_says_so(tmp_path: Path, etcd: Etcd) -> None:
    """Without that slave it gives way: both could believe that they are the master, and the engine names one."""
    made = ElectedSet(tmp_path, etcd)
    forwarder = Forwarder(etcd.clients[0])
    made.nodes["a"].words += ["--set", f"engine=etcd://127.0.0.1:{forwarder.port}"]
    try:
        made.nodes["a"].start()
        made.in_sync("a")
        made.nodes["b"].start()
        made.in_sync("a", "b")
        wanted = acknowledged(made.send(range(10)))
        forwarder.way = "cut"
        passes(LEASES_S)
        wanted |= acknowledged(made.send(range(50, 60)))
        assert made.master() == "a"
        assert len(wanted) == 20
        made.nodes["b"].kill()
        eventually(lambda: made.nodes["a"].says("starting anew reason=fenced") == 1)
        made.nodes["b"].start()
        eventually(lambda: made.state()["master"] == "b")
        wanted |= acknowledged(made.send(range(100, 110)))
        forwarder.way = "pass"
        made.in_sync("a", "b")
        wanted |= acknowledged(made.send(range(200, 210)))
        made.holds(wanted)
        made.same_logs()
    finally:
        made.stop()
        forwarder.stop()


@pytest.mark.parametrize("way", ["close", "half", "garbage", "late"])
def test_an_engine_that_answers_badly_is_one_that_is_away(tmp_path: Path, etcd: Etcd, way: str) -> None:
    made = ElectedSet(tmp_path, etcd)
    forwarder = Forwarder(etcd.clients[0])
    for process in made.nodes.values():
        process.words += ["--set", f"engine=etcd://127.0.0.1:{forwarder.port}"]
    try:
        made.start()
        old = made.master()
        wanted = acknowledged(made.send(range(10)))
        forwarder.way = way
        eventually(lambda: "the members keep the master" in str(made.row(old)["engine"]))
        wanted |= acknowledged(made.send(range(50, 60)))
        assert len(wanted) == 20
        made.nodes[old].kill()
        forwarder.way = "pass"
        wanted |= acknowledged(made.send(range(100, 110)))
        made.nodes[old].start()
        made.in_sync()
        made.holds(wanted)
        made.same_logs()
    finally:
        made.stop()
        forwarder.stop()


def test_a_change_that_was_made_unheard_holds(tmp_path: Path, etcd: Etcd) -> None:
    """The engine has left the slave out, and the master has not heard of it: it has said nothing since that the slave lacks,
    and the slave does not stand.
    """
    made = ElectedSet(tmp_path, etcd)
    forwarder = Forwarder(etcd.clients[0])
    made.nodes["a"].words += ["--set", f"engine=etcd://127.0.0.1:{forwarder.port}"]
    try:
        made.nodes["a"].start()
        made.in_sync("a")
        made.nodes["b"].start()
        made.in_sync("a", "b")
        wanted = acknowledged(made.send(range(10)))
        forwarder.way = "hang"
        made.nodes["b"].kill()
        made.in_sync("a")
        assert not acknowledged(made.send(range(20, 23)))
        eventually(lambda: made.nodes["a"].says("starting anew reason=fenced") == 1)
        made.nodes["b"].start()
        eventually(lambda: "a may be the master" in str(made.row("b")["why_not"]))
        forwarder.way = "pass"
        assert made.master() == "a"
        made.in_sync()
        made.holds(wanted)
        made.same_logs()
    finally:
        made.stop()
        forwarder.stop()


def test_the_set_is_not_changed_while_the_members_keep_the_master(tmp_path: Path, etcd: Etcd) -> None:
    """One that came into it now would have promised nothing: it could stand while the master goes on."""
    made = ElectedSet(tmp_path, etcd, lease_ms=8_000)
    forwarder = Forwarder(etcd.clients[0])
    made.nodes["a"].words += ["--set", f"engine=etcd://127.0.0.1:{forwarder.port}"]
    try:
        made.nodes["a"].start()
        made.in_sync("a")
        assert made.master() == "a"
        forwarder.way = "hang"  # what it asks is done, and it does not hear of it
        eventually(lambda: "the members keep the master" in str(made.row("a")["engine"]))
        made.nodes["b"].start()
        eventually(lambda: made.nodes["a"].says("slave follows node=b") == 1)
        passes(LEASES_S)
        held = made.state()["inSync"]
        assert isinstance(held, dict)
        assert list(held) == ["a"]
        assert made.master() == "a"
        forwarder.way = "pass"
        made.in_sync("a", "b")
        wanted = acknowledged(made.send(range(10)))
        assert len(wanted) == 10
        made.holds(wanted)
        made.same_logs()
    finally:
        made.stop()
        forwarder.stop()


def test_a_master_that_is_stopped_hands_over_first(pair: ElectedSet) -> None:
    wanted = acknowledged(pair.send(range(20)))
    for n in range(2):
        old = pair.master()
        begin = time.monotonic()
        pair.nodes[old].stop()
        assert time.monotonic() - begin < 60 + campaign.HAND_OVER_S
        new = pair.state()["master"]
        assert new != old  # before the process was gone
        assert pair.nodes[old].says("stopping") == 1  # and not that it starts anew
        wanted |= acknowledged(pair.send(range(1_000 * n + 100, 1_000 * n + 101)))
        pair.nodes[old].start()
        pair.in_sync()
        wanted |= acknowledged(pair.send(range(1_000 * n + 200, 1_000 * n + 210)))
    assert pair.state()["epoch"] == 3
    pair.holds(wanted)
    pair.same_logs()
    assert not list(pair.folder.glob("*/lost+found/log-*"))


def test_a_master_whose_disk_fails_gives_way(tmp_path: Path, etcd: Etcd) -> None:
    disk = FailingDisk()
    made = ElectedSet(tmp_path, etcd, "b")
    settings = {
        "registry": made.name_server,
        "engine": etcd.setting,
        "lease_ms": 60_000,
        "level": "pair-disk",
        "node": "a",
    }
    own = {
        "remoting_port": free_port(),
        "ha_port": free_port(),
        "registry_port": -1,
        "lookup_port": -1,
        "lookup_http_port": -1,
    }
    broker = Broker(tmp_path / "a", files=disk, **settings, **own, **SMALL)  # type: ignore[arg-type]
    try:
        broker.start()
        made.in_sync("a")
        made.nodes["b"].start()
        made.in_sync("a", "b")
        wanted = acknowledged(made.send(range(10)))
        assert made.state()["master"] == "a"
        disk.flush_fails = True
        made.send(range(100, 110))  # no lease is waited for: it would be a minute
        assert made.state()["master"] == "b"
        made.holds(wanted, once=False)
    finally:
        with contextlib.suppress(StoreError, RuntimeError):  # it cannot start again on such a disk
            broker.stop()
        made.stop()


def test_it_does_so_at_once(tmp_path: Path, etcd: Etcd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        campaign, "RENEWALS", 0.1
    )  # of the one in this process: it looks at the engine every ten minutes
    disk = FailingDisk()
    made = ElectedSet(tmp_path, etcd, "b")
    settings = {
        "registry": made.name_server,
        "engine": etcd.setting,
        "lease_ms": 60_000,
        "level": "pair-disk",
        "node": "a",
    }
    own = {
        "remoting_port": free_port(),
        "ha_port": free_port(),
        "registry_port": -1,
        "lookup_port": -1,
        "lookup_http_port": -1,
    }
    broker = Broker(tmp_path / "a", files=disk, **settings, **own, **SMALL)  # type: ignore[arg-type]
    try:
        broker.start()
        made.in_sync("a")
        made.nodes["b"].start()
        made.in_sync("a", "b")
        wanted = acknowledged(made.send(range(10)))
        assert made.state()["master"] == "a"
        disk.flush_fails = True
        made.send(range(100, 110))
        assert made.state()["master"] == "b"
        made.holds(wanted, once=False)
    finally:
        with contextlib.suppress(StoreError, RuntimeError):  # it cannot start again on such a disk
            broker.stop()
        made.stop()


class CrowdedDisk(Files):
    """A disk of which so much is used."""

    def __init__(self) -> None:
        super().__init__()
        self.used = 0.5

    def usage(self, folder: Path) -> tuple[int, int]:
        return int(self.used * (1 << 30)), 1 << 30


@pytest.mark.parametrize("room", [True, False])
def test_a_master_whose_disk_is_full_changes_places_with_a_slave_that_has_room(
    tmp_path: Path, etcd: Etcd, room: bool
) -> None:
    """And with none that has not: it would give the place back."""
    disk = CrowdedDisk()
    made = ElectedSet(tmp_path, etcd, "b", lease_ms=4_000)
    settings = {"registry": made.name_server, "engine": etcd.setting, "lease_ms": 4_000, "level": "pair"}
    own = {
        "registry_port": -1, "lookup_port": -1, "lookup_http_port": -1, "remoting_port": free_port(),
        "ha_port": free_port(), "node": "a", "nsq_port": -1, "http_port": -1, "vip_port": False,
    }  # fmt: skip
    other = CrowdedDisk()
    slave = Broker(
        tmp_path / "b2", files=other, **settings,
        **{**own, "remoting_port": free_port(), "ha_port": free_port(), "node": "b"}, **SMALL,
    )  # type: ignore[arg-type]  # fmt: skip
    broker = Broker(tmp_path / "a", files=disk, **settings, **own, **SMALL)  # type: ignore[arg-type]
    try:
        broker.start()
        eventually(lambda: "/broker-a/state" in " ".join(etcd.keys()))
        slave.start()
        eventually(lambda: set(made.state()["inSync"]) == {"a", "b"})  # type: ignore[call-overload]
        wanted = acknowledged(made.send(range(10)))
        other.used = 0.5 if room else 0.93
        eventually(lambda: broker.call(lambda server: next(iter(server.broker.copies.members.values())).free)
                   == (1 << 30) - int(other.used * (1 << 30)))  # fmt: skip
        disk.used = 0.91
        if room:
            eventually(lambda: made.state()["master"] == "b")
            made.send(range(100, 110))
            made.holds(wanted, once=False)
            assert made.state()["epoch"] == 2
        else:
            eventually(lambda: broker.call(lambda server: server.broker.store.refusal) == status.DISK_FULL)
            begin = time.monotonic()
            eventually(lambda: time.monotonic() > begin + 3)  # it has looked for one a few times
            assert broker.call(lambda server: server.broker.mastership.heir) is None
            assert made.state()["master"] == "a"
    finally:
        broker.stop()
        slave.stop()
        made.stop()


def test_two_brokers_of_one_name_are_told_apart(tmp_path: Path, etcd: Etcd) -> None:
    made = ElectedSet(tmp_path, etcd)
    made.nodes["b"].words += ["--set", "node=a"]
    try:
        made.nodes["a"].start()
        made.in_sync("a")
        made.nodes["b"].start()
        eventually(lambda: made.nodes["b"].says("another broker calls itself a") == 1)
        assert set(made.send(range(5)).values()) == {SendStatus.SLAVE_NOT_AVAILABLE}
        assert made.row("a")["role"] == "master"
        assert made.state()["epoch"] == 1
    finally:
        made.stop()


def test_places_change_by_word_and_what_is_refused(pair: ElectedSet) -> None:
    old = pair.master()
    new = next(iter(set("ab") - {old}))
    assert "is alive" in pair.ha("promote", "--node", new).stderr
    assert "is the master already" in pair.ha("promote", "--node", old).stderr
    done = pair.ha("switch", "--to", new)
    assert done.returncode == 0, done.stderr
    assert pair.state()["master"] == new
    pair.in_sync()
    assert acknowledged(pair.send(range(3)))


def test_a_master_whose_folder_is_an_older_copy_leaves_the_place_to_the_slave_that_has_more(pair: ElectedSet) -> None:
    """Its name, its epoch and its loss number are those of the master that was killed; its log is not."""
    old = pair.master()
    new = next(iter(set("ab") - {old}))
    pair.send(range(20))
    folder = pair.nodes[old].folder
    shutil.copytree(folder, folder.with_name("copy"))
    wanted = acknowledged(pair.send(range(20, 60)))
    assert len(wanted) == 40
    pair.nodes[old].kill()
    shutil.rmtree(folder)
    folder.with_name("copy").rename(folder)
    pair.nodes[old].start()
    eventually(lambda: pair.state()["master"] == new, 60, "the older copy is the master, or nobody is")
    pair.in_sync()
    assert pair.nodes[old].says("its folder is an older one") == 1
    pair.holds(wanted)
    pair.same_logs()


def test_a_copy_of_the_slave_s_folder_that_the_master_has_refused_does_not_stand_in_its_name(pair: ElectedSet) -> None:
    """The engine knows a node by its name and its loss number, and a copy has both."""
    old = pair.master()
    new = next(iter(set("ab") - {old}))
    slave = pair.nodes[new]
    slave.stop()
    shutil.copytree(slave.folder, slave.folder.with_name("copy"))
    slave.start()
    pair.in_sync()
    copy = Process("broker", slave.folder.with_name("copy"), slave.folder.with_name("copy.log"))
    copy.words += [word for word in slave.words if word.startswith("--set") or "=" in word]
    copy.words += ["--set", f"ha_port={free_port()}", "--set", f"remoting_port={free_port()}"]
    try:
        copy.start()
        eventually(lambda: copy.says("the master refuses this slave") == 1)
        wanted = acknowledged(pair.send(range(20)))
        assert len(wanted) == 20
        pair.nodes[old].kill()
        slave.kill()
        eventually(lambda: copy.says("its master has refused it, so it is not the node that was in sync") == 1)
        assert copy.says("granted") == 0
        slave.start()
        assert pair.master() == new
        pair.nodes[old].start()
        pair.in_sync()
        pair.holds(wanted)
        assert copy.says("granted") == 0
    finally:
        copy.stop()
    pair.same_logs()


def test_a_node_that_was_not_in_sync_waits_for_the_one_that_was(pair: ElectedSet) -> None:
    old = pair.master()
    other = next(iter(set("ab") - {old}))
    pair.nodes[other].kill()
    pair.in_sync(old)
    alone = pair.send(range(5))
    assert set(alone.values()) == {SendStatus.SLAVE_NOT_AVAILABLE}
    pair.nodes[old].kill()
    pair.nodes[other].start()
    eventually(lambda: f"{old} may be the master" in str(pair.rows().get(other, {}).get("why_not")))
    assert "may lack messages" in pair.ha("promote", "--node", other).stderr
    pair.nodes[old].start()
    assert pair.master() == old
    pair.in_sync()
    pair.holds(set(alone))
    pair.same_logs()


def test_a_publish_that_came_without_its_end_is_cut_off_and_done_anew(pair: ElectedSet) -> None:
    """A slave has the begin of a batch and some of its rows when the master is lost, and none of what was staged."""
    old = pair.master()
    new = next(iter(set("ab") - {old}))
    wanted = acknowledged(pair.send(range(5)))
    with penstock.Admin(pair.name_server) as admin:
        admin.create_topic("T", 1, level="pair")
    run, rows = SinkRun("S", "q", "run"), [b"%06d" % n for n in range(100)]
    with StageClient(pair.name_server) as client:
        client.publish(run, 0, [stage(client, run, 0, rows)])
    end = int(str(pair.row(old)["written"]))
    eventually(lambda: int(str(pair.row(new)["written"])) == end)
    for name in (old, new):
        pair.nodes[name].kill()
        # kept twice a second: by then the old master knew of a slave with all of it, here it had one with half
        (pair.nodes[name].folder / "ha" / "confirmed").unlink(missing_ok=True)
    folder = pair.nodes[new].folder
    half = record_in(log_bytes(folder, end), b"000050")
    cutting.intend(Files(), folder, half, end, 1, "half of it had come")
    pair.nodes[new].start()
    assert pair.master() == new
    assert pair.nodes[new].says("a publish came without its end") >= 1
    wanted |= acknowledged(pair.send(range(100, 103)))
    pair.nodes[old].start()
    pair.in_sync()
    assert contents(pair.name_server) == []
    with StageClient(pair.name_server) as client:
        client.publish(run, 0, [stage(client, run, 0, rows)])
    eventually(lambda: contents(pair.name_server) == rows)
    pair.holds(wanted)
    pair.same_logs()


@pytest.mark.parametrize("led", [False, True])
def test_a_set_that_leaves_its_engine_has_the_master_it_had(pair: ElectedSet, etcd: Etcd, led: bool) -> None:
    """Each node was started with the same line: who follows then is not told by the settings, nor by who has ever led."""
    wanted = acknowledged(pair.send(range(10)))
    if led:
        old = pair.master()
        assert pair.ha("switch").returncode == 0
        eventually(lambda: pair.master() != old)
        pair.in_sync()
    master = pair.master()
    slave = next(name for name in pair.nodes if name != master)
    for name in (slave, master):
        pair.nodes[name].kill()
        at = pair.nodes[name].words.index(f"engine={etcd.setting}")
        del pair.nodes[name].words[at - 1 : at + 1]
    pair.nodes[master].start()
    epoch, before = pair.row(master)["epoch"], pair.nodes[master].says(f"slave in sync node={slave}")
    wanted |= {body for body, status in pair.send(range(100, 110)).items() if status == SendStatus.SLAVE_NOT_AVAILABLE}
    pair.nodes[slave].start()
    eventually(lambda: pair.nodes[master].says(f"slave in sync node={slave}") > before)
    assert {name: row["role"] for name, row in pair.rows().items()} == {master: "master", slave: "slave"}
    assert pair.row(master)["epoch"] == epoch
    wanted |= acknowledged(pair.send(range(200, 210)))
    assert len(wanted) == 30
    pair.holds(wanted)
    pair.same_logs()
