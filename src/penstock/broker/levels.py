"""Levels: when a publish is acknowledged. `os`: the kernel has it; `disk`: it is flushed; `memory`: the process has it."""

from __future__ import annotations

from penstock.words import LEVEL_DISK as LEVEL_DISK
from penstock.words import LEVEL_MEMORY as LEVEL_MEMORY
from penstock.words import LEVEL_OS as LEVEL_OS

LEVEL_NAMES = ("os", "disk", "memory")
LOG_LEVELS = LEVEL_NAMES[:2]  # a log topic is on the disk in any case
LEVELS = {name: number for number, name in enumerate(LEVEL_NAMES)}
