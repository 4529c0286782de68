"""How long something took, counted in buckets: for `/metrics`, where a quantile is told over any time and over brokers."""

from __future__ import annotations

from bisect import bisect_left

BOUNDS_S = (0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Histogram:
    """Counts by upper bound. One thread adds and reads."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self.sum_s = 0.0

    def add(self, seconds: float) -> None:
        """It took so long."""
        self._counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.sum_s += seconds

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
