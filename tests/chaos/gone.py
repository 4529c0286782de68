"""Connections to a machine that is cut off, and to one whose process takes nothing. `python -m chaos.gone`, in namespaces."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

from chaos.machines import CLIENTS, Machines, Tell, at, ends, inside
from penstock.client.liveness import is_gone, keep_asking
from polling import eventually

PORT = 900
SERVER = (
    "import socket, sys; server = socket.create_server((sys.argv[1], int(sys.argv[2]))); print(flush=True);"
    "held = [server.accept() for _ in range(3)]; sys.stdin.read()"
)


def _connected(machines: Machines, name: str) -> socket.socket:
    made = socket.create_connection((machines.addresses[name], PORT), 10)
    made.setblocking(False)
    keep_asking(made)
    return made


def _fill(connection: socket.socket) -> None:
    """Until nobody takes any more of it."""
    try:
        while True:
            connection.send(b"x" * 65_536)
    except BlockingIOError:
        return


def _run() -> None:
    machines = Machines(2)
    servers = [
        subprocess.Popen(
            [*at(name), sys.executable, "-c", SERVER, machines.addresses[name], str(PORT)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )
        for name in machines.names
    ]  # fmt: skip
    for server in servers:
        assert server.stdout is not None
        server.stdout.readline()
    idle, spoken_to = (_connected(machines, "m1") for _ in range(2))
    idle_there, full = (_connected(machines, "m2") for _ in range(2))
    _fill(full)
    machines.part(CLIENTS, "m1")
    spoken_to.send(b"hello")
    eventually(lambda: is_gone(idle) and is_gone(spoken_to), 60, "nobody is gone")
    print("gone: an idle one, one that was spoken to", flush=True)
    _fill(full)
    assert not is_gone(idle_there)
    assert not is_gone(full)
    print("there: an idle one, one that takes nothing", flush=True)


def run(tell: Tell) -> None:
    inside(tell, "chaos.gone")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    ends(_run)
