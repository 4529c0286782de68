"""`./run bench client`: what a message costs a Python program, by the way it uses the client, beside other clients.

pynsq is measured against the original nsqd where both are there (`pip install pynsq`, nsqd on PATH), confluent-kafka against a
Kafka where `PENSTOCK_BENCH_KAFKA` names its folder; what is not there is named. Figures are CPU of the client's process.

The floor is a client in C (`bench/load.c`) at our broker, in the same rounds: it writes the same bytes again, with another
number, and makes nothing of what it reads. It sends by ones (one, 256, 1,000 under way), or a batch of 200, and pulls 32 at once.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench.clientload import BATCH
from bench.machine import describe
from bench.servers import HERE, KAFKA_FOLDER, Running, find_kafka, find_nsqd, kafka, load, nsqd, penstock

# way, what it is, messages, goal in µs of CPU a message
ROWS: list[tuple[str, str, int, float]] = [
    ("send", "`send`, one by one", 5_000, 40.0),
    ("nowait", "`send_nowait`, one thread", 100_000, 3.5),
    ("tasks", "asyncio, 256 tasks sending", 51_200, 12.0),
    ("batch", "`send_batch` of 200", 200_000, 1.5),
    ("iterate", "iterate a `PushConsumer`, acknowledge each", 200_000, 3.0),
    ("listener", "listener", 200_000, 4.0),
    ("getmany", "`getmany`", 400_000, 0.8),
]
PYNSQ = {"send": 3_000, "nowait": 20_000, "iterate": 20_000}
CONFLUENT = {"send": 2_000, "nowait": 200_000, "iterate": 200_000, "getmany": 400_000}
FLOORS: dict[str, dict[str, Any]] = {
    "send": {"P": 1, "w": 1, "j": True},
    "nowait": {"P": 1, "w": 1_000, "j": True},
    "tasks": {"P": 1, "w": 256, "j": True},
    "batch": {"P": 1, "w": 1, "b": BATCH},
}
BACKLOG = 1_000_000  # messages that the floor reads
KINDS = ("log", "queue", "floor", "pynsq", "confluent")


def _run(way: str, kind: str, address: str, count: int, source: Path) -> dict[str, Any]:
    command = [sys.executable, str(HERE / "clientload.py"), way, kind, address, str(count)]
    told = subprocess.run(
        command, capture_output=True, text=True, timeout=600, env={**os.environ, "PYTHONPATH": str(source)}
    )
    if told.returncode:
        raise SystemExit(f"bench: {way} {kind}: {told.stderr[-2000:]}")
    figures: dict[str, Any] = json.loads(told.stdout.splitlines()[-1])
    return figures


def _floor(way: str, broker: Running, scale: float) -> dict[str, Any]:
    """What the C client pays for the same, in the words of the others."""
    if way in FLOORS:
        run = load("send", broker, t=scale, W=0.2, **FLOORS[way])
    else:
        count = int(BACKLOG * scale)
        load("send", broker, t=60, W=0, n=count, P=4, w=20, b=BATCH, q=4)
        run = load("read", broker, t=60, W=0, n=count * 9 // 10, C=4)
    return {"cpu_us": run["client_cpu_us"], "rate": run["rate"]}


def _fill_nsq(server: Running, source: Path, count: int) -> None:
    """Messages for pynsq's reader, published by our client: nsqd takes them from any."""
    code = (
        "import sys; from penstock import Message, Producer\n"
        f"with Producer(nsqd=sys.argv[1]) as p:\n"
        f"    for _ in range({count // 200}): p.send_batch([Message('bench', b'x' * 200)] * 200)\n"
    )
    subprocess.run(
        [sys.executable, "-c", code, f"127.0.0.1:{server.nsq}"], check=True,
        env={**os.environ, "PYTHONPATH": str(source)},
    )  # fmt: skip


def measure(rounds: int, scale: float, source: Path) -> dict[str, Any]:
    """Every way in turn, `rounds` times; medians and ranges."""
    peer = find_nsqd()
    pynsq = peer is not None and importlib.util.find_spec("nsq") is not None
    jars = find_kafka() if importlib.util.find_spec("confluent_kafka") else None
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for _ in range(rounds):
        for way, _, count, _ in ROWS:
            for kind in ("log", "queue"):
                if (way, kind) != ("getmany", "queue"):
                    with penstock(source, level="os") as broker:
                        figures = _run(way, kind, broker.registry, int(count * scale), source)
                        found.setdefault((way, kind), []).append(figures)
            with penstock(source, level="os") as broker:
                found.setdefault((way, "floor"), []).append(_floor(way, broker, scale))
            if pynsq and way in PYNSQ:
                assert peer is not None
                with nsqd(peer) as server:
                    many = int(PYNSQ[way] * scale)
                    if way == "iterate":
                        _fill_nsq(server, source, many + 2_000)
                    figures = _run(way, "pynsq", f"127.0.0.1:{server.nsq}", many, source)
                    found.setdefault((way, "pynsq"), []).append(figures)
            if jars is not None and way in CONFLUENT:
                with kafka(jars) as server:
                    figures = _run(way, "confluent", server.registry, int(CONFLUENT[way] * scale), source)
                    found.setdefault((way, "confluent"), []).append(figures)
            print(".", end="", flush=True)
    print()
    rows = []
    for way, what, _, goal in ROWS:
        row: dict[str, Any] = {"what": what, "goal_cpu_us": goal}
        for kind in KINDS:
            if runs := found.get((way, kind)):
                costs = [run["cpu_us"] for run in runs]
                row[kind] = {
                    "cpu_us": round(statistics.median(costs), 2),
                    "range": [round(min(costs), 2), round(max(costs), 2)],
                    "rate": round(statistics.median(run["rate"] for run in runs)),
                }
        rows.append(row)
    missing = [] if pynsq else ["pynsq: the package pynsq or an nsqd built with Go on PATH is missing"]
    if jars is None:
        missing.append(f"confluent-kafka: the package is missing, or {KAFKA_FOLDER} names no folder of a Kafka")
    return {"machine": describe(), "rounds": rounds, "body_bytes": 200, "rows": rows, "not_measured": missing}


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="bench client", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--short", action="store_true", help="a tenth of the messages, one round")
    parser.add_argument("--json", type=Path, default=HERE / "results" / "client.json", help="where the figures go")
    wanted = parser.parse_args(arguments)
    figures = measure(1 if wanted.short else wanted.rounds, 0.1 if wanted.short else 1.0, HERE.parent / "src")
    if not wanted.short:
        wanted.json.write_text(json.dumps(figures, indent=1) + "\n")
    for row in figures["rows"]:
        told = "  ".join(f"{kind} {row[kind]['cpu_us']} µs ({row[kind]['rate']:,}/s)" for kind in KINDS if kind in row)
        print(f"{row['what']:45} goal {row['goal_cpu_us']:5}  {told}")
    for reason in figures["not_measured"]:
        print(f"not measured: {reason}")
