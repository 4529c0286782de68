"""Audit finds each planted fault and names the message; a good store has none. Reindex makes the broker's own files."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from spark_logs import copy, files, flip, write_log
from spark_records import Record

from penstock.errors import ConfigError
from penstock.log.verify import inspect
from penstock.spark.kernel.buffers import ENTRY
from penstock.spark.pipelines import audit, parallel, reindex
from penstock.wire import layout

LOAD_S = float(os.environ.get("PENSTOCK_LOAD_S", "4"))
FAULTS = int(os.environ.get("PENSTOCK_FAULTS", "25"))  # of each kind


@pytest.fixture(scope="module")
def messages(good: Path) -> list[dict[str, object]]:
    """Every record of the good store, as the store's own inspection shows it."""
    paths = sorted((good / "commitlog").iterdir())
    return [piece for path in paths for piece in inspect(path) if piece["kind"] == "record"]


def names(result: audit.AuditResult, message: dict[str, object]) -> bool:
    """Whether a finding that is a fault names this message."""
    return any(
        (one.topic, one.queue, one.offset) == (message["topic"], message["queueId"], message["queueOffset"])
        for one in result.findings
        if one.level != "note"
    )


@pytest.mark.parametrize("split_bytes", [1 << 30, 5000])
def test_a_good_store_has_no_fault(good: Path, split_bytes: int) -> None:
    result = audit.run(None, good, split_bytes=split_bytes)
    assert result.ok
    assert result.findings == []
    assert (result.records, result.entries, result.index_entries, result.unchecked) == (350, 350, 700, 0)
    assert result.topics["rare"][0] == 39


def test_a_flipped_bit_in_any_field(good: Path, messages: list[dict[str, object]], tmp_path: Path) -> None:
    dice = random.Random(1)
    for _ in range(FAULTS):
        store, message = copy(good, tmp_path / "s"), dice.choice(messages)
        at = int(message["position"]) + dice.randrange(int(message["size"]))  # type: ignore[call-overload]
        segment = at // (1 << 14) * (1 << 14)
        flip(store / "commitlog" / f"{segment:020d}", at - segment, dice.randrange(8))
        result = audit.run(None, store, split_bytes=20_000)
        assert not result.ok, at
        assert names(result, message), (at - int(message["position"]), result.findings)  # type: ignore[call-overload]


def test_a_cut_tail_and_a_missing_segment(good: Path, messages: list[dict[str, object]], tmp_path: Path) -> None:
    dice = random.Random(2)
    last = sorted((good / "commitlog").iterdir())[-1].name
    lost = [m for m in messages if int(m["position"]) >= int(last)]  # type: ignore[call-overload]
    for _ in range(FAULTS):
        store, message = copy(good, tmp_path / "s"), dice.choice(lost)
        keep = int(message["position"]) - int(last) + dice.randrange(int(message["size"]))  # type: ignore[call-overload]
        path = store / "commitlog" / last
        size = path.stat().st_size
        with open(path, "r+b") as file:
            file.truncate(keep)
            if dice.random() < 0.5:
                file.truncate(size)  # zeros, as after a power cut
        result = audit.run(None, store)
        assert names(result, message), result.findings


def test_missing_segments(good: Path, messages: list[dict[str, object]], tmp_path: Path) -> None:
    """Any but the first, which retention may have taken: each message of it is named, and no other is."""
    dice = random.Random(6)
    segments = sorted((good / "commitlog").iterdir())
    for _ in range(FAULTS):
        gone = dice.sample(segments[1:], dice.randrange(1, len(segments) - 1))
        if segments[-1] in gone:  # then the log ends early, which its durable position tells
            gone = sorted(gone)
        store = copy(good, tmp_path / "s")
        for path in gone:
            (store / "commitlog" / path.name).unlink()
        result = audit.run(None, store, split_bytes=dice.choice((5000, 1 << 30)))
        whys = {one.why for one in result.findings}
        assert whys & {"a segment is missing", "the log ends before its durable position"}, whys
        begins = {int(path.name) for path in gone}
        lost = {
            (m["topic"], m["queueId"], m["queueOffset"])
            for m in messages
            if int(m["position"]) // (1 << 14) * (1 << 14) in begins  # type: ignore[call-overload]
        }
        named = {
            (one.topic, one.queue, one.offset) for one in result.findings if one.level == "damage" and "lost" in one.why
        }
        assert named == lost


def test_gaps_and_doubles_where_nothing_else_tells(tmp_path: Path) -> None:
    made = [Record(n // 2, b"body", n % 2) for n in range(80)]
    dice = random.Random(3)
    for _ in range(FAULTS):
        n = dice.randrange(2, 78)
        for name, records, offset in (
            ("gap", made[:n] + made[n + 1 :], n // 2),
            ("double", [*made[: n + 4], made[n], *made[n + 4 :]], n // 2),
        ):
            store = tmp_path / name
            shutil.rmtree(store, ignore_errors=True)
            write_log(store, records, size=1 << 14)
            (finding,) = [one for one in audit.run(None, store, split_bytes=3000).findings if one.level == "damage"]
            assert (finding.queue, finding.offset) == (n % 2, offset), (name, finding)
    shutil.rmtree(tmp_path / "gap")
    write_log(tmp_path / "gap", made, size=1 << 14)
    assert audit.run(None, tmp_path / "gap").ok


def test_orphans_in_queues_and_index(good: Path, tmp_path: Path) -> None:
    dice = random.Random(4)
    queues = [path for path in (good / "consumequeue").rglob("*") if path.is_file()]
    for _ in range(FAULTS):
        store, path = copy(good, tmp_path / "s"), dice.choice(queues)
        entries = np.fromfile(path, ENTRY)
        used = np.flatnonzero((entries["size"] != 0) & (entries["size"] != layout.FILLER_SIZE))
        n = int(dice.choice(used.tolist()))
        flip(store / path.relative_to(good), n * 20 + dice.randrange(20), dice.randrange(8))
        result = audit.run(None, store)
        place = (path.parent.parent.name, int(path.parent.name), int(path.name) // 20 + n)
        assert place in {(one.topic, one.queue, one.offset) for one in result.findings}, result.findings
    index = sorted((good / "index").iterdir())
    for _ in range(FAULTS):
        store, path = copy(good, tmp_path / "s"), dice.choice(index)
        head = next(iter(inspect(path)))
        n = dice.randrange(1, head["count"])
        at = 40 + head["slots"] * 4 + n * 20 + dice.choice([*range(12), *range(16, 20)])  # all but the seconds
        flip(store / path.relative_to(good), at, dice.randrange(8))
        result = audit.run(None, store)
        assert any(path.name in one.file and str(n) in one.why for one in result.findings), result.findings


def test_no_store_is_an_error(tmp_path: Path) -> None:
    for job in (audit.run, reindex.run):
        with pytest.raises(ConfigError, match="no store folder"):
            job(None, tmp_path)


def test_work_in_this_process_keeps_order_and_tells_progress() -> None:
    told: list[tuple[int, int]] = []
    answers = parallel.over(None, [3, 1, 2], lambda n: iter(range(n)), lambda *done: told.append(done), 300)
    assert answers == [0, 1, 2, 0, 0, 1]
    assert told == [(100, 300), (200, 300), (300, 300)]


@pytest.mark.filterwarnings("ignore")
def test_a_brokers_own_folder_live_and_stopped(tmp_path: Path) -> None:
    """Keys, tags, delays by moment, by level and by span: no false alarm, and reindex makes the same queues."""
    import penstock
    from penstock.testing import Broker

    folder = tmp_path / "store"
    with Broker(folder) as broker, penstock.Producer(broker.registry) as producer:
        due = time.time_ns() // 1_000_000 + 3_600_000
        for n in range(60):
            producer.send(penstock.Message("orders", b"%d" % n, tags="t" if n % 2 else None, keys=(f"k{n}",)))
            if n % 10 == 0:
                producer.send(penstock.Message("orders", b"later", tags="late", deliver_at_ms=due))
                producer.send(penstock.Message("orders", b"level", tags="late", delay_level=18))
        assert audit.run(None, folder).ok
    result = audit.run(None, folder)
    assert result.findings == []
    assert result.records >= 72
    reindex.run(None, folder, to=tmp_path / "new")
    assert files(tmp_path / "new" / "consumequeue") == {
        name: data for name, data in files(folder / "consumequeue").items() if data.strip(b"\0")
    }


@pytest.mark.parametrize("kept_ms", [0, 300])
def test_a_store_that_is_written_to_has_no_fault(tmp_path: Path, kept_ms: int) -> None:
    """Appends, flushes, checkpoints, new files and retention go on as fast as they can while each audit runs."""
    folder = tmp_path / "store"
    command = [sys.executable, str(Path(__file__).parents[1] / "spark_writer.py"), str(folder), str(kept_ms)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdin
        assert writer.stdout
        assert writer.stdout.readline() == "ready\n"
        seen: list[audit.AuditResult] = []
        until, deadline = time.monotonic() + LOAD_S, time.monotonic() + 120
        while time.monotonic() < until or not any(
            one.records for one in seen
        ):  # retention may be faster than one of them
            assert time.monotonic() < deadline
            if any((folder / "commitlog").glob("[0-9]*")):
                seen.append(audit.run(None, folder, split_bytes=300_000))
                assert [one for one in seen[-1].findings if one.level != "note"] == []
        written = int(writer.communicate("stop")[0])
    last = audit.run(None, folder)
    assert last.findings == []
    assert last.records <= written if kept_ms else last.records == written
