"""The demo's own words: folders that do not collide, cells that fit, files that are not there."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from click.testing import CliRunner

from penstock.demo import command
from penstock.demo.command import _cell, _new_folder, demo, run
from penstock.errors import ConfigError


def test_every_run_has_its_own_folder(tmp_path: Path) -> None:
    folders = {_new_folder(tmp_path / "out") for _ in range(5)}
    assert len(folders) == 5
    assert (tmp_path / "out" / ".gitignore").read_text() == "*\n"


def test_cells() -> None:
    assert (_cell(None), _cell(0.5), _cell("x" * 41)) == ("", "0.5", "x" * 39 + "…")


def test_a_file_that_is_not_there_starts_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        run([tmp_path / "nothing.csv"], tmp_path / "out", 10)


@pytest.mark.parametrize("events", ["0", "-5"])
def test_a_demo_of_no_events_is_refused_before_anything_starts(tmp_path: Path, events: str) -> None:
    told = CliRunner().invoke(demo, ["--events", events, "--out", str(tmp_path / "out")])
    assert (told.exit_code, "--events" in told.output) == (2, True)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("missing", ["pyspark", "plotext"])
def test_a_demo_that_lacks_something_says_what_to_install_and_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: None if name == missing else find_spec(name))
    told = CliRunner().invoke(command.demo, ["--out", str(tmp_path / "out")])
    assert told.exit_code == 1
    assert f"{missing} not installed\n  pip install 'penstock[spark,charts]'" in told.output
    assert not (tmp_path / "out").exists()
