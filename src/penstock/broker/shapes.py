"""What the tables of a broker's `config` folder must look like: JSON of another shape is damage, and then `.bak` is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from penstock.disk.files import Files
from penstock.disk.tables import take


def _version(table: Mapping[str, object]) -> bool:
    version = table.get("dataVersion") or {}
    return isinstance(version, dict) and all(isinstance(version.get(key, 0), int) for key in ("counter", "timestamp"))


def topics(table: Mapping[str, object]) -> bool:
    """topics.json, RocketMQ's or SmartGo's."""
    found = table.get("topicConfigTable")
    if isinstance(found, dict) and isinstance(found.get("topicConfigTable"), dict):
        found = found["topicConfigTable"]
    return isinstance(found, dict) and all(isinstance(entry, dict) for entry in found.values()) and _version(table)


def groups(table: Mapping[str, object]) -> bool:
    """subscriptionGroup.json; SmartGo writes the groups beside dataVersion."""
    found = table.get("subscriptionGroupTable", table)
    return isinstance(found, dict) and all(isinstance(entry, dict) for entry in found.values()) and _version(table)


def offsets(table: Mapping[str, object]) -> bool:
    """consumerOffset.json, RocketMQ's or SmartGo's."""
    found = [table[name] for name in ("offsetTable", "offsets") if table.get(name) is not None]
    return len(found) > 0 and all(
        isinstance(queues, dict) and all(isinstance(offset, int) for offset in queues.values())
        for entry in found
        for queues in (entry.values() if isinstance(entry, dict) else (None,))
    )


def delays(table: Mapping[str, object]) -> bool:
    """delayOffset.json."""
    found = table.get("offsetTable")
    return isinstance(found, dict) and all(str(k).isdecimal() and isinstance(v, int) for k, v in found.items())


def open_table(
    files: Files, folder: Path, name: str, fits: Callable[[Mapping[str, object]], bool], without: str
) -> Mapping[str, object]:
    """A table of `config`, or its backup, or an empty one."""
    return take(files, folder, folder / "config" / name, fits, without) or {}


def entries(table: Mapping[str, object], name: str) -> dict[str, dict[str, object]]:
    """The objects by name within a table, or nothing."""
    found = table.get(name)
    return (
        {str(key): about for key, about in found.items() if isinstance(about, dict)} if isinstance(found, dict) else {}
    )


def rows(table: Mapping[str, object], name: str) -> list[dict[str, object]]:
    """The objects of a list within a table. ValueError when it is none."""
    found = table.get(name, [])
    if not isinstance(found, list) or not all(isinstance(row, dict) for row in found):
        raise ValueError(f"{name} is no list of objects")
    return found


def number(table: Mapping[str, object], name: str, otherwise: int) -> int:
    """A number of a table, also where it stands as text. ValueError when it is none."""
    value = table.get(name, otherwise)
    if not isinstance(value, (int, float, str)):
        raise ValueError(f"{name} is no number")
    return int(value)


def version_of(table: Mapping[str, object]) -> dict[str, int]:
    """RocketMQ's dataVersion; of a table without one the first."""
    found = table.get("dataVersion")
    version = found if isinstance(found, dict) else {}
    return {"counter": number(version, "counter", 0), "timestamp": number(version, "timestamp", 0)}
