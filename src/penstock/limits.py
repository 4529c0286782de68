"""How many connections a process takes, and how much memory they may have."""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass

_MEMORY_PARTS = 4  # of the machine's memory connections get one


@dataclass(frozen=True)
class Limits:
    """How many connections a process takes, and how much memory all of them together; 0 bytes: a quarter of the RAM."""

    connections_max: int = 12_000
    connections_per_address_max: int = 1_000  # of another machine: loopback is free
    memory_bytes_max: int = 0

    @property
    def memory_bytes(self) -> int:
        """The bound in bytes."""
        return self.memory_bytes_max or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // _MEMORY_PARTS


def is_loopback(host: str) -> bool:
    """Whether this address, as a peer's name begins, is of this machine."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return True  # a Unix socket
