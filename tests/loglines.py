"""A log of JSON lines as sentences: `event name=value name=value`, a line each; what is no JSON stays as it is."""

from __future__ import annotations

import json
from pathlib import Path

_OURS = {"time", "level", "logger", "event", "broker", "left_out"}


def sentences(log: str | Path) -> str:
    text = log.read_text(errors="replace") if isinstance(log, Path) else log
    return "\n".join(map(_sentence, text.splitlines()))


def _sentence(line: str) -> str:
    try:
        row = json.loads(line)
    except ValueError:
        return line
    if not isinstance(row, dict) or "event" not in row:
        return line
    return " ".join([str(row["event"]), *(f"{name}={value}" for name, value in row.items() if name not in _OURS)])
