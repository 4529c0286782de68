"""Levels: when a publish is acknowledged. `os`: the kernel has it; `disk`: it is flushed; `memory`: the process has it.
`pair`: as `os`, on every in-sync slave, too; `pair-disk`: as `disk` there.
"""

from __future__ import annotations

from penstock.words import LEVEL_DISK as LEVEL_DISK
from penstock.words import LEVEL_MEMORY as LEVEL_MEMORY
from penstock.words import LEVEL_OS as LEVEL_OS
from penstock.words import LEVEL_PAIR as LEVEL_PAIR
from penstock.words import LEVEL_PAIR_DISK as LEVEL_PAIR_DISK

LEVEL_NAMES = ("os", "disk", "memory", "pair", "pair-disk")
LOG_LEVELS = ("os", "disk", "pair", "pair-disk")  # a log topic is on the disk in any case
QUEUE_LEVELS = LEVEL_NAMES[:3]  # a queue topic has no copies
LEVELS = {name: number for number, name in enumerate(LEVEL_NAMES)}
