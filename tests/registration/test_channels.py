"""Channels of log topics outlive their master: an unchanged NSQ client publishes, the master is killed, a slave takes its place,
and a consumer there gets what is not finished, and hardly anything that is.
"""

from __future__ import annotations

import contextlib
import json
import random
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import penstock
from etcd_parts import ElectedSet, Etcd
from fronts.nsq_peer import Message, NsqPeer, mpub, sized
from penstock.errors import PenstockError
from polling import eventually
from registration.test_roles import Pair


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path, nsq_port=0, http_port=0)
    try:
        yield made.start()
    finally:
        made.stop()


def drain(peer: NsqPeer, count: int, finish: bool = True) -> list[Message]:
    """So many messages, however long the brokers stand still, and what more comes until none does for a while."""
    found: list[Message] = []
    try:
        while True:
            peer.socket.settimeout(60 if len(found) < count else 1)
            found.append(peer.message())
            if finish:
                peer.finish(found[-1])
    except TimeoutError:
        return found
    finally:
        peer.socket.settimeout(30)


def consumer(address: str, topic: bytes, channel: bytes, ready: int = 100) -> NsqPeer:
    peer = NsqPeer(address)
    peer.subscribe(topic, channel, ready)
    return peer


def told(address: str, what: str) -> dict[str, object]:
    """That of the channels of a topic, as a node sees it."""
    with urllib.request.urlopen(f"http://{address}/stats?format=json&topic=jobs", timeout=30) as answer:
        (topic,) = json.load(answer)["topics"] or [{"channels": []}]
    return {channel["channel_name"]: channel[what] for channel in topic["channels"]}


def depths(address: str) -> dict[str, object]:
    """What they have not finished."""
    return told(address, "depth")


def promote(pair: Pair) -> None:
    done = pair.ha("promote", "--node", "b")
    assert done.returncode == 0, done.stderr


def test_a_killed_master_leaves_its_channels_where_they_were(pair: Pair) -> None:
    a = pair.a.addresses["nsq"]
    producer = NsqPeer(a)
    one, other = consumer(a, b"jobs", b"one"), consumer(a, b"jobs", b"other", 5)
    passing = consumer(a, b"jobs", b"gone#ephemeral")
    producer.publish(b"jobs", *(b"%03d" % n for n in range(200)))
    mine = sorted(drain(one, 200), key=lambda m: m.body)
    assert len({message.body for message in mine}) == 200
    held = {m.body: m for m in drain(other, 5, finish=False)}
    assert len(held) == 5
    for body, message in sorted(held.items())[:3]:  # finished ahead of what is held
        other.finish(message)
        del held[body]
    deferred = NsqPeer(a)  # given back with a delay that is over before the end, and one that is not
    held_ms = {b"later": 4_000, b"soon": 1}
    deferred.subscribe(b"late", b"c", 10)
    for body, delay_ms in held_ms.items():
        producer.publish(b"late", body)
        deferred.send(b"REQ %s %d\n" % (deferred.message().id, delay_ms))
    soon = deferred.message()
    assert (soon.body, soon.attempts) == (b"soon", 2)
    urllib.request.urlopen(f"http://{pair.a.addresses['http']}/channel/pause?topic=jobs&channel=other", b"", timeout=30)
    eventually(lambda: depths(pair.b.addresses["http"]) == {"one": 0, "other": 197}, 60, "the slave has the places")
    eventually(lambda: told(pair.b.addresses["http"], "paused") == {"one": False, "other": True})
    pair.a.kill()
    promote(pair)
    b = pair.b.addresses["nsq"]

    def channels() -> dict[str, bool]:
        with penstock.Admin(pair.name_server) as admin:
            try:
                rows = [row for row in admin.queue_topics() if row["topic"] == "jobs"]
            except PenstockError:
                return {}
            return {c["channel"]: c["paused"] for row in rows for c in row["channels"]}

    eventually(lambda: channels() == {"one": False, "other": True}, 60, "the channels are there")
    again = consumer(b, b"jobs", b"one")
    assert drain(again, 0) == []
    urllib.request.urlopen(
        f"http://{pair.b.addresses['http']}/channel/unpause?topic=jobs&channel=other", b"", timeout=30
    )
    rest = consumer(b, b"jobs", b"other")
    bodies = [message.body for message in drain(rest, 197)]
    assert len(bodies) == len(set(bodies)) == 197
    assert set(held) <= set(bodies)
    late = consumer(b, b"late", b"c")
    assert sorted(message.body for message in drain(late, 2)) == [b"later", b"soon"]
    for peer in (producer, one, other, passing, deferred, again, rest, late):
        peer.close()


class Load:
    """Producers and consumers that know one address at a time: `address()` says which, empty while there is none."""

    def __init__(self, address: Callable[[], str], seed: int) -> None:
        self._address = address
        self._random = random.Random(seed)
        self._over = threading.Event()
        self._produced = threading.Event()
        self._lock = threading.Lock()
        self.acknowledged: set[bytes] = set()
        self.finished: dict[bytes, float] = {}
        self.again: list[float] = []  # how long before it came again a message had been finished
        self.faults: list[bytes] = []
        jobs = [(self._produce, n) for n in range(3)] + [(self._consume, n) for n in range(2)]
        self._threads = [threading.Thread(target=run, args=(n,)) for run, n in jobs]
        for thread in self._threads:
            thread.start()

    def _connections(self) -> Iterator[NsqPeer]:
        while not self._over.is_set():
            address = self._address()
            if self._produced.is_set() and threading.current_thread() in self._threads[:3]:
                return
            try:
                peer = NsqPeer(address)
            except (OSError, ValueError):
                self._over.wait(0.05)
                continue
            peer.socket.settimeout(10)
            try:
                yield peer
            finally:
                peer.close()

    def _produce(self, number: int) -> None:
        n = 0
        for peer in self._connections():
            with contextlib.suppress(OSError, AssertionError):
                while not self._over.is_set() and not self._produced.is_set():
                    bodies = [b"%d-%d" % (number, n + k) for k in range(1 + n % 3)]
                    n += len(bodies)
                    command = mpub(b"jobs", *bodies) if len(bodies) > 1 else b"PUB jobs\n" + sized(bodies[0])
                    answer = peer.ask(command)
                    self._over.wait(0.001)  # consumers are slower
                    if answer == b"OK":
                        with self._lock:
                            self.acknowledged.update(bodies)
                    elif not answer.startswith(
                        (b"E_PUB_FAILED", b"E_MPUB_FAILED", b"E_INVALID PUB this broker is a slave")
                    ):
                        self.faults.append(answer)

    def _consume(self, number: int) -> None:
        for peer in self._connections():
            with contextlib.suppress(OSError, AssertionError):
                peer.subscribe(b"jobs", b"c", 20)
                while not self._over.is_set():
                    self._take(peer, peer.message())

    def _take(self, peer: NsqPeer, message: Message) -> None:
        now, chance = time.monotonic(), self._random.random()
        with self._lock:
            if message.body in self.finished:
                self.again.append(now - self.finished[message.body])
            elif chance < 0.1 and message.attempts < 3:
                peer.send(b"REQ %s %d\n" % (message.id, self._random.randrange(1, 3_000)))
                return
            elif chance < 0.12 and message.attempts < 3:
                return  # it comes again after a while
            self.finished[message.body] = now
        peer.finish(message)

    def settle(self) -> None:
        """No more is published; all that was acknowledged is finished in the end."""
        self._produced.set()
        try:
            eventually(lambda: not self.missing(), 120)
        except AssertionError:
            gone = sorted(self.missing())
            raise AssertionError(f"{len(gone)} of {len(self.acknowledged)} never came: {gone[:10]}") from None

    def missing(self) -> set[bytes]:
        with self._lock:
            return self.acknowledged - self.finished.keys()

    def stop(self) -> None:
        self._produced.set()
        self._over.set()
        for thread in self._threads:
            thread.join()

    def wait_for(self, more: int) -> None:
        """Until so many more are acknowledged."""
        wanted = len(self.acknowledged) + more
        eventually(lambda: len(self.acknowledged) >= wanted, 60, "nothing is acknowledged")


QUICK = {"nsq_port": 0, "http_port": 0, "msg_timeout_ms": 2_000, "ha_answer_ms": 1_000}


@pytest.mark.chaos
def test_what_was_acknowledged_is_consumed_however_often_the_master_is_killed(tmp_path: Path) -> None:
    """kill -9 of the master under load, its slave promoted by hand, the old one back as a slave; three times in turn."""
    pair = Pair(tmp_path, **QUICK)
    try:
        pair.start()
        master = [pair.a]
        load = Load(lambda: master[0].addresses["nsq"], 5)
        try:
            names = {id(pair.a): "a", id(pair.b): "b"}
            for _ in range(3):
                load.wait_for(1_000)
                old, new = master[0], pair.b if master[0] is pair.a else pair.a
                old.kill()

                def promoted(name: str = names[id(new)]) -> bool:
                    return pair.ha("promote", "--node", name).returncode == 0

                eventually(promoted, 60, "not promoted")
                master[0] = new
                old.start()
                pair.in_sync(names[id(new)], names[id(old)])
            load.wait_for(500)
            load.settle()
        finally:
            load.stop()
        assert load.faults == []
        assert len(load.acknowledged) > 3_000
        assert not [s for s in load.again if s > 30], "what was finished long ago came again"
    finally:
        pair.stop()


@pytest.mark.chaos
def test_the_same_where_an_engine_decides(tmp_path: Path, etcd: Etcd) -> None:
    made = ElectedSet(tmp_path, etcd, **QUICK)
    try:
        made.start()
        master = [made.nodes[made.master()]]
        load = Load(lambda: master[0].addresses["nsq"], 6)
        try:
            for _ in range(2):
                load.wait_for(1_000)
                old = master[0]
                old.kill()
                master[0] = made.nodes[made.master()]
                assert master[0] is not old
                old.start()
                made.in_sync()
            load.wait_for(500)
            load.settle()
        finally:
            load.stop()
        assert load.faults == []
        assert not [s for s in load.again if s > 30], "what was finished long ago came again"
    finally:
        made.stop()


def test_changing_places_loses_no_place(pair: Pair) -> None:
    """By `ha switch` the places come along to the last: nothing that was finished before comes again."""
    producer = NsqPeer(pair.a.addresses["nsq"])
    reader = consumer(pair.a.addresses["nsq"], b"jobs", b"c")
    producer.publish(b"jobs", *(b"%d" % n for n in range(50)))
    assert len(drain(reader, 50)) == 50
    for peer in (producer, reader):
        peer.close()
    for old, new in (("a", "b"), ("b", "a")):
        done = pair.ha("switch", "--to", new)
        assert done.returncode == 0, done.stderr
        pair.in_sync(new, old)
        addresses = (pair.b if new == "b" else pair.a).addresses
        refused = NsqPeer((pair.a if new == "b" else pair.b).addresses["nsq"])
        assert b"E_INVALID" in (answer := refused.ask(b"PUB jobs\n" + sized(b"x")))
        assert b"not master" in answer
        refused.close()
        reader, producer = consumer(addresses["nsq"], b"jobs", b"c"), NsqPeer(addresses["nsq"])
        assert drain(reader, 0) == []
        producer.publish(b"jobs", b"after " + new.encode())
        message = reader.message()
        assert message.body == b"after " + new.encode()
        reader.finish(message)
        reader.close()
        producer.close()
