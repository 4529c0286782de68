"""RocketMQ's bare protocol: what its slave gets of us and what it does not, what we take of its master and what we do not."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from ha_parts import SMALL, Peer, eventually, log_bytes
from penstock.app import Server
from penstock.broker.replica import check_role
from penstock.config import BrokerConfig
from penstock.errors import ConfigError
from penstock.fronts import bare
from penstock.fronts.bare import WINDOW_BYTES
from penstock.testing import Broker
from penstock.wire import ha
from ports import staying

LOCAL = {"ha_rocketmq": "127.0.0.1", "ha_port": 0, **SMALL}
ALONE = {"registry_port": -1, "lookup_port": -1, "lookup_http_port": -1}


@pytest.fixture
def master(tmp_path: Path) -> Iterator[Broker]:
    with Broker(tmp_path / "a", node="a", **LOCAL) as broker:
        yield broker


def fill(broker: Broker, count: int, size: int = 40) -> None:
    rng = random.Random(count)
    with penstock.Producer(broker.registry) as producer:
        for _ in range(count):
            producer.send(penstock.Message("T", rng.randbytes(size)))


def end(broker: Broker) -> int:
    return int(broker.call(lambda server: server.broker.store.end_position))


class Follower:
    """What a RocketMQ slave does: it reports where its log ends, and adds what comes."""

    def __init__(self, address: str, position: int = 0) -> None:
        self.peer = Peer(address)
        self.position, self.log, self.pieces = position, b"", 0
        self.begin = -1
        self.report(position)

    def report(self, position: int) -> None:
        self.peer.send(ha.report(position))

    def take(self) -> int | None:
        """The next piece's size; None at the end of the connection."""
        head = self._exactly(ha.BARE_HEAD_BYTES)
        if len(head) < ha.BARE_HEAD_BYTES:
            return None
        position, size = ha.read_bare_head(head, 0)
        assert size <= ha.BARE_BYTES
        if self.begin < 0:
            self.begin = self.position = position
        assert position == self.position  # also of an empty one: a RocketMQ slave would leave
        self.log += self._exactly(size)
        self.position += size
        return size

    def _exactly(self, size: int) -> bytes:
        data = b""
        with contextlib.suppress(ConnectionError):
            while len(data) < size and (more := self.peer.socket.recv(size - len(data))):
                data += more
        return data

    def follow(self, until: int) -> None:
        while self.position < until:
            assert self.take() is not None
            self.report(self.position)

    def is_left(self) -> bool:
        """Whether the connection ends without a byte of the log."""
        while (size := self.take()) is not None:
            if size:
                return False
        return True

    def close(self) -> None:
        self.peer.close()


def test_its_slave_gets_the_log_byte_for_byte_with_what_ends_a_segment(master: Broker) -> None:
    fill(master, 3_000, 900)
    fill(master, 3, 200_000)  # larger than a piece
    slave = Follower(master.addresses["ha"])
    slave.follow(end(master))
    assert slave.log == log_bytes(master.folder, end(master))
    assert end(master) > 2 << 20
    fill(master, 10)
    slave.follow(end(master))
    assert slave.log == log_bytes(master.folder, end(master))
    rows = master.call(lambda server: list(server.broker.copies.rows(server.broker.mono_ms)))
    assert [(row["role"], row["in_sync"]) for row in rows] == [("master", "yes"), ("slave", "no")]
    assert rows[1]["why_not"]
    slave.close()
    eventually(lambda: not master.call(lambda server: server.broker.copies.bare))


@pytest.mark.parametrize("pieces", [1, 3, 9, 40])
def test_it_goes_on_where_it_was_wherever_a_piece_ended(master: Broker, pieces: int) -> None:
    """Its connection ends after any piece: within a large record, or behind the last one of a segment."""
    fill(master, 1_500, 900)
    fill(master, 4, 300_000)
    position, found = 0, b""
    while position < end(master):
        slave = Follower(master.addresses["ha"], position)
        for _ in range(pieces):
            if slave.position < end(master):
                assert slave.take()
        found, position = found + slave.log, slave.position
        slave.close()
    assert found == log_bytes(master.folder, end(master))


def test_what_it_reports_moves_nothing_that_pair_waits_for(tmp_path: Path) -> None:
    with Broker(tmp_path / "a", level="pair", ha_answer_ms=300, node="a", **LOCAL) as master:
        fill(master, 5)
        slave = Follower(master.addresses["ha"])
        slave.follow(end(master))
        with penstock.Producer(master.registry) as producer:
            result = producer.send(penstock.Message("T", b"x"))
        assert result.status.value == "SLAVE_NOT_AVAILABLE"
        assert master.call(lambda server: server.broker.copies.available) is False
        assert master.call(lambda server: server.broker.copies.in_sync) == 1
        slave.close()


@pytest.mark.parametrize("position", [-1, 1, 41, 1 << 20, 1 << 40, (1 << 63) - 1])
def test_a_slave_that_cannot_have_our_log_gets_nothing(master: Broker, position: int) -> None:
    fill(master, 200, 900)
    slave = Follower(master.addresses["ha"], position)
    if position == -1:  # the top bit: no report, and no opener
        assert slave.peer.rest() == b""
    else:
        assert slave.is_left()
        assert slave.log == b""
    slave.close()
    fill(master, 1)  # others go on


def test_a_report_beyond_what_was_sent_ends_the_connection(master: Broker) -> None:
    fill(master, 20)
    slave = Follower(master.addresses["ha"])
    slave.follow(end(master))
    slave.report(end(master) + 1)
    assert slave.is_left()
    slave.close()


def test_one_that_takes_nothing_is_sent_no_more_than_a_window(master: Broker) -> None:
    fill(master, 60, 200_000)
    slave = Follower(master.addresses["ha"])
    fill(master, 1)

    def position() -> int:
        return int(master.call(lambda server: next(iter(server._process.fronts[-1].sessions)).bare.position))

    eventually(lambda: position() >= WINDOW_BYTES - ha.BARE_BYTES)
    for _ in range(20):
        fill(master, 1)
        assert position() <= WINDOW_BYTES + ha.BARE_BYTES
    slave.close()


def test_reports_that_come_in_halves_and_in_heaps(master: Broker) -> None:
    fill(master, 20)
    slave = Follower.__new__(Follower)
    slave.peer, slave.position, slave.log, slave.begin = Peer(master.addresses["ha"]), 0, b"", -1
    for byte in ha.report(0):
        slave.peer.send(bytes([byte]))
    slave.follow(end(master))
    told = ha.report(end(master))
    slave.peer.send(ha.report(5) + told + told[:3])
    fill(master, 5)
    slave.peer.send(told[3:])
    while slave.position < end(master):
        assert slave.take() is not None
    assert slave.log == log_bytes(master.folder, end(master))
    slave.close()


@pytest.mark.parametrize("allowed", ["", "10.0.0.0/8", "127.0.0.2"])
def test_whoever_is_not_named_gets_nothing(tmp_path: Path, allowed: str) -> None:
    with Broker(tmp_path / "a", **{**LOCAL, "ha_rocketmq": allowed}) as master:
        fill(master, 20)
        peer = Peer(master.addresses["ha"])
        peer.send(ha.report(0))
        assert peer.rest() == b""
        peer.close()


def test_a_slave_serves_nobody(master: Broker, tmp_path: Path) -> None:
    fill(master, 20)
    more = {**LOCAL, **ALONE}
    with Broker(tmp_path / "b", role="slave", ha_master=master.addresses["ha"], node="b", **more) as slave:
        eventually(lambda: end(slave) == end(master))
        peer = Peer(slave.addresses["ha"])
        peer.send(ha.report(0))
        assert peer.rest() == b""
        peer.close()


@pytest.mark.parametrize("text", ["*", "127.0.0.1; *", "*.*.*.*", "x", "127.0.0.1/99"])
def test_addresses_are_named(text: str) -> None:
    with pytest.raises(ConfigError):
        check_role(BrokerConfig(ha_rocketmq=text))
    check_role(BrokerConfig(ha_rocketmq="127.0.0.1; 10.0.0.0/8, ::1"))


# -- we follow -----------------------------------------------------------------------------------------------------------


class RocketmqMaster:
    """A socket that speaks as RocketMQ's masters do: it sends a log, in pieces cut anywhere, from the report on."""

    def __init__(self, log: bytes, begin: int = 0, *, piece: int = 5_000) -> None:
        self.log, self.begin, self.piece = log, begin, piece
        self.reports: list[int] = []
        self.connections = 0
        self.first = begin  # where an empty slave begins
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._over = False
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        while not self._over:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._threads.append(threading.Thread(target=self._serve, args=(connection,), daemon=True))
            self._threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            data = connection.recv(8)
            (position,) = struct.unpack(">q", data)
            if position < 0:
                connection.sendall(data + bytes(4))
                connection.recv(1)
                return
            self.reports.append(position)
            at = position or self.first
            connection.sendall(struct.pack(">qi", at, 0))
            connection.settimeout(0.02)
            while not self._over:
                piece = self.log[at - self.begin :][: self.piece]
                if piece:
                    connection.sendall(struct.pack(">qi", at, len(piece)) + piece)
                    at += len(piece)
                try:
                    told = connection.recv(8)
                    if len(told) < 8:
                        return
                    self.reports.append(struct.unpack(">q", told)[0])
                except TimeoutError:
                    pass

    def close(self) -> None:
        self._over = True
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(30)


@pytest.fixture
def made(tmp_path: Path) -> tuple[Path, int]:
    """A folder with a log, and where it ends."""
    with Broker(tmp_path / "m", **SMALL) as broker:
        fill(broker, 2_500, 900)
        return broker.folder, end(broker)


def follower(folder: Path, master: RocketmqMaster, **settings: object) -> Broker:
    more = {**LOCAL, **ALONE, **staying("remoting", "nsq", "http", "ha"), **settings}
    return Broker(folder, role="slave", ha_master=master.address, node="b", **more)


def test_we_follow_its_master_and_go_on_after_a_start(made: tuple[Path, int], tmp_path: Path) -> None:
    log = log_bytes(*made)
    master = RocketmqMaster(log[: 1 << 19])
    with follower(tmp_path / "b", master) as slave:
        eventually(lambda: end(slave) > (1 << 19) - 2_000)
        assert end(slave) <= 1 << 19  # whole records only
        assert slave.call(lambda server: server.broker.copies.confirmed) > 0
        half = end(slave)
    master.log = log
    with follower(tmp_path / "b", master) as slave:
        eventually(lambda: end(slave) == len(log))
        eventually(lambda: len(log) in master.reports)
        assert half in master.reports
        assert log_bytes(slave.folder, len(log)) == log
    master.close()


def test_an_empty_one_begins_with_the_masters_last_segment(made: tuple[Path, int], tmp_path: Path) -> None:
    log = log_bytes(*made)
    master = RocketmqMaster(log)
    master.first = 2 << 20
    with follower(tmp_path / "b", master) as slave:
        eventually(lambda: end(slave) == len(log))
        assert log_bytes(slave.folder, len(log)) == log[2 << 20 :]
    master.close()


@pytest.mark.parametrize("what", ["segments", "damage", "other", "jump"])
def test_what_cannot_be_its_log_is_not_taken(made: tuple[Path, int], tmp_path: Path, what: str) -> None:
    log = log_bytes(*made)
    settings: dict[str, object] = {}
    master = RocketmqMaster(log)
    sound = 0
    if what == "segments":
        settings = {"mapped_file_size_commit_log": 1 << 19}
        sound = 1 << 19
    elif what == "damage":
        at = len(log) // 2
        master.log = log[:at] + bytes([log[at] ^ 1]) + log[at + 1 :]
        sound = at
    elif what == "other":
        master.log = random.Random(1).randbytes(len(log))
    else:
        master.first = 4_096
    with follower(tmp_path / "b", master, **settings) as slave:
        eventually(lambda: master.connections >= 5)
        assert sound - 2_000 < end(slave) <= sound
        assert log_bytes(slave.folder, end(slave)) == log[: end(slave)]
    master.close()


def test_one_that_is_not_named_is_not_followed(made: tuple[Path, int], tmp_path: Path) -> None:
    master = RocketmqMaster(log_bytes(*made))
    with follower(tmp_path / "b", master, ha_rocketmq="127.0.0.2") as slave:
        eventually(lambda: master.connections >= 2)
        assert end(slave) == 0
        assert master.reports == []
    master.close()


def test_a_node_of_a_set_of_ours_does_not_follow_it(master: Broker, made: tuple[Path, int], tmp_path: Path) -> None:
    fill(master, 20)
    more = {**LOCAL, **ALONE}
    with Broker(tmp_path / "b", role="slave", ha_master=master.addresses["ha"], node="b", **more) as slave:
        eventually(lambda: end(slave) == end(master) > 0)
        size = end(slave)
    other = RocketmqMaster(log_bytes(*made))
    with follower(tmp_path / "b", other) as slave:
        eventually(lambda: other.connections)
        eventually(lambda: slave.call(lambda server: server.broker.mastership.following_now))  # the other known node
        assert (end(slave), other.reports) == (size, [])
    other.close()


def test_what_was_followed_is_led_when_a_person_says_so(made: tuple[Path, int], tmp_path: Path) -> None:
    log = log_bytes(*made)
    master = RocketmqMaster(log)
    with follower(tmp_path / "b", master) as slave:
        eventually(lambda: end(slave) == len(log))
    master.close()

    def promote(server: Server) -> None:
        server.broker.mastership.promote(True)

    with follower(tmp_path / "b", master) as slave:
        slave.call(promote)
    with Broker(tmp_path / "b", role="slave", node="b", **LOCAL) as broker:
        fill(broker, 5)
        assert log_bytes(broker.folder, len(log)) == log
        assert broker.call(lambda server: server.broker.copies.replica.epoch) == 1


def test_a_silent_master_is_left_and_sought_again(made: tuple[Path, int], tmp_path: Path) -> None:
    """Its beats are five seconds apart: it is not left sooner than after twenty."""
    log = log_bytes(*made)
    master = RocketmqMaster(log)
    with follower(tmp_path / "b", master) as slave:
        eventually(lambda: end(slave) == len(log))
        connections, begin = master.connections, time.monotonic()
        eventually(lambda: master.connections > connections)
        assert time.monotonic() - begin > 10
    master.close()


def test_a_record_that_is_damaged_at_its_master_stops_us_for_a_while_only(
    made: tuple[Path, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bare, "STUMBLES_MAX", 2)
    log = log_bytes(*made)
    at = len(log) // 2
    master = RocketmqMaster(log[:at] + bytes([log[at] ^ 1]) + log[at + 1 :])
    with follower(tmp_path / "b", master) as slave:
        eventually(lambda: end(slave) == len(log))
        assert log_bytes(slave.folder, len(log)) == master.log
        assert slave.call(lambda server: server.broker.copies.bad_blocks) == 2
    master.close()
