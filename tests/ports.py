"""Ports for servers that are stopped and started again on the same one.

The kernel gives ports from 32768 on to every connection that goes out: a server that was stopped may find its own taken.
"""

from __future__ import annotations

import random
import socket

LOW, HIGH = 12_000, 32_000
_source = random.SystemRandom()


def free_port() -> int:
    """One that nobody has, and that no outgoing connection is given."""
    while True:
        port = _source.randrange(LOW, HIGH)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
