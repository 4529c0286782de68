"""Staged rows: written by the tasks of a job, shown to readers all together when its driver publishes them.

    OPEN ─▶ a spool file for one attempt of one task (`token`), APPEND adds chunks to it, SEAL flushes it
    PUBLISH ─▶ `begin` │ the rows of the tokens named │ `done`      in one turn, so that they lie together in the log
    done is flushed ─▶ the spool files go

A spool (`broker.spool`) is no part of the log, so no reader ever sees it; `broker.publish` copies its rows there, behind
a veil (`log.veil`); `broker.runs` says who may, and `broker.sinks` is what remains of a publish.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from penstock.broker.core import Core
from penstock.broker.levels import LEVEL_PAIR_DISK
from penstock.broker.mirrors import Mirror, Mirrors
from penstock.broker.publish import BatchPublish
from penstock.broker.replica import was_slave
from penstock.broker.runs import Run, Runs
from penstock.broker.sinks import Note, Sink, Sinks
from penstock.broker.spool import CHUNK_BYTES_MAX, TOKEN, Spool, Spools, lost, pieces
from penstock.disk.job import Job
from penstock.errors import Refused
from penstock.log import cutting, status
from penstock.log.veil import Veils
from penstock.wire.codes import ResponseCode

log = logging.getLogger("penstock.staging")

TOKENS_MAX = 100_000
SWEEP_MS = 60_000


class Token(NamedTuple):
    """One attempt of one task to stage its part of a batch, from a client at `born`."""

    run: Run
    token: str
    batch: int
    born: bytes


class Wanted(msgspec.Struct, frozen=True):
    """A PUBLISH as it was asked for."""

    sink: str
    query: str
    run: str
    batch: int
    coordinator: str
    tokens: tuple[str, ...]
    brokers: dict[str, list[str]]  # of the whole batch, at the coordinator
    reset: bool = False
    once: bool = False
    layout: dict[str, list[str]] = msgspec.field(default_factory=dict)
    planned: int | None = None  # when, in ms, the batch was planned by its query

    def as_run(self) -> Run:
        """Who asks."""
        return Run(self.sink, self.query, self.run, self.coordinator, self.reset, self.once)


class Staging:
    """The staged rows of one broker. Every method on its thread."""

    def __init__(self, core: Core, write_tables: Callable[[], None]) -> None:
        self._core = core
        self._write_tables = write_tables
        self.folder = core.folder / "staging"
        self.sinks = Sinks(core.folder / "config" / "sinks.json", core.files)
        intent = cutting.intended(core.files, core.folder)
        if intent is not None and intent.to < self.sinks.position:
            self.sinks.read_again()
        self.spool_files = Spools(core.files, self.folder)
        self.spools = self.spool_files.by_token
        self.mirrors = Mirrors(core.copies, self.spool_files)  # of a master
        self.mirror = Mirror(core.files, self.folder)  # of a slave
        self.published = 0
        self._veils = Veils(core.store)
        self._runs = Runs(self.sinks, core.sending)
        self._batch = BatchPublish(core, self.sinks, self._runs, self.spool_files, self._veils)
        self._sweep_ms = 0
        # What fronts ask for, by the part that does it.
        self.veiled = (
            self._veils.lowered
        )  # batches that readers do not see; while there is any, `lift` at the end of a turn
        self.veils = self._veils.hides
        self.when_visible = self._veils.when_visible

    @property
    def staged_bytes(self) -> int:
        """The size of all spool files that are there."""
        return self.spool_files.staged_bytes

    def oldest_age_ms(self) -> int:
        """How long ago the spool was written to that was left alone for longest; 0 where there is none."""
        now_ms = self._core.time.now_ms
        return max((now_ms - spool.at_ms for spool in self.spools.values()), default=0)

    # -- opening -------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Find the spools, finish a publish that was cut short. After the store and the topics are open."""
        self.spool_files.open()
        core = self._core
        # What another one has begun is cut off before this node's epoch begins (`Mastership.cut_unfinished`).
        if self.sinks.begun is not None and not core.store.following and not was_slave(core.files, core.folder):
            self._batch.finish_cut_short(self.sinks.begun, self._write_tables)
        for spool in list(self.spools.values()):
            sink = self.sinks.by_name.get(spool.sink)
            if sink is not None and spool.batch <= sink.last:
                self._drop(spool)
        if any(spool.sealed for spool in self.spools.values()):
            self.spool_files.want_flush()

    @property
    def unfinished_at(self) -> int:
        """Where a publish begins of which the log has not the end; -1: there is none."""
        return self.sinks.begun.physical if self.sinks.begun is not None else -1

    def close(self) -> None:
        """Let go of the files."""
        self.spool_files.close()

    def note(self, run: Run) -> Sink:
        """The sink, for a run that may write to it, here or to other brokers alone; a new run is written down. Refused."""
        # What a query before this one has staged is nobody's. But a power cut may have taken the record of this run, or
        # of the sink, and spared what was sealed: those tokens may still be published.
        if self._runs.register(run):
            for spool in [s for s in self.spools.values() if s.sink == run.sink and s.run != run.run]:
                self._drop(spool)
        return self.sinks.by_name[run.sink]

    def ask(self, sink: str, query: str, run: str, reset: bool) -> Sink | None:
        """What is known of a sink, for a run that may write to it. Refused when it may not, or when that is not certain yet."""
        known = self._runs.ask(sink, query, run, reset)
        if known is not None:
            self._demand_lasting(sink)
        return known

    def _demand_lasting(self, sink: str) -> None:
        """Refused while the last publish of a sink can still be lost: who is told of it stages nothing, and if it were lost
        then, a batch without these rows would be published in its place.
        """
        if self.sinks.done_at.get(sink, 0) > self._core.copies.visible(LEVEL_PAIR_DISK, durable=True):
            self._core.store.want_flush()
            raise Refused(
                "a batch of this sink was published, and is not on all disks yet: ask again",
                remoting=ResponseCode.SERVICE_NOT_AVAILABLE,
            )

    # -- staging -------------------------------------------------------------------------------------------------

    def open_token(self, wanted: Token) -> tuple[int, Sink]:
        """Begin to stage, or go on after a lost connection: (number of the last chunk here, the sink).

        -1 when the batch is published already: nothing needs to be staged.
        """
        run, token, batch, born = wanted
        if not TOKEN.fullmatch(token) or batch < 0:
            raise Refused("a token is 8 to 64 hexadecimal digits, and a batch is numbered from 0")
        there = self._runs.ask(run.sink, run.query, run.run, run.reset)
        if there is not None and batch <= there.last:  # who has nothing to stage does not end the run before it
            self._demand_lasting(run.sink)
            return -1, there
        known = self.note(run)
        spool = self.spools.get(token)
        if spool is None:
            self._demand_room()
            if len(self.spools) >= TOKENS_MAX:
                raise Refused(f"more than {TOKENS_MAX} tokens are staged", remoting=ResponseCode.STAGE_FULL)
            fresh = Spool(token, self.folder / token, run.sink, batch, run.run, known.coordinator, born)
            spool = self.spool_files.create(fresh, self._core.time.now_ms)
        elif (spool.sink, spool.batch) != (run.sink, batch):
            raise lost(token, "belong to another sink or batch")
        return spool.number, known

    def _demand_room(self) -> None:
        if self._core.store.refusal == status.DISK_FULL:
            raise Refused(
                "the disk is full: nothing is staged until there is room", remoting=ResponseCode.SERVICE_NOT_AVAILABLE
            )
        limit = self._core.config.stage_max_bytes
        if self.staged_bytes >= limit:
            raise Refused(
                f"{self.staged_bytes} bytes are staged, stage_max_bytes is {limit}", remoting=ResponseCode.STAGE_FULL
            )

    def _of(self, token: str) -> Spool:
        spool = self.spools.get(token)
        if spool is None:
            raise lost(token, "are not here: dropped, expired, or lost with the machine's power")
        self._runs.demand_current(spool.sink, spool.run)
        return spool

    def append(self, token: str, number: int, chunk: bytes) -> int:
        """Add the chunk with this number, unless it is here already; the number of the last one."""
        spool = self._of(token)
        if number <= spool.number:
            return spool.number
        if number != spool.number + 1 or spool.sealed:
            raise Refused(
                f"chunk {number} of {token} comes behind chunk {spool.number}", remoting=ResponseCode.STAGE_GAP
            )
        if not 0 < len(chunk) <= CHUNK_BYTES_MAX:
            raise Refused(f"a chunk has 1 to {CHUNK_BYTES_MAX} bytes", remoting=ResponseCode.MESSAGE_ILLEGAL)
        self._demand_room()
        found = list(pieces(chunk))
        for piece in found:
            self._batch.check(piece)
        self.spool_files.add_chunk(spool, number, chunk, found, self._core.time.now_ms)
        return number

    def seal(
        self, token: str, rows: int, size: int, sums: int, answer: Callable[[BaseException | None], None] | None
    ) -> None:
        """No more is added. `answer` is called when all of it is on the disk, or could not be written there."""
        spool = self._of(token)
        if (rows, size, sums) != (spool.rows, spool.chunk_bytes, spool.sums):
            raise lost(
                token,
                f"are {spool.rows} rows, {spool.chunk_bytes} bytes, sum {spool.sums}; sealed as {rows}, {size}, {sums}",
            )
        if not spool.sealed:
            self.spool_files.seal(spool, self._core.time.now_ms)
        if answer is not None:
            self.when_flushed([spool], answer)
        self.spool_files.want_flush()

    def when_flushed(self, spools: list[Spool], answer: Callable[[BaseException | None], None]) -> None:
        """Call `answer` when these sealed spools are on the disk, and on those of all slaves in sync; at once when they are."""

        def flushed(error: BaseException | None) -> None:
            if error is not None:
                answer(error)
            else:
                self.mirrors.when_copied([spool.token for spool in spools], answer)

        self.spool_files.when_flushed(spools, flushed)

    # -- publishing ----------------------------------------------------------------------------------------------

    def ready(self, wanted: Wanted) -> list[Spool] | None:
        """The spools a PUBLISH asks for; None when the batch is published already. Refused when it cannot be."""
        known = self.note(wanted.as_run())
        if wanted.batch <= known.last:
            return None
        found = []
        for token in wanted.tokens:
            spool = self.spools.get(token)
            if spool is None or not spool.sealed or (spool.sink, spool.batch) != (wanted.sink, wanted.batch):
                raise lost(token, "are not here, sealed, for this sink and batch")
            found.append(spool)
        return found

    def publish(self, wanted: Wanted) -> tuple[bool, Sink]:
        """Append the rows of the tokens, in their order: (whether that happened now, the sink).

        The answer must wait until the log is flushed up to its present end.
        """
        spools = self.ready(wanted)
        sink = self.sinks.by_name[wanted.sink]
        if spools is None:
            return False, sink
        store = self._core.store
        if store.refusal or self.sinks.begun is not None:
            why = "nothing is published"
            if self.sinks.begun is not None:  # by this batch, or another one
                why = "a restart of the broker finishes the publish that was cut short"
            raise Refused(f"the store takes no messages now: {why}", remoting=ResponseCode.SERVICE_NOT_AVAILABLE)
        for spool in spools:
            for name, queue_id in spool.queues:
                if not queue_id < self._core.sending.open_to_senders(name).queue_count:
                    raise Refused(f"topic {name.decode()} has no queue {queue_id} any more")
        self._batch.check_again(spools)
        self._batch.demand_room(sum(spool.log_bytes for spool in spools))
        begin: Note = {
            "k": "begin", "sink": wanted.sink, "batch": wanted.batch, "run": wanted.run,
            "rows": sum(spool.rows for spool in spools), "tokens": [spool.token for spool in spools],
        }  # fmt: skip
        if wanted.brokers:
            begin["brokers"] = wanted.brokers
        if wanted.layout:
            begin["layout"] = wanted.layout
        if wanted.planned is not None:
            begin["planned"] = wanted.planned
        self._runs.note(begin)
        self._batch.append(spools, 0)
        self.published += 1
        for spool in [s for s in self.spools.values() if s.sink == wanted.sink and s.batch <= wanted.batch]:
            self._drop(spool)
        return True, self.sinks.by_name[wanted.sink]

    def lift(self) -> None:
        """Let readers see what is whole now."""
        self._veils.lift()

    # -- removing ------------------------------------------------------------------------------------------------

    def drop(self, sink: str, run: str, tokens: list[str]) -> int:
        """Forget staged rows of a sink: those named, or all of them when none is, which ends the run; how many there were."""
        self._runs.demand_current(sink, run)
        if not tokens:
            self._runs.give_up(sink, run)
        found = [
            spool for spool in self.spools.values() if spool.sink == sink and (not tokens or spool.token in tokens)
        ]
        for spool in found:
            self._drop(spool)
        return len(found)

    def _drop(self, spool: Spool) -> None:
        self.spool_files.drop(spool, self._core.store.end_position)

    def tick(self, mono_ms: int) -> int:
        """Drop what nobody will publish any more; when to look again.

        Sealed rows of a batch over several brokers may be decided at another one: they stay until it is published
        here or somebody drops them. Only those of a job that nobody can name again do not: no run would finish it.
        """
        if mono_ms >= self._sweep_ms:
            self._sweep_ms = mono_ms + SWEEP_MS
            retention = self._core.store.upkeep.retention
            if self._core.store.following:  # they are the master's
                return self._sweep_ms
            if retention is not None and not retention.trusts(self._core.time.now_ms, mono_ms):
                return self._sweep_ms
            config = self._core.config
            before_ms = self._core.time.now_ms - config.stage_ttl_ms
            for spool in list(self.spools.values()):
                sink = self.sinks.by_name.get(spool.sink)
                once = sink is not None and sink.once
                if (once or not spool.sealed or spool.coordinator == config.broker_name) and spool.at_ms < before_ms:
                    log.warning("staged rows expired sink=%s batch=%d rows=%d", spool.sink, spool.batch, spool.rows)
                    self._drop(spool)
        return self._sweep_ms

    def take_jobs(self, mono_ms: int) -> list[Job]:
        """Spools to be flushed, and to be removed."""
        self.lift()
        store = self._core.store
        jobs = self.spool_files.take_jobs(store.flushed_position, store.end_position)
        if (mirroring := self.mirror.take_job()) is not None:
            jobs.append(mirroring)
        return jobs
