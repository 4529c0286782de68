"""Doctor, progress, and the translation of Spark's errors."""

from __future__ import annotations

import io
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from penstock.cli.spark import spark as command
from penstock.errors import ConfigError, NoRoute
from penstock.spark.tools import doctor
from penstock.spark.tools.plainly import HINTS, plainly, told
from penstock.spark.tools.progress import Progress
from penstock.spark.tools.sessions import cause


def test_the_cause_is_the_innermost_python_error() -> None:
    spark = """[PYTHON_DATA_SOURCE_ERROR] Failed: Traceback (most recent call last):
  File "x.py", line 1, in f
    raise DataLoss("gone")
penstock.spark.read.planning.DataLoss: offsets 2 to 4 are gone

\tat org.apache.spark.Something"""
    assert cause(Exception(spark)) == "DataLoss: offsets 2 to 4 are gone"
    assert cause(ValueError("plain\nmore")) == "plain"
    assert cause(ValueError()) == "ValueError"


def test_doctor_finds_a_broken_neighbour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyspark_broken.py").write_text("raise RuntimeError('half installed')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "pyspark_broken", raising=False)
    found = {finding.thing: finding for finding in doctor.examine()}
    assert not found["pyspark_broken"].good
    assert "half installed" in found["pyspark_broken"].found
    assert found["pyspark_penstock"].good
    assert "BAD pyspark_broken" in doctor.report(list(found.values()))
    done = CliRunner().invoke(command, ["doctor"])
    assert done.exit_code == 1
    assert "PySpark" in done.output


def test_doctor_does_not_ask_for_what_is_not_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_version", lambda package: None if package == "grpcio" else "1.0")
    found = doctor._connect()
    assert found.good
    assert "not installed (grpcio)" in found.found
    monkeypatch.setattr(doctor, "_version", lambda package: None if package == "pyyaml" else "1.0")
    assert "spark-pipelines needs pyyaml" in doctor._connect().found


def test_the_cause_behind_java_is_the_innermost() -> None:
    java = """An error occurred while calling o1.sql.
: org.apache.spark.SparkException: Job aborted.
\tat org.apache.spark.X(Y.scala:1)
Caused by: java.io.IOException: No space left on device
\tat java.base/Z"""
    assert cause(Exception(java)) == "IOException: No space left on device"


def test_progress_is_a_line_now_and_then_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("penstock.spark.tools.progress.time.monotonic", lambda: now[0])
    out = io.StringIO()
    say = Progress("archive t", out=out)
    for done in range(0, 1000, 100):
        now[0] += 3
        say(done, 1000)
    assert out.getvalue().splitlines() == [
        "archive t: 300 of 1,000 messages, 33/s, 21 s left",
        "archive t: 700 of 1,000 messages, 33/s, 9 s left",
    ]
    out = io.StringIO()
    say = Progress("audit", "bytes", out=out)
    now[0] += 60  # Spark starts
    for done in (0, 0, 0, 0, 500, 500, 500, 800, 1000):
        say(done, 1000)
        now[0] += 11
    assert out.getvalue().splitlines() == [
        "audit: 0 of 1,000 bytes",
        "audit: 500 of 1,000 bytes, 11/s",
        "audit: 800 of 1,000 bytes, 10/s, 19 s left",
        "audit: 1,000 of 1,000 bytes, 11/s",
    ]
    quiet = Progress("x", out=out, quiet=True)
    quiet.note("never")
    assert "never" not in out.getvalue()


def test_progress_draws_over_itself_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    out = Terminal()
    say = Progress("archive t", out=out)
    say(5, 10)
    assert out.getvalue().startswith("\r\x1b[Karchive t [###############...............] 5 of 10")
    say.clear()
    assert out.getvalue().endswith("\r\x1b[K")


def test_a_cluster_without_free_cores_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from types import SimpleNamespace

    from penstock.spark.pipelines import parallel

    monkeypatch.setattr(parallel, "IDLE_S", 0.0)
    looked = threading.Semaphore(0)
    context = SimpleNamespace(
        setJobGroup=lambda *_: None,
        statusTracker=lambda: SimpleNamespace(getJobIdsForGroup=lambda group: looked.release() or []),
    )
    out = io.StringIO()
    with parallel._TaskWatch(SimpleNamespace(sparkContext=context), 4, 100, Progress("audit", out=out)):  # type: ignore[arg-type]
        for _ in range(4):
            assert looked.acquire(timeout=20)
    assert out.getvalue() == parallel.IDLE + "\n"


def test_an_error_of_ours_keeps_class_and_hint_and_loses_its_frames() -> None:
    def deep(n: int) -> None:
        deep(n - 1) if n else (_ for _ in ()).throw(NoRoute("no broker serves topic 'x'"))

    def rows() -> Iterator[int]:
        yield 1
        raise ConfigError("this cannot be", "try that")

    with pytest.raises(NoRoute) as error:
        plainly(deep)(30)
    text = "".join(traceback.format_exception(error.value.with_traceback(None)))
    assert text == f"penstock.errors.NoRoute: no broker serves topic 'x'\n  {HINTS['NoRoute']}\n"
    items = plainly(rows)()
    assert next(items) == 1
    with pytest.raises(ConfigError, match="this cannot be\n  try that"):
        next(items)
    behind = f"[FAILED] Failed: Traceback (most recent call last):\n  File x\n{text} SQLSTATE: 38000\n\tat org.X"
    assert told(ValueError(behind)) == f"NoRoute: no broker serves topic 'x'\n  {HINTS['NoRoute']}"
    assert cause(ValueError(behind)) == "NoRoute: no broker serves topic 'x'"
    assert told(ValueError("of somebody else")) == ""
