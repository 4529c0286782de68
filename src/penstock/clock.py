"""Time comes in through one of these; nothing below floor 5 asks the operating system.

Compiled: the clock is read in every turn of the loop, and a turn may carry one message.
"""

from __future__ import annotations

import time

import cython

if cython.compiled:
    from cython.cimports.penstock import words
    from cython.cimports.penstock.octets import steady_ns
else:
    from penstock import words
    from penstock.octets import steady_ns


_SOME_NOW_MS, _SOME_MONOTONIC_MS = 1_700_000_000_000, 1_000_000  # where a test begins


class Clock:
    """The machine's clocks, in milliseconds."""

    def __init__(self) -> None:
        self._ahead_ms = 0  # of the machine's wall clock

    def now_ms(self) -> int:
        """Wall clock: for what is printed and stored."""
        return self.now_ns() // words.NS_A_MS

    def now_ns(self) -> int:
        """The same, finer."""
        return time.time_ns() + self._ahead_ms * words.NS_A_MS

    def machine_ms(self) -> int:
        """This machine's wall clock, whomever `now_ms` follows: the times of files are by it."""
        return time.time_ns() // words.NS_A_MS

    def follow(self, now_ms: int) -> None:
        """Another machine's wall clock says this, and is believed from now on."""
        self._ahead_ms += now_ms - self.now_ms()

    def monotonic_ms(self) -> int:
        """For timeouts and delays: it never jumps, and it goes on while the machine sleeps."""
        return self.monotonic_ns() // words.NS_A_MS

    def monotonic_ns(self) -> int:
        """The same, finer."""
        return steady_ns()


class FakeClock(Clock):
    """A clock that tests move."""

    def __init__(self, now_ms: int = _SOME_NOW_MS, monotonic_ms: int = _SOME_MONOTONIC_MS) -> None:
        super().__init__()
        self._now_ms = now_ms
        self._monotonic_ms = monotonic_ms
        self._machine_ms = now_ms

    def now_ms(self) -> int:
        return self._now_ms

    def now_ns(self) -> int:
        return self._now_ms * words.NS_A_MS

    def machine_ms(self) -> int:
        return self._machine_ms

    def monotonic_ms(self) -> int:
        return self._monotonic_ms

    def monotonic_ns(self) -> int:
        return self._monotonic_ms * words.NS_A_MS

    def advance(self, ms: int) -> None:
        """Both clocks go on, as time does."""
        self._now_ms += ms
        self._machine_ms += ms
        self._monotonic_ms += ms

    def follow(self, now_ms: int) -> None:
        self._now_ms = now_ms

    def jump(self, ms: int) -> None:
        """The wall clock alone is set, forward or back."""
        self._now_ms += ms
        self._machine_ms += ms
