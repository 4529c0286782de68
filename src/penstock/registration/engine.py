"""The engine: the outside service that decides who is the master of a replica set. One kind is there, etcd; whatever has
leases, and changes that depend on what was there before, can be another (`Engine`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol
from urllib.parse import urlsplit

from penstock.config import BrokerConfig
from penstock.errors import ConfigError, PenstockError
from penstock.wire.etcd import Condition, Entry, Put

LEASE_MS_MIN, LEASE_MS_MAX = 4_000, 60_000
PORT = 2379


class EngineAway(PenstockError):
    """No answer, or none that can be believed: whether the request was carried out is unknown."""


class Engine(Protocol):
    """What is asked of it. Every call raises EngineAway when it is not known how it ended; each is safe to be repeated, and
    answers are not older than the question.
    """

    async def grant(self, ttl_s: int) -> int:
        """A new lease."""
        raise NotImplementedError

    async def keep(self, lease: int) -> bool:
        """Let a lease begin anew; False when it is gone."""
        raise NotImplementedError

    async def revoke(self, lease: int) -> None:
        """End a lease, and the keys that hang on it."""
        raise NotImplementedError

    async def read(self, prefix: str) -> dict[str, Entry]:
        """All keys that begin so."""
        raise NotImplementedError

    async def change(self, conditions: Sequence[Condition], puts: Sequence[Put]) -> int:
        """Write all of the keys, at the revision that is returned; 0 when a condition did not hold or a lease is gone: then
        nothing was written by this call, though one before it of which nothing was heard may have written the same.
        """
        raise NotImplementedError

    async def close(self) -> None:
        """Let go of the connections."""
        raise NotImplementedError


def endpoints_of(config: BrokerConfig) -> tuple[bool, list[tuple[str, int]]]:
    """(whether by TLS, where the members of the engine listen). ConfigError for an engine that cannot be."""
    scheme, mark, rest = config.engine.partition("://")
    if not mark or scheme not in ("etcd", "etcds"):
        raise ConfigError("engine has no known kind", "It is etcd://host:port,host:port, or etcds:// with TLS.")
    found = []
    for part in rest.replace(";", ",").split(","):
        try:
            url = urlsplit(f"//{part.strip()}")
            host, port = url.hostname or "", url.port or PORT
        except ValueError:
            host, port, url = "", 0, urlsplit("")
        if url.username or url.password:
            raise ConfigError("engine holds a user", "Set engine_user and engine_password_file.")
        if not host or url.path.strip("/") or url.query:
            raise ConfigError(
                f"engine has no member at {part.rpartition('@')[2]!r}", "It is etcd://host:port,host:port."
            )
        found.append((host, port))
    return scheme == "etcds", found


def check_engine(config: BrokerConfig) -> None:
    """ConfigError for settings of an engine that make no sense together."""
    if not config.engine:
        return
    tls, _ = endpoints_of(config)
    if not LEASE_MS_MIN <= config.lease_ms <= LEASE_MS_MAX:
        raise ConfigError(f"lease_ms cannot be {config.lease_ms}", f"It is {LEASE_MS_MIN} to {LEASE_MS_MAX}.")
    if config.ha_port < 0:
        raise ConfigError(
            "there is an engine, and no ha_port", "Any node may become the master: set ha_port (RocketMQ's is 10912)."
        )
    if bool(config.engine_user) != bool(config.engine_password_file):
        raise ConfigError("engine_user and engine_password_file go together", "Set both, or neither.")
    if (config.engine_ca_file or config.engine_cert) and not tls:
        raise ConfigError("there are certificates for the engine, and no TLS", "Write engine as etcds://…")
    if bool(config.engine_cert) != bool(config.engine_key):
        raise ConfigError("engine_cert and engine_key go together", "Set both, or neither.")
    prefix = config.engine_prefix
    if not prefix.startswith("/") or prefix.endswith("/") or not prefix.isprintable():
        raise ConfigError(f"engine_prefix cannot be {prefix!r}", "It begins with / and does not end with it.")
