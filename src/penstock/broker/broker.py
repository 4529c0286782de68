"""A broker without sockets: opens the store and the tables, keeps time, and knows what is due. Each change that a request
asks for is made by one of its parts.

    core       settings, files, time, the store and its tables      sending   what is stored, and where
    retry      given back, dead letters                             due       delayed messages whose time has come
    tables     the files of `config`                                nsq       topics and channels as NSQ sees them
    staging    rows staged, then published                          transactions
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from penstock.broker.clients import ClientTable, QueueLocks
from penstock.broker.clock import BrokerClock
from penstock.broker.copies import seen
from penstock.broker.core import Core
from penstock.broker.counters import counters, totals
from penstock.broker.due import DueMessages
from penstock.broker.guide import Guide
from penstock.broker.history import History
from penstock.broker.keeping import Keeping
from penstock.broker.mastership import Mastership
from penstock.broker.nsq.queueing import Queueing
from penstock.broker.probes import Probes
from penstock.broker.replica import copied, of_a_set
from penstock.broker.reserve import Reserve
from penstock.broker.retry import Retry
from penstock.broker.staging import Staging
from penstock.broker.stats import Stats
from penstock.broker.systemtopics import is_system_topic, make_system_topics
from penstock.broker.tables import Tables
from penstock.broker.tracing import Tracing
from penstock.broker.transactions import Transactions
from penstock.clock import Clock
from penstock.config import BrokerConfig
from penstock.delivery.waiters import Positions, Waiters
from penstock.disk.files import Files
from penstock.disk.job import Job, Take, Takers
from penstock.disk.refusals import at_start
from penstock.errors import DiskFull, StoreError
from penstock.limits import Limits, limits_of
from penstock.log.checkpoint import write_abort
from penstock.log.consumequeue import ConsumeQueue
from penstock.log.recovery import Recovery
from penstock.log.repair import Repairs
from penstock.log.sequences import Sequences
from penstock.wire import record

log = logging.getLogger("penstock.broker")

_CLOCK_BEHIND_MS = 60_000  # less is put right by the clock's own synchronisation

CLIENTS_EVERY_MS = 10_000


class Broker:
    """One broker. `open` before use; after it every method is called from one thread."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        files: Files | None = None,
        clock: Clock | None = None,
        time: BrokerClock | None = None,
        limits: Limits | None = None,
    ) -> None:
        limits = self.limits = limits or limits_of(config)
        core = self.core = Core(config, files or Files(), time or BrokerClock(clock or Clock()), limits)
        self.files, self.folder = core.files, core.folder
        self.time, self.clock, self.started_ms = core.time, core.time.clock, core.started_ms
        self.store, self.store_host, self.schedule = core.store, core.store_host, core.schedule
        self.topics, self.groups, self.offsets = core.topics, core.groups, core.offsets
        self.reserve = Reserve(core.folder, core.files)
        self.tables = Tables(core)
        self.transactions = Transactions(core)
        self.tracing = Tracing(core)
        self.retry = Retry(core.sending, core.groups, self.tracing)
        self.queueing = Queueing(core, self.retry)
        self.offsets.watch(self._committed)
        self.topics.share_names_with(self.queueing.registry.has_queue)
        self.topics.readers_see(partial(seen, core.copies))
        self.due = DueMessages(core, self.queueing.deferral)
        self.keeping = Keeping(core, self.queueing)
        self.staging = Staging(core, self.tables.write)
        self.store.attach(self.staging.sinks)
        self.sequences = Sequences(self.folder / "config" / "sequences.json", self.files)
        self.store.remember(self.sequences)
        self.store.attach(self.sequences)
        self.clients = ClientTable()
        self.locks = QueueLocks()
        self.held_pulls = Waiters(limits.max_waiting_pulls)  # pulls, by message queue
        self.stored = Positions()  # answers, by position of the log
        self.copies = core.copies
        self.guide = Guide(config, core.copies, core.time)
        self.mastership: Mastership | None = None
        self.stats = Stats(partial(counters, core), partial(totals, core))
        probes = Probes(core, self.queueing)
        self.history = History(core.files, core.folder, config.history_bytes, probes.every, probes.disk, probes.shape)
        self._takers = Takers()
        self.repairs: Repairs | None = None  # of damaged records, where this is a node of a set
        self.recovered: Recovery | None = None  # what the last start found
        self._clients_due_ms = 0
        # What fronts ask for, by the part that does it.
        self.flush_log = core.flush_log
        self.sending = core.sending
        self.put = core.sending.put
        self.topic_to_write = core.sending.topic_to_write
        self.send_back = self.retry.send_back
        self.retry_topic_of = self.retry.retry_topic_of
        self.save_tables = self.tables.save_changed
        self.when_saved = self.tables.when_saved
        self.level_offsets = self.tables.level_offsets
        self.take_offset_jobs = self.tables.take_offset_jobs

    @property
    def mono_ms(self) -> int:
        """The steady clock of this turn."""
        return self.time.mono_ms

    @property
    def now_ms(self) -> int:
        """The wall clock of this turn."""
        return self.time.now_ms

    @property
    def now_ns(self) -> int:
        """The same, finer: for ids."""
        return self.time.now_ns

    def _committed(self, group: str, topic: str, queue_id: int, before: int | None, offset: int) -> None:
        self.tracing.committed(group, topic, queue_id, before, offset)
        if self.queueing.log_channels(topic.encode(), group.encode()) is None:
            self.queueing.acknowledged.committed(topic, queue_id, before, offset)

    # -- life ----------------------------------------------------------------------------------------------------

    def rule(self, mastership: Mastership) -> None:
        """Who changes the role of this node, where it is one of a replica set."""
        self.mastership = mastership

    def open(self) -> Recovery:
        """Open the store and the tables, make the system topics. Returns what recovery found. DiskFull when there is no
        room for what a start must write.
        """
        self.reserve.open()
        self.files.released.begin()
        try:
            return self._open()
        except DiskFull as error:
            self._let_go()
            raise DiskFull(at_start(self.folder, error)) from error
        except BaseException:
            self._let_go()
            raise

    def _open(self) -> Recovery:
        recovery = self.recovered = self.store.open()
        if of_a_set(self.config):
            self.store.log.prefer_writes()
        self.tables.load()
        make_system_topics(self.config, self.topics, len(self.core.delays.levels_ms))
        self.topics.take_up(self.store.queues)
        self.tables.begin()
        self.transactions.load()
        self.time.update()
        self._tell_clock()
        self.store.begin_turn(self.now_ms)  # a start appends, too, and the machine's clock may be another
        self.staging.open()  # nothing may come to stand between a publish that was cut short and its missing rows
        doubtful = recovery.power_cut or recovery.cut_before
        self.queueing.open(recovery.clean, doubtful)
        if doubtful:  # what may never have been whole is told apart now: the next start finds a process that was killed
            write_abort(self.files, self.folder, cut=False)
        self.store.end_turn()
        self.history.open()
        self.keeping.open()
        if of_a_set(self.config):
            self._open_repairs()
        return recovery

    def _tell_clock(self) -> None:
        """A log that a clock wrote that was ahead: its store times never decrease, and nobody else says why they stand."""
        behind_ms = self.store.log.store_ms - self.now_ms
        if behind_ms > _CLOCK_BEHIND_MS:
            log.warning(
                "the log's last record is of a later time than this machine's clock has, and what is stored before then gets "
                "that time, too: look which is right behind_ms=%d",
                behind_ms,
            )

    def _open_repairs(self) -> None:
        """From here on readers wait for damaged records of which another node may have sound copies."""
        self.repairs = Repairs(self.store, hopeful=copied(self.files, self.folder))
        self.repairs.load()
        self.store.repair_by(self.repairs)

    def close(self, clean: bool = True) -> None:
        """Write everything out and close the files. StoreError: something could not be written; the files are closed."""
        if not clean:
            self._let_go()
            return
        try:
            self.staging.close()
            self.queueing.close(clean)
            self.flush_log()
            self.tables.close()
            self.history.close()
        except BaseException:
            self._let_go()
            raise
        self.store.close()
        self.files.released.end()

    def _let_go(self) -> None:
        """Close every file, and leave what is in them as a killed process would: a program that a start or a stop has failed for
        may start again.
        """
        queueing, store = partial(self.queueing.close, False), partial(self.store.close, False)
        for close in (self.staging.close, queueing, self.tables.release, store):
            try:
                close()
            except StoreError as error:
                log.error("not closed cleanly folder=%s error=%s", self.folder, error)
        self.files.released.end()

    @property
    def config(self) -> BrokerConfig:
        """The settings as they are now."""
        return self.core.config

    # -- time ----------------------------------------------------------------------------------------------------

    def timers(self) -> list[tuple[str, Callable[[], int | None]]]:
        """What does its work from time to time, by name: each is called, and says when to be called again (monotonic ms). One
        that raises keeps none of the others waiting."""
        time = self.time
        return [
            ("traces", self._settle_traces),
            ("tables", self.tables.tick),
            ("log", lambda: self.store.tick(time.now_ms, time.mono_ms)),
            ("rates", lambda: self.stats.tick(time.mono_ms, time.now_ms)),
            ("history", lambda: self.history.tick(time.mono_ms, time.now_ms)),
            ("transactions", lambda: self.transactions.tick(time.mono_ms)),
            ("queues", self.queueing.tick),
            ("staging", lambda: self.staging.tick(time.mono_ms)),
            ("delayed messages", self.due.tick),
            ("retention of topics", lambda: self.keeping.tick(time.mono_ms, time.now_ms)),
            ("clients", self._expire_clients),
        ]

    def _settle_traces(self) -> None:
        if len(self.tracing):
            self.tracing.settle()

    def _expire_clients(self) -> None:
        mono_ms = self.mono_ms
        if mono_ms >= self._clients_due_ms:
            self._clients_due_ms = mono_ms + CLIENTS_EVERY_MS
            self.clients.expire(mono_ms)

    def take_jobs(self) -> list[Job]:
        """Blocking work for the worker threads: the store's, and offsets every 5 s."""
        mono_ms = self.time.mono_ms
        kinds: list[tuple[str, Take]] = [
            ("log", self.store.take_jobs),
            ("queues", lambda now: self.queueing.take_jobs()),
            ("staging", self.staging.take_jobs),
            ("repair", lambda now: None if self.repairs is None else self.repairs.take_job()),
            ("offsets", lambda now: self.take_offset_jobs()),
            ("history", self.history.take_job),
            ("reserve of room", self.reserve.take_job),
            ("release", lambda now: self.files.released.take_job()),
        ]
        return self._takers.take(kinds, mono_ms)

    # -- questions -----------------------------------------------------------------------------------------------

    def is_system_topic(self, name: str) -> bool:
        """Hidden in lists of topics, not to be deleted."""
        return is_system_topic(self.config, name)

    def hides(self, data: bytes) -> bool:
        """Whether a record is in the log, and nobody is to find it: it is not published yet, or purged."""
        if self.staging.veils(data):
            return True
        message = record.decode_record(data, 0, decompress=False)
        topic = None if message is None else self.topics.get(message.topic.encode())
        if message is None or topic is None or message.queue_id >= len(topic.queues):
            return False
        return message.queue_offset < int(topic.queues[message.queue_id].min_offset)

    def is_new(self, queue: ConsumeQueue) -> bool:
        """Whether a queue still begins at its first message, and that is recent enough to lie in memory."""
        if queue.min_offset > 0:
            return False
        first = queue.entry(0)
        return first is None or self.store.end_position - first[0] < self.guide.far
