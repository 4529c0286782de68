"""The sink with a real broker and a real Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from penstock.client.reader import LogReader
from penstock.spark.sessions import cause
from penstock.wire.record import iter_records

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore")]


def messages(registry: str, topic: str) -> list[Any]:
    found = []
    with LogReader(registry) as reader:
        for queue in reader.queues(topic):
            at, end = reader.offsets(queue, durable=False)
            while at < end:
                got = reader.fetch(queue, at, durable=False)
                found += list(iter_records(got.records, check=True))
                at = got.next_offset
    return found


def test_a_table_is_written_to_a_topic_once(spark: Any, registry: str) -> None:
    frame = spark.range(1000).selectExpr(
        "cast(id as string) as value", "concat('k', id % 7) as key", "if(id % 2 = 0, 'even', 'odd') as tags"
    )
    for _ in range(2):
        frame.repartition(3).write.format("penstock").options(registry=registry, jobId="thousand").mode("append").save(
            "sunk"
        )
    found = messages(registry, "sunk")
    assert sorted(int(m.body) for m in found) == list(range(1000))
    for m in found:
        assert m.properties["KEYS"] == f"k{int(m.body) % 7}"
        assert m.tags == ("odd" if int(m.body) % 2 else "even")
    queues = {
        key: {m.queue_id for m in found if m.properties["KEYS"] == key} for key in {m.properties["KEYS"] for m in found}
    }
    assert all(len(ids) == 1 for ids in queues.values())
    frame.write.format("penstock").option("registry", registry).mode("append").save("sunk")
    assert Counter(Counter(m.body for m in messages(registry, "sunk")).values()) == {2: 1000}
