"""An archive's result: numbers for people and JSON, and where the next run begins."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import spark_putback

from penstock.errors import ConfigError
from penstock.spark.pipelines import archive
from penstock.spark.pipelines.archive import COLUMNS, ArchiveResult, File
from penstock.spark.read.planning import DataLoss


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


def test_a_broker_that_was_put_back_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its folder is replaced by a copy from before; what it stored anew below the noted offsets was left out without a word."""

    def archived(**asked: Any) -> int:
        return archive.run(None, spark_putback.TOPIC, tmp_path / "to", registry=broker.cluster.registry, **asked).rows

    notes = tmp_path / "to.penstock" / "put-back.json"
    with spark_putback.put_back(tmp_path) as broker:
        broker.send(range(5))
        broker.copy()
        broker.send(range(5, 10))
        assert archived() == 10
        begun = json.loads(notes.read_text())
        broker.put_back()
        broker.send(range(100, 110))
        with pytest.raises(DataLoss, match=r"up to offset 10, .* begins at offset 5"):
            archived()
        pending = [["broker-a", 0, 0, 10]]  # a run that was killed: its ranges were of the former log
        notes.write_text(json.dumps(begun | {"next": {}, "pending": pending}))
        with pytest.raises(DataLoss, match=r"up to offset 10, .* begins at offset 5"):
            archived()
        notes.write_text(json.dumps(begun))
        assert archived(fail_on_data_loss=False) == 5
        assert "begins at offset 5" in caplog.text
        assert archived() == 0
        del begun["stored"]  # notes of an older version
        notes.write_text(json.dumps(begun | {"next": {"broker-a": {"0": 15}}}))
        broker.send(range(110, 112))
        assert archived() == 2
