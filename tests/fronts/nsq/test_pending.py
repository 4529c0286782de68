"""NSQ's publishes to topics of level `pair`: OK once slaves have them, in the order of the commands, and never otherwise."""

from __future__ import annotations

import json
import select
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fronts.nsq_peer import NsqPeer, mpub, sized
from ha_parts import Peer, eventually
from penstock.app import Server
from penstock.broker.nsq.copied import Copy
from penstock.broker.nsq.topics import Topic
from penstock.fronts.ha import HaFront
from penstock.fronts.nsq.pending import Pending
from penstock.testing import Broker
from penstock.wire import ha, haframe, hawords
from penstock.wire.nsq import OK_FRAME

SECRET = b""
RULES = (
    {"name": "safe", "kind": "log", "level": "pair"},
    {"name": "safer", "kind": "log", "level": "pair-disk"},
    {"name": "plain", "kind": "log", "level": "os"},
    {"name": "jobs", "kind": "queue", "level": "disk"},
)
LATE = b"stored, not replicated: not every slave in sync"
ALONE = b"stored, not replicated: no slave is in sync"


def front_of_server(server: Server) -> HaFront:
    return next(front for front in server._process.fronts if isinstance(front, HaFront))


def silent(peer: NsqPeer) -> bool:
    """Whether a connection has said nothing for a while."""
    poll = select.poll()  # a test run may have more than 1,024 files open
    poll.register(peer.socket, select.POLLIN)
    return not peer._read and not poll.poll(300)


class Slave:
    """A slave by hand: what it acknowledges, the test says."""

    def __init__(self, master: Broker) -> None:
        self.master = master
        self.peer = Peer(master.addresses["ha"])
        self.peer.greet()
        told = ha.Hello(
            b"n" * 16, bytes(16), b"i" * 16, 0, 1 << 30, 0, 0, 0, 0, 0, (), {"node": "peer", "brokerId": 5}
        )  # fmt: skip
        size = master.call(lambda server: server.broker.store.log.file.size)
        self.peer.send(ha.hello(told._replace(segment_size=size), SECRET, self.peer.nonce))
        head, body = self.peer.frame() or pytest.fail("closed")
        assert head.kind == hawords.ACCEPT, body
        self.epoch = head.epoch
        self.peer.send(ha.start(self.epoch, 0))
        self.read = 0

    def end(self) -> int:
        return int(self.master.call(lambda server: server.broker.store.end_position))

    def follow(self, flushed: int | None = None) -> None:
        """Take in all there is, and say so; `flushed`: so much is on the disk."""
        end = self.end()
        self._acknowledge(flushed)
        while self.read < end:
            head, body = self.peer.frame() or pytest.fail("closed")
            if head.kind == hawords.DATA:
                self.read = haframe.read_positions(body, 0).position + len(body) - 40 - 8 * head.entries
                self._acknowledge(flushed)

    def _acknowledge(self, flushed: int | None) -> None:
        on_disk = self.read if flushed is None else flushed
        self.peer.send(haframe.ack(self.epoch, haframe.Ack(self.read, on_disk, self.read, 1 << 30)))

    def be_in_sync(self) -> None:
        def followed() -> bool:
            self.follow()
            return bool(self.master.call(lambda server: server.broker.copies.available))

        eventually(followed)

    def follow_on(self, peer: NsqPeer) -> tuple[int, bytes]:
        """Follow until the connection has an answer."""
        while silent(peer):
            self.follow()
        return peer.frame() or pytest.fail("closed")


@pytest.fixture
def master(tmp_path: Path) -> Iterator[Broker]:
    with Broker(tmp_path / "a", ha_port=0, node="a", topic=RULES, ha_answer_ms=60_000, ha_in_sync_ms=60_000) as broker:
        yield broker


@pytest.fixture
def slave(master: Broker) -> Iterator[Slave]:
    made = Slave(master)
    first = NsqPeer(master.nsq)
    assert first.ask(b"PUB plain\n" + sized(b"first")) == b"OK"
    first.close()
    made.be_in_sync()
    yield made
    made.peer.close()


@pytest.mark.parametrize("topic", [b"safe", b"safer"])
def test_ok_comes_once_the_slave_has_it(master: Broker, slave: Slave, topic: bytes) -> None:
    peer = NsqPeer(master.nsq)
    peer.send(
        b"PUB %s\n" % topic + sized(b"one") + mpub(topic, b"two", b"three") + b"DPUB %s 1\n" % topic + sized(b"x")
    )
    assert silent(peer)
    assert [slave.follow_on(peer) for _ in range(3)] == [(0, b"OK")] * 3
    peer.close()


def test_at_level_pair_disk_ok_waits_for_the_disk_of_the_slave(master: Broker, slave: Slave) -> None:
    before = slave.read
    peer = NsqPeer(master.nsq)
    peer.send(b"PUB safer\n" + sized(b"one"))
    slave.follow(flushed=before)
    assert silent(peer)
    assert slave.follow_on(peer) == (0, b"OK")
    peer.close()


def test_answers_keep_the_order_of_the_commands(master: Broker, slave: Slave) -> None:
    """What needs no slave waits behind what does, whatever it waits for itself; another connection does not."""
    peer, other = NsqPeer(master.nsq), NsqPeer(master.nsq)
    peer.send(
        b"PUB safe\n" + sized(b"1") + b"PUB plain\n" + sized(b"2") + b"PUB jobs\n" + sized(b"3") + mpub(b"safe", b"4")
        + b"PUB safer\n" + sized(b"5") + b"SUB plain c\n" + b"FIN 0123456789abcdef\n"
    )  # fmt: skip
    other.publish(b"plain", b"at once")
    assert silent(peer)
    assert [slave.follow_on(peer) for _ in range(6)] == [(0, b"OK")] * 6
    assert slave.follow_on(peer)[1].startswith(b"E_FIN_FAILED")
    peer.close()
    other.close()


def test_two_connections_wait_each_for_its_own(master: Broker, slave: Slave) -> None:
    one, other = NsqPeer(master.nsq), NsqPeer(master.nsq)
    one.send(b"PUB safe\n" + sized(b"one"))
    assert silent(one)
    assert slave.follow_on(one) == (0, b"OK")
    other.send(b"PUB safe\n" + sized(b"other"))
    assert silent(other)
    other.close()  # and its answer goes with it
    slave.follow()
    one.send(b"PUB safe\n" + sized(b"once more"))
    assert slave.follow_on(one) == (0, b"OK")
    one.close()


def test_a_slave_that_goes_while_answers_wait(tmp_path: Path) -> None:
    """The time is up, no OK is said, and the connection goes on; then there is none in sync at all."""
    with Broker(tmp_path / "a", ha_port=0, node="a", topic=RULES, ha_answer_ms=700) as master:
        slave = Slave(master)
        peer = NsqPeer(master.nsq)
        peer.publish(b"plain", b"first")
        slave.be_in_sync()
        peer.send(mpub(b"safe", b"one", b"two") + b"PUB safe\n" + sized(b"three") + b"DPUB safe 1\n" + sized(b"four"))
        slave.peer.close()
        for verb in (b"MPUB", b"PUB", b"DPUB"):
            kind, text = peer.frame() or pytest.fail("closed")
            assert kind == 1
            assert text.startswith(b"E_%s_FAILED %s failed %s" % (verb, verb, b"stored, not replicated"))
        assert not master.call(lambda server: server.broker.copies.available)
        for topic in (b"safe", b"safer"):
            assert ALONE in peer.ask(b"PUB " + topic + b"\n" + sized(b"alone"))
        peer.publish(b"plain", b"goes on")
        peer.subscribe(b"safe", b"c", 10)  # what was refused so was stored
        assert sorted(peer.message().body for _ in range(5)) == [b"alone", b"four", b"one", b"three", b"two"]
        peer.close()


def test_late_is_said_while_the_slave_is_there(tmp_path: Path) -> None:
    with Broker(tmp_path / "a", ha_port=0, node="a", topic=RULES, ha_answer_ms=300, ha_in_sync_ms=60_000) as master:
        slave = Slave(master)
        peer = NsqPeer(master.nsq)
        peer.publish(b"plain", b"first")
        slave.be_in_sync()
        assert LATE in peer.ask(b"PUB safe\n" + sized(b"late"))
        slave.follow()
        assert peer.ask(b"PUB plain\n" + sized(b"x")) == b"OK"
        peer.close()
        slave.peer.close()


def test_with_min_in_sync_nothing_is_stored_while_the_master_is_alone(tmp_path: Path) -> None:
    with Broker(tmp_path / "a", ha_port=0, node="a", topic=RULES, min_in_sync=2) as master:
        end = master.call(lambda server: server.broker.store.end_position)
        for command in (b"PUB safe\n" + sized(b"x"), mpub(b"safe", b"x", b"y"), b"DPUB safe 1\n" + sized(b"x")):
            peer = NsqPeer(master.nsq)
            answer = peer.ask(command)
            assert b"PUB_FAILED" in answer
            assert b"nothing is stored" in answer
            peer.close()
        assert master.call(lambda server: server.broker.store.end_position) == end


def test_http_says_that_it_is_not_replicated(tmp_path: Path) -> None:
    with Broker(tmp_path / "a", ha_port=0, node="a", topic=RULES) as master:
        for path in ("pub?topic=safe", "mpub?topic=safer", "pub?topic=safe&defer=1"):
            with pytest.raises(urllib.error.HTTPError) as caught:
                urllib.request.urlopen(f"http://{master.http}/{path}", b"x", timeout=30)
            with caught.value as refused:
                assert (refused.code, json.loads(refused.read())["message"]) == (503, "STORED_NOT_REPLICATED")
        slave = Slave(master)
        slave.be_in_sync()
        with ThreadPoolExecutor(1) as pool:
            url = f"http://{master.http}/pub?topic=safe"
            answer = pool.submit(lambda: urllib.request.urlopen(url, b"x", timeout=30).read())
            while not answer.done():
                slave.follow()
            assert answer.result() == b"OK"
        slave.peer.close()


def test_answers_of_one_kind_are_said_together() -> None:
    topic = Topic.__new__(Topic)
    held = Pending(0, topic, b"PUB")
    held.wait_for(3)
    held.join()
    held.join()
    assert held.joins(topic, b"PUB", 3)
    assert not held.joins(topic, b"MPUB", 3)
    assert not held.joins(topic, b"PUB", 4)
    held.put(b"message")
    assert not held.joins(topic, b"PUB", 3)
    rejected: dict[bytes, int] = {}
    held.tell(Copy.THERE, rejected)
    assert held.answers() == OK_FRAME * 2 + b"message"
    held.tell(Copy.LATE, rejected)
    assert rejected == {b"E_PUB_FAILED": 2}


def test_a_new_channel_is_ok_once_the_slave_was_told(master: Broker, slave: Slave) -> None:
    """Or once the time is up: it is there all the same. One that there was before has not to wait, nor an ephemeral one."""
    peer = NsqPeer(master.nsq)
    peer.send(b"SUB safe c\n")
    assert silent(peer)
    assert slave.follow_on(peer) == (0, b"OK")
    again, passing = NsqPeer(master.nsq), NsqPeer(master.nsq)
    assert again.ask(b"SUB safe c\n") == b"OK"
    assert passing.ask(b"SUB safe e#ephemeral\n") == b"OK"
    slave.peer.close()
    eventually(lambda: not master.call(lambda server: server.broker.copies.available))
    alone = NsqPeer(master.nsq)
    assert alone.ask(b"SUB safer d\n") == b"OK"
    for one in (peer, again, passing, alone):
        one.close()


def test_a_channel_that_slaves_are_late_to_know_is_there(tmp_path: Path) -> None:
    with Broker(tmp_path / "a", ha_port=0, node="a", topic=RULES, ha_answer_ms=300, ha_in_sync_ms=60_000) as master:
        slave = Slave(master)
        peer = NsqPeer(master.nsq)
        peer.publish(b"plain", b"first")
        slave.be_in_sync()
        assert peer.ask(b"SUB safe c\n") == b"OK"
        peer.close()
        slave.peer.close()


def test_a_master_that_gives_up_its_place_says_ok_to_nothing(tmp_path: Path) -> None:
    """Whatever slaves acknowledge then: they may follow another one."""
    with Broker(tmp_path / "a", ha_port=0, node="a", topic=RULES, ha_answer_ms=4_000, ha_in_sync_ms=60_000) as master:
        slave = Slave(master)
        peer = NsqPeer(master.nsq)
        peer.publish(b"plain", b"first")
        slave.be_in_sync()
        peer.send(b"PUB safe\n" + sized(b"one"))
        assert silent(peer)
        master.call(lambda server: front_of_server(server).retire())
        slave.follow()
        kind, text = peer.frame() or pytest.fail("closed")
        assert (kind, LATE in text) == (1, True)
        assert b"It is a slave" in peer.ask(b"PUB safe\n" + sized(b"two"))
        peer.close()
        slave.peer.close()


def test_a_slave_says_where_nobody_publishes(tmp_path: Path) -> None:
    with (
        Broker(tmp_path / "a", ha_port=0, node="a", topic=RULES) as master,
        Broker(
            tmp_path / "b", role="slave", ha_master=master.addresses["ha"], node="b", topic=RULES, registry_port=-1,
            lookup_port=-1, lookup_http_port=-1,
        ) as slave,
    ):  # fmt: skip
        eventually(lambda: master.call(lambda server: server.broker.copies.available))
        producer = NsqPeer(master.nsq)
        producer.publish(b"safe", b"x")
        for command in (
            b"PUB safe\n" + sized(b"x"),
            mpub(b"safe", b"x"),
            b"DPUB safe 1\n" + sized(b"x"),
            b"SUB safe c\n",
        ):
            peer = NsqPeer(slave.nsq)
            answer = peer.ask(command)
            assert answer.startswith(b"E_INVALID")
            assert b"not master" in answer
            assert peer.frame() is None
            peer.close()
        producer.close()
