"""An archive's result: numbers for people and JSON, and where the next run begins."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import ConfigError
from penstock.spark.pipelines import archive
from penstock.spark.pipelines.archive import COLUMNS, ArchiveResult, File


def test_a_result_is_json() -> None:
    file = File("queue/part.parquet", "broker-a", 0, 0, 9, 10, 1_000)
    result = ArchiveResult("T", "/archive", 10, 1_000, 0.5, 0, False, [file], {"broker-a": {"0": 10}})
    found = json.loads(json.dumps(result.as_dict()))
    assert (found["files"][0]["last"], found["next"]["broker-a"]["0"]) == (9, 10)


def test_its_columns_are_those_of_the_source() -> None:
    from penstock.spark import schema

    assert set(COLUMNS) <= set(schema.BY_NAME)


@pytest.mark.parametrize(
    ("topic", "asked", "said"),
    [
        ("orders,users", {}, "no topic can be called 'orders,users'"),
        (" orders", {}, "no topic can be called"),
        ("orders", {"columns": ("offset", "offset")}, "column offset is named twice"),
        ("orders", {"columns": ("ofset",)}, "did you mean offset"),
    ],
)
def test_a_run_that_cannot_be_done_leaves_no_notes(
    topic: str, asked: dict[str, Any], said: str, tmp_path: Path
) -> None:
    """Two topics in one name were archived under notes of their own: what either had already, twice."""
    with pytest.raises(ConfigError, match=said):
        archive.run(None, topic, tmp_path / "to", registry="127.0.0.1:1", **asked)
    assert not (tmp_path / "to").exists()
