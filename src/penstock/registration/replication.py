"""Replication at the outside: the port where slaves connect, and a slave's connection to its master, made again and again."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from ssl import SSLContext

from penstock.broker.broker import Broker
from penstock.broker.replica import Replica
from penstock.config import BrokerConfig
from penstock.errors import ConfigError, Refused, StoreError
from penstock.fronts.bare import admitted
from penstock.fronts.ha import HaFront
from penstock.log import lostend
from penstock.net import Net, Session
from penstock.registration.campaign import Campaign, Incumbent
from penstock.registration.care import Caretaker
from penstock.registration.election import Election
from penstock.registration.mastertables import MasterTables
from penstock.registration.registrar import Registration
from penstock.tls import peer_context

log = logging.getLogger("penstock.ha")

RECONNECT_S = 1.0
AGAIN_S = 0.05  # the first pause, doubled up to that one: a master that gave its place away starts anew
# A machine that is off refuses nothing, and the kernel tries for minutes; another may be the master by then.
CONNECT_S = 3.0
ASTRAY_S = 10.0  # so long may nodes be slaves that say so, one after the other: a place is empty for less
ASK_S = 1.5  # for one node to say whether it is a master


def node_of(config: BrokerConfig) -> str:
    """The name of a broker within its replica set."""
    return config.node or f"{socket.gethostname()}-{config.remoting_port}"


def tls_for(front: HaFront, address: str) -> SSLContext | None:
    """The TLS of a connection to another node, with the certificates as they are now; None for a plain one: RocketMQ's masters
    would take a handshake for the end of a log. ConfigError.
    """
    config = front.broker.config
    return None if admitted(config, address) else peer_context(config)


def belong(broker: Broker, *, lossy: bool) -> None:
    """Let a broker know its place in its set, before any reader comes. StoreError."""
    replica = Replica(broker.files, broker.folder, node_of(broker.config))
    replica.open(lossy=lossy)
    copies, confirmed = broker.copies, replica.confirmed()
    copies.belong(replica)
    copies.lead(False, replica.safe(broker.store.flushed_position, confirmed))
    if broker.config.role == "slave":
        lostend.over(broker.files, broker.folder)
        copies.follow(confirmed)


def make_front(broker: Broker, registration: Registration, again: Callable[[str], None]) -> HaFront:
    """The front of replication of a slave, or of a master that slaves may follow; a master does not lead yet (`lead`). Its place
    in the set is known (`belong`).
    """
    replica = broker.copies.replica
    assert replica is not None
    front = HaFront(broker, replica, registration.address, registration.ha_address, again)
    front.when_renumbered(registration.ask_again)

    def renumber(free: int) -> None:  # until a master says another one; without a master people must find it, too
        if broker.copies.following:
            front.renumber({"brokerId": free})

    registration.on_rival.append(renumber)
    broker.rule(front.mastership)
    return front


def lead(front: HaFront, *, lossy: bool) -> None:
    """Let the node be the master it is by its settings and its folder. StoreError."""
    broker, replica = front.broker, front.replica
    if lossy and replica.followed:
        log.warning("a loss is accepted: what slaves have beyond %d is refused; unset ha_accept_loss",
                    broker.store.end_position)  # fmt: skip
    replica.lead(broker.store.min_position, broker.store.end_position, lossy=lossy)
    lostend.over(broker.files, broker.folder)
    broker.copies.lead(True)
    broker.store.follow(False)


async def elect(
    net: Net, front: HaFront, registration: Registration, election: Election, again: Callable[[str], None]
) -> Callable[[], Coroutine[None, None, None]]:
    """Let the node follow, or lead, as the engine says; what goes on with it. StoreError."""
    election.start()
    care = Caretaker(net.begin, front.mastership, election)
    front.broker.copies.ask_engine(election.row)
    if front.broker.config.role == "slave":
        link = MasterLink(net, front, registration, named_by_engine=True)
        campaign = Campaign(front, link, election, again)
        return _together(link.run, campaign.run, care.run)
    if not election.leads or election.ends_ms <= front.broker.mono_ms:
        again("the term was over before it began")
        return _nothing
    incumbent = Incumbent(net, front, election, again)
    incumbent.lead()
    return _together(incumbent.run, care.run)


def _together(*parts: Callable[[], Coroutine[None, None, None]]) -> Callable[[], Coroutine[None, None, None]]:
    async def run() -> None:
        await asyncio.gather(*(part() for part in parts))

    return run


async def _nothing() -> None:
    """The server starts anew."""


async def begin(net: Net, front: HaFront, registration: Registration, *, lossy: bool) -> asyncio.Task[None]:
    """Let the node follow, or lead if no other one does by now; the task that goes on with it. StoreError."""
    if front.broker.config.role == "slave":
        return asyncio.create_task(MasterLink(net, front, registration).run())
    watch = Watch(net, front, registration)
    if not await watch.superseded() and front.newer is None and not front.mastership.cut_unfinished():
        lead(front, lossy=lossy)
    return asyncio.create_task(watch.run())


class Watch:
    """A master asks the other nodes whether one of them is the master of a newer epoch: before it leads, and while no slave
    follows it. Then it follows that one.
    """

    def __init__(self, net: Net, front: HaFront, registration: Registration) -> None:
        self._net = net
        self._front = front
        self._named = ""  # by the registry
        registration.on_master.append(self._hear)

    def _hear(self, ha_address: str) -> None:
        self._named = ha_address

    async def superseded(self) -> bool:
        """Ask all; whether there was a newer master: then this node starts anew. Where it cannot write down that it is a slave
        now, it is the master no more all the same, and tries again.
        """
        front = self._front
        addresses = {*front.replica.peers.values(), self._named} - {"", front.ha_address}
        await asyncio.gather(*(self._ask(address) for address in addresses))
        if front.newer is None:
            return False
        front.retire()
        try:
            front.mastership.superseded(*front.newer)
        except (Refused, StoreError) as error:
            if front.told.is_news("superseded", front.broker.mono_ms):
                log.error("there is a newer master, and this node cannot become its slave yet error=%s", error)
            return False
        return True

    async def _ask(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        try:
            async with asyncio.timeout(ASK_S):
                context = tls_for(self._front, address)
                connection = await self._net.connect(host.strip("[]"), int(port), self._front.to_ask, context)
                try:
                    while connection.transport is not None:
                        await asyncio.sleep(ASK_S / 100)
                finally:
                    if connection.transport is not None:  # it says nothing: its disk hangs, say. It is asked anew
                        connection.close()
        except (OSError, ValueError, OverflowError, TimeoutError, ConfigError):
            return  # it is away: nobody to follow

    async def run(self) -> None:
        """Until cancelled, or superseded."""
        while True:
            await asyncio.sleep(RECONNECT_S)
            front = self._front
            if not front.broker.copies.members and front.mastership.heir is None and await self.superseded():
                return


class MasterLink:
    """Keeps a slave connected to its master: the one of the settings, or the one that the registry names; where that is none,
    to the node of the set that is.
    """

    def __init__(self, net: Net, front: HaFront, registration: Registration, *, named_by_engine: bool = False) -> None:
        self._net = net
        self._front = front
        self._registration = registration
        self._by_engine = named_by_engine
        self._seeks = not named_by_engine  # any known node that is the master will do
        self._away = True
        self._named = front.broker.config.ha_master  # by the settings, or by the registry
        self._turn = 0
        self._pause_s = AGAIN_S
        self._other = ""  # the master, says a node that is not
        self._sent_on = False  # such a word was followed just now
        self._bare: set[str] = set()  # where a RocketMQ master was met
        self._known = asyncio.Event()
        self._complained = ""
        self._astray_since = 0.0  # whoever was asked is no master; 0: not so
        if not named_by_engine:
            registration.seek(lambda: self._away, self.hear)

    def follow(self, ha_address: str) -> None:
        """The engine says whom."""
        self._seeks = False
        if ha_address != self._named:
            self._named = ha_address
            self._known.set()

    def seek(self) -> None:
        """The engine does not answer: any known node that is the master."""
        if not self._seeks and not self._named:
            self._seeks = True
            self._known.set()

    def hear(self, ha_address: str) -> None:
        """The registry says where the master's slaves connect; empty: it does not know."""
        if not self._front.broker.config.ha_master and ha_address not in ("", self._named):
            self._named = ha_address
            self._known.set()

    def _next(self) -> str:
        """The node that another one has just named, or the node that is named by others, then those that were heard of, then it
        again; empty when there is none.
        """
        other, self._other = self._other, ""
        self._sent_on = bool(other)
        if other:
            return other
        own, peers = self._front.ha_address, self._front.replica.peers if self._seeks else {}
        known = [address for address in dict.fromkeys([self._named, *peers.values()]) if address not in ("", own)]
        self._turn += 1
        return known[(self._turn - 1) % len(known)] if known else ""

    def _look_at_itself(self) -> None:
        """There is nobody to follow: people are told where that is because this node was named to itself."""
        front = self._front
        if self._seeks and self._named and self._named == front.ha_address:
            why = f"it is to follow itself, for {self._named} is its own ha_port: ha_master, or the registry, is to name another"
            if front.broker.copies.note_orphan(why, by="master"):
                log.warning("no master to follow reason=%s", why)

    def _look_for_rings(self, no_master: bool) -> None:
        """Whether who was asked just now is a slave, too: for a moment that is so after each change of the master."""
        if not no_master:
            self._astray_since = 0.0
            return
        now_s = time.monotonic()
        self._astray_since = self._astray_since or now_s
        why = "nobody it knows is the master: whom it asks is a slave itself, or not the master yet"
        if now_s - self._astray_since > ASTRAY_S and self._front.broker.copies.note_orphan(why, by="master"):
            log.warning("no master to follow reason=%s", why)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            address = self._next()
            if not address:
                self._look_at_itself()
                self._known.clear()
                await self._known.wait()
                continue
            self._known.clear()
            began_s = time.monotonic()
            try:
                session = await self._stay(address)
                if time.monotonic() - began_s > RECONNECT_S:
                    self._pause_s = AGAIN_S
                pause_s = self._look_back(address, session, self._next_pause_s())
            except (OSError, ValueError, OverflowError, ConfigError) as error:
                pause_s = self._next_pause_s()
                if self._complained != address:
                    log.warning("master not reached master=%s error=%s", address, error)
                    self._complained = address
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._known.wait()  # who is the master is news

    def _next_pause_s(self) -> float:
        """The pause before the next attempt: twice the one before."""
        pause_s = min(self._pause_s, RECONNECT_S / 4 if self._by_engine else RECONNECT_S)
        self._pause_s = min(2 * self._pause_s, RECONNECT_S)
        return pause_s

    async def _stay(self, address: str) -> Session | None:
        """Follow this node for as long as it can be followed, and nobody names another one. OSError, ValueError."""
        host, _, port = address.rpartition(":")
        bare = address in self._bare
        make = self._front.to_rocketmq if bare else self._front.to_master
        try:
            async with asyncio.timeout(CONNECT_S):
                connection = await self._net.connect(host.strip("[]"), int(port), make, tls_for(self._front, address))
        except TimeoutError as error:
            raise OSError("no answer in time") from error
        self._complained = ""
        self._away = False
        tables = asyncio.create_task(MasterTables(self._net, self._registration).run()) if bare else None
        try:
            while connection.transport is not None and (self._seeks or address == self._named):
                await asyncio.sleep(RECONNECT_S / 4)
        finally:
            if tables is not None:
                tables.cancel()
                await asyncio.gather(tables, return_exceptions=True)
        if connection.transport is not None:
            connection.close()
        self._away = True
        self._registration.ask_again()
        return connection.session

    def _look_back(self, address: str, session: Session | None, pause_s: float) -> float:
        """What a connection that is over has told; how long to wait before the next."""
        running, refusal = getattr(session, "running", False), getattr(session, "refusal", "")
        self._look_for_rings(getattr(session, "not_master", False) and not getattr(session, "itself", False))
        if running:
            self._turn = 0  # it was a master, and may be again
        if getattr(session, "bare", False):
            self._bare.add(address)
            self._turn = 0
            return 0.0
        if not running:
            self._bare.discard(address)  # whoever is there by now
        other = getattr(session, "other", "")
        if self._seeks and not self._sent_on and other not in ("", address, self._front.ha_address):
            self._other = other  # once: two that name each other are asked no more often for it
            return 0.0
        return RECONNECT_S if refusal and not getattr(session, "not_master", False) else pause_s
