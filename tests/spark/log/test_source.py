"""The bulk reader: the same rows from any cutting, from the kernel, its numpy twin and a plain reader, whatever is damaged."""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
import sys
import tempfile
import zlib
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spark_bulk import NAMES, read
from spark_logs import fill_store, read_log, write_log
from spark_records import Record
from spark_strategies import records
from store_parts import make, put, work

from penstock.disk.files import Files
from penstock.errors import ConfigError, Corrupt, StoreError
from penstock.log import checkpoint
from penstock.spark import schema
from penstock.spark.kernel import batches, decode, numpydecode
from penstock.spark.log import files as logfiles
from penstock.spark.log import source as logsource
from penstock.spark.log.options import OPTIONS, parse
from penstock.spark.pipelines import audit
from penstock.spark.read import planning

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DECODERS = [pytest.param(decode, id="kernel"), pytest.param(numpydecode, id="numpy")]
SPLITS = (1, 2, 3, 7, 64, 1000)


def many(count: int) -> list[Record]:
    return [
        Record(
            n // 3, b"%d" % n * (n % 40), n % 3, b"orders" if n % 5 else b"rare", b"TAGS\1" + (b"a" if n % 2 else b"b")
        )
        for n in range(count)
    ]


def expected(store: Path) -> list[dict[str, Any]]:
    """As the plain reader has it, damage with nulls for what it cannot know."""
    return [{**dict.fromkeys(NAMES), **row} for row in read_log(store)]


def without_bytes(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**row, "value": None} if row["topic"] is None else row for row in rows]


@pytest.mark.parametrize("splits", SPLITS)
def test_any_number_of_splits_gives_the_same_rows_in_order(tmp_path: Path, splits: int) -> None:
    write_log(tmp_path, many(500))
    rows = read(tmp_path, splits)
    assert rows == expected(tmp_path)
    assert len(rows) == 500
    for queue in range(3):
        offsets = [row["offset"] for row in rows if row["partition"] == queue]
        assert offsets == sorted(offsets)


@pytest.mark.parametrize("kernel", DECODERS)
@settings(max_examples=40, deadline=None)
@given(made=records(), splits=st.sampled_from((*SPLITS[:-1], 13)), data=st.data())
def test_random_logs_read_alike(kernel: Any, made: list[Record], splits: int, data: Any) -> None:
    """Flags, IPv6 hosts, halves of transactions, compressed bodies, blanks; then bits flipped and the tail torn."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches, "kernel", kernel)
        window = data.draw(st.sampled_from((400, 1 << 20)))
        patch.setattr(batches, "WINDOW_BYTES", window)
        patch.setattr(batches, "BATCH_BYTES_MAX", window)
        store = Path(folder)
        write_log(store, made, size=data.draw(st.sampled_from((700, 2048))))
        paths = sorted((store / "commitlog").iterdir())
        for _ in range(data.draw(st.integers(0, 2))):
            path = data.draw(st.sampled_from(paths))
            raw = bytearray(path.read_bytes())
            raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
            path.write_bytes(raw)
        try:
            want = expected(store)
        except (zlib.error, ValueError):
            return  # the flipped bit is in a compressed body: another test's
        if any((row["sysFlag"] or 0) & 0x701 > 1 for row in want):
            return  # it names another codec for the body
        assert without_bytes(read(store, splits, onBadRecord="row")) == want


@pytest.mark.parametrize("kernel", DECODERS)
@pytest.mark.parametrize("stored_ms", [-(1 << 63), (1 << 63) - 2])
def test_a_moment_that_cannot_be_is_no_reason_to_leave_a_row_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernel: Any, stored_ms: int
) -> None:
    """A bit that was flipped: nobody had asked for messages of some time only, and there were fewer rows, and no error."""
    monkeypatch.setattr(batches, "kernel", kernel)
    first, second, third = many(3)
    write_log(tmp_path, (first, replace(second, stored_ms=stored_ms), third))
    assert [row["partition"] for row in read(tmp_path)] == [0, 1, 2]


def test_damage_fails_is_skipped_or_is_a_row(tmp_path: Path) -> None:
    stored = write_log(tmp_path, many(20), size=1 << 16)
    path = tmp_path / "commitlog" / ("0" * 20)
    raw = bytearray(path.read_bytes())
    for n in (3, 4):
        raw[stored[n].physical + 4] ^= 1  # the magic numbers of two neighbours
    raw[stored[9].physical + 90] ^= 1  # a body
    path.write_bytes(raw)
    with pytest.raises(Corrupt, match=f"at byte {stored[3].physical}: no record"):
        read(tmp_path)
    assert len(read(tmp_path, onBadRecord="skip")) == 18
    assert len(read(tmp_path, onBadRecord="skip", verify="crc")) == 17
    (damaged, body) = (row for row in read(tmp_path, onBadRecord="row") if not row["crcOk"])
    assert (damaged["physicalOffset"], damaged["size"]) == (stored[3].physical, stored[5].physical - stored[3].physical)
    assert damaged["value"] == raw[stored[3].physical : stored[5].physical]
    assert (body["offset"], body["partition"]) == (3, 0)
    raw[stored[3].physical + 4] ^= 1
    raw[stored[4].physical + 4] ^= 1
    path.write_bytes(raw)
    with pytest.raises(Corrupt, match=f"at byte {stored[9].physical}: the body has another checksum"):
        read(tmp_path, verify="crc")


def test_no_schema_rules_out_the_nulls_of_damage(tmp_path: Path) -> None:
    types = pytest.importorskip("pyspark.sql.types")
    write_log(tmp_path, many(3))
    topic = types.StructType([types.StructField("topic", types.StringType(), False)])
    for options in ({"onBadRecord": "skip"}, {"onBadRecord": "row", "topics": "orders"}):
        logsource.LogSource({"path": str(tmp_path), **options}).reader(topic)
    with pytest.raises(ConfigError, match="column topic can be null, in rows of bytes"):
        logsource.LogSource({"path": str(tmp_path), "onBadRecord": "row"}).reader(topic)


def test_a_compressed_body_that_is_broken(tmp_path: Path) -> None:
    fine = Record(0, zlib.compress(b"fine"), sys_flag=1)
    write_log(tmp_path, [fine, replace(fine, offset=1, body=fine.body[:-2])])
    with pytest.raises(Corrupt, match="compressed body"):
        read(tmp_path)
    assert [row["offset"] for row in read(tmp_path, onBadRecord="skip")] == [0]
    assert [row["value"] for row in read(tmp_path, onBadRecord="row")] == [b"fine", fine.body[:-2]]


def test_selection_by_topic_tag_key_and_time(tmp_path: Path) -> None:
    stored = write_log(tmp_path, [replace(r, stored_ms=1000 + n) for n, r in enumerate(many(100))])
    for asked, wanted in (
        ({"topics": "rare"}, lambda n, r: r.topic == b"rare"),
        ({"topics": "rare,orders", "tags": "a || c"}, lambda n, r: n % 2),
        ({"startingTimestamp": 1020, "endingTimestamp": 1050}, lambda n, r: 20 <= n < 50),
    ):
        found = read(tmp_path, 7, **asked)
        assert [row["physicalOffset"] for row in found] == [r.physical for n, r in enumerate(stored) if wanted(n, r)]


def test_files_folders_patterns_and_renamed_copies_read_alike(tmp_path: Path) -> None:
    write_log(tmp_path / "store", many(100))
    whole = read(tmp_path / "store")
    assert read(tmp_path / "store" / "commitlog") == whole
    assert read(f"{tmp_path}/st*/commitlog/0*") == whole
    paths = sorted((tmp_path / "store" / "commitlog").iterdir())
    assert [row for path in paths for row in read(path)] == whole
    copy = tmp_path / "second.bin"
    copy.write_bytes(paths[1].read_bytes())
    assert read(copy) == read(paths[1])
    with pytest.raises(ConfigError, match="no commit-log segments"):
        read(tmp_path / "nothing")


def test_a_segment_that_was_dropped_since_is_told_with_what_to_do(tmp_path: Path) -> None:
    """As by the retention of a broker at work; it was an error of Python's."""
    write_log(tmp_path, many(100))
    options = parse({"path": str(tmp_path)})
    parts = [part for run in logsource.plan(options, logfiles.find(options.path)) for part in run]
    gone = min((tmp_path / "commitlog").iterdir())
    gone.unlink()
    with pytest.raises(StoreError, match=f"^segment {gone} is gone since it was listed.*: load again$"):
        list(logsource.batches(options, schema.arrow_of(("value",)), parts))


def test_a_file_that_is_no_segment_is_damage(tmp_path: Path) -> None:
    """It had no rows, as a log without a message: a compressed copy, one under another segment's name, any other file."""
    write_log(tmp_path / "store", many(100))
    paths = sorted((tmp_path / "store" / "commitlog").iterdir())
    raw = paths[1].read_bytes()
    folder = tmp_path / "copies"
    for name, data in (
        ("copy.gz", gzip.compress(raw)),
        (f"{1 << 40:020d}", raw),
        ("notes.txt", b"to be done\n"),
        ("long.txt", b"to be done\n" * 9),
    ):
        folder.mkdir()
        (folder / name).write_bytes(data)
        with pytest.raises(Corrupt, match="no record"):
            read(folder / name)
        shutil.rmtree(folder)
    for cut_short in (b"", bytes(4096), raw[:50] + bytes(4046), raw[:60]):
        (tmp_path / paths[1].name).write_bytes(cut_short)
        assert read(tmp_path / paths[1].name) == []


def test_a_segment_made_ahead_of_its_use_is_no_end(tmp_path: Path, store: Path) -> None:
    for folder in (tmp_path / "copy", tmp_path / "ours"):
        if folder.name == "copy":
            write_log(folder, many(50))
        else:
            shutil.copytree(store, folder)
        before = read(folder)
        last = max((folder / "commitlog").iterdir())
        size = last.stat().st_size
        (last.parent / f"{int(last.name) + size:020d}").write_bytes(bytes(size))
        assert read(folder) == before
    assert audit.run(None, tmp_path / "ours").ok


def test_a_record_longer_than_the_window_and_zeros_in_bodies(tmp_path: Path) -> None:
    made = [Record(0, b"x" * 3_000_000), Record(1, bytes(9_000_000)), Record(2, b"end")]
    write_log(tmp_path, made, size=1 << 25)
    for splits in (1, 5):
        assert [row["size"] for row in read(tmp_path, splits, ("size",))] == [len(r.encode()) for r in made]


def test_options_are_checked() -> None:
    with pytest.raises(ConfigError, match="did you mean onBadRecord"):
        parse({"path": "x", "onBadRecords": "skip"})
    with pytest.raises(ConfigError, match="no folder"):
        parse({})
    with pytest.raises(ConfigError, match="useConsumeQueue needs topics"):
        parse({"path": "x", "useConsumeQueue": "true"})
    assert parse({"PATH": "x", "SPLITBYTES": "1k"}).split_bytes == 1024
    assert len({option.name.lower() for option in OPTIONS}) == len(OPTIONS)


# -- with Spark, and with the files of a real broker


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder our own broker wrote: three topics, one of them rare."""
    return fill_store(tmp_path_factory.mktemp("bulk") / "store")


@pytest.mark.spark
def test_spark_reads_a_store_alike_at_any_split(spark: SparkSession, store: Path) -> None:
    plain = [(row["topic"], row["partition"], row["offset"], row["value"]) for row in read_log(store)]
    for splits in (1, 7):
        frame = spark.read.schema("topic string, partition int, offset bigint, value binary").format("penstock-log")
        rows = frame.option("minPartitions", splits).load(str(store)).collect()
        assert [(*row[:3], bytes(row[3])) for row in rows] == plain


@pytest.mark.spark
def test_spark_pushes_a_topic_down(spark: SparkSession, store: Path) -> None:
    frame = spark.read.format("penstock-log").load(str(store))
    counts = {row["topic"]: row["count"] for row in frame.groupBy("topic").count().collect()}
    assert frame.where("topic = 'rare'").count() == counts["rare"]
    assert frame.where("topic in ('rare', 'none')").count() == counts["rare"]


@pytest.mark.parametrize("through", ["true", "false"])
def test_small_splits_make_no_more_partitions_than_a_driver_can_hold(
    store: Path, through: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through the consume queues there was a mark for each byte, however few messages there were."""
    monkeypatch.setattr(planning, "PARTITIONS_MAX", 5)
    options = parse({"path": str(store), "topics": "rare", "useConsumeQueue": through, "splitBytes": "1"})
    with pytest.raises(ConfigError, match="Spark partitions: 5 at most"):
        logsource.plan(options, logfiles.find(options.path))


def test_consume_queues_are_read_in_as_many_partitions_as_asked_for(store: Path) -> None:
    """One for each queue there were, whatever was asked for."""
    options = parse({"path": str(store), "topics": "rare", "useConsumeQueue": "true", "minPartitions": "7"})
    (runs, *_) = logsource._through_queues(options, logfiles.find(options.path)) or [[]]
    assert len(runs) >= 7
    assert all(a.until == b.first for a, b in pairwise(runs) if a.queue == b.queue)
    whole = parse({"path": str(store), "topics": "rare", "useConsumeQueue": "true"})
    (queues, *_) = logsource._through_queues(whole, logfiles.find(whole.path)) or [[]]
    assert len(queues) < 7
    assert sum(one.until - one.first for one in runs) == sum(one.until - one.first for one in queues)


def test_consume_queues_lead_to_the_same_rows(store: Path) -> None:
    walked = read(store, topics="rare", useConsumeQueue="false", names=(*NAMES, "segment"))
    through = read(store, 3, topics="rare", useConsumeQueue="true", names=(*NAMES, "segment"))
    assert len({row["segment"] for row in walked}) > 1
    key = lambda row: (row["partition"], row["offset"])  # noqa: E731
    assert sorted(through, key=key) == sorted(walked, key=key)
    options = parse({"path": str(store), "topics": "rare"})
    assert any(
        isinstance(one, logsource.Entries) for run in logsource.plan(options, logfiles.find(str(store))) for one in run
    )


def test_consume_queues_that_lack_entries_are_not_gone_by(tmp_path: Path) -> None:
    """A folder that was copied while its broker worked: of one topic the queues were copied a while before all else."""
    store = make(tmp_path / "store")
    store.open()
    for n in range(600):
        put(store, b"%d" % n, b"rare" if n % 20 == 0 else b"orders", 0)
        if n == 300:
            work(store)
            shutil.copytree(tmp_path / "store", tmp_path / "before")
    work(store)
    shutil.copytree(tmp_path / "store", tmp_path / "copy")
    store.close()
    shutil.rmtree(tmp_path / "copy" / "consumequeue" / "rare")
    shutil.copytree(tmp_path / "before" / "consumequeue" / "rare", tmp_path / "copy" / "consumequeue" / "rare")
    for folder in ("copy", "store"):
        rows = read(tmp_path / folder, topics="rare")
        assert sorted(int(row["value"]) for row in rows) == list(range(0, 600, 20)), folder
    with pytest.raises(ConfigError, match="do not have all"):
        read(tmp_path / "copy", topics="rare", useConsumeQueue="true")
    (tmp_path / "copy" / "checkpoint").unlink()  # as in RocketMQ's folders, which do not say how many entries there are
    assert (tmp_path / "copy" / "abort").exists()
    assert len(read(tmp_path / "copy", topics="rare")) == 30


def test_what_the_queues_may_lack_behind_a_crash_is_walked(tmp_path: Path) -> None:
    """The queues are durable up to the checkpoint's mark: behind it one may have entries, and another have lost its own."""
    store = make(tmp_path / "store")
    store.open()
    for n in range(400):
        put(store, b"%d" % n, b"rare" if n % 20 == 0 else b"orders", 0)
    work(store)
    shutil.copy(tmp_path / "store" / "checkpoint", tmp_path / "mark")
    shutil.copytree(tmp_path / "store" / "consumequeue" / "rare", tmp_path / "rare")
    for n in range(400, 600):
        put(store, b"%d" % n, b"rare" if n % 20 == 0 else b"orders", 0)
    work(store)
    store.close()
    mark = checkpoint.newest((tmp_path / "mark").read_bytes())[0]
    assert mark is not None
    file = checkpoint.CheckpointFile(tmp_path / "store" / "checkpoint", Files())
    now = file.load()
    assert now is not None
    assert mark.derived < now.durable
    file.write(msgspec.structs.replace(now, clean=False, derived=mark.derived, entries=mark.entries))
    file.close()
    shutil.rmtree(tmp_path / "store" / "consumequeue" / "rare")
    shutil.copytree(tmp_path / "rare", tmp_path / "store" / "consumequeue" / "rare")
    for through in ("auto", "true"):
        rows = read(tmp_path / "store", topics="rare", useConsumeQueue=through)
        assert sorted(int(row["value"]) for row in rows) == list(range(0, 600, 20)), through


def test_the_entry_module_of_the_bulk_reader_needs_nothing_but_pyspark() -> None:
    blocked = "import sys; sys.modules.update(dict.fromkeys(['penstock', 'pyarrow', 'numpy', 'msgspec']))"
    found = "import pyspark_penstock_log; assert pyspark_penstock_log.DefaultSource.name() == 'penstock-log'"
    root = str(Path(logsource.__file__).parents[3])
    subprocess.run([sys.executable, "-c", f"{blocked}; {found}"], check=True, env={**os.environ, "PYTHONPATH": root})


def test_the_tables_of_the_page_are_the_code() -> None:
    from penstock.spark import pages

    page = (Path(__file__).parents[3] / "docs" / "spark.md").read_text()
    assert pages.rewritten(page) == page, "python -m penstock.spark.pages docs/spark.md"
