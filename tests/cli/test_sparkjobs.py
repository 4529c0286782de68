"""The jobs of `penstock spark` as they are typed: a wrong folder is two lines."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from penstock.cli.spark import spark
from penstock.cli.sparkjobs import audit, stats


def test_an_archive_that_is_none(tmp_path: Path) -> None:
    for topic in ("orders", ""):
        told = CliRunner().invoke(spark, ["compact", topic, "--archive", str(tmp_path)])
        assert (told.exit_code, f"has no archive of topic {topic!r}" in told.stderr) == (1, True)
        assert not list(tmp_path.iterdir())
    assert CliRunner().invoke(spark, ["compact", "orders", "--archive", str(tmp_path), "--records", "0"]).exit_code == 2


@pytest.mark.parametrize(("job", "words"), [(audit, []), (stats, ["--window", "all"])])
def test_a_folder_that_is_no_store(tmp_path: Path, job: object, words: list[str]) -> None:
    name = next(name for name, command in spark.commands.items() if command is job)
    told = CliRunner().invoke(spark, [name, str(tmp_path), *words, "--master", "none"])
    assert told.exit_code == 1
    assert len(told.output.splitlines()) == 2
    assert told.output.startswith("penstock: ")
