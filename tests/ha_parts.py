"""Shared by the tests of replication: brokers as processes, a peer that speaks the frames, logs compared."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from loglines import sentences
from penstock.wire import ha, haframe
from polling import eventually

SMALL = {
    "mapped_file_size_commit_log": 1 << 20, "mapped_file_size_consume_queue": 20_000, "max_hash_slot_num": 10_000,
    "max_index_num": 40_000,
}  # fmt: skip


class Process:
    """A registry or a broker as a process of its own; `kill` is kill -9."""

    def __init__(self, command: str, folder: Path, log: Path, /, **settings: object) -> None:
        self.words = [sys.executable, "-m", "penstock.cli", command, "--data", str(folder)]
        for name, value in settings.items():
            self.words += ["--set", f"{name}={value}"]
        self.environment: dict[str, str] = {}  # beside that of the tests
        self._log = log
        self.folder = folder
        self.addresses: dict[str, str] = {}
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> Process:
        with open(self._log, "ab") as log:
            environment = {**os.environ, "PYTHONFAULTHANDLER": "1", **self.environment}
            self.process = subprocess.Popen(self.words, stdout=subprocess.PIPE, stderr=log, env=environment)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith(b"ready "), f"ended with {self.process.wait(10)}: {self._log.read_text()}"
        self.addresses = json.loads(line[6:])
        return self

    def kill(self) -> None:
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(60)
        if self.process is not None and self.process.stdout is not None:
            self.process.stdout.close()

    def says(self, words: str) -> int:
        """How often its log says this."""
        return sentences(self._log).count(words)


def log_bytes(folder: Path, end: int) -> bytes:
    """The commit log up to a position."""
    found, begin = b"", -1
    for path in sorted((folder / "commitlog").iterdir()):
        begin = int(path.name) if begin < 0 else begin
        found += path.read_bytes()
    return found[: end - begin]


def record_in(log: bytes, body: bytes) -> int:
    """Where the record with this body stands in a log of one segment."""
    position = 0
    while True:
        size = int.from_bytes(log[position : position + 4], "big")
        if body in log[position : position + size]:
            return position
        position += size


class Peer:
    """A socket at an ha_port."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=30)
        self.nonce = b""
        self._data = b""

    def greet(self) -> None:
        self.socket.sendall(ha.OPENER)
        data = b""
        while len(data) < ha.GREETING_BYTES:
            more = self.socket.recv(ha.GREETING_BYTES - len(data))
            assert more, "closed instead of a greeting"
            data += more
        self.nonce, _ = ha.read_greeting(data)

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def frame(self) -> tuple[haframe.Head, bytes] | None:
        """The next frame and what follows its head; None at the end of the connection."""
        while True:
            head, _ = haframe.read_head(self._data, 0, len(self._data))
            if head is not None:
                body, self._data = self._data[head.fixed : head.end], self._data[head.end :]
                return head, body
            try:
                more = self.socket.recv(1 << 16)
            except ConnectionError:
                return None
            if not more:
                return None
            self._data += more

    def rest(self) -> bytes:
        """All that comes until the connection ends."""
        found = b""
        try:
            while more := self.socket.recv(1 << 16):
                found += more
        except ConnectionError:
            pass
        return found

    def close(self) -> None:
        self.socket.close()


__all__ = ["SMALL", "Peer", "Process", "eventually", "log_bytes"]
