"""This machine's own processes as events, sampled from /proc: name, pid, CPU, memory, reading and writing."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from penstock.demo.shape import Event, Field, Plan
from penstock.errors import ConfigError

EVENTS = 20_000
SECONDS = 15.0
_KERNEL_THREAD = 0x00200000  # PF_KTHREAD: part of the kernel, nothing anybody started
WINDOW_S = 0.5  # CPU is measured over this long: shorter is only the kernel's 10-ms grain
FIELDS = [
    Field("time", "time"), Field("name", "text"), Field("pid", "number"), Field("cpu_percent", "number"),
    Field("memory_mb", "number"), Field("read_mb", "number"), Field("written_mb", "number"), Field("threads", "number"),
]  # fmt: skip
PLAN = Plan("time", "time", "cpu_percent", "name")


def sample(events: int = EVENTS, seconds: float = SECONDS, proc: Path = Path("/proc")) -> Iterator[Event]:
    """At least so many events, spread over about so many seconds: one per process and look."""
    if not (proc / "self" / "stat").exists():
        raise ConfigError("there is no /proc on this system", "give the demo a file of events")
    ticks, page_mb = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGESIZE") / 1e6
    before: dict[tuple[int, int], list[tuple[float, int]]] = {}
    made, began = 0, time.monotonic()
    while made < events:
        seen = set()
        now = time.monotonic()
        stamp = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
        for folder in proc.iterdir():
            if not folder.name.isdigit():
                continue
            try:
                head, _, tail = (folder / "stat").read_text().rpartition(")")
                stat = tail.split()
            except OSError:  # it ended meanwhile
                continue
            if int(stat[6]) & _KERNEL_THREAD:
                continue
            pid, used, born = int(folder.name), int(stat[11]) + int(stat[12]), int(stat[19])
            seen.add((pid, born))
            past = before.setdefault((pid, born), [(now, used)])
            while len(past) > 1 and now - past[1][0] >= WINDOW_S:
                past.pop(0)
            passed = now - past[0][0]
            past.append((now, used))
            read, written = _io(folder)
            made += 1
            yield {
                "time": stamp,
                "name": head.partition("(")[2],
                "pid": pid,
                "cpu_percent": round(100 * (used - past[0][1]) / ticks / passed, 2) if passed else 0.0,
                "memory_mb": round(int(stat[21]) * page_mb, 3),
                "read_mb": read,
                "written_mb": written,
                "threads": int(stat[17]),
            }
        before = {key: past for key, past in before.items() if key in seen}
        # Look as often as it takes to have them all in time, but leave the machine most of its time.
        pause = (began + seconds * made / events) - time.monotonic()
        time.sleep(min(max(pause, 0.004), 0.5))


def _io(folder: Path) -> tuple[float | None, float | None]:
    """Megabytes read and written by a process so far; None where another user's may not be seen."""
    try:
        lines = dict(line.split(": ") for line in (folder / "io").read_text().splitlines())
    except (OSError, ValueError):
        return None, None
    return round(int(lines["rchar"]) / 1e6, 3), round(int(lines["wchar"]) / 1e6, 3)
