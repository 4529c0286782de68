"""A real broker and registry in a process of their own, shared by the tests of this folder."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ports import free_port

START_S = 60.0
SRC = Path(__file__).parents[2] / "src"
SMALL = {
    "mapped_file_size_commit_log": 16 << 20,
    "mapped_file_size_consume_queue": 60_000,
    "max_hash_slot_num": 5_000,
    "max_index_num": 20_000,
    "message_delay_level": "1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s",  # retries come soon
}


class Cluster:
    """`penstock up` on ports of its own, to be stopped, killed and started again on the same ones."""

    def __init__(self, data: Path, settings: dict[str, object], registry: str = "") -> None:
        self.data = data
        self.settings = settings
        self.other_registry = registry  # then it is a broker alone
        self.ports = {role: free_port() for role in ("remoting", "nsq", *(() if registry else ("registry",)))}
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> Cluster:
        role = ["broker", "--registry", self.other_registry] if self.other_registry else ["up"]
        command = [sys.executable, "-m", "penstock.cli", *role, "--data", str(self.data)]
        for role, port in self.ports.items():
            command += [f"--{role}-port", str(port)]
        for other in ("http",) if self.other_registry else ("http", "lookup", "lookup-http"):
            command += [f"--{other}-port", "-1"]
        for name, value in self.settings.items():
            command += ["--set", f"{name}={value}"]
        log = (self.data.parent / "broker.log").open("a")
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, env={**os.environ, "PYTHONPATH": str(SRC)}
        )
        log.close()
        assert self.process.stdout is not None
        too_late = threading.Timer(START_S, self.process.kill)
        too_late.start()
        try:
            for line in self.process.stdout:
                if line.startswith("ready "):
                    found = json.loads(line.removeprefix("ready "))
                    self.ports = {role: int(found[role].rpartition(":")[2]) for role in self.ports}
                    return self
        finally:
            too_late.cancel()
        self.stop()
        raise RuntimeError("the broker did not start:\n" + (self.data.parent / "broker.log").read_text()[-2000:])

    def stop(self, how: int = signal.SIGTERM) -> None:
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait(60)
            assert self.process.stdout is not None
            self.process.stdout.close()
            self.process = None

    @property
    def registry(self) -> str:
        return self.other_registry or f"127.0.0.1:{self.ports['registry']}"

    @property
    def broker(self) -> str:
        return f"127.0.0.1:{self.ports['remoting']}"


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One cluster for all tests that leave it as it is."""
    cluster = Cluster(tmp_path_factory.mktemp("cluster") / "data", SMALL).start()
    yield cluster
    cluster.stop()


@pytest.fixture
def own_cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster for a test that stops it."""
    cluster = Cluster(tmp_path / "data", SMALL).start()
    yield cluster
    cluster.stop()


@pytest.fixture
def second_broker(own_cluster: Cluster, tmp_path: Path) -> Iterator[Cluster]:
    """Another broker of `own_cluster`, named broker-b."""
    settings = SMALL | {"broker_name": "broker-b"}
    broker = Cluster(tmp_path / "second" / "data", settings, own_cluster.registry)
    broker.data.parent.mkdir()
    yield broker.start()
    broker.stop()


@pytest.fixture(scope="session")
def registry(cluster: Cluster) -> str:
    return cluster.registry


_numbers = itertools.count()


@pytest.fixture
def fresh() -> Callable[[str], str]:
    """Names nobody used before."""
    return lambda prefix="T": f"{prefix}-{next(_numbers)}"
