"""A node and the engine: what it reads there, what it writes, and for how long it may be the master.

    /penstock/CLUSTER/BROKER/state         the set: epoch, master, who is in sync             broker.term.SetState
                            /master        who is the master, while its lease lives           broker.term.Seat
                            /loss/NODE     the loss number of a node's store
                            /nodes/NODE    how far a node is that stands, for a moment

An `Election` lives as long as the process: a node whose role changes starts anew, and its lease goes on meanwhile. Whatever is
written depends on what was read, so that of two who stand one wins. When no answer came it is read what became of it.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from penstock.broker.replica import NO_SET, Replica
from penstock.broker.term import Favours, Seat, SetState, Term, read_seat, read_state
from penstock.clock import Clock
from penstock.config import BrokerConfig
from penstock.errors import NotFound, WireError
from penstock.faults import Told
from penstock.log.epochs import newest
from penstock.registration.engine import Engine, EngineAway
from penstock.wire.etcd import Entry, Holds, Put, Unchanged
from penstock.wire.ha import ID_BYTES, TAG_BYTES

log = logging.getLogger("penstock.ha")

RENEW_PART = 5  # of the lease: how often it is renewed
RETRY_PART = 20  # and tried again
STANDING_S = 5  # a node's word of how far it is ends after so long
S_MS = 1000
LOSS_DIGITS_MAX = 20  # more is no number of ours, and beyond 4,300 Python makes none of it
AMENDS = 10  # tries of a change of the state, each from what it is then
AMENDS_AWAY = 3  # of them without an answer


class View(NamedTuple):
    """What the engine holds of this set."""

    state: SetState | None
    revision: int  # of the state
    seat: Seat | None
    lease: int  # of the seat
    losses: dict[str, int]
    standing: dict[str, tuple[int, int]]  # node → epoch and end of its log


class Unmade:
    """That the engine makes no change, for lack of room it may be. It is told apart from no answer: what is only read, or a lease
    that is kept, is answered, and would be the end of it again and again.
    """

    def __init__(self, lately_ms: int) -> None:
        self._told = Told()
        self._lately_ms = lately_ms
        self._why, self._at_ms = "", 0

    def note(self, why: str, mono_ms: int) -> None:
        """One was not made, as far as is known."""
        self._why, self._at_ms = why, mono_ms
        if self._told.is_news(why, mono_ms):
            log.warning("the engine makes no change error=%s", why)

    def over(self) -> None:
        """One was made."""
        self._why = ""
        self._told.over()

    def said(self, mono_ms: int) -> str:
        """What people are told of an engine that is reached."""
        lately = self._why and mono_ms - self._at_ms < self._lately_ms
        return f"reached, and makes no change: {self._why}" if lately else "reached"


def is_newest(replica: Replica, state: SetState) -> bool:
    """Whether the newest epoch that this node's log has seen is the one that the engine holds."""
    last = newest(replica.epochs)
    return last is not None and last.number == state.epoch and last.tag.hex() == state.tag


class Election:
    """See the module. `start` before use."""

    def __init__(self, config: BrokerConfig, node: str, clock: Clock, engine: Engine) -> None:
        self.node = node
        self.lease_ms = config.lease_ms
        self._engine = engine
        self._clock = clock
        self._prefix = f"{config.engine_prefix}/{config.cluster_name}/{config.broker_name}/"
        self.term: Term | None = None
        self.away = ""  # why the engine does not answer; empty: it does
        self.reached_ms = -1  # when it did last
        self._garbled = False  # it holds what is no set: until that is mended it is no engine, though leases are kept
        self.unmade = Unmade(config.lease_ms)
        self.view: View | None = None  # what it held then
        self._asked: dict[
            str, tuple[SetState, int, int]
        ] = {}  # tag → a state this node wanted, with lease and its time
        self.favours = Favours()
        self._started_ms = clock.monotonic_ms()
        self._when_away: Callable[[], None] | None = None
        self._seat: Seat | None = None  # of this node, in its term
        self._leases: dict[int, int] = {}  # given to this node for its seat, and when they were asked for
        self._sitting = asyncio.Lock()
        self._renewing: asyncio.Task[None] | None = None

    @property
    def leads(self) -> bool:
        """Whether this node is the master, as far as it knows."""
        return self.term is not None and not self.term.over

    @property
    def ends_ms(self) -> int:
        """When it is not any more, unless the lease is renewed."""
        return self.term.until_ms if self.term is not None else 0

    def row(self, mono_ms: int) -> dict[str, object]:
        """What people are told: whether the engine answers, how long the lease goes on, and the set it holds."""
        silent_ms = mono_ms - self.reached_ms if self.reached_ms >= 0 else -1
        state = self.view.state if self.view is not None else None
        if self.term is not None and not self.term.over:
            state = self.term.state  # newer, where the engine is away since
        asked = silent_ms >= 0
        favour = ", and the members keep the master" if self.term is not None and self.term.by_favour else ""
        return {
            "engine": f"away{favour}: {self.away}"
            if self.away
            else self.unmade.said(mono_ms)
            if asked
            else "not asked yet",
            "engine_silent_ms": silent_ms,
            "lease_ms": max(0, self.ends_ms - mono_ms) if self.leads else "",
            "set": "" if state is None else ",".join(sorted(state.in_sync)),
            "paused": "yes" if state is not None and state.paused else "",
        }

    def start(self) -> None:
        """Keep the lease alive from now on, whenever there is one."""
        if self._renewing is None:
            self._renewing = asyncio.create_task(self._renew())

    async def close(self) -> None:
        """The process ends: nobody need wait for the end of the lease."""
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)
        if self.leads:
            await self.resign("the process ends")
        await self._engine.close()

    # -- reading -----------------------------------------------------------------------------------------------------

    async def look(self) -> View:
        """What the engine holds now. EngineAway."""
        try:
            found = await self._engine.read(self._prefix)
            view = self._read({key[len(self._prefix) :]: entry for key, entry in found.items()})
        except WireError as error:
            self._garbled = True
            self._missed(str(error))
            raise EngineAway(str(error)) from None
        except EngineAway as error:
            self._missed(str(error))
            raise
        self._garbled = False
        self._reached()
        self.view = view
        return view

    @staticmethod
    def _read(found: dict[str, Entry]) -> View:
        state = seat = None
        revision = lease = 0
        losses: dict[str, int] = {}
        standing: dict[str, tuple[int, int]] = {}
        for key, entry in found.items():
            value = entry.value
            kind, _, node = key.partition("/")
            if key == "state":
                state, revision = read_state(value), entry.revision
            elif key == "master":
                seat, lease = read_seat(value), entry.lease
            elif kind == "loss" and value.isdigit() and len(value) <= LOSS_DIGITS_MAX:
                losses[node] = int(value)
            elif kind == "nodes":
                try:
                    standing[node] = msgspec.json.decode(value, type=tuple[int, int])
                except (msgspec.DecodeError, RecursionError):
                    continue
        return View(state, revision, seat, lease, losses, standing)

    def _missed(self, why: str) -> None:
        if not self.away:
            log.warning("engine not reached error=%s", why)
        self.away = why

    def _reached(self) -> None:
        if self._garbled:
            return
        if self.away:
            log.info("engine reached again")
        self.away = ""
        self.reached_ms = self._clock.monotonic_ms()

    # -- the lease ---------------------------------------------------------------------------------------------------

    async def _renew(self) -> None:
        while True:
            part = RETRY_PART if self.away else RENEW_PART
            await asyncio.sleep(self.lease_ms / part / S_MS)
            term = self.term
            if term is None or term.over:
                continue
            await self._renew_once(term)

    async def _renew_once(self, term: Term) -> None:
        asked_ms = self._clock.monotonic_ms()
        try:
            if await self._engine.keep(term.lease):
                term.renewed(asked_ms)
            else:
                await self.sit_again("the lease is gone")
        except (EngineAway, WireError) as error:
            self._missed(str(error))
            if self._when_away is not None and self.leads:
                self._when_away()
        else:
            self._reached()

    def when_away(self, call: Callable[[], None]) -> None:
        """`call` each time that this master asks the engine and gets no answer."""
        self._when_away = call

    def ask_favour(self, nodes: Collection[str], ask: Callable[[int], None]) -> None:
        """The engine does not answer: go on if everybody who could stand says that it does not. `ask(number)` asks them."""
        term = self.term
        if term is not None:
            ask(self.favours.ask(nodes, self._clock.monotonic_ms(), term.favoured))

    async def sit_again(self, why: str) -> None:
        """The seat is empty, in the middle of the term: take it again, unless somebody has stood. It is the same epoch, for
        nothing was changed in between. EngineAway.
        """
        async with self._sitting:
            try:
                await self._sit(why)
            except WireError as error:  # as good as no answer: it is looked again what became of it
                self._missed(str(error))
                raise EngineAway(str(error)) from None

    async def _sit(self, why: str) -> None:
        term, view = self.term, await self.look()
        if term is None or term.over:
            return
        if view.state is None or view.state.tag != term.state.tag:
            term.end("the engine names another master" if view.state is not None else "the engine has lost the set")
        elif view.seat is not None:
            if view.lease not in self._leases:
                term.end("the engine names another master")
            elif view.lease != term.lease:
                term.sit(view.lease, self._leases[view.lease])
        elif self._clock.monotonic_ms() >= term.until_ms or self._seat is None:
            term.end(why)
        else:
            asked_ms = self._clock.monotonic_ms()
            lease = await self._new_lease(asked_ms)
            conditions = [Unchanged(f"{self._prefix}master", 0), Unchanged(f"{self._prefix}state", view.revision)]
            if await self._engine.change(conditions, [Put(f"{self._prefix}master", self._seat.encode(), lease)]):
                log.warning("the lease was gone, and is given anew epoch=%d", term.state.epoch)
                term.sit(lease, asked_ms)

    async def _new_lease(self, asked_ms: int) -> int:
        lease = await self._engine.grant(-(-self.lease_ms // S_MS))
        self._leases[lease] = asked_ms
        return lease

    def bound_ms(self, view: View) -> int:
        """Until when this node has promised not to stand. What a former process promised is not known: a lease is waited for,
        unless it was the master itself. Whoever is given the place may take it.
        """
        state, until_ms = view.state, self.favours.until_ms
        if state is None or state.heir == self.node:
            return 0
        return until_ms if state.master == self.node else max(until_ms, self._started_ms + self.lease_ms)

    async def succeeded(self) -> None:
        """Return when another node is the master."""
        while True:
            try:
                view = await self.look()
                if view.seat is not None and view.seat.node != self.node:
                    return
            except EngineAway:
                pass
            await asyncio.sleep(self.lease_ms / RETRY_PART / S_MS / RETRY_PART)

    async def resign(self, why: str) -> None:
        """Be the master no more, and let the engine know, if it is there."""
        if self.term is not None:
            term, self.term = self.term, None
            term.end(why)
            try:
                await self._engine.revoke(term.lease)
            except (EngineAway, WireError) as error:
                self._missed(str(error))

    async def revoke_own(self, view: View) -> None:
        """End a lease that a former self of this node has: the process that had it is dead, or does not use it. EngineAway."""
        log.info("a former lease of this node is ended lease=%d", view.lease)
        await self._engine.revoke(view.lease)

    # -- standing ----------------------------------------------------------------------------------------------------

    async def tell_loss(self, replica: Replica) -> None:
        """Say which loss number the store has, before anything else. EngineAway."""
        await self._engine.change([], [Put(f"{self._prefix}loss/{self.node}", b"%d" % replica.loss)])

    async def tell_end(self, epoch: int, end: int) -> None:
        """Say how far the log goes, to the others that stand now. EngineAway."""
        lease = await self._engine.grant(STANDING_S)
        value = msgspec.json.encode((epoch, end))
        await self._engine.change([], [Put(f"{self._prefix}nodes/{self.node}", value, lease)])

    def may_stand(self, view: View, replica: Replica) -> str:
        """Why this node may not be the master; empty: it may. There must be no master in the view."""
        state = view.state
        if state is None:
            if replica.epochs:
                return (
                    "the engine knows nothing of this replica set, and this node has been part of one: it has lost its data, or "
                    "is another one. `penstock ha promote --node NODE` tells it, when you know which node has the most"
                )
            return ""
        ours = replica.set_id.hex()
        if replica.set_id != NO_SET and state.set_id != ours:
            return f"the engine holds another replica set ({state.set_id}) than this node's ({ours}): see engine_prefix"
        if self.node not in state.in_sync:
            able = ", ".join(sorted(state.in_sync))
            return f"it was not in sync: {able} may be the master; or penstock ha promote --accept-loss"
        if len(state.in_sync) == 1 and replica.led and is_newest(replica, state):
            return ""  # what a power cut took from it, nobody was promised
        if state.in_sync[self.node] != replica.loss:
            return (
                "its log may have lost its end in a power cut, or its folder is not the one that was in sync; "
                "penstock ha promote --accept-loss"
            )
        return ""

    def rests(self, view: View) -> str:
        """Why this node, which may be the master, does not stand unasked; empty: it does. Who was the master last goes on, and
        to whom it gave the place takes it.
        """
        state = view.state
        if state is None or not state.paused or self.node in (state.master, state.heir):
            return ""
        return f"failover is paused, and {state.master} was the master: penstock ha resume, or penstock ha promote"

    async def stand(self, view: View, replica: Replica, seat: Callable[[int], Seat], *, forced: bool) -> bool:
        """Try to be the master; the log must be flushed, and nobody be followed. Whether this node is it. EngineAway."""
        asked_ms = self._clock.monotonic_ms()
        lease = await self._new_lease(asked_ms)
        former, tag = view.state, os.urandom(TAG_BYTES).hex()
        if former is None:
            set_id = replica.set_id if replica.set_id != NO_SET else os.urandom(ID_BYTES)
            state = SetState(set_id.hex(), replica.epoch + 1, tag, self.node, {self.node: replica.loss})
        else:
            others = {} if forced else {n: loss for n, loss in former.in_sync.items() if n != former.master}
            in_sync = {**others, self.node: replica.loss}
            epoch = max(former.epoch, replica.epoch) + 1
            state = replace(former, epoch=epoch, tag=tag, master=self.node, in_sync=in_sync, heir="")
        self._asked[tag] = state, lease, asked_ms
        conditions = [Unchanged(f"{self._prefix}master", 0), Unchanged(f"{self._prefix}state", view.revision)]
        self._seat = seat(state.epoch)
        puts = [
            Put(f"{self._prefix}master", self._seat.encode(), lease),
            Put(f"{self._prefix}state", state.encode()),
        ]
        await self._engine.change(conditions, puts)
        if self.has_won(await self.look()):
            return True
        await self._engine.revoke(lease)
        return False

    def has_won(self, view: View) -> bool:
        """Whether the master in the engine is this process: also by an answer that never came."""
        state = view.state
        asked = self._asked.get(state.tag) if state is not None else None
        if asked is None or view.lease != asked[1] or state is None:
            return False
        self._asked.clear()
        self._when_away = None
        self._leases = {asked[1]: asked[2]}
        self.term = Term(state, view.revision, asked[1], self.lease_ms, asked[2])
        return True

    # -- what a person asks, of any node -----------------------------------------------------------------------------

    async def amend(self, change: Callable[[SetState], SetState]) -> bool:
        """Change the state as it is now; whether it was another one. Whoever is the master reads it and goes on with it. NotFound
        without one, what `change` raises, EngineAway when it is not known what became of it.
        """
        away = 0
        for _ in range(AMENDS):
            try:
                view = await self.look()
                if view.state is None:
                    raise NotFound("the engine knows nothing of this replica set")
                wanted = change(view.state)
                if wanted == view.state:
                    return away > 0
                put = Put(f"{self._prefix}state", wanted.encode())
                if await self._engine.change([Unchanged(put.key, view.revision)], [put]):
                    return True
            except EngineAway:
                away += 1
                if away == AMENDS_AWAY:
                    raise
            except WireError as error:
                raise EngineAway(str(error)) from None
        raise EngineAway("the set in the engine changes again and again")

    async def forget(self, node: str, losses: Mapping[str, int]) -> None:
        """Take away what a node has said of itself: it hangs on a lease that ends. A node that runs says it again. EngineAway."""
        key = f"{self._prefix}loss/{node}"
        said = b"%d" % losses[node]
        try:
            lease = await self._engine.grant(STANDING_S)
            await self._engine.change([Holds(key, said)], [Put(key, said, lease)])
            await self._engine.revoke(lease)
        except WireError as error:
            raise EngineAway(str(error)) from None

    # -- a master's changes ------------------------------------------------------------------------------------------

    async def write(self, state: SetState, losses: dict[str, int]) -> bool:
        """Change the state, if it is as it was and these nodes still have these loss numbers; False: one of these is not so.
        EngineAway: it may have been done, or be done later, until somebody else has changed the state.
        """
        term = self.term
        if term is None:
            return False
        conditions = [Unchanged(f"{self._prefix}state", term.revision)]
        given = [Holds(f"{self._prefix}loss/{node}", b"%d" % loss) for node, loss in losses.items()]
        try:
            revision = await self._engine.change([*conditions, *given], [Put(f"{self._prefix}state", state.encode())])
        except (EngineAway, WireError) as error:
            if not self.away:
                self.unmade.note(str(error), self._clock.monotonic_ms())
            raise EngineAway(str(error)) from None
        self.unmade.over()
        self._reached()
        if revision:
            term.written(state, revision)
        return revision > 0
