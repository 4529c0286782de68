"""The Spark sink `penstock`: tasks stage their rows at the brokers, the driver publishes them, once for each batch.

What runs where: the writers are made on the driver and pickled; `write` runs in the tasks, where it stages under a
random token and hands that back; `commit` runs on the driver and publishes the tokens it is given. Of two attempts of
a task only the one whose message Spark kept is published, whatever rows each of them had; a batch that is committed
twice, because the driver was killed before Spark had noted it, is answered and not written again.
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from penstock.client.staging import Sealed, Sender, SinkRun, StageClient, Stager
from penstock.errors import ConfigError, PenstockError
from penstock.security import Security
from penstock.spark.tools.aloud import speak
from penstock.spark.tools.plainly import all_plainly
from penstock.spark.write import options as sinkoptions
from penstock.spark.write.checkpoint import Checkpoint
from penstock.spark.write.options import SinkOptions
from penstock.spark.write.taskinput import is_whole

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import TaskContext
    from pyspark.sql.types import StructType

    from penstock.spark.write.rows import RowEncoder

log = logging.getLogger(__name__)
speak()

# Of a task whose batch was published before. Spark lets go of a worker that leaves rows unread, and starting one takes longer
# than reading so many; more of them are not worth the reading.
BATCHES_UNREAD_MIN = 16
_NO_OVERWRITING = "a topic cannot be overwritten: messages are only ever added"


@dataclass
class Staged(WriterCommitMessage):
    """What one task attempt hands to the driver. `published`: it has published its rows itself."""

    run: SinkRun
    batch: int
    partition: int
    sealed: Sealed
    published: bool = False


_clients: dict[tuple[int, str, int, Security], StageClient] = {}


def client_of(options: SinkOptions) -> StageClient:
    """This process's connections to that cluster."""
    key = (os.getpid(), options.registry, options.send_timeout_ms, options.security)
    if key not in _clients:
        _clients[key] = StageClient(
            options.registry, patience_s=options.send_timeout_ms / 1000, security=options.security
        )
    return _clients[key]


class _Chunks:
    """Collects the pieces for each broker until there is enough for a request."""

    def __init__(self, stager: Stager, most: int) -> None:
        self._stager = stager
        self._most = most
        self._held: dict[str, tuple[list[bytes], int, int]] = {}

    def add(self, broker: str, data: bytes, rows: int) -> None:
        parts, size, count = self._held.get(broker, ([], 0, 0))
        if parts and size + len(data) > self._most:
            self._stager.add(broker, b"".join(parts), count)
            parts, size, count = [], 0, 0
        parts.append(data)
        self._held[broker] = (parts, size + len(data), count + rows)

    def flush(self) -> None:
        for broker, (parts, _, count) in self._held.items():
            self._stager.add(broker, b"".join(parts), count)
        self._held.clear()


def _rows(
    options: SinkOptions, client: StageClient, batch: int, partition: int, layout: Mapping[str, list[str]]
) -> RowEncoder:
    from penstock.spark.write.rows import RowEncoder

    return RowEncoder(
        lambda topic: client.queues_to_write(topic, layout.get(topic, ())),
        topic=options.topic or options.path,
        turn=batch + partition,
        piece_bytes=options.batch_bytes,
        compress=options.compression == "zlib",
    )


def stage(options: SinkOptions, run: SinkRun, batch: int, partition: int, batches: Iterator[pa.RecordBatch]) -> Sealed:
    """Stage the rows of one task attempt; they are on the brokers' disks when this returns. PenstockError when Spark has cut them
    short.
    """
    client = client_of(options)
    stager = Stager(client, run, batch, inflight=options.inflight, level=options.level)
    try:
        if stager.over():
            _demand_its_topic(options, stager.layout)
            for _ in islice(batches, BATCHES_UNREAD_MIN):
                continue
            return stager.seal()
        rows = _rows(options, client, batch, partition, stager.layout)
        chunks = _Chunks(stager, options.batch_bytes)
        for found in batches:
            for piece in rows.pieces(found):
                chunks.add(piece.queue.broker, piece.data, piece.rows)
        if is_whole() is False:
            raise PenstockError(
                "what makes the rows of this task has failed, and Spark has ended its input before the last one"
            )
        chunks.flush()
        return replace(stager.seal(), layout=rows.layout)
    except Exception:  # the driver will never hear of this token
        stager.abandon()
        raise
    finally:
        stager.close()


def _demand_its_topic(options: SinkOptions, layout: Mapping[str, list[str]]) -> None:
    """ConfigError when the job that was written under this name was another one: it went to other topics. Where each row
    names its topic, and where there were no rows, that is not known.
    """
    topic = options.topic or options.path
    if options.job_id is not None and topic and layout and topic not in layout:
        raise ConfigError(
            f"jobId {options.job_id} is that of a write to {', '.join(sorted(layout))}, and this one is to {topic}: nothing "
            "is written",
            "A write to another topic needs a jobId of its own; the same write to the same topic may be repeated.",
        )


def _demand_its_mode(options: SinkOptions, run: SinkRun, partition: int) -> None:
    """ConfigError when the job of this name was written in the other commit mode, which counts its batches under other names.

    Each task asks for its own partition: of a job that failed any of them may have been published.
    """
    client = client_of(options)
    part = sinkoptions.sink_of_part(run.sink, partition)
    other, sink = ("partition", part) if options.commit_mode == "batch" else ("batch", run.sink)
    written = replace(run, sink=sink)
    if client.known(written, client.coordinator(written)).batch >= 0:
        raise ConfigError(
            f"jobId {options.job_id} is that of a write with commitMode={other}, and this one has {options.commit_mode}: "
            "nothing is written",
            "The same write in the same mode may be repeated; another one needs a jobId of its own.",
        )


def send(options: SinkOptions, batch: int, partition: int, batches: Iterator[pa.RecordBatch]) -> Sealed:
    """Send the rows of one task attempt at once."""
    client = client_of(options)
    sender = Sender(client, "spark-penstock-sink")
    rows = _rows(options, client, batch, partition, {})
    for found in batches:
        for piece in rows.pieces(found):
            if len(piece.data) - piece.start > sinkoptions.SEND_BYTES_MAX:  # then it is one row
                raise PenstockError(
                    f"a row for {piece.queue.topic} has with its properties more than the {sinkoptions.SEND_BYTES_MAX} bytes of"
                    " a plain batch send: with commitMode batch or partition its value alone may have as many"
                )
            sender.send(piece.queue, piece.data[piece.start :], piece.rows, piece.sys_flag)
    return Sealed("", sender.rows, 0, ())


def _demand_its_plan(options: SinkOptions, run: SinkRun, batch: int, planned_ms: int) -> None:
    """PlannedAnew when the first partition was published by an earlier plan of this batch: a partition that plan did not have
    is not known itself, and would write rows that are in others already.
    """
    first = replace(run, sink=sinkoptions.sink_of_part(run.sink, 0))
    client_of(options).demand_planned(first, batch, planned_ms)


def write(
    options: SinkOptions,
    run: SinkRun,
    batch: int,
    partition: int,
    batches: Iterator[pa.RecordBatch],
    planned_ms: int | None = None,
) -> Staged:
    """What a task does, in any commit mode. `planned_ms`: when Spark planned the batch, where the driver could read that."""
    if options.commit_mode == "none":
        return Staged(run, batch, partition, send(options, batch, partition, batches))
    if options.job_id is not None:
        _demand_its_mode(options, run, partition)
    if options.commit_mode == "partition":
        if planned_ms is not None and partition > 0:  # what the first one knows of itself, its own publish finds
            _demand_its_plan(options, run, batch, planned_ms)
        own = replace(run, sink=sinkoptions.sink_of_part(run.sink, partition))
        sealed = stage(options, own, batch, partition, batches)
        whole = bool(is_whole())
        if whole:  # else the driver does it, which is told of no task that has failed
            client_of(options).publish(own, batch, [sealed], planned_ms)
        return Staged(own, batch, partition, sealed, whole)
    return Staged(run, batch, partition, stage(options, run, batch, partition, batches))


def commit(
    options: SinkOptions,
    messages: Sequence[WriterCommitMessage | None],
    batch: int,
    location: str = "",
) -> None:
    """What the driver does when all tasks are done. `location`: of the query's checkpoint, where there is one."""
    staged = sorted((m for m in messages if isinstance(m, Staged)), key=lambda m: m.partition)
    if not staged or options.commit_mode == "none":
        return
    client, checkpoint, run = client_of(options), Checkpoint(location), staged[0].run
    if options.commit_mode == "partition":
        for message in staged:
            if not message.published:
                client.publish(message.run, batch, [message.sealed], checkpoint.planned_ms(batch))
        return
    run = replace(run, decider=checkpoint.deciders().get(run.sink, ""))
    checkpoint.note_decider(run.sink, client.coordinator(run))
    published = client.publish(run, batch, [m.sealed for m in staged], checkpoint.planned_ms(batch))
    if published.already:
        log.info("batch %d of sink %s was published before", batch, run.sink)


def abort(options: SinkOptions, messages: Sequence[WriterCommitMessage | None], batch: int) -> None:
    """Spark gives a batch up; best effort, the brokers clean up by rule.

    It does so behind a commit that has failed, too, and that may have been decided: then the next attempt finishes it.
    """
    staged = [m for m in messages if isinstance(m, Staged)]
    if staged and options.commit_mode == "batch" and client_of(options).undecided(staged[0].run, batch):
        client_of(options).drop(staged[0].run, [m.sealed for m in staged])


def _context() -> TaskContext:
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        raise PenstockError("not in a Spark task")
    return context


@all_plainly("write", "commit")
class BatchWriter(DataSourceArrowWriter):
    """`df.write.format("penstock")`: one job is one batch, named by `jobId`."""

    def __init__(self, options: SinkOptions) -> None:
        self.options = options
        job = options.job_id or uuid.uuid4().hex
        self.run = SinkRun(sinkoptions.sink_of_job(job), job, uuid.uuid4().hex, once=options.job_id is None)
        log.info("writing as jobId %s", job)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        return write(self.options, self.run, 0, _context().partitionId(), iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        commit(self.options, messages, 0)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """The job has failed: the brokers drop all rows of its run, for a task that was killed could not name its own."""
        if self.options.commit_mode == "batch" and client_of(self.options).undecided(self.run, 0):
            client_of(self.options).drop_all(self.run)


@all_plainly("write", "commit")
class StreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream.format("penstock")`: the micro-batches of one query, numbered by Spark."""

    def __init__(self, options: SinkOptions, location: str = "") -> None:
        self.options = options
        self.location = location
        checkpoint = Checkpoint(location)  # on the driver: tasks may run where its files are not
        self._deciders, self._planned = checkpoint.deciders(), checkpoint.newest_planned()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        context = _context()
        query = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        run = context.getLocalProperty("spark.jobGroup.id")
        if not (query and run and batch and batch.isdigit()):
            raise PenstockError("Spark does not say which query, run and batch this task belongs to")
        # Only a sink with a name of its own can be taken over: another's unnamed sink is never met.
        name = self.options.sink_id or query
        sink = SinkRun(name, query, run, reset=self.options.sink_reset, decider=self._deciders.get(name, ""))
        planned_ms = self._planned.get(int(batch))
        return write(self.options, sink, int(batch), context.partitionId(), iterator, planned_ms)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        commit(self.options, messages, batchId, self.location)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        abort(self.options, messages, batchId)


def batch_writer(given: Mapping[str, str], wanted: StructType, overwrite: bool) -> BatchWriter:
    """The writer of one job. `ConfigError` when such rows cannot be written with such options."""
    if not given:  # as from INSERT INTO a table of the catalog: the rows would go to the default address
        raise ConfigError(
            "Spark gave no options at all: a table of its catalog cannot be written to",
            'df.write.format("penstock") with options',
        )
    if overwrite:
        raise ConfigError(_NO_OVERWRITING, 'write with mode("append")')
    options = _checked(given, wanted)
    if options.sink_id or options.sink_reset:
        raise ConfigError("sinkId and sinkReset are for streams", "a batch write is named by jobId")
    return BatchWriter(options)


def stream_writer(given: Mapping[str, str], wanted: StructType, overwrite: bool) -> StreamWriter:
    """The writer of one micro-batch. `ConfigError` as above."""
    if overwrite:
        raise ConfigError(
            f"outputMode complete writes the whole table each time, and {_NO_OVERWRITING}",
            'outputMode("append"), for aggregates behind withWatermark; or foreachBatch, which writes each with a jobId',
        )
    if not {name.lower() for name in given} - {"checkpointlocation"}:  # as from toTable of a catalog's table
        raise ConfigError(
            "Spark gave no options but the checkpoint: of a table of its catalog it does not say where that is",
            'writeStream.format("penstock") with options, the registry at least; toTable(...) takes them, too',
        )
    options = _checked(given, wanted)
    if options.job_id:
        raise ConfigError("jobId is for batch writes", "a stream is named by its checkpoint, or by sinkId")
    return StreamWriter(
        options, next((text for name, text in given.items() if name.lower() == "checkpointlocation"), "")
    )


def _checked(given: Mapping[str, str], wanted: StructType) -> SinkOptions:
    options = sinkoptions.parse(given)
    sinkoptions.check(wanted, options)
    return options
