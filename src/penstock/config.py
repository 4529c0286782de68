"""Settings: one frozen dataclass per role. Flags, environment, TOML and the reference page come from it.

Order of strength: file, then environment (`PENSTOCK_BROKER__LEVEL`), then flags and `--set KEY=VALUE`.
Names are the peers' own in Python spelling. An unknown name is an error that names the nearest known one.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from penstock.errors import ConfigError

_SIZE = re.compile(r"([0-9]{1,15})\s*(B|KiB|MiB|GiB|TiB|K|M|G|T)?", re.IGNORECASE)
_SIZES = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_DURATION = re.compile(r"(?:([0-9]+)d)?(?:([0-9]+)h)?(?:([0-9]+)m(?!s))?(?:([0-9]+)s)?(?:([0-9]+)ms)?")
_TRUTHS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def _about(text: str, default: Any) -> Any:
    return field(default=default, metadata={"about": text})


@dataclass(frozen=True)
class BrokerConfig:
    """A broker."""

    data: str = _about("folder that holds everything the broker keeps", "penstock-data")
    host: str = _about("address the listeners bind to", "127.0.0.1")
    insecure: bool = _about("allow a bind address that other machines reach, without authentication", False)
    advertise: str = _about("address told to clients; empty: the bind address", "")
    remoting_port: int = _about("port of the RocketMQ protocol; 0: any free one", 10911)
    registry: str = _about("registries to register with, host:port separated by ; or ,", "")
    cluster_name: str = _about("cluster this broker belongs to", "DefaultCluster")
    broker_name: str = _about("name of this broker within its cluster", "broker-a")
    broker_id: int = _about("0: master", 0)
    level: str = _about("durability of new topics: os or disk", "os")
    auto_create_topic_enable: bool = _about("make an unknown topic when a producer first names it", True)
    default_topic_queue_nums: int = _about("queues of the template for new topics", 8)
    auto_create_subscription_group: bool = _about("make an unknown consumer group on first use", True)
    max_message_size: int = _about("largest body in bytes", 4_194_304)
    long_polling_enable: bool = _about("hold a pull that finds nothing", True)
    message_delay_level: str = _about(
        "the delays of levels 1, 2, …", "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    )
    mapped_file_size_commit_log: int = _about("size of a commit-log segment in bytes", 1 << 30)
    mapped_file_size_consume_queue: int = _about("size of a consume-queue file in bytes", 6_000_000)
    max_hash_slot_num: int = _about("slots of a key-index file", 5_000_000)
    max_index_num: int = _about("entries of a key-index file", 20_000_000)
    file_reserved_time_hours: int = _about("age at which a segment may be deleted", 72)
    delete_when: int = _about("hour of the day at which old segments are deleted", 4)
    disk_used_clean_percent: int = _about("disk use at which old segments are deleted at any hour", 75)
    disk_used_force_percent: int = _about("disk use at which segments are deleted whatever their age", 85)
    disk_used_refuse_percent: int = _about("disk use at which writes are refused", 90)
    register_broker_period_ms: int = _about("how often the broker registers", 30_000)
    transaction_timeout_ms: int = _about("age at which a half message is checked", 6_000)
    transaction_check_interval_ms: int = _about("how often half messages are looked at", 60_000)
    transaction_check_max: int = _about("checks before a half message is given up", 15)
    topic: tuple[Mapping[str, Any], ...] = _about("rules for new topics: name pattern, level, queues", ())


@dataclass(frozen=True)
class RegistryConfig:
    """A registry."""

    data: str = _about("folder of kvConfig.json", "penstock-data")
    host: str = _about("address the listener binds to", "127.0.0.1")
    insecure: bool = _about("allow a bind address that other machines reach, without authentication", False)
    foreign_addresses: bool = _about("let brokers register addresses they do not connect from (behind NAT)", False)
    registry_port: int = _about("port of the name server; 0: any free one", 9876)


C = TypeVar("C", BrokerConfig, RegistryConfig)


def load(
    kind: type[C],
    section: str,
    file: str | None,
    flags: Mapping[str, Any],
    environment: Mapping[str, str] | None = None,
) -> C:
    """The settings of one role. ConfigError for unknown names and values that do not fit."""
    values: dict[str, Any] = {}
    if file:
        try:
            tables = tomllib.loads(Path(file).read_text())
        except OSError as error:
            raise ConfigError(f"cannot read {file}: {error.strerror}") from None
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"{file}: {error}") from None
        for name in tables:
            if name not in ("broker", "registry", "topic"):
                raise ConfigError(f"{file}: unknown table [{name}]", "Tables are [broker], [registry] and [[topic]].")
        for name, value in tables.get(section, {}).items():
            values[_known(kind, name, file)] = value
        if section == "broker" and "topic" in tables:
            values["topic"] = tuple(tables["topic"])
    prefix = f"PENSTOCK_{section.upper()}__"
    for name, value in (os.environ if environment is None else environment).items():
        if name.startswith(prefix):
            values[_known(kind, name[len(prefix) :].lower(), name)] = value
    for name, value in flags.items():
        if value is not None:
            values[_known(kind, name, "--set")] = value
    types = {f.name: type(f.default) for f in fields(kind) if f.default is not MISSING}
    return kind(**{name: _fit(name, types[name], value) for name, value in values.items()})


def _known(kind: type[Any], name: str, source: str) -> str:
    known = [f.name for f in fields(kind)]
    name = name.replace("-", "_")
    if name in known:
        return name
    near = difflib.get_close_matches(name, known, 1)
    raise ConfigError(
        f"{source}: unknown setting {name}", f"Did you mean {near[0]}?" if near else "See docs/settings.md."
    )


def _fit(name: str, kind: type, value: Any) -> Any:
    """A value from text or TOML as the setting's type; durations (`1m30s`) and sizes (`64MiB`) are understood."""
    if kind is tuple or (isinstance(value, kind) and not (kind is int and isinstance(value, bool))):
        return value
    if kind is str:
        return str(value)
    text = str(value).strip()
    if kind is bool and text.lower() in _TRUTHS:
        return _TRUTHS[text.lower()]
    if kind is int:
        match = _SIZE.fullmatch(text)
        if match:
            return int(match[1]) * _SIZES[(match[2] or "").lower()[:1]]
        if text and name.endswith("_ms") and (match := _DURATION.fullmatch(text)):
            d, h, m, s, ms = (int(part or 0) for part in match.groups())
            return ((d * 24 + h) * 60 + m) * 60_000 + s * 1000 + ms
    raise ConfigError(f"{name} cannot be {value!r}", f"It wants {'true or false' if kind is bool else 'a number'}.")
