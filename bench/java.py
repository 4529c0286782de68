"""RocketMQ's own Java client, which sends synchronously in 1, 16 and 64 threads: at our broker, at RocketMQ's, and at the floor,
a C server that only answers, by turns.

`PENSTOCK_BENCH_ROCKETMQ` names the folder of RocketMQ 4.9, whose client it is. Rates are those of client and broker on the same
cores; CPU is the broker's.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.machine import cpu_s, describe
from bench.servers import HERE, ROCKETMQ_FOLDER, Running, find_rocketmq, name_server, named_sink, penstock, rocketmq
from penstock import Admin

TOPIC, FLOOR = "JavaSend", "floor"
WARM_UP_S = 2  # and as long as is measured: two Javas compile their code
# threads, how many times RocketMQ's rate at least
ROWS = ((1, 2.5), (16, 2.2), (64, 2.0))


def measure(rounds: int, seconds: int) -> dict[str, Any]:
    """Every number of threads at both brokers, `rounds` times; medians."""
    jars = find_rocketmq()
    if jars is None:
        raise SystemExit(
            f"bench: {ROCKETMQ_FOLDER} must name the folder of a RocketMQ 4.9, whose Java client sends here"
        )
    runs: dict[tuple[int, str], list[dict[str, float]]] = {}
    for number in range(rounds):
        for threads, _ in ROWS if number % 2 == 0 else reversed(ROWS):
            order = ("penstock", "RocketMQ", FLOOR)
            for whose in order if number % 2 == 0 else reversed(order):
                with ExitStack() as stack:
                    if whose == FLOOR:
                        server = stack.enter_context(named_sink(TOPIC))
                    elif whose == "penstock":
                        server = stack.enter_context(penstock())
                        with Admin(server.registry) as admin:
                            admin.create_topic(TOPIC)
                    else:
                        server = stack.enter_context(rocketmq(jars, registry=stack.enter_context(name_server())))
                    runs.setdefault((threads, whose), []).append(_send(jars, server, threads, seconds))
                print(".", end="", flush=True)
    print()
    return {
        "machine": describe(),
        "rounds": rounds,
        "seconds": seconds,
        "rows": [
            _row(threads, goal, *(runs[threads, whose] for whose in ("penstock", "RocketMQ", FLOOR)))
            for threads, goal in ROWS
        ],
    }


def _send(jars: Path, server: Running, threads: int, seconds: int) -> dict[str, float]:
    """One run: messages a second, and the broker's CPU in µs for each."""
    command = ["java", "-Xmx1g", "-cp", f"{jars}/*", str(HERE / "JavaSend.java"), server.registry, TOPIC, str(threads)]
    with subprocess.Popen(
        [*command, str(seconds + WARM_UP_S), str(seconds)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as client:  # fmt: skip
        assert client.stdout is not None
        if client.stdout.readline() != "begin\n":
            raise SystemExit("bench: the Java client ended before it sent")
        used = cpu_s(server.pid)
        told = json.loads(next(line for line in client.stdout if line.startswith("{")))  # its log goes there, too
        used = cpu_s(server.pid) - used
    if told["failed"] or not told["messages"]:
        raise SystemExit(f"bench: {told['failed']} sends failed, {told['messages']} did not")
    return {"rate": told["messages"] / told["seconds"], "cpu_us": used * 1e6 / told["messages"]}


def _row(
    threads: int,
    goal: float,
    ours: list[dict[str, float]],
    theirs: list[dict[str, float]],
    floors: list[dict[str, float]],
) -> dict[str, Any]:
    def median(runs: list[dict[str, float]], key: str) -> float:
        return statistics.median(run[key] for run in runs)

    times = [mine["rate"] / other["rate"] for mine, other in zip(ours, theirs, strict=True)]
    return {
        "threads": threads,
        "rate": round(median(ours, "rate")),
        "rocketmq_rate": round(median(theirs, "rate")),
        "times_the_rate": round(median(ours, "rate") / median(theirs, "rate"), 2),
        "times_range": [round(min(times), 2), round(max(times), 2)],
        "floor_rate": round(median(floors, "rate")),
        "floor_times": round(median(floors, "rate") / median(theirs, "rate"), 2),
        "goal_times": goal,
        "cpu_us": round(median(ours, "cpu_us"), 1),
        "rocketmq_cpu_us": round(median(theirs, "cpu_us"), 1),
        "floor_cpu_us": round(median(floors, "cpu_us"), 1),
    }


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="bench java", description=__doc__)
    parser.add_argument("--short", action="store_true", help="one round of a second each, and nothing is stored")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=6)
    given = parser.parse_args(arguments)
    result = measure(1 if given.short else given.rounds, 1 if given.short else given.seconds)
    print(
        f"{'threads':>7} {'ours/s':>9} {'RocketMQ/s':>11} {'times':>6} {'floor':>6} {'goal':>5} {'CPU µs':>7} {'theirs':>7} "
        f"{'floor':>6}"
    )
    for row in result["rows"]:
        print(
            f"{row['threads']:7} {row['rate']:9,} {row['rocketmq_rate']:11,} {row['times_the_rate']:6} {row['floor_times']:6} "
            f"{row['goal_times']:5} {row['cpu_us']:7} {row['rocketmq_cpu_us']:7} {row['floor_cpu_us']:6}"
        )
    if not given.short:
        (HERE / "results").mkdir(exist_ok=True)
        (HERE / "results" / "java.json").write_text(json.dumps(result, indent=1) + "\n")
