"""When a node may be the master, when it gives its place away, and what it writes down for its next start."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.broker.broker import Broker
from penstock.broker.copies import Member
from penstock.broker.mastership import HAND_OVER_MS, TAKEN_MS, Mastership
from penstock.broker.replica import Replica
from penstock.config import BrokerConfig
from penstock.disk.files import Files
from penstock.errors import Refused
from penstock.log import cutting
from penstock.log.draft import Draft
from penstock.testing import FakeClock
from penstock.wire.ha import Epoch


class Node:
    """A broker without sockets, its mastership, and the reasons for which it would have started anew."""

    def __init__(self, folder: Path, role: str) -> None:
        self.clock = FakeClock()
        self.broker = Broker(
            BrokerConfig(data=str(folder), role=role, ha_port=1, mapped_file_size_commit_log=1 << 20), clock=self.clock
        )
        self.broker.open()
        self.again: list[str] = []
        self.replica = Replica(Files(), folder, "n")
        self.replica.open(lossy=False)
        self.broker.copies.belong(self.replica)
        if role == "slave":
            self.broker.copies.follow(0)
            self.replica.join(b"s" * 16, (Epoch(1, b"8 bytes.", 0),))
        else:
            self.replica.lead(0, 0)
        self.mastership = Mastership(self.broker.core, self.replica, self.again.append)
        self.folder = folder

    def send(self) -> int:
        draft = Draft()
        draft.queue = self.broker.store.queue(b"T", 0)
        draft.set_body(b"x" * 50)
        return self.broker.store.append(draft)

    def role(self) -> object:
        return json.loads((self.folder / "ha" / "replica.json").read_bytes())["role"]

    def step(self, ms: int = 0) -> bool:
        self.clock.advance(ms)
        self.broker.core.time.update()
        self.broker.core.flush_log()
        self.broker.copies.settle(self.broker.mono_ms)
        return self.mastership.step()


@pytest.fixture
def slave(tmp_path: Path) -> Node:
    return Node(tmp_path, "slave")


@pytest.fixture
def master(tmp_path: Path) -> Node:
    return Node(tmp_path, "master")


def test_a_slave_that_was_in_sync_is_promoted(slave: Node) -> None:
    slave.replica.note_in_sync(True)
    slave.mastership.promote(accept_loss=False)
    assert slave.role() == "master"
    assert slave.again == ["promoted"]


def test_who_is_not_promoted(slave: Node) -> None:
    with pytest.raises(Refused, match="not in sync"):
        slave.mastership.promote(accept_loss=False)
    slave.replica.note_in_sync(True)
    slave.broker.copies.told(1_000, 0)
    with pytest.raises(Refused, match="1000 was confirmed"):
        slave.mastership.promote(accept_loss=False)
    slave.mastership.hear_master(True)
    slave.broker.copies.hear("m", 1_000, slave.broker.mono_ms)
    with pytest.raises(Refused, match="is alive"):
        slave.mastership.promote(accept_loss=True)
    slave.mastership.hear_master(False)
    assert slave.again == []
    slave.mastership.promote(accept_loss=True)
    assert slave.again == ["promoted"]


def test_a_slave_takes_the_place_only_where_its_log_ends_as_the_masters(slave: Node) -> None:
    assert not slave.mastership.take(100)
    assert slave.role() == ""
    assert slave.mastership.take(0)
    assert slave.role() == "master"


def member(master: Node, **more: object) -> Member:
    made = Member("other", 1, "there", takes=True)
    master.broker.copies.enter(made)
    end = master.broker.store.end_position
    made.heard(end, end, end, master.broker.mono_ms)
    master.step()
    return made


def test_a_master_gives_its_place_when_the_heir_has_flushed_all(master: Node) -> None:
    assert master.send() == 0
    heir = member(master)
    assert master.send() == 0
    assert master.mastership.switch("") == "other"
    assert master.send() != 0  # nothing more
    assert not master.step()
    assert master.role() == ""
    end = master.broker.store.end_position
    heir.heard(end, end - 1, end, master.broker.mono_ms)
    assert not master.step()
    heir.heard(end, end, end, master.broker.mono_ms)
    assert master.step()
    assert master.role() == "slave"  # before the heir is told
    assert not master.replica.alone
    assert master.again == []
    master.mastership.taken()
    assert len(master.again) == 1


def test_an_heir_that_is_late_leaves_the_place_to_the_master(master: Node) -> None:
    member(master)
    assert master.send() == 0
    master.mastership.switch("other")
    with pytest.raises(Refused, match="about to be"):
        master.mastership.switch("other")
    assert not master.step(HAND_OVER_MS)
    assert master.send() == 0
    assert (master.role(), master.again) == ("", [])


def test_a_place_that_is_given_is_not_taken_back(master: Node) -> None:
    member(master)
    master.mastership.switch("other")
    assert master.step()
    assert not master.step(TAKEN_MS)
    assert master.send() != 0
    assert master.role() == "slave"
    assert master.again == ["the heir has not answered"]


def test_a_place_that_was_lost_while_it_was_to_be_given_away_is_not_kept(master: Node) -> None:
    """The lease ended: what closes the connections, the heir's too, must not open the log again."""
    heir = member(master)
    assert master.send() == 0
    master.mastership.switch("other")
    master.broker.store.follow(True)
    master.broker.copies.lead(False)
    master.broker.copies.leave(heir)
    assert not master.step()
    assert master.mastership.heir is None
    assert master.send() != 0


def test_who_is_no_heir(master: Node) -> None:
    with pytest.raises(Refused, match="no slave is in sync"):
        master.mastership.switch("")
    far = Member("far", 2, "there", takes=True)
    master.broker.copies.enter(far)
    with pytest.raises(Refused, match="catching up"):
        master.mastership.switch("far")
    closed = Member("closed", 3, "there")
    closed.judge(True, "")
    master.broker.copies.enter(closed)
    for name in ("closed", "unknown"):
        with pytest.raises(Refused, match=f"^no slave {name} is in sync and has an ha_port$"):
            master.mastership.switch(name)
    with pytest.raises(Refused, match="node n is the master already"):
        master.mastership.switch("n")


def test_nothing_safe_is_cut(tmp_path: Path) -> None:
    master = Node(tmp_path / "a", "master")
    for _ in range(10):
        assert master.send() == 0
    master.step()
    end = master.broker.store.end_position
    assert not master.mastership.cut(end // 2, 2, "other")  # it was alone
    heir = member(master)
    heir.heard(end, end, end, master.broker.mono_ms)
    master.step()
    assert not master.replica.alone
    assert master.send() == 0
    assert not master.mastership.cut(end - 1, 2, "other")
    assert cutting.intended(Files(), master.folder) is None
    assert master.mastership.cut(end, 2, "other")
    intent = cutting.intended(Files(), master.folder)
    assert intent is not None
    assert (intent.to, intent.end) == (end, master.broker.store.end_position)
    assert len(master.again) == 1


def test_a_master_that_is_superseded_is_a_slave_and_knows_where_to_go(master: Node) -> None:
    master.mastership.superseded("other", "10.0.0.2:10912", 5)
    assert master.role() == "slave"
    assert master.replica.peers == {"other": "10.0.0.2:10912"}
    assert len(master.again) == 1
