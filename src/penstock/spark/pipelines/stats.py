"""Messages counted by window, topic, queue, tag, producer or consumer group: how many, how large, how late, how often retried.

Each task groups its own messages with Arrow and gives back sums only; the percentiles are exact, because sizes and
latencies come back as counts of each value. The driver adds the sums up. A window is one of store time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from penstock.client.reader import LogReader
from penstock.errors import ConfigError, NoRoute
from penstock.spark import schema
from penstock.spark.log import files as logfiles
from penstock.spark.log import source as logsource
from penstock.spark.log.options import parse as parse_log
from penstock.spark.pipelines.parallel import SMALL_BYTES, SMALL_MESSAGES, Progress, over
from penstock.spark.read import planning
from penstock.spark.read.options import parse
from penstock.spark.read.source import RangePartition, _batch_range, batches

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.spark.pipelines.parallel import Spark

BY = ("topic", "partition", "tags", "bornHost", "group")
RETRY_PREFIX, DEAD_PREFIX = "%RETRY%", "%DLQ%"
NEEDED = ("timestamp", "bornTimestamp", "size", "reconsumeTimes")
RECORDS_PER_TASK = 2_000_000
ROWS_AT_ONCE = 100_000
_UNITS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True)
class Result:
    """One row per window and group: `MEASURES` after the columns of `by`. Sizes are stored bytes, times ms."""

    MEASURES: ClassVar = (
        "messages", "bytes", "sizeP50", "sizeP99", "latencyP50", "latencyP99", "retries",
    )  # fmt: skip

    source: str
    by: tuple[str, ...]
    window: str
    messages: int
    bytes: int
    seconds: float
    rows: list[dict[str, Any]] = field(default_factory=list)
    first: str = ""
    """When the first message was stored, and `last` the last one, as ISO 8601; empty: there is none."""
    last: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def run(
    spark: Spark,
    topics: Sequence[str] = (),
    *,
    path: str | Path = "",
    registry: str = "127.0.0.1:9876",
    by: Sequence[str] = ("topic",),
    window: str = "1h",
    since: str = "",
    until: str = "",
    groups: Sequence[str] = (),
    report: str | Path = "",
    progress: Progress | None = None,
) -> Result:
    """Statistics of topics of a live cluster, or, with `path`, of a commit log (as `format("penstock-log")` takes it).

    `groups` are consumer groups whose retried and dead messages are counted, too: those of their topics that there are.
    `since` and `until` are milliseconds or ISO 8601 text, of store time. `report` is where an HTML page goes.
    """
    began = time.monotonic()
    wrong = [name for name in by if name not in BY]
    if wrong:
        raise ConfigError(f"cannot group by {wrong[0]!r}", f"by: {', '.join(BY)}")
    span = window_ms(window)
    names = _columns(by)
    topics = (*topics, *_topics_of(groups, path, registry))
    times = {name: text for name, text in (("startingTimestamp", since), ("endingTimestamp", until)) if text}
    items: list[Any]
    if path:
        log = parse_log({"path": str(path), **({"topics": ",".join(topics)} if topics else {}), **times})
        items = logsource.plan(log, logfiles.find(log.path))
        total = sum(_bytes(part) for parts in items for part in parts)

        def work(parts: Any) -> Iterator[Part]:
            yield partial(logsource.batches(log, schema.arrow_of(names), parts), by, span)

    elif topics:
        live = parse({"subscribe": ",".join(topics), "registry": registry, "groupIdPrefix": "penstock-stats", **times})
        ranges = [
            planning.Range(q, begin, end) for q, (begin, end) in sorted(_batch_range(live).items()) if begin < end
        ]
        items = planning.cut(ranges, None, RECORDS_PER_TASK)
        total = sum(r.end - r.start for r in items)

        def work(parts: Any) -> Iterator[Part]:
            yield partial(batches(live, schema.arrow_of(names), RangePartition(parts, ())), by, span)

    else:
        raise ConfigError("no topics and no path given")
    found = over(spark, items, work, progress, total, small=total <= (SMALL_BYTES if path else SMALL_MESSAGES))
    rows = _rows(found, tuple(by), span)
    counted = [part for part in found if part.sizes]
    first, last = min((p.first for p in counted), default=0), max((p.last for p in counted), default=0)
    result = Result(
        str(path) or ", ".join(topics), tuple(by), window, sum(row["messages"] for row in rows),
        sum(row["bytes"] for row in rows), round(time.monotonic() - began, 3), rows,
        _moment(first) if counted else "", _moment(last) if counted else "",
    )  # fmt: skip
    if report:
        from penstock.spark.tools.report import stats_page

        Path(report).write_text(stats_page(result))
    return result


def _columns(by: Sequence[str]) -> tuple[str, ...]:
    """What must be read: a group is told by its topic's name."""
    return tuple(dict.fromkeys("topic" if name == "group" else name for name in by)) + NEEDED


def _topics_of(groups: Sequence[str], path: str | Path, registry: str) -> list[str]:
    """The retry and dead-letter topics of these groups; of a live cluster only those that there are."""
    names = [prefix + group for group in groups for prefix in (RETRY_PREFIX, DEAD_PREFIX)]
    if path or not names:
        return names
    with LogReader(registry) as cluster:
        there = [name for name in names if _is_there(cluster, name)]
    missing = [group for group in groups if not {RETRY_PREFIX + group, DEAD_PREFIX + group} & set(there)]
    if missing:
        raise NoRoute(f"consumer group {missing[0]!r} has neither a retry nor a dead-letter topic")
    return there


def _is_there(cluster: LogReader, topic: str) -> bool:
    try:
        return bool(cluster.queues(topic))
    except NoRoute:
        return False


def window_ms(text: str) -> int:
    """Milliseconds of a window such as 30s, 5m, 1h or 1d; `all` is one window."""
    if text == "all":
        return 0
    if not text[:-1].isdigit() or text[-1:] not in _UNITS or not int(text[:-1]):
        raise ConfigError(f"window {text!r} is none", "30s, 5m, 1h, 1d or all")
    return int(text[:-1]) * _UNITS[text[-1]]


def _bytes(part: Any) -> int:
    return part.end - part.begin if isinstance(part, logfiles.Piece) else part.until - part.first


# -- in the tasks


class Part(NamedTuple):
    """Counts by size and by latency, as Arrow streams; the first and the last store time in ms."""

    sizes: bytes
    late: bytes
    first: int
    last: int


def partial(found: Iterator[pa.RecordBatch], by: Sequence[str], span: int) -> Part:
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
        return Part(b"", b"", 0, 0)
    sizes, late = (_packed(_added([pair[n] for pair in sums])) for n in (0, 1))
    return Part(sizes, late, first, last)


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


def _group_of(topics: Any) -> Any:
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


def _moment(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds")


def _rows(found: list[Part], by: tuple[str, ...], span: int) -> list[dict[str, Any]]:
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
                **dict(zip(Result.MEASURES, measures, strict=True)),
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
    """The smallest value that at least so many percent of all do not exceed (nearest rank)."""
    rank, seen = -(-sum(n for _, n in values) * percent // 100), 0
    for value, n in values:
        seen += n
        if seen >= rank:
            return value
    raise ValueError("no values")
