"""How long something took, counted in buckets: for `/metrics`, where a quantile is told over any time and over brokers.

Compiled: a turn of the loop counts here, and a turn may carry one message.
"""

from __future__ import annotations

from array import array

BOUNDS_S = (0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

_NS_A_SECOND = 1e9
_BOUNDS_NS = array("q", [round(bound * _NS_A_SECOND) for bound in BOUNDS_S])


class Histogram:
    """Counts by upper bound. One thread adds and reads."""

    def __init__(self) -> None:
        self._bounds = _BOUNDS_NS
        self._counts = array("q", [0]) * (len(BOUNDS_S) + 1)
        self._last = len(BOUNDS_S)
        self._sum_ns = 0

    def add(self, seconds: float) -> None:
        """It took so long."""
        self.add_ns(round(seconds * _NS_A_SECOND))

    def add_ns(self, took_ns: int) -> None:
        """It took so many nanoseconds; less than none, where a clock was set back, is none."""
        took_ns = max(0, took_ns)
        at = 0
        while at < self._last and took_ns > self._bounds[at]:
            at += 1
        self._counts[at] += 1
        self._sum_ns += took_ns

    @property
    def sum_s(self) -> float:
        """All together."""
        return self._sum_ns / _NS_A_SECOND

    @property
    def count(self) -> int:
        """How often."""
        return sum(self._counts)

    def buckets(self) -> list[tuple[str, int]]:
        """(upper bound, how often it took no longer), the last one without a bound."""
        found, total = [], 0
        for bound, count in zip((*map(repr, BOUNDS_S), "+Inf"), self._counts, strict=True):
            total += count
            found.append((bound, total))
        return found
