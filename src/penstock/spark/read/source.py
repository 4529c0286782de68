"""The Spark data source `penstock`: a batch reader and a stream reader over the same planning and the same fetching.

What runs where: `Source`, `partitions` and `pushFilters` in a short-lived Python process on the driver; a
`StreamReader` in one process on the driver for the whole life of a query; `read` in the tasks, on a pickled copy.
Connections are therefore opened where they are used and kept per process, never on an object that is pickled.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from penstock.client.reader import Fetched, LogReader
from penstock.client.routes import Json, MessageQueue
from penstock.client.subscriptions import Subscription, selector_of
from penstock.errors import ClientError, Corrupt, PenstockError
from penstock.security import Security
from penstock.spark import schema
from penstock.spark.read import planning, samelog
from penstock.spark.read.options import SourceOptions, demand_no_end, in_vain, parse
from penstock.spark.read.patience import FOUND, NONE_MATCHED, asked, fetch, patiently
from penstock.spark.read.planning import Offsets, Range
from penstock.spark.read.unseen import Unseen
from penstock.spark.tools.aloud import speak
from penstock.spark.tools.plainly import all_plainly

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from penstock.spark.kernel.batches import Batches
    from penstock.spark.read.localfiles import Segments

log = logging.getLogger(__name__)
speak()

FLUSH_WAIT_S = 2.0
WORTH_FILES = 1_000  # messages: fewer are fetched sooner than a file is opened and compared
_SAMPLE_RECORDS, _SAMPLE_BYTES = 32, 64 << 10

# -- the data source


class Source:
    """What `format("penstock")` makes of its options. One DataFrame is one range: a batch's end is fixed at load."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.options = parse(options)
        self.loaded: dict[MessageQueue, tuple[int, int]] | None
        try:
            self.loaded = batch_range(self.options)
        except PenstockError:  # a stream needs no range, and a batch says it again in `reader`
            self.loaded = None

    def columns(self) -> tuple[str, ...]:
        """The columns asked for."""
        o = self.options
        return schema.columns(headers=o.include_headers, metadata=o.include_metadata, names=o.columns)

    def schema(self) -> str:
        """The same as DDL."""
        return schema.ddl(self.columns())

    def reader(self, wanted: StructType) -> Reader:
        """A batch reader; one that takes filters if Spark would call them."""
        self._check(wanted)
        if vain := in_vain(self.options):
            log.warning("%s: for streams, a table does without", ", ".join(vain))
        loaded = self.loaded
        if loaded is None:
            loaded = patiently(self.options, lambda: batch_range(self.options), known=False)
        return (FilteringReader if takes_filters(self.options.pushdown) else Reader)(self.options, wanted, loaded)

    def stream_reader(self, wanted: StructType) -> StreamReader:
        """A stream reader. ConfigError when it is told where to end."""
        demand_no_end(self.options)
        self._check(wanted)
        return StreamReader(self.options, wanted)

    def _check(self, wanted: StructType) -> None:
        o = self.options
        schema.check(wanted)
        if o.columns or o.include_headers or o.include_metadata:
            schema.demand_one_choice(wanted, self.columns())


def batch_range(options: SourceOptions) -> dict[MessageQueue, tuple[int, int]]:
    cluster = connection(options)
    cluster.forget_routes()  # Spark's Python process on the driver may have read this topic a moment ago
    queues = planning.find_queues(cluster, options)
    planning.demand_order(options, queues)
    known = _settled(cluster, queues)
    begin = planning.starts(cluster, options, known, stream=False)
    end = planning.ends(cluster, options, known)
    return {queue: (begin[queue], end[queue]) for queue in known}


def _settled(cluster: LogReader, queues: list[MessageQueue]) -> dict[MessageQueue, tuple[int, int]]:
    """The bounds of the queues, once what is visible now is durable: who has just published will find it in the table.

    A broker flushes within a second or so; one that does not is not waited for longer than FLUSH_WAIT_S.
    """
    visible = {queue: cluster.offsets(queue, durable=False)[1] for queue in queues}
    deadline = time.monotonic() + FLUSH_WAIT_S
    while True:
        known = planning.bounds(cluster, queues)
        if all(known[queue][1] >= end for queue, end in visible.items()) or time.monotonic() >= deadline:
            return known
        time.sleep(0.05)


def takes_filters(pushdown: str) -> bool:
    """Whether a batch reader narrows what it reads to Spark's filters.

    Spark 4.1 to 4.3 keep what a reader planned for one query with the table of the DataFrame, and give it to other queries of the
    same DataFrame (docs/decisions/0145). The Spark that keeps it with the query is the one that pushes limits, too.
    """
    keeps_apart = hasattr(DataSourceReader, "pushLimit")
    return pushdown == "true" or (pushdown == "auto" and keeps_apart and asked_by_pushdown())


def asked_by_pushdown() -> bool:
    """Is Spark's push-down worker calling? With push-down off another one does, and refuses a reader with filters."""
    try:
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if frame.f_code.co_filename.endswith("data_source_pushdown_filters.py"):
                return True
            frame = frame.f_back
    except (AttributeError, ValueError):  # an interpreter without frames: then without push-down
        pass
    return False


# -- reading


@dataclass
class RangePartition(InputPartition):
    """One Spark partition: a range of one message queue, and the tags its messages must have (empty: any)."""

    range: Range
    tags: tuple[str, ...]

    def __init__(self, range: Range, tags: tuple[str, ...] = ()) -> None:
        super().__init__(None)
        self.range, self.tags = range, tags


_connections: dict[tuple[int, str, int, Security, bool], LogReader] = {}


def connection(options: SourceOptions) -> LogReader:
    """This process's reader of that cluster."""
    slaves = options.read_from == "slave"
    key = (os.getpid(), options.registry, options.fetch_timeout_ms, options.security, slaves)
    if key not in _connections:
        _connections[key] = LogReader(
            options.registry, timeout_s=options.fetch_timeout_ms / 1000, security=options.security, slaves=slaves
        )
    return _connections[key]


def batches(options: SourceOptions, arrow: pa.Schema, part: RangePartition) -> Iterator[pa.RecordBatch]:
    """The rows of one partition: the same ones in the same order whenever it is read."""
    from penstock.spark.kernel.batches import Batches, decoder_of

    keep_memory()
    queue, at, end = part.range
    cluster = connection(options)
    make = Batches(
        arrow,
        broker=queue.broker,
        decoder=decoder_of(part.tags, options.keys),
        real_topic=options.real_topic,
        keep_damaged=not options.fail_on_data_loss,
    )
    selection = Subscription(queue.topic, " || ".join(part.tags) or "*")
    if options.where is not None:  # the decoder looks for the tags
        selection = Subscription(queue.topic, options.where, "SQL92")
    folder = _folder(options, cluster, part.range)
    if folder:
        for count, found in _from_files(folder, options, cluster, make, part.range):
            yield from found
            at += count
    while at < end:
        got = asked(options, cluster, queue, lambda at=at: fetch(cluster, options, part.range, at, selection))  # type: ignore[misc]
        if got is None:
            planning.lost(
                options, f"offsets {at} to {end} of {planning.name_of(queue)} are gone: the queue was deleted"
            )
            break
        if got.status == FOUND:
            yield from make.feed(make.decoder.load(got.records, at, end))
        elif got.status != NONE_MATCHED:
            at = _gap(options, part.range, at, got)
            continue
        if got.next_offset <= at:
            raise PenstockError(f"{planning.name_of(queue)} does not go on from offset {at}")
        at = got.next_offset
    yield from make.rest()


def _folder(options: SourceOptions, cluster: LogReader, wanted: Range) -> str:
    """The data folder to read the range from; empty: none. What the broker names is looked at once per process."""
    if options.store not in ("auto", "none"):
        return options.store
    if options.store == "none" or options.read_from == "slave" or wanted.end - wanted.start < WORTH_FILES:
        return ""
    key = (os.getpid(), options.registry, wanted.queue.broker)
    if key not in _folders:
        folder = asked(options, cluster, wanted.queue, lambda: cluster.data_folder(wanted.queue))
        if folder is None:
            return ""
        _folders[key] = folder if folder and os.access(os.path.join(folder, "commitlog"), os.R_OK | os.X_OK) else ""
    return _folders[key]


def _from_files(
    folder: str, options: SourceOptions, cluster: LogReader, make: Batches, wanted: Range
) -> Iterator[tuple[int, Iterator[pa.RecordBatch]]]:
    """(number of offsets, their batches) out of the broker's own files; ends early where these do not fit."""
    from penstock.spark.read.localfiles import Segments

    files = _files.setdefault((os.getpid(), folder), Segments(folder))
    selects = by_properties(options.where)
    for window, starts, first, base in files.runs(wanted.queue, wanted.start, wanted.end, make.window_bytes, near=True):
        if first == wanted.start:
            last = next(files.runs(wanted.queue, wanted.end - 1, wanted.end), None)
            if last is None:
                return
            if not _same_store(options, cluster, wanted, last[0]):
                level = logging.DEBUG if options.store == "auto" else logging.WARNING
                log.log(level, "%s is not the folder of broker %s: messages are fetched", folder, wanted.queue.broker)
                return
        count = len(starts)
        try:
            rows = make.decoder.place(window, starts, first, base)
            if selects is not None:
                rows = make.decoder.only(selects)
        except Corrupt as error:  # damage in the files is the broker's to judge: it may have set the record aside
            log.warning("reading on through the broker: %s", error)
            return
        yield count, make.feed(rows)


def by_properties(where: str | None) -> Callable[[bytes], bool] | None:
    """Whether a record with these properties is wanted, by the broker's own code; None: every one is."""
    if where is None:
        return None
    selector = selector_of(where)
    return lambda properties: selector.matches_text(properties.decode("utf-8", "replace"))


def _same_store(options: SourceOptions, cluster: LogReader, wanted: Range, last: bytes) -> bool:
    """Whether the range's last record in the files is, byte for byte, what the broker gives for that offset.

    The last one, because logs may part: that of a former master goes on otherwise than its successor's from some record on. A
    record has its place and its moment in it, so where one is the same all before it are.
    """
    queue, group = wanted.queue, options.group_id_prefix
    got = asked(
        options, cluster, queue, lambda: cluster.fetch(queue, wanted.end - 1, max_count=1, max_bytes=1, group=group)
    )
    return got is not None and got.status == FOUND and last == got.records


_files: dict[tuple[int, str], Segments] = {}
_folders: dict[tuple[int, str, str], str] = {}
_kept = False


def keep_memory() -> None:
    """Let glibc keep freed megabytes instead of giving them back to the system after every batch; once per process.

    Each fetch and each batch would otherwise be new pages, zeroed by the kernel: a third of the CPU of reading 1-KB
    bodies. Other allocators have nothing to set.
    """
    global _kept
    if _kept or sys.platform != "linux":
        return
    _kept = True
    if TaskContext.get() is not None:
        # After each task Spark's worker looks for garbage among all objects there are, most of them of imported
        # modules: half of what an empty task costs. These stay, and need no looking at.
        gc.freeze()
    try:
        import ctypes

        libc = ctypes.CDLL(None)
        libc.mallopt(-3, 32 << 20)  # M_MMAP_THRESHOLD
        libc.mallopt(-1, 64 << 20)  # M_TRIM_THRESHOLD
    except (OSError, AttributeError):
        pass


def _gap(options: SourceOptions, wanted: Range, at: int, got: Fetched) -> int:
    """Where to go on when the range's next offset is not there: within the range, never before or behind it."""
    until = min(got.min_offset, wanted.end) if got.min_offset > at else wanted.end
    gone = max(got.min_offset, until) if options.fail_on_data_loss else until  # then it is said once, for all pieces
    planning.lost_range(options, wanted.queue, at, gone, (got.min_offset, got.max_offset))
    return until


# -- batch


@all_plainly("partitions", "read")
class Reader(DataSourceReader):
    """Reads fixed ranges once."""

    def __init__(self, options: SourceOptions, wanted: StructType, loaded: dict[MessageQueue, tuple[int, int]]) -> None:
        self.options, self.wanted, self.loaded = options, wanted, loaded
        self.tags = options.tags
        self.nothing = False

    def pruneColumns(self, schema: StructType) -> None:
        """Some engines say which columns a query uses; Spark 4.3 does not ask."""
        self.wanted = schema

    def partitions(self) -> Sequence[InputPartition]:
        ranges = [Range(queue, begin, end) for queue, (begin, end) in sorted(self.loaded.items()) if begin < end]
        if self.nothing:
            ranges = []
        o = self.options
        return [
            RangePartition(r, self.tags) for r in planning.cut(ranges, o.min_partitions, o.max_records_per_partition)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, RangePartition):  # Spark's stand-in for "no partitions"
            return iter(())
        return batches(self.options, schema.arrow_schema(self.wanted), partition)


class FilteringReader(Reader):
    """The same, with filters answered where the messages are."""

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:
        for one in filters:
            if not self._answered(one):
                yield one

    def _answered(self, one: Filter) -> bool:
        """Whether Spark need not check this filter again."""
        if len(getattr(one, "attribute", ())) != 1:
            return False
        column = one.attribute[0]  # type: ignore[attr-defined]
        if isinstance(one, IsNotNull):
            return column in schema.NEVER_NULL
        if column == "timestamp":
            self._by_time(one)
            return False
        if column == "tags" and isinstance(one, EqualTo | In):
            return self._by_tags({one.value} if isinstance(one, EqualTo) else set(one.value))
        if column in ("topic", "partition", "broker") and isinstance(one, EqualTo | In):
            values = {one.value} if isinstance(one, EqualTo) else set(one.value)
            if column == "topic" and self.options.real_topic:
                return False
            index = ("topic", "broker", "partition").index(column)
            self.loaded = {queue: r for queue, r in self.loaded.items() if queue[index] in values}
            return True
        return column == "offset" and self._by_offset(one)

    def _by_offset(self, one: Filter) -> bool:
        low, high = 0, 1 << 63
        if isinstance(one, EqualTo):
            low, high = one.value, one.value + 1
        elif isinstance(one, GreaterThan):
            low = one.value + 1
        elif isinstance(one, GreaterThanOrEqual):
            low = one.value
        elif isinstance(one, LessThan):
            high = one.value
        elif isinstance(one, LessThanOrEqual):
            high = one.value + 1
        else:
            return False
        self.loaded = {queue: (max(begin, low), min(end, high)) for queue, (begin, end) in self.loaded.items()}
        return True

    def _by_time(self, one: Filter) -> None:
        """Narrow to the offsets around a store time; Spark checks the rows again."""
        value = getattr(one, "value", None)
        if not isinstance(value, datetime):
            return
        micros = round((value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp() * 1_000_000)

        def at(queue: MessageQueue, ms: int) -> int:
            return patiently(self.options, lambda: connection(self.options).offset_at(queue, ms))

        if isinstance(one, GreaterThan | GreaterThanOrEqual | EqualTo):
            begins = {queue: at(queue, micros // 1000) for queue in self.loaded}
            self.loaded = {queue: (max(b, begins[queue]), e) for queue, (b, e) in self.loaded.items()}
        if isinstance(one, LessThan | LessThanOrEqual | EqualTo):
            ends = {queue: at(queue, micros // 1000 + 1) for queue in self.loaded}
            self.loaded = {queue: (b, min(e, ends[queue])) for queue, (b, e) in self.loaded.items()}

    def _by_tags(self, values: set[object]) -> bool:
        """The broker selects by the tag's hash, the decoder by its text."""
        # In the broker's language of tags `|` and `*` have a meaning, and blanks around a tag have none.
        wanted = {
            value
            for value in values
            if isinstance(value, str) and value.strip() == value != "" and not set("|*") & set(value)
        }
        if len(wanted) < len(values - {None}):
            return False
        wanted = wanted & set(self.tags) if self.tags else wanted
        self.tags = tuple(sorted(wanted))
        self.nothing = self.nothing or not wanted
        return True


# -- stream


@all_plainly("prepareForTriggerAvailableNow", "latestOffset", "partitions", "read")
class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches; the tasks read what two offsets say, however often and whenever they are asked."""

    def __init__(self, options: SourceOptions, wanted: StructType) -> None:
        self.options, self.wanted = options, wanted
        self.target: dict[MessageQueue, tuple[int, int]] | None = None  # frozen by Trigger.AvailableNow
        self.begin: Offsets | None = None  # of a new query
        self.latest: Json | None = None
        self.planned: Json = {}  # the end offset that was given last
        self.shown: Offsets = {}  # what the group was last told
        self.unseen = Unseen(options)
        self.batch_ms = 0  # monotonic time of the last batch

    def initialOffset(self) -> Json:
        """No positions at all. Spark asks this again in each plan until a batch is committed, after a restart, too.

        Where the query begins is asked once, and travels in the end offset of its first micro-batch.
        """
        return {}

    def prepareForTriggerAvailableNow(self) -> None:
        self.target = self._bounds(known=False)

    def getDefaultReadLimit(self) -> ReadLimit:
        o = self.options
        if o.max_offsets_per_trigger:
            return ReadMaxRows(o.max_offsets_per_trigger)
        if o.max_bytes_per_trigger:
            return ReadMaxBytes(o.max_bytes_per_trigger)
        return ReadMinRows(o.min_offsets_per_trigger) if o.min_offsets_per_trigger else ReadAllAvailable()

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:  # type: ignore[override]
        planning.check_offset(start)
        at = planning.from_json(start)
        self._report_progress(at)
        first = None if start else self._begin()
        at = at if first is None else first
        known = self._known(at)
        self.unseen.tell(connection(self.options), at, known)
        after = self._behind_losses(at, known)
        after |= samelog.resume(self.options, connection(self.options), start, known)
        reached = {**at, **after}
        self.latest = planning.to_json({queue: max(end, reached.get(queue, 0)) for queue, (_, end) in known.items()})
        counts = planning.available(reached, known)
        if not isinstance(limit, ReadAllAvailable):
            if self._wait_for_more(sum(counts.values())):
                return start
            counts = self._limited(reached, known, counts)
        wanted = {queue: reached.get(queue, known[queue][0]) + count for queue, count in counts.items()}
        end = planning.advance(start, known, wanted, first, after)
        self.planned = end if end is start else samelog.note(self.options, connection(self.options), start, end, known)
        return self.planned

    def reportLatestOffset(self) -> Json | None:
        return self.latest

    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        o = self.options
        for offset in (start, end):
            planning.check_offset(offset)
        if not start and planning.FROM not in end:  # a checkpoint of before the beginning travelled in the offset
            start = planning.to_json(self._begin())
        ranges = planning.between(start, end, o)
        if end != self.planned:  # planned before a restart, of the broker, too
            ranges = samelog.keep(o, connection(o), ranges, end)
        return [RangePartition(r, o.tags) for r in planning.cut(ranges, o.min_partitions, o.max_records_per_partition)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, RangePartition):
            return iter(())
        return batches(self.options, schema.arrow_schema(self.wanted), partition)

    def commit(self, end: Json) -> None:
        """Nothing: Spark's checkpoint is the truth, and this is not called for every batch."""

    def stop(self) -> None:
        """Nothing: the process ends with the query."""

    def _begin(self) -> Offsets:
        """Where a new query begins: the first answer is the only one."""
        if self.begin is None:
            self.begin = patiently(self.options, self._starts, known=False)
        return self.begin

    def _starts(self) -> Offsets:
        cluster, o = connection(self.options), self.options
        if self.target is not None:
            known = self.target
        elif o.starting_group is not None or isinstance(o.starting_offsets, dict):
            known = _settled(cluster, planning.find_queues(cluster, o))  # who names a position may have just seen it
        else:
            known = self._seen()
        return planning.starts(cluster, o, known, stream=True)

    def _bounds(self, *, known: bool) -> dict[MessageQueue, tuple[int, int]]:
        """As `_seen`, with patience: a broker that is away for a while is no reason to end a query."""
        return patiently(self.options, self._seen, known=known)

    def _seen(self) -> dict[MessageQueue, tuple[int, int]]:
        cluster = connection(self.options)
        return planning.bounds(cluster, planning.find_queues(cluster, self.options))

    def _behind_losses(self, at: Offsets, known: dict[MessageQueue, tuple[int, int]]) -> Offsets:
        """Where queues go on that have lost what comes next, or end before what was read already. `DataLoss`."""
        short = {queue: end for queue, (_, end) in known.items() if at.get(queue, 0) > end}
        for queue, end in short.items():
            planning.lost(
                self.options, f"{planning.name_of(queue)} ends at {end}, before the offset {at[queue]} reached already"
            )
        after = planning.after_gaps(at, known)
        for queue, oldest in after.items():
            planning.lost_range(self.options, queue, at[queue], oldest, known[queue])
        return {**after, **short}

    def _known(self, at: Offsets) -> dict[MessageQueue, tuple[int, int]]:
        """The bounds of the queues, up to the frozen target if there is one.

        A query may begin behind a target that was frozen before; and what ends before the position may be a topic that is
        deleted now, for which its broker says 0: then the registry, asked anew, does not name it.
        """
        known = self.target if self.target is not None else self._bounds(known=bool(at))
        if any(at.get(queue, 0) > end for queue, (_, end) in known.items()):
            connection(self.options).forget_routes()
            now = self._bounds(known=True)
            if self._not_yet(at, now):
                now = self._bounds(known=True)
            if self.target is None:
                return now
            return {
                q: (oldest, max(end, min(at.get(q, 0), now[q][1]))) for q, (oldest, end) in known.items() if q in now
            }
        return known

    def _not_yet(self, at: Offsets, known: dict[MessageQueue, tuple[int, int]]) -> bool:
        """Whether queues end before what was read of them; what a broker has and does not serve yet is waited for, as behind a
        change of masters: the new one shows what is confirmed, and has to find that out.
        """
        o, short = self.options, [queue for queue, (_, end) in known.items() if at.get(queue, 0) > end]
        for queue in short:
            missing = Range(queue, known[queue][1], known[queue][1] + 1)
            cluster = connection(o)
            asked(o, cluster, queue, partial(fetch, cluster, o, missing, missing.start, Subscription(queue.topic)))
        return bool(short)

    def _wait_for_more(self, count: int) -> bool:
        """minOffsetsPerTrigger: hold back, but not for ever, and not while a query is to run dry."""
        now_ms = time.monotonic_ns() // 1_000_000
        least = self.options.min_offsets_per_trigger
        few = bool(least and count < least and self.target is None and self.batch_ms)
        if few and now_ms - self.batch_ms < self.options.max_trigger_delay:
            return True
        self.batch_ms = now_ms
        return False

    def _limited(self, at: Offsets, known: dict[MessageQueue, tuple[int, int]], counts: Offsets) -> Offsets:
        o = self.options
        if o.max_bytes_per_trigger:
            sizes = [self._record_bytes(queue, at.get(queue, known[queue][0])) for queue, n in counts.items() if n]
            if sizes:
                mean = max(sum(sizes) / len(sizes), 1.0)
                counts = planning.limited(counts, max(int(o.max_bytes_per_trigger / mean), 1))
        if o.max_offsets_per_trigger:
            counts = planning.limited(counts, o.max_offsets_per_trigger)
        return counts

    def _record_bytes(self, queue: MessageQueue, offset: int) -> float:
        """Bytes of a stored record, from a few at this offset."""
        o = self.options
        got = patiently(
            o,
            lambda: connection(o).fetch(
                queue, offset, max_bytes=_SAMPLE_BYTES, max_count=_SAMPLE_RECORDS, group=o.group_id_prefix
            ),
        )
        return len(got.records) / max(got.next_offset - offset, 1)

    def _report_progress(self, at: Offsets) -> None:
        """Tell the group named by commitOffsetsToGroup how far the query is.

        Spark asks for the next offset once a batch is committed, the last one of a bounded run included; `commit`
        is not called for that one.
        """
        group = self.options.commit_offsets_to_group
        if not group:
            return
        for queue, offset in at.items():
            if self.shown.get(queue) == offset:
                continue
            try:
                connection(self.options).commit(group, queue, offset)
                self.shown[queue] = offset
            except ClientError as error:  # for operators only: never a reason to stop a query
                log.warning("offset %s of %s was not shown to group %s: %s", offset, queue, group, error)
