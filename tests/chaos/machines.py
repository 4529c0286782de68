"""Machines of their own, on this one: network namespaces around a router, whose routing rules are the packet filter.

    clients ──┐
    m1 ───────┤ hub ├─────── m3      10.0.0.N each; `ip rule … blackhole` at the hub drops what goes from one to another,
    m2 ───────┘                      without a word, in one direction or both

All is made inside namespaces of one process (`inside`): network, mounts, process ids. However that process ends, the kernel
takes everything with it: servers, addresses, mounts. Nothing is reached from there but the machines.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

from ha_parts import Process

Tell = Callable[[str], None]
TESTS = Path(__file__).parents[1]
APART = ("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
NEEDED = ("ip", "unshare", "nsenter", "mount")
CLIENTS = "clients"
GATE = "169.254.1.1"


@functools.cache
def can_make_machines(*programs: str) -> str | None:
    """None where such machines can be made, else the reason why not."""
    if os.geteuid() != 0:
        return "not root"
    for name in (*NEEDED, *programs):
        if shutil.which(name) is None:
            return f"{name} is missing"
    tried = subprocess.run(
        [*APART, sys.executable, "-m", "chaos.machines"], capture_output=True, text=True, env=_environment(), timeout=60
    )
    return None if tried.returncode == 0 else f"no namespaces: {tried.stderr.strip()[-200:]}"


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{TESTS}:{TESTS.parent / 'src'}", "PYTHONUNBUFFERED": "1"}


def inside(tell: Tell, *words: str) -> None:
    """A program, or `python -m …`, in namespaces of its own; each line it prints is told. What it says last is the error."""
    command = [*APART, sys.executable, *([] if words[0].endswith(".py") else ["-m"]), *words]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=_environment()
    ) as run:
        assert run.stdout is not None
        assert run.stderr is not None
        try:
            for line in run.stdout:
                tell(line.rstrip("\n"))
            said = run.stderr.read()
        finally:
            run.kill()  # and all that it has started: it is the first process of its namespace
    assert run.returncode == 0, said[-4_000:]


def ends(work: Callable[[], None]) -> NoReturn:
    """Do it, and end: clients that still try their luck are not waited for."""
    code = 0
    try:
        work()
    except BaseException:  # whatever it is: the last words are the answer
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


class Machines:
    """So many, 10.0.0.1 and so on, and the clients' one (10.0.0.100), which is this process's own."""

    def __init__(self, count: int) -> None:
        Path("/run/netns").mkdir(exist_ok=True)
        _run("mount", "-t", "tmpfs", "tmpfs", "/run/netns")  # of this mount namespace: nobody else sees the names
        self.names = [f"m{n}" for n in range(1, count + 1)]
        self.addresses = {name: f"10.0.0.{n}" for n, name in enumerate(self.names, 1)} | {CLIENTS: "10.0.0.100"}
        self._rules: list[list[str]] = []
        _run("ip", "netns", "add", "hub")
        _run("ip", "-n", "hub", "link", "set", "lo", "up")
        _run("nsenter", "--net=/run/netns/hub", "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
        for name in self.names:
            _run("ip", "netns", "add", name)
        for name, address in self.addresses.items():
            self._join(name, address)

    def _join(self, name: str, address: str) -> None:
        own = [] if name == CLIENTS else ["-n", name]
        _run("ip", *own, "link", "add", "eth0", "type", "veth", "peer", "name", f"to-{name}", "netns", "hub")
        for words in (
            ["link", "set", "lo", "up"], ["addr", "add", f"{address}/32", "dev", "eth0"], ["link", "set", "eth0", "up"],
        ):  # fmt: skip
            _run("ip", *own, *words)
        for words in (
            ["addr", "add", f"{GATE}/32", "dev", f"to-{name}"], ["link", "set", f"to-{name}", "up"],
            ["route", "add", f"{address}/32", "dev", f"to-{name}"],
        ):  # fmt: skip
            _run("ip", "-n", "hub", *words)
        _run("ip", *own, "route", "add", GATE, "dev", "eth0", "scope", "link")
        _run("ip", *own, "route", "add", "default", "via", GATE)

    def drop(self, source: str, to: str) -> None:
        """From now on nothing comes through from the one to the other; nobody is told."""
        rule = ["from", self.addresses[source], "to", self.addresses[to], "blackhole"]
        if rule not in self._rules:
            _run("ip", "-n", "hub", "rule", "add", *rule)
            self._rules.append(rule)

    def part(self, one: str, *others: str) -> None:
        """The same in both directions, of one and each of the others."""
        for other in others:
            self.drop(one, other)
            self.drop(other, one)

    def mend(self) -> None:
        """Everything comes through again."""
        while self._rules:
            _run("ip", "-n", "hub", "rule", "del", *self._rules.pop())

    @contextlib.contextmanager
    def cut(self, *ways: tuple[str, str]) -> Iterator[None]:
        """What goes these ways, from and to, is dropped meanwhile."""
        for source, to in ways:
            self.drop(source, to)
        try:
            yield
        finally:
            self.mend()


def on(machine: str, process: Process) -> Process:
    """This process is started on that machine."""
    process.words[:0] = at(machine)
    return process


def at(machine: str) -> list[str]:
    return ["nsenter", f"--net=/run/netns/{machine}", "--"]


def _run(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OSError(f"{' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def _try() -> None:
    """Two machines, and the way between them is cut: what `can_make_machines` asks."""
    import socket

    made = Machines(1)
    code = "import socket; s = socket.create_server(('10.0.0.1', 900)); print(flush=True); s.accept(); s.accept()"
    with subprocess.Popen([*at("m1"), sys.executable, "-c", code], stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        server.stdout.readline()
        socket.create_connection(("10.0.0.1", 900), 10).close()
        with made.cut(("m1", CLIENTS)):
            try:
                socket.create_connection(("10.0.0.1", 900), 0.3).close()
            except TimeoutError:
                server.kill()
                return
    raise OSError("what is to be dropped comes through")


if __name__ == "__main__":
    _try()
