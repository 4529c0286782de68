"""The demo as a user runs it: a child process with a small file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.spark
def test_a_file_becomes_a_table_and_a_chart(tmp_path: Path) -> None:
    lines = [f"2026-01-01 00:{n // 60:02d}:{n % 60:02d},{n % 17}" for n in range(600)]
    (tmp_path / "load.csv").write_text("time,value\n" + "\n".join(lines) + "\n")
    source = str(Path(__file__).parents[2] / "src")
    done = subprocess.run(
        [sys.executable, "-m", "penstock.demo", str(tmp_path / "load.csv"), "--out", str(tmp_path / "out")],
        env={**os.environ, "PYTHONPATH": source},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr
    (folder,) = (path for path in (tmp_path / "out").iterdir() if path.is_dir())
    told = json.loads((folder / "summary.json").read_text())["topics"][0]
    assert told["published"] == told["consumed"] == told["archived"] == told["rows"] == 600
    assert (folder / "chart.png").stat().st_size > 10_000
    assert (folder / "table" / "load.parquet" / "_SUCCESS").exists()
    assert "log4j" not in done.stderr
    assert "WARN" not in done.stderr
    for part in ("published", "consumed by group", "first rows", "mean value", str(folder)):
        assert part in done.stdout


def test_a_wrong_file_is_one_line_and_no_broker(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "penstock.demo", str(tmp_path / "no.csv"), "--out", str(tmp_path / "out")],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "no such file" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()
