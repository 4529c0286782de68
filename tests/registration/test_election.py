"""What a node reads and writes at the engine, with real etcd: of several who stand one wins, whatever is heard of it."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from etcd_parts import Etcd as RealEtcd
from penstock.broker.replica import Replica
from penstock.broker.term import Seat
from penstock.clock import FakeClock
from penstock.config import BrokerConfig
from penstock.disk.files import Files
from penstock.registration.election import Election
from penstock.registration.engine import EngineAway
from penstock.registration.etcd import Etcd
from penstock.wire.etcd import Condition, Put, read_grant


class Deaf(Etcd):
    """Changes are made, and no answer comes, while `deaf`."""

    deaf = False

    async def change(self, conditions: Sequence[Condition], puts: Sequence[Put]) -> int:
        revision = await super().change(conditions, puts)
        if self.deaf:
            raise EngineAway("no answer")
        return revision


class Node:
    def __init__(self, folder: Path, name: str, setting: str) -> None:
        self.config = BrokerConfig(engine=setting, node=name, lease_ms=5_000)
        self.clock = FakeClock()
        self.engine = Deaf(self.config)
        self.election = Election(self.config, name, self.clock, self.engine)
        self.replica = Replica(Files(), folder / name, name)
        (folder / name).mkdir(exist_ok=True)
        self.replica.open(lossy=False)

    async def stand(self, *, forced: bool = False) -> bool:
        view = await self.election.look()
        await self.election.tell_loss(self.replica)
        return await self.election.stand(view, self.replica, self.seat, forced=forced)

    def seat(self, epoch: int) -> Seat:
        return Seat(self.election.node, epoch, f"{self.election.node}:1", f"{self.election.node}:2")

    async def why_not(self) -> str:
        return self.election.may_stand(await self.election.look(), self.replica)

    def lead(self) -> None:
        """What a start as the master does with its folder."""
        term = self.election.term
        assert term is not None
        state = term.state
        self.replica.lead_by(bytes.fromhex(state.set_id), state.epoch, bytes.fromhex(state.tag), 0, 0, alone=False)

    def follow(self, master: Node) -> None:
        self.replica.join(master.replica.set_id, master.replica.epochs)


@pytest.fixture
async def nodes(real: RealEtcd, tmp_path: Path, patient: None) -> AsyncIterator[list[Node]]:
    real.empty()
    made = [Node(tmp_path, name, real.setting) for name in "abc"]
    yield made
    for node in made:
        await node.election.close()


async def found(a: Node, *others: Node) -> None:
    """A set of these, with a as the master."""
    assert await a.stand()
    a.lead()
    term = a.election.term
    assert term is not None
    for other in others:
        await other.election.tell_loss(other.replica)
        other.follow(a)
    losses = {other.election.node: other.replica.loss for other in others}
    assert await a.election.write(replace(term.state, in_sync=term.state.in_sync | losses), losses)


async def test_of_all_who_found_a_set_at_once_one_does(nodes: list[Node]) -> None:
    won = await asyncio.gather(*(node.stand() for node in nodes))
    assert sorted(won) == [False, False, True]
    view = await nodes[0].election.look()
    assert view.state is not None
    assert view.seat is not None
    assert (view.state.epoch, view.seat.node) == (1, view.state.master)
    assert [node.election.leads for node in nodes] == list(won)


async def test_of_all_who_stand_at_once_one_wins(nodes: list[Node]) -> None:
    a, b, c = nodes
    for turn in range(2, 12):
        if turn == 2:
            await found(a, b, c)
        leader = next(node for node in nodes if node.election.leads)
        rest = [node for node in nodes if node is not leader]
        await leader.election.resign("away")
        won = await asyncio.gather(*(node.stand() for node in rest))
        assert sorted(won) == [False, True]
        winner = rest[won.index(True)]
        term = winner.election.term
        assert term is not None
        assert term.state.epoch == turn
        assert leader.election.node not in term.state.in_sync
        winner.lead()
        for node in nodes:
            if node is not winner:
                node.follow(winner)
        losses = {node.election.node: node.replica.loss for node in nodes}
        assert await winner.election.write(replace(term.state, in_sync=losses), losses)


async def test_who_may_stand(nodes: list[Node], tmp_path: Path, real: RealEtcd) -> None:
    a, b, c = nodes
    await found(a, b)
    await a.election.resign("away")
    assert await a.why_not() == await b.why_not() == ""
    assert "was not in sync: a, b may be" in await c.why_not()
    c.follow(a)
    assert "was not in sync" in await c.why_not()
    b.replica.open(lossy=True)  # a power cut
    assert "power cut" in await b.why_not()
    emptied = Node(tmp_path / "..", "b", real.setting)  # the same name, an empty folder
    assert "power cut" in await emptied.why_not()
    c.replica.set_id = bytes(15) + b"\1"
    assert "another replica set" in await c.why_not()
    real.empty()
    assert "knows nothing of this replica set" in await a.why_not()
    assert await emptied.why_not() == ""  # a new node founds a set
    await emptied.election.close()


async def test_a_master_that_is_alone_in_its_set_comes_back_after_a_power_cut(nodes: list[Node]) -> None:
    a, b, _ = nodes
    await found(a)
    await a.election.resign("power cut")
    a.replica.open(lossy=True)
    assert await a.why_not() == ""
    b.replica.loss = a.replica.loss
    assert "was not in sync" in await b.why_not()
    assert await a.stand()
    a.lead()
    assert a.election.term is not None
    assert a.election.term.state.epoch == 2


async def test_the_folder_of_a_slave_does_not_stand_as_the_master_that_was_alone(
    nodes: list[Node], tmp_path: Path, real: RealEtcd
) -> None:
    """It has seen the same epoch, and perhaps not all of it: led it has another folder."""
    a, _, _ = nodes
    await found(a)
    (tmp_path / "swapped").mkdir()
    other = Node(tmp_path / "swapped", "a", real.setting)
    other.follow(a)
    await a.election.resign("killed")
    assert "its folder is not the one that was in sync" in await other.why_not()
    assert await a.why_not() == ""
    await other.election.close()


async def test_a_node_that_lost_its_end_is_not_taken_in_by_its_former_session(nodes: list[Node]) -> None:
    a, b, _ = nodes
    await found(a)
    term = a.election.term
    assert term is not None
    await b.election.tell_loss(b.replica)
    before = b.replica.loss
    b.replica.open(lossy=True)
    await b.election.tell_loss(b.replica)
    wanted = {**term.state.in_sync, "b": before}
    assert not await a.election.write(replace(term.state, in_sync=wanted), {"b": before})
    wanted["b"] = b.replica.loss
    assert await a.election.write(replace(term.state, in_sync=wanted), {"b": b.replica.loss})


async def test_a_win_that_was_not_heard_of_is_found(nodes: list[Node]) -> None:
    a, b, _ = nodes
    a.engine.deaf = True
    with pytest.raises(EngineAway):
        await a.election.stand(await a.election.look(), a.replica, a.seat, forced=False)
    a.engine.deaf = False
    assert not a.election.leads
    view = await a.election.look()
    assert a.election.has_won(view)
    assert a.election.leads
    assert not b.election.has_won(await b.election.look())
    assert a.election.ends_ms == a.clock.monotonic_ms() + 4_000


async def test_the_lease_counts_from_before_it_was_asked_for(nodes: list[Node]) -> None:
    a = nodes[0]
    asked_ms = a.clock.monotonic_ms()
    grant = a.engine.grant

    async def slow(ttl_s: int) -> int:
        lease = await grant(ttl_s)
        a.clock.advance(3_500)  # the answer was long under way
        return lease

    a.engine.grant = slow  # type: ignore[method-assign]
    assert await a.stand()
    assert a.election.ends_ms == asked_ms + 4_000
    a.clock.jump(-10_000_000)  # the wall clock is nobody's business
    assert a.election.ends_ms == asked_ms + 4_000


async def test_a_lease_is_kept_and_its_end_is_the_end(nodes: list[Node], real: RealEtcd) -> None:
    a = nodes[0]
    a.election.lease_ms = 100  # how often it is renewed
    assert await a.stand()
    term = a.election.term
    assert term is not None
    first = a.election.ends_ms
    a.election.start()
    a.clock.advance(50)
    for _ in range(3_000):
        if a.election.ends_ms > first or term.over:
            break
        await asyncio.sleep(0.02)
    assert a.election.ends_ms == first + 50
    real.ask("lease/revoke", {"ID": str(term.lease)})
    for _ in range(3_000):
        if term.over:
            break
        await asyncio.sleep(0.02)
    assert term.over == "the lease is gone"
    assert not a.election.leads


@pytest.mark.parametrize("value", ["", "{}", "nonsense", '{"epoch":1}'])
async def test_a_state_that_is_none_is_as_good_as_no_answer(nodes: list[Node], real: RealEtcd, value: str) -> None:
    key = b64encode(b"/penstock/DefaultCluster/broker-a/state").decode()
    real.ask("kv/put", {"key": key, "value": b64encode(value.encode()).decode()})
    with pytest.raises(EngineAway):
        await nodes[0].election.look()
    assert "something else" in nodes[0].election.away


async def test_a_lease_that_is_kept_makes_no_state_of_what_is_none(nodes: list[Node], real: RealEtcd) -> None:
    """People are told that the engine is no use, and not that it is reached whenever the lease is kept."""
    a = nodes[0]
    a.election.lease_ms = 100  # how often it is renewed
    assert await a.stand()
    key = b64encode(b"/penstock/DefaultCluster/broker-a/state").decode()
    good = real.keys()["/penstock/DefaultCluster/broker-a/state"]
    real.ask("kv/put", {"key": key, "value": b64encode(b"{}").decode()})
    with pytest.raises(EngineAway):
        await a.election.look()
    first = a.election.ends_ms
    a.election.start()
    a.clock.advance(50)
    for _ in range(3_000):
        if a.election.ends_ms > first:
            break
        await asyncio.sleep(0.02)
    assert a.election.ends_ms > first
    assert "something else" in str(a.election.row(a.clock.monotonic_ms())["engine"])
    real.ask("kv/put", {"key": key, "value": b64encode(good).decode()})
    await a.election.look()
    assert a.election.row(a.clock.monotonic_ms())["engine"] == "reached"


async def test_a_number_of_a_node_that_makes_no_sense_is_passed_over(nodes: list[Node], real: RealEtcd) -> None:
    """Whoever can write below the prefix could end all nodes at once with one key: 5,000 digits, or brackets without end."""
    for name, value in (("loss/x", b"9" * 5_000), ("nodes/x", b"[" * 100_000), ("nodes/y", b"[1e999,2]")):
        key = b64encode(f"/penstock/DefaultCluster/broker-a/{name}".encode()).decode()
        real.ask("kv/put", {"key": key, "value": b64encode(value).decode()})
    view = await nodes[0].election.look()
    assert not view.losses
    assert not view.standing


async def test_a_change_that_is_still_under_way_is_kept_from_being_made(nodes: list[Node]) -> None:
    """It hangs at a member; the known set is written once more, and then it cannot be made, whenever the member wakes."""
    a, b, _ = nodes
    await found(a)
    term = a.election.term
    assert term is not None
    await b.election.tell_loss(b.replica)
    known, held = dict(term.state.in_sync), list[tuple[Sequence[Condition], Sequence[Put]]]()
    change = a.engine.change

    async def hang(conditions: Sequence[Condition], puts: Sequence[Put]) -> int:
        held.append((conditions, puts))
        raise EngineAway("no answer")

    a.engine.change = hang  # type: ignore[method-assign]
    with pytest.raises(EngineAway):
        await a.election.write(replace(term.state, in_sync={**known, "b": b.replica.loss}), {"b": b.replica.loss})
    a.engine.change = change  # type: ignore[method-assign]
    assert (await a.election.look()).revision == term.revision  # as if it had been lost
    assert await a.election.write(replace(term.state, in_sync=known), {})
    assert await a.engine.change(*held[0]) == 0
    view = await a.election.look()
    assert view.state is not None
    assert view.state.in_sync == known


async def test_the_seat_is_taken_again_unless_somebody_has_stood(nodes: list[Node], real: RealEtcd) -> None:
    a, b, _ = nodes
    await found(a, b)
    term = a.election.term
    assert term is not None
    for _ in range(3):
        real.ask("lease/revoke", {"ID": str(term.lease)})
        before = term.lease
        await a.election.sit_again("the lease is gone")
        assert a.election.leads
        assert term.lease != before
        view = await a.election.look()
        assert view.lease == term.lease
        assert view.state == term.state
    real.ask("lease/revoke", {"ID": str(term.lease)})
    a.clock.advance(4_000)
    await a.election.sit_again("the lease is gone")
    assert not a.election.leads  # its time was over: others may believe so
    assert await b.stand()
    await a.election.sit_again("the lease is gone")
    assert (await a.election.look()).lease == b.election.term.lease  # type: ignore[union-attr]


async def test_a_lease_that_makes_no_sense_is_as_good_as_no_answer(nodes: list[Node], real: RealEtcd) -> None:
    """From a proxy between, say, in the middle of taking the seat again: the master asks once more, and goes on."""
    a, b, _ = nodes
    await found(a, b)
    term = a.election.term
    assert term is not None
    real.ask("lease/revoke", {"ID": str(term.lease)})
    grant = a.engine.grant

    async def nonsense(ttl_s: int) -> int:
        return read_grant(b"<html>")

    a.engine.grant = nonsense  # type: ignore[method-assign]
    with pytest.raises(EngineAway):
        await a.election.sit_again("the lease is gone")
    assert a.election.away
    assert a.election.leads
    a.engine.grant = grant  # type: ignore[method-assign]
    await a.election.sit_again("the lease is gone")
    assert (await a.election.look()).lease == term.lease


async def test_a_promise_is_kept_and_a_start_waits_for_what_it_may_have_promised(nodes: list[Node]) -> None:
    a, b, c = nodes
    await found(a, b)
    view = await b.election.look()
    started_ms = b.clock.monotonic_ms()
    assert b.election.bound_ms(view) == started_ms + 5_000
    b.clock.advance(60_000)
    b.election.favours.grant(5_000, b.clock.monotonic_ms())
    assert b.election.bound_ms(view) == started_ms + 65_000
    assert a.election.bound_ms(view) == 0  # it was the master itself
    assert view.state is not None
    assert b.election.bound_ms(view._replace(state=replace(view.state, heir="b"))) == 0
    assert c.election.bound_ms(view._replace(state=None)) == 0
