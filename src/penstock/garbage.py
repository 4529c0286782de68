"""When a process looks at all its objects for cycles of garbage: when it has nothing else to do.

Python does so whenever a quarter more objects are there than at the last time: with 5,000 topics that stops the loop for 0.1 s,
with millions of messages in memory it did for half a second, again and again while they come. What a broker lets go of is
freed at once; the cycles it leaves are those of ended connections. So young objects are looked at as ever, which
takes a millisecond; all of them when the process rests, or when so many came that memory matters more.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import time

LOOK_S = 1.0
NEVER = 0x7FFF_FFFF  # times that the middle generation is collected before Python collects the last one by itself
RESTING = 0.005  # of a core: a process that used less since the last look rests
FEW = 70_000  # objects more than behind the last collection: fewer are not worth it
MANY = 300_000  # so many are looked at even if the process does not rest: some 50 MB
SHARE = 1 / 300  # of the time may go into that


class Collector:
    """Decides, once a second, whether to collect all generations. Until it is closed Python does not do so by itself."""

    def __init__(self) -> None:
        self._before = gc.get_threshold()
        # At least so many were allocated, and not freed at once, whenever the first generation is collected; and so many
        # times that is done until the middle one is.
        self._step, self._steps = self._before[0] + 1, self._before[1] + 1
        self._looked_s = self._cpu_s = self._due_s = float("-inf")
        self._blocks = sys.getallocatedblocks()
        gc.set_threshold(*self._before[:2], NEVER)

    def close(self) -> None:
        """As before."""
        gc.set_threshold(*self._before)

    def look(self, mono_s: float, cpu_s: float) -> bool:
        """Collect if it is time to; whether it was. `cpu_s`: what the process has used since it began."""
        rests = cpu_s - self._cpu_s < RESTING * (mono_s - self._looked_s)
        self._looked_s, self._cpu_s = mono_s, cpu_s
        # Of those that grow old some are freed, and of what is allocated not all can be part of a cycle.
        _, young, middle = gc.get_count()
        grown = min((middle * self._steps + young) * self._step, sys.getallocatedblocks() - self._blocks)
        if grown < (FEW if rests else MANY) or mono_s < self._due_s:
            return False
        began = time.perf_counter()
        gc.collect()
        took_s = time.perf_counter() - began
        self._blocks = sys.getallocatedblocks()
        self._due_s = mono_s + took_s / SHARE
        self._cpu_s += took_s
        return True

    async def run(self) -> None:
        """Look until cancelled; then close."""
        with contextlib.closing(self):
            while True:
                await asyncio.sleep(LOOK_S)
                self.look(time.monotonic(), time.process_time())
