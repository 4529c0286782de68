"""How long something took, or how often it was tried, counted in buckets: for `/metrics`, where a quantile is told over any
time and over brokers.

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


ATTEMPTS = (1, 2, 3, 5, 10, 16)

_BOUNDS_ATTEMPTS = array("q", ATTEMPTS)


class Attempts:
    """At which attempt messages were finished. Those of the first attempt are not counted one by one: who knows how many there
    were in all says so when it asks.
    """

    def __init__(self) -> None:
        self._bounds = _BOUNDS_ATTEMPTS
        self._counts = array("q", [0]) * (len(ATTEMPTS) + 1)
        self._last = len(ATTEMPTS)
        self._again = 0
        self._sum = 0
        self._finished = 0

    def add(self, attempts: int) -> None:
        """One was finished at this attempt, which is not the first."""
        at = 0
        while at < self._last and attempts > self._bounds[at]:
            at += 1
        self._counts[at] += 1
        self._again += 1
        self._sum += attempts

    def finished(self, count: int) -> None:
        """So many more were finished, at any attempt."""
        self._finished += count

    def join(self, other: Attempts) -> None:
        """Those of another one, too."""
        for at in range(self._last + 1):
            self._counts[at] += other._counts[at]
        self._again += other._again
        self._sum += other._sum
        self._finished += other._finished

    def with_all(self, finished: int) -> Attempts:
        """A copy that knows how many were finished in all."""
        found = Attempts()
        found.join(self)
        found.finished(finished)
        return found

    @property
    def count(self) -> int:
        """How many messages were finished."""
        return self._finished

    @property
    def sum(self) -> int:
        """Attempts, all together."""
        return self._sum + self._finished - self._again

    def spread(self) -> list[dict[str, object]]:
        """How many took one attempt, two …, for people."""
        first, found = self._finished - self._again, []
        lower = 1
        for at in range(self._last + 1):
            upper = ATTEMPTS[at] if at < self._last else 0
            name = f"more than {lower - 1}" if not upper else str(upper) if upper == lower else f"{lower} to {upper}"
            found.append({"attempt": name, "messages": self._counts[at] + (first if at == 0 else 0)})
            lower = upper + 1
        return found

    def buckets(self) -> list[tuple[str, int]]:
        """(upper bound, how many took no more), the last one without a bound."""
        found, total = [], self._finished - self._again
        for bound, count in zip((*(f"{bound}.0" for bound in ATTEMPTS), "+Inf"), self._counts, strict=True):
            total += count
            found.append((bound, total))
        return found
