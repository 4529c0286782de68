"""How a node becomes the master or a slave: by promotion, by changing places, and by hearing of a newer master.

The new role is written down first; then the broker starts anew, and the start does the rest: a master begins an epoch, a slave
follows and, where it must, cuts. So a process that ends at any moment has the old role or the new one, never half of it.

    switch:  refuse appends ─▶ wait until the slave has flushed all ─▶ be a slave from now on ─▶ TAKE ─▶ it is the master

The old master gives its place away before the other takes it: two at once cannot be, none at all can (a connection that
breaks in between), and then `penstock ha promote` decides. With an engine that one is told instead (`Electing`), and whoever
is to be the master has its word first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from penstock.broker.copies import Copies, Member
from penstock.broker.core import Core
from penstock.broker.replica import Replica
from penstock.errors import PenstockError, Refused, StoreError
from penstock.log import cutting

log = logging.getLogger("penstock.broker")

HAND_OVER_MS = 10_000  # so long may a slave take to flush what it lacks
TAKEN_MS = 5_000  # and to say that it is the master
MASTER_DEAD_MS = 3_000  # a master that has been silent for so long may be replaced


class Electing(Protocol):
    """Who speaks with the engine for this node."""

    def demand(self, accept_loss: bool) -> None:
        """A person wants this slave to be the master. Refused."""

    def give(self, heir: str) -> None:
        """This master has ceased to append, and this node has all of it: give the place away, or call `keep`."""


Told = Callable[[dict[str, object] | PenstockError], None]
"""Who asked is told what was found, or what stands against it."""


class Tending(Protocol):
    """Who changes for a person what the engine holds of the set; each call is answered by `told`, once."""

    def pause(self, paused: bool, told: Told) -> None:
        """No failover unless somebody asks for it, or as ever again. Refused."""

    def forget(self, node: str, dry_run: bool, told: Told) -> None:
        """Know nothing of a node any more. Refused."""


class Mastership:
    """See the module. `again`: start the broker anew, for this reason. `unfinished_at()`: where a publish begins in the log of
    which only the former master has the rest, or -1.
    """

    def __init__(
        self, core: Core, replica: Replica, again: Callable[[str], None], unfinished_at: Callable[[], int] = lambda: -1
    ) -> None:
        self._core = core
        self._store = core.store
        self._copies: Copies = core.copies
        self.replica = replica
        self._again = again
        self._unfinished_at = unfinished_at
        self.following_now = False  # a connection to a master is up
        self.heir: Member | None = None  # who is about to be the master
        self.given = False  # it has been told so
        self._until_ms = 0
        self._electing: Electing | None = None
        self.tending: Tending | None = None  # where there is an engine
        self._uncut = -1  # where the log ought to be cut, and is not

    def hear_master(self, there: bool) -> None:
        """The connection to a master is up, or gone."""
        self.following_now = there

    def elect_by(self, electing: Electing) -> None:
        """There is an engine, and this one speaks with it."""
        self._electing = electing

    @property
    def elected(self) -> bool:
        """Whether an engine says who is the master."""
        return self._electing is not None

    def tend_by(self, tending: Tending) -> None:
        """There is an engine, and this one changes for people what it holds."""
        self.tending = tending

    def forget(self, node: str, *, dry_run: bool) -> str:
        """Ask a node no more whether it is the master; where it was asked, or empty. Refused while it is there. StoreError."""
        if node == self.replica.node:
            raise Refused(f"{node} is this node")
        address = self.replica.peers.get(node, "")
        if node in self._copies.members or (self.following_now and address == self._copies.master):
            raise Refused(f"node {node} is connected: stop it first")
        return address if dry_run else self.replica.forget_peer(node)

    # -- a slave ---------------------------------------------------------------------------------------------------

    def promote(self, accept_loss: bool) -> None:
        """Be the master from the next start on, which follows at once. Refused where that could lose what was acknowledged,
        unless the loss is accepted.
        """
        replica, copies, store, config = self.replica, self._copies, self._store, self._core.config
        if not copies.following:
            raise Refused(f"node {replica.node} is the master already")
        if self._electing is not None:
            self._electing.demand(accept_loss)
            return
        if self.following_now and self._core.time.mono_ms - copies.heard_ms < MASTER_DEAD_MS:
            raise Refused(
                f"the master {copies.master} is alive: change places with it (penstock ha switch), or stop it first"
            )
        if not replica.epochs and not store.end_position:  # a RocketMQ master has no epochs
            raise Refused(f"node {replica.node} has never followed a master: it has nothing")
        if config.ha_port < 0:
            raise Refused(f"node {replica.node} has no ha_port: nobody could follow it")
        if cutting.intended(self._core.files, self._core.folder) is not None:
            raise Refused(f"the log of {replica.node} is being cut: ask again")
        end = store.end_position
        why = replica.may_lack(end, copies.confirmed)
        if why and not accept_loss:
            raise Refused(
                f"node {replica.node} may lack messages that were acknowledged: {why}; --accept-loss promotes it"
            )
        if why:
            log.warning("a loss is accepted node=%s position=%d reason=%s", replica.node, end, why)
        self._lead("promoted")

    def take(self, position: int) -> bool:
        """The master gives its place to this node, whose log must end there; whether it is taken."""
        if self._electing is not None:
            log.error("not taken over: the engine decides about the master here, and the one that offered it has none")
            return False
        if position != self._store.end_position or self._core.config.ha_port < 0:
            log.error("not taken over: our log ends at %d, the master's at %d", self._store.end_position, position)
            return False
        self._lead("the master has given its place")
        return True

    def _lead(self, why: str) -> None:
        self._core.flush_log()
        store = self._store
        if not store.healthy or store.flushed_position < store.end_position:
            raise Refused(f"the log of {self.replica.node} cannot be flushed: it cannot be the master")
        self.intend_cut_of_unfinished()
        self._become("master", why)

    def intend_cut_of_unfinished(self) -> bool:
        """Let the next start cut off a publish that came without its end: nobody was promised it, and nobody can end it. Whether
        there is one. It must go before this node's epoch begins, or two logs would differ within an epoch.
        """
        begin, store = self._unfinished_at(), self._store
        if begin < 0:
            return False
        log.warning("a publish came without its end: it is cut off position=%d end=%d", begin, store.end_position)
        cutting.intend(
            self._core.files,
            self._core.folder,
            begin,
            store.end_position,
            self.replica.epoch,
            "a publish without its end",
        )
        return True

    def cut_unfinished(self) -> bool:
        """A node that was a slave and is to lead: whether it starts anew first, to cut such a publish off."""
        unfinished = self.intend_cut_of_unfinished()
        if unfinished:
            self._again("a publish without its end is cut off")
        return unfinished

    def _become(self, role: str, why: str) -> None:
        try:
            self.replica.become(role)
        except StoreError as error:
            raise Refused(f"the new role cannot be written down: {error}") from error
        replica, end = self.replica, self._store.end_position
        log.warning(
            "the role changes node=%s role=%s epoch=%d position=%d reason=%s",
            replica.node,
            role,
            replica.epoch,
            end,
            why,
        )
        self._again(why)

    def cut(self, to: int, epoch: int, master: str) -> bool:
        """End the log there, at the next start, which follows at once; False when this node must not do so by itself."""
        store, replica = self._store, self.replica
        end = store.end_position
        safe = replica.safe(store.flushed_position, self._copies.confirmed)
        if to < safe:
            self._copies.note_orphan(
                f"the master's log is ours up to {to} only, and ours is confirmed up to {safe}: nothing is cut",
                by="master",
            )
            if to != self._uncut:
                self._uncut = to
                self._complain(to, safe, master)
            return False
        why = f"the master {master} of epoch {epoch} has not had it"
        cutting.intend(self._core.files, self._core.folder, to, end, replica.epoch, why)
        self._again("the end of the log is cut")
        return True

    def _complain(self, to: int, safe: int, master: str) -> None:
        log.error(
            "the master's log is ours up to %d only, and ours is confirmed up to %d: nothing is cut. What stands behind may "
            "have been acknowledged. `penstock ha rejoin FOLDER --discard` sets all of it aside master=%s",
            to, safe, master,
        )  # fmt: skip

    # -- a master --------------------------------------------------------------------------------------------------

    def switch(self, node: str) -> str:
        """Begin to give this node's place to a slave in sync: the one of this name, or any. Its name. Refused where that
        cannot be.
        """
        copies = self._copies
        if copies.following:
            raise Refused(f"node {self.replica.node} is a slave; its master is {copies.master or 'away'}")
        if node == self.replica.node:
            raise Refused(f"node {node} is the master already")
        if self.heir is not None:
            raise Refused(f"{self.heir.node} is about to be the master")
        able = [member for member in copies.members.values() if member.in_sync and member.takes]
        heir = next((member for member in able if node in ("", member.node)), None)
        if heir is None:
            known = copies.members.get(node)
            if known is not None and not known.in_sync:
                raise Refused(f"node {node} is not in sync: {known.why_not}")
            raise Refused(f"no slave{f' {node}' if node else ''} is in sync and has an ha_port")
        self.heir, self.given = heir, False
        self._until_ms = self._core.time.mono_ms + HAND_OVER_MS
        self._store.follow(True)  # nothing is appended any more
        self._store.want_flush()
        log.warning("changing places heir=%s position=%d", heir.node, self._store.end_position)
        return heir.node

    def step(self) -> bool:
        """At the end of a turn of a master: whether the heir is to be told now that the place is its own."""
        heir, store = self.heir, self._store
        if heir is None:
            return False
        late = self._core.time.mono_ms >= self._until_ms
        if self.given:
            if self._electing is None and (late or not heir.in_sync):
                self._again("the heir has not answered")
            return False
        end = store.end_position
        if late or not heir.in_sync or not store.healthy:
            self.keep(f"{heir.node} {'is late' if late else 'is out of sync'}")
            return False
        if heir.flushed < end or store.flushed_position < end:
            return False
        if self._electing is not None:
            self.given = True
            self._electing.give(heir.node)
            return False
        try:
            self.replica.note_alone(False)  # the heir has all of it
            self.replica.become("slave")
        except StoreError as error:
            self.keep(str(error))
            return False
        self.given = True
        self._until_ms = self._core.time.mono_ms + TAKEN_MS
        return True

    def keep(self, why: str) -> None:
        """The place is not given away after all; one that was lost meanwhile, with the lease, stays lost."""
        self.heir, self.given = None, False
        if self._copies.leads:
            log.error("the place of the master is kept reason=%s", why)
            self._store.follow(False)

    def taken(self) -> None:
        """The heir is the master."""
        if self.given:
            self._again("the place was given away")

    def superseded(self, node: str, address: str, epoch: int) -> None:
        """A node of this set is the master of a newer epoch: follow it. Refused when that cannot be written down."""
        self.replica.note_peers({node: address})
        self._become("slave", f"{node} at {address} is the master of epoch {epoch}")
