"""Real etcd for tests: Debian's etcd-server, or any `etcd` on PATH of 3.4 or later."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from base64 import b64decode
from pathlib import Path

import pytest

import penstock
from certificates import Authority, Certificate
from ha_parts import SMALL, Process, log_bytes
from penstock.client.reader import LogReader
from penstock.client.results import SendStatus
from penstock.errors import PenstockError
from penstock.wire.record import iter_records
from polling import eventually
from ports import free_port


class Etcd:
    """Members as processes of their own, each with its data in a folder."""

    def __init__(
        self,
        folder: Path,
        members: int = 1,
        *,
        certificate: Certificate | None = None,
        authority: Authority | None = None,
    ) -> None:
        self.program = shutil.which("etcd") or ""
        if not self.program:
            if os.geteuid() == 0 and shutil.which("apt-get"):
                pytest.skip("etcd is missing: run apt install etcd-server")  # so it is no skip in CI
            pytest.skip("etcd is not on this machine")
        self._folder = folder
        self._tls: list[str] = []
        if certificate is not None and authority is not None:
            self._tls = [
                "--cert-file", str(certificate.cert), "--key-file", str(certificate.key), "--client-cert-auth",
                "--trusted-ca-file", str(authority.cert),
            ]  # fmt: skip
        self.clients: list[int] = []
        self._peers: list[int] = []
        self._choose_ports(members)
        self.processes: list[subprocess.Popen[bytes] | None] = [None] * members

    def _choose_ports(self, members: int) -> None:
        found: set[int] = set()
        while len(found) < 2 * members:
            found.add(free_port())
        ports = list(found)
        self.clients, self._peers = ports[:members], ports[members:]

    @property
    def setting(self) -> str:
        return "etcd://" + ",".join(f"127.0.0.1:{port}" for port in self.clients)

    def start(self) -> Etcd:
        """Start all; anew, at other ports, where one ended or nobody answers: somebody else may have taken a port."""
        for last in (False, False, True):
            for n in range(len(self.processes)):
                self.start_member(n)
            try:
                self.answers()
                break
            except AssertionError:
                if last:
                    raise
            self.kill()
            for n in range(len(self.processes)):
                shutil.rmtree(self._folder / f"etcd-{n}", ignore_errors=True)
            self._choose_ports(len(self.processes))
        return self

    def start_member(self, n: int) -> None:
        peers = ",".join(f"m{k}=http://127.0.0.1:{port}" for k, port in enumerate(self._peers))
        client = f"http{'s' if self._tls else ''}://127.0.0.1:{self.clients[n]}"
        peer = f"http://127.0.0.1:{self._peers[n]}"
        words = [
            self.program, "--name", f"m{n}", "--data-dir", str(self._folder / f"etcd-{n}"), "--listen-client-urls", client,
            "--advertise-client-urls", client, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
            "--initial-cluster", peers, *self._tls,
        ]  # fmt: skip
        with open(self._folder / f"etcd-{n}.log", "ab") as log:
            self.processes[n] = subprocess.Popen(words, stdout=log, stderr=log)

    def answers(self) -> None:
        def done() -> bool:
            ended = [
                n for n, process in enumerate(self.processes) if process is not None and process.poll() is not None
            ]
            assert not ended, "etcd ended"
            try:
                self.ask("kv/range", {"key": "eA=="})
            except OSError:
                return False
            return True

        try:
            eventually(done, 60, "etcd does not answer")
        except AssertionError as error:
            raise AssertionError(f"{error}: {self._said()}") from error

    def _said(self) -> str:
        """The last lines of each log."""
        return "\n".join(
            (self._folder / f"etcd-{n}.log").read_text(errors="replace")[-2_000:] for n in range(len(self.processes))
        )

    def ask(self, path: str, body: dict[str, object]) -> dict[str, object]:
        """The first answer of a member."""
        last: OSError | None = None
        for port in self.clients:
            url = f"http://127.0.0.1:{port}/v3/{path}"
            try:
                with urllib.request.urlopen(url, json.dumps(body).encode(), timeout=10) as answer:
                    found: dict[str, object] = json.load(answer)
                return found
            except OSError as error:
                last = error
        raise last or OSError("no member")

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
                process.send_signal(number)

    def kill(self, *members: int) -> None:
        self.signal(signal.SIGKILL, *members)
        for n in members or range(len(self.processes)):
            process, self.processes[n] = self.processes[n], None
            if process is not None:
                process.wait()

    def stop(self) -> None:
        self.signal(signal.SIGCONT)
        self.kill()


class ElectedSet:
    """A registry, an engine, and nodes that are started with the same settings; the engine says who is the master."""

    def __init__(self, folder: Path, etcd: Etcd, names: str = "ab", **settings: object) -> None:
        self.folder = folder
        self.etcd = etcd
        self.registry = Process(
            "registry", folder / "r", folder / "r.log", registry_port=0, lookup_port=-1, lookup_http_port=-1
        ).start()
        self.name_server = self.registry.addresses["registry"]
        shared = {"registry": self.name_server, "nsq_port": -1, "http_port": -1, "vip_port": "false", "level": "pair",
                  "register_broker_period_ms": 500, "engine": etcd.setting, "lease_ms": 4_000, **SMALL,
                  **settings}  # fmt: skip
        self.nodes = {
            name: Process(
                "broker", folder / name, folder / f"{name}.log", node=name, ha_port=free_port(),
                remoting_port=free_port(), **shared
            )
            for name in names
        }  # fmt: skip

    def start(self) -> ElectedSet:
        for process in self.nodes.values():
            process.start()
        self.in_sync()
        return self

    def stop(self) -> None:
        for process in self.nodes.values():
            if process.process is not None and process.process.poll() is None:
                process.process.send_signal(signal.SIGCONT)
        for process in [*self.nodes.values(), self.registry]:
            process.stop()

    def ha(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "penstock.cli", "ha", words[0], "-n", self.name_server, *words[1:]]
        return subprocess.run(command, capture_output=True, text=True, timeout=120)

    def state(self) -> dict[str, object]:
        """What the engine holds of the set."""
        found: dict[str, object] = json.loads(self.etcd.keys()["/penstock/DefaultCluster/broker-a/state"])
        return found

    def rows(self) -> dict[str, dict[str, object]]:
        """What each node that answers says of itself."""
        found: dict[str, dict[str, object]] = {}
        for name, process in self.nodes.items():
            if process.process is None or process.process.poll() is not None:
                continue
            with contextlib.suppress(PenstockError):
                found[name] = self.row(name)
        return found

    def row(self, name: str) -> dict[str, object]:
        """What one node says of itself."""
        with penstock.Admin(self.name_server) as admin:
            told = json.loads(admin.runtime_info(self.nodes[name].addresses["remoting"]).get("replicaSet", "[]"))
        found: dict[str, object] = next(row for row in told if row["node"] == name)
        return found

    def master(self) -> str:
        """The one node that calls itself the master; waited for."""
        found: list[str] = []

        def one() -> bool:
            found[:] = [name for name, row in self.rows().items() if row["role"] == "master"]
            return len(found) == 1

        eventually(one, 60, "there is no master, or there are several")
        return found[0]

    def in_sync(self, *names: str) -> None:
        """Return when these nodes, or all, are in the set that the engine holds, and their master counts on them: it hears of
        that behind the engine, late under load, and what is sent before is stored on one broker only.
        """
        wanted = set(names or self.nodes)

        def done() -> bool:
            try:
                held = self.state()["inSync"]
            except (KeyError, OSError):
                return False
            assert isinstance(held, dict)
            return set(held) == wanted and (len(wanted) == 1 or self._counted() >= wanted)

        eventually(done, 60, f"not in sync: {sorted(wanted)}")

    def _counted(self) -> set[object]:
        """The nodes that their master counts on: a slave tells of itself alone."""
        try:
            with penstock.Admin(self.name_server) as admin:
                answers = admin.runtime_infos(admin.cluster_info().brokers.get("broker-a", {}).values())
        except PenstockError:
            return set()
        told = [answer.get("replicaSet") for answer in answers.values() if not isinstance(answer, PenstockError)]
        rows = max((json.loads(text) for text in told if text), key=len, default=[])
        return {row["node"] for row in rows if row["in_sync"] == "yes"}

    def send(self, names: range, within_s: float = 60.0) -> dict[bytes, SendStatus]:
        """Messages, each sent until it is stored; how each ended."""
        found = {}
        deadline = time.monotonic() + within_s
        for n in names:
            while True:
                try:
                    with penstock.Producer(self.name_server) as producer:
                        found[b"%d" % n] = producer.send(penstock.Message("orders", b"%d" % n)).status
                    break
                except PenstockError:
                    assert time.monotonic() < deadline
        return found

    def holds(self, wanted: set[bytes], *, once: bool = True) -> None:
        """Return when readers see all of these, each once; they see what is flushed. `once`: not where an answer was lost."""
        eventually(lambda: wanted <= set(self.bodies()), 60, "an acknowledged message is lost")
        seen = self.bodies()
        assert not once or len(seen) == len(set(seen))

    def bodies(self) -> list[bytes]:
        """All bodies of the topic, as readers of the master find them."""
        with LogReader(self.name_server) as reader:
            found = []
            for queue in reader.queues("orders"):
                first, last = reader.offsets(queue)
                while first < last:
                    fetched = reader.fetch(queue, first)
                    found += [record.body for record in iter_records(fetched.records)]
                    first = max(first + 1, fetched.next_offset)
            return found

    def same_logs(self) -> None:
        """Stop all; every node has the same bytes."""
        self.stop()
        logs = [log_bytes(process.folder, 1 << 40).rstrip(b"\0") for process in self.nodes.values()]
        assert logs[0]
        assert all(one == logs[0] for one in logs)

    def address_of_registry(self) -> str:
        """Where the registry sends those who want to send."""
        with penstock.Admin(self.name_server) as admin:
            return str(admin.cluster_info().brokers.get("broker-a", {}).get(0, ""))


class Forwarder:
    """A port in front of the engine: what goes through is passed on as `way` says, from the next answer on.

    pass · cut (nothing comes, nothing goes) · hang (no answer) · close (before one) · half (of one, then nothing) · garbage ·
    late (after `LATE_S`)
    """

    LATE_S = 0.9

    def __init__(self, target: int) -> None:
        self.way = "pass"
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._open: set[socket.socket] = {self._listener}
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            server = socket.create_connection(("127.0.0.1", self._target))
            self._open |= {client, server}
            threading.Thread(target=self._upwards, args=(client, server), daemon=True).start()
            while data := server.recv(1 << 16):
                if self.way == "late":
                    threading.Event().wait(self.LATE_S)
                elif self.way == "half":
                    client.sendall(data[: len(data) // 2])
                    self.way = "hang"
                    continue
                elif self.way == "garbage":
                    client.sendall(b"\x00\xff garbage \r\n\r\n" * 10)
                    continue
                elif self.way == "close":
                    break
                elif self.way in ("hang", "cut"):
                    continue
                client.sendall(data)
            for one in (client, server):
                one.shutdown(socket.SHUT_RDWR)  # a thread that reads it would keep it open
                one.close()

    def _upwards(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(1 << 16):
                if self.way != "cut":
                    server.sendall(data)
            server.shutdown(socket.SHUT_WR)

    def stop(self) -> None:
        for one in list(self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
