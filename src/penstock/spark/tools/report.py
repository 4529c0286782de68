"""Parts of the page a job ends with: one HTML file with tables and charts in it, which needs nothing from anywhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from math import ceil, floor, log10

_STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:62em;margin:2em auto;padding:0 1em;color:#1c2733}
table{border-collapse:collapse;margin:1em 0;font-size:13px}
td,th{border-bottom:1px solid #d8dee6;padding:.25em .7em;text-align:left}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}td{white-space:nowrap}td.t{white-space:normal;overflow-wrap:anywhere}h1{font-size:1.5em}h2{font-size:1.1em;margin-top:2em}
.good{color:#18794e}.damage{color:#b42318}.derived{color:#a15c00}.note{color:#5b6b7b}svg{max-width:100%;height:auto}
text{font:11px system-ui,sans-serif;fill:#44515f}"""
COLOURS = ("#3b76b5", "#d1703c", "#3d8f5f", "#9460b8", "#b8a12f", "#5b6b7b")
_WIDTH, _HEIGHT, _LEFT, _BELOW = 860, 260, 70, 30
_DAY_MS = 86_400_000
ROWS_MAX = 500


def page(title: str, parts: Iterable[str]) -> str:
    """A whole page."""
    made = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
    return head + f"<h1>{escape(title)}</h1>" + "".join(parts) + f'<p class="note">{made}</p></html>\n'


def table(names: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Rows as a table, numbers to the right."""
    numbers = [bool(rows) and isinstance(rows[0][n], int | float) for n in range(len(names))]
    heads = [
        f'<th class="n">{escape(name)}' if right else f"<th>{escape(name)}"
        for name, right in zip(names, numbers, strict=True)
    ]
    lines = ["<table><tr>", *heads, "</tr>"]
    for row in rows[:ROWS_MAX]:
        lines.append("<tr>")
        for value in row:
            number = isinstance(value, int | float)
            text = "" if value is None else escape(str(value))
            lines.append(
                f'<td class="n">{value:,}' if number else f'<td class="t">{text}' if len(text) > 20 else f"<td>{text}"
            )
        lines.append("</tr>")
    more = f'<p class="note">and {len(rows) - ROWS_MAX:,} more rows</p>' if len(rows) > ROWS_MAX else ""
    return "".join(lines) + "</table>" + more


def bars(title: str, values: Sequence[tuple[str, float]], colour: str = COLOURS[0]) -> str:
    """Horizontal bars, in the order given."""
    if not values:
        return ""
    top, height = max(value for _, value in values) or 1, 20 * len(values) + 8
    lines = [f'<h2>{escape(title)}</h2><svg viewBox="0 0 {_WIDTH} {height}" role="img">']
    for n, (name, value) in enumerate(values):
        y, width = 4 + 20 * n, max(round(500 * value / top, 1), 1 if value else 0)
        lines.append(f'<text x="250" y="{y + 12}" text-anchor="end">{escape(_clipped(name, 36))}</text>')
        lines.append(f'<rect x="258" y="{y}" width="{width}" height="15" fill="{colour}"/>')
        lines.append(f'<text x="{264 + width}" y="{y + 12}">{value:,.0f}</text>')
    return "".join(lines) + "</svg>"


def _ticks(top: float) -> list[float]:
    """Round values from 0 to the first that is not below `top`, five or so."""
    if top <= 0:
        return [0, 1]
    unit = 10.0 ** floor(log10(top / 4))
    step = next(unit * n for n in (1, 2, 2.5, 5, 10) if unit * n * 5 >= top)
    step = max(step, 1.0) if top >= 1 else step
    return [step * n for n in range(ceil(top / step - 1e-9) + 1)]


def short(value: float) -> str:
    """1234567 as 1.2M."""
    for unit, name in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= unit:
            return f"{value / (1e3 if name == 'k' else unit):.4g}{name}"
    return f"{value:,.4g}"


def lines(title: str, series: dict[str, list[tuple[int, float]]], span_ms: int, *, zeros: bool) -> str:
    """Lines over time: a point is (begin of its window in ms, value). A window without a point is 0, or a gap in the line."""
    moments = sorted({at for points in series.values() for at, _ in points})
    if len(moments) < 2:
        return ""
    begin, end = moments[0], moments[-1]
    ticks = _ticks(max(y for points in series.values() for _, y in points))
    names, height = _legend(list(series))
    above = 14 + height
    wide, high = _WIDTH - _LEFT - 20, _HEIGHT - _BELOW - 10

    def x_of(at: int) -> float:
        return _LEFT + wide * (at - begin) / (end - begin)

    def y_of(value: float) -> float:
        return above + high * (1 - value / ticks[-1])

    out = [f'<h2>{escape(title)}</h2><svg viewBox="0 0 {_WIDTH} {above + high + _BELOW}" role="img">', *names]
    for value in ticks:
        out.append(f'<path d="M{_LEFT} {y_of(value):.1f}H{_LEFT + wide}" stroke="#d8dee6"/>')
        out.append(f'<text x="{_LEFT - 8}" y="{y_of(value) + 4:.1f}" text-anchor="end">{short(value)}</text>')
    for at in _moments(begin, end, span_ms):
        x = x_of(at)
        anchor = "start" if at == begin else "end" if at == end else "middle"
        out.append(f'<path d="M{x:.1f} {above + high}v5" stroke="#8a97a5"/>')
        out.append(f'<text x="{x:.1f}" y="{above + high + 19}" text-anchor="{anchor}">{_clock(at, begin, end)}</text>')
    for n, (name, points) in enumerate(series.items()):
        colour = COLOURS[n % len(COLOURS)]
        for run in _runs(points, begin, end, span_ms, zeros):
            path = " ".join(f"{x_of(at):.1f},{y_of(y):.1f}" for at, y in run)
            out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
        for at, y in points if len(moments) <= 100 else ():
            about = f"<title>{escape(name)}, {_clock(at, 0, 1 << 62)}: {y:,.0f}</title>"
            out.append(f'<circle cx="{x_of(at):.1f}" cy="{y_of(y):.1f}" r="2.5" fill="{colour}">{about}</circle>')
    return "".join(out) + "</svg>"


def _clipped(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _legend(names: list[str]) -> tuple[list[str], int]:
    """The names with their colours, in as many rows as they need, and how high these are."""
    out, x, y = [], float(_LEFT), 12
    for n, name in enumerate(names):
        text = _clipped(name, 40)
        width = 26 + 6.6 * len(text)
        if x > _LEFT and x + width > _WIDTH - 10:
            x, y = float(_LEFT), y + 18
        out.append(f'<rect x="{x:.0f}" y="{y - 9}" width="10" height="10" fill="{COLOURS[n % len(COLOURS)]}"/>')
        out.append(f'<text x="{x + 15:.0f}" y="{y}">{escape(text)}</text>')
        x += width
    return out, y


def _moments(begin: int, end: int, span_ms: int) -> list[int]:
    """Begins of windows to name below a chart: both ends and, evenly between them, up to five more."""
    steps = max((end - begin) // span_ms, 1)
    parts = next((parts for parts in (6, 5, 4, 3, 2) if steps >= parts and steps % parts == 0), min(steps, 5))
    return sorted({begin + steps * n // parts * span_ms for n in range(parts)} | {end})


def _clock(at: int, begin: int, end: int) -> str:
    """A moment, as exact as is of use between two others."""
    moment, days = datetime.fromtimestamp(at / 1000, UTC), (end // _DAY_MS) - (begin // _DAY_MS)
    if days > 10_000:
        return f"{moment:%Y-%m-%d %H:%M:%S}"
    if days > 40:
        return f"{moment:%Y-%m-%d}"
    seconds = ":%S" if end - begin < 600_000 else ""
    return moment.strftime(("%H:%M" if days < 1 else "%m-%d %H:%M") + seconds)


def _runs(
    points: list[tuple[int, float]], begin: int, end: int, span_ms: int, zeros: bool
) -> list[list[tuple[int, float]]]:
    """The points that a line joins: those of windows that follow one another; with `zeros` all, and 0 between them."""
    if zeros:
        at = dict.fromkeys(n for p, _ in points for n in (p - span_ms, p + span_ms) if begin <= n <= end)
        return [sorted({**dict.fromkeys((begin, end), 0.0), **dict.fromkeys(at, 0.0), **dict(points)}.items())]
    runs: list[list[tuple[int, float]]] = []
    for point in sorted(points):
        if runs and point[0] - runs[-1][-1][0] <= span_ms:
            runs[-1].append(point)
        else:
            runs.append([point])
    return runs
