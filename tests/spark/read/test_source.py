"""The readers without a JVM: what they plan and what a task reads, against a cluster in memory."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    Not,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows, ReadMinRows
from pyspark.sql.types import LongType, StringType, StructField, StructType
from spark_fakes import Log

from penstock.client.routes import MessageQueue
from penstock.errors import BrokerRefused, ConfigError, NoRoute, PenstockError, TimedOut
from penstock.spark.read import planning, source
from penstock.spark.read.localfiles import Segments
from penstock.spark.read.planning import DataLoss, Range
from penstock.spark.read.source import FilteringReader, RangePartition, Source

A0, A1, B0 = MessageQueue("t", "a", 0), MessageQueue("t", "a", 1), MessageQueue("t", "b", 0)
TWO = StructType([StructField("tags", StringType()), StructField("offset", LongType())])


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    made = Log()
    made.put(A0, 10)
    made.put(A1, 4)
    monkeypatch.setattr(source, "connection", lambda options: made)
    source._files.clear()
    monkeypatch.setattr(source, "FLUSH_WAIT_S", 0)
    monkeypatch.setattr(source.time, "sleep", lambda seconds: None)
    return made


def read(reader: Any, partitions: Any = None) -> list[tuple[int, list[int]]]:
    found = []
    for part in reader.partitions() if partitions is None else partitions:
        offsets = [n for batch in reader.read(part) for n in batch.column("offset").to_pylist()]
        found.append((part.range.queue.queue_id, offsets))
    return found


def reader(**given: str) -> Any:
    return Source({"subscribe": "t", "pushdown": "true", **given}).reader(TWO)


def new_stream(**given: str) -> Any:
    options = {"subscribe": "t", **given}
    return Source({name: text for name, text in options.items() if text}).stream_reader(TWO)


def stream(**given: str) -> Any:
    return new_stream(**{"startingOffsets": "earliest", **given})


# -- batch


def test_a_batch_is_all_that_is_durable_at_load(log: Log) -> None:
    log.durable[A0] = 7
    loaded = Source({"subscribe": "t"})
    log.durable[A0] = 9
    assert read(loaded.reader(TWO)) == [(0, list(range(7))), (1, [0, 1, 2, 3])]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("endingOffsets", "latest"),
        ("endingOffsets", '{"t": {"0": 3}}'),
        ("endingTimestamp", "1"),
        ("endingOffsetsByTimestamp", '{"t": {"0": 3}}'),
    ],
)
def test_a_stream_has_no_end(log: Log, option: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"{option} is for batch reads: a stream does not end"):
        new_stream(**{option: value})


def test_a_batch_that_is_to_end_before_it_begins_is_refused(log: Log) -> None:
    """It gave no rows, as if there were none."""
    with pytest.raises(ConfigError, match=r"t queue 0 at a .* offset 7 .* to 3 "):
        reader(startingOffsets='{"t": {"0": 7}}', endingOffsets='{"t": {"0": 3}}')
    assert read(reader(startingOffsets='{"t": {"0": 7}}', endingOffsets='{"t": {"0": 7, "1": 0}}')) == []
    assert read(reader(startingOffsets='{"t": {"0": 7}}', endingOffsets='{"t": {"0": 9, "1": 0}}')) == [(0, [7, 8])]


def test_a_batch_reads_queues_that_were_added_a_moment_ago(log: Log) -> None:
    log.keeps_routes = True
    assert len(read(reader())) == 2
    log.put(MessageQueue("t", "b", 0), 3)
    assert read(reader()) == [(0, list(range(10))), (1, list(range(4))), (0, [0, 1, 2])]


def test_a_batch_waits_for_what_is_being_flushed(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    log.durable[A0] = 7
    monkeypatch.setattr(source, "FLUSH_WAIT_S", 60)
    monkeypatch.setattr(source.time, "sleep", lambda seconds: log.durable.clear())
    assert read(reader())[0] == (0, list(range(10)))


def test_a_projection_has_the_columns_asked_for_in_their_order(log: Log) -> None:
    made = reader()
    (batch, *_) = made.read(made.partitions()[0])
    assert batch.schema.names == ["tags", "offset"]
    assert batch.to_pylist()[:2] == [{"tags": "even", "offset": 0}, {"tags": "odd", "offset": 1}]
    with pytest.raises(ConfigError, match="offset is bigint"):
        Source({"subscribe": "t"}).reader(StructType([StructField("offset", StringType())]))
    with pytest.raises(ConfigError, match="did you mean offset"):
        Source({"subscribe": "t"}).reader(StructType([StructField("ofset", LongType())]))


@pytest.mark.parametrize(
    "option", [{"columns": "offset,tags"}, {"includeHeaders": "true"}, {"includeMetadata": "true"}]
)
def test_a_schema_beside_options_that_say_other_columns_is_refused(log: Log, option: dict[str, str]) -> None:
    made = Source({"subscribe": "t", **option})
    for read_as in (made.reader, made.stream_reader):
        with pytest.raises(ConfigError, match="the schema has the columns tags, offset, and the options"):
            read_as(TWO)
    same = Source({"subscribe": "t", "columns": "tags,offset"})
    assert read(same.reader(TWO)) == [(0, list(range(10))), (1, [0, 1, 2, 3])]


def test_a_table_tells_of_options_that_are_for_streams(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    given = {"maxOffsetsPerTrigger": "5", "commitOffsetsToGroup": "g"}
    assert read(reader(**given)) == [(0, list(range(10))), (1, [0, 1, 2, 3])]
    stream(**given)
    assert [r.getMessage() for r in caplog.records] == [
        "maxOffsetsPerTrigger, commitOffsetsToGroup: for streams, a table does without"
    ]


def test_an_engine_that_prunes_columns_gets_only_those(log: Log) -> None:
    made = reader()
    made.pruneColumns(StructType([StructField("offset", LongType())]))
    assert next(made.read(made.partitions()[0])).schema.names == ["offset"]


def test_the_entry_module_needs_nothing_but_pyspark() -> None:
    blocked = "import sys; sys.modules.update(dict.fromkeys(['penstock', 'pyarrow', 'numpy', 'msgspec']))"
    found = "import pyspark_penstock; assert pyspark_penstock.DefaultSource.name() == 'penstock'"
    root = str(Path(source.__file__).parents[3])
    subprocess.run([sys.executable, "-c", f"{blocked}; {found}"], check=True, env={**os.environ, "PYTHONPATH": root})


def test_no_partition_reads_nothing(log: Log) -> None:
    from pyspark.sql.datasource import InputPartition

    assert list(reader().read(InputPartition(None))) == []


def test_filters_cut_what_is_read(log: Log) -> None:
    made = reader()
    assert isinstance(made, FilteringReader)
    filters = [
        EqualTo(("partition",), 0),
        GreaterThan(("offset",), 2),
        LessThan(("offset",), 8),
        IsNotNull(("offset",)),
    ]
    assert list(made.pushFilters(filters)) == []
    assert read(made) == [(0, [3, 4, 5, 6, 7])]


def test_filters_on_time_narrow_and_are_checked_again(log: Log) -> None:
    from datetime import UTC, datetime

    at = lambda ms: datetime.fromtimestamp(ms / 1000, UTC)  # noqa: E731
    made = reader()
    filters = [GreaterThanOrEqual(("timestamp",), at(1003)), LessThan(("timestamp",), at(1006))]
    assert list(made.pushFilters(filters)) == filters
    assert read(made) == [(0, [3, 4, 5, 6]), (1, [3])]


def test_filters_on_tags_go_to_the_broker_and_are_compared_as_text(log: Log) -> None:
    made = reader()
    assert list(made.pushFilters([In(("tags",), ("odd", "third"))])) == []
    assert read(made) == [(0, [1, 3, 5, 7, 9]), (1, [1, 3])]
    assert {tags for *_, tags in log.fetches} == {"odd || third"}
    both = reader(tags="even")
    assert list(both.pushFilters([EqualTo(("tags",), "odd")])) == []
    assert read(both) == []


def test_filters_that_are_not_ours_are_handed_back(log: Log) -> None:
    filters = [Not(EqualTo(("offset",), 3)), EqualTo(("key",), b"k"), EqualTo(("tags",), "a|b"), IsNotNull(("tags",))]
    filters += [EqualTo(("tags",), "odd "), In(("tags",), ("odd", " even"))]  # blanks would be cut off on the way
    made = reader()
    assert list(made.pushFilters(filters)) == filters
    assert len(read(made)[0][1]) == 10


def test_without_pushdown_the_reader_has_no_filters(log: Log) -> None:
    assert not isinstance(Source({"subscribe": "t"}).reader(TWO), FilteringReader)


def test_filters_are_taken_by_themselves_where_spark_keeps_them_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "asked_by_pushdown", lambda: True)
    monkeypatch.delattr(DataSourceReader, "pushLimit", raising=False)  # as of Spark 4.3
    assert [source.takes_filters(option) for option in ("auto", "true", "false")] == [False, True, False]
    monkeypatch.setattr(DataSourceReader, "pushLimit", None, raising=False)
    assert [source.takes_filters(option) for option in ("auto", "true", "false")] == [True, True, False]
    monkeypatch.setattr(source, "asked_by_pushdown", lambda: False)
    assert not source.takes_filters("auto")


# -- reading a range


def part(queue: MessageQueue, start: int, end: int) -> RangePartition:
    return RangePartition(Range(queue, start, end))


def test_a_range_is_read_in_pages(log: Log) -> None:
    log.page = 3
    assert read(reader(), [part(A0, 1, 9)]) == [(0, list(range(1, 9)))]
    assert [(at, most) for _, at, most, _ in log.fetches] == [(1, 8), (4, 5), (7, 2)]


def test_lost_offsets_fail_or_leave_what_is_left_of_the_range(log: Log) -> None:
    log.drop(A0, 4)
    with pytest.raises(DataLoss, match="offsets 2 to 4"):
        read(reader(), [part(A0, 2, 8)])
    lenient = reader(failOnDataLoss="false")
    assert read(lenient, [part(A0, 2, 8)]) == [(0, [4, 5, 6, 7])]
    assert read(lenient, [part(A0, 0, 3)]) == [(0, [])]
    log.records[A1] = []
    with pytest.raises(DataLoss):
        read(reader(), [part(A1, 0, 4)])
    assert read(lenient, [part(A1, 0, 4)]) == [(1, [])]


def test_offsets_of_a_topic_that_was_deleted_are_lost(log: Log) -> None:
    """They were planned, and stand in a checkpoint: with failOnDataLoss=false the query goes on without them."""
    log.put(MessageQueue("u", "a", 0), 5)
    strict, lenient = reader(subscribe="t,u"), reader(subscribe="t,u", failOnDataLoss="false")
    parts = strict.partitions()
    del log.records[MessageQueue("u", "a", 0)]
    log.fail = [BrokerRefused(17, "topic[u] not exist")]
    with pytest.raises(DataLoss, match="offsets 0 to 5 of u queue 0 at a are gone: the queue was deleted"):
        read(strict, parts[-1:])
    log.fail = [NoRoute("u")]
    assert read(lenient, parts[-1:]) == [(0, [])]
    log.fail = [NoRoute("t"), TimedOut("")]  # this one is there: its broker was away
    assert read(lenient, parts[:1]) == [(0, list(range(10)))]


def test_errors_that_may_pass_are_tried_again(log: Log) -> None:
    log.fail = [TimedOut("late"), TimedOut("late")]
    assert read(reader(), [part(A0, 0, 2)]) == [(0, [0, 1])]
    log.fail = [TimedOut("late")] * 3
    with pytest.raises(TimedOut):
        read(reader(fetchRetries="2"), [part(A0, 0, 2)])


def test_a_broker_that_does_not_move_on_is_an_error(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "fetch", lambda queue, at, **_: planning_stuck(at))
    with pytest.raises(PenstockError, match="does not go on"):
        read(reader(), [part(A0, 0, 2)])


def planning_stuck(at: int) -> Any:
    from penstock.client.reader import Fetched

    return Fetched(0, at, 0, 10, b"")


# -- the broker's own files


def store_folder(log: Log, folder: Path, segment_size: int = 700) -> None:
    """The records as a broker keeps them: segments of a commit log, consume queues of 20-byte entries."""
    log_bytes, entries = bytearray(), {}
    for queue in sorted(log.records):
        for i, record in enumerate(log.records[queue]):
            size = len(record.encode())
            if len(log_bytes) % segment_size + size + 8 > segment_size:
                log_bytes += bytes(segment_size - len(log_bytes) % segment_size)
            log.records[queue][i] = replace(record, physical=len(log_bytes))
            entries.setdefault(queue, bytearray()).extend(struct.pack(">qiq", len(log_bytes), size, 0))
            log_bytes += log.records[queue][i].encode()
    (folder / "commitlog").mkdir(parents=True)
    for at in range(0, len(log_bytes), segment_size):
        piece = bytes(log_bytes[at : at + segment_size]).ljust(segment_size, b"\0")
        (folder / "commitlog" / f"{at:020d}").write_bytes(piece)
    for queue, data in entries.items():
        place = folder / "consumequeue" / queue.topic / str(queue.queue_id)
        place.mkdir(parents=True)
        for at in range(0, len(data), 60):
            (place / f"{at:020d}").write_bytes(bytes(data[at : at + 60]).ljust(60, b"\0"))


def test_the_brokers_files_give_the_same_rows_without_fetching(log: Log, tmp_path: Path) -> None:
    store_folder(log, tmp_path)
    log.fetches.clear()
    direct = reader(store=str(tmp_path))
    assert read(direct) == read(reader())
    assert [most for *_, most, _ in log.fetches[:2]] == [1, 1]  # one look per range: is it the same store?
    assert read(reader(store=str(tmp_path), tags="odd"), [RangePartition(Range(A0, 3, 9), ("odd",))]) == [
        (0, [3, 5, 7])
    ]


@pytest.mark.parametrize(
    ("given", "tens", "few"),
    [
        ({"where": "TAGS = 'odd'"}, [1, 3, 5, 7, 9], [1, 3]),
        ({"where": "TAGS <> 'odd' AND x IS NULL"}, [0, 2, 4, 6, 8], [0, 2]),
        ({"where": "TAGS IN ('odd', 'even')", "tags": "odd"}, [1, 3, 5, 7, 9], [1, 3]),
        ({"where": "x > 5"}, [], []),
    ],
)
def test_an_expression_selects_the_same_from_the_broker_and_from_its_files(
    log: Log, tmp_path: Path, given: dict[str, str], tens: list[int], few: list[int]
) -> None:
    store_folder(log, tmp_path)
    log.page = 3
    for store in ("none", str(tmp_path)):
        assert read(reader(store=store, **given)) == [(0, tens), (1, few)]


def test_what_is_no_expression_is_said_before_anything_is_asked(log: Log) -> None:
    with pytest.raises(ConfigError, match="option where = 'n >': Parse"):
        Source({"subscribe": "t", "where": "n >"})
    assert log.fetches == []


def test_a_micro_batch_of_which_nothing_is_wanted_goes_on_all_the_same(log: Log) -> None:
    made = stream(where="n = 1", maxOffsetsPerTrigger="7")
    start, seen, steps = made.initialOffset(), 0, 0
    while True:
        end = made.latestOffset(start, made.getDefaultReadLimit())
        if end == start:
            break
        ranges = made.partitions(start, end)
        assert sum(part.range.end - part.range.start for part in ranges) <= 7  # limits count what is looked at
        seen += sum(part.range.end - part.range.start for part in ranges)
        assert [offsets for _, offsets in read(made, ranges)] == [[]] * len(ranges)
        start = end
        steps += 1
    assert (steps, seen) == (2, 14)


def test_what_is_not_in_the_files_is_fetched(log: Log, tmp_path: Path) -> None:
    store_folder(log, tmp_path)
    log.put(A0, 5)
    expected = [(0, list(range(15))), (1, [0, 1, 2, 3])]
    assert read(reader(store=str(tmp_path))) == expected
    for segment in sorted((tmp_path / "commitlog").iterdir())[1:]:
        segment.unlink()
    source._files.clear()
    assert read(reader(store=str(tmp_path))) == expected
    assert read(reader(store=str(tmp_path / "nowhere"))) == expected


def test_another_stores_files_and_damaged_ones_are_not_used(log: Log, tmp_path: Path) -> None:
    store_folder(log, tmp_path / "a")
    other = Log()
    other.put(A0, 10, size=11)
    store_folder(other, tmp_path / "b")
    expected = read(reader())
    assert read(reader(store=str(tmp_path / "b"))) == expected
    segment = sorted((tmp_path / "a" / "commitlog").iterdir())[0]
    data = bytearray(segment.read_bytes())
    data[len(log.records[A0][0].encode()) + 25] ^= 1  # the queue offset in the second record
    segment.write_bytes(data)
    assert read(reader(store=str(tmp_path / "a"))) == expected


def test_the_files_of_a_former_master_are_not_used_where_its_log_has_parted(log: Log, tmp_path: Path) -> None:
    """Its log begins as that of its successor does, and goes on with what it alone has stored."""
    former = Log()
    former.put(A0, 10)
    former.put(A1, 4)
    held = former.records[A0]
    held[6:] = [replace(r, properties=r.properties.replace(b"even", b"evil").replace(b"odd", b"old")) for r in held[6:]]
    store_folder(log, tmp_path / "now")
    store_folder(former, tmp_path / "former")

    def tags(begin: int, end: int, **given: str) -> list[str]:
        parts = [RangePartition(Range(A0, begin, end))]
        return [tag for part in parts for batch in reader(**given).read(part) for tag in batch["tags"].to_pylist()]

    for begin, end in ((0, 10), (3, 8), (6, 10), (0, 6)):
        assert tags(begin, end, store=str(tmp_path / "former")) == tags(begin, end, store="none")
    log.fetches.clear()
    tags(0, 6, store=str(tmp_path / "former"))  # what both have is read there
    assert [at for _, at, *_ in log.fetches] == [5]


def test_a_folder_that_was_made_anew_is_opened_anew(log: Log, tmp_path: Path) -> None:
    store_folder(log, tmp_path)
    held = Segments(tmp_path)
    before = {base: data for data, *_, base in held.runs(A0, 0, 10)}
    segments = sorted((tmp_path / "commitlog").iterdir())
    second = int(segments[1].name)
    assert min(before) < second <= max(before)
    made_anew = [path.read_bytes().replace(b"TAGS", b"NEWS") for path in segments]
    segments[0].unlink()  # as retention does
    for path, data in zip(segments[1:], made_anew[1:], strict=True):
        path.unlink()
        path.write_bytes(data)
    after = {base: data for data, *_, base in held.runs(A0, 0, 10)}
    assert after == {base: data.replace(b"TAGS", b"NEWS") if base >= second else data for base, data in before.items()}


def test_the_folder_a_broker_names_is_read_where_it_can_be(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "WORTH_FILES", 4)
    monkeypatch.setattr(source, "_folders", {})
    expected = read(reader(store="none"))
    store_folder(log, tmp_path / "a")
    log.folder = str(tmp_path / "a")
    log.fetches.clear()
    assert read(reader()) == expected
    assert [most for *_, most, _ in log.fetches] == [1, 1]  # is it the same store?
    log.fetches.clear()
    assert read(reader(store="none")) == expected
    assert all(most > 1 for *_, most, _ in log.fetches)
    for folder in (str(tmp_path / "elsewhere"), ""):  # another machine's; a broker that does not say
        source._folders.clear()
        log.folder = folder
        log.fetches.clear()
        assert read(reader()) == expected
        assert all(most > 1 for *_, most, _ in log.fetches)


def test_short_ranges_are_fetched(log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "_folders", {})
    store_folder(log, tmp_path)
    log.folder = str(tmp_path)
    log.fetches.clear()
    read(reader())
    assert all(most > 1 for *_, most, _ in log.fetches)
    assert source._folders == {}


def test_records_far_apart_are_left_to_the_broker(tmp_path: Path) -> None:
    log = Log()
    for n in range(40):
        log.put(A0, 1, size=100)
        log.put(A1, 1, size=500 if n < 20 else 100)
    interleaved = sorted(
        ((queue, i) for queue in (A0, A1) for i in range(40)), key=lambda place: (place[1], place[0])
    )  # one of each in turn
    (tmp_path / "commitlog").mkdir()
    data, entries = bytearray(), {A0: bytearray(), A1: bytearray()}
    for queue, i in interleaved:
        record = replace(log.records[queue][i], physical=len(data)).encode()
        entries[queue] += struct.pack(">qiq", len(data), len(record), 0)
        data += record
    (tmp_path / "commitlog" / f"{0:020d}").write_bytes(data)
    for queue, raw in entries.items():
        place = tmp_path / "consumequeue" / queue.topic / str(queue.queue_id)
        place.mkdir(parents=True)
        (place / f"{0:020d}").write_bytes(raw)
    held = Segments(tmp_path)
    count = lambda queue, start, near: sum(len(run[1]) for run in held.runs(queue, start, 40, near=near))  # noqa: E731
    assert count(A0, 0, False) == 40
    assert count(A0, 0, True) == 0  # more of the other queue's bytes than of its own
    assert count(A1, 0, True) == 40


# -- stream


def test_a_stream_plans_from_offset_to_offset(log: Log) -> None:
    made = stream()
    start = made.initialOffset()
    end = made.latestOffset(start, made.getDefaultReadLimit())
    begin, moments = {"a": {"0": 0, "1": 0}}, {"t": {"a": {"0": 1009, "1": 1003}}}
    assert end == {"t": {"a": {"0": 10, "1": 4}}, planning.FROM: {"t": begin, planning.FROM: moments}}
    assert made.reportLatestOffset() == {"t": {"a": {"0": 10, "1": 4}}}
    assert read(made, made.partitions(start, end)) == [(0, list(range(10))), (1, list(range(4)))]
    assert made.latestOffset(end, made.getDefaultReadLimit()) is end
    log.put(A1, 1)
    moments = {"t": {"a": {"0": 1009, "1": 1004}}}
    assert made.latestOffset(end, ReadAllAvailable()) == {
        "t": {"a": {"0": 10, "1": 5}},
        planning.FROM: {planning.FROM: moments},
    }


def test_a_broker_that_was_read_before_and_is_away_is_named_once(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    """A run with availableNow ended without its messages, and without a word."""
    made = stream()
    for _ in range(3):
        end = made.latestOffset(planning.to_json({A0: 0, B0: 5, MessageQueue("other", "c", 0): 1}), ReadAllAvailable())
        assert planning.from_json(end)[B0] == 5
    said = [record.getMessage() for record in caplog.records]
    assert said == ["broker b is away: what it holds of t is read when it is back"]
    log.put(B0, 6)
    made.latestOffset(end, ReadAllAvailable())
    del log.records[B0]
    made.latestOffset(end, ReadAllAvailable())
    assert len(caplog.records) == 2


def test_a_topic_of_a_pattern_that_no_broker_has_any_more_is_named_once(
    log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    made = stream(subscribe="", subscribePattern="[tu]")
    start = planning.to_json({A0: 0, MessageQueue("u", "c", 0): 5, MessageQueue("former", "c", 0): 1})
    for _ in range(3):
        end = made.latestOffset(start, ReadAllAvailable())
        assert planning.from_json(end)[MessageQueue("u", "c", 0)] == 5
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith("no broker has topic u now: ")
    log.put(MessageQueue("u", "c", 0), 6)
    made.latestOffset(end, ReadAllAvailable())
    del log.records[MessageQueue("u", "c", 0)]
    made.latestOffset(end, ReadAllAvailable())
    assert len(caplog.records) == 2


def test_the_same_two_offsets_are_the_same_partitions(log: Log) -> None:
    made = stream(minPartitions="5")
    start = made.initialOffset()
    end = made.latestOffset(start, ReadAllAvailable())
    before = [p.range for p in made.partitions(start, end)]
    log.put(A0, 90)
    assert [p.range for p in made.partitions(start, end)] == before
    assert made.partitions(end, end) == []


LATEST_MOMENT = {"startingTimestamp": "99999", "startingOffsetsByTimestampStrategy": "latest"}


@pytest.mark.parametrize(
    ("given", "begin"),
    [
        ({"startingOffsets": "latest"}, {A0: 10, A1: 4}),
        ({"startingOffsets": '{"t": {"0": -1}}'}, {A0: 10, A1: 0}),
        ({"startingGroup": "g"}, {A0: 6, A1: 0}),
        (LATEST_MOMENT, {A0: 10, A1: 4}),
        ({"startingOffsets": "earliest"}, {A0: 0, A1: 0}),
    ],
)
def test_where_a_query_begins_is_asked_once(log: Log, given: dict[str, str], begin: dict[MessageQueue, int]) -> None:
    log.groups["g", A0] = 6
    made = new_stream(**given)
    start, first = made.initialOffset(), None
    for _ in range(3):  # planned again and again; a plan may fail before Spark has logged its end
        assert made.initialOffset() == start
        end = made.latestOffset(start, ReadAllAvailable())
        assert planning.from_json(end[planning.FROM]) == begin
        assert planning.from_json(end) == {q: log.offsets(q)[1] for q in begin}
        first = first or end
        log.put(A0, 50)
        log.put(A1, 50)
        log.groups["g", A0] = 40
    log.drop(A0, 5)  # earliest is another one now
    again = new_stream(**given)  # the driver was killed: Spark's log has `first`
    ranges = [p.range for p in again.partitions(again.initialOffset(), first)]
    after = {A0: 10, A1: 4}
    assert ranges == [Range(q, begin[q], after[q]) for q in begin if begin[q] < after[q]]
    more = again.latestOffset(first, ReadAllAvailable())
    assert [p.range for p in again.partitions(first, more)] == [Range(A0, 10, 160), Range(A1, 4, 154)]


def test_a_query_without_a_topic_yet_has_begun_all_the_same(log: Log) -> None:
    made = new_stream(subscribe="", subscribePattern="new.*")  # latest
    end = made.latestOffset(made.initialOffset(), ReadAllAvailable())
    assert end  # so that Spark logs it
    assert made.partitions(made.initialOffset(), end) == []
    late = MessageQueue("new1", "a", 0)
    log.put(late, 5)
    more = made.latestOffset(end, ReadAllAvailable())
    assert [p.range for p in made.partitions(end, more)] == [Range(late, 0, 5)]


def test_a_first_batch_that_an_older_version_logged_begins_as_it_did_there(log: Log) -> None:
    end = {"t": {"a": {"0": 10, "1": 4}}}
    assert [p.range for p in stream().partitions({}, end)] == [Range(A0, 0, 10), Range(A1, 0, 4)]
    given = {"startingOffsets": '{"t": {"0": 7, "1": 3}}'}
    assert [p.range for p in new_stream(**given).partitions({}, end)] == [Range(A0, 7, 10), Range(A1, 3, 4)]


def test_a_position_that_is_not_durable_yet_is_no_loss(log: Log) -> None:
    log.groups["g", A0] = 10
    log.durable[A0] = 8
    for given in ({"startingGroup": "g"}, {"startingOffsets": '{"t": {"0": 9}}'}):
        end = new_stream(**given).latestOffset({}, ReadAllAvailable())
        assert planning.from_json(end) == {A0: 8, A1: 4}
        assert planning.from_json(end[planning.FROM]) == {A0: 8, A1: 0}
    with pytest.raises(DataLoss):
        new_stream(startingOffsets='{"t": {"0": 11}}').latestOffset({}, ReadAllAvailable())


def test_limits_are_split_and_available_now_reaches_its_frozen_end(log: Log) -> None:
    made = stream(maxOffsetsPerTrigger="7")
    limit = made.getDefaultReadLimit()
    assert limit == ReadMaxRows(7)
    made.prepareForTriggerAvailableNow()
    log.put(A0, 100)
    at = made.initialOffset()
    seen = []
    for _ in range(9):
        fresh = made.latestOffset(at, limit)
        if fresh is at:
            break
        seen.append(planning.from_json(fresh))
        at = fresh
    assert seen == [{A0: 5, A1: 2}, {A0: 10, A1: 4}]


def test_a_limit_in_bytes_is_about_kept(log: Log) -> None:
    made = stream(maxBytesPerTrigger="1k")
    assert made.getDefaultReadLimit() == ReadMaxBytes(1024)
    end = planning.from_json(made.latestOffset(made.initialOffset(), made.getDefaultReadLimit()))
    assert 6 <= sum(end.values()) <= 10  # records of a little over 100 bytes


def test_a_minimum_is_waited_for_but_not_for_ever(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1_000_000_000_000]
    monkeypatch.setattr(source.time, "monotonic_ns", lambda: now[0])
    made = stream(minOffsetsPerTrigger="5", maxTriggerDelay="10s")
    limit = made.getDefaultReadLimit()
    assert limit == ReadMinRows(5)
    at = made.latestOffset(made.initialOffset(), limit)
    log.put(A0, 3)
    assert made.latestOffset(at, limit) is at
    log.put(A0, 2)
    more = made.latestOffset(at, limit)
    assert planning.from_json(more)[A0] == 15
    log.put(A0, 1)
    assert made.latestOffset(more, limit) is more
    now[0] += 10_000_000_000
    assert planning.from_json(made.latestOffset(more, limit))[A0] == 16


def test_a_group_is_shown_how_far_finished_batches_went(log: Log) -> None:
    made = stream(commitOffsetsToGroup="ops", maxOffsetsPerTrigger="7")
    at = made.initialOffset()
    for _ in range(3):
        at = made.latestOffset(at, made.getDefaultReadLimit())
    assert log.groups == {("ops", A0): 10, ("ops", A1): 4}


def test_new_queues_begin_at_their_oldest_message(log: Log) -> None:
    made = stream()
    at = made.latestOffset(made.initialOffset(), ReadAllAvailable())
    late = MessageQueue("t", "b", 0)
    log.put(late, 6)
    log.drop(late, 2)
    end = made.latestOffset(at, ReadAllAvailable())
    parts = made.partitions(at, end)
    log.drop(late, 4)
    assert [p.range for p in made.partitions(at, end)] == [p.range for p in parts] == [Range(late, 2, 6)]


def test_a_gap_is_one_step_when_loss_is_allowed(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    given = {"maxOffsetsPerTrigger": "4000", "minPartitions": "2"}
    start = {"t": {"a": {"0": 3, "1": 4}}}
    lost = 100_000_000
    log.records[A0] = [replace(record, offset=record.offset + lost) for record in log.records[A0]]
    log.oldest[A0] = lost
    made = stream(**given, failOnDataLoss="false")
    limit = made.getDefaultReadLimit()
    end = made.latestOffset(start, limit)
    assert planning.from_json(end) == {A0: lost + 10, A1: 4}
    assert f"offsets 3 to {lost} of t queue 0 at a are gone" in caplog.text
    parts = made.partitions(start, end)
    assert read(made, parts) == [(0, [lost + n for n in range(5)]), (0, [lost + n for n in range(5, 10)])]
    log.drop(A0, lost + 8)  # a replay reads the same range, as far as it is there
    assert [p.range for p in stream(**given, failOnDataLoss="false").partitions(start, end)] == [p.range for p in parts]
    assert made.latestOffset(end, limit) is end
    strict = stream(**given)
    with pytest.raises(DataLoss, match=f"offsets 3 to {lost + 8} of t"):
        strict.latestOffset(start, limit)  # before anything is logged
    with pytest.raises(DataLoss, match=f"offsets 3 to {lost + 8} of t queue 0 at a are gone .it holds {lost + 8} to"):
        read(strict, strict.partitions(start, {"t": {"a": {"0": 2003, "1": 4}}}))


def test_a_gap_before_an_empty_queue_is_one_step(log: Log) -> None:
    log.drop(A0, 10)
    made = stream(failOnDataLoss="false", maxOffsetsPerTrigger="2")
    start = {"t": {"a": {"0": 3, "1": 4}}}
    end = made.latestOffset(start, made.getDefaultReadLimit())
    assert planning.from_json(end) == {A0: 10, A1: 4}
    assert made.partitions(start, end) == []


def test_a_topic_made_anew_is_data_loss(log: Log) -> None:
    made = stream()
    at = made.latestOffset(made.initialOffset(), ReadAllAvailable())
    log.records[A0] = log.records[A0][:3]
    with pytest.raises(DataLoss, match="t queue 0 at a ends at 3, before the offset 10 reached already"):
        made.latestOffset(at, ReadAllAvailable())
    bounded = stream()
    bounded.prepareForTriggerAvailableNow()
    with pytest.raises(DataLoss):
        bounded.latestOffset(at, ReadAllAvailable())


def test_a_new_master_that_shows_less_than_the_one_before_is_waited_for(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A query ended with DataLoss, though nothing was lost, when its master was killed."""
    made = stream()
    at = made.latestOffset(made.initialOffset(), ReadAllAvailable())
    slept = []

    def find_out(seconds: float) -> None:
        slept.append(seconds)
        log.durable.clear()
        log.inherited.clear()

    monkeypatch.setattr(source.time, "sleep", find_out)
    for number in (1, 2):
        log.durable[A0], log.inherited[A0] = 8, 10
        if number == 1:
            assert planning.from_json(made.latestOffset(at, ReadAllAvailable())) == {A0: 10, A1: 4}
        else:
            assert read(made, [part(A0, 5, 10)]) == [(0, [5, 6, 7, 8, 9])]
        assert len(slept) == number


def test_a_topic_made_anew_is_read_on_from_where_it_ends_when_loss_is_allowed(log: Log) -> None:
    at = stream().latestOffset({}, ReadAllAvailable())
    log.records[A0] = log.records[A0][:3]
    made = stream(failOnDataLoss="false")
    end = made.latestOffset(at, ReadAllAvailable())
    assert planning.from_json(end) == {A0: 3, A1: 4}
    assert made.partitions(at, end) == []
    log.put(A0, 2)
    more = made.latestOffset(end, ReadAllAvailable())
    assert read(made, made.partitions(end, more)) == [(0, [3, 4])]
    log.put(A0, 1)  # in one step, and planned again
    late = stream(failOnDataLoss="false", maxOffsetsPerTrigger="1")
    late.latestOffset(at, late.getDefaultReadLimit())
    assert [p.range for p in late.partitions(at, {**more, planning.FROM: {"t": {"a": {"0": 3}}}})] == [Range(A0, 3, 5)]


def test_a_topic_that_is_deleted_meanwhile_has_not_gone_back(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its broker says 0 of it, and the route that is kept names it still."""
    log.keeps_routes = True
    made = stream(failOnDataLoss="false", fetchRetries="0")
    at = made.latestOffset({}, ReadAllAvailable())
    kept = dict(log.records)
    log.records.clear()
    with pytest.raises(NoRoute):
        made.latestOffset(at, ReadAllAvailable())

    def made_again(seconds: float) -> None:
        log.records.update(kept)
        log.put(A0, 2)

    monkeypatch.setattr(source.time, "sleep", made_again)
    more = stream(failOnDataLoss="false").latestOffset(at, ReadAllAvailable())
    assert [p.range for p in made.partitions(at, more)] == [Range(A0, 10, 12)]


def test_a_position_behind_a_frozen_target_is_no_loss(log: Log) -> None:
    made = new_stream(startingGroup="g")
    made.prepareForTriggerAvailableNow()
    log.put(A0, 5)
    log.groups["g", A0] = 13  # another reader was faster than this query began
    end = made.latestOffset({}, ReadAllAvailable())
    assert planning.from_json(end) == {A0: 13, A1: 4}
    assert made.latestOffset(end, ReadAllAvailable()) is end


def test_what_travels_to_tasks_can_be_pickled() -> None:
    from pyspark.cloudpickle import dumps, loads

    options = source.parse({"subscribe": "t"})
    made = source.StreamReader(options, TWO)
    copy = loads(dumps((made, part(A0, 1, 2))))
    assert copy[0].options == options
    assert copy[1].range == Range(A0, 1, 2)
