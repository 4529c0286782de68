"""Ports for servers that are stopped and started again on the same one.

The kernel gives ports from 32768 on to every connection that goes out: a server that was stopped may find its own taken. And
another run of the tests, beside this one, may choose the same: a byte of a file is locked for each port, as long as the process
that chose it lives.
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
_source = random.SystemRandom()
_claimed: set[int] = set()
_claims = os.open(Path(tempfile.gettempdir()) / f"penstock-ports-{os.getuid()}", os.O_RDWR | os.O_CREAT, 0o600)


def free_port() -> int:
    """One that nobody has, that nobody else has chosen, and that no outgoing connection is given."""
    while True:
        port = _source.randrange(LOW, HIGH)
        if port in _claimed:
            continue
        with socket.socket() as probe:
            try:
                fcntl.lockf(_claims, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            _claimed.add(port)
            return port


def staying(*names: str) -> dict[str, int]:
    """Settings for a broker in this process that is started anew where it was, as one whose role changes is: a port for each of
    these listeners, by default for all.
    """
    return {f"{name}_port": free_port() for name in names or EVERY}
