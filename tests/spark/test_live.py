"""With a real broker and a real Spark: few tests, each of what cannot be seen without."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

import penstock
from penstock.client.aio.producer import Producer
from penstock.client.reader import LogReader
from penstock.message import Message
from penstock.spark import schema
from penstock.spark.pipelines import archive
from penstock.spark.tools.sessions import cause

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="session")
def orders(publish: Callable[..., str]) -> str:
    return publish("orders", 400)


@pytest.fixture
def load(spark: Any, registry: str, orders: str) -> Callable[..., Any]:
    return lambda **options: spark.read.format("penstock").option("registry", registry).options(**options).load(orders)


def offsets(frame: Any) -> list[tuple[int, int]]:
    return sorted((row["partition"], row["offset"]) for row in frame.select("partition", "offset").collect())


EVERY = [(queue, offset) for queue in range(4) for offset in range(100)]


# -- batch


def test_a_topic_is_a_table(load: Callable[..., Any]) -> None:
    frame = load()
    assert [field.name for field in frame.schema] == list(schema.BASE)
    assert offsets(frame) == EVERY
    row = frame.where("partition = 3 and offset = 1").collect()[0]
    assert (bytes(row["value"]), bytes(row["key"]), row["tags"]) == (b"7.........", b"k7", "odd")


def test_positions(load: Callable[..., Any], registry: str, orders: str) -> None:
    part = {"orders": {"0": 98, "2": 99, "3": -1}}
    expected = [(0, 98), (0, 99), *((1, n) for n in range(100)), (2, 99)]
    assert offsets(load(startingOffsets=json.dumps(part))) == expected
    assert offsets(load(endingOffsets='{"orders": {"0": 1, "1": 0, "2": 0, "3": 0}}')) == [(0, 0)]
    with LogReader(registry) as reader:
        broker = reader.queues(orders)[0].broker
        for queue in reader.queues(orders):
            reader.commit("reached", queue, 99)
    assert offsets(load(startingGroup="reached")) == [(q, 99) for q in range(4)]
    assert len(offsets(load(startingOffsets=json.dumps({"orders": {broker: {"0": 90}}})))) == 310
    now = int(time.time() * 1000)
    assert load(startingTimestamp="0", endingTimestamp=str(now + 60_000)).count() == 400
    assert load(startingTimestamp=str(now + 60_000), startingOffsetsByTimestampStrategy="latest").count() == 0


def test_any_subset_of_columns_in_any_order(spark: Any, registry: str, orders: str, load: Callable[..., Any]) -> None:
    for ddl in ("offset long", "tags string, value binary, partition int", "properties map<string,string>, key binary"):
        frame = spark.read.schema(ddl).format("penstock").option("registry", registry).load(orders)
        assert frame.count() == 400
        assert frame.columns == [part.split()[0] for part in ddl.replace("map<string,string>", "map").split(", ")]
    every = load(includeMetadata="true")
    assert every.columns == list(schema.BY_NAME)
    row = every.where("partition = 0 and offset = 0").collect()[0]
    assert row["crcOk"] is True
    assert row["properties"]["TAGS"] == "even"
    assert row["keys"] == ["k0"]
    assert row["size"] > 100
    assert len(row["msgId"]) == 32
    spark.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    try:
        assert load().where("timestamp > timestamp_ltz'2020-01-01 00:00:00'").count() == 400
    finally:
        spark.conf.unset("spark.sql.timestampType")


def test_arrow_types_are_the_ones_spark_derives(spark: Any) -> None:
    from pyspark.sql.types import _parse_datatype_string

    names = tuple(schema.BY_NAME)
    assert schema.arrow_schema(_parse_datatype_string(schema.ddl(names))) == schema.arrow_of(names)


def test_filters_are_answered_by_the_store_and_right(load: Callable[..., Any]) -> None:
    frame = load(pushdown="true")
    narrow = frame.where("partition in (1, 2) and offset between 10 and 12 and tags = 'odd'")
    assert narrow.rdd.getNumPartitions() == 2
    assert offsets(narrow) == [(1, 10), (1, 11), (1, 12)]
    assert offsets(frame.where("topic = 'other'")) == []
    assert (
        frame.where("timestamp > timestamp'2020-01-01 00:00:00' and timestamp < timestamp'2020-01-02 00:00:00'").count()
        == 0
    )
    assert offsets(load(pushdown="false").where("partition = 1 and offset < 2")) == [(1, 0), (1, 1)]


def test_a_filter_of_one_query_is_not_anothers(load: Callable[..., Any], spark: Any, registry: str) -> None:
    """Spark 4.3 gives what was planned with filters to other scans of the same DataFrame."""
    frame, few, odd = load(), "offset < 3", "tags = 'odd' and partition = 3"
    assert (frame.where(few).count(), frame.count()) == (12, 400)
    assert (frame.where(odd).count(), frame.where("offset = 5 or tags = 'even'").count()) == (100, 202)
    both = offsets(frame.where(few).union(frame.where("offset >= 98")))
    assert both == [(queue, offset) for queue in range(4) for offset in (0, 1, 2, 98, 99)]
    low, high = frame.where("offset < 2").alias("low"), frame.where("offset >= 98 and partition < 2").alias("high")
    assert low.join(high, "partition").where("low.offset + 98 = high.offset").count() == 4
    frame.createOrReplaceTempView("twice")
    pair = "SELECT (SELECT count(*) FROM twice WHERE offset < 3), (SELECT count(*) FROM twice)"
    assert tuple(spark.sql(pair).first()) == (12, 400)
    spark.sql(f"CREATE TABLE kept_twice USING penstock OPTIONS (registry '{registry}', subscribe 'orders')")
    try:
        assert tuple(spark.sql(pair.replace("twice", "kept_twice")).first()) == (12, 400)
    finally:
        spark.sql("DROP TABLE kept_twice")


def test_an_expression_over_properties(
    load: Callable[..., Any], spark: Any, registry: str, orders: str, tmp_path: Path
) -> None:
    chosen = "KEYS = 'k7' OR (TAGS = 'odd' AND KEYS IN ('k399', 'k12'))"
    assert offsets(load(where=chosen)) == [(3, 1), (3, 99)]
    assert offsets(load(where=chosen, store="none")) == [(3, 1), (3, 99)]
    assert load(where="TAGS = 'even'").where("tags = 'odd'").count() == 0
    with pytest.raises(Exception) as error:
        load(where="KEYS =").count()
    assert "option where = 'KEYS =': Parse" in cause(error.value)
    rows, batches = run_stream(spark, registry, orders, tmp_path, maxOffsetsPerTrigger="150", where=chosen)
    assert rows == [(3, 1), (3, 99)]
    assert batches == [1, 1]  # the batch between, of which nothing was wanted, has no rows


def test_a_view_in_sql(spark: Any, registry: str, orders: str) -> None:
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW v USING penstock OPTIONS (registry '{registry}', subscribe 'orders')")
    rows = spark.sql("SELECT tags, count(*) AS n, max(offset) AS last FROM v GROUP BY tags ORDER BY tags").collect()
    assert [tuple(row) for row in rows] == [("even", 200, 99), ("odd", 200, 99)]


def test_errors_say_what_to_do(load: Callable[..., Any]) -> None:
    for options, said in (
        ({"startingOffset": "earliest"}, "did you mean startingOffsets"),
        ({"columns": "ofset"}, "did you mean offset"),
        ({"startingOffsets": '{"orders": {"0": 5000}}'}, "asked for was 5000"),
        ({"subscribe": "orders"}, "exclude each other"),
    ):
        with pytest.raises(Exception) as error:
            load(**options).count()
        assert said in cause(error.value)
    assert load(startingOffsets='{"orders": {"0": 5000}}', failOnDataLoss="false").count() == 300


def test_what_is_wrong_is_said_last_with_what_to_do(spark: Any, registry: str, orders: str) -> None:
    """As a user sees it: the uncaught exception, frames and all."""
    reader = lambda **given: spark.read.format("penstock").options(registry=registry, **given)  # noqa: E731

    def run(**given: str) -> None:
        stream = spark.readStream.format("penstock").options(registry=registry, **given).load()
        stream.writeStream.format("noop").start().awaitTermination(60)

    rows = spark.sql("SELECT cast(null AS string) AS value")
    lost, topic = '{"orders": {"0": 5000}}', "is the topic's name right, and the option registry the cluster it is in?"
    for ask, last in (
        (lambda: reader(startingOffset="earliest").load(orders), "'startingoffset': did you mean startingOffsets?"),
        (lambda: reader().load("nowhere").count(), f"no broker serves topic 'nowhere'\n  {topic}"),
        (lambda: run(subscribe="nowhere"), f"no broker serves topic 'nowhere'\n  {topic}"),
        (lambda: run(subscribe=orders, startingOffsets=lost), "asked for was 5000. With failOnDataLoss=false the rest"
         " is read and this is only logged"),
        (lambda: rows.write.format("penstock").options(registry=registry).mode("append").save("x"),
         "has no value: filter such rows out, or give them an empty one"),
        (lambda: reader(assign='{"orders": 7}').load().count(), 'such as {"orders": [0, 1]}'),
    ):  # fmt: skip
        with pytest.raises(Exception) as error:
            ask()
        shown = "".join(traceback.format_exception(error.value)).rstrip()
        assert shown.endswith(last), shown
        assert len(shown.splitlines()) <= 25, shown
        assert "\n" not in cause(error.value)


# -- stream


def run_stream(
    spark: Any, registry: str, topic: str, folder: Path, **options: str
) -> tuple[list[tuple[int, int]], list[int]]:
    """Rows a bounded run wrote, in order, and the rows of each batch."""
    query = (
        spark.readStream.format("penstock")
        .options(registry=registry, subscribe=topic, startingOffsets="earliest", **options)
        .load()
        .select("partition", "offset")
        .writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(folder / "out"))
    )
    query.awaitTermination()
    rows = offsets(spark.read.parquet(str(folder / "out")))
    return rows, [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]


def test_available_now_reads_in_steps_to_the_end_and_goes_on(
    spark: Any, registry: str, publish: Callable[..., str], tmp_path: Path
) -> None:
    topic = publish("steps", 100)
    limits = {"maxOffsetsPerTrigger": "45", "commitOffsetsToGroup": "steps-shown"}
    rows, batches = run_stream(spark, registry, topic, tmp_path, **limits)
    assert rows == [(q, n) for q in range(4) for n in range(25)]
    assert batches == [45, 45, 10]
    publish(topic, 40, first=100)
    rows, batches = run_stream(spark, registry, topic, tmp_path, **limits)
    assert rows == [(q, n) for q in range(4) for n in range(35)]
    assert batches == [40]
    with LogReader(registry) as reader:
        assert [reader.committed("steps-shown", queue) for queue in reader.queues(topic)] == [35] * 4


def test_a_lost_range_is_named_to_the_user(
    spark: Any, registry: str, publish: Callable[..., str], tmp_path: Path
) -> None:
    topic = publish("lossy", 40)

    def run(**options: str) -> int:
        given = {"registry": registry, "startingOffsets": "earliest", **options}
        rows = spark.readStream.format("penstock").options(**given).load(topic)
        writer = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination(60)
        return sum(progress.numInputRows for progress in query.recentProgress)

    assert run() == 40
    publish(topic, 40, first=40)
    with penstock.Admin(registry) as admin:
        admin.delete_topic(topic)
    publish(topic, 8, first=80)
    with pytest.raises(Exception, match=r"^DataLoss: offsets 10 to 20 of lossy queue"):  # while a batch is planned
        run()
    for file in list((tmp_path / "commits").glob("*0*")):  # and its sum
        file.unlink()
    with pytest.raises(Exception, match=r"^DataLoss: offsets 0 to 20 of lossy queue"):  # while one is read again
        run()
    assert run(failOnDataLoss="false") == 8


def test_another_driver_on_the_checkpoint_is_said_with_what_to_do(
    spark: Any, registry: str, publish: Callable[..., str], tmp_path: Path
) -> None:
    topic, log = publish("shared", 8), tmp_path / "offsets"
    rows = spark.readStream.format("penstock").options(registry=registry, startingOffsets="earliest").load(topic)
    query = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
    try:
        query.processAllAvailable()
        (log / "1").write_bytes((log / "0").read_bytes())  # as the other one would
        publish(topic, 8, first=8)
        with pytest.raises(Exception, match="another driver") as error:
            query.awaitTermination(60)
    finally:
        query.stop()
    for told in (str(error.value), str(query.exception())):
        assert told.splitlines() == [
            "TwoDrivers: another driver runs this query from the same checkpoint, and was first with micro-batch 1",
            "  end that one and start this one again: it goes on where the checkpoint is, nothing is lost or there twice",
        ]


def test_a_checkpoint_that_was_edited_is_told_with_what_to_do(
    spark: Any, registry: str, publish: Callable[..., str], tmp_path: Path
) -> None:
    """Cut short it does not reach the source at all; what does is said by it."""
    topic, newest = publish("edited", 8), tmp_path / "offsets" / "0"
    rows = spark.readStream.format("penstock").options(registry=registry, startingOffsets="earliest").load(topic)

    def run() -> None:
        writer = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
        writer.trigger(availableNow=True).start().awaitTermination()

    run()
    *head, offset = newest.read_text().splitlines()
    newest.with_name(".0.crc").unlink()
    for edited, told in (
        (offset[:30], "BadOffset: the checkpoint holds an offset that is not whole: "),
        ('{"edited": {"0": 2}}', 'BadOffset: the checkpoint holds an offset that is none of this source: {"edited": '),
    ):
        newest.write_text("\n".join([*head, edited]))
        with pytest.raises(Exception, match=r"^BadOffset") as error:
            run()
        lines = str(error.value).splitlines()
        assert lines[0].startswith(told)
        assert "  it is a line of a file in the checkpoint's folder offsets" in lines[1]
    newest.write_text("\n".join([*head, offset]))
    run()


_STREAM = """
import json, os, sys
from penstock.spark import session

spark = session(quick=True, master="local[2, 2]")
folder, run = sys.argv[1], sys.argv[2]

def write(frame, batch):
    rows = [[r["partition"], r["offset"], r["value"].decode()] for r in frame.collect()]
    with open(f"{folder}/batch-{batch}-{run}.json", "w") as file:
        json.dump(rows, file)
    if run == "first" and batch == 1:
        open(f"{folder}/now", "w").close()
        import time
        time.sleep(600)

(spark.readStream.format("penstock")
 .options(registry=os.environ["PENSTOCK_REGISTRY"], subscribe="replayed", startingOffsets="earliest",
          maxOffsetsPerTrigger="60", minPartitions="6")
 .load().writeStream.foreachBatch(write).option("checkpointLocation", folder + "/checkpoint")
 .trigger(availableNow=True).start().awaitTermination())
"""


def kill_with_children(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL for a driver and its JVM, as a power cut would have it: they share a process group."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(20)


def wait_for(happened: Callable[[], bool], process: subprocess.Popen[bytes], seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert process.poll() is None, f"the child ended by itself with {process.returncode}"
        assert time.monotonic() < deadline, "nothing happened in time"
        time.sleep(0.02)


def test_a_killed_query_sees_the_same_rows_in_the_same_order(
    publish: Callable[..., str], tmp_path: Path, child_environment: dict[str, str]
) -> None:
    publish("replayed", 200)
    command = [sys.executable, "-c", _STREAM, str(tmp_path)]
    first = subprocess.Popen([*command, "first"], env=child_environment, start_new_session=True)
    try:
        wait_for((tmp_path / "now").exists, first)
    finally:
        kill_with_children(first)
    publish("replayed", 100, first=200)
    again = subprocess.run([*command, "again"], env=child_environment, timeout=120)
    assert again.returncode == 0
    read = lambda batch, run: json.loads((tmp_path / f"batch-{batch}-{run}.json").read_text())  # noqa: E731
    assert read(1, "again") == read(1, "first")
    assert not (tmp_path / "batch-0-again.json").exists()
    rows = read(0, "first") + [
        row
        for batch in range(1, 9)
        if (tmp_path / f"batch-{batch}-again.json").exists()
        for row in read(batch, "again")
    ]
    assert sorted(int(value.rstrip(".")) for _, _, value in rows) == list(range(300))


_LATEST = """
import os, sys, time
from penstock.spark import session

spark = session(quick=True, master="local[2, 2]")
folder, run = sys.argv[1], sys.argv[2]

def write(frame, batch):
    rows = [f"{r['partition']} {r['offset']}" for r in frame.collect()]
    with open(f"{folder}/writing", "w") as file:
        file.write("\\n".join(rows))
    os.rename(f"{folder}/writing", f"{folder}/batch-{batch}")
    if run == "first":
        open(f"{folder}/now", "w").close()
        time.sleep(600)

given = {"registry": os.environ["PENSTOCK_REGISTRY"], "subscribe": "busy", "maxOffsetsPerTrigger": "2000"}
topic = spark.readStream.format("penstock").options(**given).load()
query = topic.writeStream.foreachBatch(write).option("checkpointLocation", folder + "/checkpoint").start()
while query.isActive and not os.path.exists(folder + "/batch-3"):
    time.sleep(0.02)
if query.exception():
    raise query.exception()
query.stop()
"""


@pytest.fixture
def busy(registry: str, publish: Callable[..., str]) -> Iterator[None]:
    """A topic that is written to all the time."""
    publish("busy", 400)
    ended = threading.Event()

    async def send() -> None:
        async with Producer(registry) as producer:
            while not ended.is_set():
                for queue in await producer.queues("busy"):
                    await producer.send_batch([Message("busy", b"x" * 100)] * 20, queue=queue)
                await asyncio.sleep(0.02)

    sender = threading.Thread(target=asyncio.run, args=(send(),))
    sender.start()
    yield
    ended.set()
    sender.join()


def test_a_stream_begins_once_while_its_topic_is_written_to(
    busy: None, tmp_path: Path, child_environment: dict[str, str]
) -> None:
    command = [sys.executable, "-c", _LATEST, str(tmp_path)]
    first = subprocess.Popen([*command, "first"], env=child_environment, start_new_session=True)
    try:
        wait_for((tmp_path / "now").exists, first)
    finally:
        kill_with_children(first)
    assert not list((tmp_path / "checkpoint" / "commits").glob("[0-9]*"))
    again = subprocess.run([*command, "again"], env=child_environment, timeout=120)
    assert again.returncode == 0
    logged = json.loads((tmp_path / "checkpoint/offsets/0").read_text().splitlines()[-1])
    begin = {int(queue): offset for (queue, offset) in next(iter(logged["+from"]["busy"].values())).items()}
    assert min(begin.values()) >= 100
    rows = [tuple(map(int, row.split())) for path in tmp_path.glob("batch-*") for row in path.read_text().splitlines()]
    for queue, offset in begin.items():
        mine = sorted(at for q, at in rows if q == queue)
        assert mine == list(range(offset, offset + len(mine)))
        assert len(mine) > 100


# -- archive


_ARCHIVE = """
import os, sys
from penstock.spark import session
from penstock.spark.pipelines import archive

archive.run(session(quick=True, master="local[2, 2]"), "kept", sys.argv[1],
            registry=os.environ["PENSTOCK_REGISTRY"], file_records=50)
"""


def archived(folder: Path) -> list[tuple[int, int]]:
    import pyarrow.parquet as pq

    found = []
    for path in (folder / "topic=kept").glob("broker=*/queue=*/*.parquet"):
        table = pq.read_table(path, columns=["partition", "offset"], partitioning=None)
        pairs = list(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True))
        first, _, last = path.stem.partition("-")
        assert (pairs[0][1], pairs[-1][1]) == (int(first), int(last))
        found += pairs
    return sorted(found)


def test_an_archive_killed_and_resumed_has_each_offset_once(
    spark: Any, registry: str, publish: Callable[..., str], tmp_path: Path, child_environment: dict[str, str]
) -> None:
    publish("kept", 4000)
    child = subprocess.Popen(
        [sys.executable, "-c", _ARCHIVE, str(tmp_path)], env=child_environment, start_new_session=True
    )
    try:
        wait_for(
            lambda: len(list(tmp_path.glob("topic=kept/*/*/*.parquet"))) >= 10, child
        )  # of 80; to read them takes long
    finally:
        kill_with_children(child)
    before = len(archived(tmp_path))
    assert before < 4000, "the kill came too late to show anything"
    publish("kept", 400, first=4000)
    steps: list[tuple[int, int]] = []
    result = archive.run(
        spark,
        "kept",
        tmp_path,
        registry=registry,
        file_records=50,
        group="archived",
        progress=lambda *at: steps.append(at),
    )
    assert result.resumed == 80
    assert archived(tmp_path) == [(q, n) for q in range(4) for n in range(1100)]
    assert not list(tmp_path.rglob("*.writing"))
    assert steps[-1][0] == steps[-1][1] > 0
    again = archive.run(spark, "kept", tmp_path, registry=registry)
    assert (again.rows, again.files) == (0, [])
    (tmp_path.with_name(f"{tmp_path.name}.penstock") / "kept.json").unlink()
    publish("kept", 4, first=4400)
    assert archive.run(spark, "kept", tmp_path, registry=registry).rows == 4
    assert archived(tmp_path) == [(q, n) for q in range(4) for n in range(1101)]
    table = spark.read.parquet(str(tmp_path / "topic=kept"))
    assert table.selectExpr("count(distinct queue, offset)", "count(*)").collect()[0][:] == (4404, 4404)
    with LogReader(registry) as reader:
        assert [reader.committed("archived", queue) for queue in reader.queues("kept")] == [1100] * 4


def test_the_archive_command(registry: str, publish: Callable[..., str], tmp_path: Path, spark: Any) -> None:
    from click.testing import CliRunner

    from penstock.cli.spark import spark as command

    topic = publish("commanded", 20)
    common = ["archive", topic, "--to", str(tmp_path), "--registry", registry]
    dry = CliRunner().invoke(command, [*common, "--dry-run"])
    assert dry.exit_code == 0, dry.output
    assert "would write 20 messages to 4 files" in dry.output
    assert not list(tmp_path.rglob("*.parquet"))
    done = CliRunner().invoke(command, [*common, "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["rows"] == 20
    assert "nothing new" in CliRunner().invoke(command, common).stdout
    wrong = CliRunner().invoke(command, ["archive", "nowhere", "--to", str(tmp_path), "--registry", registry])
    assert wrong.exit_code == 1
    assert "nowhere" in wrong.stderr
    assert "Traceback" not in wrong.stderr
