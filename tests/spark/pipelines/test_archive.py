"""An archive's result: numbers for people and JSON, and where the next run begins."""

from __future__ import annotations

import json

from penstock.spark.pipelines.archive import COLUMNS, ArchiveResult, File


def test_a_result_is_json() -> None:
    file = File("queue/part.parquet", "broker-a", 0, 0, 9, 10, 1_000)
    result = ArchiveResult("T", "/archive", 10, 1_000, 0.5, 0, False, [file], {"broker-a": {"0": 10}})
    found = json.loads(json.dumps(result.as_dict()))
    assert (found["files"][0]["last"], found["next"]["broker-a"]["0"]) == (9, 10)


def test_its_columns_are_those_of_the_source() -> None:
    from penstock.spark import schema

    assert set(COLUMNS) <= set(schema.BY_NAME)
