"""What systemd is told, over a real socket."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.notify import Notify

UP = [sys.executable, "-m", "penstock.cli", "up", "--console-port=-1"]
UP += [f"--{name}-port=0" for name in ("registry", "remoting", "nsq", "http", "lookup", "lookup-http")]


@pytest.mark.parametrize("abstract", [False, True])
async def test_each_state(tmp_path: Path, abstract: bool) -> None:
    name = f"@penstock-{secrets.token_hex(8)}" if abstract else str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(name.replace("@", "\0"))
        manager.settimeout(30)
        loop = asyncio.get_running_loop()
        notify = Notify({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "30000", "WATCHDOG_PID": str(os.getpid())})
        assert notify.beat_s == 0.01
        notify.ready()
        assert manager.recv(1000) == f"READY=1\nMAINPID={os.getpid()}".encode()
        for _ in range(3):  # as long as the loop turns
            assert await loop.run_in_executor(None, manager.recv, 1000) == b"WATCHDOG=1"
        notify.stopping()
        heard = b""
        while heard != b"STOPPING=1":
            heard = manager.recv(1000)


def test_settings_that_are_taken_anew_are_told_of(tmp_path: Path) -> None:
    """Whatever becomes of them: systemd waits for the second word."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "s"))
        manager.settimeout(30)
        notify = Notify({"NOTIFY_SOCKET": str(tmp_path / "s")})

        def wrong() -> None:
            assert manager.recv(1000).startswith(b"RELOADING=1\nMONOTONIC_USEC=")
            raise ValueError

        with pytest.raises(ValueError):
            notify.around(wrong)()
        assert manager.recv(1000) == b"READY=1"


def test_sighup_tells_systemd(tmp_path: Path) -> None:
    """It was told of a start and of an end alone."""
    file = tmp_path / "p.toml"
    file.write_text("[broker]\n")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "s"))
        manager.settimeout(60)
        for brokers in ("1", "2"):
            words = [*UP, "--data", str(tmp_path / f"data{brokers}"), "--config", str(file), "--brokers", brokers]
            told = {**os.environ, "NOTIFY_SOCKET": str(tmp_path / "s")}
            with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=told) as process:
                try:
                    assert manager.recv(1000) == f"READY=1\nMAINPID={process.pid}".encode()
                    for text in ("[broker]\nmax_topics = 3\n", "[broker\n"):
                        file.write_text(text)
                        process.send_signal(signal.SIGHUP)
                        assert manager.recv(1000).startswith(b"RELOADING=1\nMONOTONIC_USEC=")
                        assert manager.recv(1000) == b"READY=1"
                finally:
                    process.terminate()
                assert manager.recv(1000) == b"STOPPING=1"
            file.write_text("[broker]\n")


def test_nobody_listens(tmp_path: Path) -> None:
    for address in ("", str(tmp_path / "gone"), "@" + secrets.token_hex(8), "nonsense", "/" + "x" * 500):
        Notify({"NOTIFY_SOCKET": address}).stopping()


def test_the_watchdog_of_another_process_is_not_ours() -> None:
    asked = {"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "30000"}
    assert Notify({**asked, "WATCHDOG_PID": "1"}).beat_s == 0
    assert Notify({**asked, "WATCHDOG_USEC": "x"}).beat_s == 0
    assert Notify(asked).beat_s > 0
