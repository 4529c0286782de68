"""Damaged records of a master and of a slave are mended from the other: readers of both protocols get each message (H-11)."""

from __future__ import annotations

import contextlib
import json
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import penstock
from fronts.nsq_peer import NsqPeer
from fronts.raw_peer import RawPeer
from ha_parts import SMALL, Peer, eventually, log_bytes
from penstock.client.reader import LogReader
from penstock.fronts.haexchange import AGAIN_MS, ANSWER_MS, ASKED_MAX, GIVEN_BYTES_MAX, PACE_MS, TRIES, Exchange
from penstock.log import sidelayout
from penstock.log.repair import Want
from penstock.testing import Broker
from penstock.wire import ha, haframe, hawords
from penstock.wire.record import iter_records
from ports import free_port

COUNT = 60
RULES = ({"name": "T*", "kind": "log", "queues": 1},)


class Pair:
    """A master and a slave, started again and again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.running: dict[str, Broker] = {}

    def start(self, *names: str) -> None:
        for name in names:
            settings = dict(SMALL, node=name, topic=RULES, level="os")
            if name == "a":
                settings |= {"ha_port": self.port}
            else:
                settings |= {"role": "slave", "ha_master": f"127.0.0.1:{self.port}"}
            self.running[name] = Broker(self.folder / name, **settings)
            self.running[name].start()

    def stop(self, *names: str, clean: bool = True) -> None:
        for name in names or tuple(self.running):
            self.running.pop(name).stop()

    def wait(self) -> None:
        """Until the slave is in sync, and has all."""
        eventually(lambda: self.running["a"].call(lambda server: server.broker.copies.available))
        eventually(lambda: len({b.call(lambda s: s.broker.store.end_position) for b in self.running.values()}) == 1)

    def positions(self, name: str) -> list[tuple[int, int]]:
        """(position, size) of the records of T."""

        def places(server: object) -> list[tuple[int, int]]:
            queue = server.broker.store.queue(b"T", 0)  # type: ignore[attr-defined]
            return [queue.entry(n)[:2] for n in range(queue.max_offset)]

        return self.running[name].call(places)

    def repaired(self, name: str) -> int:
        return self.running[name].call(lambda server: server.broker.repairs.repaired)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    try:
        yield made
    finally:
        made.stop()


def filled(pair: Pair) -> list[tuple[int, int]]:
    """Both have the messages; where these are."""
    pair.start("a", "b")
    with penstock.Producer(pair.running["a"].registry) as producer:
        for number in range(COUNT):
            producer.send(penstock.Message("T", b"%d" % number * 30))
    pair.wait()
    return pair.positions("a")


def flip(folder: Path, position: int, mask: int = 4, *, file: str = "commitlog", at: int = -1) -> None:
    size = SMALL["mapped_file_size_commit_log"]
    path = folder / file / f"{position // size * size:020d}"
    at = position % size if at < 0 else at
    data = bytearray(path.read_bytes())
    data[at] ^= mask
    path.write_bytes(data)


def bodies() -> list[bytes]:
    return [b"%d" % number * 30 for number in range(COUNT)]


def remoting_reads(address: str) -> list[bytes]:
    """Every message of T, as a reader gets them that goes on where it is told."""
    found: list[bytes] = []
    reader = LogReader(address)
    deadline = time.monotonic() + 60
    try:
        (queue,) = reader.queues("T")
        offset = 0
        while offset < COUNT and time.monotonic() < deadline:
            got = reader.fetch(queue, offset, durable=False)
            found += [record.body for record in iter_records(got.records)]
            offset = got.next_offset
    finally:
        reader.close()
    return found


def nsq_reads(address: str) -> list[bytes]:
    peer = NsqPeer(address)
    peer.subscribe(b"T", b"c", 2 * COUNT)
    found = [peer.message().body for _ in range(COUNT)]
    peer.close()
    return found


def test_a_flipped_bit_of_the_master(pair: Pair) -> None:
    places = filled(pair)
    pair.stop()
    for number in (3, 20, 21, COUNT - 1):
        position, size = places[number]
        flip(pair.folder / "a", position + size // 2)
    pair.start("a", "b")
    assert remoting_reads(pair.running["a"].registry) == bodies()
    assert nsq_reads(pair.running["a"].nsq) == bodies()
    eventually(lambda: pair.repaired("a") == 4)
    lines = [json.loads(line) for line in (pair.folder / "a" / "damage.jsonl").read_text().splitlines()]
    assert {line["position"] for line in lines} == {places[n][0] for n in (3, 20, 21, COUNT - 1)}
    assert all(line["repaired"] for line in lines)
    end = pair.running["a"].call(lambda server: server.broker.store.end_position)
    pair.wait()
    assert log_bytes(pair.folder / "a", end) == log_bytes(pair.folder / "b", end)


def pulled(address: str) -> list[bytes]:
    """Every message of T, from the node at this address itself."""
    found: list[bytes] = []
    offset = 0
    deadline = time.monotonic() + 60
    with RawPeer(address) as peer:
        while offset < COUNT and time.monotonic() < deadline:
            answer = peer.pull("T", 0, offset, sysFlag=6)
            if answer.code == 0:
                found += [record.body for record in iter_records(answer.body)]
                offset = int(answer.ext["nextBeginOffset"])
    return found


def test_a_flipped_bit_of_the_slave_and_readers_of_the_slave(pair: Pair) -> None:
    places = filled(pair)
    pair.stop()
    for number in (0, 7, COUNT - 1):
        flip(pair.folder / "b", places[number][0] + 40)
    pair.start("a", "b")
    pair.wait()
    assert pulled(pair.running["b"].addresses["remoting"]) == bodies()
    eventually(lambda: pair.repaired("b") == 3)
    assert pair.repaired("a") == 0
    end = pair.running["a"].call(lambda server: server.broker.store.end_position)
    assert log_bytes(pair.folder / "a", end) == log_bytes(pair.folder / "b", end)


@pytest.mark.parametrize("name", ["a", "b"])
def test_a_flipped_bit_of_a_sum(pair: Pair, name: str) -> None:
    filled(pair)
    pair.stop()
    for number in (9, 11):
        at = sidelayout.HEAD_BYTES + sidelayout.ENTRY_BYTES * number + number % 8
        flip(pair.folder / name, 0, 2, file="checksums", at=at)
    pair.start("a", "b")
    pair.wait()
    assert pulled(pair.running[name].addresses["remoting"]) == bodies()
    eventually(
        lambda: pair.repaired(name) >= 2
    )  # a place that is wrong hides its neighbours from who seeks them: they count, too
    assert nsq_reads(pair.running["a"].nsq) == bodies()

    def sums(which: str) -> bytes:
        return (pair.folder / which / "checksums" / f"{0:020d}").read_bytes()[: 32 + 8 * COUNT]

    eventually(lambda: sums("a") == sums("b"))


def test_what_people_are_told(pair: Pair) -> None:
    places = filled(pair)
    pair.stop()
    for name, number in (("a", 3), ("b", 3), ("a", 5)):
        flip(pair.folder / name, places[number][0] + 40)
    pair.start("a", "b")
    pair.wait()
    got = remoting_reads(pair.running["a"].registry)
    assert got == [body for n, body in enumerate(bodies()) if n != 3]  # what both have lost is passed over, as ever
    eventually(lambda: pair.repaired("a") == 1)
    with urllib.request.urlopen(f"http://{pair.running['a'].addresses['http']}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    assert "penstock_replica_repaired_total 1" in text
    assert "penstock_replica_damaged 1" in text
    rows = pair.running["a"].call(lambda server: list(server.broker.copies.rows(server.broker.mono_ms)))
    assert (rows[0]["damaged"], rows[0]["repaired"]) == (1, 1)


def test_killed_and_started_again_the_last_record_too(pair: Pair) -> None:
    """A start that finds damage below what was flushed: the end of the log stays where it is."""
    places = filled(pair)
    pair.stop()
    flip(pair.folder / "a", places[COUNT - 1][0] + 40)
    flip(pair.folder / "a", places[2][0] + 5)  # its magic number: the start cannot tell its place in the queue
    for name in ("checkpoint", "live0", "live1"):
        (pair.folder / "b" / name).unlink(missing_ok=True)
    pair.start("b", "a")
    pair.wait()
    assert remoting_reads(pair.running["a"].registry) == bodies()
    eventually(lambda: pair.repaired("a") == 2)


class Slave:
    """A slave by hand that is in sync with a master, and has its log."""

    def __init__(self, master: Broker, about: dict[str, object]) -> None:
        peer = self.peer = Peer(master.addresses["ha"])
        peer.greet()
        told = ha.Hello(b"n" * 16, bytes(16), b"i" * 16, 0, SMALL["mapped_file_size_commit_log"], 0, 0, 0, 0, 0, (), {})
        peer.send(ha.hello(told._replace(about={"node": "x", "brokerId": 5, **about}), b"", peer.nonce))
        head, body = peer.frame() or pytest.fail("closed")
        self.about = ha.read_accept(body, head.entries).about
        self.epoch, self.log = head.epoch, b""
        peer.send(ha.start(self.epoch, 0))

    def frame(self, until: Callable[[haframe.Head], bool]) -> tuple[haframe.Head, bytes] | None:
        while (found := self.peer.frame()) is not None and not until(found[0]):
            head, body = found
            if head.kind == hawords.DATA:
                self.log += body[40 + 8 * head.entries :]
            size = len(self.log)
            with contextlib.suppress(ConnectionError):  # what it has sent before is read
                self.peer.send(haframe.ack(self.epoch, haframe.Ack(size, size, size, 1 << 30)))
        return found

    def wanted(self) -> ha.Wanted:
        found = self.frame(lambda head: head.kind == hawords.WANT)
        assert found is not None
        return ha.read_wanted(found[1])[0]

    def given(self) -> bytes:
        found = self.frame(lambda head: head.kind == hawords.GIVE)
        assert found is not None
        return ha.read_wanted(found[1])[1]


def test_an_enemy_gives_and_is_given(pair: Pair) -> None:
    places = filled(pair)
    pair.stop()
    position, size = places[3]
    sound = (pair.folder / "a" / "commitlog" / f"{0:020d}").read_bytes()[position : position + size]
    flip(pair.folder / "a", position + 40)
    pair.start("a")
    master = pair.running["a"]
    slave = Slave(master, {"repairs": True})
    slave.frame(lambda head: head.kind == hawords.BEAT and bool(head.flags & hawords.IN_SYNC))
    assert slave.about["repairs"] is True
    # What nobody asked for is not taken, and what is asked for nowhere is not there.
    slave.peer.send(ha.give(slave.epoch, ha.Wanted(places[5][0], 4, 0), b"evil"))
    slave.peer.send(ha.want(slave.epoch, ha.Wanted(1 << 60, 0, 0)))
    assert slave.given() == b""
    slave.peer.send(ha.want(slave.epoch, ha.Wanted(places[5][0], 0, 0)))
    assert slave.given()[-40:].find(b"5") >= 0
    slave.peer.send(ha.want(slave.epoch, ha.Wanted(position, 0, 0)))  # what it asks for is damaged here: it is wanted
    assert slave.given() == b""
    told = slave.wanted()
    assert (told.position, told.size) == (position, size)
    forged = sound[:-60] + b"!" + sound[-59:]
    slave.peer.send(ha.give(slave.epoch, told, forged))
    slave.frame(lambda head: head.kind == hawords.BEAT)
    assert pair.repaired("a") == 0
    assert list(master.call(lambda server: server.broker.repairs.wanted)) == [position]
    other = Slave(master, {"repairs": True, "node": "y"})
    other.frame(lambda head: head.kind == hawords.BEAT and bool(head.flags & hawords.IN_SYNC))
    for _ in range(2):
        other.peer.send(ha.give(slave.epoch, told, sound))
    eventually(lambda: pair.repaired("a") == 1)
    for end in (slave, other):
        end.peer.close()


def test_a_peer_that_does_not_know_it_is_not_asked_and_one_of_another_epoch_is_not_heard(pair: Pair) -> None:
    places = filled(pair)
    pair.stop()
    flip(pair.folder / "a", places[3][0] + 40)
    pair.start("a")
    master = pair.running["a"]
    old = Slave(master, {})
    old.frame(lambda head: head.kind == hawords.BEAT and bool(head.flags & hawords.IN_SYNC))
    with RawPeer(master.addresses["remoting"]) as reader:
        assert reader.pull("T", 0, 3, sysFlag=4).code == 19  # it waits: somebody may come who has it
    kinds = set()
    for _ in range(6):
        head, _ = old.frame(lambda head: True) or pytest.fail("closed")
        kinds.add(head.kind)
    assert hawords.WANT not in kinds
    old.peer.close()
    stale = Slave(master, {"repairs": True})
    stale.peer.send(ha.want(stale.epoch + 1, ha.Wanted(places[5][0], 0, 0)))
    assert stale.frame(lambda head: head.kind == hawords.GIVE) is None  # closed
    stale.peer.close()
    early = Peer(master.addresses["ha"])
    early.greet()
    early.send(ha.want(1, ha.Wanted(places[5][0], 0, 0)))
    assert early.rest() == b""
    early.close()


class Wanting:
    """A store's repairs, as far as an exchange sees them."""

    def __init__(self, *wanted: int) -> None:
        self.wanted = {position: Want(position, 0) for position in wanted}
        self.without = 0
        self.taken: list[tuple[int, bytes]] = []
        self.large = b""

    def due(self, mono_ms: int) -> list[Want]:
        return list(self.wanted.values())

    def told(self, position: int) -> tuple[int, int]:
        return 100, 7

    def cannot(self, position: int) -> None:
        self.without += 1

    def hope_again(self, position: int) -> None:
        self.without -= 1

    def given(self, position: int, record: bytes) -> bool:
        self.taken.append((position, record))
        return True

    def give(self, position: int, told_sum: int) -> bytes:
        return self.large


def said_by(said: list[bytes]) -> list[tuple[int, int, int]]:
    """(type, position, size) of what was said since."""
    found = []
    for data in said:
        head, _ = haframe.read_head(data, 0, len(data))
        assert head is not None
        told, _ = ha.read_wanted(data[head.fixed :])
        found.append((head.kind, told.position, told.size))
    said.clear()
    return found


def hear(exchange: Exchange, frame: bytes, mono_ms: int) -> None:
    head, _ = haframe.read_head(frame, 0, len(frame))
    assert head is not None
    exchange.hear(head, frame[head.fixed :], mono_ms)


def test_an_answer_that_never_comes() -> None:
    said: list[bytes] = []
    wanting = Wanting(40, 500)
    exchange = Exchange(wanting, said.append)  # type: ignore[arg-type]
    now_ms = PACE_MS
    for _ in range(TRIES):
        exchange.turn(1, now_ms, 400)
        assert said_by(said) == [(hawords.WANT, 40, 100)]  # the other one is behind the peer's end
        exchange.turn(1, now_ms + PACE_MS, 400)
        assert not said
        now_ms += ANSWER_MS
    exchange.turn(1, now_ms, 400)
    assert (wanting.without, said) == (1, [])
    hear(exchange, ha.give(1, ha.Wanted(40, 4, 0), b"late"), now_ms)
    assert not wanting.taken
    exchange.turn(1, now_ms + AGAIN_MS, 400)
    assert (wanting.without, said_by(said)) == (0, [(hawords.WANT, 40, 100)])
    hear(exchange, ha.give(1, ha.Wanted(40, 0, 0), b""), now_ms)
    assert wanting.without == 1
    exchange.lost()
    assert wanting.without == 0


def test_so_many_at_a_time_and_so_much_in_a_turn() -> None:
    said: list[bytes] = []
    wanting = Wanting(*range(0, 100 * ASKED_MAX, 100))
    exchange = Exchange(wanting, said.append)  # type: ignore[arg-type]
    exchange.turn(1, PACE_MS, 1 << 40)
    assert len(said_by(said)) == ASKED_MAX
    hear(exchange, ha.give(1, ha.Wanted(100, 1, 0), b"x"), PACE_MS)
    hear(exchange, ha.give(1, ha.Wanted(100, 1, 0), b"x"), PACE_MS)
    assert wanting.taken == [(100, b"x")]
    exchange.turn(1, 2 * PACE_MS, 1 << 40)
    assert [position for _, position, _ in said_by(said)] == [100]  # still wanted: it did not do
    wanting.large = bytes(GIVEN_BYTES_MAX // 3)
    for _ in range(9):
        hear(exchange, ha.want(1, ha.Wanted(0, 0, 0)), PACE_MS)
    assert len(said) == 3
    said.clear()
    exchange.turn(1, PACE_MS, 0)
    hear(exchange, ha.want(1, ha.Wanted(0, 0, 0)), PACE_MS)
    assert len(said) == 1
