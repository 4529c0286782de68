"""Each line of `penstock cheat` is a command with options that there are."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from commands import read
from penstock.cli.cheat import SHEETS
from penstock.cli.main import main


@pytest.mark.parametrize("line", [line for sheet in SHEETS.values() for _, line in sheet])
def test_lines(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("lines.txt", "rows.jsonl"):
        (tmp_path / name).touch()
    read(line)


def test_sheets() -> None:
    assert "penstock tail orders" in CliRunner().invoke(main, ["cheat", "read"]).output
    assert "# repair" in CliRunner().invoke(main, ["cheat"]).output
    assert CliRunner().invoke(main, ["cheat", "x"]).exit_code == 2
