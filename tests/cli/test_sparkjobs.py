"""The jobs of `penstock spark` as they are typed: a wrong folder is two lines."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from penstock.cli.spark import spark
from penstock.cli.sparkjobs import audit, stats


@pytest.mark.parametrize(("job", "words"), [(audit, []), (stats, ["--window", "all"])])
def test_a_folder_that_is_no_store(tmp_path: Path, job: object, words: list[str]) -> None:
    name = next(name for name, command in spark.commands.items() if command is job)
    told = CliRunner().invoke(spark, [name, str(tmp_path), *words, "--master", "none"])
    assert told.exit_code == 1
    assert len(told.output.splitlines()) == 2
    assert told.output.startswith("penstock: ")
