"""Rates by minute, hour and day from counters that only grow: every 10 s a sample of each is taken, some hundreds in a turn.

The objects count in plain integers; nothing here is on a message's path. Names as RocketMQ's (rocketmq.md §14.4).
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterator, Mapping

import msgspec

SAMPLE_MS = 10_000
SAMPLED_AT_ONCE, PIECE_MS = 500, 5  # counters in a turn of the loop, and how much later the next ones
_SPANS = ((1, 7), (60, 7), (360, 25))  # rounds between two samples, samples kept: of a minute, an hour, a day
_ROUNDS = 360 * 25 + 1  # whose times are remembered


class Rate(msgspec.Struct, frozen=True):
    """What was added within a span, and how many a second."""

    sum: int
    per_second: float


class _Samples:
    """Samples of one counter, by the number of the round in which they were taken."""

    __slots__ = ("_rings", "first", "last")

    def __init__(self, first: int) -> None:
        self.first = self.last = first
        self._rings = array("q", bytes(8 * sum(kept for _, kept in _SPANS)))

    def put(self, number: int, value: int) -> None:
        """What it counts in this round."""
        self.last = number
        start = 0
        for step, kept in _SPANS:
            if number % step:
                break  # nor is it one of the wider spans
            self._rings[start + number // step % kept] = value
            start += kept

    def span(self, which: int) -> list[tuple[int, int]]:
        """(round, value) of a span, the oldest first. In the round before it was seen first it had counted nothing."""
        step, kept = _SPANS[which]
        start = sum(kept for _, kept in _SPANS[:which])
        newest, oldest = self.last // step, -(-self.first // step)
        known = range(max(oldest, newest - kept + 1), newest + 1)
        found = [(number * step, self._rings[start + number % kept]) for number in known]
        return found if len(found) == kept else [(self.first - 1, 0), *found]


class Mornings:
    """What counters were when the last two days began, by local time; 0 before the start."""

    def __init__(self) -> None:
        self.yesterday: Mapping[tuple[str, str], int] = {}
        self.today: Mapping[tuple[str, str], int] = {}
        self._date: tuple[int, int] | None = None

    def tick(self, now_ms: int, counters: Callable[[], Mapping[tuple[str, str], int]]) -> None:
        """It is now; `counters` gives what they are."""
        local = time.localtime(now_ms / 1000)
        date = local.tm_year, local.tm_yday
        if self._date not in (None, date):
            self.yesterday, self.today = self.today, counters()
        self._date = date


class Stats:
    """`counters()` gives the present value of every counter, (name, key, value), one by one and perhaps in later turns;
    `totals()` those of the broker as a whole, at once.
    """

    def __init__(
        self,
        counters: Callable[[], Iterator[tuple[str, str, int]]],
        totals: Callable[[], Mapping[tuple[str, str], int]],
    ) -> None:
        self._counters = counters
        self._totals = totals
        self._samples: dict[tuple[str, str], _Samples] = {}
        self._round = -1
        self._times_ms = array("q", bytes(8 * _ROUNDS))
        self._sampling: Iterator[None] | None = None
        self._next_ms = 0
        self.mornings = Mornings()

    def tick(self, mono_ms: int, now_ms: int) -> int:
        """Sample if it is time; when it will be again."""
        if mono_ms >= self._next_ms and self._sampling is None:
            self._next_ms = mono_ms + SAMPLE_MS
            self._round += 1
            self._times_ms[self._round % _ROUNDS] = mono_ms
            self.mornings.tick(now_ms, self._totals)
            self._sampling = self._sample(self._round)
        if self._sampling is not None:
            sampling, self._sampling = self._sampling, None
            for _ in sampling:
                self._sampling = sampling
                return mono_ms + PIECE_MS
        return self._next_ms

    def _sample(self, number: int) -> Iterator[None]:
        for count, (name, key, value) in enumerate(self._counters(), 1):
            samples = self._samples.get((name, key))
            if samples is None:
                samples = self._samples[name, key] = _Samples(number)
            samples.put(number, value)
            if count % SAMPLED_AT_ONCE == 0:
                yield
        for gone in [about for about, samples in self._samples.items() if samples.last != number]:
            del self._samples[gone]  # of topics and groups that are deleted

    def _time_ms(self, samples: _Samples, number: int) -> int:
        if number < samples.first:
            return self._times_ms[samples.first % _ROUNDS] - SAMPLE_MS
        return self._times_ms[number % _ROUNDS]

    def rates(self, name: str, key: str) -> tuple[Rate, Rate, Rate] | None:
        """Minute, hour and day of one counter, or None when it has no data."""
        samples = self._samples.get((name, key))
        return None if samples is None else (self._rate(samples, 0), self._rate(samples, 1), self._rate(samples, 2))

    def _rate(self, samples: _Samples, which: int) -> Rate:
        span = samples.span(which)
        (first, least), (last, most) = span[0], span[-1]
        passed_ms = self._time_ms(samples, last) - self._time_ms(samples, first)
        return Rate(most - least, (most - least) * 1000 / max(1, passed_ms))

    def recent(self, name: str, key: str) -> tuple[float | None, ...]:
        """How many a second in the last 10 s, minute and 10 minutes; None where it was not counted for so long."""
        samples = self._samples.get((name, key))
        if samples is None:
            return None, None, None
        known = sorted({*samples.span(0), *samples.span(1)}, reverse=True)
        timed = [(self._time_ms(samples, number), value) for number, value in known]
        last_ms, last = timed[0]
        found: list[float | None] = []
        for ms in (10_000, 60_000, 600_000):
            before = [(at, value) for at, value in timed if last_ms - at >= ms - SAMPLE_MS // 2]
            found.append((last - before[0][1]) * 1000 / (last_ms - before[0][0]) if before else None)
        return tuple(found)

    def value(self, name: str, key: str) -> int:
        """The present value of a counter of the whole broker, 0 when there is none."""
        return self._totals().get((name, key), 0)
