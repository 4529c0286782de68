"""docs/howto/three-machines.md followed word by word on three machines (`machines`): each line of its blocks is run as it stands
there, but for what the page says is each machine's own. `python -m chaos.page FOLDER`, in namespaces of its own.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import penstock
from chaos.machines import Machines, Tell, at, ends, inside
from penstock.errors import PenstockError
from polling import eventually

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "three-machines.md"
LEASE_S = 5
ALL = ("m1", "m2", "m3")


class Page:
    """Three machines, each with a folder where its commands are given."""

    def __init__(self, folder: Path, tell: Tell) -> None:
        self.tell = tell
        text = PAGE.read_text()
        self.lines = [line for block in re.findall(r"^```[^\n]*\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
                      for line in block.splitlines()]  # fmt: skip
        self.done: set[str] = set()
        self.machines = Machines(3)
        self.folders = {name: folder / name for name in ALL}
        for path in self.folders.values():
            path.mkdir()
        found = re.search(r"10\.0\.0\.1:9876;[0-9.:;]+", text)
        assert found is not None
        self.registries = found[0]
        self.running: dict[tuple[str, str], subprocess.Popen[bytes]] = {}
        subprocess.run(
            ["mount", "-t", "tmpfs", "tmpfs", "/var/lib"], check=True
        )  # etcd's folders, which are each machine's own

    def line(self, begin: str) -> str:
        """The line of the page that begins so."""
        found = [line for line in self.lines if line.startswith(begin)]
        assert len(found) == 1, f"{len(found)} lines of the page begin with {begin!r}"
        self.done.add(found[0])
        return found[0]

    def own(self, line: str, name: str) -> str:
        """As the page says: with the machine's own name and address."""
        n = name[1:]
        line = re.sub(r"(--host |-urls http://)10\.0\.0\.1", rf"\g<1>10.0.0.{n}", line)
        return line.replace("--name m1 ", f"--name m{n} ").replace("node=n1 ", f"node=n{n} ")

    def words(self, line: str, name: str) -> list[str]:
        words = shlex.split(line)
        if words[0] == "penstock":
            words[:1] = [sys.executable, "-m", "penstock.cli"]
        elif words[0] == "etcd":
            words = [f"{word}-{name}" if word == "/var/lib/etcd/penstock" else word for word in words]
        return [*at(name), *words]

    def start(self, begin: str, name: str) -> None:
        """A server. Its log is in its folder."""
        words = self.words(self.own(self.line(begin), name), name)
        server = shlex.split(begin)[-1]
        with (self.folders[name] / f"{server}.log").open("ab") as log:
            process = subprocess.Popen(words, cwd=self.folders[name], stdout=subprocess.PIPE, stderr=log)
        self.running[server, name] = process
        if server != "etcd":
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith(b"ready"), (self.folders[name] / f"{server}.log").read_text()

    def run(self, begin: str, name: str = "m1", *, code: int = 0) -> str:
        """A command that ends."""
        words = self.words(self.own(self.line(begin), name), name)
        done = subprocess.run(words, cwd=self.folders[name], capture_output=True, text=True, timeout=120)
        assert done.returncode == code, f"{begin} on {name}: {done.returncode} {done.stdout}{done.stderr}"
        return done.stdout

    def status(self, registry: str = "") -> dict[str, dict[str, str]]:
        """`ha status`, as rows by node."""
        line = self.line("penstock ha status")
        if registry:
            line = line.replace("10.0.0.1:9876", registry)
        done = subprocess.run(
            [*self.words(line, "m1"), "--json"], cwd=self.folders["m1"], capture_output=True, text=True, timeout=60
        )
        return {row["node"]: row for row in rows_of(done.stdout) if row.get("role")}

    def masters(self) -> list[str]:
        """The nodes that call themselves so, as any registry says."""
        for registry in self.registries.split(";"):
            rows = self.status(registry)
            if rows:
                return [name for name, row in rows.items() if row["role"] == "master"]
        return []

    def end(self, server: str, name: str, how: int) -> None:
        process = self.running.pop((server, name))
        process.send_signal(how)
        process.wait(60)

    def close(self) -> None:
        for server, name in list(self.running):
            self.end(server, name, signal.SIGKILL)


def follow(page: Page) -> None:
    """All of it, in its order."""
    tell = page.tell
    page.line("apt install etcd-server")  # it is there
    page.line("systemctl disable --now etcd")
    for name in ALL:
        page.start("etcd", name)
    for name in ALL:
        rows: list[dict[str, str]] = []

        def checked(name: str = name, rows: list[dict[str, str]] = rows) -> bool:
            words = [*page.words(page.line("penstock doctor"), name), "--json"]
            done = subprocess.run(words, cwd=page.folders[name], capture_output=True, text=True, timeout=60)
            rows[:] = [row for row in rows_of(done.stdout) if row["listener"] == "engine"]
            return len(rows) > 0 and all(not row["advice"] or "etcds" in row["advice"] for row in rows)

        eventually(checked, 60, f"{name}: {rows}")
        tell(f"doctor on {name}: {[row['address'] for row in rows]}")
    secret = page.line("head -c 32 /dev/urandom")
    subprocess.run(secret, shell=True, cwd=page.folders["m1"], check=True)
    for name in ALL[1:]:
        (page.folders[name] / "secret").write_bytes((page.folders["m1"] / "secret").read_bytes())
    for name in ALL:
        page.start("penstock registry", name)
    for name in ALL:
        page.start("penstock broker", name)
    eventually(lambda: whole(page.status(), 3), 60, "not three in sync")
    tell(f"three brokers, the master is {page.masters()[0]}")
    with penstock.Producer(page.registries) as producer:
        sent = [producer.send(penstock.Message("orders", b"%d" % n)) for n in range(20)]
    assert {receipt.status.name for receipt in sent} == {"SEND_OK"}
    killed(page)
    old = page.masters()[0]
    page.end("broker", machine(old), signal.SIGTERM)
    eventually(lambda: page.masters() not in ([], [old]), 10, "no other is the master after SIGTERM")
    page.start("penstock broker", machine(old))
    eventually(lambda: whole(page.status(), 3))
    if page.masters() == ["n2"]:
        page.end("broker", "m2", signal.SIGTERM)
        page.start("penstock broker", "m2")
        eventually(lambda: whole(page.status(), 3))
    page.run("penstock ha switch")
    eventually(lambda: page.masters() == ["n2"])
    eventually(lambda: whole(page.status(), 3))
    tell("SIGTERM and switch: places are changed")
    paused(page)
    gone(page)
    left = set(page.lines) - page.done - {""}
    assert not left, f"lines of the page that were not run: {left}"


def rows_of(text: str) -> list[dict[str, str]]:
    return [json.loads(line) for line in text.splitlines()]


def machine(node: str) -> str:
    return f"m{node[1:]}"


def whole(rows: dict[str, dict[str, str]], count: int) -> bool:
    """What the page says of the status: one master, `set` names all, the engine is reached."""
    return (
        len(rows) == count
        and sum(row["role"] == "master" for row in rows.values()) == 1
        and all(row["engine"] == "reached" and len(row["set"].split(",")) == count for row in rows.values())
    )


def killed(page: Page) -> None:
    """kill -9 of the master's process; the old one comes back as a slave."""
    old = page.masters()[0]
    page.end("broker", machine(old), signal.SIGKILL)
    begin = time.monotonic()
    eventually(lambda: page.masters() not in ([], [old]), 60, "nobody takes the place")
    page.tell(f"kill -9 of {old}: {page.masters()[0]} is the master {time.monotonic() - begin:.1f} s later")
    page.start("penstock broker", machine(old))
    eventually(lambda: whole(page.status(), 3))
    assert page.status()[old]["role"] == "slave"


def paused(page: Page) -> None:
    """Nobody replaces a master meanwhile."""
    page.run("penstock ha pause")
    assert {row["paused"] for row in page.status().values()} == {"yes"} or eventually(
        lambda: {row["paused"] for row in page.status().values()} == {"yes"}
    ) is None
    page.end("broker", "m2", signal.SIGKILL)
    end = time.monotonic() + LEASE_S + 2
    while time.monotonic() < end:
        assert page.masters() in ([], ["n2"]), page.masters()
        time.sleep(0.2)
    page.start("penstock broker", "m2")
    eventually(lambda: page.masters() == ["n2"])
    page.run("penstock ha resume")
    eventually(lambda: whole(page.status(), 3))
    page.tell("paused: the same master came back")


def gone(page: Page) -> None:
    """A machine is gone for good, its member of etcd and its registry, too: the others go on, and forget it."""
    lose(page, "m3")
    eventually(lambda: whole(page.status(), 2), 60, "two do not go on")
    assert send(page) == "SEND_OK"
    line = page.line("penstock ha forget")
    for words, code in (("--dry-run", 0), ("--yes", 0)):
        done = subprocess.run(
            page.words(f"{line} {words}", "m1"), cwd=page.folders["m1"], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == code, done.stderr
    page.tell("one machine lost: sends are answered 0, and it is forgotten")
    master = page.masters()[0]
    slave = next(name for name in ("n1", "n2") if name != master)
    page.end("broker", machine(slave), signal.SIGKILL)
    eventually(lambda: send(page) == "SLAVE_NOT_AVAILABLE", 60, "not 11 with two brokers lost")
    page.start("penstock broker", machine(slave))
    eventually(lambda: whole(page.status(page.registries), 2))
    lose(page, machine(slave))
    eventually(lambda: not page.masters(), 60, "a master without a majority of etcd and without the other node")
    try:
        with penstock.Producer(page.registries) as producer:
            raise AssertionError(
                f"with two machines lost an answer is {producer.send(penstock.Message('orders', b'x')).status}"
            )
    except PenstockError:
        page.tell("two brokers lost: 11; two machines lost: nobody is the master")
    page.start("etcd", machine(slave))
    eventually(lambda: page.masters() == [master], 60, "the master does not come back with etcd")
    assert send(page) == "SLAVE_NOT_AVAILABLE"
    page.tell("etcd is back: the master is, too")


def lose(page: Page, name: str) -> None:
    """All at once, as with a machine: a master whose slave ends while etcd still answers is the set alone, and goes on."""
    lost = [page.running.pop((server, name)) for server in ("etcd", "broker", "registry")]
    for process in lost:
        process.send_signal(signal.SIGKILL)
    for process in lost:
        process.wait(60)


def send(page: Page) -> str:
    """One message, tried as a client does; how it ends."""
    deadline = time.monotonic() + 60
    while True:
        try:
            with penstock.Producer(page.registries) as producer:
                return producer.send(penstock.Message("orders", b"one more")).status.name
        except PenstockError:
            assert time.monotonic() < deadline


def run(tell: Tell) -> None:
    """In namespaces of its own."""
    with tempfile.TemporaryDirectory(prefix="penstock-page-") as name:
        inside(tell, "chaos.page", name)


def within(folder: Path) -> None:
    """What `run` runs there."""
    made = Page(folder, print)
    try:
        follow(made)
    finally:
        made.close()


if __name__ == "__main__":
    os.umask(0o022)
    ends(lambda: within(Path(sys.argv[1])))
