"""The Spark data source `penstock-log`: commit-log segments in bulk, without a broker and read-only.

What is read is fixed when `load()` runs: `find` then notes up to where the newest segment is good. `logfiles` says how
pieces are cut and walked, `decode` makes the batches. With topics that are a small part of the log, the store's consume
queues say where their messages stand; what the queues do not cover yet is walked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql.datasource import DataSourceReader, EqualTo, Filter, In, InputPartition

from penstock.client.routes import MessageQueue
from penstock.errors import ConfigError, Corrupt, StoreError
from penstock.log import checkpoint
from penstock.spark import schema
from penstock.spark.log import files as logfiles
from penstock.spark.log.files import Damage, LogSegment, Piece
from penstock.spark.log.options import LogOptions, parse
from penstock.spark.read import planning
from penstock.spark.read.source import by_properties, keep_memory, takes_filters
from penstock.spark.tools.plainly import all_plainly
from penstock.wire import layout

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from penstock.spark.kernel.batches import Batches

SHOWN_BYTES = 1 << 20  # of damage, in a row


class Entries(NamedTuple):
    """Offsets `first` to `until` of a message queue of the store in this folder, through its consume queue."""

    folder: str
    queue: MessageQueue
    first: int
    until: int


class LogSource:
    """What `format("penstock-log")` makes of its options."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.options = parse(options)
        self.segments = logfiles.find(self.options.path)

    def columns(self) -> tuple[str, ...]:
        """The columns asked for."""
        o = self.options
        return schema.columns(headers=o.include_headers, metadata=o.include_metadata, names=o.columns, bulk=True)

    def schema(self) -> str:
        """The same as DDL."""
        return schema.ddl(self.columns())

    def reader(self, wanted: StructType) -> BulkReader:
        """A batch reader; one that takes filters if Spark would call them."""
        o = self.options
        schema.check(wanted, bulk=True, damage=o.on_bad_record == "row" and not o.topics)
        if o.columns or o.include_headers or o.include_metadata:
            schema.demand_one_choice(wanted, self.columns())
        kind = FilteringBulkReader if takes_filters(self.options.pushdown) else BulkReader
        return kind(self.options, self.segments, wanted)


# -- planning


def plan(options: LogOptions, segments: Sequence[LogSegment]) -> list[list[Piece | Entries]]:
    """What each Spark partition reads."""
    total = sum(segment.end for segment in segments)
    if options.use_consume_queue != "false" and options.topics:
        found = _through_queues(options, segments)
        if found is not None:
            entries, covered, size = found
            if options.use_consume_queue == "true" or (2 * size < total and options.on_bad_record == "fail"):
                # What lies behind the last entry of all queues was perhaps not dispatched yet.
                rest = [s for s in segments if s.base + s.end > covered]
                tail: list[list[Piece | Entries]] = [
                    [Piece(s, max(covered - s.base, 0), s.end)] for s in rest if max(covered - s.base, 0) < s.end
                ]
                through: list[list[Piece | Entries]] = [[one] for one in entries]
                return through + tail
        elif options.use_consume_queue == "true":
            raise ConfigError("there are no consume queues to use", "load a store folder, or leave useConsumeQueue")
    return [list(run) for run in logfiles.cut(segments, options.split_bytes, options.min_partitions)]


def _through_queues(options: LogOptions, segments: Sequence[LogSegment]) -> tuple[list[Entries], int, int] | None:
    """(ranges of the topics' queues, physical offset up to which the queues go, bytes of the topics' records).

    One queue may go farther than another: behind a crash, and in a folder that was copied while its broker worked. Where our
    broker has noted up to where all are durable, and how many entries there are, they count up to there, if they are all there.
    """
    stores = {logfiles.store_of(segment) for segment in segments}
    folder = stores.pop() if len(stores) == 1 else None
    if folder is None or not (folder / "consumequeue").is_dir():
        return None
    whole = all(a.base + a.size == b.base for a, b in pairwise(segments))
    if not whole or not segments:
        return None
    oldest, newest = segments[0].base, segments[-1].base + segments[-1].end
    mark, counts = logfiles.last_mark(folder)
    noted = mark if counts else None
    if noted is None and checkpoint.abort_text(folder) is not None and options.use_consume_queue == "auto":
        return None  # RocketMQ's, at work when it was copied, or killed: it notes neither
    durable = newest if noted is None else noted.derived
    whole_queues: list[tuple[Entries, int]] = []
    covered, size, count = oldest, 0, 0
    for topic in sorted(path for path in (folder / "consumequeue").iterdir() if path.is_dir()):
        for place in sorted(path for path in topic.iterdir() if path.name.isdigit()):
            first, until, end, room, below = _bounds(place, oldest, min(newest, durable), durable)
            count += below
            if not room:
                continue
            covered = max(covered, end)
            if topic.name in options.topics:
                size += room
                queue = MessageQueue(topic.name, "", int(place.name))
                whole_queues.append((Entries(str(folder), queue, first, until), room))
    if noted is not None and count != noted.entries:
        if options.use_consume_queue == "true":
            raise ConfigError(
                f"the consume queues of {folder} do not have all messages of its log: it was copied at work, or is damaged",
                "leave useConsumeQueue, or give the copy to penstock spark reindex",
            )
        return None
    return _cut(whole_queues, size, options), covered, size


def _cut(queues: list[tuple[Entries, int]], size: int, options: LogOptions) -> list[Entries]:
    """Entries, each with the bytes of their records, `size` in all, in pieces as the options have them. ConfigError."""
    cut: list[Entries] = []
    for (folder, queue, first, until), room in queues:
        least = -(-room * options.min_partitions // size) if options.min_partitions else 1
        parts = min(max(-(-room // options.split_bytes), least), until - first)
        planning.check_count(len(cut) + parts, f"{size} bytes of records")
        marks = [first + (until - first) * n // parts for n in range(parts + 1)]
        cut += [Entries(folder, queue, a, b) for a, b in pairwise(marks)]
    return cut


def _bounds(place: Path, oldest: int, newest: int, durable: int) -> tuple[int, int, int, int, int]:
    """(first offset, end, physical end of the last record, bytes) of a queue's entries inside the log, all 0 without; and the
    end of those below `durable`, whether their records are still there or not.
    """
    import numpy as np

    from penstock.spark.kernel.buffers import ENTRY

    first = until = end = size = below = 0
    for path in sorted(path for path in place.iterdir() if len(path.name) == 20 and path.name.isdigit()):
        entries = np.fromfile(path, ENTRY)
        physical, sizes = entries["physical"].astype(np.int64), entries["size"].astype(np.int64)
        good = (sizes >= layout.RECORD_FIXED_BYTES) & (sizes != layout.FILLER_SIZE)
        begin, ends = int(path.name) // layout.ENTRY_BYTES, physical + sizes
        counted = np.flatnonzero(good & (ends <= durable))
        if len(counted):
            below = begin + int(counted[-1]) + 1
        at = np.flatnonzero(good & (physical >= oldest) & (ends <= newest))
        if len(at):
            first = first if until else begin + int(at[0])
            until, end = begin + int(at[-1]) + 1, int(ends[at[-1]])
            size += int(sizes[at].sum())
    return first, until, end, size, below


# -- reading


@dataclass
class LogPartition(InputPartition):
    """One Spark partition: pieces of segments, or offsets of one queue."""

    parts: list[Piece | Entries]

    def __init__(self, parts: list[Piece | Entries]) -> None:
        super().__init__(None)
        self.parts = parts


def batches(options: LogOptions, arrow: pa.Schema, parts: Sequence[Piece | Entries]) -> Iterator[pa.RecordBatch]:
    """The rows of these parts, in the order of the log (of the queue, when read through its entries)."""
    from penstock.spark.kernel.batches import Batches, decoder_of
    from penstock.spark.kernel.buffers import FIRST_MS, LAST_MS

    keep_memory()
    make = Batches(
        arrow,
        decoder=decoder_of(options.tags, options.keys),
        real_topic=options.real_topic,
        keep_damaged=options.on_bad_record != "fail",
    )
    since, before = options.starting_timestamp, options.ending_timestamp
    make.decoder.choose(
        tuple(topic.encode() for topic in options.topics),
        FIRST_MS if since is None else since,
        LAST_MS if before is None else before,
        options.verify == "crc" and options.on_bad_record != "row",
        options.on_bad_record == "row",
    )
    for part in parts:
        if isinstance(part, Entries):
            yield from _of_entries(options, make, part)
        else:
            try:
                yield from _of_piece(options, make, part)
            except FileNotFoundError:
                raise StoreError(
                    f"segment {part.segment.path} is gone since it was listed, as where its broker drops the oldest: load again"
                ) from None


def _of_piece(options: LogOptions, make: Batches, piece: Piece) -> Iterator[pa.RecordBatch]:
    segment = piece.segment
    make.reading(broker=options.broker or _broker(segment.path), segment=segment.path)
    for found in logfiles.walk(piece, make.decoder, make.window_bytes):
        if isinstance(found, Damage):
            yield from make.rest()
            if options.on_bad_record == "fail":
                raise Corrupt(segment.path, found.begin, f"no record, up to byte {found.end}; onBadRecord=skip goes on")
            if options.on_bad_record == "row" and not options.topics:
                yield _damage_row(make, found)
        else:
            yield from _fed(options, make, found.number, found.begin)
    yield from make.rest()


def _of_entries(options: LogOptions, make: Batches, part: Entries) -> Iterator[pa.RecordBatch]:
    from penstock.spark.read.localfiles import Segments

    broker, store = options.broker or Path(part.folder).name, Segments(part.folder)
    folder = Path(part.folder) / "consumequeue" / part.queue.topic / str(part.queue.queue_id)
    hint = "useConsumeQueue=false reads the log itself"
    at = part.first
    for window, starts, first, base in store.runs(part.queue, part.first, part.until, make.window_bytes):
        if (segment := store.path_of(base)) != make.segment:
            yield from make.rest()
            make.reading(broker=broker, segment=segment)
        count = len(starts)
        try:
            rows = make.decoder.place(window, starts, first, base)
        except Corrupt as error:
            raise Corrupt(folder, first * layout.ENTRY_BYTES, f"{error.why}; {hint}") from None
        yield from _fed(options, make, rows, base)
        at = first + count
    yield from make.rest()
    if at < part.until:
        raise Corrupt(folder, at * layout.ENTRY_BYTES, f"no entry for offset {at}, of {part.until}; {hint}")


def _fed(options: LogOptions, make: Batches, count: int, begin: int) -> Iterator[pa.RecordBatch]:
    decoder = make.decoder
    if decoder.broken and options.on_bad_record == "fail":
        raise Corrupt(
            make.segment, begin + decoder.broken_at, "the body has another checksum; onBadRecord=skip goes on"
        )
    selects = by_properties(options.where)
    if selects is not None:
        count = decoder.only(selects)
    for batch in make.feed(count):
        if decoder.lost and options.on_bad_record == "skip":
            batch = batch.filter(batch.column("value").is_valid())
        yield batch


def _damage_row(make: Batches, found: Damage) -> pa.RecordBatch:
    import pyarrow as pa

    with open(found.segment.path, "rb") as file:
        file.seek(found.begin)
        raw = file.read(min(found.end - found.begin, SHOWN_BYTES))
    row: dict[str, Any] = {
        "value": raw,
        "physicalOffset": found.segment.base + found.begin,
        "size": min(found.end - found.begin, 2**31 - 1),
        "crcOk": False,
        "segment": found.segment.path,
        "broker": make.broker,
    }
    return pa.RecordBatch.from_pydict({name: [row.get(name)] for name in make.schema.names}, schema=make.schema)


def _broker(path: str) -> str:
    folder = Path(path).absolute().parent
    return folder.parent.name if folder.name == "commitlog" else folder.name


@all_plainly("partitions", "read")
class BulkReader(DataSourceReader):
    """Reads fixed pieces of segments."""

    def __init__(self, options: LogOptions, segments: list[LogSegment], wanted: StructType) -> None:
        self.options, self.segments, self.wanted = options, segments, wanted
        self.nothing = False

    def pruneColumns(self, schema: StructType) -> None:
        """Some engines say which columns a query uses; Spark 4.3 does not ask."""
        self.wanted = schema

    def partitions(self) -> Sequence[InputPartition]:
        return [] if self.nothing else [LogPartition(run) for run in plan(self.options, self.segments)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, LogPartition):  # Spark's stand-in for "no partitions"
            return iter(())
        return batches(self.options, schema.arrow_schema(self.wanted), partition.parts)


class FilteringBulkReader(BulkReader):
    """The same, with filters on the topic answered while reading."""

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:
        for one in filters:
            if not self._answered(one):
                yield one

    def _answered(self, one: Filter) -> bool:
        if (
            getattr(one, "attribute", None) != ("topic",)
            or not isinstance(one, EqualTo | In)
            or self.options.real_topic
        ):
            return False
        values = {one.value} if isinstance(one, EqualTo) else set(one.value)
        chosen = {value for value in values if isinstance(value, str)}
        chosen = chosen & set(self.options.topics) if self.options.topics else chosen
        self.options = replace(self.options, topics=tuple(sorted(chosen)))
        self.nothing = not chosen
        return True
