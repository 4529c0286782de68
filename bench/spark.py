"""The Spark side beside its floors, in rows per CPU-second of the JVM and all Python workers together.

    python bench/spark.py [--rows-100 N] [--rows-1k N] [--rounds N] [--skip-archive] [--only source|sink|bulk] [--splits N …]

source   against an empty source of the same schema, which gives the same batch again and again: what Spark itself costs;
         once from the broker over TCP, once from the broker's own files on the same machine (option `store`)
sink     against a sink that takes every Arrow batch and lets it go; ours is flushed before a task ends, and published
bulk     `format("penstock-log")` over a broker's folder against the empty source, and so many splits against one
stats    counted and summed by topic, tag and minute in the tasks, with percentiles, against the counts and sums alone as a
         Spark aggregation over the bulk source
reindex  consume queues and key index of that folder: are the queues' bytes equal to the broker's own?
archive  against `df.write.parquet` of the same columns with the same compression

A query costs about half a CPU-second before its first row (Spark starts Python to plan it), so the runs are long.
Both sides of a pair run in turn in one session, so that what else the machine does hits both. CPU seconds hardly
depend on that; wall-clock rates do. Writes bench/results/spark.json.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)

QUEUES = 4
WARM_UPS = 2  # the JVM compiles for many seconds, on the same cores
RESULTS = Path(__file__).parent / "results" / "spark.json"


class Piece(InputPartition):
    """One partition of the empty source: how many rows."""

    def __init__(self, rows: int) -> None:
        super().__init__(rows)


class EmptyReader(DataSourceReader):
    """Gives one batch, made beforehand, until the rows are reached."""

    def __init__(self, rows: int, stored: bytes) -> None:
        self.rows, self.stored = rows, stored

    def partitions(self) -> list[InputPartition]:
        return [Piece(self.rows // QUEUES) for _ in range(QUEUES)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        import pyarrow as pa

        with pa.ipc.open_stream(self.stored) as stream:
            batch = next(iter(stream))
        left = partition.value
        while left > 0:
            part = batch.slice(0, min(left, batch.num_rows))
            yield part
            left -= part.num_rows


class EmptySource(DataSource):
    """The floor: a source that costs nothing itself. Options: `rows`, `batch` (a file with one Arrow batch)."""

    @classmethod
    def name(cls) -> str:
        return "penstock-bench-empty"

    def schema(self) -> str:
        from penstock.spark import schema

        return schema.ddl(schema.BASE)

    def reader(self, schema: Any) -> EmptyReader:
        return EmptyReader(int(self.options["rows"]), Path(self.options["batch"]).read_bytes())


class NullDone(WriterCommitMessage):
    """Nothing was written."""


class NullWriter(DataSourceArrowWriter):
    """Takes every batch and lets it go."""

    def write(self, iterator: Iterator[Any]) -> NullDone:
        for _ in iterator:
            continue
        return NullDone()


class NullSink(DataSource):
    """The floor of a sink: Arrow batches that come to Python and go nowhere."""

    @classmethod
    def name(cls) -> str:
        return "penstock-bench-null"

    def writer(self, schema: Any, overwrite: bool) -> NullWriter:
        return NullWriter()


def rows_to_write(spark: Any, rows: int, size: int) -> Any:
    """Rows the JVM makes by itself: a value of so many bytes, one of 100,000 keys, one of five tags."""
    return spark.range(rows, numPartitions=QUEUES).selectExpr(
        f"encode(rpad(cast(id as string), {size}, 'x'), 'utf-8') as value",
        "encode(concat('key-', id % 100000), 'utf-8') as key",
        "concat('Tag', id % 5) as tags",
    )


# -- CPU time of a process and all below it


def cpu_seconds(root: int) -> float:
    """User and system time of the process tree, children that ended included."""
    ticks, children = {}, {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                stat = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            ticks[int(folder.name)] = sum(map(int, stat[11:15]))
            children.setdefault(int(stat[1]), []).append(int(folder.name))
    todo, total = [root], 0
    while todo:
        pid = todo.pop()
        total += ticks.get(pid, 0)
        todo += children.get(pid, [])
    return total / os.sysconf("SC_CLK_TCK")


def measured(spark: Any, rows: int, work: Callable[[], Any]) -> dict[str, float]:
    """Rows per CPU-second and per second of one piece of work."""
    jvm = spark.sparkContext._gateway.proc.pid
    cpu, wall = cpu_seconds(jvm), time.monotonic()
    work()
    cpu, wall = cpu_seconds(jvm) - cpu, time.monotonic() - wall
    return {"rows_per_cpu_s": rows / cpu, "rows_per_s": rows / wall, "cpu_s": cpu, "wall_s": wall}


def compared(floor: str, thing: str, spark: Any, rows: int, rounds: int, works: dict[str, Callable[[], Any]]) -> Any:
    """Both in turn, after a warm-up of each; the ratio of the medians and its spread over the rounds."""
    for _, work in itertools.product(range(WARM_UPS), works.values()):
        work()
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in works}
    for turn in range(rounds):
        for name in (floor, thing) if turn % 2 == 0 else (thing, floor):
            runs[name].append(measured(spark, rows, works[name]))
    rate = {name: [run["rows_per_cpu_s"] for run in found] for name, found in runs.items()}
    ratios = [a / b for a, b in zip(rate[thing], rate[floor], strict=True)]
    return {
        "rows": rows,
        "rounds": rounds,
        **{f"{name}_rows_per_cpu_s": statistics.median(found) for name, found in rate.items()},
        **{f"{name}_rows_per_s": statistics.median(r["rows_per_s"] for r in runs[name]) for name in works},
        "ratio": statistics.median(rate[thing]) / statistics.median(rate[floor]),
        "ratio_min": min(ratios),
        "ratio_max": max(ratios),
    }


# -- a topic full of messages


def fill(registry: str, topic: str, rows: int, size: int) -> None:
    """Messages of so many bytes with keys, tag and id, as clients send them: the same batch again and again."""
    from penstock.client.aio.producer import Producer
    from penstock.client.reader import Line, LogReader
    from penstock.client.routes import split_address
    from penstock.client.sending import batch_request
    from penstock.message import Message

    async def make() -> None:
        async with Producer(registry) as producer:
            for queue in await producer.queues(topic):
                await producer.send(Message(topic, b"first"), queue=queue)

    asyncio.run(make())
    count = min(2_000, (3 << 20) // (size + 200))
    messages = [
        Message(topic, os.urandom(size // 2).hex().encode(), keys=(f"key-{n:06d}",), tags=f"Tag{n % 5}")
        for n in range(count)
    ]
    ids = [f"7F0000010000{n:020X}" for n in range(count)]
    with LogReader(registry) as reader:
        queues = reader.queues(topic)
        address = reader._route(topic).read_address(queues[0].broker)
        line = Line(split_address(address or "", 10911), 30.0)
        requests = [batch_request("bench", messages, queue, ids, 0) for queue in queues]
        for request in itertools.islice(itertools.cycle(requests), -(-rows // count)):
            answer = line.call(request, 30.0)
            if answer.code != 0:
                raise SystemExit(f"the broker refused: {answer.code} {answer.remark}")
        line.close()
        while any(reader.offsets(queue)[1] < reader.offsets(queue, durable=False)[1] for queue in queues):
            time.sleep(0.2)


def count(registry: str, topic: str) -> int:
    from penstock.client.reader import LogReader

    with LogReader(registry) as reader:
        return sum(end - start for start, end in map(reader.offsets, reader.queues(topic)))


def one_batch(registry: str, topic: str, path: Path) -> int:
    """Store a batch as the source makes it; its rows."""
    import pyarrow as pa

    from penstock.client.reader import LogReader
    from penstock.spark import schema
    from penstock.spark.batches import Batches

    with LogReader(registry) as reader:
        fetched = reader.fetch(reader.queues(topic)[0], 1)
    batch = next(Batches(schema.arrow_of(schema.BASE), broker="b").of(fetched.records, 1, 1 << 60))
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, batch.schema) as writer:
        writer.write_batch(batch)
    return batch.num_rows


# -- the run


def main() -> None:
    """Measure, print a table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows-100", type=int, default=4_000_000, help="messages of 100 bytes")
    parser.add_argument("--rows-1k", type=int, default=1_500_000, help="messages of 1,024 bytes")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--skip-archive", action="store_true")
    parser.add_argument("--only", choices=("source", "sink", "bulk"), help="only these pairs")
    parser.add_argument("--splits", type=int, nargs="*", default=[2, 16])
    given = parser.parse_args()

    import penstock.spark.batches as batches
    from penstock.demo.command import broker
    from penstock.spark import session
    from penstock.spark.pipelines import archive

    found: dict[str, Any] = {"machine": machine(), "decoder": "compiled" if batches.COMPILED else "numpy", "pairs": {}}
    print(f"{found['machine']}, decoder {found['decoder']}, {QUEUES} queues, broker level os on the same machine")
    with tempfile.TemporaryDirectory() as folder, broker(Path(folder) / "store") as registry:
        spark = session("bench", master="local[2, 2]")
        spark.dataSource.register(EmptySource)
        spark.dataSource.register(NullSink)
        numbers = itertools.count()
        for name, size, wanted in (("100 B", 100, given.rows_100), ("1 KB", 1024, given.rows_1k)):
            if given.only in (None, "bulk"):
                bulk(found, spark, Path(folder) / f"bulk-{size}", name, size, wanted, given)
            if given.only == "bulk":
                continue
            if given.only in (None, "sink"):
                rows, frame = wanted // 4, rows_to_write(spark, wanted // 4, size)
                works = {
                    "null": lambda frame=frame: frame.write.format(NullSink.name()).mode("append").save(),
                    "sink": lambda frame=frame, topic=f"bench-sink-{size}": (
                        frame.write.format("penstock")
                        .options(registry=registry, level="disk")
                        .mode("append")
                        .save(topic)
                    ),
                }
                found["pairs"][f"sink {name}"] = pair = compared("null", "sink", spark, rows, given.rounds, works)
                tell(f"sink {name}", pair, "null", "sink")
            if given.only == "sink":
                continue
            topic = f"bench-{size}"
            fill(registry, topic, wanted, size)
            rows = count(registry, topic)
            batch = Path(folder) / f"{size}.arrow"
            one_batch(registry, topic, batch)
            # One frame, planned again by each action: what a query costs.
            full = spark.read.format("penstock").option("registry", registry).load(topic)
            floor = spark.read.format(EmptySource.name()).options(rows=rows, batch=str(batch)).load()
            local = spark.read.format("penstock").options(registry=registry, store=f"{folder}/store").load(topic)
            for way, frame in (("tcp", full), ("files", local)):
                works = {
                    "empty": lambda floor=floor: floor.write.format("noop").mode("append").save(),
                    "source": lambda frame=frame: frame.write.format("noop").mode("append").save(),
                }
                pair = compared("empty", "source", spark, rows, given.rounds, works)
                found["pairs"][f"source {way} {name}"] = pair
                tell(f"source {way} {name}", pair, "empty", "source")
            if given.skip_archive or given.only == "source":
                continue
            topic = f"bench-archive-{size}"
            fill(registry, topic, wanted // 4, size)
            rows = count(registry, topic)
            columns = ",".join(archive.COLUMNS)
            wide = spark.read.format("penstock").options(registry=registry, columns=columns).load(topic)
            works = {
                "write": lambda wide=wide: wide.write.option("compression", "zstd").parquet(
                    f"{folder}/write{next(numbers)}"
                ),
                "archive": lambda topic=topic: archive.run(
                    spark, topic, f"{folder}/archive{next(numbers)}", registry=registry
                ),
            }
            pair = compared("write", "archive", spark, rows, max(given.rounds // 2, 1), works)
            found["pairs"][f"archive {name}"] = pair
            tell(f"archive {name}", pair, "write", "archive")
        spark.stop()
    if given.only and RESULTS.exists():
        before = json.loads(RESULTS.read_text())
        found = {**before, **found, "pairs": {**before["pairs"], **found["pairs"]}}
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    print(f"written to {RESULTS}")


def bulk(found: dict[str, Any], spark: Any, folder: Path, name: str, size: int, wanted: int, given: Any) -> None:
    """The pairs that read a broker's folder without the broker."""
    from penstock.demo.command import broker
    from penstock.spark.pipelines import reindex, stats

    topic, pairs, store = "bench", found["pairs"], folder / "store"
    folder.mkdir()
    with broker(store) as registry:
        fill(registry, topic, wanted, size)
        rows = count(registry, topic)
        one_batch(registry, topic, folder / "batch.arrow")

    def log(splits: int, columns: str = "") -> Any:
        options = {"minPartitions": splits, **({"columns": columns} if columns else {})}
        return spark.read.format("penstock-log").options(**options).load(str(store))

    def noop(frame: Any) -> None:
        frame.write.format("noop").mode("append").save()

    def pair(kind: str, floor: str, thing: str, rounds: int, works: dict[str, Callable[[], Any]]) -> None:
        pairs[f"{kind} {name}"] = one = compared(floor, thing, spark, rows, rounds, works)
        tell(f"{kind} {name}", one, floor, thing)

    empty = spark.read.format(EmptySource.name()).options(rows=rows, batch=str(folder / "batch.arrow")).load()
    four = log(QUEUES)
    pair("bulk", "empty", "bulk", given.rounds, {"empty": lambda: noop(empty), "bulk": lambda: noop(four)})
    for splits in given.splits:
        works = {"one": lambda frame=log(1): noop(frame), "many": lambda frame=log(splits): noop(frame)}
        pair(f"{splits} splits", "one", "many", max(given.rounds // 2, 1), works)
    narrow = log(QUEUES, "topic,tags,timestamp,bornTimestamp,size,reconsumeTimes")

    def through_the_jvm() -> None:
        late = "unix_millis(timestamp) - unix_millis(bornTimestamp) as late"
        asked = narrow.selectExpr(
            "topic", "tags", "size", "reconsumeTimes", "date_trunc('minute', timestamp) as w", late
        )
        sums = {"size": "sum", "late": "sum", "reconsumeTimes": "sum", "*": "count"}
        asked.groupBy("w", "topic", "tags").agg(sums).collect()

    def in_the_tasks() -> None:
        stats.run(spark, path=store, by=("topic", "tags"), window="1m")

    pair("stats", "jvm", "tasks", given.rounds, {"jvm": through_the_jvm, "tasks": in_the_tasks})
    result = reindex.run(spark, store, to=folder / "new")
    own = {p.relative_to(store): p.read_bytes() for p in (store / "consumequeue").rglob("*") if p.is_file()}
    same = all((folder / "new" / path).read_bytes() == data for path, data in own.items() if data.strip(b"\0"))
    found[f"reindex {name}"] = {
        "records": result.records,
        "keys": result.keys,
        "seconds": result.seconds,
        "equal": same,
    }
    print(
        f"reindex {name}: {result.records:,} records, {result.keys:,} keys, {result.seconds:.1f} s, queues equal: {same}",
        flush=True,
    )


def tell(name: str, pair: dict[str, Any], floor: str, thing: str) -> None:
    print(
        f"{name:<18} {pair['rows']:>9,} rows  {floor} {pair[f'{floor}_rows_per_cpu_s'] / 1e6:5.2f}"
        f"  {thing} {pair[f'{thing}_rows_per_cpu_s'] / 1e6:5.2f} M rows/cpu-s"
        f"  ratio {pair['ratio']:.2f} ({pair['ratio_min']:.2f} to {pair['ratio_max']:.2f})"
        f"  wall {pair[f'{thing}_rows_per_s'] / 1e6:.2f} M rows/s",
        flush=True,
    )


def machine() -> str:
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        "",
    )
    return f"{len(os.sched_getaffinity(0))} × {model or platform.machine()}, Python {platform.python_version()}"


if __name__ == "__main__":
    main()
