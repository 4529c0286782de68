"""Messages counted by window, topic, queue, tag, producer or consumer group: how many, how large, how late, how often retried.

Each task groups its own messages with Arrow and gives back sums only; the percentiles are exact, because sizes and
latencies come back as counts of each value. The driver adds the sums up. A window is one of store time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, Unpack

from penstock.client.reader import LogReader
from penstock.errors import ConfigError, NoRoute
from penstock.spark import schema
from penstock.spark.log import files as logfiles
from penstock.spark.log import source as logsource
from penstock.spark.log.files import Piece
from penstock.spark.log.options import parse as parse_log
from penstock.spark.log.source import Entries
from penstock.spark.pipelines.asked import complete
from penstock.spark.pipelines.parallel import SMALL_BYTES, SMALL_MESSAGES, Progress, over
from penstock.spark.pipelines.statspage import Row, StatsResult, stats_page, window_ms
from penstock.spark.read import planning
from penstock.spark.read.options import parse
from penstock.spark.read.source import RangePartition, batch_range, batches
from penstock.wire.codes import DLQ_PREFIX, RETRY_PREFIX

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.spark.pipelines.parallel import Spark

BY = ("topic", "partition", "tags", "bornHost", "group")
NEEDED = ("timestamp", "bornTimestamp", "size", "reconsumeTimes")
RECORDS_PER_TASK = 2_000_000
ROWS_AT_ONCE = 100_000


class Asked(TypedDict, total=False):
    """The keywords of `run`."""

    path: str | Path
    registry: str
    by: Sequence[str]
    window: str
    since: str
    until: str
    groups: Sequence[str]
    report: str | Path


DEFAULTS = Asked(
    path="", registry="127.0.0.1:9876", by=("topic",), window="1h", since="", until="", groups=(), report="",
)  # fmt: skip


def run(
    spark: Spark, topics: Sequence[str] = (), *, progress: Progress | None = None, **asked: Unpack[Asked]
) -> StatsResult:
    """Statistics of topics of a live cluster, or, with `path`, of a commit log (as `format("penstock-log")` takes it).

    `groups` are consumer groups whose retried and dead messages are counted, too: those of their topics that there are.
    `since` and `until` are milliseconds or ISO 8601 text, of store time. `report` is where an HTML page goes.
    """
    began = time.monotonic()
    job = complete(asked, DEFAULTS)
    by, path = tuple(dict.fromkeys(job["by"])), job["path"]
    job["by"] = by
    wrong = [name for name in by if name not in BY]
    if wrong:
        raise ConfigError(f"cannot group by {wrong[0]!r}", f"by: {', '.join(BY)}")
    span = window_ms(job["window"])
    topics = (*topics, *_topics_of(job["groups"], path, job["registry"]))
    times = {"startingTimestamp": job["since"], "endingTimestamp": job["until"]}
    times = {name: text for name, text in times.items() if text}
    if path:
        found = _of_log(spark, topics, times, span, job, progress)
    elif topics:
        found = _of_cluster(spark, topics, times, span, job, progress)
    else:
        raise ConfigError("no topics and no path given", "name topics, or the folder of a store with --path")
    rows = _rows(found, by, span)
    counted = [part for part in found if part.sizes]
    first, last = min((p.first for p in counted), default=0), max((p.last for p in counted), default=0)
    result = StatsResult(
        str(path) or ", ".join(topics), by, job["window"], sum(row["messages"] for row in rows),
        sum(row["bytes"] for row in rows), round(time.monotonic() - began, 3), rows,
        _time_text(first) if counted else "", _time_text(last) if counted else "",
    )  # fmt: skip
    if job["report"]:
        Path(job["report"]).write_text(stats_page(result))
    return result


def _of_log(
    spark: Spark, topics: Sequence[str], times: dict[str, str], span: int, job: Asked, progress: Progress | None
) -> list[Sums]:
    """The sums of a commit log's pieces."""
    log = parse_log({"path": str(job["path"]), **({"topics": ",".join(topics)} if topics else {}), **times})
    items = logsource.plan(log, logfiles.find(log.path))
    names, by = _columns(job["by"]), job["by"]

    def work(parts: list[Piece | Entries]) -> Iterator[Sums]:
        yield partial(logsource.batches(log, schema.arrow_of(names), parts), by, span)

    total = sum(_bytes(part) for parts in items for part in parts)
    return over(spark, items, work, progress, total, small=total <= SMALL_BYTES)


def _of_cluster(
    spark: Spark, topics: Sequence[str], times: dict[str, str], span: int, job: Asked, progress: Progress | None
) -> list[Sums]:
    """The sums of ranges of a live cluster."""
    where = {
        "subscribe": ",".join(topics), "registry": job["registry"], "groupIdPrefix": "penstock-stats",
        "startingOffsetsByTimestampStrategy": "latest",  # of a queue without messages of that time there are none to count
    }  # fmt: skip
    live = parse({**where, **times})
    ranges = [planning.Range(q, begin, end) for q, (begin, end) in sorted(batch_range(live).items()) if begin < end]
    items = planning.cut(ranges, None, RECORDS_PER_TASK)
    names, by = _columns(job["by"]), job["by"]

    def work(range: planning.Range) -> Iterator[Sums]:
        yield partial(batches(live, schema.arrow_of(names), RangePartition(range, ())), by, span)

    total = sum(r.end - r.start for r in items)
    return over(spark, items, work, progress, total, small=total <= SMALL_MESSAGES)


def _columns(by: Sequence[str]) -> tuple[str, ...]:
    """What must be read: a group is told by its topic's name."""
    return tuple(dict.fromkeys("topic" if name == "group" else name for name in by)) + NEEDED


def _topics_of(groups: Sequence[str], path: str | Path, registry: str) -> list[str]:
    """The retry and dead-letter topics of these groups; of a live cluster only those that there are."""
    names = [prefix + group for group in groups for prefix in (RETRY_PREFIX, DLQ_PREFIX)]
    if path or not names:
        return names
    with LogReader(registry) as cluster:
        there = [name for name in names if _is_there(cluster, name)]
    missing = [group for group in groups if not {RETRY_PREFIX + group, DLQ_PREFIX + group} & set(there)]
    if missing:
        raise NoRoute(f"consumer group {missing[0]!r} has neither a retry nor a dead-letter topic")
    return there


def _is_there(cluster: LogReader, topic: str) -> bool:
    try:
        return bool(cluster.queues(topic))
    except NoRoute:
        return False


def _bytes(part: Piece | Entries) -> int:
    return part.end - part.begin if isinstance(part, Piece) else part.until - part.first


# -- in the tasks


class Sums(NamedTuple):
    """Counts by size and by latency, as Arrow streams; the first and the last store time in ms."""

    sizes: bytes
    late: bytes
    first: int
    last: int


def partial(found: Iterator[pa.RecordBatch], by: Sequence[str], span: int) -> Sums:
    """The sums of these messages."""
    import pyarrow as pa
    import pyarrow.compute as pc

    held: list[pa.RecordBatch] = []
    sums: list[tuple[pa.Table, pa.Table]] = []
    first, last = 1 << 62, 0
    for batch in found:
        held.append(batch)
        if batch.num_rows:
            ends = pc.min_max(batch.column("timestamp").cast(pa.int64()))
            first, last = min(first, ends["min"].as_py() // 1000), max(last, ends["max"].as_py() // 1000)
        if sum(b.num_rows for b in held) >= ROWS_AT_ONCE:
            sums, held = [*sums, _grouped(pa.Table.from_batches(held), by, span)], []
            if sum(a.num_rows + b.num_rows for a, b in sums) > 10 * ROWS_AT_ONCE:
                sums = [(_added([a for a, _ in sums]), _added([b for _, b in sums]))]
    if held:
        sums.append(_grouped(pa.Table.from_batches(held), by, span))
    if not sums:
        return Sums(b"", b"", 0, 0)
    sizes, late = (_packed(_added([pair[n] for pair in sums])) for n in (0, 1))
    return Sums(sizes, late, first, last)


def _grouped(table: pa.Table, by: Sequence[str], span: int) -> tuple[pa.Table, pa.Table]:
    import pyarrow as pa
    import pyarrow.compute as pc

    stored = pc.divide(table["timestamp"].cast(pa.int64()), 1000)
    born = pc.divide(table["bornTimestamp"].cast(pa.int64()), 1000)
    window = pc.multiply(pc.divide(stored, span), span) if span else pa.array([0] * table.num_rows, pa.int64())
    keys = {"window": window, **{name: _group_of(table["topic"]) if name == "group" else table[name] for name in by}}
    sizes = pa.table(
        {**keys, "value": table["size"].cast(pa.int64()), "retries": table["reconsumeTimes"].cast(pa.int64())}
    )
    late = pa.table({**keys, "value": pc.subtract(stored, born)})
    names = [*keys, "value"]
    one = sizes.group_by(names, use_threads=False).aggregate([("retries", "count"), ("retries", "sum")])
    other = late.group_by(names, use_threads=False).aggregate([([], "count_all")])
    return (
        one.select([*names, "retries_count", "retries_sum"]).rename_columns([*names, "count", "retries"]),
        other.select([*names, "count_all"]).rename_columns([*names, "count"]),
    )


def _group_of(topics: pa.ChunkedArray) -> pa.ChunkedArray:
    """The consumer group in a topic's name; null for topics that are no group's."""
    import pyarrow.compute as pc

    return pc.struct_field(pc.extract_regex(topics, "^%(?:RETRY|DLQ)%(?P<group>.*)"), "group")


def _added(tables: list[pa.Table]) -> pa.Table:
    """The same groups of several tables as one, their counts summed."""
    import pyarrow as pa

    table = pa.concat_tables(tables)
    sums = [name for name in ("count", "retries") if name in table.column_names]
    names = [name for name in table.column_names if name not in sums]
    added = table.group_by(names, use_threads=False).aggregate([(name, "sum") for name in sums])
    return added.select([*names, *(f"{name}_sum" for name in sums)]).rename_columns([*names, *sums])


def _packed(table: pa.Table) -> bytes:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


# -- on the driver


def _time_text(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds")


def _rows(found: list[Sums], by: tuple[str, ...], span: int) -> list[Row]:
    import pyarrow as pa

    tables = [[pa.ipc.open_stream(part[n]).read_all() for part in found if part[n]] for n in (0, 1)]
    if not tables[0]:
        return []
    keys = ["window", *by]
    sizes, late = (_added(parts).sort_by([(name, "ascending") for name in (*keys, "value")]) for parts in tables)
    latency = {group: values for group, values, _ in _groups(late, keys)}
    rows = []
    for group, values, retries in _groups(sizes, keys):
        count = sum(n for _, n in values)
        window = datetime.fromtimestamp(group[0] / 1000, UTC).isoformat() if span else ""
        measures = (
            count, sum(value * n for value, n in values), quantile(values, 50), quantile(values, 99),
            quantile(latency[group], 50), quantile(latency[group], 99), retries,
        )  # fmt: skip
        rows.append(
            {
                "window": window,
                **dict(zip(by, group[1:], strict=True)),
                **dict(zip(StatsResult.MEASURES, measures, strict=True)),
            }
        )
    return rows


def _groups(table: pa.Table, keys: list[str]) -> Iterator[tuple[tuple[Any, ...], list[tuple[int, int]], int]]:
    """(group, its values with their counts in ascending order, retries) of a sorted table."""
    columns = [table[name].to_pylist() for name in keys]
    values, counts = table["value"].to_pylist(), table["count"].to_pylist()
    retries = table["retries"].to_pylist() if "retries" in table.column_names else [0] * len(values)
    begin = 0
    groups = list(zip(*columns, strict=True))
    for at in range(1, len(groups) + 1):
        if at == len(groups) or groups[at] != groups[begin]:
            yield groups[begin], list(zip(values[begin:at], counts[begin:at], strict=True)), sum(retries[begin:at])
            begin = at


def quantile(values: list[tuple[int, int]], percent: int) -> int:
    """The percentile by nearest rank: the smallest value that at least this share of all values does not exceed."""
    rank, seen = -(-sum(n for _, n in values) * percent // 100), 0
    for value, n in values:
        seen += n
        if seen >= rank:
            return value
    raise ValueError("no values")
