"""What a statistics run gives, and its page."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from datetime import datetime
from html import escape
from typing import Any, ClassVar

from penstock.errors import ConfigError
from penstock.spark.tools.report import COLOURS, bars, lines, page, table

_UNITS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_WINDOW_MS_MAX = 100 * 366 * 86_400_000


Row = dict[str, Any]
"""A window, the columns of `by`, and the measures."""


@dataclass(frozen=True)
class StatsResult:
    """One row per window and group: `MEASURES` after the columns of `by`. Sizes are stored bytes, times ms."""

    MEASURES: ClassVar = (
        "messages", "bytes", "sizeP50", "sizeP99", "latencyP50", "latencyP99", "retries",
    )  # fmt: skip

    source: str
    by: tuple[str, ...]
    window: str
    messages: int
    bytes: int
    seconds: float
    rows: list[Row] = field(default_factory=list)
    first: str = ""
    """When the first message was stored, and `last` the last one, as ISO 8601; empty: there is none."""
    last: str = ""

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)


def window_ms(text: str) -> int:
    """Milliseconds of a window such as 30s, 5m, 1h or 1d; `all` is one window."""
    if text == "all":
        return 0
    if not re.fullmatch(r"\d{1,18}", text[:-1], re.ASCII) or text[-1:] not in _UNITS or not int(text[:-1]):
        raise ConfigError(f"window {text!r} is none", "30s, 5m, 1h, 1d or all")
    span = int(text[:-1]) * _UNITS[text[-1]]
    if span > _WINDOW_MS_MAX:
        raise ConfigError(f"window {text!r} is longer than a hundred years", "all is one window")
    return span


def stats_page(result: StatsResult) -> str:
    """The result of a statistics run."""
    series: dict[str, dict[str, list[tuple[int, float]]]] = {"messages": {}, "latencyP99": {}}
    totals: dict[str, float] = {}
    late: dict[str, float] = {}
    windows: set[int] = set()
    for row in result.rows:
        name = " · ".join("–" if row[by] is None else str(row[by]) for by in result.by) or "all"
        at = round(datetime.fromisoformat(row["window"]).timestamp() * 1000) if row["window"] else 0
        windows.add(at)
        totals[name] = totals.get(name, 0) + row["messages"]
        late[name] = max(late.get(name, 0), row["latencyP99"])
        for what, held in series.items():
            held.setdefault(name, []).append((at, row[what]))
    first = sorted(totals, key=lambda name: -totals[name])
    shown, span = first[: len(COLOURS)], window_ms(result.window)
    few = f", of the {len(shown)} with the most messages" if len(first) > len(shown) else ""
    parts = [_range(result, len(windows))]
    for what, title, zeros in (
        ("messages", "Messages in each window", True),
        ("latencyP99", "Latency from birth to store in each window, 99th percentile, ms", False),
    ):
        parts.append(lines(title + few, {name: series[what][name] for name in shown}, span, zeros=zeros))
    parts.append(bars("Messages in all", [(name, totals[name]) for name in first[:20]]))
    worst = (
        "Latency from birth to store, 99th percentile" + (" in the worst window" if len(windows) > 1 else "") + ", ms"
    )
    parts.append(bars(worst, [(name, late[name]) for name in first[:20]], COLOURS[1]))
    rows = [[row["window"][:19].replace("T", " ") or "all", *list(row.values())[1:]] for row in result.rows]
    parts.append(table(("window (UTC)", *result.by, *result.MEASURES), rows))
    return page(f"Statistics of {result.source}", parts)


def _range(result: StatsResult, windows: int) -> str:
    """What was counted, in a sentence: how much, from when to when, in how many windows."""
    if not result.rows:
        return "<p>No messages.</p>"
    times = [f"{text[:19].replace('T', ' ')}" for text in (result.first, result.last)]
    when = f", stored from {times[0]} to {times[1]} UTC" if result.first else ""
    of = "in one window" if windows == 1 else f"in {windows:,} windows"
    of += "" if result.window == "all" else f" of {escape(result.window)}"
    return f"<p>{result.messages:,} messages, {result.bytes:,} stored bytes{when}, {of}.</p>"
