"""Time comes in through one of these; nothing below floor 5 asks the operating system."""

from __future__ import annotations

import time
from functools import partial

_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock:
    """The machine's clocks, in milliseconds."""

    _ahead_ms = 0  # of the machine's wall clock

    def now_ms(self) -> int:
        """Wall clock: for what is printed and stored."""
        return time.time_ns() // 1_000_000 + self._ahead_ms

    def follow(self, now_ms: int) -> None:
        """Another machine's wall clock says this, and is believed from now on."""
        self._ahead_ms += now_ms - self.now_ms()

    def monotonic_ms(self) -> int:
        """For timeouts and delays: it never jumps, and it goes on while the machine sleeps."""
        return self.monotonic_ns() // 1_000_000

    monotonic_ns = staticmethod(partial(time.clock_gettime_ns, _STEADY))
    """The same, finer. Asked in every turn, so no function of ours stands between."""


class FakeClock(Clock):
    """A clock that tests move."""

    def __init__(self, now_ms: int = 1_700_000_000_000, monotonic_ms: int = 1_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic_ms = monotonic_ms

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_ms(self) -> int:
        return self._monotonic_ms

    def monotonic_ns(self) -> int:
        return self._monotonic_ms * 1_000_000

    def advance(self, ms: int) -> None:
        """Both clocks go on, as time does."""
        self._now_ms += ms
        self._monotonic_ms += ms

    def follow(self, now_ms: int) -> None:
        self._now_ms = now_ms

    def jump(self, ms: int) -> None:
        """The wall clock alone is set, forward or back."""
        self._now_ms += ms
