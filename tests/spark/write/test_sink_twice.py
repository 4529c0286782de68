"""Work that is done twice: tasks that are retried, jobs that are repeated, drivers that share a checkpoint."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from penstock.client.reader import LogReader
from penstock.client.staging import SinkRun, StageClient
from penstock.errors import NoRoute
from penstock.spark.tools.sessions import cause
from penstock.spark.write.checkpoint import Checkpoint
from penstock.wire.record import iter_records

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore")]
ROOT = Path(__file__).parents[3]
CHILD_S = 240.0


def numbers(registry: str, topic: str) -> list[int]:
    """The numbers at the front of the bodies of a topic, sorted; none when there is no such topic."""
    found = []
    with LogReader(registry) as reader:
        try:
            queues = reader.queues(topic)
        except NoRoute:
            return []
        for queue in queues:
            at, end = reader.offsets(queue, durable=False)
            while at < end:
                got = reader.fetch(queue, at, durable=False)
                found += [int(m.body.split(b".", 1)[0]) for m in iter_records(got.records, check=True)]
                at = got.next_offset
    return sorted(found)


def breaking(
    frame: Any, folder: Path, *, attempts: int, behind: int, partition: int = 0, when: Callable[[], bool] | None = None
) -> Any:
    """The frame, whose partition fails behind so many rows in its first attempts; each attempt leaves a file. With
    `when` it waits for something before it fails."""

    def rows(batches: Any) -> Any:
        from pyspark import TaskContext

        context = TaskContext.get()
        attempt = context.attemptNumber()
        mine = context.partitionId() == partition
        if mine:
            (folder / f"attempt-{attempt}").touch()
        seen = 0
        for batch in batches:
            if mine and attempt < attempts and seen + batch.num_rows > behind:
                yield batch.slice(0, behind - seen)
                deadline = time.monotonic() + 60
                while when is not None and not when() and time.monotonic() < deadline:
                    time.sleep(0.02)
                raise ValueError("the task breaks here")
            seen += batch.num_rows
            yield batch

    return frame.mapInArrow(rows, frame.schema)


def two_hundred(spark: Any) -> Any:
    """200 rows in two partitions, 100 each."""
    return spark.range(0, 200, 1, 2).selectExpr("cast(id as string) as value", "cast(id % 4 as int) as partition")


def write(frame: Any, registry: str, topic: str, **options: str) -> None:
    frame.write.format("penstock").options(registry=registry, **options).mode("append").save(topic)


# -- tasks and jobs


def test_a_task_that_is_retried_counts_once(spark: Any, registry: str, tmp_path: Path) -> None:
    frame = breaking(two_hundred(spark), tmp_path, attempts=1, behind=60)
    write(frame, registry, "retried", batchBytes="200")
    assert (tmp_path / "attempt-1").exists()
    assert numbers(registry, "retried") == list(range(200))


def test_partition_mode_shows_a_tasks_rows_when_it_ends(spark: Any, registry: str, tmp_path: Path) -> None:
    """A retried task counts once; a job that fails has shown what was finished, and does not show it again."""
    tasks = {"spark.sql.execution.arrow.maxRecordsPerBatch": "10"}
    with settings(spark, tasks):
        once = tmp_path / "once"
        once.mkdir()
        write(breaking(two_hundred(spark), once, attempts=1, behind=60), registry, "parted", commitMode="partition")
        assert (once / "attempt-1").exists()
        assert numbers(registry, "parted") == list(range(200))
        with pytest.raises(Exception, match="the task breaks here"):
            shown = lambda: len(numbers(registry, "parted-half")) == 100  # noqa: E731
            frame = breaking(two_hundred(spark), tmp_path, attempts=9, behind=60, when=shown)
            write(frame, registry, "parted-half", commitMode="partition", jobId="half")
        assert numbers(registry, "parted-half") == list(range(100, 200))
        write(two_hundred(spark), registry, "parted-half", commitMode="partition", jobId="half")
        assert numbers(registry, "parted-half") == list(range(200))


@pytest.mark.parametrize("mode", ["batch", "partition"])
def test_rows_whose_maker_fails_are_not_taken_for_all(spark: Any, registry: str, tmp_path: Path, mode: str) -> None:
    """The sink's process sees its rows end, and no error: what there was was published, and the retried task wrote nothing."""
    long = two_hundred(spark).selectExpr(
        "rpad(value || '.', 4000, '.') as value", "partition"
    )  # more than pipes hold back
    with settings(spark, {"spark.sql.execution.arrow.maxRecordsPerBatch": "10"}):
        frame = breaking(long, tmp_path, attempts=1, behind=60)
        write(frame, registry, f"cut-short-{mode}", commitMode=mode, batchBytes="10k")
    assert (tmp_path / "attempt-1").exists()
    assert numbers(registry, f"cut-short-{mode}") == list(range(200))


def test_mode_none_writes_again_when_a_task_is_repeated(spark: Any, registry: str, tmp_path: Path) -> None:
    long = two_hundred(spark).selectExpr("rpad(value, 4000, '.') as value", "partition")  # more than pipes hold back
    with settings(spark, {"spark.sql.execution.arrow.maxRecordsPerBatch": "10"}):
        seen = lambda: any(n < 60 for n in numbers(registry, "nothing"))  # noqa: E731
        write(breaking(long, tmp_path, attempts=1, behind=60, when=seen), registry, "nothing", commitMode="none")
    counts = Counter(numbers(registry, "nothing"))
    assert set(counts) == set(range(200))
    twice = {n for n, count in counts.items() if count == 2}
    assert twice
    assert twice <= set(range(60))


def test_a_job_that_was_given_up_and_the_same_job_again(spark: Any, registry: str, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="the task breaks here"):
        write(breaking(two_hundred(spark), tmp_path, attempts=9, behind=60), registry, "given-up", jobId="given-up")
    assert numbers(registry, "given-up") == []
    for _ in range(2):
        write(two_hundred(spark), registry, "given-up", jobId="given-up")
        assert numbers(registry, "given-up") == list(range(200))


@contextlib.contextmanager
def settings(spark: Any, wanted: dict[str, str]) -> Iterator[None]:
    before = {name: spark.conf.get(name) for name in wanted}
    for name, value in wanted.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)


# -- what the user is told


def test_a_row_without_a_value_is_named(spark: Any, registry: str) -> None:
    frame = spark.range(0, 40, 1, 1).selectExpr("if(id = 31, null, cast(id as string)) as value")
    with pytest.raises(Exception) as error:
        write(frame, registry, "null-value")
    assert "row 31 of this partition has no value" in cause(error.value)
    assert numbers(registry, "null-value") == []


def test_too_many_staged_bytes_are_a_clear_error(spark: Any, tmp_path: Path) -> None:
    from client.conftest import SMALL, Cluster

    cluster = Cluster(tmp_path / "data", SMALL | {"stage_max_bytes": 4_000}).start()
    try:
        with pytest.raises(Exception) as error:
            frame = spark.range(0, 4000, 1, 1).selectExpr("cast(id as string) as value")
            write(frame, cluster.registry, "too-much", batchBytes="1k")
        assert "bytes are staged, stage_max_bytes is 4000" in cause(error.value)
        assert numbers(cluster.registry, "too-much") == []
        write(spark.range(0, 20, 1, 1).selectExpr("cast(id as string) as value"), cluster.registry, "too-much")
        assert numbers(cluster.registry, "too-much") == list(range(20))
    finally:
        cluster.stop()


# -- streams


def pass_on(
    spark: Any, registry: str, source: str, sink: str, checkpoint: Path, partitions: int = 0, **options: str
) -> Any:
    """A query from one topic to another, by their values in so many partitions; started."""
    frame = (
        spark.readStream.format("penstock")
        .options(registry=registry, subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger="60")
        .load()
        .selectExpr("value", "key")
    )
    return (
        (frame.repartition(partitions, "value") if partitions else frame)
        .writeStream.format("penstock")
        .options(registry=registry, topic=sink, checkpointLocation=str(checkpoint), **options)
        .trigger(availableNow=True)
        .start()
    )


def test_a_sink_with_a_name_and_a_new_checkpoint(
    spark: Any, registry: str, publish: Callable[..., str], tmp_path: Path
) -> None:
    source = publish("moved", 80)
    pass_on(spark, registry, source, "moved-on", tmp_path / "old", sinkId="moved").awaitTermination()
    assert Checkpoint(str(tmp_path / "old")).deciders() == {"moved": "broker-a"}
    with pytest.raises(Exception) as error:
        pass_on(spark, registry, source, "moved-on", tmp_path / "new", sinkId="moved").awaitTermination()
    assert "sinkReset=true" in cause(error.value)
    assert numbers(registry, "moved-on") == list(range(80))
    for _ in range(2):  # the option may stay: the sink is the query's own now
        query = pass_on(spark, registry, source, "moved-on", tmp_path / "new", sinkId="moved", sinkReset="true")
        query.awaitTermination()
        assert numbers(registry, "moved-on") == sorted([*range(80)] * 2)


def test_a_checkpoint_that_was_put_back_is_told(
    spark: Any, registry: str, publish: Callable[..., str], tmp_path: Path
) -> None:
    """Its last batch is planned anew with more rows, and has the number of one that is published."""
    source = publish("put-back", 80)
    query = lambda **more: pass_on(spark, registry, source, "put-back-on", tmp_path / "checkpoint", **more)  # noqa: E731
    healthy = query()
    healthy.awaitTermination()
    assert numbers(registry, "put-back-on") == list(range(80))
    for folder in ("offsets", "commits"):
        for name in ("1", ".1.crc"):
            (tmp_path / "checkpoint" / folder / name).unlink()
    publish("put-back", 20, first=80)
    for _ in range(2):  # however often
        with pytest.raises(Exception) as error:
            query().awaitTermination()
        assert "was published before the query planned it" in cause(error.value)
        assert numbers(registry, "put-back-on") == list(range(80))
    with StageClient(registry) as client:  # what would be running with the newer checkpoint goes on
        client.known(SinkRun(str(healthy.id), str(healthy.id), str(healthy.runId)), "broker-a")
    query(sinkId="put-back-2").awaitTermination()
    counts = Counter(numbers(registry, "put-back-on"))
    assert set(counts) == set(range(100))
    assert sum(counts.values()) == 120


def test_a_checkpoint_that_was_put_back_and_is_cut_into_other_partitions(
    spark: Any, registry: str, publish: Callable[..., str], tmp_path: Path
) -> None:
    """Each partition counts for itself, and a new one knew of nothing: 40 of 60 rows were written a second time."""
    source, checkpoint = publish("cut-anew", 120), tmp_path / "checkpoint"

    def query(partitions: int) -> None:
        pass_on(
            spark, registry, source, "cut-anew-on", checkpoint, partitions=partitions, commitMode="partition"
        ).awaitTermination()

    query(2)
    query(3)  # nothing is new
    assert numbers(registry, "cut-anew-on") == list(range(120))
    for folder in ("offsets", "commits"):
        for name in ("1", ".1.crc"):
            (checkpoint / folder / name).unlink()
    for _ in range(2):
        with pytest.raises(Exception) as error:
            query(3)
        assert "was published before the query planned it" in cause(error.value)
        assert numbers(registry, "cut-anew-on") == list(range(120))


def child(program: str, home: Path, **given: Any) -> subprocess.Popen[bytes]:
    """A driver in a process of its own; what it says goes to `<home>/child.log`."""
    paths = [ROOT / "src", ROOT / "tests", ROOT / "tests" / "chaos"]
    with (home / "child.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-c", program, json.dumps(given)], stdout=log, stderr=log,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))},
        )  # fmt: skip


STALE_DRIVER = """
import json, sys
from pathlib import Path
given = json.loads(sys.argv[1])
from chaos_driver import HeldSink
from penstock.spark import session
from penstock.spark.tools.sessions import cause
spark = session("first", master="local[1, 2]", quick=True, config={"spark.sql.shuffle.partitions": "1"})
spark.dataSource.register(HeldSink)
Path(given["folder"], "hold-before").touch()
query = (
    spark.readStream.format("penstock")
    .options(registry=given["registry"], subscribe="two-drivers", startingOffsets="earliest", maxOffsetsPerTrigger="60")
    .load().selectExpr("value", "key")
    .writeStream.format("penstock-held")
    .options(registry=given["registry"], topic="two-drivers-on", folder=given["folder"])
    .option("checkpointLocation", given["checkpoint"])
    .trigger(availableNow=True).start()
)
try:
    query.awaitTermination()
except Exception as error:
    print("CAUSE", cause(error), flush=True)
    sys.exit(3)
"""


def test_two_drivers_on_one_checkpoint(spark: Any, registry: str, publish: Callable[..., str], tmp_path: Path) -> None:
    """The first has staged a batch and stands still; another one is started and does everything; the first goes on."""
    publish("two-drivers", 150)
    checkpoint, folder = tmp_path / "checkpoint", tmp_path / "held"
    folder.mkdir()
    first = child(STALE_DRIVER, tmp_path, registry=registry, checkpoint=str(checkpoint), folder=str(folder))
    try:
        deadline = time.monotonic() + CHILD_S
        while not (folder / "held-before").exists():
            assert first.poll() is None, (tmp_path / "child.log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert numbers(registry, "two-drivers-on") == []
        pass_on(spark, registry, "two-drivers", "two-drivers-on", checkpoint).awaitTermination()
        assert numbers(registry, "two-drivers-on") == list(range(150))
        (folder / "held-before").unlink()
        assert first.wait(CHILD_S) == 3
    finally:
        first.kill()
        first.wait()
    told = (tmp_path / "child.log").read_text()
    assert "is over: a newer one writes to it" in told
    assert numbers(registry, "two-drivers-on") == list(range(150))


REORDERED = """
import json, os, sys
from pathlib import Path
given = json.loads(sys.argv[1])
from penstock.spark import session
spark = session("reordered", master="local-cluster[2,1,1024]", quick=True, config={
    "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"], "spark.executor.memory": "600m",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.excludeOnFailure.enabled": "true", "spark.excludeOnFailure.task.maxTaskAttemptsPerExecutor": "1",
    "spark.locality.wait": "0", "spark.reducer.maxSizeInFlight": "1k", "spark.sql.adaptive.enabled": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50",
})
folder = given["folder"]

def noted(batches):
    from pyspark import TaskContext
    context = TaskContext.get()
    seen = 0
    with open(f"{folder}/rows-{context.partitionId()}-{context.attemptNumber()}", "w") as file:
        for batch in batches:
            if context.attemptNumber() > 0:  # a shuffle brings another order as a rule, not always
                batch = batch.take(list(reversed(range(batch.num_rows))))
            for value in batch.column("value").to_pylist():
                file.write(f"{value}\\n")
            yield batch
            seen += batch.num_rows
            if context.partitionId() == 0 and context.attemptNumber() == 0 and seen > 500:
                raise ValueError("breaks once")
        file.write("end\\n")

rows = spark.range(0, 3000, 1, 6).selectExpr("cast(id as string) as value")
parts = rows.repartition(2, "value")
write = parts.mapInArrow(noted, "value string").write.format("penstock").options(registry=given["registry"], batchBytes="2k")
write.mode("append").save("reordered")
"""


def test_rows_in_another_order_the_second_time(spark: Any, registry: str, tmp_path: Path) -> None:
    """A task is tried again at another executor, behind a shuffle: what it had staged the first time does not count."""
    driver = child(REORDERED, tmp_path, registry=registry, folder=str(tmp_path))
    try:
        assert driver.wait(CHILD_S) == 0, (tmp_path / "child.log").read_text()
    finally:
        driver.kill()
        driver.wait()
    assert numbers(registry, "reordered") == list(range(3000))
    first, second = ((tmp_path / f"rows-0-{attempt}").read_text().split() for attempt in (0, 1))
    assert first[-1] != "end"
    assert second.pop() == "end"
    assert set(first) < set(second)
    assert first != second[: len(first)], "the rows came in the same order: nothing was shown"
