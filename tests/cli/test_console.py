"""`penstock console` and the console that `penstock up` starts beside itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from click.testing import CliRunner

from penstock.cli import console as module
from penstock.cli.main import main
from polling import eventually


def test_what_does_not_go_together() -> None:
    told = CliRunner().invoke(main, ["console", "--user", "x"])
    assert told.exit_code == 2
    assert "--secret-file" in told.output


def test_without_the_extra_a_line_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    assert module.start_beside({"http": "127.0.0.1:1", "registry": "127.0.0.1:2"}, 0) is None
    assert "penstock[console]" in capsys.readouterr().err


@pytest.mark.parametrize("addresses", [{}, {"http": "127.0.0.1:1"}, {"http": "/a/path", "registry": "127.0.0.1:2"}])
def test_without_its_ports_a_line_says_so(addresses: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert module.start_beside(addresses, 0) is None
    assert "no console" in capsys.readouterr().err


def test_several_brokers_have_one_console(tmp_path: Path) -> None:
    ports = [f"--{name}-port=0" for name in ("remoting", "nsq", "http", "registry", "lookup", "lookup-http", "console")]
    command = [sys.executable, "-m", "penstock.cli", "up", "--data", str(tmp_path / "data"), "--brokers", "2", *ports]
    err = tmp_path / "err"
    environ = {**os.environ, "PENSTOCK_BROKER": "http://127.0.0.1:1"}
    with open(err, "wb") as file:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=file, env=environ)
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"ready ")

        def names() -> set[str]:
            lines = [line for line in err.read_text().splitlines() if line.startswith("ready ")]
            if not lines:
                return set()
            address = json.loads(lines[0].removeprefix("ready "))["console"]
            with urllib.request.urlopen(f"http://{address}/now.json") as answer:
                return {one["name"] for one in json.loads(answer.read())["head"].get("brokers", ())}

        eventually(lambda: len(names()) == 2, within_s=60)
    finally:
        process.terminate()
        process.wait(60)
        process.stdout.close()  # type: ignore[union-attr]


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_up_has_a_console_that_ends_with_it(tmp_path: Path, how: signal.Signals) -> None:
    ports = [f"--{name}-port=0" for name in ("remoting", "nsq", "http", "registry", "lookup", "lookup-http", "console")]
    command = [sys.executable, "-m", "penstock.cli", "up", "--data", str(tmp_path / "data"), *ports]
    with open(tmp_path / "err", "wb") as err:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=err)
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"ready ")

        def address() -> str:
            lines = [line for line in (tmp_path / "err").read_text().splitlines() if line.startswith("ready ")]
            return str(json.loads(lines[0].removeprefix("ready "))["console"]) if lines else ""

        eventually(address, within_s=60)
        with urllib.request.urlopen(f"http://{address()}/now.json") as answer:
            assert json.loads(answer.read())["head"]["name"] == "broker-a"
        os.kill(process.pid, how)
        process.wait(60)

        def gone() -> bool:
            try:
                urllib.request.urlopen(f"http://{address()}/static/console.css", timeout=10).close()
            except (urllib.error.URLError, OSError):
                return True
            return False

        eventually(gone, within_s=60)
    finally:
        if process.poll() is None:
            process.kill()
        process.stdout.close()  # type: ignore[union-attr]
