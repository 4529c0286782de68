"""Ports for servers that are stopped and started again on the same one.

The kernel gives ports from 32768 on to every connection that goes out: a server that was stopped may find its own taken. And
another run of the tests, beside this one, may choose the same: a byte of a file is locked for each port, as long as the process
that chose it lives. So is that of the port two below, which a broker opens for old clients of RocketMQ: it would take it from
one that is started anew there, and has bound it and does not listen yet.
"""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path

EVERY = ("remoting", "nsq", "http", "ha", "registry", "lookup", "lookup_http")
LOW, HIGH = 12_000, 32_000
BELOW = 2  # RocketMQ's VIP port
_source = random.SystemRandom()
_claimed: set[int] = set()
_claims = os.open(Path(tempfile.gettempdir()) / f"penstock-ports-{os.getuid()}", os.O_RDWR | os.O_CREAT, 0o600)


def free_port() -> int:
    """One that nobody has, that nobody else has chosen, and that no outgoing connection is given; nor the one two below."""
    while True:
        port = _source.randrange(LOW + BELOW, HIGH)
        both = (port, port - BELOW)
        if not _claimed.isdisjoint(both):
            continue
        with socket.socket() as probe, socket.socket() as below:
            try:
                for one, number in zip((probe, below), both, strict=True):
                    fcntl.lockf(_claims, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number)
                    one.bind(("127.0.0.1", number))
            except OSError:
                continue
            _claimed.update(both)
            return port


def staying(*names: str) -> dict[str, int]:
    """Settings for a broker in this process that is started anew where it was, as one whose role changes is: a port for each of
    these listeners, by default for all.
    """
    return {f"{name}_port": free_port() for name in names or EVERY}
