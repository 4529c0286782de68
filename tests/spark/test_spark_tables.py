"""The archive's files in Delta and Iceberg tables, each offset once whatever is repeated; compaction keeps every row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from penstock.client.reader import MessageQueue
from penstock.errors import ConfigError
from penstock.spark.cli import spark as command
from penstock.spark.pipelines import archive, manifest, tables
from penstock.spark.planning import Range

QUEUE = MessageQueue("t", "broker-a", 0)
OTHER = MessageQueue("t", "broker-a", 1)


def write(folder: Path, *ranges: tuple[int, int], queue: MessageQueue = QUEUE) -> None:
    for start, end in ranges:
        path = manifest.file_of(folder, Range(queue, start, end))
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = {"offset": pa.array(range(start, end), pa.int64()), "value": [b"%d" % n for n in range(start, end)]}
        pq.write_table(pa.table(rows), path)


def offsets(folder: Path) -> list[int]:
    files = [manifest.file_of(folder, r) for r in manifest.archived(folder, "t")]
    return [n for path in files for n in pq.ParquetFile(path).read()["offset"].to_pylist()]


def test_neighbours_are_joined_and_gaps_stay(tmp_path: Path) -> None:
    write(tmp_path, (0, 5), (5, 9), (9, 12), (20, 25), (25, 26))
    write(tmp_path, (26, 30), queue=OTHER)
    assert tables.compact(tmp_path, "t", 9) == (4, 2)
    assert [(r.queue.queue_id, r.start, r.end) for r in manifest.archived(tmp_path, "t")] == [
        (0, 0, 9), (0, 9, 12), (0, 20, 26), (1, 26, 30),
    ]  # fmt: skip
    assert offsets(tmp_path) == [*range(12), *range(20, 26), *range(26, 30)]
    assert tables.compact(tmp_path, "t", 9) == (0, 0)


def test_a_killed_compaction_leaves_no_row_twice(tmp_path: Path) -> None:
    write(tmp_path, (0, 5), (5, 9), (0, 9))  # the joined file has its name, the small ones are still there
    tables.remove_contained(tmp_path, "t")
    assert offsets(tmp_path) == list(range(9))


def test_unknown_formats_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no table format 'orc'"):
        archive.run(None, "t", tmp_path, table="orc")  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore")
def test_a_delta_table_has_each_file_once(tmp_path: Path) -> None:
    pytest.importorskip("deltalake")
    write(tmp_path, (0, 5))
    write(tmp_path, (0, 3), queue=OTHER)
    assert tables.commit("delta", tmp_path, "t", {QUEUE: 5, OTHER: 3}) == 2
    write(tmp_path, (5, 9), (9, 12))
    assert tables.commit("delta", tmp_path, "t", {QUEUE: 9, OTHER: 3}) == 1  # the last one is not finished yet
    for _ in range(2):
        tables.commit("delta", tmp_path, "t", {QUEUE: 12, OTHER: 3})
    rows = tables.delta_table(tmp_path, "t").to_pyarrow_table()
    assert Counter(zip(rows["queue"].to_pylist(), rows["offset"].to_pylist(), strict=True)) == Counter(
        [*((0, n) for n in range(12)), *((1, n) for n in range(3))]
    )
    with pytest.raises(ConfigError, match="a Delta table lists the files of t"):
        tables.compact(tmp_path, "t", 100)
    assert tables.compact_delta(tmp_path, "t") == (3, 1)
    assert tables.commit("delta", tmp_path, "t", {QUEUE: 12, OTHER: 3}) == 0
    assert tables.delta_table(tmp_path, "t").to_pyarrow_table().num_rows == 15


@pytest.mark.filterwarnings("ignore")
def test_an_iceberg_table_has_each_file_once(tmp_path: Path) -> None:
    pytest.importorskip("pyiceberg.catalog.sql")
    write(tmp_path, (0, 5), (5, 9))
    for end, new in ((9, 2), (9, 0), (12, 1), (12, 0)):
        write(tmp_path, *(((9, 12),) if end == 12 else ()))
        assert tables.commit("iceberg", tmp_path, "t", {QUEUE: end}) == new
    with pytest.raises(ConfigError, match="an Iceberg table lists the files of t"):
        tables.compact(tmp_path, "t", 100)
    catalog = tables.iceberg_catalog(tmp_path)
    rows = catalog.load_table(tables.iceberg_name("t")).scan().to_arrow()
    catalog.close()
    assert sorted(rows["offset"].to_pylist()) == list(range(12))


@pytest.mark.spark
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_topic_goes_to_a_table(
    spark: Any, registry: str, publish: Callable[..., str], tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("deltalake" if kind == "delta" else "pyiceberg.catalog.sql")
    topic = publish(f"to-{kind}", 30, queues=2)
    asked: dict[str, Any] = {"registry": registry, "table": kind}
    with monkeypatch.context() as patch:  # killed when the files were there and the table did not know them
        patch.setattr(tables, "commit", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            archive.run(spark, topic, tmp_path, **asked)
    publish(topic, 10, queues=2, first=30)
    for _ in range(2):
        archive.run(spark, topic, tmp_path, **asked)
    if kind == "delta":
        rows = tables.delta_table(tmp_path, topic).to_pyarrow_table()
    else:
        catalog = tables.iceberg_catalog(tmp_path)
        rows = catalog.load_table(tables.iceberg_name(topic)).scan().to_arrow()
        catalog.close()
    assert Counter(int(value.rstrip(b".")) for value in rows["value"].to_pylist()) == Counter(range(40))
    words = ["compact", topic, "--archive", str(tmp_path), *(["--delta"] if kind == "delta" else ["--dry-run"])]
    done = CliRunner().invoke(command, words)
    assert done.exit_code == 0, done.output
    assert "4 files into 2" in done.output
