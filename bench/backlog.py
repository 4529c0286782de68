"""A backlog of 10 million 100-byte messages: appended, read by a group, read by Spark; memory and steadiness of the broker."""

from __future__ import annotations

import json
import time
from typing import Any

from bench.machine import anonymous_mib, describe, touch_memory
from bench.servers import HERE, load, penstock

MEMORY_MIB_MAX = 300
STEADY_MIN = 0.9
TOPIC = "Backlog"


def steadiness(seconds: list[int]) -> dict[str, float]:
    """Rates within the first and the last tenth of the whole seconds; nothing where there are not two of them."""
    whole = seconds[:-1]  # the last one has just begun
    tenth = max(1, len(whole) // 10)
    first, last = sum(whole[:tenth]) / tenth, sum(whole[-tenth:]) / tenth
    if len(whole) < 2 or not first:
        return {}
    return {"first_tenth_rate": first, "last_tenth_rate": last, "last_to_first": round(last / first, 2)}


def measure(messages: int = 10_000_000, spark: bool = True) -> dict[str, Any]:
    """Fill, read, read with Spark."""
    result: dict[str, Any] = {"machine": describe(), "messages": messages, "body_bytes": 100}
    touch_memory(6)
    with penstock() as broker:
        filled = load("send", broker, T=TOPIC, P=4, q=4, w=20, b=200, s=100, t=600, W=0, n=messages)
        memory = [anonymous_mib(broker.pid)]
        result["append"] = {"rate": filled["rate"], "cpu_us": filled["cpu_us"], **steadiness(filled["per_second"])}
        print("append", result["append"], flush=True)
        read = load("read", broker, T=TOPIC, C=4, t=600, W=0, n=messages)
        memory.append(anonymous_mib(broker.pid))
        result["group_read"] = {"rate": read["rate"], "cpu_us": read["cpu_us"], "messages": read["messages"]}
        print("group read", result["group_read"], flush=True)
        if spark:
            from penstock.spark import session

            session_ = session("bench-backlog")
            began = time.monotonic()
            frame = (
                session_.read.format("penstock").option("registry", broker.registry).schema("offset long").load(TOPIC)
            )
            rows = frame.count()
            took = time.monotonic() - began
            memory.append(anonymous_mib(broker.pid))
            result["spark_read"] = {"rows": rows, "seconds": round(took, 1), "rate": round(rows / took)}
            print("spark read", result["spark_read"], flush=True)
            session_.stop()
        result["anonymous_mib"] = [round(m) for m in memory]
        result["goals"] = {"anonymous_mib_max": MEMORY_MIB_MAX, "last_to_first_min": STEADY_MIN}
    return result


def main(arguments: list[str]) -> None:
    short = "--short" in arguments
    result = measure(1_000_000 if short else 10_000_000)
    print(json.dumps(result, indent=1))
    if not short:
        (HERE / "results").mkdir(exist_ok=True)
        (HERE / "results" / "backlog.json").write_text(json.dumps(result, indent=1) + "\n")
