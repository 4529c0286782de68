"""Every pipeline once, and a streaming copy, on whatever Spark it is given: the answers, to be compared between masters.

As a program: `spark_rounds.py MASTER REGISTRY FOLDER ROUND`; the answers are printed as JSON.
"""

from __future__ import annotations

import json
import shutil
import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

from penstock.spark.pipelines import archive, audit, redrive, reindex, replay, search, stats

TOPIC = "rounds"  # 200 messages in four queues
QUICK = {"spark.sql.shuffle.partitions": "2", "spark.locality.wait": "0"}


def values(spark: Any, registry: str, topic: str) -> dict[str, int]:
    """How often each body is in a topic."""
    rows = spark.read.format("penstock").options(registry=registry, columns="value").load(topic).collect()
    return dict(Counter(bytes(row["value"]).decode().rstrip(".") for row in rows))


def archived(folder: Path, topic: str) -> list[tuple[int, int]]:
    import pyarrow.parquet as pq

    tables = [pq.read_table(path, partitioning=None) for path in (folder / f"topic={topic}").rglob("[0-9]*.parquet")]
    return sorted(p for t in tables for p in zip(t["partition"].to_pylist(), t["offset"].to_pylist(), strict=True))


class Cut(Exception):
    """A run that ends before its end."""


def cut_and_resumed(spark: Any, registry: str, folder: Path) -> dict[str, Any]:
    """An archive run that ends with half of its files written and its plan noted, and the next one."""
    write_all = archive._write_all

    def half(*given: Any) -> Any:
        files = write_all(*given)
        for file in files[::2]:
            Path(file.path).unlink()
        raise Cut

    archive._write_all = half
    try:
        archive.run(spark, TOPIC, folder, registry=registry, file_records=50)
    except Cut:
        pass
    finally:
        archive._write_all = write_all
    result = archive.run(spark, TOPIC, folder, registry=registry, file_records=50)
    again = archive.run(spark, TOPIC, folder, registry=registry)
    return {"resumed": result.resumed, "offsets": archived(folder, TOPIC), "again": again.rows}


def copied(spark: Any, registry: str, folder: Path, to: str) -> dict[str, int]:
    """A topic through two micro-batches and a shuffle into another one."""
    stream = spark.readStream.format("penstock").options(
        registry=registry, subscribe=TOPIC, startingOffsets="earliest", maxOffsetsPerTrigger="120"
    )
    rows = stream.load().select("value", "key", "tags").repartition(2)
    writer = rows.writeStream.format("penstock").options(registry=registry, checkpointLocation=f"{folder}/checkpoint")
    writer.trigger(availableNow=True).start(to).awaitTermination()
    return values(spark, registry, to)


def round(spark: Any, registry: str, store: Path, folder: Path, name: str) -> dict[str, Any]:
    """All of it. `store` is a broker's folder, `folder` one of this round's own, `name` marks its topics."""
    told: dict[str, Any] = {"copied": copied(spark, registry, folder, f"copied-{name}")}
    told["archive"] = cut_and_resumed(spark, registry, folder / "archive")
    bulk = spark.read.format("penstock-log").option("minPartitions", "3").load(str(store))
    told["bulk"] = sorted(map(list, bulk.groupBy("topic", "partition").count().collect()))
    counted = stats.run(spark, path=store, by=("topic", "tags"), window="all")
    told["stats"] = counted.rows
    told["live"] = stats.run(spark, (TOPIC,), registry=registry, window="all", by=("partition",)).messages
    seen = audit.run(spark, store, split_bytes=20_000)
    told["audit"] = [seen.ok, seen.records, seen.entries, seen.index_entries]
    made = reindex.run(spark, store, to=folder / "reindex", split_bytes=20_000)
    told["reindex"] = [made.records, made.entries, made.keys]
    told["queues"] = {
        str(path.relative_to(folder / "reindex")): path.read_bytes().hex()[:4000]
        for path in sorted((folder / "reindex" / "consumequeue").rglob("*"))
        if path.is_file()
    }
    hits = search.run(spark, path=store, tag="odd", body="body 7")
    told["search"] = [(hit.topic, hit.partition, hit.offset) for hit in hits.hits]
    told["archive search"] = len(search.run(spark, archive=folder / "archive", topic=TOPIC, tag="even").hits)
    for _ in range(2):
        again = replay.run(spark, archive=folder / "archive", renamed={TOPIC: f"replayed-{name}"}, registry=registry)
    told["replay"] = [again.rows, values(spark, registry, f"replayed-{name}")]
    told["redrive"] = redriven(spark, registry, folder, name)
    shutil.rmtree(folder)
    return told


def redriven(spark: Any, registry: str, folder: Path, name: str) -> Any:
    dead = spark.range(12).selectExpr(
        "cast(id as string) as value", "if(id % 2 = 0, 'even', 'odd') as tags",
        f"map('RETRY_TOPIC', 'redriven-{name}', 'ORIGIN_MESSAGE_ID', cast(id as string)) as properties",
    )  # fmt: skip
    dead.write.format("penstock").options(registry=registry).mode("append").save(f"%DLQ%group-{name}")
    asked: dict[str, Any] = {"registry": registry, "state": folder / "state", "dry_run": False}
    first = redrive.run(spark, f"group-{name}", tag="odd", **asked)
    second = redrive.run(spark, f"group-{name}", **asked)
    return [first.rows, second.rows, second.before, values(spark, registry, f"redriven-{name}")]


def main(master: str, registry: str, store: str, folder: str, name: str) -> None:
    warnings.simplefilter("ignore")
    from penstock.spark import session

    spark = session("rounds", master=master, quick=True, config=QUICK)
    print(json.dumps(round(spark, registry, Path(store), Path(folder), name)))


if __name__ == "__main__":
    main(*sys.argv[1:])
