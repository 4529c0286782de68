"""The group `penstock spark`: its commands are there without Spark, and a template is a project."""

from __future__ import annotations

from click.testing import CliRunner

from penstock.cli import sparkjobs
from penstock.cli.spark import spark

JOBS = {"audit", "stats", "search", "reindex", "compact", "replay", "redrive"}


def test_every_command_explains_itself() -> None:
    assert {"archive", "template", "doctor", *JOBS} <= set(spark.commands)
    for name in spark.commands:
        told = CliRunner().invoke(spark, [name, "--help"])
        assert told.exit_code == 0
        assert "Usage:" in told.output


def test_jobs_are_registered_by_their_names() -> None:
    assert all(spark.commands[name] is getattr(sparkjobs, name) for name in JOBS)
