"""How long a single message takes through an idle broker: RDY 100, one at a random moment, end to end on loopback."""

from __future__ import annotations

import json
from typing import Any

from bench.machine import describe
from bench.servers import HERE, find_nsqd, nsq_load, nsqd, penstock

MEDIAN_MS_MAX = 0.5


def measure(messages: int = 500) -> dict[str, Any]:
    """Levels `os` and `disk`, and nsqd where there is one."""
    result: dict[str, Any] = {"machine": describe(), "messages": messages, "body_bytes": 200, "rows": {}}
    result["goal_median_ms"] = MEDIAN_MS_MAX
    for level in ("os", "disk"):
        with penstock(level=level) as broker:
            result["rows"][f"penstock, level {level}"] = nsq_load("latency", broker, n=messages)
    peer = find_nsqd()
    if peer is not None:
        with nsqd(peer) as server:
            result["rows"]["nsqd"] = nsq_load("latency", server, n=messages // 2)
    return result


def main(arguments: list[str]) -> None:
    short = "--short" in arguments
    result = measure(100 if short else 500)
    print(json.dumps(result["machine"]))
    for name, row in result["rows"].items():
        print(
            f"{name:22} median {row['median_ms']:8.3f} ms   p99 {row['p99_ms']:8.3f} ms   most {row['most_ms']:8.3f} ms"
        )
    print(f"goal: median at most {MEDIAN_MS_MAX} ms")
    if not short:
        (HERE / "results").mkdir(exist_ok=True)
        (HERE / "results" / "latency.json").write_text(json.dumps(result, indent=1) + "\n")
