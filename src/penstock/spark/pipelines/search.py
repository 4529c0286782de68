"""Messages found by key, tag, time and words of the body, in a commit log, in an archive, or in both together.

With a topic and a key, a store's key index leads to the records; what it does not cover (older, or not yet indexed) is
scanned, as everything is without a key. Scanning is done in the tasks, which give back the hits alone. A message that is in
the log and in the archive is shown once.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

from penstock.errors import ConfigError
from penstock.message import UNIQUE_KEY
from penstock.spark import schema
from penstock.spark.log import files as logfiles
from penstock.spark.log import source as logsource
from penstock.spark.log.files import LogSegment, Piece
from penstock.spark.log.options import LogOptions
from penstock.spark.log.options import parse as parse_log
from penstock.spark.pipelines import manifest
from penstock.spark.pipelines.asked import at_least, bound_ms, complete
from penstock.spark.pipelines.parallel import SMALL_BYTES, Progress, over

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.spark.pipelines.parallel import Spark

LIMIT = 1000
_COLUMNS = ("topic", "partition", "offset", "timestamp", "tags", "key", "value", "uniqKey")


@dataclass(frozen=True)
class Criteria:
    """What a message must have; empty means any."""

    topic: str
    key: str
    tag: str
    body: bytes
    since: int | None
    until: int | None


@dataclass(frozen=True)
class Hit:
    """One message; `source` is the file it was found in."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    tags: str | None
    key: bytes | None
    value: bytes
    source: str

    def as_dict(self) -> dict[str, object]:
        """For JSON: bytes as text, as far as they are."""
        text = {
            name: (raw or b"").decode("utf-8", "replace") for name, raw in (("key", self.key), ("value", self.value))
        }
        return {**asdict(self), **text}


@dataclass(frozen=True)
class SearchResult:
    """The hits by time; `indexed` of them through the key index. `more`: there are more than the limit."""

    hits: list[Hit] = field(default_factory=list)
    indexed: int = 0
    scanned: int = 0  # files or pieces
    more: bool = False
    seconds: float = 0.0

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return {**asdict(self), "hits": [hit.as_dict() for hit in self.hits]}


class Asked(TypedDict, total=False):
    """The keywords of `run`."""

    path: str | Path
    archive: str | Path
    topic: str
    key: str
    tag: str
    body: str
    since: str
    until: str
    limit: int


DEFAULTS = Asked(
    path="", archive="", topic="", key="", tag="", body="", since="", until="", limit=LIMIT
)  # fmt: skip


def run(spark: Spark, *, progress: Progress | None = None, **asked: Unpack[Asked]) -> SearchResult:
    """Search the log at `path` (as `format("penstock-log")` takes it) and the Parquet archive of the job `archive`.

    A key is one word of a message's keys, or its unique id.
    """
    began = time.monotonic()
    job = complete(asked, DEFAULTS)
    path, archive, limit = job["path"], job["archive"], job["limit"]
    at_least(0, "limit", limit)
    if not path and not archive:
        raise ConfigError("nothing to search in", "give a log, an archive, or both")
    if archive and not Path(archive).is_dir():
        raise ConfigError(
            f"{archive} is no folder", "an archive is the folder that `penstock spark archive --to` was given"
        )
    wanted = Criteria(
        job["topic"], job["key"], job["tag"], job["body"].encode(), bound_ms(job["since"]), bound_ms(job["until"])
    )
    items: list[str | list[Piece]] = []
    hits: list[Hit] = []
    if path:
        options = _log_options(str(path), wanted)
        segments = logfiles.find(str(path))
        hits, spans = _through_index(options, segments, wanted)
        items += [left for run in logsource.plan(options, segments) if (left := _without(run, spans))]
    indexed = len(hits)
    if archive:
        items += [str(file) for file in _files(Path(archive), wanted.topic)]

    def work(item: str | list[Piece]) -> Iterator[Hit]:
        if isinstance(item, str):
            return in_archive(item, wanted, limit)
        return in_log(options, item, wanted, limit)

    total = sum(
        Path(item).stat().st_size if isinstance(item, str) else sum(p.end - p.begin for p in item) for item in items
    )
    hits += over(spark, items, work, progress, small=total <= SMALL_BYTES)
    once = {(hit.topic, hit.partition, hit.offset, hit.timestamp, hit.value): hit for hit in reversed(hits)}
    found = sorted(once.values(), key=lambda hit: (hit.timestamp, hit.topic, hit.partition, hit.offset))
    return SearchResult(found[:limit], indexed, len(items), len(found) > limit, round(time.monotonic() - began, 3))


# -- the log


def _log_options(path: str, wanted: Criteria) -> LogOptions:
    given = {"path": path, "onBadRecord": "skip", "useConsumeQueue": "false"}
    for name, value in (
        ("topics", wanted.topic), ("tags", wanted.tag), ("startingTimestamp", wanted.since),
        ("endingTimestamp", wanted.until),
    ):  # fmt: skip
        if value not in ("", None):
            given[name] = str(value)
    return parse_log(given)


def in_log(options: LogOptions, parts: Sequence[Piece], wanted: Criteria, limit: int) -> Iterator[Hit]:
    """The hits in some pieces of a log, at most one more than the limit."""
    count = 0
    source = parts[0].segment.path
    for batch in logsource.batches(options, schema.arrow_of(_COLUMNS), parts):
        for hit in _hits(_with_body(batch, wanted), wanted, source):
            yield hit
            count += 1
            if count > limit:
                return


def _with_body(batch: pa.RecordBatch, wanted: Criteria) -> pa.RecordBatch:
    """The rows that may be hits: what Arrow can say quickly."""
    import pyarrow.compute as pc

    if wanted.body:
        batch = batch.filter(pc.fill_null(pc.match_substring(batch.column("value"), wanted.body), False))
    if wanted.key:
        inside = pc.fill_null(pc.match_substring(batch.column("key"), wanted.key.encode()), False)
        if "uniqKey" in batch.schema.names:
            inside = pc.or_(inside, pc.fill_null(pc.equal(batch.column("uniqKey"), wanted.key), False))
        batch = batch.filter(inside)
    return batch


def _hits(batch: pa.RecordBatch, wanted: Criteria, source: str) -> Iterator[Hit]:
    import pyarrow as pa

    at = batch.schema.get_field_index("timestamp")
    batch = batch.set_column(at, "timestamp", batch.column(at).cast(pa.int64()))
    for row in batch.to_pylist():
        keys = (row["key"] or b"").split(b" ")
        if wanted.key and wanted.key.encode() not in keys and row.get("uniqKey") != wanted.key:
            continue
        yield Hit(
            row["topic"], row["partition"], row["offset"], row["timestamp"] // 1000, row["tags"], row["key"],
            row["value"], source,
        )  # fmt: skip


def _through_index(
    options: LogOptions, segments: list[LogSegment], wanted: Criteria
) -> tuple[list[Hit], list[tuple[int, int]]]:
    """(hits the key index leads to, the stretches of the log it covers)."""
    from penstock.spark.log.derive import key_hash
    from penstock.spark.log.indexfile import INDEX_NAMES, IndexFile

    folder = logfiles.store_of(segments[0])
    if not wanted.key or not wanted.topic or folder is None or not (folder / "index").is_dir():
        return [], []
    hash_ = key_hash(wanted.topic, wanted.key)
    hits: list[Hit] = []
    spans: list[tuple[int, int]] = []
    follows = False
    for path in sorted((folder / "index").glob(INDEX_NAMES)):
        index = IndexFile(path)
        if not index.whole:
            follows = False
            continue
        if index.count < 2:
            continue
        first, last = int(index.entries["physical"][1]), int(index.entries["physical"][-1])
        # Files follow one another: between two stands nothing with a key, unless one is damaged there. The first and the last
        # record may have keys in a file before or behind.
        spans.append((spans.pop()[0] if follows else first + 1, last))
        follows = True
        for physical in index.find(hash_):
            hits += _at(options, segments, physical, wanted)
    return hits, spans


def _at(options: LogOptions, segments: list[LogSegment], physical: int, wanted: Criteria) -> Iterator[Hit]:
    for segment in segments:
        if segment.base <= physical < segment.base + segment.end:
            at = physical - segment.base
            for batch in logsource.batches(options, schema.arrow_of(_COLUMNS), [Piece(segment, at, at + 1)]):
                yield from _hits(_with_body(batch, wanted), wanted, segment.path)


def _without(run: Sequence[Piece | logsource.Entries], spans: list[tuple[int, int]]) -> list[Piece]:
    """What is left of pieces when these stretches need not be read."""
    left = [part for part in run if isinstance(part, Piece)]  # a search reads the log itself, not through queues
    for begin, end in spans:
        cut = []
        for segment, low, high in left:
            a, b = max(begin - segment.base, low), min(end - segment.base, high)
            if a >= b:
                cut.append(Piece(segment, low, high))
                continue
            cut += [Piece(segment, x, y) for x, y in ((low, a), (b, high)) if x < y]
        left = cut
    return left


# -- the archive


def _files(archive: Path, topic: str) -> list[Path]:
    """The archive's files, of one topic or of all."""
    found = sorted(archive.glob("*/broker=*/queue=*/*.parquet"))
    return [path for path in found if not topic or manifest.topic_of(path) == topic]


def in_archive(path: str, wanted: Criteria, limit: int) -> Iterator[Hit]:
    """The hits in one file of an archive."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    topic = manifest.topic_of(Path(path))
    count = 0
    file = pq.ParquetFile(path)
    missing = {"partition", "offset", "timestamp", "value"} - set(file.schema_arrow.names)
    if missing:
        raise ConfigError(f"{path} lacks {', '.join(sorted(missing))}", "archive with these columns to search in them")
    names = [name for name in (*_COLUMNS, "properties") if name in file.schema_arrow.names and name != "topic"]
    for batch in file.iter_batches(columns=names):
        rows = batch.num_rows
        columns = {name: batch.column(name) for name in batch.schema.names if name != "properties"}
        columns["topic"] = pa.repeat(pa.scalar(topic), rows)
        for name in ("tags", "key"):
            columns.setdefault(name, pa.nulls(rows, pa.string() if name == "tags" else pa.binary()))
        if "properties" in batch.schema.names and "uniqKey" not in columns:
            columns["uniqKey"] = pc.map_lookup(batch.column("properties"), pa.scalar(UNIQUE_KEY), "last")
        flat = pa.RecordBatch.from_pydict(columns)
        times = pc.divide(flat.column("timestamp").cast(pa.int64()), 1000)
        keep = pa.array([True] * rows)
        if wanted.since is not None:
            keep = pc.and_(keep, pc.greater_equal(times, wanted.since))
        if wanted.until is not None:
            keep = pc.and_(keep, pc.less(times, wanted.until))
        if wanted.tag:
            keep = pc.and_(keep, pc.fill_null(pc.equal(flat.column("tags"), wanted.tag), False))
        for hit in _hits(_with_body(flat.filter(keep), wanted), wanted, path):
            yield hit
            count += 1
            if count > limit:
                return
