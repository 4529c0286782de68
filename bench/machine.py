"""What a figure must be read with: the machine, the versions, and memory and room on the disk that are really there."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import platform
import struct
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


GET_FLAGS, SET_FLAGS, TOP_FOLDER = 0x80086601, 0x40086602, 0x00020000  # FS_IOC_GETFLAGS, FS_IOC_SETFLAGS, FS_TOPDIR_FL


def lie_apart(folder: Path) -> None:
    """Let the folders that are made in this one lie anywhere on the disk, by their names (ext4; nothing elsewhere).

    Without a journal ext4 looks at each inode that was freed in the last one to five minutes, and passes over it, for each new
    file anew: behind the end of another broker a file costs three times as much (`recently_deleted`).
    """
    fd = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            flags = struct.unpack("I", fcntl.ioctl(fd, GET_FLAGS, bytes(4)))[0]
            fcntl.ioctl(fd, SET_FLAGS, struct.pack("I", flags | TOP_FOLDER))
    finally:
        os.close(fd)


def cpu_s(pid: int) -> float:
    """CPU seconds of all threads of a process."""
    return sum(int(task.read_text().split()[0]) for task in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


def anonymous_mib(pid: int) -> float:
    """Memory of a process that no file backs."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) / 1024
    return 0.0
