"""Strangers at the HA port: 10,000 connections of every bad kind, while a slave follows and clients send."""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from ha_parts import SMALL, Peer, Process, eventually
from penstock.client.results import SendStatus
from penstock.errors import PenstockError
from penstock.wire import ha
from ports import free_port

SECRET = b"a secret of sixteen bytes"
CONNECTS, HELD = 10_000, 200
RESET = struct.pack("ii", 1, 0)


class Pair:
    """A registry, a master, and a slave that follows it."""

    def __init__(self, folder: Path) -> None:
        secret = folder / "secret"
        secret.write_bytes(SECRET)
        secret.chmod(0o600)
        settings = {
            "nsq_port": -1,
            "http_port": -1,
            "level": "pair",
            "ha_secret_file": secret,
            "ha_answer_ms": 20_000,
            **SMALL,
        }
        lookups = {"lookup_port": -1, "lookup_http_port": -1}
        self.registry = Process("registry", folder / "r", folder / "r.log", registry_port=0, **lookups).start()
        self.master, self.slave = (
            Process("broker", folder / name, folder / f"{name}.log", node=name, role=role,
                    registry=self.registry.addresses["registry"], ha_port=free_port(), remoting_port=free_port(), **settings)
            for name, role in (("a", "master"), ("b", "slave"))
        )  # fmt: skip

    def start(self) -> None:
        for process in (self.master, self.slave):
            process.start()
        eventually(self.in_sync, 60, "no slave in sync")

    def in_sync(self) -> bool:
        with penstock.Admin(self.registry.addresses["registry"]) as admin:
            told = admin.runtime_info(self.master.addresses["remoting"]).get("replicaSet", "[]")
        return any(row["role"] == "slave" and row["in_sync"] == "yes" for row in json.loads(told))

    def descriptors(self) -> int:
        assert self.master.process is not None
        return len(os.listdir(f"/proc/{self.master.process.pid}/fd"))

    def cpu_s(self) -> float:
        assert self.master.process is not None
        fields = Path(f"/proc/{self.master.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        for process in (self.slave, self.master, self.registry):
            process.stop()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    try:
        made.start()
        yield made
    finally:
        made.stop()


def sayings(address: str) -> list[bytes]:
    """What strangers say; the last is a whole HELLO that was overheard."""
    told = ha.Hello(b"n" * 16, bytes(16), b"i" * 16, 0, 1 << 20, 0, 0, 0, 0, 0, (), {"node": "c", "brokerId": 5})
    overheard = Peer(address)
    overheard.greet()
    replayed = ha.hello(told, SECRET, overheard.nonce)
    overheard.close()
    return [
        b"", b"\xff", ha.OPENER, ha.OPENER[:5], ha.report(0), ha.report(1 << 40), b"GET / HTTP/1.1\r\n\r\n",
        ha.OPENER + ha.hello(told, b"another secret of some length", b"m" * 16), ha.OPENER + replayed[:-1], ha.OPENER + replayed,
    ]  # fmt: skip


def test_ten_thousand_strangers(pair: Pair) -> None:
    """Nobody gets a byte of the log; the slave stays in sync, sends are answered, nothing stays open."""
    address = pair.master.addresses["ha"]
    host, _, port = address.rpartition(":")
    registry = pair.registry.addresses["registry"]
    over, results, failed = threading.Event(), [], []

    def send() -> None:
        with penstock.Producer(registry, send_timeout_s=30) as producer:
            while not over.is_set():
                try:
                    results.append(producer.send(penstock.Message("T", b"secret bytes" * 10)).status)
                except PenstockError as error:
                    failed.append(error)
                over.wait(0.01)

    sender = threading.Thread(target=send)
    sender.start()
    eventually(lambda: len(results) > 3 or failed, 60)
    words, chance = sayings(address), random.Random(9)
    before, cpu_s, begin = pair.descriptors(), pair.cpu_s(), time.monotonic()
    held: list[socket.socket] = []
    heard = b""
    for n in range(CONNECTS):
        stranger = socket.create_connection((host, int(port)), timeout=60)
        said = words[n % len(words)]
        if said:
            stranger.sendall(said)
        held.append(stranger)
        if len(held) >= HELD:
            old = held.pop(chance.randrange(len(held)))
            old.setblocking(False)
            with contextlib.suppress(OSError):
                heard += old.recv(1 << 16)
            if n % 3 == 0:
                old.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            old.close()
    took_s, cpu_s = time.monotonic() - begin, pair.cpu_s() - cpu_s
    over.set()
    sender.join(120)
    print(f"{CONNECTS} connects in {took_s:.1f} s, {cpu_s / CONNECTS * 1e6:.0f} us of CPU each")
    assert b"secret bytes" not in heard
    assert not failed, failed[:3]
    assert set(results) == {SendStatus.SEND_OK}
    assert pair.master.says("slave out of sync") == 0
    assert took_s < 300
    eventually(lambda: pair.descriptors() <= before + 2, 60, "descriptors stay open, though nobody has said who he is")
    assert all(stranger.fileno() > 0 for stranger in held)  # it was the master who closed
    for stranger in held:
        stranger.close()
    assert pair.in_sync()
