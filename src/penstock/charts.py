"""One chart, drawn twice: as a picture with matplotlib and as text with plotext."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any


@dataclass
class Chart:
    """Lines (`series`: name to points; x in seconds since 1970 when `times`) or bars, largest first."""

    title: str
    x: str
    y: str
    times: bool = False
    series: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    bars: list[tuple[str, float]] = field(default_factory=list)


def picture(charts: Sequence[Chart], path: Path) -> None:
    """All charts, one below the other, as a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    figure, places = plt.subplots(len(charts), 1, figsize=(11, 4.6 * len(charts)), squeeze=False, layout="constrained")
    for chart, axes in zip(charts, places[:, 0], strict=True):
        axes.set_title(chart.title, loc="left", fontweight="bold")
        if chart.bars:
            names = [name[:48] for name, _ in reversed(chart.bars)]
            drawn = axes.barh(names, [value for _, value in reversed(chart.bars)], color="#3b76b5")
            axes.bar_label(drawn, fmt="{:,.0f}", padding=3, fontsize=8)
            axes.set_xlabel(chart.y)
        else:
            for name, points in chart.series.items():
                xs: list[Any] = [datetime.fromtimestamp(x, UTC) if chart.times else x for x, _ in points]
                axes.plot(xs, [y for _, y in points], label=name or None, linewidth=1.2)
            if chart.times:
                locator = AutoDateLocator()
                axes.xaxis.set_major_locator(locator)
                axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))
            if any(chart.series):
                axes.legend(fontsize=8, ncols=min(len(chart.series), 5))
            axes.set_xlabel(chart.x)
            axes.set_ylabel(chart.y)
            if all(y >= 0 for points in chart.series.values() for _, y in points):
                axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    figure.text(
        1, 0, f"{platform.node()}, {platform.machine()}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC", ha="right", fontsize=7
    )
    figure.savefig(path, dpi=110)
    plt.close(figure)


_MARKS = ("hd", "x", "o", "+", "*", "-")


def text(chart: Chart, width: int = 100, height: int = 20, colour: bool = False) -> str:
    """The chart in characters."""
    if chart.bars:
        return _bars(chart, width)
    import plotext

    figure = plotext.figure
    figure.clear()
    figure.plot_size(min(width, 140), height)
    figure.theme("default" if colour else "colorless")
    for mark, (name, points) in zip(_MARKS, chart.series.items(), strict=False):
        signal = figure.signal([x for x, _ in points], [y for _, y in points], marker="hd" if colour else mark)
        if colour or len(chart.series) == 1:
            signal.lines()
        if name:
            signal.label(name)
        figure.draw(signal)
    every = [x for points in chart.series.values() for x, _ in points]
    if chart.times and every:
        first, last = min(every), max(every)
        at = [first + (last - first) * i / 5 for i in range(6)]
        figure.ruler("x").ticks(at, [_tick_text(x, last - first) for x in at])
    heights = [y for points in chart.series.values() for _, y in points]
    if heights:
        low, high = min(heights), max(heights)
        at = [low + (high - low) * i / 4 for i in range(5)]
        figure.ruler("y").ticks(at, [_number(y, high - low) for y in at])
    figure.title(chart.title)
    figure.label(chart.x)
    figure.label(chart.y, axis="y")
    drawn: str = figure.build().string() if colour else _plain(str(figure.build()))
    figure.clear()
    return drawn.rstrip("\n")


def _plain(drawn: str) -> str:
    import re

    return "\n".join(line.rstrip() for line in re.sub(r"\x1b\[[0-9;]*m", "", drawn).splitlines())


def _number(value: float, span: float) -> str:
    return f"{value:,.0f}" if span >= 20 else f"{value:.1f}" if span >= 2 else f"{value:.3g}"


def _tick_text(seconds: float, span: float) -> str:
    form = "%H:%M:%S" if span < 7200 else "%m-%d %H:%M" if span < 7 * 86400 else "%Y-%m-%d"
    return datetime.fromtimestamp(seconds, UTC).strftime(form)


def _bars(chart: Chart, width: int) -> str:
    widest = min(max(len(name) for name, _ in chart.bars), width // 2)
    top = max(value for _, value in chart.bars) or 1
    room = max(width - widest - 16, 10)
    lines = [chart.title]
    for name, value in chart.bars:
        lines.append(
            f"{name[:widest]:>{widest}} {'█' * max(round(room * value / top), 1 if value else 0)} {value:,.0f}"
        )
    return "\n".join([*lines, f"{'':>{widest}} {chart.y}"])
