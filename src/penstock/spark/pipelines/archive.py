"""Topics to Parquet: every offset once, whatever is killed when.

Spark schedules ranges of offsets; each task fetches, decodes and writes its files itself and hands back one row per
file, so the messages never enter the JVM. Without Spark, and when there is little, this process does the same. `manifest`
says how a killed run is resumed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

from penstock.client.subscriptions import check_group, check_topic
from penstock.errors import ConfigError
from penstock.spark import schema
from penstock.spark.pipelines import manifest, tables
from penstock.spark.pipelines.asked import at_least, complete
from penstock.spark.pipelines.parallel import SMALL_MESSAGES, Progress, started
from penstock.spark.read import planning, samelog
from penstock.spark.read.options import SourceOptions, parse
from penstock.spark.read.planning import Range
from penstock.spark.read.source import RangePartition, batches, connection
from penstock.wire import layout

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.spark.pipelines.parallel import Spark

COLUMNS = ("key", "value", "partition", "offset", "timestamp", "tags", "properties", "bornTimestamp", "reconsumeTimes")
FILE_RECORDS = 1_000_000
FILE_BYTES = 256 << 20  # of stored records, before compression
GROUP_ROWS, GROUP_BYTES = 200_000, 64 << 20
_FEW_VALUES = ("tags", "topic", "broker", "partition", "timestampType", "reconsumeTimes", "flag", "sysFlag")
_RETURNS = "path string, broker string, queue int, first bigint, last bigint, rows bigint, bytes bigint"


@dataclass(frozen=True)
class File:
    """One Parquet file: offsets `first` to `last` of a queue; `rows` is fewer where the log has holes."""

    path: str
    broker: str
    queue: int
    first: int
    last: int
    rows: int
    bytes: int


@dataclass(frozen=True)
class ArchiveResult:
    """What a run did; `next` is where the next one begins."""

    topic: str
    folder: str
    rows: int
    bytes: int
    seconds: float
    resumed: int  # files that a run before this one had planned
    dry_run: bool
    files: list[File] = field(default_factory=list)
    next: dict[str, dict[str, int]] = field(default_factory=dict)

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)


class Asked(TypedDict, total=False):
    """The keywords of `run`."""

    registry: str
    columns: tuple[str, ...]
    compression: str
    table: str
    fail_on_data_loss: bool
    group: str
    store: str | Path
    dry_run: bool
    file_records: int


DEFAULTS = Asked(
    registry="127.0.0.1:9876", columns=COLUMNS, compression="zstd", table="parquet", fail_on_data_loss=True, group="",
    store="", dry_run=False, file_records=FILE_RECORDS,
)  # fmt: skip


def run(
    spark: Spark, topic: str, to: str | Path, *, progress: Progress | None = None, **asked: Unpack[Asked]
) -> ArchiveResult:
    """Archive what the topic holds beyond the last run, up to its durable end now, into Parquet files under `to`.

    `group`, when given, gets the archived positions as committed offsets, for operators to see. `store` is the
    broker's data folder, where the tasks can read it themselves.
    `table`, one of parquet, delta, iceberg, says what else the files are committed to (see `tables`).
    Raises `DataLoss` when offsets are gone, `Locked` when another run is at it, NoRoute for an unknown topic.
    """
    began = time.monotonic()
    job = complete(asked, DEFAULTS)
    table, file_records = job["table"], job["file_records"]
    tables.check(table)
    at_least(1, "file_records", file_records)
    folder = Path(to).absolute()
    options = _options(topic, job)
    if job["dry_run"]:
        return _plan_only(manifest.load(folder, topic), options, file_records, began)
    with manifest.locked(folder, topic):
        state = manifest.load(folder, topic)
        _sweep(folder, topic)
        if table == "delta" and not manifest.root_of(folder, topic).exists():
            (folder / topic).mkdir(parents=True)
        resumed = len(state.pending)
        files = []
        for ranges in (state.pending, None):  # first what a killed run had begun, then what is new
            begun = _plan(state, options, file_records) if ranges is None else ranges
            if begun:
                if ranges:
                    _demand_same_log(state, options, _ends(begun))
                else:
                    _note_log(state, options, _ends(begun))
                state.begin(begun)
                files += _write_all(spark, folder, begun, options, job["compression"], progress)
                state.end()
        tables.commit(table, folder, topic, state.next)
        if job["group"]:
            for queue, offset in state.next.items():
                connection(options).commit(job["group"], queue, offset)
    return _result(state, files, began, resumed)


def _options(topic: str, job: Asked) -> SourceOptions:
    """How the tasks read the topic. ConfigError before anything is noted of a run that cannot be done."""
    try:
        check_topic(topic)
    except ValueError as error:  # "a,b" would be two, read as one wishes, and archived under notes of neither
        raise ConfigError(str(error), "archive one topic at a time") from None
    try:
        check_group(job["group"] or "none")
    except ValueError as error:  # the broker would say so when all is archived
        raise ConfigError(str(error)) from None
    schema.columns(names=job["columns"])
    return parse(
        {
            "subscribe": topic,
            "registry": job["registry"],
            "columns": ",".join(job["columns"]),
            "failOnDataLoss": str(job["fail_on_data_loss"]).lower(),
            "groupIdPrefix": "penstock-archive",
            **({"store": str(job["store"])} if job["store"] else {}),
        }
    )


def _ends(ranges: list[Range]) -> planning.Offsets:
    return {r.queue: max(each.end for each in ranges if each.queue == r.queue) for r in ranges}


def _note_log(state: manifest.Manifest, options: SourceOptions, ends: planning.Offsets) -> None:
    """Keep, with the ranges that are begun, by what their queues can be told from others: see `samelog`."""
    for queue, end in ends.items():
        moment = samelog.stored_ms(options, connection(options), queue, end)
        state.stored.pop(queue, None)
        if moment is not None:
            state.stored[queue] = end, moment


def _demand_same_log(state: manifest.Manifest, options: SourceOptions, reached: planning.Offsets) -> None:
    """`DataLoss` where a queue is another one than that which was archived, or begun, up to there: its broker was put back to an
    older state, and has grown past it. What it stored anew below cannot be archived beside the files of the same offsets.
    """
    for queue, offset in reached.items():
        at, moment = state.stored.get(queue, (-1, 0))
        if at == offset:
            samelog.first_unread(options, connection(options), queue, offset, moment)


def _plan(state: manifest.Manifest, options: SourceOptions, file_records: int) -> list[Range]:
    """The ranges to archive, cut into files."""
    cluster = connection(options)
    pieces = []
    known = planning.bounds(cluster, planning.find_queues(cluster, options))
    _demand_same_log(
        state, options, {q: state.next[q] for q, (oldest, end) in known.items() if oldest < state.next.get(q, 0) < end}
    )
    for queue, (oldest, end) in known.items():
        start = state.next.get(queue, oldest)
        if start < oldest:
            planning.lost(
                options,
                f"offsets {start} to {min(oldest, end)} of {planning.name_of(queue)} were never archived and are gone",
            )
            start = oldest
        if start > end:
            planning.lost(
                options,
                f"{planning.name_of(queue)} ends at {end}, archived is up to {start}: the topic was deleted and created again",
            )
        elif start < end:
            sample = cluster.fetch(queue, start, max_bytes=64 << 10, max_count=32, group=options.group_id_prefix)
            mean = max(len(sample.records) // max(sample.next_offset - start, 1), layout.RECORD_FIXED_BYTES)
            pieces += planning.cut([Range(queue, start, end)], None, min(file_records, max(FILE_BYTES // mean, 1)))
    return pieces


def _sweep(folder: Path, topic: str) -> None:
    """Remove what killed tasks left half written."""
    for path in manifest.unfinished(folder, topic):
        path.unlink(missing_ok=True)
    if not (manifest.root_of(folder, topic) / "_delta_log").exists():
        tables.remove_contained(folder, topic)


def _write_all(
    spark: Spark,
    folder: Path,
    ranges: list[Range],
    options: SourceOptions,
    compression: str,
    progress: Progress | None,
) -> list[File]:
    def work(ids: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return write_ranges(ids, ranges, str(folder), options, compression)

    session = started(spark, small=sum(r.end - r.start for r in ranges) <= SMALL_MESSAGES)
    with _FileWatch(folder, ranges, progress):
        if session is None:
            files = [write_range(r, folder, options, compression) for r in ranges]
        else:
            tasks = session.range(0, len(ranges), 1, len(ranges)).mapInArrow(work, _RETURNS)
            files = [File(**row.asDict()) for row in tasks.collect()]
    return sorted(files, key=lambda f: (f.broker, f.queue, f.first))


def write_ranges(
    ids: Iterator[pa.RecordBatch], ranges: list[Range], folder: str, options: SourceOptions, compression: str
) -> Iterator[pa.RecordBatch]:
    """In a task: write the files of these ranges, one row back for each."""
    import pyarrow as pa

    kinds = (pa.string(), pa.string(), pa.int32(), pa.int64(), pa.int64(), pa.int64(), pa.int64())
    names = [name.split()[0] for name in _RETURNS.split(", ")]
    for batch in ids:
        for index in batch.column(0).to_pylist():
            done = asdict(write_range(ranges[index], Path(folder), options, compression))
            yield pa.RecordBatch.from_arrays(
                [pa.array([done[name]], kind) for name, kind in zip(names, kinds, strict=True)], names=names
            )


def write_range(r: Range, folder: Path, options: SourceOptions, compression: str) -> File:
    """One file, written under another name, flushed, renamed; one that stands already is whole and stays."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = manifest.file_of(folder, r)
    if not path.exists():
        arrow = schema.arrow_of(options.columns)
        encoded = [name for name in arrow.names if name in _FEW_VALUES]
        held: list[pa.RecordBatch] = []
        with (
            manifest.written(folder, r.queue.topic, path) as file,
            pq.ParquetWriter(file, arrow, compression=compression, use_dictionary=encoded) as writer,
        ):
            for batch in batches(options, arrow, RangePartition(r, ())):
                held.append(batch)
                if sum(b.num_rows for b in held) >= GROUP_ROWS or sum(b.nbytes for b in held) >= GROUP_BYTES:
                    writer.write_table(pa.Table.from_batches(held), row_group_size=GROUP_ROWS * 2)
                    held = []
            if held:
                writer.write_table(pa.Table.from_batches(held), row_group_size=GROUP_ROWS * 2)
    rows = pq.ParquetFile(path).metadata.num_rows
    return File(str(path), r.queue.broker, r.queue.queue_id, r.start, r.end - 1, rows, path.stat().st_size)


class _FileWatch:
    """Reports progress while Spark works, by the files that are finished."""

    def __init__(self, folder: Path, ranges: list[Range], progress: Progress | None) -> None:
        self.files = [(manifest.file_of(folder, r), r.end - r.start) for r in ranges]
        self.total = sum(size for _, size in self.files)
        self.progress = progress
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._look, name="penstock-archive-progress", daemon=True)

    def __enter__(self) -> None:
        if self.progress:
            self.thread.start()

    def __exit__(self, *_: object) -> None:
        self.over.set()
        if self.progress:
            self.thread.join()

    def _look(self) -> None:
        assert self.progress is not None
        left, done = self.files, 0
        while True:
            over = self.over.wait(0.3)
            done += sum(size for path, size in left if path.exists())
            left = [(path, size) for path, size in left if not path.exists()]
            self.progress(done, self.total)
            if over:
                return


def _plan_only(state: manifest.Manifest, options: SourceOptions, file_records: int, began: float) -> ArchiveResult:
    ranges = state.pending or _plan(state, options, file_records)
    files = [
        File(
            str(manifest.file_of(state.folder, r)),
            r.queue.broker,
            r.queue.queue_id,
            r.start,
            r.end - 1,
            r.end - r.start,
            0,
        )
        for r in ranges
    ]
    return _result(state, files, began, len(state.pending), dry_run=True)


def _result(
    state: manifest.Manifest, files: list[File], began: float, resumed: int, dry_run: bool = False
) -> ArchiveResult:
    return ArchiveResult(
        topic=state.topic,
        folder=str(state.folder),
        rows=sum(file.rows for file in files),
        bytes=sum(file.bytes for file in files),
        seconds=round(time.monotonic() - began, 3),
        resumed=resumed,
        dry_run=dry_run,
        files=files,
        next=planning.to_json(state.next).get(state.topic, {}),
    )
