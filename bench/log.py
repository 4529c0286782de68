"""The log path: CPU per message of the whole broker process, beside the loopback floor in the same rounds, and beside
RocketMQ's own broker where `PENSTOCK_BENCH_ROCKETMQ` names its folder. Where `PENSTOCK_BENCH_KAFKA` names that of a Kafka, its
broker takes batches from its own load client.
"""

from __future__ import annotations

import json
import statistics
from typing import Any

from bench.machine import describe, touch_memory
from bench.servers import (
    HERE,
    Running,
    demand_kafka_load,
    find_kafka,
    find_rocketmq,
    kafka,
    kafka_load,
    load,
    penstock,
    rocketmq,
    sink,
)

# name, level, client mode and flags, goal in µs of CPU per message (None: a rate), whether the sink can take the same load
ROWS: list[tuple[str, str, str, dict[str, Any], float | None, bool]] = [
    ("SEND 200 B, JSON header, window 250 × 4", "os", "send", {"P": 4, "w": 250, "j": True}, 0.9, True),
    ("SEND 200 B, binary header, window 250 × 4", "os", "send", {"P": 4, "w": 250}, None, True),
    ("batches of 200 × 200 B, window 20 × 2", "os", "send", {"P": 2, "w": 20, "b": 200}, 0.5, True),
    ("20 synchronous producers, 200 B, JSON", "os", "send", {"P": 20, "w": 1, "j": True}, 12.0, True),
    ("send + pull of 32, 200 B, window 250 × 4", "os", "both", {"P": 4, "C": 4, "w": 250, "j": True}, 2.0, False),
    ("level disk, 200 B, JSON, window 250 × 4", "disk", "send", {"P": 4, "w": 250, "j": True}, None, False),
    ("level disk, one synchronous producer", "disk", "send", {"P": 1, "w": 1, "j": True}, None, False),
    ("level disk, 20 synchronous producers", "disk", "send", {"P": 20, "w": 1, "j": True}, None, False),
    ("level disk, batches of 200, window 20 × 2", "disk", "send", {"P": 2, "w": 20, "b": 200}, None, False),
]
DISK_RATE, READ_RATE = 150_000, 1_000_000
KAFKA_MESSAGES, KAFKA_BATCH = 1_000_000, 200 * 212  # of 200 messages of 200 bytes


def _median(runs: list[dict[str, Any]], key: str) -> float:
    return statistics.median(run[key] for run in runs)


def measure(rounds: int = 3, seconds: float = 2.0, memory_gib: int = 4) -> dict[str, Any]:
    """All rows in turn, `rounds` times with the order reversed each time; medians and ranges."""
    peer = find_rocketmq()
    jars, kafkas = find_kafka(), []
    if jars is not None:
        demand_kafka_load(jars)
    result: dict[str, Any] = {
        "machine": describe(), "rounds": rounds, "seconds": seconds, "rocketmq": bool(peer), "rows": []
    }  # fmt: skip
    result["memory_touched_s"] = round(touch_memory(memory_gib), 1)
    runs: dict[str, list[dict[str, Any]]] = {}
    floors: dict[str, list[dict[str, Any]]] = {}
    theirs: dict[str, list[dict[str, Any]]] = {}
    for number in range(rounds):
        for row in ROWS if number % 2 == 0 else reversed(ROWS):
            name, level, mode, flags, _, floor = row
            with penstock(level=level) as broker:
                runs.setdefault(name, []).append(load(mode, broker, t=seconds, W=1.0, **flags))
            if floor:
                with sink() as server:
                    floors.setdefault(name, []).append(load(mode, server, t=seconds, W=0.5, **flags))
            if peer is not None:
                with rocketmq(peer, sync_flush=level == "disk") as server:
                    theirs.setdefault(name, []).append(load(mode, server, t=seconds, W=1.0, **flags))
            print(".", end="", flush=True)
        with penstock() as broker:
            runs.setdefault("group read", []).append(_backlog_read(broker, seconds))
        if peer is not None:
            with rocketmq(peer, sync_flush=False) as server:
                theirs.setdefault("group read", []).append(_backlog_read(server, seconds))
        if jars is not None:
            with kafka(jars) as server:
                kafkas.append(kafka_load(jars, server, int(KAFKA_MESSAGES * seconds), KAFKA_BATCH))
    print()
    for name, _, _, _, goal, floor in ROWS:
        result["rows"].append(_row(name, runs[name], goal, floors[name] if floor else None, theirs.get(name)))
    if jars is not None:
        version = next(jars.glob("kafka_2.*.jar")).stem.rpartition("-")[2]
        result["kafka"] = {
            "version": version, "cpu_us": round(_median(kafkas, "cpu_us"), 3), "rate": round(_median(kafkas, "rate"))
        }  # fmt: skip
    name = "group read of a backlog, 200 B, pulls of 32"
    result["rows"].append(_row(name, runs["group read"], 0.4, None, theirs.get("group read")))
    return result


def _backlog_read(server: Running, seconds: float) -> dict[str, Any]:
    """What the second reader costs: the first one warms what compiles while it runs."""
    load("send", server, t=60, W=0, n=3_000_000, P=4, w=20, b=200, q=4)
    load("read", server, t=seconds, W=0, n=2_900_000, C=4)
    return load("read", server, t=seconds, W=0, n=2_900_000, C=4)


def _row(
    name: str,
    runs: list[dict[str, Any]],
    goal: float | None,
    floors: list[dict[str, Any]] | None,
    theirs: list[dict[str, Any]] | None = None,
) -> dict[str, Any]:
    cpu = _median(runs, "cpu_us")
    row = {
        "what": name,
        "cpu_us": round(cpu, 3),
        "cpu_us_range": [min(r["cpu_us"] for r in runs), max(r["cpu_us"] for r in runs)],
        "rate": round(_median(runs, "rate")),
        "client_load": round(_median(runs, "client_load"), 2),
        "goal_cpu_us": goal,
    }
    if "disk" in name and "window 250" in name:
        row["goal_rate"] = DISK_RATE
    if theirs is not None:
        row["rocketmq_cpu_us"] = round(_median(theirs, "cpu_us"), 3)
        row["rocketmq_rate"] = round(_median(theirs, "rate"))
        row["rocketmq_to_ours"] = round(_median(theirs, "cpu_us") / cpu, 1)
        row["rate_to_rocketmq"] = round(row["rate"] / row["rocketmq_rate"], 2)
    if "backlog" in name:
        row["goal_rate"] = READ_RATE
    if floors:
        row["floor_cpu_us"] = round(_median(floors, "cpu_us"), 3)
        row["times_the_floor"] = round(cpu / _median(floors, "cpu_us"), 1)
    return row


def show(result: dict[str, Any]) -> None:
    """The table."""
    print(json.dumps(result["machine"]))
    print(
        f"{'what':46} {'µs CPU':>8} {'range':>15} {'goal':>6} {'floor':>7} {'×':>6} {'rate/s':>11} {'goal':>9}"
        f" {'RocketMQ':>9} {'÷ ours':>7} {'rate × its':>10}"
    )
    for row in result["rows"]:
        low, high = row["cpu_us_range"]
        print(
            f"{row['what']:46} {row['cpu_us']:8.2f} {f'{low:.2f}–{high:.2f}':>15} {row['goal_cpu_us'] or '':>6} "
            f"{row.get('floor_cpu_us', ''):>7} {row.get('times_the_floor', ''):>6} "
            f"{row['rate']:11,} {row.get('goal_rate', ''):>9}"
            f" {row.get('rocketmq_cpu_us', ''):>9} {row.get('rocketmq_to_ours', ''):>7} {row.get('rate_to_rocketmq', ''):>10}"
        )


def main(arguments: list[str]) -> None:
    short = "--short" in arguments
    result = measure(rounds=1 if short else 3)
    show(result)
    if not short:
        (HERE / "results").mkdir(exist_ok=True)
        (HERE / "results" / "log.json").write_text(json.dumps(result, indent=1) + "\n")
