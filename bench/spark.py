"""The Spark side beside its floors, in rows per CPU-second of the JVM and all Python workers together.

    ./run bench spark [--short] [--only PART …] [--rounds N] [--scale F]      PART: source sink bulk splits stats reindex archive

source   against an empty source of the same schema, which gives the same batch again and again: what Spark itself costs;
         as it comes (`files`: the task reads the folder the broker names) and over TCP (option `store` = none)
sink     against a sink that takes every Arrow batch and lets it go; ours is flushed before a task ends, and published
bulk     `format("penstock-log")` over a broker's folder against the empty source
splits   1 GiB of that folder in 2, 4 and 16 splits: the most and the least CPU
stats    4 GiB counted and summed by topic, tag and minute in the tasks, with percentiles, against the same as a Spark
         aggregation over the bulk source, and against its counts and sums alone
reindex  consume queues and key index of 5 million records: the queues' bytes are the broker's own, and both indexes give
         the same answers
archive  against `df.write.parquet` of the same columns with the same compression

A query costs about half a CPU-second before its first row (Spark starts Python to plan it), so the runs are long: about
20 minutes on two cores, and 12 GB of disk at most. Both sides of a pair run in turn in one session, so that what else the
machine does hits both. CPU seconds hardly depend on that; wall-clock rates do. `--scale` makes all sizes smaller,
`--short` fifty times, in one round, and stores nothing. Results go into bench/results/spark.json; the parts that were not
run stay there as they were.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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
SIZES = {"100 B": 100, "1 KB": 1024}
RECORD_BYTES = 168  # around a body
LOG_BYTES = 1 << 30
SPLITS = (2, 4, 16)
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
    from penstock.client.line import Line
    from penstock.client.outgoing import batch_request
    from penstock.client.reader import LogReader
    from penstock.client.routes import split_address
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
    from penstock.spark.kernel.batches import Batches

    with LogReader(registry) as reader:
        fetched = reader.fetch(reader.queues(topic)[0], 1)
    batch = next(Batches(schema.arrow_of(schema.BASE), broker="b").of(fetched.records, 1, 1 << 60))
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, batch.schema) as writer:
        writer.write_batch(batch)
    return batch.num_rows


# -- the run


@dataclass
class Bench:
    """What the parts share."""

    spark: Any
    folder: Path
    rounds: int
    scale: float
    found: dict[str, Any]

    def rows(self, bytes_: float, size: int) -> int:
        """How many messages with bodies of that size take so many bytes of log."""
        return int(bytes_ * self.scale / (size + RECORD_BYTES))

    def pair(
        self, name: str, floor: str, thing: str, rows: int, works: dict[str, Callable[[], Any]], rounds: int = 0
    ) -> None:
        """Measure one pair, tell it and keep it."""
        self.found["pairs"][name] = one = compared(floor, thing, self.spark, rows, rounds or self.rounds, works)
        tell(name, one, floor, thing)

    def empty(self, rows: int, batch: Path) -> Any:
        """A frame of so many rows that cost nothing to make."""
        return self.spark.read.format(EmptySource.name()).options(rows=rows, batch=str(batch)).load()


def main() -> None:
    """Measure, print a table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=sorted(PARTS), default=list(PARTS), metavar="PART")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--short", action="store_true", help="a fiftieth, one round, and nothing is stored")
    given = parser.parse_args()
    rounds, scale = (1, 0.02) if given.short else (given.rounds, given.scale)

    import penstock.spark.kernel.batches as batches
    from penstock.spark import session

    found: dict[str, Any] = {"machine": machine(), "decoder": "compiled" if batches.COMPILED else "numpy", "pairs": {}}
    print(f"{found['machine']}, decoder {found['decoder']}, {QUEUES} queues, broker level os on the same machine")
    spark = session("bench", master="local[2, 2]")
    spark.dataSource.register(EmptySource)
    spark.dataSource.register(NullSink)
    try:
        for part in [part for part in PARTS if part in given.only]:
            began = time.monotonic()
            with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
                PARTS[part](Bench(spark, Path(folder), rounds, scale, found))
            print(f"{part}: {time.monotonic() - began:.0f} s", flush=True)
            if not given.short:
                keep(found)
    finally:
        spark.stop()
    if not given.short:
        print(f"written to {RESULTS}")


def keep(found: dict[str, Any]) -> None:
    """Put the new figures among those there are."""
    before = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"pairs": {}}
    merged = {**before, **found, "pairs": {**before["pairs"], **found["pairs"]}}
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(merged, indent=1) + "\n")


def noop(frame: Any) -> None:
    """Read it all."""
    frame.write.format("noop").mode("append").save()


def source(bench: Bench) -> None:
    """The live source against the empty one."""
    from penstock.demo.command import broker

    for name, size in SIZES.items():
        with broker(bench.folder / f"store-{size}") as registry:
            topic, batch = f"bench-{size}", bench.folder / f"{size}.arrow"
            fill(registry, topic, bench.rows(LOG_BYTES * 2, size), size)
            rows = count(registry, topic)
            one_batch(registry, topic, batch)
            floor = bench.empty(rows, batch)
            for way, store in (("files", "auto"), ("tcp", "none")):
                # One frame, planned again by each action: what a query costs.
                frame = bench.spark.read.format("penstock").options(registry=registry, store=store).load(topic)
                works = {"empty": lambda f=floor: noop(f), "source": lambda f=frame: noop(f)}
                bench.pair(f"source {way} {name}", "empty", "source", rows, works)


def sink(bench: Bench) -> None:
    """The sink against one that lets go of what it gets."""
    from penstock.demo.command import broker

    for name, size in SIZES.items():
        with broker(bench.folder / f"store-{size}") as registry:
            rows = bench.rows(LOG_BYTES / 4, size)
            frame = rows_to_write(bench.spark, rows, size)

            def null(frame: Any = frame) -> None:
                frame.write.format(NullSink.name()).mode("append").save()

            def ours(frame: Any = frame, registry: str = registry) -> None:
                writer = frame.write.format("penstock").options(registry=registry, level="disk")
                writer.mode("append").save("bench-sink")

            bench.pair(f"sink {name}", "null", "sink", rows, {"null": null, "sink": ours})


def bulk(bench: Bench) -> None:
    """The bulk reader against the empty source."""
    for name, size in SIZES.items():
        store, rows = stored(bench, bench.rows(LOG_BYTES * 2, size), size)
        floor, frame = bench.empty(rows, bench.folder / "batch.arrow"), log_of(bench, store, QUEUES)
        works = {"empty": lambda f=floor: noop(f), "bulk": lambda f=frame: noop(f)}
        bench.pair(f"bulk {name}", "empty", "bulk", rows, works)
        shutil.rmtree(store)


def splits(bench: Bench) -> None:
    """One log in few and in many splits; noted is the most against the least CPU of all."""
    for name, size in SIZES.items():
        store, rows = stored(bench, bench.rows(LOG_BYTES, size), size)
        frames = {n: log_of(bench, store, n) for n in SPLITS}
        for frame in frames.values():
            noop(frame)
        spent: dict[int, list[float]] = {n: [] for n in frames}
        for turn in range(bench.rounds):
            for n in SPLITS if turn % 2 == 0 else SPLITS[::-1]:
                spent[n].append(measured(bench.spark, rows, lambda f=frames[n]: noop(f))["cpu_s"])
        middle = {n: statistics.median(found) for n, found in spent.items()}
        ratio = max(middle.values()) / min(middle.values())
        bench.found[f"splits {name}"] = {"rows": rows, "cpu_s": middle, "runs": spent, "most_to_least": ratio}
        shown = "  ".join(f"{n}: {cpu:.2f} s" for n, cpu in middle.items())
        print(f"{f'splits {name}':<18} {rows:>9,} rows  CPU of {shown}  most to least {ratio:.2f}", flush=True)
        shutil.rmtree(store)


def stats(bench: Bench) -> None:
    """Sums and percentiles made in the tasks against the same made by Spark, and against sums alone."""
    from pyspark.sql.functions import expr

    from penstock.spark.pipelines import stats as job

    late = "unix_millis(timestamp) - unix_millis(bornTimestamp) as late"
    asked = ("topic", "tags", "size", "reconsumeTimes", "date_trunc('minute', timestamp) as w", late)
    sums = {"size": "sum", "late": "sum", "reconsumeTimes": "sum", "*": "count"}
    same = [f"sum({column})" for column in ("size", "late", "reconsumeTimes")]
    same += ["count(*)", *(f"percentile_approx({column}, array(0.5, 0.99))" for column in ("size", "late"))]
    for name, size in SIZES.items():
        store, rows = stored(bench, bench.rows(4 * LOG_BYTES, size), size)
        narrow = log_of(bench, store, 16, "topic,tags,timestamp,bornTimestamp,size,reconsumeTimes")

        def through_the_jvm(narrow: Any = narrow) -> None:
            narrow.selectExpr(*asked).groupBy("w", "topic", "tags").agg(sums).collect()

        def in_the_tasks(store: Path = store, rows: int = rows) -> None:
            result = job.run(bench.spark, path=store, by=("topic", "tags"), window="1m")
            assert result.messages == rows

        def the_same_through_the_jvm(narrow: Any = narrow) -> None:
            narrow.selectExpr(*asked).groupBy("w", "topic", "tags").agg(*map(expr, same)).collect()

        for kind, jvm in (("stats sums", through_the_jvm), ("stats", the_same_through_the_jvm)):
            works = {"jvm": jvm, "tasks": in_the_tasks}
            bench.pair(f"{kind} {name}", "jvm", "tasks", rows, works, max(bench.rounds - 2, 1))
        shutil.rmtree(store)


def reindex(bench: Bench) -> None:
    """Queues and index made anew, against the broker's own."""
    from penstock.spark.pipelines import reindex as job

    store, _ = stored(bench, int(5_000_000 * bench.scale), 100)
    cpu = cpu_seconds(os.getpid())
    result = job.run(bench.spark, store, to=bench.folder / "new")
    cpu = cpu_seconds(os.getpid()) - cpu
    own = [path.relative_to(store) for path in (store / "consumequeue").rglob("*") if path.is_file()]
    held = [path for path in own if (store / path).read_bytes().strip(b"\0")]
    same = all((bench.folder / "new" / path).read_bytes() == (store / path).read_bytes() for path in held)
    asked, alike = answers(store, bench.folder / "new")
    bench.found["reindex 100 B"] = {
        "records": result.records, "keys": result.keys, "seconds": result.seconds, "cpu_s": cpu, "files": len(held),
        "equal": same, "asked": asked, "answers_equal": alike,
    }  # fmt: skip
    print(
        f"reindex: {result.records:,} records, {result.keys:,} keys, {result.seconds:.1f} s, {cpu:.1f} CPU-s;"
        f" {len(held)} queue files equal: {same}; {asked:,} questions to both indexes, answers equal: {alike}",
        flush=True,
    )
    if not (same and alike):
        raise SystemExit("the new queues or the new index are not the broker's")


def answers(store: Path, new: Path) -> tuple[int, bool]:
    """How many keys both indexes were asked for, there and not there, in all and in a part of the time; all alike?"""
    import numpy as np

    from penstock.clock import Clock
    from penstock.disk.files import Files
    from penstock.log.keyindex import KeyIndex

    table = json.loads((store / "store.json").read_text())
    sizes = table["maxHashSlotNum"], table["maxIndexNum"]
    one, other = (KeyIndex(folder / "index", *sizes, Files(), Clock()) for folder in (store, new))
    one.load()
    other.load()
    entry = np.dtype([("hash", ">i4"), ("physical", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])
    hashes: set[int] = set()
    for path in sorted((store / "index").iterdir()):
        every = np.fromfile(path, entry, offset=40 + 4 * sizes[0])["hash"]
        hashes.update(np.unique(every)[:: max(len(np.unique(every)) // 500, 1)].tolist())
    hashes |= {hash_ + 1 for hash_ in hashes}
    begin, end = one.index_files[0].begin_ms(), one.index_files[-1].end_ms()
    spans = ((0, 1 << 62), (begin + (end - begin) // 3, end - (end - begin) // 3))
    questions = [(hash_, *span, 1 << 30) for hash_ in sorted(hashes) for span in spans]
    alike = all(one.find(*question) == other.find(*question) for question in questions)
    one.close()
    other.close()
    return len(questions), alike


def archive(bench: Bench) -> None:
    """Parquet written in the tasks against Parquet written by Spark."""
    from penstock.demo.command import broker
    from penstock.spark.pipelines import archive as job

    numbers = itertools.count()
    for name, size in SIZES.items():
        with broker(bench.folder / f"store-{size}") as registry:
            topic = f"bench-archive-{size}"
            fill(registry, topic, bench.rows(LOG_BYTES / 4, size), size)
            rows = count(registry, topic)
            options = {"registry": registry, "columns": ",".join(job.COLUMNS)}
            wide = bench.spark.read.format("penstock").options(**options).load(topic)

            def write(wide: Any = wide) -> None:
                wide.write.option("compression", "zstd").parquet(f"{bench.folder}/write{next(numbers)}")

            def ours(topic: str = topic, registry: str = registry) -> None:
                job.run(bench.spark, topic, f"{bench.folder}/archive{next(numbers)}", registry=registry)

            works = {"write": write, "archive": ours}
            bench.pair(f"archive {name}", "write", "archive", rows, works, max(bench.rounds - 2, 1))


PARTS = {
    "source": source, "sink": sink, "bulk": bulk, "splits": splits, "stats": stats, "reindex": reindex,
    "archive": archive,
}  # fmt: skip


def stored(bench: Bench, wanted: int, size: int) -> tuple[Path, int]:
    """The folder of a broker that is gone again, about so many messages in it, and how many they are."""
    from penstock.demo.command import broker

    store = bench.folder / f"store-{size}"
    with broker(store) as registry:
        fill(registry, "bench", wanted, size)
        one_batch(registry, "bench", bench.folder / "batch.arrow")
        return store, count(registry, "bench")


def log_of(bench: Bench, store: Path, splits: int, columns: str = "") -> Any:
    """That folder as a frame of so many splits."""
    options = {"minPartitions": splits, "splitBytes": "1g", **({"columns": columns} if columns else {})}
    return bench.spark.read.format("penstock-log").options(**options).load(str(store))


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
