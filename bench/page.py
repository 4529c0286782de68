"""`python -m bench page`: writes the figures of the NSQ side from bench/results/ into docs/speed.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench.servers import HERE

PAGE = HERE.parent / "docs" / "speed.md"
BEGIN = "## Queue topics over NSQ"


def _read(name: str) -> dict[str, Any]:
    figures: dict[str, Any] = json.loads((HERE / "results" / f"{name}.json").read_text())
    return figures


def _machine(figures: dict[str, Any]) -> str:
    about = figures["machine"]
    return (
        f"{about['cpu']}, {about['cores']} cores, Linux {about['kernel']}, Python {about['python']}, {about['date']}, "
        f"load average before: {about['load_before']:.1f}"
    )


def _speed() -> list[str]:
    figures = _read("nsq")
    lines = [
        f"{BEGIN}, {figures['body_bytes']}-byte bodies, level `{figures['level']}`",
        "",
        f"{_machine(figures)}, after: {figures['load_after']:.1f}; {figures['rounds']} rounds of "
        f"{figures['seconds']:.0f} s, medians.",
        "",
        "| | µs of CPU a message (range) | goal | floor | × floor | nsqd | nsqd ÷ ours | goal | messages/s |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in figures["rows"]:
        low, high = row["cpu_us_range"]
        theirs = f"{row['nsqd_cpu_us']:.2f} | {row['nsqd_to_ours']}" if "nsqd_cpu_us" in row else " | "
        lines.append(
            f"| {row['what']} | {row['cpu_us']:.2f} ({low:.2f}–{high:.2f}) | {row['goal_cpu_us'] or ''} "
            f"| {row['floor_cpu_us']:.2f} | {row['times_the_floor']} | {theirs} | {row['goal_nsqd_to_ours'] or ''} "
            f"| {row['rate']:,} |"
        )
    return lines


def _latency() -> list[str]:
    figures = _read("latency")
    lines = [
        "",
        "## One message at a time, RDY 100, from PUB to the consumer",
        "",
        f"{_machine(figures)}; goal: median at most {figures['goal_median_ms']} ms.",
        "",
        "| | median ms | p99 ms | most ms |",
        "|---|---|---|---|",
    ]
    for name, row in figures["rows"].items():
        lines.append(f"| {name} | {row['median_ms']:.2f} | {row['p99_ms']:.2f} | {row['most_ms']:.2f} |")
    return lines


def _scale() -> list[str]:
    figures = _read("scale")
    topics, peers, backlog, goals = (figures[name] for name in ("topics", "connections", "backlog", "goals"))
    full, read = backlog["anonymous_mib"]
    return [
        "",
        "## Many",
        "",
        f"{_machine(figures)}.",
        "",
        "| | measured | goal |",
        "|---|---|---|",
        f"| {topics['topics']:,} topics of two channels, {topics['in_flight']:,} messages in flight, idle "
        f"| {100 * topics['cpu_share']:.2f} % of a core | < {100 * goals['cpu_share_max']:.0f} % |",
        f"| {peers['connections']:,} idle connections | RSS + {peers['rss_mib']:.0f} MiB, PSS + {peers['pss_mib']:.0f} MiB "
        f"| ≤ {goals['connections_mib_max']} MiB |",
        f"| {backlog['messages']:,} messages in a channel: anonymous memory when full, and after reading "
        f"| {full} MiB, {read} MiB | ≤ {goals['backlog_mib_max']} MiB |",
        f"| the same: filled with MPUBs, read by one consumer "
        f"| {backlog['fill_cpu_us']:.2f} and {backlog['read_cpu_us']:.2f} µs a message | |",
    ]


def main(arguments: list[str], page: Path = PAGE) -> None:
    kept = page.read_text().partition(BEGIN)[0]
    page.write_text(kept + "\n".join(_speed() + _latency() + _scale()) + "\n")
