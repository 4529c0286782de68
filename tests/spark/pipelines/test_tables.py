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

from penstock.cli.spark import spark as command
from penstock.client.routes import MessageQueue
from penstock.errors import ConfigError
from penstock.spark.pipelines import archive, manifest, tables
from penstock.spark.read.planning import Range

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


def test_files_of_a_killed_archive_run_are_not_joined(tmp_path: Path) -> None:
    """The next run looks for them under their names, and would write them again beside the joined one."""
    write(tmp_path, (0, 5), (5, 9), (9, 12), (12, 15))
    manifest.Manifest(
        tmp_path, "t", {QUEUE: 9}, [Range(QUEUE, 9, 12), Range(QUEUE, 12, 15), Range(QUEUE, 15, 20)]
    ).save()
    assert tables.compact(tmp_path, "t", 100) == (2, 1)
    assert [(r.start, r.end) for r in manifest.archived(tmp_path, "t")] == [(0, 9), (9, 12), (12, 15)]


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


@pytest.mark.filterwarnings("ignore")
def test_topics_whose_iceberg_tables_had_the_same_name(tmp_path: Path) -> None:
    """`a-b` and `a_b` share no table: the second one's files would be none, being done under the name of the first."""
    pytest.importorskip("pyiceberg.catalog.sql")
    one, other = (MessageQueue(topic, "broker-a", 0) for topic in ("a-b", "a_b"))
    for queue in (one, other):
        write(tmp_path, (0, 5), queue=queue)
    assert tables.commit("iceberg", tmp_path, "a-b", {one: 5}) == 1
    with pytest.raises(ConfigError, match=r"penstock\.a_b is the Iceberg table of topic a-b"):
        tables.commit("iceberg", tmp_path, "a_b", {other: 5})
    assert tables.commit("iceberg", tmp_path, "a-b", {one: 5}) == 0


def counted(reader: str, kind: str, folder: Path) -> int:
    """How many rows a reader finds, given nothing but the root."""
    if reader == "polars":
        polars = pytest.importorskip("polars", reason="polars is not installed here: pip install polars")
        frame = polars.scan_delta(str(folder / "t")) if kind == "delta" else polars.scan_parquet(str(folder))
        return int(frame.collect().select(polars.len()).item())
    if reader == "duckdb":
        duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed here: pip install duckdb")
        return int(duckdb.sql(f"SELECT count(*) FROM '{folder}/**/*.parquet'").fetchall()[0][0])
    if reader == "deltalake":
        return int(tables.delta_table(folder, "t").to_pyarrow_table().num_rows) if kind == "delta" else 9
    import pyarrow.dataset

    return int(pyarrow.dataset.dataset(folder, format="parquet", partitioning="hive").count_rows())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["parquet", "delta", "iceberg"])
@pytest.mark.parametrize("reader", ["pyarrow", "deltalake", "polars", "duckdb"])
def test_readers_take_an_archive_by_its_root(tmp_path: Path, kind: str, reader: str) -> None:
    folder = tmp_path / "archive"
    if needed := {"delta": "deltalake", "iceberg": "pyiceberg.catalog.sql"}.get(kind):
        pytest.importorskip(needed)
    if kind == "delta":
        (folder / "t").mkdir(parents=True)
    with manifest.locked(folder, "t"):
        state = manifest.Manifest(folder, "t", {}, [Range(QUEUE, 0, 5), Range(OTHER, 0, 4)])
        state.save()
        write(folder, (0, 5))
        write(folder, (0, 4), queue=OTHER)
        tables.commit(kind, folder, "t", {QUEUE: 5, OTHER: 4})
    assert counted(reader, kind, folder) == 9
    if kind == "iceberg":
        assert (tmp_path / "archive.penstock" / "iceberg.db").exists()
    if kind != "delta":  # what readers that take a folder as it is ask for: in the middle of a run, too
        assert {p.suffix for p in folder.rglob("*") if p.is_file() and p.stat().st_size} == {".parquet"}
    else:  # a reader takes `topic=t` in the place of a table for a column of it
        assert "=" not in str(Path(tables.delta_table(folder, "t").table_uri).name)


def test_a_delta_table_of_an_older_version_goes_on_in_its_place(tmp_path: Path) -> None:
    pytest.importorskip("deltalake")
    write(tmp_path, (0, 5))
    assert tables.commit("delta", tmp_path, "t", {QUEUE: 5}) == 1
    assert (tmp_path / "topic=t" / "_delta_log").is_dir()
    write(tmp_path, (5, 9))
    assert tables.commit("delta", tmp_path, "t", {QUEUE: 9}) == 1
    assert sorted(tables.delta_table(tmp_path, "t").to_pyarrow_table()["offset"].to_pylist()) == list(range(9))


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
    root = manifest.root_of(tmp_path, topic)
    assert root.name == (topic if kind == "delta" else f"topic={topic}")
    assert spark.read.parquet(str(root)).count() == 40
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
