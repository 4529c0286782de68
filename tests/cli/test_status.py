"""`penstock status`: its exit codes, against a real broker, nobody, a stranger and one that says nothing."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from typing import Any

import pytest
from click.testing import CliRunner

from penstock.cli.main import main
from penstock.cli.status import TIMED_OUT, ask
from penstock.testing import Broker


def status(*words: str) -> tuple[int, list[dict[str, Any]]]:
    result = CliRunner().invoke(main, ["status", "--json", *words])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, [json.loads(line) for line in result.output.splitlines() if line.startswith("{")]


def test_broker_and_registry(broker: Broker) -> None:
    code, rows = status(broker.http, broker.lookup_http)
    assert code == 0
    assert [(row["state"], row["role"]) for row in rows] == [("ready", "broker"), ("ready", "registry")]
    said = CliRunner().invoke(main, ["status"], env={"PENSTOCK_HTTP": broker.http})
    assert said.exit_code == 0
    assert f"{broker.http}  ready  broker broker-a" in said.output


def test_nobody_and_strangers() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        assert status(f"127.0.0.1:{closed.getsockname()[1]}")[0] == 1
    assert status("no port")[0] == 2
    for answer in (b"SSH-2.0-x\r\n", b"HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\n[]", b""):
        with socket.create_server(("127.0.0.1", 0)) as stranger:
            address = f"127.0.0.1:{stranger.getsockname()[1]}"

            def speak(stranger: socket.socket = stranger, answer: bytes = answer) -> None:
                peer = stranger.accept()[0]
                peer.recv(1000)
                peer.sendall(answer)
                peer.close()

            thread = threading.Thread(target=speak)
            thread.start()
            assert ask(address, 30)["state"] == "not reached"
            thread.join()


def test_one_that_says_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        code, rows = status("--timeout", "0.05", f"127.0.0.1:{silent.getsockname()[1]}")
    assert (code, rows[0]["state"]) == (TIMED_OUT, "timed out")


def test_a_health_check_imports_little() -> None:
    code = (
        "import sys; from penstock.cli.main import main; main(['status', '127.0.0.1:1'], standalone_mode=False);"
        "print([m for m in ('penstock.client', 'asyncio', 'uvicorn') if m in sys.modules])"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert told.stdout.splitlines()[-1] == "[]", told.stdout + told.stderr


def test_what_is_no_address() -> None:
    """A usage error, from an argument or the environment; ``:4151`` is this machine's."""
    for bad in ("[::1", "a b:3", "http://[::1]:4151", "host:99999", "host:x"):
        assert status(bad)[0] == 2, bad
        assert CliRunner().invoke(main, ["status"], env={"PENSTOCK_HTTP": bad.replace(" ", "/")}).exit_code == 2, bad
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert status("--timeout", "0.05", f":{silent.getsockname()[1]}")[0] == TIMED_OUT


def test_brokers_are_asked_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    both = threading.Barrier(2, timeout=60)

    def waits_for_the_other(address: str, timeout_s: float) -> dict[str, object]:
        both.wait()
        return {"state": "ready" if address == "a" else "timed out", "reasons": []}

    monkeypatch.setattr("penstock.cli.status.ask", waits_for_the_other)
    code, rows = status("a", "b")
    assert (code, [(row["address"], row["state"]) for row in rows]) == (TIMED_OUT, [("a", "ready"), ("b", "timed out")])
