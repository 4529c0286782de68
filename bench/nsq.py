"""The queue path: CPU per message of the whole broker process, beside the loopback floor and nsqd in the same rounds."""

from __future__ import annotations

import json
import os
import statistics
from typing import Any

from bench.machine import describe, touch_memory
from bench.servers import HERE, find_nsqd, nsq_load, nsqd, penstock, sink

# name, client flags, goal in µs of CPU per message, how many times cheaper than nsqd at least
ROWS: list[tuple[str, dict[str, Any], float | None, float | None]] = [
    ("PUB, window 1000, one consumer, end to end", {"P": 1, "C": 1, "w": 1000}, 0.6, None),
    ("MPUB of 200, window 20, one consumer, end to end", {"P": 1, "C": 1, "w": 20, "b": 200}, 0.6, None),
    ("20 synchronous producers, 4 consumers", {"P": 20, "C": 4, "w": 1}, 12.0, 1.1),
    ("PUB, window 1000, ingest alone", {"P": 1, "w": 1000}, 0.25, None),
    ("PUB, window 64, one consumer, end to end", {"P": 1, "C": 1, "w": 64}, None, 6.0),
    ("4 synchronous producers, 4 consumers", {"P": 4, "C": 4, "w": 1}, 10.5, None),
    ("one synchronous producer, one consumer", {"P": 1, "C": 1, "w": 1}, 30.0, None),
    ("bodies of 16 KB, window 64, one consumer", {"P": 1, "C": 1, "w": 64, "s": 16 << 10}, None, 4.0),
    ("bodies of 100 KB, window 16, one consumer", {"P": 1, "C": 1, "w": 16, "s": 100 << 10}, None, 2.0),
    ("bodies of 1 MB, window 4, one consumer", {"P": 1, "C": 1, "w": 4, "s": 1 << 20}, None, 2.0),
]
IN_MEMORY = ("PUB, window 1000", "MPUB", "bodies")  # rows that begin so are measured at level `memory`, too


def _median(runs: list[dict[str, Any]], key: str) -> float:
    return statistics.median(run[key] for run in runs)


def measure(rounds: int = 3, seconds: float = 2.0, memory_gib: int = 4) -> dict[str, Any]:
    """All rows in turn, `rounds` times with the order reversed each time; medians and ranges."""
    peer = find_nsqd()
    result: dict[str, Any] = {
        "machine": describe(), "rounds": rounds, "seconds": seconds, "body_bytes": 200, "level": "os", "nsqd": bool(peer),
        "rows": [],
    }  # fmt: skip
    result["memory_touched_s"] = round(touch_memory(memory_gib), 1)
    ours: dict[str, list[dict[str, Any]]] = {}
    floors: dict[str, list[dict[str, Any]]] = {}
    theirs: dict[str, list[dict[str, Any]]] = {}
    memory: dict[str, list[dict[str, Any]]] = {}
    for number in range(rounds):
        for name, flags, _, _ in ROWS if number % 2 == 0 else reversed(ROWS):
            with penstock(level="os") as broker:
                ours.setdefault(name, []).append(nsq_load("load", broker, t=seconds, W=1.0, **flags))
            if name.startswith(IN_MEMORY):
                with penstock(level="memory") as broker:
                    memory.setdefault(name, []).append(nsq_load("load", broker, t=seconds, W=1.0, **flags))
            with sink("nsqload") as server:
                floors.setdefault(name, []).append(nsq_load("load", server, t=seconds, W=0.5, **flags))
            if peer is not None:
                with nsqd(peer) as server:
                    theirs.setdefault(name, []).append(nsq_load("load", server, t=seconds, W=1.0, **flags))
            print(".", end="", flush=True)
    print()
    result["load_after"] = os.getloadavg()[0]
    for name, _, goal, times in ROWS:
        result["rows"].append(_row(name, ours[name], floors[name], theirs.get(name), goal, times))
        if name in memory:
            cpu, at_os = _median(memory[name], "cpu_us"), _median(ours[name], "cpu_us")
            result["rows"][-1] |= {"memory_cpu_us": round(cpu, 3), "memory_to_os": round(cpu / at_os, 2)}
    return result


def _row(
    name: str,
    ours: list[dict[str, Any]],
    floors: list[dict[str, Any]],
    theirs: list[dict[str, Any]] | None,
    goal: float | None,
    times: float | None,
) -> dict[str, Any]:
    cpu = _median(ours, "cpu_us")
    row = {
        "what": name,
        "cpu_us": round(cpu, 3),
        "cpu_us_range": [min(r["cpu_us"] for r in ours), max(r["cpu_us"] for r in ours)],
        "goal_cpu_us": goal,
        "rate": round(_median(ours, "rate")),
        "client_load": round(_median(ours, "client_load"), 2),
        "floor_cpu_us": round(_median(floors, "cpu_us"), 3),
        "floor_rate": round(_median(floors, "rate")),
        "times_the_floor": round(cpu / _median(floors, "cpu_us"), 1),
        "goal_nsqd_to_ours": times,
    }
    if theirs is not None:
        row["nsqd_cpu_us"] = round(_median(theirs, "cpu_us"), 3)
        row["nsqd_rate"] = round(_median(theirs, "rate"))
        row["nsqd_to_ours"] = round(_median(theirs, "cpu_us") / cpu, 1)
        row["nsqd_to_floor"] = round(_median(theirs, "cpu_us") / _median(floors, "cpu_us"), 1)
    return row


def show(result: dict[str, Any]) -> None:
    """The table."""
    print(json.dumps(result["machine"]))
    print(
        f"{'what':50} {'µs CPU':>8} {'range':>13} {'goal':>5} {'floor':>6} {'× floor':>7} {'nsqd':>6} {'nsqd ÷ ours':>11} "
        f"{'goal':>5} {'rate/s':>10} {'at memory':>9} {'÷ os':>5}"
    )
    for row in result["rows"]:
        low, high = row["cpu_us_range"]
        print(
            f"{row['what']:50} {row['cpu_us']:8.2f} {f'{low:.2f}–{high:.2f}':>13} {row['goal_cpu_us'] or '':>5} "
            f"{row['floor_cpu_us']:6.2f} {row['times_the_floor']:7.1f} {row.get('nsqd_cpu_us', ''):>6} "
            f"{row.get('nsqd_to_ours', ''):>11} {row['goal_nsqd_to_ours'] or '':>5} {row['rate']:10,} "
            f"{row.get('memory_cpu_us', ''):>9} {row.get('memory_to_os', ''):>5}"
        )


def main(arguments: list[str]) -> None:
    short = "--short" in arguments
    result = measure(rounds=1 if short else 3, seconds=1.0 if short else 2.0)
    show(result)
    if not short:
        (HERE / "results").mkdir(exist_ok=True)
        (HERE / "results" / "nsq.json").write_text(json.dumps(result, indent=1) + "\n")
