"""`penstock up --replicas 3` with an etcd of its own: a killed master is replaced, and all of it comes back."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from etcd_parts import Etcd
from ha_parts import SMALL, eventually
from penstock.client.results import SendStatus
from penstock.config import BrokerConfig
from penstock.errors import ConfigError, PenstockError
from penstock.registration.ownengine import OwnEngine, wanted
from polling import until

pytestmark = pytest.mark.chaos  # once is enough: processes, not modules


@pytest.fixture
def there(tmp_path: Path) -> str:
    """The program; skipped with the reason where it is not."""
    return Etcd(tmp_path).program


class Up:
    def __init__(self, folder: Path) -> None:
        ports = [f"--{name}-port=0" for name in ("remoting", "nsq", "http", "registry", "lookup", "lookup-http")]
        small = [word for name, value in SMALL.items() for word in ("--set", f"{name}={value}")]
        words = [
            sys.executable,
            "-m",
            "penstock.cli",
            "up",
            "--data",
            str(folder),
            "--replicas",
            "3",
            "--level",
            "pair",
        ]
        with open(folder.with_name("up.log"), "ab") as log:
            self.process = subprocess.Popen(
                [*words, *ports, *small, "--set", "lease_ms=4000"], stdout=subprocess.PIPE, stderr=log
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith(b"ready "), folder.with_name("up.log").read_text()
        self.registry = json.loads(line.removeprefix(b"ready "))["registry"]

    def rows(self) -> list[dict[str, object]]:
        """What the master says of all."""
        try:
            with penstock.Admin(self.registry) as admin:
                address = admin.cluster_info().brokers["broker-a"][0]
                found: list[dict[str, object]] = json.loads(admin.runtime_info(address)["replicaSet"])
                return found
        except (PenstockError, KeyError):
            return []

    def whole(self) -> None:
        """Return when all three are in sync, as the engine has it."""
        eventually(lambda: [row["in_sync"] for row in self.rows()] == ["yes"] * 3)
        eventually(lambda: [row["engine"] for row in self.rows()[:1]] == ["reached"])

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def started() -> Iterator[list[Up]]:
    made: list[Up] = []
    yield made
    for one in made:
        one.stop()


def children(pid: int) -> dict[int, str]:
    """Processes that this one has started, and what runs in them."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if int(fields[1]) == pid and fields[0] != "Z":
                found[int(entry.name)] = words
    return found


def bodies(registry: str) -> set[bytes]:
    with penstock.PullConsumer(registry) as consumer:
        consumer.assign("T", start="first")
        found: set[bytes] = set()
        while some := consumer.getmany(0.5):  # of the queues whose answers have come
            found |= {message.body for got in some.values() for message in got}
        return found


def test_three_brokers_with_an_etcd_of_their_own(tmp_path: Path, there: str, started: list[Up]) -> None:
    folder = tmp_path / "d"
    up = Up(folder)
    started.append(up)
    up.whole()
    wanted_bodies = set()
    with penstock.Producer(up.registry) as producer:
        for n in range(20):
            assert producer.send(penstock.Message("T", b"%d" % n)).status == SendStatus.SEND_OK
            wanted_bodies.add(b"%d" % n)
        master = up.rows()[0]
        [etcd] = [pid for pid, words in children(up.process.pid).items() if "--data-dir" in words]
        os.kill(etcd, signal.SIGKILL)  # started again, and nobody loses its place
        eventually(lambda: [p for p, w in children(up.process.pid).items() if "--data-dir" in w] not in ([], [etcd]))
        up.whole()
        assert up.rows()[0]["epoch"] == master["epoch"]
        brokers = {pid for pid, words in children(up.process.pid).items() if "penstock.supervisor" in words}
        assert len(brokers) == 3
        os.kill(listener(up, brokers), signal.SIGKILL)  # started again at once: it is the master of the next epoch
        eventually(lambda: [row["epoch"] for row in up.rows()][:1] not in ([], [master["epoch"]]))
        up.whole()
        master = up.rows()[0]
        brokers = {pid for pid, words in children(up.process.pid).items() if "penstock.supervisor" in words}
        hangs = listener(up, brokers)
        os.kill(hangs, signal.SIGSTOP)
        try:
            eventually(lambda: [row["node"] for row in up.rows()][:1] not in ([], [master["node"]]))
        finally:
            os.kill(hangs, signal.SIGCONT)
        up.whole()
        for n in range(20, 40):
            assert producer.send(penstock.Message("T", b"%d" % n)).status == SendStatus.SEND_OK
            wanted_bodies.add(b"%d" % n)
        eventually(lambda: bodies(up.registry) >= wanted_bodies)
    up.stop()
    again = Up(folder)
    started.append(again)
    again.whole()
    eventually(lambda: bodies(again.registry) >= wanted_bodies)
    left = set(children(again.process.pid))
    assert len(left) == 4
    again.process.kill()  # nothing outlives it
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in left))


def listener(up: Up, brokers: set[int]) -> int:
    """The process that listens where the registry says that the master is."""
    with penstock.Admin(up.registry) as admin:
        port = int(admin.cluster_info().brokers["broker-a"][0].rpartition(":")[2])
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    nodes = {f"socket:[{row[9]}]" for row in rows if row[3] == "0A" and int(row[1].rpartition(":")[2], 16) == port}
    for pid in brokers:
        if any(os.readlink(link) in nodes for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()):
            return pid
    raise AssertionError(f"nobody listens on {port}")


def test_who_gets_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "etcd").write_text("#!/bin/sh\nexit 7\n")
    (tools / "etcd").chmod(0o755)
    brokers = [BrokerConfig(data=str(tmp_path / "d")), BrokerConfig(data=str(tmp_path / "d" / "replica-2"))]
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert wanted(brokers, 3) is None  # the program is not there
    monkeypatch.setenv("PATH", str(tools))
    assert wanted(brokers, 2) is None
    assert wanted([BrokerConfig(data=str(tmp_path / "d"), engine="etcd://a"), brokers[1]], 3) is None  # it is named
    assert isinstance(wanted(brokers, 3), OwnEngine)
    record = tmp_path / "d" / "replica-2" / "ha" / "replica.json"
    record.parent.mkdir(parents=True)
    record.write_text("{}")
    assert wanted(brokers, 3) is None  # a set that has begun without one
    assert not caplog.text
    (tmp_path / "d" / "etcd.log").write_text("started\n")
    assert wanted(brokers, 3) is None  # a set that had one, and has lost it
    assert "is gone, which held who is the master" in caplog.text
    (tmp_path / "d" / "etcd").mkdir()
    assert isinstance(wanted(brokers, 3), OwnEngine)
    assert isinstance(wanted(brokers, 2), OwnEngine)  # it would fall behind
    assert wanted(brokers, 1) is None
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(ConfigError, match="no etcd on PATH"):
        wanted(brokers, 3)


async def test_one_that_ends_or_is_silent_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    false, sleep = shutil.which("false"), tmp_path / "sleep"
    assert false is not None
    with pytest.raises(ConfigError, match=r"etcd ended with 1: see .*etcd\.log"):
        await OwnEngine(false, tmp_path / "etcd").start()
    sleep.write_text("#!/bin/sh\nexec sleep 600\n")
    sleep.chmod(0o755)
    monkeypatch.setattr("penstock.registration.ownengine.START_S", 0.5)
    engine = OwnEngine(str(sleep), tmp_path / "etcd")
    with pytest.raises(ConfigError, match="does not answer"):
        await engine.start()
    assert engine.starts == 1
    await asyncio.wait_for(engine.stop(), 60)  # it is stopped already


@pytest.mark.parametrize("taken", [0, 1])
async def test_ports_that_somebody_else_takes_first(
    tmp_path: Path, there: str, monkeypatch: pytest.MonkeyPatch, taken: int
) -> None:
    engine = OwnEngine(there, tmp_path / "etcd")
    first = engine.setting
    ports = (int(first.rpartition(":")[2]), engine._peers_port)
    with socket.create_server(("127.0.0.1", ports[taken])):
        await engine.start()
        assert engine.setting != first
        assert engine.starts == 2
        await engine.stop()
    second = engine.setting
    with socket.create_server(("127.0.0.1", int(second.rpartition(":")[2]))), pytest.raises(ConfigError, match="ended"):
        await engine.start()  # the brokers know it by now
    assert engine.setting == second


async def test_one_whose_program_is_gone_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("penstock.registration.ownengine.RESTART_S", 0.001)
    engine = OwnEngine(str(tmp_path / "etcd-that-is-upgraded"), tmp_path / "etcd")
    watching = asyncio.create_task(engine.watch())
    await until(lambda: caplog.text.count("etcd not started again") >= 3)
    assert not watching.done()
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
