"""Settings taken anew while a process runs, at SIGHUP or when an administrator asks: which take effect, which want a restart.

What is read each time it is needed can change; what was built into something at the start cannot.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple, Protocol

from penstock.config import HIDDEN, BrokerConfig, RegistryConfig, is_secret
from penstock.errors import ConfigError
from penstock.fronts.flags import set_log_level
from penstock.fronts.soundness import check_settings

log = logging.getLogger("penstock.serve")

Configs = tuple[BrokerConfig | None, RegistryConfig | None]

LIMITS = frozenset(
    (
        "max_connections", "max_connections_per_address", "slow_reader_timeout_ms", "request_timeout_ms",
        "greeting_timeout_ms", "idle_timeout_ms", "max_topics", "max_queues_per_topic", "max_groups",
    )
)  # fmt: skip
RETENTION = frozenset(
    (
        "file_reserved_time_hours", "delete_when", "disk_used_clean_percent", "disk_used_force_percent",
        "disk_used_refuse_percent",
    )
)  # fmt: skip
READ_EACH_TIME = frozenset(
    (
        "transaction_timeout_ms", "transaction_check_interval_ms", "transaction_check_max", "stage_max_bytes",
        "stage_ttl_ms", "log_level",
    )
)  # fmt: skip
AT_ONCE = LIMITS | RETENTION | READ_EACH_TIME


class Serving(Protocol):
    """A process's server."""

    def renew(self) -> None: ...
    def change_settings(self, values: Mapping[str, int], limits: Collection[str]) -> None: ...


class Change(NamedTuple):
    """A setting that is not as it was; `effect`: now, or restart."""

    setting: str
    before: object
    after: object
    effect: str

    def row(self) -> dict[str, object]:
        """For JSON. A secret is not told."""
        values = (self.before, self.after)
        before, after = (HIDDEN if value and is_secret(self.setting) else value for value in values)
        return {"setting": self.setting, "from": before, "to": after, "effect": self.effect}


class Reloading:
    """One process's settings: `read` reads them as the start did, and raises ConfigError where they cannot be used."""

    def __init__(self, server: Serving, configs: Configs, read: Callable[[], Configs]) -> None:
        self._server = server
        self.configs = configs
        self._read = read

    def run(self) -> list[Change]:
        """Take what changed since the last time. ConfigError leaves everything as it is. Certificates are renewed, too."""
        now = self._read()
        check_settings(*now)  # what the next start would refuse is no setting to start with
        changes: list[Change] = []
        for role, before, after in zip(("broker", "registry"), self.configs, now, strict=True):
            if before is None or after is None:
                continue
            for name in before.__struct_fields__:
                old, new = getattr(before, name), getattr(after, name)
                if role == "registry" and self.configs[0] is not None and name in LIMITS:
                    continue  # the broker's are those of the process
                if old != new:
                    changes.append(Change(f"{role}.{name}", old, new, "now" if name in AT_ONCE else "restart"))
        self._apply({change.setting.partition(".")[2]: change.after for change in changes if change.effect == "now"})
        self.configs = now
        self._server.renew()
        for effect in ("now", "restart"):
            if names := [change.setting for change in changes if change.effect == effect]:
                log.info("settings changed effect=%s settings=%s", effect, ",".join(names))
        if not changes:
            log.info("settings read, none changed")
        return changes

    def _apply(self, values: dict[str, object]) -> None:
        level = values.pop("log_level", None)
        if level is not None:
            set_log_level(str(level))
        if values:
            self._server.change_settings(
                {name: value for name, value in values.items() if isinstance(value, int)}, LIMITS & set(values)
            )

    def at_signal(self) -> None:
        """SIGHUP: what is wrong is told to the log, and changes nothing."""
        try:
            self.run()
        except ConfigError as error:
            log.error("settings not read, all stay as they were error=%s %s", error, error.hint)
            self._server.renew()
