"""The console as a process: its line, its pages, its end with its parent's."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request

import pytest

from penstock.console.server import Settings, console_of, run
from penstock.errors import ConfigError
from penstock.security import PLAIN
from penstock.testing import Broker


def test_a_process_of_its_own(broker: Broker) -> None:
    command = [
        sys.executable, "-m", "penstock.cli", "console", "--broker", f"http://{broker.http}", "-n", broker.registry,
        "--port", "0", "--ends-with-input",
    ]  # fmt: skip
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        line = process.stdout.readline()
        assert line.startswith(b"ready "), line
        address = json.loads(line.removeprefix(b"ready "))["console"]
        with urllib.request.urlopen(f"http://{address}/topics") as answer:
            assert b"orders" in answer.read()
            assert "server" not in answer.headers
        process.stdin.close()
        assert process.wait(30) == 0


def test_it_is_not_opened_to_others_by_accident() -> None:
    with pytest.raises(ConfigError, match="other machines"):
        run(Settings(host="0.0.0.0", port=0), PLAIN)


def test_settings_make_a_console() -> None:
    console = console_of(Settings(broker="localhost:1", allow_changes=True, allowed_hosts=("a.example",)), PLAIN)
    assert console.site.allow_changes
    assert console.guard.host_is_ours("a.example")
    assert console.site.upstream.url == "http://localhost:1"
