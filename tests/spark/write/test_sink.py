"""The sink's writers: what is asked of them before a row is sent."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from penstock.errors import ConfigError, PenstockError

pytest.importorskip("pyspark")

import pyarrow as pa

from penstock import Admin
from penstock.client.staging import PlannedAnew, Sealed, SinkRun
from penstock.spark.write import options as sinkoptions
from penstock.spark.write import sink
from penstock.spark.write.sink import batch_writer, commit, stream_writer, write
from penstock.testing import Broker


def rows(*names: str) -> Any:
    kind = SimpleNamespace(simpleString=lambda: "string")
    return SimpleNamespace(fields=[SimpleNamespace(name=name, dataType=kind) for name in names])


@pytest.mark.parametrize("make", [batch_writer, stream_writer])
def test_what_cannot_be_written_is_said_at_once(make: Any) -> None:
    with pytest.raises(ConfigError, match="no column value"):
        make({"topic": "t"}, rows("key"), False)
    with pytest.raises(ConfigError, match="a topic cannot be overwritten") as caught:
        make({"topic": "t"}, rows("value"), True)
    assert ("outputMode" in caught.value.hint) == (make is stream_writer)  # a stream has no mode("append")
    assert make({"topic": "t"}, rows("value"), False) is not None


def test_a_stream_without_options_is_not_for_the_default_address() -> None:
    """Of a catalog's table Spark says nothing: the query waited for a broker there, for rows that name their topic."""
    with pytest.raises(ConfigError, match="of a table of its catalog") as caught:
        stream_writer({"checkpointLocation": "/c"}, rows("value", "topic"), False)
    assert "the registry at least" in caught.value.hint
    assert stream_writer({"registry": "h:1", "checkpointLocation": "/c"}, rows("value", "topic"), False) is not None


@pytest.mark.parametrize("mode", ["batch", "partition"])
def test_a_job_id_of_another_topic_is_refused(mode: str) -> None:
    """It was taken for a repetition, and nothing was written."""
    rows = pa.RecordBatch.from_pydict({"value": [b"a", b"b"]})

    def job(registry: str, topic: str, name: str, attempt: str) -> None:
        options = sinkoptions.parse({"registry": registry, "topic": topic, "jobId": name, "commitMode": mode})
        staged = write(options, SinkRun(f"job-{name}", name, attempt), 0, 0, iter([rows]))
        commit(options, [staged], 0)

    def count(admin: Admin, topic: str) -> int:
        return sum(one.max_offset for one in admin.topic_stats(topic).values())

    with Broker() as broker, Admin(broker.registry) as admin:
        for topic in ("one", "other"):
            admin.create_topic(topic, 1)
        job(broker.registry, "one", "daily", "1")
        job(broker.registry, "one", "daily", "2")
        with pytest.raises(ConfigError, match="jobId daily is that of a write to one, and this one is to other"):
            job(broker.registry, "other", "daily", "3")
        job(broker.registry, "other", "daily-other", "4")
        assert (count(admin, "one"), count(admin, "other")) == (2, 2)


def test_a_row_that_fills_a_plain_send_alone_is_told_with_what_takes_it() -> None:
    """The broker said of it that the message is illegal, maybe its length."""
    most = sinkoptions.SEND_BYTES_MAX
    run = SinkRun("job-n", "n", "attempt", once=True)
    with Broker() as broker:
        for size, mode in ((most - 100, "none"), (most, "batch")):
            options = sinkoptions.parse({"registry": broker.registry, "topic": "t", "commitMode": mode})
            assert (
                write(options, run, 0, 0, iter([pa.RecordBatch.from_pydict({"value": [b"x" * size]})])).sealed.rows == 1
            )
        options = sinkoptions.parse({"registry": broker.registry, "topic": "t", "commitMode": "none"})
        with pytest.raises(
            PenstockError, match=f"more than the {most} bytes of a plain batch send: with commitMode batch"
        ):
            write(options, run, 0, 0, iter([pa.RecordBatch.from_pydict({"value": [b"x" * most]})]))


def test_a_job_id_in_another_commit_mode_is_refused() -> None:
    """Each mode counts under names of its own: the rows were written a second time."""
    rows = pa.RecordBatch.from_pydict({"value": [b"a", b"b"]})

    def job(registry: str, mode: str, name: str, attempt: str, partition: int = 0) -> None:
        options = sinkoptions.parse({"registry": registry, "topic": "one", "jobId": name, "commitMode": mode})
        staged = write(options, SinkRun(f"job-{name}", name, attempt), 0, partition, iter([rows]))
        commit(options, [staged], 0)

    with Broker() as broker, Admin(broker.registry) as admin:
        admin.create_topic("one", 1)
        job(broker.registry, "batch", "whole", "1")
        for partition in (0, 1):
            with pytest.raises(ConfigError, match="commitMode=batch, and this one has partition: nothing is written"):
                job(broker.registry, "partition", "whole", "2", partition)
            job(broker.registry, "partition", "parts", "3", partition)
            job(broker.registry, "partition", "parts", "4", partition)
        with pytest.raises(ConfigError, match="commitMode=partition, and this one has batch"):
            job(broker.registry, "batch", "parts", "5")
        job(broker.registry, "partition", "half", "6", partition=1)  # and then the job failed
        job(broker.registry, "partition", "half", "7", partition=1)
        with pytest.raises(ConfigError, match="commitMode=partition, and this one has batch"):
            job(broker.registry, "batch", "half", "8", partition=1)
        assert sum(one.max_offset for one in admin.topic_stats("one").values()) == 8


def test_partitions_of_a_batch_that_was_planned_anew_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that the plan before had not; the same plan again, and who does not say when it was, is a repetition."""
    monkeypatch.setattr(sink, "is_whole", lambda: True)
    rows = pa.RecordBatch.from_pydict({"value": [b"a", b"b"]})

    def task(registry: str, batch: int, partition: int, planned_ms: int | None) -> None:
        options = sinkoptions.parse({"registry": registry, "topic": "one", "commitMode": "partition"})
        write(options, SinkRun("s", "q", "r"), batch, partition, iter([rows]), planned_ms)

    with Broker() as broker, Admin(broker.registry) as admin:
        admin.create_topic("one", 1)
        count = lambda: sum(one.max_offset for one in admin.topic_stats("one").values())  # noqa: E731
        for partition in (0, 1):
            task(broker.registry, 4, partition, 1_000)
        for partition in (0, 1, 2):
            with pytest.raises(PlannedAnew, match=r"batch 4 of sink s/\d was published before"):
                task(broker.registry, 4, partition, 1_001)
        assert count() == 4
        for partition in (0, 1):
            task(broker.registry, 4, partition, 1_000)
            task(broker.registry, 4, partition, None)
        assert count() == 4
        task(broker.registry, 4, 2, 1_000)  # a task of the same plan that failed before
        for partition in (0, 1, 2, 3):
            task(broker.registry, 5, partition, 2_000)
        assert count() == 14


@pytest.mark.parametrize("mode", ["batch", "partition"])
@pytest.mark.parametrize("whole", [True, None, False])
def test_rows_that_may_not_be_all_are_not_published_by_their_task(
    mode: str, whole: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink, "is_whole", lambda: whole)
    rows = pa.RecordBatch.from_pydict({"value": [b"a", b"b"]})
    with Broker() as broker, Admin(broker.registry) as admin:
        admin.create_topic("one", 1)
        options = sinkoptions.parse({"registry": broker.registry, "topic": "one", "commitMode": mode})
        task = lambda: write(options, SinkRun("s", "q", "r"), 0, 0, iter([rows]))  # noqa: E731
        count = lambda: sum(one.max_offset for one in admin.topic_stats("one").values())  # noqa: E731
        if whole is False:
            with pytest.raises(PenstockError, match="Spark has ended its input before the last one"):
                task()
            monkeypatch.setattr(sink, "is_whole", lambda: True)  # as the next attempt finds it
        staged = task()
        assert count() == (2 if mode == "partition" and whole is not None else 0)
        commit(options, [staged], 0)
        assert count() == 2


def test_a_repetition_reads_few_rows_to_their_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark lets go of a worker that leaves rows unread: 500 small partitions took 21 s, and 417 s when they were repeated."""
    over = SimpleNamespace(over=lambda: True, layout={}, seal=lambda: Sealed("", 0, 0, ()), close=lambda: None)
    monkeypatch.setattr(sink, "client_of", lambda options: None)
    monkeypatch.setattr(sink, "Stager", lambda *given, **named: over)
    options = sinkoptions.parse({"topic": "t"})
    few, many = iter(range(sink.BATCHES_UNREAD_MIN - 1)), iter(range(1_000))
    for batches in (few, many):
        write(options, SinkRun("s", "q", "r"), 0, 0, batches)  # type: ignore[arg-type]
    assert next(few, None) is None
    assert next(many) == sink.BATCHES_UNREAD_MIN


def test_a_table_of_the_catalog_is_not_written_to() -> None:
    """Spark 4.3 gives its options to nobody: the rows went to the topics they name at the default registry."""
    with pytest.raises(ConfigError, match="cannot be written to"):
        batch_writer({}, rows("value", "topic"), False)


@pytest.mark.parametrize("undecided", [True, False])
def test_an_abort_drops_only_what_is_not_decided(undecided: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark aborts behind a commit that has failed, too: the batch may be published at one broker, and wait at another."""
    done: list[str] = []
    client = SimpleNamespace(
        undecided=lambda run, batch: undecided,
        drop=lambda run, sealed: done.append("drop"),
        drop_all=lambda run: done.append("drop_all"),
    )
    monkeypatch.setattr(sink, "client_of", lambda options: client)
    staged = sink.Staged(SinkRun("s", "q", "r"), 3, 0, Sealed("t", 1, 1, ("b",)))
    stream_writer({"topic": "t"}, rows("value"), False).abort([staged, None], 3)
    batch_writer({"topic": "t"}, rows("value"), False).abort([staged])
    assert done == (["drop", "drop_all"] if undecided else [])
