"""The HA port: who is let in, what a bad peer gets (nothing), and what a slave does with bytes that are not the master's."""

from __future__ import annotations

import contextlib
import logging
import random
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import penstock
from certificates import Authority
from ha_parts import Peer, eventually, log_bytes
from penstock.app import Server
from penstock.broker.taking import secret_of
from penstock.config import BrokerConfig
from penstock.errors import BrokerRefused, ConfigError, Refused
from penstock.fronts.ha import HaFront
from penstock.registration import replication
from penstock.testing import Broker
from penstock.wire import ha, haframe, hawords
from ports import free_port, staying

SECRET = b"a secret of sixteen bytes"


@pytest.fixture
def secret(tmp_path: Path) -> str:
    (tmp_path / "secret").write_bytes(SECRET + b"\n")
    return str(tmp_path / "secret")


@pytest.fixture
def master(tmp_path: Path, secret: str) -> Iterator[Broker]:
    with Broker(tmp_path / "a", **staying(), ha_secret_file=secret, node="a") as broker:
        yield broker


def front_of_server(server: Server) -> HaFront:
    return next(f for f in server._process.fronts if isinstance(f, HaFront))


def front_of(broker: Broker) -> HaFront:
    return broker.call(front_of_server)


def slave_of(tmp_path: Path, address: str, secret: str, name: str = "b", **settings: object) -> Broker:
    if "ha_port" in settings:
        settings = {**settings, "ha_port": free_port()}
    return Broker(
        tmp_path / name, role="slave", ha_master=address, ha_secret_file=secret, node=name, registry_port=-1,
        lookup_port=-1, lookup_http_port=-1, **{**staying("remoting", "nsq", "http"), **settings},
    )  # fmt: skip


def fill(broker: Broker, count: int) -> None:
    with penstock.Producer(broker.registry) as producer:
        for number in range(count):
            producer.send(penstock.Message("T", b"%d" % number * 40))


def end(broker: Broker) -> int:
    return broker.call(lambda server: server.broker.store.end_position)


def hello(**other: object) -> ha.Hello:
    told = ha.Hello(b"n" * 16, bytes(16), b"i" * 16, 0, 16 << 20, 0, 0, 0, 0, 0, (), {"node": "peer", "brokerId": 5})
    return told._replace(**other)


def opened(master: Broker, told: ha.Hello, secret: bytes = SECRET) -> Peer:
    peer = Peer(master.addresses["ha"])
    peer.greet()
    peer.send(ha.hello(told, secret, peer.nonce))
    return peer


def test_a_slave_by_hand(master: Broker) -> None:
    """Hello, accept, start, then the log, and what it acknowledges is believed."""
    fill(master, 30)
    peer = opened(master, hello())
    head, body = peer.frame() or pytest.fail("closed")
    assert head.kind == hawords.ACCEPT
    assert ha.proves(body, SECRET, b"master", b"n" * 16)
    told = ha.read_accept(body, head.entries)
    assert (told.cut_to, told.begin, told.written) == (0, 0, end(master))
    peer.send(ha.start(head.epoch, 0))
    copied = b""
    kinds = set()
    while len(copied) < told.written:
        head, body = peer.frame() or pytest.fail("closed")
        kinds.add(head.kind)
        if head.kind == hawords.DATA:
            assert haframe.read_positions(body, 0).position == len(copied)
            copied += body[40 + 8 * head.entries :]
    assert hawords.META in kinds
    assert copied == log_bytes(master.folder, told.written)
    peer.send(haframe.ack(head.epoch, haframe.Ack(len(copied), 0, len(copied), 1 << 30)))
    eventually(lambda: master.call(lambda server: server.broker.copies.available))
    peer.close()
    eventually(lambda: not master.call(lambda server: server.broker.copies.available))


def test_tables_that_are_too_long_for_a_frame_are_named_and_not_sent(
    master: Broker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ha, "META_BYTES_MAX", 200)
    for _ in range(2):  # it is said once
        peer = opened(master, hello())
        head, _ = peer.frame() or pytest.fail("closed")
        peer.send(ha.start(head.epoch, 0))
        while (told := peer.frame()) is not None:
            assert len(told[1]) < 300
        peer.close()
    said = [record.getMessage() for record in caplog.records if "a frame takes 200" in record.getMessage()]
    assert len(said) == 1
    assert "node=peer" in said[0]


@pytest.mark.parametrize("spools", [False, True])
def test_a_slave_that_is_too_old_to_keep_staged_rows_is_named(
    master: Broker, caplog: pytest.LogCaptureFixture, spools: bool
) -> None:
    """It may be in sync, and yet all that it does not keep is lost when it becomes the master."""
    fill(master, 3)
    about = {"node": "peer", "brokerId": 5} | ({"spools": True} if spools else {})
    peer = opened(master, hello(about=about))
    head, body = peer.frame() or pytest.fail("closed")
    written = ha.read_accept(body, head.entries).written
    peer.send(ha.start(head.epoch, 0))
    peer.send(haframe.ack(head.epoch, haframe.Ack(0, 0, 0, 1 << 30)))
    copied = 0
    while copied < written:
        head, body = peer.frame() or pytest.fail("closed")
        if head.kind == hawords.DATA:
            copied += len(body) - 40 - 8 * head.entries
    peer.send(haframe.ack(head.epoch, haframe.Ack(copied, copied, copied, 1 << 30)))

    def row() -> dict[str, object]:
        return next(row for row in master.call(lambda server: [*server.broker.copies.rows(0)]) if row["node"] == "peer")

    if not spools:
        eventually(lambda: row()["in_sync"] == "yes")
    assert ("keeps no staged rows" in str(row()["why_not"])) is not spools
    assert ("slave is too old node=peer" in caplog.text) is not spools
    peer.close()


@pytest.mark.parametrize("wished", [0, -1, 1 << 40, 1 << 80, "5", None])
def test_a_slave_that_wishes_for_an_id_that_no_broker_can_have_gets_one(master: Broker, wished: object) -> None:
    peer = opened(master, hello(about={"node": "peer", "brokerId": wished}))
    head, body = peer.frame() or pytest.fail("closed")
    assert ha.read_accept(body, head.entries).about["brokerId"] == 1
    peer.close()


def test_a_disk_that_takes_no_note_silences_nobody(tmp_path: Path, secret: str) -> None:
    """A slave that hears nothing goes after ten seconds, and one that is not heard is out of sync after three."""
    (tmp_path / "a" / "ha" / "confirmed").mkdir(parents=True)
    with Broker(tmp_path / "a", **staying(), ha_secret_file=secret, node="a") as master:
        fill(master, 1)
        peer = opened(master, hello())
        kinds = []
        while hawords.BEAT not in kinds:
            head, body = peer.frame() or pytest.fail("closed")
            kinds.append(head.kind)
            if head.kind == hawords.ACCEPT:
                peer.send(ha.start(head.epoch, ha.read_accept(body, head.entries).cut_to))
        peer.close()


def no_data(peer: Peer) -> None:
    """The connection ends without a byte of the log."""
    while (found := peer.frame()) is not None:
        assert found[0].kind in (hawords.REFUSE, hawords.ACCEPT, hawords.META)
        assert b"0000000000" not in found[1]
    peer.close()


def test_without_the_secret_there_is_no_answer(master: Broker) -> None:
    fill(master, 5)
    for secret in (b"", b"another secret of some length"):
        peer = opened(master, hello(), secret)
        assert peer.rest() == b""
        peer.close()


def test_a_hello_that_is_said_again_is_of_no_use(master: Broker) -> None:
    first = Peer(master.addresses["ha"])
    first.greet()
    said = ha.hello(hello(), SECRET, first.nonce)
    again = Peer(master.addresses["ha"])
    again.greet()
    again.send(said)
    assert again.rest() == b""
    first.close()
    again.close()


EPOCH = ha.Epoch(1, b"another.", 0)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"set_id": b"x" * 16}, ha.WRONG_SET),
        ({"written": 500, "begin": 0}, ha.WRONG_SET),
        ({"written": 500, "epochs": (EPOCH,), "epoch": 1}, ha.WRONG_SET),
        ({"about": {"node": "a"}}, ha.WRONG_SET),
        ({"about": {}}, ha.WRONG_SET),
        ({"about": {"node": "x" * 301}}, ha.WRONG_SET),
        ({"about": {"node": "line\nbreak"}}, ha.WRONG_SET),
        ({"about": {"node": ["x"]}}, ha.WRONG_SET),
        ({"segment_size": 1 << 30}, ha.WRONG_SEGMENTS),
        ({"epoch": 9}, ha.NEWER_EPOCH),
    ],
)
def test_who_is_refused(master: Broker, changes: dict[str, object], reason: int) -> None:
    fill(master, 5)
    peer = opened(master, hello(**changes))
    head, body = peer.frame() or pytest.fail("closed")
    assert head.kind == hawords.REFUSE
    assert ha.read_refuse(body)[0] == reason
    no_data(peer)


def test_a_slave_that_is_refused_again_and_again_is_told_of_once(
    master: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        peer = opened(master, hello(epoch=9))
        assert (peer.frame() or pytest.fail("closed"))[0].kind == hawords.REFUSE
        peer.close()
    assert caplog.text.count("slave refused") == 1


def following(master: Broker, store_id: bytes = b"i" * 16) -> Peer:
    """A slave by hand that has acknowledged the whole log."""
    peer = opened(master, hello(store_id=store_id))
    head, body = peer.frame() or pytest.fail("closed")
    assert head.kind == hawords.ACCEPT
    told = ha.read_accept(body, head.entries)
    peer.send(ha.start(head.epoch, told.cut_to))
    at = told.cut_to
    while at < told.written:
        head, body = peer.frame() or pytest.fail("closed")
        if head.kind == hawords.DATA:
            at += len(body) - 40 - 8 * head.entries
    peer.send(haframe.ack(head.epoch, haframe.Ack(at, at, at, 1 << 30)))
    return peer


def says_in_sync(peer: Peer, wanted: bool) -> None:
    while True:
        head, _ = peer.frame() or pytest.fail("closed")
        if head.kind == hawords.BEAT and bool(head.flags & hawords.IN_SYNC) == wanted:
            return


def test_clients_do_not_keep_slaves_out(tmp_path: Path, secret: str) -> None:
    """After a failover all of them come at once, and without its slaves the new master could keep nothing at level `pair`."""
    with Broker(tmp_path / "a", **staying(), ha_secret_file=secret, node="a", max_connections=1) as master:
        host, _, port = master.addresses["nsq"].rpartition(":")
        with socket.create_connection((host, int(port))) as client:
            eventually(lambda: master.call(lambda server: server.net.admission.count) == 1)
            with socket.create_connection((host, int(port)), 30) as another:
                assert b"too many connections" in another.recv(100)
            peer = Peer(master.addresses["ha"])
            peer.send(ha.OPENER)
            assert peer.socket.recv(ha.GREETING_BYTES)[:4] == b"\xffPHB"
            peer.close()
            client.close()


def test_two_machines_of_one_name_are_not_one_slave(master: Broker) -> None:
    """The one that the master does not count would believe that it has all that was acknowledged."""
    fill(master, 5)
    first = following(master)
    says_in_sync(first, True)
    copied = {"node": "peer", "remoting": "10.0.0.9:10911"}  # the folder of the first, on another machine
    for changes in ({"store_id": b"o" * 16}, {"about": copied}):
        other = opened(master, hello(**changes))
        head, body = other.frame() or pytest.fail("closed")
        assert (head.kind, ha.read_refuse(body)[0]) == (hawords.REFUSE, ha.WRONG_SET)
        assert "set `node`" in ha.read_refuse(body)[1]
        no_data(other)
    asks = opened(master, hello(store_id=b"o" * 16, about={"node": "peer", "asks": True}))
    assert (asks.frame() or pytest.fail("closed"))[0].kind == hawords.ACCEPT
    asks.close()
    again = following(master)  # the same store: its former connection may be dead, and nobody has noticed
    says_in_sync(again, True)
    says_in_sync(first, False)
    first.close()
    again.close()
    eventually(lambda: not master.call(lambda server: server.broker.copies.members))
    following(master, b"o" * 16).close()


def test_a_slave_at_another_address_is_taken_once_its_former_connection_is_out_of_sync(master: Broker) -> None:
    """Not only when that one is closed, which takes three times as long."""
    fill(master, 5)
    first = following(master)

    def taken() -> bool:
        again = opened(master, hello(about={"node": "peer", "remoting": "10.0.0.9:10911"}))
        head, _ = again.frame() or pytest.fail("closed")
        again.close()
        return head.kind == hawords.ACCEPT

    assert not taken()
    eventually(taken)
    assert master.call(lambda server: server.broker.copies.members)
    first.close()


def test_a_slave_that_has_more_than_the_master_is_told_how_much_is_shared(master: Broker) -> None:
    fill(master, 5)
    replica = front_of(master).replica
    later = (*replica.epochs, ha.Epoch(2, b"another.", 40))  # of which its log has nothing, or a part
    for epochs, written, cut_to in ((replica.epochs, 1 << 30, end(master)), (later, 30, 30)):
        peer = opened(master, hello(set_id=replica.set_id, epochs=epochs, epoch=1, written=written))
        head, body = peer.frame() or pytest.fail("closed")
        assert (head.kind, ha.read_accept(body, head.entries).cut_to) == (hawords.ACCEPT, cut_to)
        peer.close()


def test_a_log_of_another_master_of_the_same_epoch_is_refused(master: Broker) -> None:
    fill(master, 5)
    replica = front_of(master).replica
    epochs = (*replica.epochs, ha.Epoch(2, b"another.", 40))
    master.call(
        lambda server: front_of_server(server).replica.join(
            replica.set_id, (*replica.epochs, ha.Epoch(2, b"8 bytes.", 40))
        )
    )
    peer = opened(master, hello(set_id=replica.set_id, epochs=epochs, epoch=2, written=500))
    head, body = peer.frame() or pytest.fail("closed")
    assert (head.kind, ha.read_refuse(body)[0]) == (hawords.REFUSE, ha.DIVERGED)
    no_data(peer)


@pytest.mark.parametrize("seed", range(6))
def test_garbage_is_closed_without_an_answer(master: Broker, seed: int) -> None:
    fill(master, 5)
    rng = random.Random(seed)
    noise = rng.randbytes(10_000)
    if seed % 3 == 1:
        noise = (1000).to_bytes(8, "big") + noise  # RocketMQ's bare report
    if seed % 3 == 2:
        noise = ha.OPENER + noise
    peer = Peer(master.addresses["ha"])
    peer.send(noise)
    assert len(peer.rest()) in (0, ha.GREETING_BYTES)
    peer.close()
    fill(master, 1)


@pytest.mark.parametrize(
    "said",
    [
        ha.frame(0x49, 1, b"", b"x"),
        ha.start(1, 0),
        haframe.ack(1, haframe.Ack(1, 1, 1, 1)),
        ha.data(1, haframe.Positions(0, 0, 0, 0, 0), b"", b"x"),
    ],
)
def test_frames_at_the_wrong_moment(master: Broker, said: bytes) -> None:
    peer = Peer(master.addresses["ha"])
    peer.greet()
    peer.send(said)
    assert peer.rest() == b""
    peer.close()


@pytest.mark.parametrize("written", [-1, 1 << 40])
def test_an_acknowledgement_of_what_was_never_sent(master: Broker, written: int) -> None:
    fill(master, 3)
    peer = opened(master, hello())
    head, _ = peer.frame() or pytest.fail("closed")
    peer.send(ha.start(head.epoch, 0) + haframe.ack(head.epoch, haframe.Ack(written, min(written, 0), 0, 0)))
    while peer.frame() is not None:
        pass
    peer.close()
    assert not master.call(lambda server: server.broker.copies.available)


@pytest.mark.parametrize("position", [-5, 1 << 40])
def test_a_start_outside_the_log(master: Broker, position: int) -> None:
    fill(master, 3)
    peer = opened(master, hello())
    head, _ = peer.frame() or pytest.fail("closed")
    peer.send(ha.start(head.epoch, position))
    assert peer.frame() is None
    peer.close()


def test_a_slave_that_has_nothing_does_not_begin_at_the_end(master: Broker) -> None:
    """It would be in sync at once, without a byte of what was acknowledged."""
    fill(master, 3)
    peer = opened(master, hello())
    head, _ = peer.frame() or pytest.fail("closed")
    at = end(master)
    peer.send(ha.start(head.epoch, at) + haframe.ack(head.epoch, haframe.Ack(at, at, at, 1 << 30)))
    assert peer.frame() is None
    peer.close()
    assert not master.call(lambda server: server.broker.copies.available)


def test_what_a_slave_says_of_itself_is_kept_only_where_it_can_be_told_to_others(master: Broker) -> None:
    fill(master, 3)
    peer = opened(master, hello(about={"node": "n" * 300, "ha": "h" * 301, "remoting": 5}))
    head, _ = peer.frame() or pytest.fail("closed")
    peer.send(ha.start(head.epoch, 0))
    eventually(lambda: master.call(lambda server: "n" * 300 in server.broker.copies.members))
    assert "h" * 301 not in front_of(master).replica.peers.values()
    peer.close()


class Between:
    """Passes bytes on between slaves and a master, and changes some of the master's."""

    def __init__(self, master: str, change: Callable[[bytes, int], bytes]) -> None:
        self._master = master
        self._change = change
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections = 0
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def _start(self, target: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _accept(self) -> None:
        while True:
            try:
                slave, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            host, _, port = self._master.rpartition(":")
            master = socket.create_connection((host, int(port)))
            self._start(self._pass, slave, master, None)
            self._start(self._pass, master, slave, self._change)

    def _pass(self, source: socket.socket, to: socket.socket, change: Callable[[bytes, int], bytes] | None) -> None:
        seen = 0
        try:
            while data := source.recv(1 << 16):
                to.sendall(data if change is None else change(data, seen))
                seen += len(data)
        except OSError:
            pass
        for end_ in (source, to):
            with contextlib.suppress(OSError):
                end_.shutdown(socket.SHUT_RDWR)
        source.close()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(30)


def test_one_bit_flipped_on_the_wire_is_seen_and_sent_again(master: Broker, tmp_path: Path, secret: str) -> None:
    fill(master, 300)
    flips = iter((9_000, 20_000))

    def change(data: bytes, seen: int) -> bytes:
        nonlocal at
        if at is not None and seen <= at < seen + len(data):
            data = bytearray(data)  # type: ignore[assignment]
            data[at - seen] ^= 16  # type: ignore[index]
            at = next(flips, None)
        return bytes(data)

    at: int | None = next(flips)
    between = Between(master.addresses["ha"], change)
    with slave_of(tmp_path, between.address, secret) as slave:
        eventually(lambda: end(slave) == end(master))
        assert between.connections >= 3
        assert slave.call(lambda server: server.broker.copies.bad_blocks) >= 1
        size = end(master)
        assert log_bytes(slave.folder, size) == log_bytes(master.folder, size)
    between.close()


def test_a_slave_with_another_secret_gets_nothing_and_says_so_once(
    master: Broker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "other").write_bytes(b"sixteen other bytes")
    fill(master, 20)
    between = Between(master.addresses["ha"], lambda data, seen: data)
    with slave_of(tmp_path, between.address, str(tmp_path / "other")) as slave:
        eventually(lambda: between.connections >= 3)
        assert end(slave) == 0
    between.close()
    assert caplog.text.count("where ha_secret_file is another one") == 1


def test_a_slave_of_a_slave_is_refused(
    master: Broker, tmp_path: Path, secret: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    with slave_of(tmp_path, master.addresses["ha"], secret, ha_port=0) as slave:
        peer = Peer(slave.addresses["ha"])
        peer.greet()
        peer.send(ha.hello(hello(), SECRET, peer.nonce))
        head, body = peer.frame() or pytest.fail("closed")
        assert (head.kind, ha.read_refuse(body)[0]) == (hawords.REFUSE, ha.NOT_MASTER)
        peer.close()
    # After each failover some ask one that is a slave now: no error.
    assert [line.levelname for line in caplog.records if line.getMessage().startswith("slave refused")] == ["INFO"]


def test_a_slave_names_its_master_to_who_asks_it_instead(master: Broker, tmp_path: Path, secret: str) -> None:
    fill(master, 20)
    with slave_of(tmp_path, master.addresses["ha"], secret, ha_port=0) as slave:
        eventually(lambda: end(slave) == end(master))
        peer = Peer(slave.addresses["ha"])
        peer.greet()
        peer.send(ha.hello(hello(), SECRET, peer.nonce))
        _, body = peer.frame() or pytest.fail("closed")
        assert ha.master_in(ha.read_refuse(body)[1]) == master.addresses["ha"]
        peer.close()
        with slave_of(tmp_path, slave.addresses["ha"], secret, "c") as third:
            eventually(lambda: end(third) == end(master))
            fill(master, 5)
            eventually(lambda: end(third) == end(master))


def test_a_former_master_that_cannot_write_down_that_it_is_a_slave_takes_nothing(tmp_path: Path, secret: str) -> None:
    """Its disk is full, or fails: what it took would be cut off, once it follows."""

    def in_place(server: Server) -> bool:
        return server.broker is not None and not server.broker.store.following

    with (
        Broker(tmp_path / "a", **staying(), ha_secret_file=secret, node="a") as old,
        slave_of(tmp_path, old.addresses["ha"], secret, ha_port=0) as heir,
    ):
        fill(old, 5)
        eventually(lambda: old.call(lambda server: server.broker.copies.available))
        old.stop()
        eventually(lambda: not heir.call(lambda server: server.broker.mastership.following_now))
        heir.call(lambda server: server.broker.mastership.promote(accept_loss=True))
        eventually(lambda: heir.call(in_place))
        odd = tmp_path / "a" / "ha" / "replica.json.tmp"
        odd.mkdir()
        old.start()
        assert old.call(lambda server: front_of_server(server).newer is not None)
        assert not old.call(in_place)
        odd.rmdir()
        eventually(lambda: old.call(lambda server: server.broker.copies.following))


def test_a_slave_that_is_told_to_follow_itself_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    port = free_port()
    with Broker(tmp_path, role="slave", ha_master=f"127.0.0.1:{port}", ha_port=port) as slave:
        eventually(lambda: any("follow itself" in message for message in caplog.messages))
        [row] = slave.call(lambda server: list(server.broker.copies.rows(server.broker.mono_ms)))
        assert "follow itself" in row["why_not"]


def test_a_slave_that_is_told_to_follow_itself_by_another_name_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    port = free_port()
    with Broker(tmp_path, role="slave", ha_master=f"localhost:{port}", ha_port=port) as slave:
        eventually(lambda: any("follow itself" in message for message in caplog.messages))
        [row] = slave.call(lambda server: list(server.broker.copies.rows(server.broker.mono_ms)))
        assert "follow itself" in row["why_not"]
    assert [line.levelname for line in caplog.records if "follow itself" in line.getMessage()] == ["WARNING"]


def test_slaves_that_follow_each_other_say_so(
    tmp_path: Path, secret: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a change of the master some ask a slave, for a moment: that is told as no fault."""
    monkeypatch.setattr(replication, "ASTRAY_S", 0.5)
    ports = [free_port(), free_port()]

    def slave(n: int) -> Broker:
        return Broker(
            tmp_path / str(n), role="slave", ha_master=f"127.0.0.1:{ports[1 - n]}", ha_port=ports[n], ha_secret_file=secret,
            node=f"n{n}", registry_port=-1, lookup_port=-1, lookup_http_port=-1, **staying("remoting", "nsq", "http"),
        )  # fmt: skip

    with slave(0) as one, slave(1):
        eventually(lambda: sum("nobody it knows is the master" in message for message in caplog.messages) == 2)
        [row] = one.call(lambda server: list(server.broker.copies.rows(server.broker.mono_ms)))
        assert "nobody it knows is the master" in row["why_not"]


def test_a_slave_says_why_it_may_lack_what_was_acknowledged(master: Broker, tmp_path: Path, secret: str) -> None:
    """So `penstock ha promote --dry-run` knows."""
    fill(master, 5)

    def lacks(slave: Broker) -> object:
        [row] = slave.call(lambda server: list(server.broker.copies.rows(server.broker.mono_ms)))
        return row.get("may_lack", "")

    with slave_of(tmp_path, master.addresses["ha"], secret) as slave:
        eventually(lambda: lacks(slave) == "")
    with slave_of(tmp_path, f"127.0.0.1:{free_port()}", secret, "c") as other:
        assert "was not in sync" in str(lacks(other))


def test_a_slave_that_comes_again_and_again_is_told_of_once(master: Broker, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "penstock.ha")
    replica = front_of(master).replica
    for number in range(4):
        fill(master, 1)
        at = end(master)  # it begins elsewhere each time
        peer = opened(master, hello(set_id=replica.set_id, epochs=replica.epochs, epoch=1, written=at))
        head, _ = peer.frame() or pytest.fail("closed")
        peer.send(ha.start(head.epoch, at))
        eventually(lambda: master.call(lambda server: server.broker.copies.members))
        peer.close()
        eventually(lambda: not master.call(lambda server: server.broker.copies.members))
        assert caplog.text.count("slave follows") == 1, number


def test_a_node_that_names_anybody_is_believed_once(tmp_path: Path, secret: str) -> None:
    """Two that name each other, or one that names nonsense: the slave goes on asking at its pace."""
    asked: list[int] = []
    listener = socket.create_server(("127.0.0.1", 0))
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    names = [address, "nowhere", "127.0.0.1:99999", "127.0.0.1:1", "x" * 5_000, ""]

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection, contextlib.suppress(OSError):
                    connection.settimeout(10)
                    connection.recv(8)
                    connection.sendall(ha.greeting(bytes(16), True))
                    connection.recv(1 << 16)
                    name = names[len(asked) % len(names)]
                    asked.append(1)
                    connection.sendall(ha.refuse(1, ha.NOT_MASTER, "not I", name))
                    connection.recv(1)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    begin = time.monotonic()
    with slave_of(tmp_path, address, secret) as slave:
        eventually(lambda: len(asked) > len(names))
        assert len(asked) <= 2 + 4 * (time.monotonic() - begin)
        assert end(slave) == 0
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(30)


def test_two_slaves_and_a_topic_that_is_deleted(master: Broker, tmp_path: Path, secret: str) -> None:
    address = master.addresses["ha"]
    with slave_of(tmp_path, address, secret) as one, slave_of(tmp_path, address, secret, "c") as two:
        eventually(lambda: master.call(lambda server: server.broker.copies.in_sync) == 3)
        fill(master, 50)
        for slave in (one, two):
            eventually(lambda slave=slave: end(slave) == end(master))
            eventually(lambda slave=slave: slave.call(lambda server: b"T" in server.broker.topics.by_name))
        with penstock.Admin(master.registry) as admin:
            admin.delete_topic("T")
        eventually(lambda: not one.call(lambda server: b"T" in server.broker.topics.by_name))


def test_a_broker_that_nobody_follows_has_no_port(tmp_path: Path) -> None:
    with Broker(tmp_path / "x") as broker:
        assert "ha" not in broker.addresses
        assert not broker.call(lambda server: [f for f in server._process.fronts if f.name == "ha"])


def test_secrets_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(b"too short")
    with pytest.raises(ConfigError, match="16 bytes"):
        secret_of(BrokerConfig(ha_secret_file=str(tmp_path / "short")))
    with pytest.raises(ConfigError, match="missing"):
        secret_of(BrokerConfig(ha_secret_file=str(tmp_path / "missing")))
    assert secret_of(BrokerConfig()) == b""


def test_what_has_no_copies_is_refused_at_level_pair(tmp_path: Path) -> None:
    """Queue topics cannot have the level, and NSQ's publishes do not wait for slaves."""
    with Broker(tmp_path / "x", level="pair") as broker:
        fill(broker, 1)
        for name, why in ((b"jobs", "have no copies"), (b"T", "RocketMQ's protocol")):

            def publish(server: Server, name: bytes = name) -> str:
                queueing = server.broker.queueing
                try:
                    queueing.publish(queueing.topic(name), [b"x"])
                except Refused as refused:
                    return str(refused)
                return "stored"

            assert why in broker.call(publish)
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(f"http://{broker.http}/pub?topic={name.decode()}", b"x", timeout=30)
            refused.value.close()
        with penstock.Admin(broker.registry) as admin:
            admin.create_topic("plain", level="os")
            admin.create_topic("safe", level="pair-disk")
            with pytest.raises(BrokerRefused, match="none of os, disk, pair, pair-disk"):
                admin.create_topic("memory", level="memory")
        told = broker.call(lambda server: [server.broker.topics.by_name[n].level for n in (b"plain", b"safe", b"T")])
        assert told == [0, 4, 3]
    with Broker(tmp_path / "x") as broker:  # the table says so after a start
        assert broker.call(lambda server: server.broker.topics.by_name[b"safe"].level) == 4


@pytest.fixture
def secured(authority: Authority) -> dict[str, str]:
    """The settings of a node whose certificate the authority has signed."""
    return {**authority.sign("node").settings, "tls_root_ca_file": str(authority.cert)}


@pytest.mark.parametrize("policy", ["", "require-verify"])
def test_a_set_that_speaks_tls(tmp_path: Path, secret: str, secured: dict[str, str], policy: str) -> None:
    """Both sides: a slave shows its certificate where the master wants one. Plain slaves and strangers get nothing."""
    tls = {**secured, "ha_tls": "required", "tls_client_auth_policy": policy}
    with Broker(tmp_path / "a", **staying(), ha_secret_file=secret, node="a", **tls) as master:
        address = master.addresses["ha"]
        fill(master, 300)
        with slave_of(tmp_path, address, secret, **tls) as slave:
            eventually(lambda: end(slave) == end(master))
            eventually(lambda: master.call(lambda server: server.broker.copies.in_sync) == 2)
            shaken = master.call(lambda server: server.net.handshakes["done"])
            assert shaken >= 1
            peer = Peer(address)
            peer.send(ha.OPENER)
            assert b"PHB" not in peer.rest()
            peer.close()
            fill(master, 10)
            eventually(lambda: end(slave) == end(master))
            size = end(master)
            assert log_bytes(slave.folder, size) == log_bytes(master.folder, size)


def test_a_set_goes_over_to_tls_node_by_node(tmp_path: Path, secret: str, secured: dict[str, str]) -> None:
    with Broker(tmp_path / "a", **staying(), ha_secret_file=secret, node="a", ha_tls="optional", **secured) as master:
        address = master.addresses["ha"]
        for step, tls in enumerate(({}, {**secured, "ha_tls": "optional"}, {**secured, "ha_tls": "required"})):
            shaken = master.call(lambda server: server.net.handshakes["done"])
            fill(master, 20)
            with slave_of(tmp_path, address, secret, **tls) as slave:
                eventually(lambda slave=slave: end(slave) == end(master))
            assert (master.call(lambda server: server.net.handshakes["done"]) > shaken) is (step == 2)


@pytest.mark.parametrize("what", ["plain", "stranger", "address"])
def test_a_master_that_cannot_show_who_it_is_is_not_followed(
    tmp_path: Path, secret: str, secured: dict[str, str], authority: Authority, what: str
) -> None:
    shown: dict[str, str] = {"ha_tls": "required"}
    if what == "plain":
        shown = {}
    elif what == "stranger":
        shown |= Authority(tmp_path / "other", "nobody").sign("node").settings
    else:
        shown |= authority.sign("elsewhere", "DNS:elsewhere,IP:10.9.9.9").settings
    with Broker(tmp_path / "a", **staying(), ha_secret_file=secret, node="a", **shown) as master:
        fill(master, 20)
        between = Between(master.addresses["ha"], lambda data, seen: data)
        with slave_of(tmp_path, between.address, secret, ha_tls="required", **secured) as slave:
            eventually(lambda: between.connections >= 2)
            assert end(slave) == 0
        between.close()


@pytest.mark.parametrize("settings", [{"ha_tls": "required"}, {"ha_tls": "yes"}])
def test_tls_that_cannot_be(tmp_path: Path, settings: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="ha_tls"), Broker(tmp_path / "x", ha_port=0, **settings):
        pass
