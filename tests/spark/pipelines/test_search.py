"""Search: the index and a scan find the same, each hit once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from spark_logs import copy, made, read_log, write_log
from spark_records import Record

from penstock.spark.pipelines import archive, search

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_index_and_a_scan_find_the_same(store: Path) -> None:
    for key in ("k77", "k9", "all", "nothing"):
        expected = sorted(
            (row["partition"], row["offset"])
            for row in read_log(store)
            if row["topic"] == "orders" and key in (row["keys"] or [])  # type: ignore[operator]
        )
        through = search.run(None, path=store, topic="orders", key=key)
        scanned = search.run(None, path=f"{store}/commitlog/0*0", topic="orders", key=key)
        assert through.indexed == len(expected)
        assert sorted((hit.partition, hit.offset) for hit in through.hits) == expected
        assert {(hit.partition, hit.offset) for hit in scanned.hits} <= set(expected)


def test_what_a_damaged_index_file_leads_to_is_scanned_for(store: Path, tmp_path: Path) -> None:
    """A file in the middle of the others: what lies between these is covered by none."""
    broken = copy(store, tmp_path / "broken")
    paths = sorted((broken / "index").iterdir())
    assert len(paths) > 2
    with open(paths[1], "r+b") as file:
        file.truncate(20)
    for n in range(0, 300, 7):
        key, topic = f"k{n}", "rare" if n % 9 == 0 else "orders"
        assert len(search.run(None, path=broken, topic=topic, key=key).hits) == 1, key


def test_search_by_tag_body_time_and_limit(tmp_path: Path) -> None:
    write_log(tmp_path, made(100))
    odd = search.run(None, path=tmp_path, tag="b", body="x" * 50)
    assert odd.hits
    assert all(hit.tags == "b" and len(hit.value) >= 50 for hit in odd.hits)
    some = search.run(None, path=tmp_path, since="1700000007000", until="1700000014000")
    assert [hit.timestamp for hit in some.hits] == [1_700_000_000_000 + n * 700 for n in range(10, 20)]
    few = search.run(None, path=tmp_path, limit=7)
    assert (len(few.hits), few.more) == (7, True)
    json.dumps(few.as_dict())


@pytest.mark.spark
@pytest.mark.filterwarnings("ignore")
def test_log_and_archive_overlap_and_each_hit_is_once(
    spark: SparkSession, registry: str, publish: Callable[..., str], tmp_path: Path
) -> None:
    publish("seam", 40, queues=2)
    archive.run(spark, "seam", tmp_path, registry=registry)
    publish("seam", 40, queues=2, first=40)
    log = tmp_path / "log"
    with_rows = spark.read.format("penstock").option("registry", registry).load("seam").where("offset >= 10").collect()
    write_log(log, [
        Record(r["offset"], bytes(r["value"]), r["partition"], b"seam", b"KEYS\1" + bytes(r["key"]),
               stored_ms=round(r["timestamp"].timestamp() * 1000)) for r in with_rows
    ])  # fmt: skip
    both = search.run(spark, path=log, archive=tmp_path, topic="seam")
    assert Counter(int(hit.value.rstrip(b".")) for hit in both.hits) == Counter(range(80))
    one = search.run(spark, path=log, archive=tmp_path, key="k3")
    assert [(hit.value[:1], hit.as_dict()["key"]) for hit in one.hits] == [(b"3", "k3")]
