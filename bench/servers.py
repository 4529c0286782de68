"""Starts what is measured, each in an empty folder on free ports, and the load client beside it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


@dataclass
class Running:
    """A server under load."""

    pid: int
    port: int
    registry: str = ""


def load_client() -> Path:
    """The load client, compiled when its source is newer."""
    program, source = HERE / "load", HERE / "load.c"
    if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
        try:
            subprocess.run(["cc", "-O2", "-Wall", "-o", str(program), str(source)], check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise SystemExit(f"bench: the load client does not compile ({error}); it wants a C compiler") from None
    return program


def load(mode: str, server: Running, **flags: Any) -> dict[str, Any]:
    """Run the load client; its figures. Flags are its own: P=4, w=250, j=True, …"""
    command = [str(load_client()), mode, "-p", str(server.port), "-i", str(server.pid)]
    for name, value in flags.items():
        if value is not False:
            command += [f"-{name}"] if value is True else [f"-{name}", str(value)]
    told = subprocess.run(command, capture_output=True, text=True)
    if told.returncode:
        raise SystemExit(f"bench: {' '.join(command)}: {told.stderr.strip()}")
    figures: dict[str, Any] = json.loads(told.stdout)
    if figures["refused"]:
        raise SystemExit(f"bench: {figures['refused']} sends refused: {told.stderr.strip()}")
    return figures


@contextmanager
def penstock(**settings: Any) -> Iterator[Running]:
    """`penstock up` in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        command = [
            sys.executable,
            "-m",
            "penstock.cli",
            "up",
            "--data",
            folder,
            "--remoting-port",
            "0",
            "--registry-port",
            "0",
            *(f"--{name}-port=0" for name in ("nsq", "http", "lookup", "lookup-http")),
        ]
        for name, value in settings.items():
            command += ["--set", f"{name}={value}"]
        log = Path(folder) / "log"
        with log.open("w") as errors:
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, text=True,
                env={**os.environ, "PYTHONPATH": str(HERE.parent / "src")},
            )  # fmt: skip
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line.startswith("ready "):
            raise SystemExit(f"bench: the broker did not start: {log.read_text()}")
        addresses = json.loads(line.removeprefix("ready "))
        try:
            yield Running(process.pid, int(addresses["remoting"].rpartition(":")[2]), addresses["registry"])
        finally:
            process.terminate()
            process.wait(60)
            process.stdout.close()


@contextmanager
def sink() -> Iterator[Running]:
    """The floor: a C server that reads the same frames, copies their bodies and answers."""
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([str(load_client()), "sink", "-p", str(port)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    try:
        yield Running(process.pid, port)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
