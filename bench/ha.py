"""A replica set: what a copy costs beside a broker without, how long a change of master takes, how fast a new slave is."""

from __future__ import annotations

import itertools
import json
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import penstock
from bench.machine import describe, touch_memory
from bench.servers import HERE, Running, environment, free_port, load, sink
from penstock.errors import PenstockError

TOPIC = "BenchmarkTest"
WINDOW: dict[str, Any] = {"P": 4, "w": 250, "j": True, "s": 300}
ALONE: dict[str, Any] = {"P": 1, "w": 1, "j": True, "s": 300}
SMALL: dict[str, Any] = {**WINDOW, "s": 122}  # records of 300 bytes: what the goals for CPU are about
KINDS = {  # (level, whether there is a slave)
    "os, no slave": ("os", False), "os": ("os", True), "pair": ("pair", True), "disk, no slave": ("disk", False),
    "pair-disk": ("pair-disk", True),
}  # fmt: skip
GOALS = {"os": 0.7, "pair": 0.6}  # of the rate without a slave
MASTER_US, SLAVE_US = 0.10, 0.35  # CPU that a copy adds to a record of 300 bytes, at level os
LONE_MS = 0.03  # that a lone `pair` send may take beyond one of level os and a round trip
DISK_TIMES = 1.3  # the time of `disk` that `pair-disk` may take
CATCH_UP_MB = 300
LEASE_S = 5  # as it is unless it is set


class Node:
    """A registry or a broker as a process of its own."""

    def __init__(self, command: str, folder: Path, **settings: object) -> None:
        self.folder = folder
        self.words = [sys.executable, "-m", "penstock.cli", command, "--data", str(folder)]
        for name, value in settings.items():
            self.words += ["--set", f"{name}={value}"]

    def start(self) -> Node:
        self.folder.mkdir(exist_ok=True)
        with (self.folder.parent / f"{self.folder.name}.log").open("ab") as log:
            self.process = subprocess.Popen(
                self.words, stdout=subprocess.PIPE, stderr=log, env=environment(HERE.parent / "src")
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line.startswith(b"ready "):
            raise SystemExit(f"bench: {' '.join(self.words)} did not start")
        self.at: dict[str, str] = json.loads(line[6:])
        return self

    def running(self) -> Running:
        return Running(self.process.pid, int(self.at["remoting"].rpartition(":")[2]))

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(60)

    def cpu(self) -> float:
        """Seconds that all its threads have used."""
        tasks = Path(f"/proc/{self.process.pid}/task").glob("*/schedstat")
        return sum(int(task.read_text().split()[0]) for task in tasks) * 1e-9


class Pair:
    """A registry, the broker a, and, when it is started, its slave b."""

    def __init__(self, folder: Path, level: str, *, followed: bool = True, engine: str = "") -> None:
        self.registry = Node("registry", folder / "r", registry_port=0, lookup_port=-1, lookup_http_port=-1).start()
        self.name_server = self.registry.at["registry"]
        shared = {"registry": self.name_server, "nsq_port": -1, "http_port": -1, "remoting_port": 0, "level": level,
                  "register_broker_period_ms": 500, **({"engine": engine} if engine else {})}  # fmt: skip
        self.a = Node("broker", folder / "a", node="a", **shared, **({"ha_port": 0} if followed else {})).start()
        self.b = Node(
            "broker", folder / "b", node="b", role="slave", ha_port=0, ha_master=self.a.at.get("ha", ""), **shared
        )

    def follow(self) -> float:
        """Start the slave; seconds until it is in sync."""
        until = time.monotonic() + 60
        while not self._leads() and time.monotonic() < until:  # with an engine the first one to ask becomes it
            time.sleep(0.01)
        self.b.start()
        began = time.monotonic()
        self.wait("b")
        return time.monotonic() - began

    def _leads(self) -> bool:
        """Whether a is the master; it starts anew when it becomes it."""
        try:
            rows = self.rows(self.a)
        except PenstockError:
            return False
        return not rows or rows[0]["role"] == "master"  # none: it is of no set

    def rows(self, node: Node) -> list[dict[str, Any]]:
        with penstock.Admin(self.name_server) as admin:
            told: list[dict[str, Any]] = json.loads(admin.runtime_info(node.at["remoting"]).get("replicaSet", "[]"))
            return told

    def wait(self, slave: str, seconds: float = 120) -> None:
        """Until a slave of this name is in sync."""
        master = self.a if slave == "b" else self.b
        with penstock.Admin(self.name_server) as admin:
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                try:
                    told = json.loads(admin.runtime_info(master.at["remoting"]).get("replicaSet", "[]"))
                except PenstockError:
                    told = []
                if any(row["node"] == slave and row["in_sync"] == "yes" and row["role"] == "slave" for row in told):
                    return
                time.sleep(0.01)
        raise SystemExit(f"bench: {slave} does not get in sync")

    def close(self) -> None:
        for node in (self.b, self.a, self.registry):
            if hasattr(node, "process") and node.process.poll() is None:
                node.stop()


@contextmanager
def pair(level: str, *, slave: bool = True, followed: bool = True, engine: str = "") -> Iterator[Pair]:
    """A set in a folder that goes in the end."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    made = Pair(folder, level, followed=followed, engine=engine)
    try:
        if slave:
            made.follow()
        yield made
    finally:
        made.close()
        shutil.rmtree(folder)


# -- what a copy costs


def one_load(kind: str, flags: dict[str, Any], seconds: float) -> dict[str, float]:
    """A fresh set under load: messages a second, and µs of CPU a message at master and slave."""
    level, slave = KINDS[kind]
    with pair(level, slave=slave, followed=slave) as made:
        load("send", made.a.running(), t=0.3, W=0, **flags)  # makes the topic
        before = made.b.cpu() if slave else 0.0
        told = load("send", made.a.running(), t=seconds, W=0, **flags)
        if slave:
            made.wait("b")
        spent = made.b.cpu() - before if slave else 0.0
        return {
            "rate": float(told["rate"]),
            "master_us": float(told["cpu_us"]),
            "slave_us": 1e6 * spent / float(told["messages"]),
        }


def costs(rounds: int, seconds: float) -> dict[str, Any]:
    """Every kind in turn, in every round; medians, and each rate against that without a slave in the same round."""
    runs: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
    singles: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for number in range(rounds):
        for kind in KINDS if number % 2 == 0 else reversed(KINDS):
            runs[kind].append(one_load(kind, WINDOW, seconds))
            singles[kind].append(1000 / one_load(kind, ALONE, seconds / 2)["rate"])
            print(".", end="", flush=True)
    print()
    found: dict[str, Any] = {}
    for kind, many in runs.items():
        base = "disk, no slave" if "disk" in kind else "os, no slave"
        shares = [one["rate"] / other["rate"] for one, other in zip(many, runs[base], strict=True)]
        found[kind] = {
            **{key: round(statistics.median(one[key] for one in many), 2) for key in many[0]},
            "share": [round(x, 2) for x in (statistics.median(shares), min(shares), max(shares))],
            "single_ms": [
                round(x, 3) for x in (statistics.median(singles[kind]), min(singles[kind]), max(singles[kind]))
            ],
        }
    return found


def added(rounds: int, seconds: float) -> dict[str, list[float]]:
    """µs of CPU that a copy adds to a record of 300 bytes at the master, and what it takes at the slave, in every round."""
    found: dict[str, list[float]] = {"master_us": [], "slave_us": []}
    for number in range(rounds):
        kinds = ("os, no slave", "os") if number % 2 == 0 else ("os", "os, no slave")
        run = {kind: one_load(kind, SMALL, seconds) for kind in kinds}
        found["master_us"].append(round(run["os"]["master_us"] - run["os, no slave"]["master_us"], 2))
        found["slave_us"].append(round(run["os"]["slave_us"], 2))
        print(".", end="", flush=True)
    return found


def round_trips(rounds: int, seconds: float) -> list[float]:
    """ms that one message takes to a C server of a few lines and back."""
    found = []
    for _ in range(rounds):
        with sink() as floor:
            found.append(round(1000 / float(load("send", floor, t=seconds, W=0, **ALONE)["rate"]), 3))
    return found


# -- how long a change takes


class Sender(threading.Thread):
    """Sends one message after the other, and notes when each was accepted."""

    def __init__(self, name_server: str) -> None:
        super().__init__(daemon=True)
        self.name_server = name_server
        self.accepted: list[float] = []
        self.over = False

    def run(self) -> None:
        with penstock.Producer(self.name_server) as producer:
            while not self.over:
                try:
                    producer.send(penstock.Message(TOPIC, b"x" * 100))
                except PenstockError:
                    time.sleep(0.001)
                    continue
                self.accepted.append(time.monotonic())

    def gap(self, since: float) -> float:
        """The longest time without an accepted send since then."""
        times = [at for at in self.accepted if at >= since - 0.2]
        return max((b - a for a, b in itertools.pairwise(times)), default=float("nan"))

    def first(self, since: float) -> float:
        """How long after that moment a send was accepted."""
        while not (later := [at for at in self.accepted if at > since]):
            time.sleep(0.001)
        return later[0] - since


def switches(count: int) -> list[float]:
    """Seconds without an accepted send, as a client sees it, for planned changes back and forth."""
    gaps = []
    with pair("pair") as made, penstock.Admin(made.name_server) as admin:
        sender = Sender(made.name_server)
        sender.start()
        sender.first(time.monotonic())
        for n in range(count):
            old, name = (made.a, "a") if n % 2 == 0 else (made.b, "b")
            began = time.monotonic()
            admin.switch(old.at["remoting"], "")
            made.wait(name)
            sender.first(time.monotonic())
            gaps.append(sender.gap(began))
            print(".", end="", flush=True)
        sender.over = True
        sender.join(30)
    return gaps


def promotions(count: int) -> dict[str, list[float]]:
    """Seconds from kill -9 of the master, and from the request to promote, to the first accepted send."""
    since_kill, since_promote = [], []
    for _ in range(count):
        with pair("pair") as made, penstock.Admin(made.name_server) as admin:
            sender = Sender(made.name_server)
            sender.start()
            sender.first(time.monotonic())
            killed = time.monotonic()
            made.a.kill()
            while True:
                try:
                    asked = time.monotonic()
                    admin.promote(made.b.at["remoting"])
                    break
                except PenstockError:
                    time.sleep(0.01)
            since_promote.append(sender.first(asked))
            since_kill.append(sender.first(killed + 0.02) + 0.02)
            sender.over = True
            sender.join(30)
        print(".", end="", flush=True)
    return {"since_kill_s": since_kill, "since_promote_s": since_promote}


@contextmanager
def etcd(program: str) -> Iterator[str]:
    """One member in a folder that goes in the end: what the setting `engine` is."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        client, peer = f"http://127.0.0.1:{free_port()}", f"http://127.0.0.1:{free_port()}"
        process = subprocess.Popen(
            [program, "--data-dir", f"{folder}/etcd", "--listen-client-urls", client, "--advertise-client-urls", client,
             "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"],
            stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            yield client.replace("http", "etcd")
        finally:
            process.terminate()
            process.wait(60)


def failovers(count: int) -> list[float]:
    """Seconds from kill -9 of the master to the first accepted send, with an engine and nobody who does anything. None without
    an etcd.
    """
    program = shutil.which("etcd")
    since_kill = []
    for _ in range(count if program else 0):
        with etcd(str(program)) as engine, pair("pair", engine=engine) as made:
            sender = Sender(made.name_server)
            sender.start()
            sender.first(time.monotonic())
            killed = time.monotonic()
            made.a.kill()
            since_kill.append(sender.first(killed + 0.02) + 0.02)
            sender.over = True
            sender.join(30)
        print(".", end="", flush=True)
    return since_kill


def catch_up(messages: int, rounds: int) -> list[float]:
    """MB a second of a new slave of a full log, until it is in sync."""
    rates = []
    for _ in range(rounds):
        with pair("os", slave=False) as made:
            load("send", made.a.running(), t=120, W=0, n=messages, P=2, w=20, b=200)
            written = int(made.rows(made.a)[0]["written"])
            rates.append(written / 1e6 / made.follow())
            print(".", end="", flush=True)
    return rates


def _against_goals(found: dict[str, Any]) -> None:
    for name, goal in (("master_us", MASTER_US), ("slave_us", SLAVE_US)):
        many = found["added"][name]
        print(
            f"CPU a record of 300 bytes, {name}: {statistics.median(many):.2f} ({min(many)}–{max(many)}), goal {goal}"
        )
    alone = {kind: row["single_ms"][0] for kind, row in found["costs"].items()}
    trip = statistics.median(found["round_trip_ms"])
    print(
        f"one `pair` send alone: {alone['pair']:.3f} ms, goal {alone['os'] + trip + LONE_MS:.3f} (round trip {trip:.3f})"
    )
    print(f"one `pair-disk` send alone: {alone['pair-disk'] / alone['disk, no slave']:.2f} × `disk`, goal {DISK_TIMES}")


def main(arguments: list[str]) -> None:
    """Measure, print, store; `--short` stores nothing."""
    short = "--short" in arguments
    touched = 0.0 if short else round(touch_memory(4), 1)
    found: dict[str, Any] = {"machine": describe(), "memory_touched_s": touched}
    found["costs"] = costs(1, 0.5) if short else costs(9, 2.0)
    found["added"] = added(1, 0.5) if short else added(9, 2.0)
    found["round_trip_ms"] = round_trips(1, 0.3) if short else round_trips(5, 1.0)
    found["switch_gap_s"] = [round(x, 3) for x in switches(2 if short else 6)]
    found["promotion"] = {name: [round(x, 3) for x in times] for name, times in promotions(1 if short else 5).items()}
    found["failover_s"] = [round(x, 2) for x in failovers(1 if short else 5)]
    found["catch_up_mb_s"] = [round(x) for x in catch_up(1_000_000 if short else 5_000_000, 1 if short else 3)]
    print()
    for kind, row in found["costs"].items():
        goal = f"goal {GOALS[kind]}" if kind in GOALS else ""
        print(
            f"{kind:16} {row['rate']:10,.0f} messages/s, {row['share'][0]:.2f} ({row['share'][1]:.2f}–{row['share'][2]:.2f}) of "
            f"that without {goal:9} CPU µs: master {row['master_us']:.2f}, slave {row['slave_us']:.2f}  "
            f"one alone {row['single_ms'][0]:.3f} ms"
        )
    _against_goals(found)
    print(f"switch: longest time without an accepted send {found['switch_gap_s']} s, goal 1")
    print(f"kill -9 and promote: first accepted send {found['promotion']}")
    print(f"kill -9 with an engine, lease {LEASE_S} s: first accepted send {found['failover_s']}, goal {LEASE_S + 1}")
    print(f"catch-up of a new slave: {found['catch_up_mb_s']} MB/s, goal {CATCH_UP_MB}")
    if not short:
        (HERE / "results" / "ha.json").write_text(json.dumps(found, indent=1) + "\n")
