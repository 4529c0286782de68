"""Released: mappings and descriptors that somebody has let go of, the last ones of a deleted file perhaps.

The system frees a file's pages with its last name, mapping or descriptor: 25 ms for 100 MB, longer where they wait to be
written. A loop that let go of ten gigabytes would stand still for seconds, so a thread does that, a piece at a time.
"""

from __future__ import annotations

import mmap
import time
from collections import deque
from collections.abc import Callable

from penstock.disk.job import Job

PIECE_S = 0.05  # others want the thread, too

Resource = mmap.mmap | int | None


class Released:
    """What a broker's files let go of; for any thread. Before `begin` and behind `end` it goes at once."""

    def __init__(self, close: Callable[[int], None]) -> None:
        self._close = close
        self._waiting: deque[Resource] = deque()
        self._keeps = False
        self._running = False

    def __len__(self) -> int:
        return len(self._waiting)

    def begin(self) -> None:
        """Somebody takes jobs from now on."""
        self._keeps = True

    def end(self) -> None:
        """Nobody takes jobs any more."""
        self._keeps = False
        self._free(float("inf"))

    def add(self, *resources: Resource) -> None:
        """Mappings and descriptors that the caller has no use for."""
        self._waiting.extend(resources)
        if not self._keeps:
            self._free(float("inf"))

    def take_job(self) -> Job | None:
        """Free some of it; None when nothing waits, or another job is at it."""
        if not self._waiting or self._running:
            return None
        self._running = True

        def finish(error: BaseException | None, mono_ms: int) -> None:
            self._running = False

        return Job("release", lambda: self._free(time.monotonic() + PIECE_S), finish)

    def _free(self, until_s: float) -> None:
        while self._waiting:
            try:
                resource = self._waiting.popleft()
            except IndexError:  # another thread has it
                return
            if isinstance(resource, int):
                self._close(resource)
            resource = None  # a mapping goes with its last reference
            if time.monotonic() >= until_s:
                return
