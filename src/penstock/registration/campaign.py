"""What a node does with the engine.

a slave (`Campaign`):      looks every 250 ms ─▶ follows whom the engine names ─▶ nobody: it may stand ─▶ flush ─▶ stand
a master (`Incumbent`):    looks every fifth of the lease ─▶ asks for changes of the in-sync set ─▶ gives its place away
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from msgspec.structs import replace

from penstock.broker.mastership import Mastership
from penstock.broker.roll import Roll
from penstock.broker.term import Seat, Term
from penstock.errors import PenstockError, Refused, StoreError
from penstock.fronts.ha import HaFront
from penstock.log import cutting, status
from penstock.net import Net
from penstock.registration.election import Election, View
from penstock.registration.engine import EngineAway

log = logging.getLogger("penstock.ha")

POLL_S = 0.25
COMPARE_S = 0.2  # those who stand tell each other how far they are
RETURN_S = 0.6  # who was the master last waits so long for the others, which hear only now that its place is empty
RANK_S = 1.0  # so long each leaves the place to a better one
HEIR_S = 3.0  # and to the one it was given to
DEMAND_S = 10.0  # so long does a node try to do what a person said
RENEWALS = 5  # a master looks so often within a lease
HAND_OVER_S = 12.0  # a slave may flush for ten
TAKEN_S = 3.0  # and then is the master, unless it is being stopped, too
CROWDED_MS = 30_000  # a master whose disk is full looks so often for a slave that has room
ROOM_PART, ROOM_SEGMENTS = 2, 4  # a slave has room that has so many times ours and so many segments
PAUSE_S = 0.1  # after a change that was not made


class Link(Protocol):
    """A slave's connection to its master."""

    def follow(self, ha_address: str) -> None:
        """Connect there, and nowhere else; empty: to nobody."""

    def seek(self) -> None:
        """The engine does not say where: whoever of the known nodes is the master. To follow it is no harm, whoever it is."""


class Campaign:
    """A slave's part. `again`: the node is the master from the next start on, which follows at once."""

    def __init__(self, front: HaFront, link: Link, election: Election, again: Callable[[str], None]) -> None:
        self._front = front
        self._link = link
        self._election = election
        self._again = again
        self._store = front.broker.store
        self._woken = asyncio.Event()
        self._demanded = self._accept_loss = False
        self._demanded_until = 0.0
        self._empty_since = 0.0  # the place of the master is
        front.mastership.elect_by(self)
        front.keep_promises(election.favours)

    def demand(self, accept_loss: bool) -> None:
        """A person wants this node to be the master. Refused."""
        election, view = self._election, self._election.view
        if view is None or election.away:
            raise Refused(f"the engine does not answer: {election.away or 'it was not heard yet'}")
        if view.seat is not None:
            raise Refused(
                f"the master {view.seat.node} is alive: change places with it (penstock ha switch), or stop it"
            )
        replica, state = self._front.replica, view.state
        why = election.may_stand(view, replica)
        if state is not None and replica.set_id.hex() != state.set_id:
            raise Refused(why)  # it has nothing of this set
        if state is None and not replica.epochs:
            raise Refused(f"node {replica.node} has never followed a master: it has nothing")
        if why and state is not None and not accept_loss:
            raise Refused(f"node {replica.node} may lack messages that were acknowledged: {why}")
        self._demanded, self._accept_loss = True, bool(why)
        self._demanded_until = asyncio.get_running_loop().time() + DEMAND_S
        self._woken.set()

    def give(self, heir: str) -> None:
        """Slaves have no place to give."""
        raise Refused("this node is a slave")

    async def run(self) -> None:
        """Until cancelled, or won."""
        loop = asyncio.get_running_loop()
        while True:
            self._woken.clear()
            try:
                if await self._step(loop.time()):
                    return
            except EngineAway as error:
                if self._election.away:
                    self._note("the engine does not answer")
                else:  # it was read a moment ago, and what was to be written is not
                    self._election.unmade.note(str(error), self._front.broker.time.clock.monotonic_ms())
                    self._note(f"the engine makes no change: {error}")
                self._link.seek()
            except PenstockError as error:
                self._note(str(error))
            try:
                async with asyncio.timeout(POLL_S):
                    await self._woken.wait()
            except TimeoutError:
                continue

    def _note(self, why: str) -> None:
        """Why there is no master, for people."""
        if self._front.broker.copies.note_orphan(why):
            log.warning("this node does not become the master reason=%s", why)

    async def _step(self, now_s: float) -> bool:
        """Look, and do what is to be done; whether this node is the master now."""
        election, replica = self._election, self._front.replica
        view = await election.look()
        if view.losses.get(election.node) != replica.loss:
            await election.tell_loss(replica)
        if election.has_won(view):
            return self._win(view)
        if view.seat is not None or now_s >= self._demanded_until:
            self._demanded = self._accept_loss = False  # a word is for now, not for whenever the place is empty again
        if view.seat is not None:
            self._empty_since = 0.0
            if view.seat.node == election.node and view.seat.store == replica.store_id.hex():
                await election.revoke_own(view)
            elif view.seat.node == election.node:
                self._note(f"another broker calls itself {election.node}, and is the master: set `node`")
            else:
                self._front.broker.copies.note_orphan("")
                self._link.follow(view.seat.ha)
                if not self._front.mastership.following_now and view.state and election.node in view.state.in_sync:
                    await self._tell_end()  # a master that comes back knows then that its folder is not an older one
            return False
        self._empty_since = self._empty_since or now_s
        forced = self._demanded and self._accept_loss
        why = election.may_stand(view, replica) or (
            "" if self._demanded else self._front.refused or election.rests(view)
        )
        if why and not (forced or (self._demanded and view.state is None)):
            self._note(why)
            return False
        heir = view.state.heir if view.state is not None else ""
        if heir not in ("", election.node) and now_s - self._empty_since < HEIR_S and not self._demanded:
            return False
        return await self._stand(view, forced)

    async def _stand(self, view: View, forced: bool) -> bool:
        front, store, election = self._front, self._store, self._election
        if cutting.intended(front.broker.files, front.broker.folder) is not None:
            return False
        bound_ms = election.bound_ms(view)
        if not forced and front.broker.time.clock.monotonic_ms() < bound_ms:
            self._note("it has promised its former master not to stand yet, or may have")
            await self._tell_end()
            return False
        self._link.follow("")
        front.leave_master()
        front.broker.core.flush_log()
        if not store.healthy or store.flushed_position < store.end_position:
            raise StoreError("its log cannot be flushed")
        if front.mastership.cut_unfinished():
            return False
        if view.state is not None and not self._demanded and await self._better(view):
            return False
        if not await election.stand(view, front.replica, self._seat, forced=forced):
            return False
        assert election.view is not None
        return self._win(election.view)

    async def _better(self, view: View) -> bool:
        """Whether another one that stands has more, and takes the place."""
        election, state = self._election, view.state
        assert state is not None
        others = state.in_sync.keys() - {state.master, election.node}
        if not others or state.heir == election.node:
            return False
        mine = await self._tell_end()
        await asyncio.sleep(RETURN_S if state.master == election.node else COMPARE_S)
        standing = (await election.look()).standing
        if state.master == election.node and self._is_older(mine, [standing[n] for n in others if n in standing]):
            return True
        rank = sum((standing[n], election.node) > (mine, n) for n in others if n in standing)
        if rank:
            await asyncio.sleep(RANK_S * rank)
            return (await election.look()).seat is not None
        return False

    async def _tell_end(self) -> tuple[int, int]:
        """Say how far this node is to those who stand, and here. EngineAway."""
        mine = self._front.replica.epoch, self._store.end_position
        await self._election.tell_end(*mine)
        return mine

    def _is_older(self, mine: tuple[int, int], others: list[tuple[int, int]]) -> bool:
        """Whether this node, which was the master last, has less than one that was in sync: its folder is an older copy, then.
        The other one, which may have promised not to stand yet, goes first.
        """
        older = max(others, default=mine) > mine
        if older:
            self._note(
                "it was the master, and a node in sync has more: its folder is an older one than that of the master"
            )
        return older

    def _seat(self, epoch: int) -> Seat:
        front = self._front
        return Seat(self._election.node, epoch, front.address, front.ha_address, front.replica.store_id.hex())

    def _win(self, view: View) -> bool:
        assert view.state is not None
        log.warning("granted node=%s epoch=%d position=%d", self._election.node, view.state.epoch,
                    self._store.end_position)  # fmt: skip
        self._again(f"the engine has given it epoch {view.state.epoch}")
        return True


class Incumbent:
    """A master's part. `again`: the node is a slave from the next start on, which follows at once."""

    def __init__(self, net: Net, front: HaFront, election: Election, again: Callable[[str], None]) -> None:
        assert election.term is not None
        self._net = net
        self._front = front
        self._election = election
        self._again = again
        self._term: Term = election.term
        self._rung = asyncio.Event()
        self._crowded_ms = 0  # when a full disk is next thought of
        self._unsure = False  # a change may yet be made of which no answer came
        self._heir = ""
        config, core = front.broker.config, front.broker.core
        self._roll = Roll(
            election.node, self._term.state.in_sync, core.time.mono_ms + config.ha_in_sync_ms, self._rung.set
        )
        front.mastership.elect_by(self)
        front.keep_promises(election.favours)
        election.when_away(self._beg)

    def _beg(self) -> None:
        """The engine does not answer: the others in the set may let this node go on. It may change nothing meanwhile."""
        counted = self._roll.counted
        self._net.begin()
        self._election.ask_favour(
            counted, lambda number: self._front.ask_members(counted, number, self._election.lease_ms)
        )

    def lead(self) -> None:
        """Be the master of the term. StoreError."""
        front, broker, term = self._front, self._front.broker, self._term
        store, replica, state = broker.store, front.replica, term.state
        replica.lead_by(
            bytes.fromhex(state.set_id), state.epoch, bytes.fromhex(state.tag), store.min_position, store.end_position,
            alone=len(state.in_sync) == 1,
        )  # fmt: skip
        broker.copies.enroll(self._roll, replica.confirmed())
        front.lead_for(term, self._abort, self._rung.set)
        broker.copies.lead(True)
        store.follow(False)

    def _abort(self) -> None:
        """Write nothing more to any connection, not even what is there."""
        for connection in list(self._net.connections):
            connection.close()

    def demand(self, accept_loss: bool) -> None:
        """It is the master."""
        raise Refused(f"node {self._election.node} is the master already")

    def give(self, heir: str) -> None:
        """Give the place away."""
        self._heir = heir
        self._rung.set()

    async def run(self) -> None:
        """Until cancelled, or until this node is not the master any more."""
        while True:
            try:
                async with asyncio.timeout(self._election.lease_ms / 1000 / RENEWALS):
                    await self._rung.wait()
            except TimeoutError:
                pass
            self._rung.clear()
            if self._term.over:
                self._net.begin()
                self._front.fence(self._term.over)
                return
            try:
                if await self._step():
                    return
            except EngineAway:
                await asyncio.sleep(PAUSE_S)
            except PenstockError as error:
                # A master that asked nothing more could not change its set, or give its place away.
                log.error("what a master does with the engine has failed, and is tried again error=%s", error)
                await asyncio.sleep(PAUSE_S)

    async def _step(self) -> bool:
        """What is to be done now; whether this node is the master no more."""
        broker = self._front.broker
        if not broker.store.healthy and broker.copies.available:
            await self._give_up("a flush has failed, and a slave in sync has all that was acknowledged")
            return True
        if broker.store.refusal == status.DISK_FULL:
            self._seek_room()
        if self._heir:
            return await self._hand_over()
        if not self._term.by_favour and (self._unsure or self._roll.wanted != self._roll.known):
            await self._change()
        else:
            await self._take(await self._election.look())
        return False

    def _seek_room(self) -> None:
        """The disk is full, and nothing is taken any more: change places with the slave in sync that has most room, if that is
        much more than there is here. One that has as little would give the place back.
        """
        front, broker = self._front, self._front.broker
        if (
            self._heir
            or front.mastership.heir is not None
            or self._term.state.paused
            or broker.mono_ms < self._crowded_ms
        ):
            return
        used, size = broker.files.usage(broker.folder)
        enough = ROOM_PART * (size - used) + ROOM_SEGMENTS * broker.store.log.file.size
        able = [one for one in broker.copies.members.values() if one.in_sync and one.takes and one.free >= enough]
        if not able:
            return
        heir = max(able, key=lambda one: one.free)
        self._crowded_ms = broker.mono_ms + CROWDED_MS
        log.error("the disk is full: changing places heir=%s free_bytes=%d its_free_bytes=%d", heir.node, size - used,
                  heir.free)  # fmt: skip
        self._net.begin()
        try:
            front.mastership.switch(heir.node)
        except Refused as error:
            log.error("places are not changed error=%s", error)

    async def _give_up(self, why: str) -> None:
        """Let another one stand at once."""
        log.error("the place of the master is given up node=%s reason=%s", self._election.node, why)
        self._net.begin()
        self._front.retire()
        self._abort()
        await self._election.resign(why)
        self._again(why)

    async def _change(self) -> None:
        """Have the set changed in the engine. A change of which nothing was heard could still be made: it counts until one
        behind it was made, after which it cannot be.
        """
        election, roll, term = self._election, self._roll, self._term
        wanted = dict(roll.known if self._unsure else roll.wanted)
        losses = {node: loss for node, loss in wanted.items() if roll.known.get(node) != loss}
        roll.ask(wanted)
        try:
            done = await election.write(replace(term.state, in_sync=wanted), losses)
        except EngineAway:
            self._unsure = True
            raise
        if done:
            self._unsure = False
            log.info("in-sync set nodes=%s epoch=%d", ",".join(sorted(wanted)), term.state.epoch)
            self._settle()
            return
        revision = term.revision
        await self._take(await election.look())
        if not term.over and term.revision == revision:  # a node is not the one any more that was asked for
            if not self._unsure:
                self._settle()
            await asyncio.sleep(PAUSE_S)

    async def _take(self, view: View) -> None:
        """What the engine holds, read now. EngineAway."""
        term, state = self._term, view.state
        if state is None or state.tag != term.state.tag or view.lease != term.lease:
            await self._election.sit_again("the engine names no master")
            self._rung.set()
        elif view.revision != term.revision:
            term.written(state, view.revision)
            self._unsure = False
            self._settle()

    def _settle(self) -> None:
        self._net.begin()  # what waited for this is looked at when the turn ends
        self._roll.settle(self._term.state.in_sync)

    async def _hand_over(self) -> bool:
        """The heir has everything: leave the place to it."""
        election, mastership, heir = self._election, self._front.mastership, self._heir
        self._heir = ""
        try:
            await self._take(await election.look())  # somebody may have paused failover since
            done = not self._term.over and await election.write(replace(self._term.state, heir=heir), {})
        except EngineAway:
            done = False
            self._unsure = True
        if not done:
            mastership.keep("the engine has not taken it down")
            return False
        self._front.retire()
        await election.resign(f"the place was given to {heir}")
        self._again(f"the place was given to {heir}")
        return True


async def hand_over(net: Net, mastership: Mastership, election: Election) -> None:
    """Let any slave in sync be the master before this process ends. Within `HAND_OVER_S` and `TAKEN_S`."""
    try:
        state = (await election.look()).state
        if state is not None and state.paused:
            raise Refused("failover is paused")
        net.begin()
        heir = mastership.switch("")
    except PenstockError as error:
        log.info("the place of the master is not handed over reason=%s", error)
        return
    try:
        async with asyncio.timeout(HAND_OVER_S):
            while election.leads and mastership.heir is not None:
                await asyncio.sleep(POLL_S / RENEWALS)
        if not election.leads:
            async with asyncio.timeout(TAKEN_S):
                await election.succeeded()
    except TimeoutError:
        log.warning("the place of the master was not taken in time heir=%s", heir)
