"""The sink with a real broker and a real Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from penstock.client.reader import LogReader
from penstock.client.staging import SinkRun, StageClient, Stager
from penstock.spark.tools.sessions import cause
from penstock.wire.record import iter_records

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore")]


def messages(registry: str, topic: str) -> list[Any]:
    """Everything in a topic, queue by queue."""
    found = []
    with LogReader(registry) as reader:
        for queue in reader.queues(topic):
            at, end = reader.offsets(queue, durable=False)
            while at < end:
                got = reader.fetch(queue, at, durable=False)
                found += list(iter_records(got.records, check=True))
                at = got.next_offset
    return found


def numbers(registry: str, topic: str) -> list[int]:
    """The numbers that `publish` put into the bodies, as they came through."""
    return sorted(int(m.body.rstrip(b".")) for m in messages(registry, topic))


# -- batch


def test_a_table_is_written_to_a_topic_once(spark: Any, registry: str) -> None:
    frame = spark.range(1000).selectExpr(
        "cast(id as string) as value", "concat('k', id % 7) as key", "if(id % 2 = 0, 'even', 'odd') as tags"
    )
    for _ in range(2):
        job = frame.repartition(3).write.format("penstock").options(registry=registry, jobId="thousand")
        job.mode("append").save("sunk")
    found = messages(registry, "sunk")
    assert sorted(int(m.body) for m in found) == list(range(1000))
    for m in found:
        assert m.properties["KEYS"] == f"k{int(m.body) % 7}"
        assert m.tags == ("odd" if int(m.body) % 2 else "even")
    places = {(m.properties["KEYS"], m.queue_id) for m in found}
    assert len(places) == 7
    frame.write.format("penstock").option("registry", registry).mode("append").save("sunk")
    assert Counter(Counter(m.body for m in messages(registry, "sunk")).values()) == {2: 1000}


def test_every_column_arrives(spark: Any, registry: str) -> None:
    spark.sql(
        """SELECT 'columns' AS topic, decode(value, 'utf-8') AS value, CAST(partition AS int) AS partition, tags, keys,
                  map('colour', tags, 'WAIT', 'x') AS properties, array(named_struct('key', 'h', 'value', value)) AS headers,
                  shardingKey, delayMs, timestamp_millis(deliverAt) AS deliverAt
           FROM VALUES (X'61', 2, 'A', array('k1', 'k2'), 's', NULL, NULL), (X'62', 1, NULL, NULL, NULL, NULL, 1000L),
                       (X'63', 0, 'B', array(), NULL, 100L, NULL)
                AS t(value, partition, tags, keys, shardingKey, delayMs, deliverAt)"""
    ).write.format("penstock").options(registry=registry, compression="zlib").mode("append").save()
    found = {m.body: m for m in messages(registry, "columns")}
    first = found[b"a"]
    assert (first.queue_id, first.tags, first.keys) == (2, "A", ("k1", "k2"))
    assert first.properties == {
        "KEYS": "k1 k2", "TAGS": "A", "__SHARDINGKEY": "s", "colour": "A", "h": "a",
    }  # fmt: skip
    assert found[b"b"].queue_id == 1  # due in 1970: at once


def test_what_cannot_be_written_says_why(spark: Any, registry: str) -> None:
    write = spark.sql("SELECT 'x' AS value").write.format("penstock")
    with pytest.raises(Exception) as error:
        write.options(registry=registry, topik="t").mode("append").save()
    assert "did you mean topic" in cause(error.value)


def test_insert_into_a_temporary_view(spark: Any, registry: str, publish: Callable[..., str]) -> None:
    """Unlike a table of the catalog, a view hands its options on: those that source and sink both have."""
    publish("inserted", 4)
    for view, option in (("by_topic", "topic"), ("by_subscribe", "subscribe")):
        spark.sql(f"CREATE TEMPORARY VIEW {view} USING penstock OPTIONS (registry '{registry}', {option} 'inserted')")
    spark.sql("INSERT INTO by_topic (value, key) SELECT CAST('7' AS binary), CAST('k' AS binary)")
    assert numbers(registry, "inserted") == [0, 1, 2, 3, 7]
    with pytest.raises(Exception) as error:
        spark.sql("INSERT INTO by_subscribe SELECT * FROM by_subscribe")
    assert "did you mean topic" in cause(error.value)


def test_overwriting_is_refused(spark: Any, registry: str) -> None:
    with pytest.raises(Exception, match=r"append|overwrit"):
        spark.sql("SELECT 'x' AS value").write.format("penstock").options(registry=registry).mode("overwrite").save("t")


# -- stream


def pass_on(spark: Any, registry: str, source: str, sink: str, folder: Path, **options: str) -> Any:
    """A query from one topic to another; started."""
    return (
        spark.readStream.format("penstock")
        .options(registry=registry, subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger="60")
        .load()
        .selectExpr("value", "key", "tags")
        .writeStream.format("penstock")
        .options(registry=registry, topic=sink, checkpointLocation=str(folder), **options)
        .trigger(availableNow=True)
        .start()
    )


def test_a_stream_and_its_replay(spark: Any, registry: str, publish: Callable[..., str], tmp_path: Path) -> None:
    """The last commit is taken back, as if the driver had been killed behind the publish: nothing is written again."""
    source = publish("passed", 100)
    pass_on(spark, registry, source, "passed-on", tmp_path).awaitTermination()
    assert numbers(registry, "passed-on") == list(range(100))
    commits = tmp_path / "commits"
    last = max(int(p.name) for p in commits.iterdir() if p.name.isdigit())
    (commits / str(last)).unlink()
    (commits / f".{last}.crc").unlink()
    publish("passed", 20, first=100)
    pass_on(spark, registry, source, "passed-on", tmp_path).awaitTermination()
    assert numbers(registry, "passed-on") == list(range(120))


def test_a_driver_thought_dead_is_refused(
    spark: Any, registry: str, publish: Callable[..., str], tmp_path: Path
) -> None:
    source = publish("two", 40)
    pass_on(spark, registry, source, "two-on", tmp_path, sinkId="two").awaitTermination()
    query = eval((tmp_path / "metadata").read_text())["id"]
    publish("two", 40, first=40)
    with StageClient(registry) as client:
        newest = SinkRun("two", query, "a-driver-that-came-later")
        stager = Stager(client, newest, 9)
        stager.seal()
        client.publish(newest, 1, [])
        client.publish(SinkRun("two", query, "a-third"), 2, [])
        with pytest.raises(Exception, match="77001"):
            client.publish(newest, 3, [])
    # Its own next start is a newer run again; the batches that the others published are over.
    pass_on(spark, registry, source, "two-on", tmp_path, sinkId="two").awaitTermination()
    assert numbers(registry, "two-on") == list(range(40))
    with pytest.raises(Exception) as error:
        pass_on(spark, registry, source, "two-on", tmp_path / "lost", sinkId="two").awaitTermination()
    assert "sinkReset=true" in cause(error.value)


def test_modes(spark: Any, registry: str, publish: Callable[..., str], tmp_path: Path) -> None:
    source = publish("modes", 60)
    for mode in ("partition", "none"):
        pass_on(
            spark, registry, source, f"mode-{mode}", tmp_path / mode, commitMode=mode, level="os"
        ).awaitTermination()
        assert numbers(registry, f"mode-{mode}") == list(range(60))
