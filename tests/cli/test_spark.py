"""The group `penstock spark`: its commands are there without Spark, and a template is a project."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from penstock import Message, Producer
from penstock.cli import sparkjobs
from penstock.cli.main import main
from penstock.cli.spark import spark
from penstock.testing import Broker

JOBS = {"audit", "stats", "search", "reindex", "compact", "replay", "redrive"}


def test_every_command_explains_itself() -> None:
    assert {"archive", "template", "doctor", *JOBS} <= set(spark.commands)
    for name in spark.commands:
        told = CliRunner().invoke(spark, [name, "--help"])
        assert told.exit_code == 0
        assert "Usage:" in told.output


def test_the_registry_is_that_of_every_other_verb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PENSTOCK_REGISTRY, or the context in use; also -n."""
    with Broker() as broker, Producer(broker.registry) as producer:
        producer.send(Message("orders", b"x"))
        monkeypatch.setenv("PENSTOCK_SPARK_MASTER", "none")
        archive = ["spark", "archive", "orders", "--to", str(tmp_path / "archive"), "--dry-run"]
        stats = ["spark", "stats", "orders", "--window", "all"]
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
        assert CliRunner().invoke(main, ["context", "add", "here", "-n", broker.registry]).exit_code == 0
        for words, more in ((archive, "would write"), (stats, "stored bytes")):
            for flags, environ in (
                ([], {"PENSTOCK_REGISTRY": broker.registry}), ([], {"PENSTOCK_CONTEXT": "here"}), (["-n", broker.registry], {}),
            ):  # fmt: skip
                told = CliRunner().invoke(main, [*words, *flags], env=environ)
                assert (told.exit_code, more in told.stdout) == (0, True), (flags, environ, told.output)
        done = CliRunner().invoke(
            main, ["spark", "template", str(tmp_path / "my shop")], env={"PENSTOCK_CONTEXT": "here"}
        )
        assert f"cd '{tmp_path / 'my shop'}' && " in done.stdout
        assert broker.registry in (tmp_path / "my shop/transformations/orders.py").read_text()


def test_jobs_are_registered_by_their_names() -> None:
    assert all(spark.commands[name] is getattr(sparkjobs, name) for name in JOBS)
