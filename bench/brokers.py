"""Several brokers on one machine: how a load is spread over them, what a message costs, and that none is lost."""

from __future__ import annotations

import json
import os
import statistics
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from bench.machine import describe
from bench.servers import HERE, load, several
from penstock import Admin

TOPIC = "BenchmarkTest"
FLAGS: dict[str, Any] = {"T": TOPIC, "P": 4, "w": 250, "j": True}  # SEND, 200 bytes, JSON header, to each broker
COUNTS = sorted({1, 2, os.cpu_count() or 1})


def measure(rounds: int = 3, seconds: float = 2.0) -> dict[str, Any]:
    """Each count of brokers in turn, a load client for each broker; medians of rates and costs."""
    runs: dict[int, list[list[dict[str, Any]]]] = {count: [] for count in COUNTS}
    lost: dict[int, int] = dict.fromkeys(COUNTS, 0)
    for number in range(rounds):
        for count in COUNTS if number % 2 == 0 else reversed(COUNTS):
            with several(count) as brokers, ThreadPoolExecutor(count) as clients:
                figures = list(clients.map(partial(load, "send", t=seconds, W=0, **FLAGS), brokers))
                runs[count].append(figures)
                lost[count] += max(0, sum(int(one["messages"]) for one in figures) - _stored(brokers[0].registry))
            print(".", end="", flush=True)
    print()
    rows = [_row(count, runs[count], lost[count]) for count in COUNTS]
    return {"machine": describe(), "rounds": rounds, "seconds": seconds, "rows": rows}


def _stored(registry: str) -> int:
    with Admin(registry) as admin:
        return sum(row.max_offset for row in admin.topic_stats(TOPIC).values())


def _row(count: int, runs: list[list[dict[str, Any]]], lost: int) -> dict[str, Any]:
    rates = [[float(one["rate"]) for one in figures] for figures in runs]
    return {
        "brokers": count,
        "rate": statistics.median(map(sum, rates)),
        "least_share": min(min(each) / sum(each) for each in rates),
        "cpu_us": statistics.median(float(one["cpu_us"]) for figures in runs for one in figures),
        "lost": lost,
    }


def main(arguments: list[str]) -> None:
    """Measure, print, store; `--short` stores nothing."""
    short = "--short" in arguments
    found = measure(1, 1.0) if short else measure()
    for row in found["rows"]:
        print(
            f"{row['brokers']:3d} brokers  {row['rate']:12,.0f} messages/s  {row['cpu_us']:6.2f} µs a message  "
            f"least share {row['least_share']:.2f}  lost {row['lost']}"
        )
    if not short:
        (HERE / "results" / "brokers.json").write_text(json.dumps(found, indent=1) + "\n")
