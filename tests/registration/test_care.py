"""Failover is paused and resumed, nodes are forgotten: with real etcd, a registry, and brokers as processes."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path

import pytest
from msgspec.structs import replace

from etcd_parts import ElectedSet, Etcd
from penstock.errors import LimitReached, NotFound, PenstockError, Refused
from penstock.registration.care import WISHES_MAX, Caretaker
from penstock.registration.engine import EngineAway
from polling import eventually
from registration.test_campaign import LEASES_S, acknowledged, passes
from registration.test_election import Node, found

pytestmark = pytest.mark.chaos  # once is enough: processes, not modules


def held(etcd: Etcd) -> set[str]:
    return set(etcd.keys())


def done(made: ElectedSet, *words: str) -> list[dict[str, object]]:
    result = made.ha(*words, "--json")
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_while_failover_is_paused_only_the_old_master_takes_the_place(pair: ElectedSet) -> None:
    wanted = acknowledged(pair.send(range(10)))
    old = pair.master()
    other = next(iter(set("ab") - {old}))
    assert done(pair, "resume") == [{"broker": "broker-a", "paused": False, "changed": False}]
    assert done(pair, "pause", "--dry-run") == [{"broker": "broker-a", "paused": False, "changed": False}]
    assert not pair.state().get("paused")
    for verb, paused in (("pause", True), ("resume", False), ("pause", True)):
        assert done(pair, verb, "--broker", "broker-a") == [{"broker": "broker-a", "paused": paused, "changed": True}]
        assert [row["paused"] for row in pair.rows().values()] == ["yes" if paused else ""] * 2  # already
    assert done(pair, "pause") == [{"broker": "broker-a", "paused": True, "changed": False}]
    pair.nodes[old].stop()  # SIGTERM: it does not hand over, either
    eventually(lambda: "failover is paused" in str(pair.row(other)["why_not"]))
    passes(LEASES_S)
    assert pair.row(other)["role"] == "slave"
    assert pair.state()["master"] == old
    pair.nodes[old].start()
    assert pair.master() == old
    pair.in_sync()
    wanted |= acknowledged(pair.send(range(100, 110)))
    pair.nodes[old].kill()
    eventually(lambda: "failover is paused" in str(pair.row(other)["why_not"]))
    refused = pair.ha("forget", old, "--yes")
    assert (refused.returncode, "is in sync as the engine has it" in refused.stderr) == (1, True)
    assert pair.row(other)["role"] == "slave"
    assert done(pair, "resume") == [{"broker": "broker-a", "paused": False, "changed": True}]  # asked of a slave
    assert pair.master() == other
    pair.nodes[old].start()
    pair.in_sync()
    wanted |= acknowledged(pair.send(range(200, 210)))
    pair.holds(wanted)
    assert len(wanted) == 30
    pair.same_logs()


def test_what_a_person_asks_is_done_while_failover_is_paused(pair: ElectedSet, etcd: Etcd) -> None:
    old = pair.master()
    new = next(iter(set("ab") - {old}))
    assert done(pair, "pause")[0]["changed"]
    switched = pair.ha("switch", "--to", new)
    assert switched.returncode == 0, switched.stderr
    pair.in_sync()
    assert pair.state()["paused"]  # of the set, whoever is the master
    pair.nodes[new].kill()
    eventually(lambda: "failover is paused" in str(pair.row(old)["why_not"]))
    promoted = pair.ha("promote", "--node", old)
    assert promoted.returncode == 0, promoted.stderr
    assert pair.state()["master"] == old
    etcd.signal(signal.SIGSTOP)
    try:
        away = pair.ha("resume")
        assert away.returncode == 1
        assert "no answer in time" in away.stderr
        assert "Traceback" not in away.stderr
    finally:
        etcd.signal(signal.SIGCONT)
    eventually(lambda: pair.ha("resume").returncode == 0)
    assert not pair.state()["paused"]


def test_a_node_that_does_not_come_back_is_forgotten(tmp_path: Path, etcd: Etcd) -> None:
    made = ElectedSet(tmp_path, etcd, "abc")
    try:
        made.start()
        gone = sorted(set("abc") - {made.master()})[0]
        rest = sorted(set("abc") - {gone})
        key = f"/penstock/DefaultCluster/broker-a/loss/{gone}"
        assert made.ha("forget", gone, "--yes").returncode == 1  # it answers
        made.nodes[gone].kill()
        made.in_sync(*rest)
        assert made.ha("forget", gone).returncode == 2  # not asked on a terminal
        assert made.ha("forget", "nosuch", "--yes").returncode == 3
        seen = done(made, "forget", gone, "--dry-run")
        assert sorted(str(row["at"]) for row in seen) == rest
        assert all(row["engine"] and not row["done"] for row in seen)
        assert any(row["address"] for row in seen)
        assert key in held(etcd)
        assert all(row["done"] == "forget" for row in done(made, "forget", gone, "--yes"))
        assert key not in held(etcd)
        for name in rest:
            table = json.loads((made.nodes[name].folder / "ha" / "replica.json").read_text())
            assert gone not in table["peers"]
        assert made.ha("forget", gone, "--yes").returncode == 3  # nobody knows it any more
        wanted = acknowledged(made.send(range(10)))
        made.nodes[gone].start()  # and yet
        made.in_sync()
        assert key in held(etcd)
        made.holds(wanted)
        made.same_logs()
    finally:
        made.stop()


@pytest.fixture
def three(tmp_path: Path, etcd: Etcd, patient: None) -> list[Node]:
    return [Node(tmp_path, name, etcd.setting) for name in "abc"]


async def test_a_pause_and_a_change_of_the_set_at_once_are_both_made(three: list[Node]) -> None:
    a, b, c = three
    await found(a, b, c)
    term = a.election.term
    assert term is not None
    without = {node: loss for node, loss in term.state.in_sync.items() if node != "c"}
    changed, _ = await asyncio.gather(
        b.election.amend(lambda state: replace(state, paused=True)),
        a.election.write(replace(term.state, in_sync=without), {}),
    )
    assert changed
    view = await a.election.look()
    assert view.state is not None
    assert view.state.paused
    if view.state.in_sync != without:  # the pause was first: the master reads it, and asks again
        term.written(view.state, view.revision)
        assert await a.election.write(replace(view.state, in_sync=without), {})
    view = await c.election.look()
    assert view.state is not None
    assert (view.state.in_sync, view.state.paused) == (without, True)
    assert b.election.rests(view).startswith("failover is paused, and a was the master")
    assert a.election.rests(view) == ""
    assert b.election.rests(view._replace(state=replace(view.state, heir="b"))) == ""
    for node in three:
        await node.election.close()


async def test_a_pause_of_which_nothing_was_heard_is_read_again(three: list[Node]) -> None:
    a, b, _ = three
    with pytest.raises(NotFound):
        await b.election.amend(lambda state: state)
    await found(a, b)
    b.engine.deaf = True
    assert await b.election.amend(lambda state: replace(state, paused=True))  # it was made
    assert not await b.election.amend(lambda state: replace(state, paused=True))
    count = [0]

    def another(state: object) -> object:
        count[0] += 1
        return replace(state, heir=f"n{count[0]}")  # type: ignore[type-var]

    with pytest.raises(EngineAway):
        await b.election.amend(another)  # type: ignore[arg-type]
    assert count[0] == 3
    for node in three:
        await node.election.close()


class Tended:
    """What a caretaker needs of a mastership."""

    def __init__(self) -> None:
        self.forgotten: list[str] = []

    def tend_by(self, tending: object) -> None:
        self.tending = tending

    def forget(self, node: str, *, dry_run: bool) -> str:
        if not dry_run:
            self.forgotten.append(node)
        return "1.2.3.4:5"


async def test_who_asks_too_much_is_refused_and_everybody_else_is_answered_once(three: list[Node]) -> None:
    a, b, _ = three
    await found(a, b)
    begun: list[int] = []
    side = Tended()
    care = Caretaker(lambda: begun.append(1), side, a.election)  # type: ignore[arg-type]
    told: list[object] = []
    for _ in range(WISHES_MAX - 2):
        care.pause(True, told.append)
    care.forget("b", False, told.append)
    care.forget("c", True, told.append)
    with pytest.raises(LimitReached):
        care.pause(False, told.append)
    running = asyncio.create_task(care.run())
    async with asyncio.timeout(60):
        while len(told) < WISHES_MAX:
            await asyncio.sleep(0.01)
    running.cancel()
    assert told[:2] == [{"changed": True}, {"changed": False}]
    assert isinstance(told[-2], Refused)
    assert isinstance(told[-2], PenstockError)
    assert told[-1] == {"address": "1.2.3.4:5", "engine": False}
    assert side.forgotten == []
    assert len(begun) == WISHES_MAX
    for node in three:
        await node.election.close()


def test_a_slave_says_itself_what_its_master_cannot_know(pair: ElectedSet) -> None:
    """Whether it reaches the engine, which set that names, whether failover is paused: in `ha status`, at every node."""
    assert done(pair, "pause")[0]["changed"]

    def told() -> bool:
        rows = done(pair, "status")
        return len(rows) == 2 and all(
            (row["engine"], row["set"], row["paused"]) == ("reached", "a,b", "yes") for row in rows
        )

    eventually(told)
    assert sum(row["lease_ms"] != "" for row in done(pair, "status")) == 1  # of the master alone
