"""Levels: when a publish is acknowledged. `os`: the kernel has it; `disk`: it is flushed; `memory`: the process has it."""

from __future__ import annotations

LEVEL_OS, LEVEL_DISK, LEVEL_MEMORY = 0, 1, 2
LEVEL_NAMES = ("os", "disk", "memory")
LEVELS = {name: number for number, name in enumerate(LEVEL_NAMES)}
