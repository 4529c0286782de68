"""Unchanged NSQ clients publish and consume at level `pair` while their masters are killed, stopped and changed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from etcd_parts import ElectedSet, Etcd
from ha_parts import Process
from peers.conftest import CACHE, HERE, install
from peers.test_peers_nsq import GO_NSQ, SMALL, pip
from polling import eventually
from ports import free_port

TOPIC, CHANNEL = "jobs", "c"


def pynsq() -> list[str]:
    folder = install(CACHE / "nsq-small", *pip(*SMALL))
    return [str(folder / "bin" / "python"), str(HERE / "nsq_failover.py")]


def go_nsq() -> list[str]:
    folder = install(
        CACHE / "go-nsq-failover",
        ["go", "version"],
        ["sh", "-c", f"cd FOLDER && go mod init failover && go get {GO_NSQ}"],
        ["cp", str(HERE / "nsq_failover.go"), "FOLDER/main.go"],
        ["sh", "-c", "cd FOLDER && go build -o program ."],
    )
    return [str(folder / "program")]


class Running:
    """A client program and what it has told so far."""

    def __init__(self, command: list[str], log: Path, *words: str) -> None:
        self._told: list[dict[str, object]] = []
        with open(log, "ab") as errors:
            self._process = subprocess.Popen(
                [*command, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._told.append(json.loads(line))

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._reader.join()
        if self._process.stdout is not None:
            self._process.stdout.close()

    @property
    def acknowledged(self) -> int:
        """They are numbered from 0 on, without a gap."""
        return sum("acknowledged" in one for one in list(self._told))

    @property
    def bodies(self) -> list[int]:
        return [int(str(one["body"])) for one in list(self._told) if "body" in one]


class Found(ElectedSet):
    """A set whose nodes tell an nsqlookupd of ours, at ports of their own for NSQ."""

    def __init__(self, folder: Path, etcd: Etcd) -> None:
        ports = {"registry_port": -1, "lookup_port": 0, "lookup_http_port": 0}
        self.lookupd = Process("registry", folder / "l", folder / "l.log", **ports).start()
        super().__init__(
            folder, etcd, "abc", http_port=-1, lookupd_tcp_address=self.lookupd.addresses["lookup"],
            msg_timeout_ms=3_000, ha_answer_ms=1_000,
        )  # fmt: skip
        self.nsq = {name: f"127.0.0.1:{free_port()}" for name in self.nodes}
        for name, process in self.nodes.items():
            process.words += ["--set", f"nsq_port={self.nsq[name].partition(':')[2]}"]

    def stop(self) -> None:
        super().stop()
        self.lookupd.stop()

    def found(self) -> list[str]:
        """Where consumers are sent."""
        url = f"http://{self.lookupd.addresses['lookup_http']}/lookup?topic={TOPIC}"
        with urllib.request.urlopen(url, timeout=30) as answer:
            producers = json.load(answer)["producers"]
        return [f"{one['broadcast_address']}:{one['tcp_port']}" for one in producers]


@pytest.fixture
def found(tmp_path: Path, etcd: Etcd) -> Iterator[Found]:
    made = Found(tmp_path, etcd)
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Etcd]:
    one = Etcd(tmp_path)
    try:
        yield one.start()
    finally:
        one.stop()


def kill(found: Found, master: str) -> Callable[[], object]:
    found.nodes[master].kill()
    return found.nodes[master].start


def freeze(found: Found, master: str) -> Callable[[], object]:
    process = found.nodes[master].process
    assert process is not None
    os.kill(process.pid, signal.SIGSTOP)
    # Its connection stands, and says nothing of its end: consumers are sent to the new master alone.
    others = {at for name, at in found.nsq.items() if name != master}
    eventually(lambda: len(now := found.found()) == 1 and set(now) <= others, 60, "the old master is still found")
    return lambda: os.kill(process.pid, signal.SIGCONT)


def switch(found: Found, master: str) -> Callable[[], object]:
    assert (done := found.ha("switch")).returncode == 0, done.stderr
    return lambda: None


def go_on(found: Found, command: list[str], ways: list[Callable[[Found, str], Callable[[], object]]]) -> None:
    producer = Running(command, found.folder / "produce.log", "produce", ",".join(found.nsq.values()), TOPIC)
    at = found.lookupd.addresses["lookup_http"]
    consumer = Running(command, found.folder / "consume.log", "consume", at, TOPIC, CHANNEL)
    try:
        eventually(lambda: len(consumer.bodies) > 100, 60, "nothing is consumed")
        for way in ways:
            master = found.master()
            back = way(found, master)
            before = producer.acknowledged
            eventually(lambda before=before: producer.acknowledged > before + 20, 120, "no other master takes anything")
            back()
            found.in_sync()
            assert found.found() == [found.nsq[found.master()]]
    finally:
        producer.stop()
    try:
        wanted = set(range(producer.acknowledged))
        eventually(lambda: wanted <= set(consumer.bodies), 60, "what was acknowledged never came")
    finally:
        consumer.stop()


@pytest.mark.sample
def test_pynsq_goes_on_when_the_master_is_killed(found: Found) -> None:
    go_on(found, pynsq(), [kill])


@pytest.mark.parametrize("client", [pynsq, go_nsq], ids=["pynsq", "go-nsq"])
def test_whatever_becomes_of_the_master(found: Found, client: Callable[[], list[str]]) -> None:
    go_on(found, client(), [kill, freeze, switch, kill])
