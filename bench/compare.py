"""`./run bench compare COMMIT`: this tree beside another commit of it, in the same minutes, row by row, as ratios.

The other commit is unpacked and compiled in a folder of its own. Each round measures every row once with either tree, the
one that comes first by turns, so that a busy minute touches both. Latency is measured with both brokers up, some messages
to each by turns: how soon a sleeping process runs changes with what else the machine does, from one second to the next. A
ratio below 1 means that this tree is cheaper; it is a finding when its range leaves 1 out.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

from bench import log, nsq
from bench.machine import describe, touch_memory
from bench.servers import HERE, Running, load, nsq_load, penstock

ROOT = HERE.parent
Measure = Callable[[list[Path], float], list[float]]  # the sources, and how many seconds a load takes: a figure of each
LATENCY_MESSAGES = 20  # to one broker, before it is the other's turn


def unpack(commit: str, folder: Path) -> Path:
    """The sources of a commit, compiled; SystemExit with what is wrong."""
    told = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True)
    if told.returncode:
        raise SystemExit(f"bench: git knows no commit {commit}: {told.stderr.decode().strip()}")
    with tarfile.open(fileobj=BytesIO(told.stdout)) as archive:
        archive.extractall(folder, filter="data")
    print(f"compiling {commit} …", flush=True)
    built = subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--inplace"], cwd=folder, capture_output=True, text=True
    )
    if built.returncode:
        raise SystemExit(f"bench: {commit} does not compile: {built.stderr[-2000:]}")
    return folder / "src"


def _cpu(figures: dict[str, Any]) -> float:
    return float(figures["cpu_us"])


def rows() -> dict[str, Measure]:
    """What is measured, by name: µs of CPU a message, ms of latency, s until it is ready."""
    found: dict[str, Measure] = {}

    def add(name: str, level: str, run: Callable[[Running, float], float]) -> None:
        def measure(sources: list[Path], seconds: float) -> list[float]:
            figures = []
            for source in sources:
                with penstock(source, level=level) as broker:
                    figures.append(run(broker, seconds))
            return figures

        found[name] = measure

    for name, flags, _, _ in nsq.ROWS:
        add(f"nsq: {name}", "os", lambda b, s, f=flags: _cpu(nsq_load("load", b, t=s, W=0.5, **f)))  # type: ignore[misc]
    for name, level, mode, flags, _, _ in log.ROWS:
        add(f"log: {name}", level, lambda b, s, m=mode, f=flags: _cpu(load(m, b, t=s, W=0.5, **f)))  # type: ignore[misc]
    for level in ("os", "disk"):
        found[f"latency: level {level}, median ms"] = partial(_latency, level)

    def start(sources: list[Path], seconds: float) -> list[float]:
        figures = []
        for source in sources:
            began = time.monotonic()
            with penstock(source):
                figures.append(time.monotonic() - began)
        return figures

    found["start: s until ready"] = start
    return found


def _latency(level: str, sources: list[Path], seconds: float) -> list[float]:
    """The median of each broker's medians, a hundred messages a second."""
    with ExitStack() as stack:
        brokers = [stack.enter_context(penstock(source, level=level)) for source in sources]
        medians: list[list[float]] = [[] for _ in brokers]
        for _ in range(max(1, int(100 * seconds) // LATENCY_MESSAGES)):
            for broker, found in zip(brokers, medians, strict=True):
                found.append(float(nsq_load("latency", broker, n=LATENCY_MESSAGES)["median_ms"]))
        return [statistics.median(found) for found in medians]


def compare(commit: str, rounds: int, seconds: float, only: str) -> dict[str, Any]:
    """Every row whose name begins with `only`, in both trees."""
    figures: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory(prefix="penstock-compare-") as folder:
        trees = {"before": unpack(commit, Path(folder)), "now": ROOT / "src"}
        touch_memory(2)
        for number in range(rounds):
            for name, measure in rows().items():
                if name.startswith(only):
                    names = list(trees) if number % 2 == 0 else list(reversed(trees))
                    for tree, figure in zip(names, measure([trees[tree] for tree in names], seconds), strict=True):
                        figures.setdefault(name, {}).setdefault(tree, []).append(figure)
                    print(".", end="", flush=True)
        print()
    return {
        "machine": describe(), "commit": commit, "rounds": rounds, "seconds": seconds,
        "rows": [_row(name, pair["before"], pair["now"]) for name, pair in figures.items()],
    }  # fmt: skip


def _row(name: str, before: list[float], now: list[float]) -> dict[str, Any]:
    ratios = [n / b for n, b in zip(now, before, strict=True)]
    return {
        "what": name,
        "before": round(statistics.median(before), 3),
        "now": round(statistics.median(now), 3),
        "ratio": round(statistics.median(ratios), 3),
        "ratio_range": [round(min(ratios), 3), round(max(ratios), 3)],
    }


def show(result: dict[str, Any]) -> None:
    """The table."""
    print(json.dumps(result["machine"]))
    print(f"{'µs of CPU a message, where not said otherwise':58} {'before':>9} {'now':>9} {'ratio':>7} {'range':>13}")
    for row in result["rows"]:
        low, high = row["ratio_range"]
        print(
            f"{row['what']:58} {row['before']:9.3f} {row['now']:9.3f} {row['ratio']:7.3f} {f'{low:.2f}–{high:.2f}':>13}"
        )


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="./run bench compare", description=__doc__)
    parser.add_argument("commit", help="what git calls the other tree: a hash, a tag, HEAD~3")
    parser.add_argument("--rounds", type=int, default=5, help="how often each row is measured in each tree")
    parser.add_argument("--seconds", type=float, default=2.0, help="how long a load runs")
    parser.add_argument("--only", default="", help="rows whose name begins so: nsq, log, latency, start")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    given = parser.parse_args(arguments)
    result = compare(given.commit, given.rounds, given.seconds, given.only)
    if not result["rows"]:
        raise SystemExit(f"bench: no row begins with {given.only}; there are {', '.join(rows())}")
    if given.json:
        print(json.dumps(result, indent=1))
    else:
        show(result)
