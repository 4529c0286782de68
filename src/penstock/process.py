"""The roles of one process, as its network sees them: what is done in each turn of the loop, and what when.

Compiled: where a turn carries one message, this is a good part of what the message costs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

import cython

from penstock.access.rights import Rights
from penstock.broker.broker import Broker
from penstock.clock import Clock
from penstock.disk.job import Job
from penstock.faults import Faults
from penstock.fronts.front import no_beginning

if cython.compiled:
    from cython.cimports.penstock import words
else:
    from penstock import words

if TYPE_CHECKING:  # a process imports the roles it has: that is half the time of a start
    from penstock.fronts.front import Front
    from penstock.fronts.namesrv import NameServer
    from penstock.fronts.remoting.session import RemotingSession
    from penstock.log.consumequeue import ConsumeQueue
    from penstock.wire.remoting import RemotingCommand

JOBS_EVERY_MS = 5
FAULT_RETRY_MS = 200
TICK_MS_MAX = 60_000
TURN_STEPS = ("staging", "channels", "flushes", "tables", "registration")


class Neighbour(Protocol):
    """A registry in this process, or one that is told of our topics."""

    changed: bool  # there is something to tell

    def tick(self, mono_ms: int) -> int:
        """Tell it; when to tell it again."""
        raise NotImplementedError


class Process:
    """The roles of one process, as its `Net` sees them.

    A turn and a tick are made of steps. A step that raises is reported to `faults`; the others are taken all the same,
    so that a full disk under one of them leaves no client of another without its answer.
    """

    def __init__(self, clock: Clock, stop: Callable[[str], None], rights: Rights) -> None:
        self.rights = rights
        self.faults = Faults(stop)
        self._failing = self.faults.failing
        self.clock = clock
        self.mono_ms = clock.monotonic_ms()
        self.broker: Broker | None = None
        self.fronts: list[Front] = []
        self._begins: list[Callable[[], None]] = []  # of the fronts
        self._enders: list[Front] = []  # those with something to do at the end of a turn
        self.name_server: NameServer | None = None
        self._neighbours: list[Neighbour] = []
        self._timers: list[tuple[str, Callable[[], int | None]]] = []  # of the broker's parts, and of the fronts
        self._jobs_due_ms = 0
        self._appended = 0  # records in the log, at the end of the last turn

    def take(self, broker: Broker | None = None, name_server: NameServer | None = None) -> None:
        """A role is there."""
        self.name_server = name_server or self.name_server
        if broker is not None:
            self.broker, self._store, self._time = broker, broker.store, broker.time
            self._queueing, self._tables, self._veiled = broker.queueing, broker.tables, broker.staging.veiled
            self._gathering = broker.queueing.folder.pool.gathering
            self._stored = broker.stored
            self._held, self._copies, self._sharing = broker.held_pulls, broker.copies, broker.clients.sharing
            self._turns, self._append_took = broker.queueing.turns, broker.core.append_took
            self._alarm = broker.core.alarm
            self._spools, self._mirror = broker.staging.spool_files, broker.staging.mirror
            self._flush = broker.queueing.flush
            self._timers += [(f"{name} timer", timer) for name, timer in broker.timers()]

    def add_front(self, front: Front) -> None:
        """A protocol has its part of each turn."""
        self.fronts.append(front)
        self._timers.append((f"{front.name} timer", front.tick))
        if front.begin_turn is not no_beginning:
            self._begins.append(front.begin_turn)
        if front.ends_turns:
            self._enders.append(front)

    def tell_news(self, neighbour: Neighbour) -> None:
        """A registry is told of topics at the end of each turn, and when it asks for it."""
        self._neighbours.append(neighbour)

    def update_time(self) -> int:
        """The first thing in each turn. Its time, on the steady clock."""
        if self.broker is None:
            self.mono_ms = self.clock.monotonic_ms()
            return self.mono_ms
        time = self._time
        time.update()
        self.mono_ms = time.mono_ms
        self._store.begin_turn(time.now_ms)
        for begin in self._begins:
            begin()
        return self.mono_ms

    def end_turn(self) -> None:
        """The last thing before answers are written: wake held pulls, save what must be saved, hold what must wait."""
        broker, mono_ms = self.broker, self.mono_ms
        if broker is None:
            return
        self._store.settle()  # these two have no error of their own
        self._gathering.settle()
        if self._store.appended != self._appended or self._turns.published():
            self._appended = self._store.appended
            self._append_took.add_ns(self._time.since_ns())
        try:
            if self._veiled:
                broker.staging.lift()
        except Exception as error:
            self.faults.report("staging", error, mono_ms)
        news: list[ConsumeQueue] = []
        try:
            self._end_channels(news)
        except Exception as error:
            self.faults.report("channels", error, mono_ms)
        for front in self._enders:
            try:
                front.end_turn(news)
            except Exception as error:
                self.faults.report(front.name, error, mono_ms)
        try:
            if self._stored.line:
                if self._store.healthy:
                    self._stored.settle(self._store.flushed_position)
                else:
                    self._stored.fail()
        except Exception as error:
            self.faults.report("flushes", error, mono_ms)
        try:
            if self._tables.restless:
                broker.save_tables()
        except Exception as error:
            self.faults.report("tables", error, mono_ms)
        try:
            for neighbour in self._neighbours:
                if neighbour.changed:
                    neighbour.tick(mono_ms)
        except Exception as error:
            self.faults.report("registration", error, mono_ms)
        if self._failing:
            self.faults.settle((*TURN_STEPS, *(front.name for front in self.fronts)))

    def _end_channels(self, news: list[ConsumeQueue]) -> None:
        """Give the channels what came; `news` gets every message queue with something new, dead letters' too."""
        store, queueing = self._store, self._queueing
        while True:
            if store.arrived:
                arrived = store.take_arrived()
                news += arrived
                queueing.mark_topics_of(arrived)
            queueing.end_turn()
            if not store.arrived:
                return

    @property
    def flush_wanted(self) -> bool:
        """Whether answers wait for a flush that has not begun."""
        return self.broker is not None and (self._store.durability.wanted or self._flush.wanted)

    @property
    def copy_wanted(self) -> bool:
        """Whether answers wait for slaves."""
        return self.broker is not None and bool(self._copies.waiting.line)

    def take_jobs(self) -> Sequence[Job]:
        """Work for the threads. A flush that somebody waits for starts at once, the rest is looked at every 5 ms."""
        broker = self.broker
        if broker is None:
            return []
        if self.mono_ms < self._jobs_due_ms and not (self._flush.wanted or self._staged_wants()):
            return self._store.take_flush(self.mono_ms) if self._store.durability.wanted else []
        self._jobs_due_ms = self.mono_ms + JOBS_EVERY_MS
        return broker.take_jobs()

    def _staged_wants(self) -> bool:
        """Whether somebody waits for a flush of spools."""
        return self._spools.wants_job or (self._store.following and self._mirror.wants_job)

    def tick(self) -> int:
        """Everything that is due; when something will be again."""
        mono_ms = self.mono_ms
        timers = [*self._timers]
        if self.name_server is not None:
            timers.append(("name server timer", partial(self.name_server.tick, mono_ms)))
        timers.append(("registration timer", self._tick_registration))
        timers.append(("users timer", partial(self.rights.tick, mono_ms)))
        due_ms = mono_ms + TICK_MS_MAX
        for step, timer in timers:
            try:
                due = timer()
            except Exception as error:
                self.faults.report(step, error, mono_ms)
                due = mono_ms + FAULT_RETRY_MS
            if due is not None and due < due_ms:
                due_ms = due
        if self.faults.failing:
            self.faults.settle(step for step, _ in timers)
        return due_ms

    def _tick_registration(self) -> int | None:
        return min((neighbour.tick(self.mono_ms) for neighbour in self._neighbours), default=None)

    def next_due_ms(self) -> int:
        """The earliest moment this turn may have added: a held pull's, or a flush's. Far away when there is none."""
        if self.broker is None:
            return words.FAR_MS
        queueing = self._queueing
        due_ms = min(queueing.next_due_ms(), self._alarm.due_ms, self._store.durability.due_ms())
        copies_ms: int = self._copies.due_ms
        sharing_ms: int = self._sharing.due_ms
        due_ms = min(due_ms, copies_ms, sharing_ms)
        held_ms = self._held.next_ms() if self._held.count else None
        return due_ms if held_ms is None or held_ms > due_ms else held_ms

    # The registry's sessions ask their server for these two.

    def handle(self, session: RemotingSession, request: RemotingCommand) -> RemotingCommand | None:
        assert self.name_server is not None
        from penstock.fronts.needs import at_registry, carry_out

        return carry_out(
            self.rights, session, request, partial(at_registry, request),
            partial(self.name_server.handle, session, request, self.mono_ms),
        )  # fmt: skip

    def lost(self, session: RemotingSession) -> None:
        assert self.name_server is not None
        self.name_server.connection_lost(session)
