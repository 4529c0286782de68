"""How much memory there is for this process: the machine's, or less where a control group has a limit, as containers do."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

# By the controllers of a line of /proc/self/cgroup, none in version 2: where the groups are, and the file of a limit.
_KINDS = {"": ("sys/fs/cgroup", "memory.max"), "memory": ("sys/fs/cgroup/memory", "memory.limit_in_bytes")}


def memory_bytes(root: Path = Path("/")) -> int:
    """In bytes. `root`: where the system tells of itself."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *_group_limits(root)])


def _group_limits(root: Path) -> Iterator[int]:
    """Those of our control group and of the groups it lies in."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        for controller in controllers.split(","):
            if controller not in _KINDS:
                continue
            mount, name = _KINDS[controller]
            inside = Path(path.lstrip("/"))
            # A container sees its own group as the uppermost one, under whatever path it has outside.
            for folder in (inside, *inside.parents) if ".." not in inside.parts else (Path(),):
                limit = _read(root / mount / folder / name).strip()  # "max": none
                if limit.isdecimal() and int(limit):
                    yield int(limit)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return ""
