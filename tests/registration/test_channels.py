"""Channels of log topics outlive their master: an unchanged NSQ client publishes, the master is killed, a slave takes its place,
and a consumer there gets what is not finished, and hardly anything that is.
"""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from fronts.nsq_peer import Message, NsqPeer
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


def drain(peer: NsqPeer, until: float = 1.0, finish: bool = True) -> list[Message]:
    """All messages that come, until none does for a while."""
    found = []
    peer.socket.settimeout(until)
    try:
        while True:
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


def promote(pair: Pair) -> None:
    done = pair.ha("promote", "--node", "b")
    assert done.returncode == 0, done.stderr


def test_a_killed_master_leaves_its_channels_where_they_were(pair: Pair) -> None:
    a = pair.a.addresses["nsq"]
    producer = NsqPeer(a)
    one, other = consumer(a, b"jobs", b"one"), consumer(a, b"jobs", b"other", 5)
    passing = consumer(a, b"jobs", b"gone#ephemeral")
    producer.publish(b"jobs", *(b"%03d" % n for n in range(200)))
    mine = sorted(drain(one), key=lambda m: m.body)
    assert len({message.body for message in mine}) == 200
    held = {m.body: m for m in drain(other, finish=False)}
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
    time.sleep(2.5)  # what is finished is told once a second
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
    assert drain(again) == []
    urllib.request.urlopen(
        f"http://{pair.b.addresses['http']}/channel/unpause?topic=jobs&channel=other", b"", timeout=30
    )
    rest = consumer(b, b"jobs", b"other")
    bodies = [message.body for message in drain(rest)]
    assert len(bodies) == len(set(bodies)) == 197
    assert set(held) <= set(bodies)
    late = consumer(b, b"late", b"c")
    assert sorted(message.body for message in drain(late, 8.0)) == [b"later", b"soon"]
    for peer in (producer, one, other, passing, deferred, again, rest, late):
        peer.close()
