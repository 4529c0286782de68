"""The jobs of `penstock spark` as they are typed: a wrong folder is two lines."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from penstock import Message, Producer
from penstock.cli.spark import spark
from penstock.cli.sparkjobs import audit, stats
from penstock.testing import Broker


def test_an_archive_that_is_none(tmp_path: Path) -> None:
    for topic in ("orders", ""):
        told = CliRunner().invoke(spark, ["compact", topic, "--archive", str(tmp_path)])
        assert (told.exit_code, f"has no archive of topic {topic!r}" in told.stderr) == (1, True)
        assert not list(tmp_path.iterdir())
    assert CliRunner().invoke(spark, ["compact", "orders", "--archive", str(tmp_path), "--records", "0"]).exit_code == 2


@pytest.mark.parametrize(
    "words",
    [
        ("audit", ".", "--split-bytes", "0"), ("reindex", ".", "--split-bytes", "-1"), ("search", "--path", ".", "--limit", "0"),
        ("replay", "--path", ".", "--rate", "-1"),
    ],
)  # fmt: skip
def test_a_number_that_makes_no_sense_is_refused_at_once(words: tuple[str, ...]) -> None:
    told = CliRunner().invoke(spark, [*words, "--master", "none"])
    assert (told.exit_code, "is not in the range" in told.output) == (2, True)


def test_a_hit_does_nothing_to_a_terminal(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker, Producer(broker.registry) as producer:
        producer.send(Message("orders", b"a\x1b[2J\nb", keys=("k\x1b",), tags="t\x1b"))
    search = ["search", "--path", str(tmp_path), "--topic", "orders", "--master", "none"]
    found, summary = CliRunner().invoke(spark, search).stdout.splitlines()
    assert found.endswith("  t\\x1b  k\\x1b  a\\x1b[2J\\nb")
    assert summary.startswith("1 found")
    counted = CliRunner().invoke(spark, ["stats", "--path", str(tmp_path), "--by", "tags", "--master", "none"])
    assert "\x1b" not in counted.stdout


@pytest.mark.parametrize(("job", "words"), [(audit, []), (stats, ["--window", "all"])])
def test_a_folder_that_is_no_store(tmp_path: Path, job: object, words: list[str]) -> None:
    name = next(name for name, command in spark.commands.items() if command is job)
    told = CliRunner().invoke(spark, [name, str(tmp_path), *words, "--master", "none"])
    assert told.exit_code == 1
    assert len(told.output.splitlines()) == 2
    assert told.output.startswith("penstock: ")
