"""The page a job ends with: one HTML file with tables and charts in it, which needs nothing from anywhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.spark.pipelines.audit import Result as AuditResult
    from penstock.spark.pipelines.stats import Result as StatsResult

_STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:62em;margin:2em auto;padding:0 1em;color:#1c2733}
table{border-collapse:collapse;margin:1em 0;font-size:13px}
td,th{border-bottom:1px solid #d8dee6;padding:.25em .7em;text-align:left}
td.n{text-align:right;font-variant-numeric:tabular-nums}h1{font-size:1.5em}h2{font-size:1.1em;margin-top:2em}
.good{color:#18794e}.damage{color:#b42318}.derived{color:#a15c00}.note{color:#5b6b7b}svg{max-width:100%;height:auto}
text{font:11px system-ui,sans-serif;fill:#44515f}"""
_COLOURS = ("#3b76b5", "#d1703c", "#3d8f5f", "#9460b8", "#b8a12f", "#5b6b7b")
_WIDTH, _HEIGHT, _LEFT, _BELOW = 860, 260, 70, 30
ROWS_MAX = 500


def page(title: str, parts: Iterable[str]) -> str:
    """A whole page."""
    made = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
    return head + f"<h1>{escape(title)}</h1>" + "".join(parts) + f'<p class="note">{made}</p></html>\n'


def table(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Rows as a table, numbers to the right."""
    lines = ["<table><tr>", *(f"<th>{escape(name)}" for name in names), "</tr>"]
    for row in rows[:ROWS_MAX]:
        lines.append("<tr>")
        for value in row:
            number = isinstance(value, int | float)
            text = "" if value is None else escape(str(value))
            lines.append(f'<td class="n">{value:,}' if number else f"<td>{text}")
        lines.append("</tr>")
    more = f'<p class="note">and {len(rows) - ROWS_MAX:,} more rows</p>' if len(rows) > ROWS_MAX else ""
    return "".join(lines) + "</table>" + more


def bars(title: str, values: Sequence[tuple[str, float]], colour: str = _COLOURS[0]) -> str:
    """Horizontal bars, in the order given."""
    if not values:
        return ""
    top, height = max(value for _, value in values) or 1, 20 * len(values) + 8
    lines = [f'<h2>{escape(title)}</h2><svg viewBox="0 0 {_WIDTH} {height}" role="img">']
    for n, (name, value) in enumerate(values):
        y, width = 4 + 20 * n, max(round(500 * value / top, 1), 1 if value else 0)
        lines.append(f'<text x="250" y="{y + 12}" text-anchor="end">{escape(name[:40])}</text>')
        lines.append(f'<rect x="258" y="{y}" width="{width}" height="15" fill="{colour}"/>')
        lines.append(f'<text x="{264 + width}" y="{y + 12}">{value:,.0f}</text>')
    return "".join(lines) + "</svg>"


def lines(title: str, series: dict[str, list[tuple[float, float]]], x_names: Sequence[str]) -> str:
    """Lines over the same steps, `x_names`; a point is (step, value)."""
    if not any(series.values()):
        return ""
    top = max(y for points in series.values() for _, y in points) or 1
    wide, high, steps = _WIDTH - _LEFT - 10, _HEIGHT - _BELOW - 10, max(len(x_names) - 1, 1)
    out = [f'<h2>{escape(title)}</h2><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">']
    for part in range(5):
        y = 10 + high - high * part / 4
        out.append(f'<path d="M{_LEFT} {y:.1f}H{_WIDTH - 10}" stroke="#d8dee6"/>')
        out.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{top * part / 4:,.4g}</text>')
    for n in range(0, len(x_names), max(len(x_names) // 6, 1)):
        x = _LEFT + wide * n / steps
        out.append(f'<text x="{x:.1f}" y="{_HEIGHT - 8}" text-anchor="middle">{escape(x_names[n])}</text>')
    for n, (name, points) in enumerate(series.items()):
        colour = _COLOURS[n % len(_COLOURS)]
        path = " ".join(f"{_LEFT + wide * x / steps:.1f},{10 + high - high * y / top:.1f}" for x, y in points)
        out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
        out += [
            f'<circle cx="{_LEFT + wide * x / steps:.1f}" cy="{10 + high - high * y / top:.1f}" r="2" fill="{colour}"/>'
            for x, y in points
        ]
        out.append(f'<text x="{_LEFT + 8 + 130 * n}" y="9" style="fill:{colour}">{escape(name[:20])}</text>')
    return "".join(out) + "</svg>"


def audit_page(result: AuditResult) -> str:
    """The result of an audit."""
    verdict = '<p class="good">All is well.</p>' if result.ok else '<p class="damage">Not well: see the findings.</p>'
    facts = [
        ("records", result.records), ("bytes of log", result.bytes), ("segments", result.segments),
        ("queues", result.queues), ("queue entries", result.entries), ("index entries", result.index_entries),
        ("records without a sum over the whole record", result.unchecked),
    ]  # fmt: skip
    levels = {level: sum(one.level == level for one in result.findings) for level in ("damage", "derived", "note")}
    found = [
        (one.level, one.topic, "" if one.queue < 0 else one.queue, "" if one.offset < 0 else one.offset, one.why,
         "" if one.position < 0 else one.position, one.file.rpartition("/")[2])
        for one in result.findings
    ]  # fmt: skip
    topics = sorted(result.topics.items(), key=lambda item: -item[1][1])[:20]
    parts = [
        verdict,
        table(("what", "how many"), facts),
        bars("Findings", list(levels.items()), "#b42318") if found else "",
        table(("level", "topic", "queue", "offset", "what", "position", "file"), found) if found else "",
        bars("Messages by topic", [(name, count) for name, (count, _) in topics]),
        bars("Bytes by topic", [(name, size) for name, (_, size) in topics], _COLOURS[2]),
        bars(
            "Records by segment", [(f"{base:020d}", count) for base, count, _ in result.per_segment][-40:], _COLOURS[3]
        ),
    ]
    return page(f"Audit of {result.store}", parts)


def stats_page(result: StatsResult) -> str:
    """The result of a statistics run."""
    windows = sorted({row["window"] for row in result.rows})
    place = {window: n for n, window in enumerate(windows)}
    series: dict[str, dict[str, list[tuple[float, float]]]] = {"messages": {}, "latencyP99": {}}
    totals: dict[str, float] = {}
    for row in result.rows:
        name = " · ".join("–" if row[by] is None else str(row[by]) for by in result.by) or "all"
        totals[name] = totals.get(name, 0) + row["messages"]
        for what, held in series.items():
            held.setdefault(name, []).append((place[row["window"]], row[what]))
    first = sorted(totals, key=lambda name: -totals[name])[:6]
    names = [window[5:16].replace("T", " ") for window in windows]
    parts = [
        f"<p>{result.messages:,} messages, {result.bytes:,} stored bytes, windows of {escape(result.window)}.</p>",
        lines("Messages", {name: series["messages"][name] for name in first}, names),
        lines("Latency from birth to store, 99th percentile, ms", {n: series["latencyP99"][n] for n in first}, names),
        bars("Messages in all", sorted(totals.items(), key=lambda item: -item[1])[:20]),
        table(("window", *result.by, *result.MEASURES), [list(row.values()) for row in result.rows]),
    ]
    return page(f"Statistics of {result.source}", parts)
