"""Foreign clients, unchanged, each in a folder of its own under `.cache/peers`, installed when first needed.

A sample runs with the other tests; `pytest tests/peers --peers` runs everything. What cannot be installed (no network,
no node) is skipped with the reason.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import Admin
from penstock.testing import Broker

HERE = Path(__file__).parent
CACHE = HERE.parents[1] / ".cache" / "peers"
WHEEL = "rocketmq==0.4.4"
ALI_ONS = "ali-ons@3.12.0"
INSTALL_S = 180

Lines = list[dict[str, Any]]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--peers", action="store_true", help="run every test with foreign clients, not only the sample")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    everything = config.getoption("--peers", default=False)
    for item in items:
        if HERE not in item.path.parents:
            continue
        item.add_marker(pytest.mark.peers)
        if not everything and item.get_closest_marker("sample") is None:
            item.add_marker(pytest.mark.skip(reason="runs with --peers; a sample runs always"))


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "sample: runs with the ordinary tests too")


def install(folder: Path, *commands: list[str]) -> Path:
    """The folder with a client in it; made whole or not at all."""
    if not folder.is_dir():
        fresh = folder.with_name(f"{folder.name}.{os.getpid()}")
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
        for command in commands:
            words = [word.replace("FOLDER", str(fresh)) for word in command]
            try:
                subprocess.run(words, check=True, capture_output=True, text=True, timeout=INSTALL_S)
            except FileNotFoundError:
                pytest.skip(f"{command[0]} is not on this machine")
            except subprocess.SubprocessError as error:
                shutil.rmtree(fresh, ignore_errors=True)
                why = (getattr(error, "stderr", None) or str(error)).strip().splitlines()[-1:]
                pytest.skip(f"{folder.name} cannot be installed here: {why}")
        fresh.rename(folder)
    return folder


class Program:
    """A client program: `run` waits for its end, `start` does not; both give the JSON objects it printed."""

    def __init__(self, command: list[str], environment: dict[str, str], registry: str) -> None:
        self._command = command
        self._environment = {**os.environ, **environment}
        self._registry = registry

    def start(self, what: str, *arguments: object) -> subprocess.Popen[str]:
        words = [*self._command, what, self._registry, *map(str, arguments)]
        return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=self._environment)

    def run(self, what: str, *arguments: object) -> Lines:
        return self.finish(self.start(what, *arguments))

    @staticmethod
    def wait_for(process: subprocess.Popen[str], word: str = "started") -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if word in line:
                return
        raise AssertionError(f"it ended before it {word}")

    @staticmethod
    def finish(process: subprocess.Popen[str], timeout_s: float = 90) -> Lines:
        try:
            out, err = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            raise AssertionError(f"it did not end:\n{out[-2000:]}\n{err[-2000:]}") from None
        assert process.returncode == 0, f"it failed:\n{out[-2000:]}\n{err[-2000:]}"
        found = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
        return [line for line in found if "started" not in line]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(message_delay_level=" ".join(["1s"] * 18)) as broker:
        yield broker


@pytest.fixture(scope="module")
def wheel(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Program:
    """The C++ client under its Python face."""
    folder = install(
        CACHE / WHEEL,
        [sys.executable, "-m", "venv", "FOLDER"],
        ["FOLDER/bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", WHEEL],
    )
    home = tmp_path_factory.mktemp("home")  # it writes its log into the home folder
    python = str(folder / "bin" / "python")
    return Program([python, str(HERE / "wheel_client.py")], {"HOME": str(home)}, broker.registry)


@pytest.fixture(scope="module")
def ali_ons(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Program:
    """The JavaScript client."""
    folder = install(
        CACHE / ALI_ONS,
        ["npm", "install", "--prefix", "FOLDER", "--no-audit", "--no-fund", "--silent", ALI_ONS],
        ["node", "--version"],
    )
    home = tmp_path_factory.mktemp("home")
    modules = {"NODE_PATH": str(folder / "node_modules"), "HOME": str(home)}
    return Program(["node", str(HERE / "ali_ons_client.js")], modules, broker.registry)


_numbers = itertools.count()


@pytest.fixture
def topic(broker: Broker) -> str:
    """A new topic with four queues, known to the registry."""
    name = f"Peer{next(_numbers)}"
    with Admin(broker.registry) as admin:
        admin.create_topic(name, 4)
        deadline = time.monotonic() + 5
        while name not in admin.topics(system=True):
            assert time.monotonic() < deadline
            time.sleep(0.01)
    return name


@pytest.fixture
def group() -> str:
    return f"G{next(_numbers)}"


@pytest.fixture
def stored(broker: Broker) -> Callable[[str], list[Any]]:
    """All messages of a topic, by our own client."""
    from penstock.client.reader import LogReader
    from penstock.wire.record import iter_records

    def read(topic: str) -> list[Any]:
        with LogReader(broker.registry) as reader:
            return [
                message
                for queue in reader.queues(topic)
                for message in iter_records(reader.fetch(queue, 0, durable=False).records, check=True)
            ]

    return read
