"""What the tables of a broker's `config` folder must look like: JSON of another shape is damage, and then `.bak` is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.disk.files import Files
from penstock.disk.tables import take


def _version(table: dict[str, Any]) -> bool:
    version = table.get("dataVersion") or {}
    return isinstance(version, dict) and all(isinstance(version.get(key, 0), int) for key in ("counter", "timestamp"))


def topics(table: dict[str, Any]) -> bool:
    """topics.json, RocketMQ's or SmartGo's."""
    found = table.get("topicConfigTable")
    if isinstance(found, dict) and isinstance(found.get("topicConfigTable"), dict):
        found = found["topicConfigTable"]
    return isinstance(found, dict) and all(isinstance(entry, dict) for entry in found.values()) and _version(table)


def groups(table: dict[str, Any]) -> bool:
    """subscriptionGroup.json; SmartGo writes the groups beside dataVersion."""
    found = table.get("subscriptionGroupTable", table)
    return isinstance(found, dict) and all(isinstance(entry, dict) for entry in found.values()) and _version(table)


def offsets(table: dict[str, Any]) -> bool:
    """consumerOffset.json, RocketMQ's or SmartGo's."""
    found = [table[name] for name in ("offsetTable", "offsets") if table.get(name) is not None]
    return len(found) > 0 and all(
        isinstance(queues, dict) and all(isinstance(offset, int) for offset in queues.values())
        for entry in found
        for queues in (entry.values() if isinstance(entry, dict) else (None,))
    )


def delays(table: dict[str, Any]) -> bool:
    """delayOffset.json."""
    found = table.get("offsetTable")
    return isinstance(found, dict) and all(str(k).isdecimal() and isinstance(v, int) for k, v in found.items())


def open_table(
    files: Files, folder: Path, name: str, fits: Callable[[dict[str, Any]], bool], without: str
) -> dict[str, Any]:
    """A table of `config`, or its backup, or an empty one."""
    return take(files, folder, folder / "config" / name, fits, without) or {}
