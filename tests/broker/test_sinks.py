"""What a broker knows of sinks: a table made of the log's records, on top of a snapshot."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.broker import sinks as module
from penstock.broker.sinks import SINK_TOPIC, SNAPSHOT_MS, STALE_RUNS_MAX, Sinks
from penstock.disk.files import Files
from penstock.disk.job import run_now
from penstock.wire.record import encode_record

RUN = {"k": "run", "sink": "s", "query": "q", "run": "r1", "coordinator": "b"}


def record(about: object) -> bytes:
    return encode_record(SINK_TOPIC, json.dumps(about).encode(), b"", queue_id=0, queue_offset=0, physical_offset=0,
                         store_ms=0)  # fmt: skip


def tell(sinks: Sinks, *notes: object) -> int:
    at = 0
    for note in notes:
        data = record(note)
        sinks.add(at, data, 0, at)
        at += len(data)
    return at


@pytest.fixture
def sinks(tmp_path: Path) -> Sinks:
    return Sinks(tmp_path / "config" / "sinks.json", Files())


def test_a_batch_counts_when_it_is_whole(sinks: Sinks) -> None:
    begin = {"k": "begin", "sink": "s", "batch": 4, "rows": 9, "brokers": {"b": ["t1"]}, "layout": {"T": ["b"]}}
    tell(sinks, RUN, begin)
    assert sinks.begun is not None
    assert sinks.by_name["s"].last == -1
    tell(sinks, {"k": "done", "sink": "s", "batch": 4})
    assert sinks.begun is None
    sink = sinks.by_name["s"]
    assert (sink.last, sink.answer, sink.layout) == (4, {"rows": 9, "brokers": {"b": ["t1"]}}, {"T": ["b"]})


def test_former_runs_are_stale_and_not_all_remembered(sinks: Sinks) -> None:
    tell(sinks, RUN, *({**RUN, "run": f"r{n}"} for n in range(2, STALE_RUNS_MAX + 10)))
    sink = sinks.by_name["s"]
    assert sink.run == f"r{STALE_RUNS_MAX + 9}"
    assert len(sink.stale) == STALE_RUNS_MAX
    assert f"r{STALE_RUNS_MAX + 8}" in sink.stale
    tell(sinks, {**RUN, "run": "new", "reset": True})
    assert sinks.by_name["s"].stale == []


@pytest.mark.parametrize("note", [{}, [], {"k": "run"}, {"sink": "s"}, "text", 5])
def test_a_record_without_sense_says_nothing(sinks: Sinks, note: object) -> None:
    tell(sinks, note)
    assert sinks.by_name == {}


def test_a_snapshot_is_what_the_next_start_begins_with(sinks: Sinks) -> None:
    end = tell(sinks, RUN, {**RUN, "sink": "once", "once": True})
    assert sinks.take_job(end - 1, end, 10 * SNAPSHOT_MS) is None  # not flushed yet
    job = sinks.take_job(end, end, 10 * SNAPSHOT_MS)
    assert job is not None
    run_now([job], 10 * SNAPSHOT_MS)
    assert sinks.take_job(end, end, 20 * SNAPSHOT_MS) is None  # nothing changed
    again = Sinks(sinks.path, Files())
    assert (again.by_name, again.position) == (sinks.by_name, end)
    again.cut(5)
    assert again.position == 5


def test_jobs_that_nobody_can_name_again_are_forgotten_first(sinks: Sinks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SINKS_MAX", 2)
    tell(sinks, {**RUN, "sink": "old"}, {**RUN, "sink": "once", "once": True}, {**RUN, "sink": "new"})
    assert set(sinks.by_name) == {"old", "new"}
