"""Who may connect, within the limits, and what is written down of those who may not."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from penstock.errors import WireError
from penstock.limits import Limits, is_for_files, is_loopback
from penstock.words import MS_A_SECOND

log = logging.getLogger("penstock.net")

SPARE = 16  # connections beyond the limit, of HTTP and of slaves: whoever looks why nobody gets in, and what copies depend on
_REJECTED_MAX = 1_000  # peers whose last message in the log is remembered
_REASON_MAX = 200  # characters in the log


class Admission:
    """The connections of one `Net`, counted. `mono_ms` tells the time, `no_memory` whether connections have what they may."""

    def __init__(self, limits: Limits, mono_ms: Callable[[], int], no_memory: Callable[[], bool]) -> None:
        self._limits = limits
        self._mono_ms = mono_ms
        self._no_memory = no_memory
        self.count = 0  # of those that were admitted, and are not gone
        self._by_address: dict[str, int] = {}
        self._rejected: dict[tuple[str, str], int] = {}

    def admit(self, remote: str, *, spare: bool = False, descriptor: int = -1) -> bool:
        """Whether a connection from this address is within the limits, or (`spare`) a little beyond; counted until `dismiss`.
        `descriptor`: its socket's.
        """
        limits, host = self._limits, remote.rpartition(":")[0]
        if self.count >= limits.max_connections + (SPARE if spare else 0):
            return self.refuse("connections", remote)
        if is_for_files(descriptor, spare=spare):
            limits.count("connections")
            error = WireError(
                "the last file descriptors are for files: raise the limit of open files (ulimit -n, LimitNOFILE)"
            )
            self.rejected(remote, error, "descriptors")
            return False
        if not spare and self._no_memory():
            return self.refuse("memory", remote)
        count = self._by_address.get(host, 0)
        if count >= limits.max_connections_per_address and not is_loopback(host):
            return self.refuse("address", remote)
        self.count += 1
        self._by_address[host] = count + 1
        return True

    def dismiss(self, remote: str) -> None:
        """A connection that was admitted is gone."""
        host = remote.rpartition(":")[0]
        self.count -= 1
        count = self._by_address.get(host, 0) - 1
        if count > 0:
            self._by_address[host] = count
        else:
            self._by_address.pop(host, None)

    def refuse(self, limit: str, remote: str) -> bool:
        """A connection runs into a limit: count it and say so. False."""
        self._limits.count(limit)
        self.rejected(remote, WireError(f"the limit of {limit} is reached: see docs/operate.md, limits"), limit)
        return False

    def rejected(self, remote: str, error: Exception, about: str = "") -> None:
        """Say that a peer was no peer, at most once a second for each address and reason."""
        key, mono_ms = (remote.rpartition(":")[0], about or type(error).__name__), self._mono_ms()
        if mono_ms - self._rejected.get(key, -MS_A_SECOND) >= MS_A_SECOND:
            self._rejected[key] = mono_ms
            if len(self._rejected) > _REJECTED_MAX:
                self._rejected.clear()
            log.warning("connection closed peer=%s reason=%s", remote, ascii(str(error))[:_REASON_MAX])


def descriptor_of(transport: asyncio.BaseTransport) -> int:
    """Of the socket below."""
    found = transport.get_extra_info("socket")
    return -1 if found is None else int(found.fileno())
