"""Spoilt inputs to every listener of a real `penstock up`, with a good client beside that must not notice.

What is asked of the broker: it lives, the good client's messages are stored and answered within `PATIENCE_S`, nothing
raises (its log has no traceback), its memory does not grow with the inputs, it stops cleanly and its store is sound.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from fuzz.inputs import Target, spoil, targets

SRC = Path(__file__).parents[2] / "src"
PATIENCE_S = 5.0
GROWTH_BYTES_MAX = 64 << 20
INPUTS_A_CONNECTION = 12
SMALL = {
    "mapped_file_size_commit_log": 16 << 20,
    "mapped_file_size_consume_queue": 60_000,
    "max_hash_slot_num": 5_000,
    "max_index_num": 20_000,
    "queue_segment_bytes": 1 << 20,
}
Tell = Callable[[str], None]


class Victim:
    """A `penstock up` in a process of its own."""

    def __init__(
        self, folder: Path, environment: dict[str, str] | None = None, settings: dict[str, int] | None = None
    ) -> None:
        self.log = folder / "broker.log"
        command = [sys.executable, "-m", "penstock.cli", "up", "--data", str(folder / "data")]
        for port in ("remoting", "nsq", "http", "registry", "lookup", "lookup-http"):
            command += [f"--{port}-port", "0"]
        for name, value in (SMALL if settings is None else settings).items():
            command += ["--set", f"{name}={value}"]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True,
                env={**os.environ, "PYTHONPATH": str(SRC), **(environment or {})},
            )  # fmt: skip
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("ready "), self.log.read_text()[-2000:]
        self.addresses: dict[str, str] = json.loads(line.removeprefix("ready "))

    def connect(self, role: str) -> socket.socket:
        host, _, port = self.addresses[role].rpartition(":")
        return socket.create_connection((host, int(port)), PATIENCE_S)

    def memory(self) -> int:
        """Bytes that are the process's own, without the files it maps."""
        info = psutil.Process(self.process.pid).memory_info()
        return int(info.rss - info.shared)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(40)
        finally:
            if self.process.poll() is None:
                self.process.kill()
            assert self.process.stdout is not None
            self.process.stdout.close()


class GoodClient(threading.Thread):
    """Publishes to both kinds of topic and reads what it published, all the time."""

    def __init__(self, victim: Victim) -> None:
        super().__init__(daemon=True)
        self.victim = victim
        self.over = threading.Event()
        self.rounds = 0
        self.slowest_s = 0.0
        self.failure = ""

    def run(self) -> None:
        from fronts.nsq_peer import NsqPeer
        from fronts.raw_peer import RawPeer

        try:
            with contextlib.ExitStack() as stack:
                nsq, reader = (
                    stack.enter_context(contextlib.closing(NsqPeer(self.victim.addresses["nsq"]))) for _ in "ab"
                )
                raw = stack.enter_context(RawPeer(self.victim.addresses["remoting"]))
                for peer in (nsq, raw, reader):
                    peer.socket.settimeout(PATIENCE_S)
                reader.subscribe(b"good", b"c", 1)
                while not self.over.wait(0.01):
                    self.round(nsq, reader, raw)
        except (OSError, EOFError, AssertionError) as error:
            self.failure = f"after {self.rounds} rounds: {error!r}"

    def round(self, nsq: Any, reader: Any, raw: Any) -> None:
        """One message of each kind there and back."""
        began = time.monotonic()
        body = b"good %d" % self.rounds
        nsq.publish(b"good", body)
        message = reader.message()
        assert message.body == body, message
        reader.finish(message)
        assert raw.send("good-log", body, e=0).code == 0
        found = raw.pull("good-log", 0, self.rounds).body
        assert body in found, found
        self.rounds += 1
        self.slowest_s = max(self.slowest_s, time.monotonic() - began)


def attack(victim: Victim, target: Target, count: int, seed: int, last: deque[bytes]) -> None:
    """So many inputs to one listener, a dozen a connection."""
    source = random.Random(f"{seed} {target.name}")
    sent = 0
    while sent < count:
        try:
            with victim.connect(target.name) as peer:
                peer.settimeout(0.2)
                if target.greeting and source.random() > 0.02:
                    peer.sendall(target.greeting)
                for _ in range(INPUTS_A_CONNECTION):
                    data = spoil(source, target)
                    last.append(data)
                    sent += 1
                    peer.sendall(data)
                    peer.setblocking(False)
                    with contextlib.suppress(BlockingIOError):
                        if not peer.recv(1 << 16):
                            break
                    peer.settimeout(0.2)
                    if source.random() < 0.05:
                        break
                if source.random() < 0.2:
                    peer.shutdown(socket.SHUT_WR)
                    with contextlib.suppress(TimeoutError):
                        peer.settimeout(0.02)
                        peer.recv(1 << 16)
        except OSError:  # closed by the broker, as it should be, or full
            if victim.process.poll() is not None:
                raise AssertionError(f"{target.name}: the broker died with {victim.process.returncode}") from None


def fuzz(folder: Path, count: int, seed: int, tell: Tell, environment: dict[str, str] | None = None) -> None:
    """`count` inputs to each listener, the listeners one after the other; AssertionError with the last inputs saved."""
    victim = Victim(folder, environment)
    good = GoodClient(victim)
    good.start()
    last: deque[bytes] = deque(maxlen=500)
    try:
        for target in targets():
            attack(victim, target, max(1, count // 10), seed + 1, last)  # what it has once, whoever asks
            before, began = victim.memory(), time.monotonic()
            attack(victim, target, count, seed, last)
            time.sleep(0.2)
            grown = victim.memory() - before
            tell(
                f"{target.name:12} {count:7} inputs in {time.monotonic() - began:6.1f} s  memory {grown / (1 << 20):+.1f} MiB  "
                f"good client: {good.rounds} rounds, slowest {good.slowest_s * 1000:.0f} ms"
            )
            assert not good.failure, f"{target.name}: the good client failed {good.failure}"
            assert grown < GROWTH_BYTES_MAX, f"{target.name}: memory grew by {grown} bytes"
        good.over.set()
        good.join(2 * PATIENCE_S)
        assert not good.failure, good.failure
        assert good.rounds > 0
        status = victim.stop()
        log = victim.log.read_text(errors="replace")
        assert "Traceback" not in log, log[log.index("Traceback") - 300 :][:3000]
        assert "AddressSanitizer" not in log, log[log.index("AddressSanitizer") :][:3000]
        assert status == 0, (status, log[-2000:])
    except AssertionError:
        path = folder / "inputs.bin"
        path.write_bytes(b"\n----\n".join(last))
        tell(f"the last {len(last)} inputs are in {path}, the broker's log in {victim.log}")
        raise
    finally:
        good.over.set()
        if victim.process.poll() is None:
            victim.process.kill()
            victim.process.wait()
        assert victim.process.stdout is not None
        victim.process.stdout.close()
    verified = subprocess.run(
        [sys.executable, "-m", "penstock.cli", "store", "verify", str(folder / "data")],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(SRC)},
    )  # fmt: skip
    assert verified.returncode == 0, verified.stdout[-2000:] + verified.stderr[-2000:]


def sanitized(folder: Path, tell: Tell) -> dict[str, str]:
    """A copy of the sources, compiled with AddressSanitizer; the environment to run it in."""
    import shutil

    root = SRC.parent
    copy = folder / "asan"
    for part in ("src", "setup.py", "build_ext.py", "pyproject.toml", "README.md", "LICENSE"):
        if (root / part).is_dir():
            shutil.copytree(root / part, copy / part, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
        else:
            shutil.copy(root / part, copy / part)
    tell("compiling with AddressSanitizer: some minutes")
    flags = {"CFLAGS": "-O1 -g -fsanitize=address -fno-omit-frame-pointer", "LDFLAGS": "-fsanitize=address"}
    subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--inplace"], cwd=copy, check=True, env={**os.environ, **flags}
    )
    library = subprocess.run(["cc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    return {
        "PYTHONPATH": str(copy / "src"),
        "LD_PRELOAD": library.stdout.strip(),
        "PYTHONMALLOC": "malloc",
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1:quarantine_size_mb=8",
    }
