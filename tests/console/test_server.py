"""The console as a process: its line, its pages, its end with its parent's."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request

import pytest

from penstock.console.server import NICE, Settings, console_of, run
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


@pytest.mark.parametrize("end", ["input", "SIGTERM"])
def test_it_ends_at_once_with_pages_open_and_gives_way_to_others(broker: Broker, end: str) -> None:
    """A tab that is open holds nobody up, and is no error. Meanwhile a broker on the same cores goes first."""
    command = [
        sys.executable, "-m", "penstock.cli", "console", "--broker", f"http://{broker.http}", "-n", broker.registry,
        "--port", "0", "--ends-with-input",
    ]  # fmt: skip
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        address = json.loads(process.stdout.readline().removeprefix(b"ready "))["console"]
        with urllib.request.urlopen(f"http://{address}/live?of=/topics") as stream:
            assert stream.readline().startswith(b"data: ")
            assert os.getpriority(os.PRIO_PROCESS, process.pid) >= NICE
            if end == "input":
                process.stdin.close()
            else:
                process.send_signal(signal.SIGTERM)
            while stream.readline():
                pass
        told = process.stderr.read()
        process.wait(60)
    assert process.returncode in (0, -signal.SIGTERM)
    assert b'"error"' not in told
    assert b"Traceback" not in told
