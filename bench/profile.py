"""`./run profile [ROW]`: where a broker under load spends its time, compiled functions with their names and lines.

The package is compiled a second time with line numbers into `build/lines`; py-spy looks at the process a hundred times a
second. A table of functions goes to the screen, a flame graph to `bench/results/profile.svg`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

from bench import log, nsq
from bench.servers import HERE, Running, load, nsq_load, penstock

ROOT = HERE.parent
LINES = ROOT / "build" / "lines"
SHOWN = 30


def build() -> Path:
    """The package with line numbers in its compiled modules."""
    print("compiling with line numbers …", flush=True)
    told = subprocess.run(
        [sys.executable, "setup.py", "-q", "build", "--build-lib", str(LINES), "--build-temp", str(LINES / "temp")],
        cwd=ROOT, env={**os.environ, "PENSTOCK_BUILD": "lines"}, capture_output=True, text=True,
    )  # fmt: skip
    if told.returncode:
        raise SystemExit(f"profile: the package does not compile: {told.stderr[-2000:]}")
    return LINES


def record(pid: int, seconds: int, to: Path, form: str) -> None:
    """Let py-spy look at a process."""
    command = [str(Path(sys.executable).with_name("py-spy")), "record", "--native", "-d", str(seconds)]
    told = subprocess.run([*command, "-f", form, "-o", str(to), "-p", str(pid)], capture_output=True, text=True)
    if told.returncode:
        raise SystemExit(f"profile: {told.stderr.strip()} (py-spy needs the right to trace: root, or ptrace_scope 0)")


def table(raw: Path) -> list[tuple[str, float, float]]:
    """Functions by their own share of the time, with the share of all below them."""
    own: Counter[str] = Counter()
    below: Counter[str] = Counter()
    for line in raw.read_text().splitlines():
        stack, _, count = line.rpartition(" ")
        frames = stack.split(";")
        own[frames[-1]] += int(count)
        for frame in set(frames):
            below[frame] += int(count)
    total = max(1, sum(own.values()))
    return [(name, count / total, below[name] / total) for name, count in own.most_common(SHOWN)]


def main(arguments: list[str]) -> None:
    rows = {f"nsq: {name}": ("os", nsq_load, "load", flags) for name, flags, _, _ in nsq.ROWS}
    rows |= {f"log: {name}": (level, load, mode, flags) for name, level, mode, flags, _, _ in log.ROWS}
    parser = argparse.ArgumentParser(prog="./run profile", description=__doc__)
    parser.add_argument("row", nargs="?", default="log: SEND 200 B, JSON", help="how the name of a bench row begins")
    parser.add_argument("--seconds", type=int, default=8)
    given = parser.parse_args(arguments)
    name = next((name for name in rows if name.startswith(given.row)), None)
    if name is None:
        raise SystemExit(f"profile: no row begins with {given.row}; there are: {'; '.join(rows)}")
    level, client, mode, flags = rows[name]
    source = build()
    picture, raw = HERE / "results" / "profile.svg", LINES / "profile.txt"
    picture.parent.mkdir(exist_ok=True)
    with penstock(source, level=level) as broker:
        for form, to in (("raw", raw), ("flamegraph", picture)):
            loaded = threading.Thread(target=_load, args=(client, mode, broker, given.seconds + 2, flags))
            loaded.start()
            record(broker.pid, given.seconds, to, form)
            loaded.join()
    print(f"{name}\n{'own':>6} {'below':>6}  function")
    for function, own, below in table(raw):
        print(f"{own:6.1%} {below:6.1%}  {function}")
    print(f"flame graph: {picture.relative_to(ROOT)}")


def _load(client: object, mode: str, broker: Running, seconds: int, flags: dict[str, object]) -> None:
    client(mode, broker, t=float(seconds), W=0.0, **flags)  # type: ignore[operator]
