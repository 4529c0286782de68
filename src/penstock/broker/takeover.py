"""A data folder that a RocketMQ broker leaves to us."""

from __future__ import annotations

from pathlib import Path

from penstock.broker import shapes
from penstock.disk.files import Files
from penstock.disk.tables import load
from penstock.log.checkpoint import SIZE, abort_text, newest


def delivered_by_rocketmq(files: Files, folder: Path) -> dict[int, int]:
    """What a RocketMQ broker that had this folder has delivered, by level; nothing when ours was the last one."""
    path = folder / "checkpoint"
    mark, counts = None, True
    if path.is_file():
        with path.open("rb") as file:
            mark, counts = newest(file.read(SIZE), abort_text(folder))
    if mark is not None and counts:
        return {}
    delays = load(files, folder / "config" / "delayOffset.json", shapes.delays) or {}
    table = delays.get("offsetTable") or {}
    return {int(k): v for k, v in table.items() if str(k).isdecimal() and isinstance(v, int)}
