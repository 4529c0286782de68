"""Time as a broker's parts see it: one line through `now_ms`, read once per turn of the loop.

The line is the wall clock at the start carried on by the steady clock, so that a jump of the wall clock moves neither a
delay nor a store timestamp. It follows a true correction by 1 ms a second. A slave's is its master's (`taking`).
"""

from __future__ import annotations

import cython

if cython.compiled:
    from cython.cimports.penstock import words
    from cython.cimports.penstock.clock import Clock
else:
    from penstock import words
    from penstock.clock import Clock

SLEW_EVERY_MS = 1_000
_NEARER_NS = 1_000_000_000


class BrokerClock:
    """The time of this turn. `mono_ms` for timeouts, `now_ms` and `now_ns` for what is stored."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._anchor_ns = clock.now_ns() - clock.monotonic_ns()  # read in this order the line is not ahead of the wall
        self._slewed_ms = clock.monotonic_ms()
        self.mono_ms = 0
        self.now_ms = 0
        self.now_ns = 0
        self.update()

    def update(self) -> None:
        """Read the clock."""
        mono_ns = self.clock.monotonic_ns()
        self.mono_ms = mono_ms = mono_ns // words.NS_A_MS
        if mono_ms - self._slewed_ms >= SLEW_EVERY_MS:
            wrong = self.clock.now_ns() - self.clock.monotonic_ns() - self._anchor_ns
            own = self.clock.machine_ms() * words.NS_A_MS - mono_ns - self._anchor_ns
            if abs(own) < abs(wrong) - _NEARER_NS:  # another line was taken over, and this clock has been put right
                self.clock.follow(self.clock.machine_ms())
                wrong = own
            self._anchor_ns += max(-words.NS_A_MS, min(words.NS_A_MS, wrong))
            self._slewed_ms = mono_ms
        self.now_ns = now_ns = mono_ns + self._anchor_ns
        self.now_ms = now_ns // words.NS_A_MS
        self._mono_ns = mono_ns

    def catch_up(self) -> None:
        """What is stored from here on, in this turn, gets this moment's time."""
        mono_ns = self.clock.monotonic_ns()
        self.mono_ms = mono_ns // words.NS_A_MS
        self.now_ns = now_ns = mono_ns + self._anchor_ns
        self.now_ms = now_ns // words.NS_A_MS

    def follow(self, now_ms: int) -> None:
        """Another line is taken over: this is its time in this turn."""
        self.clock.follow(now_ms)
        self.now_ms = now_ms
        self.now_ns = now_ms * words.NS_A_MS
        self._anchor_ns = self.now_ns - self._mono_ns

    def since_ns(self) -> int:
        """How long ago the turn began."""
        return self.clock.monotonic_ns() - self._mono_ns

    def next_ms(self) -> int:
        """The next whole millisecond behind this moment. A delay is counted from it: what asked for it may have been sent
        after this turn's time was read, and by the sender's clock not even a part of a millisecond may be missing.
        """
        return (self.clock.monotonic_ns() + self._anchor_ns + words.NS_A_MS - 1) // words.NS_A_MS

    def mono_next_ms(self) -> int:
        """The same, on the steady clock."""
        return (self.clock.monotonic_ns() + words.NS_A_MS - 1) // words.NS_A_MS


class Alarm:
    """The earliest moment, on the steady clock, at which something must be looked at."""

    def __init__(self) -> None:
        self.due_ms = 0

    def at_latest(self, due_ms: int) -> None:
        """Something came that is due then."""
        if due_ms < self.due_ms:
            self.due_ms = due_ms

    def set(self, due_ms: int) -> None:
        """Everything that was due is done; the next is due then."""
        self.due_ms = due_ms
