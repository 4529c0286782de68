"""Each pipeline killed with SIGKILL while it works, and run again: the right result. (Archive: test_live.)

What the kill waits for is the pipeline's own trace on disk or at the broker, drawn anew each time.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from spark_logs import fill_store

from penstock.client.reader import LogReader
from penstock.client.routes import MessageQueue
from penstock.errors import NoRoute
from penstock.spark.pipelines import archive, manifest, redrive, reindex, replay, tables
from penstock.spark.read.planning import Range

KILLS = int(os.environ.get("PENSTOCK_KILLS", "3"))
SRC = str(Path(__file__).parents[3] / "src")


def killed(code: str, words: list[str], when: Callable[[], bool]) -> bool:
    """Run Python code in a child and kill it, with all it started, when that is true; False when it ended before."""
    child = subprocess.Popen(
        [sys.executable, "-c", code, *words], env={**os.environ, "PYTHONPATH": SRC}, start_new_session=True
    )
    deadline = time.monotonic() + 180
    try:
        while not when():
            if child.poll() is not None:
                assert child.returncode == 0
                return False
            assert time.monotonic() < deadline, "nothing to see in time"
            time.sleep(0.002)
        return child.poll() is None
    finally:
        os.killpg(child.pid, signal.SIGKILL) if child.poll() is None else None
        child.wait(20)


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


_REINDEX = """
import sys
from penstock.spark.pipelines import reindex
reindex.run(None, sys.argv[1], to=sys.argv[2], split_bytes=3000)
"""


def test_reindex(tmp_path: Path) -> None:
    store = fill_store(tmp_path / "store", 350)
    dice, happened = random.Random(1), 0
    for n in range(KILLS):
        to = tmp_path / f"new{n}"
        least = dice.randrange(1, 20)
        happened += killed(
            _REINDEX, [str(store), str(to)], lambda to=to, least=least: len(list(to.glob(".parts/*"))) >= least
        )  # type: ignore[misc]
        reindex.run(None, store, to=to, split_bytes=3000)
        assert files(to / "consumequeue") == files(store / "consumequeue")
        assert list(files(to / "index").values()) == list(files(store / "index").values())
    assert happened


_COMPACT = """
import sys
from pathlib import Path
from penstock.spark.pipelines import tables
tables.compact(Path(sys.argv[1]), "t", 40)
"""


@pytest.mark.filterwarnings("ignore")
def test_compaction(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    dice, happened = random.Random(2), 0
    for n in range(KILLS):
        folder = tmp_path / str(n)
        queue = MessageQueue("t", "a", 0)
        for at in range(0, 800, 4):
            path = manifest.file_of(folder, Range(queue, at, at + 4))
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.table({"offset": list(range(at, at + 4))}), path)
        place, least = path.parent, dice.randrange(1, 12)
        joined = lambda place=place: sum(span(p) >= 40 for p in place.glob("[0-9]*.parquet"))  # noqa: E731
        happened += killed(_COMPACT, [str(folder)], lambda least=least, joined=joined: joined() >= least)  # type: ignore[misc]
        tables.compact(folder, "t", 40)
        found = Counter(o for p in place.glob("[0-9]*.parquet") for o in pq.read_table(p)["offset"].to_pylist())
        assert found == Counter(range(800))
        assert len(list(place.glob("[0-9]*.parquet"))) == 20
    assert happened


def span(path: Path) -> int:
    first, _, last = path.stem.partition("-")
    return int(last) - int(first) + 1


def published(registry: str, topic: str) -> int:
    with LogReader(registry) as reader:
        try:
            return sum(reader.offsets(queue, durable=False)[1] for queue in reader.queues(topic))
        except NoRoute:
            return 0


def counted(spark: Any, registry: str, topic: str) -> Counter[int]:
    rows = spark.read.format("penstock").options(registry=registry, columns="value").load(topic).collect()
    return Counter(int(bytes(row["value"]).rstrip(b".")) for row in rows)


_REPLAY = """
import sys
from penstock.spark import session
from penstock.spark.pipelines import replay
spark = session(quick=True, master="local[2, 2]")
replay.run(spark, archive=sys.argv[1], registry=sys.argv[2], renamed={"played": "played-again"})
"""


@pytest.mark.spark
@pytest.mark.filterwarnings("ignore")
def test_replay(spark: Any, registry: str, publish: Callable[..., str], tmp_path: Path) -> None:
    publish("played", 400)
    archive.run(spark, "played", tmp_path, registry=registry, file_records=20)
    assert killed(_REPLAY, [str(tmp_path), registry], lambda: published(registry, "played-again") >= 60)
    assert published(registry, "played-again") < 400, "the kill came too late to show anything"
    replay.run(spark, archive=tmp_path, registry=registry, renamed={"played": "played-again"})
    assert counted(spark, registry, "played-again") == Counter(range(400))


_REDRIVE = """
import sys
from penstock.spark import session
from penstock.spark.pipelines import redrive
redrive.run(session(quick=True, master="local[2, 2]"), "hurt", registry=sys.argv[1], state=sys.argv[2], dry_run=False)
"""


@pytest.mark.spark
@pytest.mark.filterwarnings("ignore")
def test_redrive(spark: Any, registry: str, tmp_path: Path) -> None:
    dead = spark.range(300).selectExpr("cast(id as string) as value", "map('RETRY_TOPIC', 'healed') as properties")
    dead.write.format("penstock").options(registry=registry).mode("append").save("%DLQ%hurt")
    notes = lambda: [json.loads(path.read_text()) for path in tmp_path.glob("*.json")]  # noqa: E731
    assert killed(_REDRIVE, [registry, str(tmp_path)], lambda: any(note["pending"] for note in notes()))
    again = redrive.run(spark, "hurt", registry=registry, state=tmp_path, dry_run=False)
    assert (again.resumed, again.rows) == (300, 0)
    assert counted(spark, registry, "healed") == Counter(range(300))
    assert redrive.run(spark, "hurt", registry=registry, state=tmp_path, dry_run=False).rows == 0
