"""Lines over time as SVG, drawn here: a page needs no script to show them. What is not known is a gap."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from markupsafe import Markup, escape

from penstock.console import words

WIDTH, HEIGHT = 560, 130
LEFT, BOTTOM, TOP = 52, 18, 8
POINTS_MAX = 240
SPAN_MIN = 120
SPARK_WIDTH, SPARK_HEIGHT = 96, 22

Value = float | None


class Line(NamedTuple):
    """One line: its name, its values, and the class that colours it."""

    name: str
    values: Sequence[Value]
    style: str = "a"


def plot(
    title: str, lines: Sequence[Line], since: float, step: float, unit: Callable[[Value], str] = words.rate,
    marks: Sequence[float] = (), top: float | None = None,
) -> Markup:  # fmt: skip
    """A plot with its axes; `marks` are levels to be kept below, `top` the end of the axis where it is not the greatest value."""
    lines, since = begin_known(lines, since, step)
    drawn = [line._replace(values=thin(line.values)) for line in lines]
    count = max((len(line.values) for line in drawn), default=0)
    known = [value for line in drawn for value in line.values if value is not None]
    high = top or _round_up(max([*known, *marks], default=0), 1024 if unit is words.size else 1000)
    parts = [
        f'<svg class="plot" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(_said(title, drawn, unit))}">'
    ]
    for share in (0, 0.5, 1):
        y = TOP + (1 - share) * (HEIGHT - TOP - BOTTOM)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>')
        label = escape(unit(high * share))
        parts.append(f'<text class="tick" x="{LEFT - 6}" y="{y + 3.5:.1f}" text-anchor="end">{label}</text>')
    for mark in marks:
        y = TOP + (1 - mark / high) * (HEIGHT - TOP - BOTTOM)
        parts.append(f'<line class="mark" x1="{LEFT}" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>')
    span = step * max((len(line.values) for line in lines), default=0)
    for share, anchor in ((0, "start"), (0.5, "middle"), (1, "end")):
        x = LEFT + share * (WIDTH - LEFT)
        at = datetime.fromtimestamp(max(0, since + share * span), UTC)
        clock = at.strftime("%H:%M" if span <= 86_400 else "%a %H:%M")
        parts.append(f'<text class="tick" x="{x:.0f}" y="{HEIGHT - 4}" text-anchor="{anchor}">{clock}</text>')
    box = _Box(LEFT, TOP, WIDTH - LEFT, HEIGHT - TOP - BOTTOM)
    for line in drawn:
        parts.append(f'<path class="line {line.style}" d="{_path(line.values, count, high, box)}"/>')
    parts.append("</svg>")
    return Markup("".join(parts))


def spark(values: Sequence[Value], title: str) -> Markup:
    """A line without axes, for a row of a table."""
    drawn = thin(values, SPARK_WIDTH // 2)
    high = max((value for value in drawn if value is not None), default=0) or 1
    box = _Box(1, 2, SPARK_WIDTH - 2, SPARK_HEIGHT - 4)
    return Markup(
        f'<svg class="spark" viewBox="0 0 {SPARK_WIDTH} {SPARK_HEIGHT}" role="img" aria-label="{escape(title)}">'
        f'<path class="line a" d="{_path(drawn, len(drawn), high, box)}"/></svg>'
    )


class _Box(NamedTuple):
    x: float
    y: float
    width: float
    height: float


def begin_known(lines: Sequence[Line], since: float, step: float) -> tuple[list[Line], float]:
    """The plot of a broker that is young begins with it, but for `SPAN_MIN` points."""
    count = max((len(line.values) for line in lines), default=0)
    first = min((n for line in lines for n, value in enumerate(line.values) if value is not None), default=0)
    cut = max(0, min(first, count - SPAN_MIN))
    return [line._replace(values=line.values[cut:]) for line in lines], since + cut * step


def thin(values: Sequence[Value], most: int = POINTS_MAX) -> list[Value]:
    """Fewer points, each the greatest of those it stands for: what is short is what one looks for."""
    every = -(-len(values) // most) or 1
    if every == 1:
        return list(values)
    found: list[Value] = []
    for at in range(0, len(values), every):
        known = [value for value in values[at : at + every] if value is not None]
        found.append(max(known) if known else None)
    return found


def _path(values: Sequence[Value], count: int, high: float, box: _Box) -> str:
    parts, on = [], False
    step = box.width / max(1, count - 1)
    for place, value in enumerate(values):
        if value is None:
            on = False
            continue
        y = box.y + (1 - min(1.0, value / high)) * box.height
        parts.append(f"{'L' if on else 'M'}{box.x + place * step:.1f} {y:.1f}")
        if not on:
            parts.append("h.01")  # a single point is seen, too
        on = True
    return "".join(parts)


def _round_up(value: float, thousand: int) -> float:
    """The end of an axis: 1, 2 or 5 times a power of ten, of a unit that people have for it."""
    if value <= 0:
        return 1.0
    unit = 1.0
    while value > unit * 500:
        unit *= thousand
    for power in (0.01, 0.1, 1, 10, 100):
        for times in (1, 2, 5):
            if value <= times * power * unit:
                return times * power * unit
    return value


def _said(title: str, lines: Sequence[Line], unit: Callable[[Value], str]) -> str:
    """The plot for those who do not see it."""
    told = []
    for line in lines:
        known = [value for value in line.values if value is not None]
        if known:
            told.append(f"{line.name} now {unit(known[-1])}, at most {unit(max(known))}")
    return f"{title}: {'; '.join(told) or 'nothing known yet'}"
