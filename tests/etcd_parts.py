"""Real etcd for tests: Debian's etcd-server, or any `etcd` on PATH of 3.4 or later."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import urllib.request
from base64 import b64decode
from pathlib import Path

import pytest

from polling import eventually
from ports import free_port


class Etcd:
    """Members as processes of their own, each with its data in a folder."""

    def __init__(self, folder: Path, members: int = 1) -> None:
        self.program = shutil.which("etcd") or ""
        if not self.program:
            pytest.skip("etcd is not on this machine: apt install etcd-server")
        self._folder = folder
        self._clients = [free_port() for _ in range(members)]
        self._peers = [free_port() for _ in range(members)]
        self.processes: list[subprocess.Popen[bytes] | None] = [None] * members

    @property
    def setting(self) -> str:
        return "etcd://" + ",".join(f"127.0.0.1:{port}" for port in self._clients)

    def start(self) -> Etcd:
        for n in range(len(self.processes)):
            self.start_member(n)
        self.answers()
        return self

    def start_member(self, n: int) -> None:
        peers = ",".join(f"m{k}=http://127.0.0.1:{port}" for k, port in enumerate(self._peers))
        client, peer = (f"http://127.0.0.1:{ports[n]}" for ports in (self._clients, self._peers))
        words = [
            self.program, "--name", f"m{n}", "--data-dir", str(self._folder / f"etcd-{n}"), "--listen-client-urls", client,
            "--advertise-client-urls", client, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
            "--initial-cluster", peers,
        ]  # fmt: skip
        with open(self._folder / f"etcd-{n}.log", "ab") as log:
            self.processes[n] = subprocess.Popen(words, stdout=log, stderr=log)

    def answers(self) -> None:
        def done() -> bool:
            try:
                self.ask("kv/range", {"key": "eA=="})
            except OSError:
                return False
            return True

        eventually(done, 60, "etcd does not answer")

    def ask(self, path: str, body: dict[str, object], member: int = 0) -> dict[str, object]:
        url = f"http://127.0.0.1:{self._clients[member]}/v3/{path}"
        with urllib.request.urlopen(url, json.dumps(body).encode(), timeout=10) as answer:
            found: dict[str, object] = json.load(answer)
        return found

    def keys(self) -> dict[str, bytes]:
        """All there is."""
        rows = self.ask("kv/range", {"key": "AA==", "range_end": "AA=="}).get("kvs", [])
        assert isinstance(rows, list)
        return {b64decode(row["key"]).decode(): b64decode(row.get("value", "")) for row in rows}

    def empty(self) -> None:
        """Everything that was written is gone."""
        self.ask("kv/deleterange", {"key": "AA==", "range_end": "AA=="})

    def signal(self, number: int, *members: int) -> None:
        for n in members or range(len(self.processes)):
            process = self.processes[n]
            if process is not None:
                os.kill(process.pid, number)

    def kill(self, *members: int) -> None:
        self.signal(signal.SIGKILL, *members)
        for n in members or range(len(self.processes)):
            process, self.processes[n] = self.processes[n], None
            if process is not None:
                process.wait()

    def stop(self) -> None:
        self.signal(signal.SIGCONT)
        self.kill()
