"""Doctor, progress, and the translation of Spark's errors."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import penstock.spark.kernel
from penstock.cli.spark import spark as command
from penstock.spark.tools import doctor


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


def test_doctor_works_where_nothing_of_spark_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_version", lambda package: None)
    monkeypatch.delattr(penstock.spark.kernel, "batches", raising=False)
    monkeypatch.setitem(sys.modules, "penstock.spark.kernel.batches", None)
    found = {finding.thing: finding for finding in doctor.examine()}
    wanted = [found[thing] for thing in ("decoder", "PySpark", "pyarrow", "pandas")]
    assert all("pip install 'penstock[spark]'" in finding.advice for finding in wanted)
    assert "pyspark_penstock" not in found  # Spark would look it up, and there is none


def test_doctor_does_not_ask_for_what_is_not_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_version", lambda package: None if package == "grpcio" else "1.0")
    found = doctor._connect()
    assert found.good
    assert "not installed (grpcio)" in found.found
    monkeypatch.setattr(doctor, "_version", lambda package: None if package == "pyyaml" else "1.0")
    assert "spark-pipelines needs pyyaml" in doctor._connect().found


def test_doctor_says_what_to_do_where_the_port_of_a_pipeline_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_version", lambda package: "1.0")
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        port = other.getsockname()[1]
        monkeypatch.setattr(doctor, "CONNECT_PORT", port)
        other.listen()
        found = doctor._connect()
        assert found.good
        assert f"port {port} is taken: SPARK_TESTING=1" in found.found
    assert "taken" not in doctor._connect().found
