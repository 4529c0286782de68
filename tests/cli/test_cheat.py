"""Each line of `penstock cheat` is a command with options that there are."""

from __future__ import annotations

import shlex
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from penstock.cli.cheat import SHEETS
from penstock.cli.main import main


@pytest.mark.parametrize("line", [line for sheet in SHEETS.values() for _, line in sheet])
def test_lines(line: str, tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(str(tmp_path))
    for name in ("lines.txt", "rows.jsonl"):
        open(name, "w").close()
    Path("penstock-data").mkdir()
    words, command = shlex.split(line), main
    assert words.pop(0) == "penstock"
    context = click.Context(main)
    found: click.Command = command
    while isinstance(found, click.Group) and words:
        inner = found.get_command(context, words[0])
        assert inner is not None, words[0]
        found = inner
        words.pop(0)
    with found.make_context(found.name, words):
        pass


def test_sheets() -> None:
    assert "penstock tail orders" in CliRunner().invoke(main, ["cheat", "read"]).output
    assert "# repair" in CliRunner().invoke(main, ["cheat"]).output
    assert CliRunner().invoke(main, ["cheat", "x"]).exit_code == 2
