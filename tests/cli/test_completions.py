"""Completion as a shell asks for it: names of a live broker, and nothing at all where there is none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from cli.conftest import Run
from cli.test_tools import beside
from penstock.cli.completions import SHELLS
from penstock.cli.main import main
from penstock.testing import Broker


def offered(registry: str, *words: str) -> list[str]:
    told = subprocess.run(
        [sys.executable, "-c", "from penstock.cli.main import main; main(prog_name='penstock')"],
        capture_output=True, text=True, timeout=60,
        env={**os.environ, "_PENSTOCK_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(["penstock", *words]),
             "COMP_CWORD": str(len(words)), "PENSTOCK_REGISTRY": registry},
    )  # fmt: skip
    assert told.returncode == 0, told.stderr
    assert "Traceback" not in told.stderr
    return [line.partition(",")[2] for line in told.stdout.splitlines() if line]


def test_names(run: Run, broker: Broker) -> None:
    run("topic", "add", "orders", "invoices")
    run("topic", "add", "jobs", "--kind", "queue")
    run("channel", "add", "jobs", "mail")
    run("group", "reset", "billing", "orders", "--new")
    assert offered(broker.registry, "tail", "o") == ["orders"]
    assert set(offered(broker.registry, "topic", "describe", "")) >= {"orders", "invoices", "jobs"}
    assert offered(broker.registry, "channel", "info", "jobs", "") == ["mail"]
    assert offered(broker.registry, "group", "lag", "bil") == ["billing"]
    assert offered(broker.registry, "topic", "pur") == ["purge"]
    assert offered(broker.registry, "tail", "jobs", "--channel", "") == ["mail"]
    assert offered(broker.registry, "delayed", "ls", "--channel", "") == ["billing", "mail"]
    assert offered(broker.registry, "client", "ls", "--of", "") == ["billing", "invoices", "jobs", "mail", "orders"]
    assert offered(broker.registry, "group", "lag", "") == ["billing"]
    run("topic", "add", "%DLQ%billing")
    run("topic", "add", "jobs.mail.dead", "--kind", "queue")
    assert offered(broker.registry, "dlq", "redrive", "") == ["billing", "jobs.mail"]
    assert offered(broker.registry, "dlq", "redrive", "billing", "--to", "inv") == ["invoices"]
    assert offered(broker.registry, "import", "x", "--to", "inv") == ["invoices"]


async def test_names_beside_a_broker_that_is_away(broker: Broker) -> None:
    """One that did not answer took away the names that the others know."""
    async with beside(broker, "gone", "127.0.0.1:1"):
        assert offered(broker.registry, "channel", "info", "seen", "") == ["c"]
        assert offered(broker.registry, "group", "lag", "g") == ["g"]


def test_contexts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("prod", "test"):
        assert CliRunner().invoke(main, ["context", "add", name, "-n", "127.0.0.1:1"]).exit_code == 0
    assert offered("127.0.0.1:1", "context", "use", "p") == ["prod"]


def test_without_a_broker_nothing_is_offered() -> None:
    assert offered("127.0.0.1:1", "tail", "o") == []


@pytest.mark.parametrize("shell", SHELLS)
def test_scripts(shell: str) -> None:
    said = CliRunner().invoke(main, ["completion", shell])
    assert (said.exit_code, "_PENSTOCK_COMPLETE" in said.output) == (0, True)
    assert CliRunner().invoke(main, ["completion", "csh"]).exit_code == 2
