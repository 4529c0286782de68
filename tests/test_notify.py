"""What systemd is told, over a real socket."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from pathlib import Path

import pytest

from penstock.notify import Notify


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


def test_nobody_listens(tmp_path: Path) -> None:
    for address in ("", str(tmp_path / "gone"), "@" + secrets.token_hex(8), "nonsense", "/" + "x" * 500):
        Notify({"NOTIFY_SOCKET": address}).stopping()


def test_the_watchdog_of_another_process_is_not_ours() -> None:
    asked = {"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "30000"}
    assert Notify({**asked, "WATCHDOG_PID": "1"}).beat_s == 0
    assert Notify({**asked, "WATCHDOG_USEC": "x"}).beat_s == 0
    assert Notify(asked).beat_s > 0
