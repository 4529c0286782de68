"""What a figure must be read with: the machine, the versions, and memory that is really there."""

from __future__ import annotations

import mmap
import os
import platform
import time
from pathlib import Path
from typing import Any


def describe() -> dict[str, Any]:
    """One line about this machine, in parts."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.machine(),
    )
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "load_before": os.getloadavg()[0],
        "date": time.strftime("%Y-%m-%d %H:%M"),
    }


def touch_memory(gib: int) -> float:
    """Use so much memory once and give it back; seconds that took.

    The first use of a page of a virtual machine's memory costs its host 3 to 10 times the page's own work (measured: 3.5 s
    of CPU per GiB of mapped log against 0.2 s afterwards), and a log always takes fresh pages.
    """
    began = time.monotonic()
    with mmap.mmap(-1, gib << 30) as memory:
        for at in range(0, gib << 30, 1 << 30):
            memory.madvise(23, at, 1 << 30)  # MADV_POPULATE_WRITE
    return time.monotonic() - began


def cpu_s(pid: int) -> float:
    """CPU seconds of all threads of a process."""
    return sum(int(task.read_text().split()[0]) for task in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


def anonymous_mib(pid: int) -> float:
    """Memory of a process that no file backs."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) / 1024
    return 0.0
