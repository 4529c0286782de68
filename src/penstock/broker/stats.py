"""Rates by minute, hour and day from counters that only grow: every 10 s one snapshot of all of them is taken.

The objects count in plain integers; nothing here is on a message's path. Names as RocketMQ's (rocketmq.md §14.4).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping

import msgspec

SAMPLE_MS = 10_000
_MINUTE, _HOUR, _DAY = 7, 7, 25  # samples kept: 10 s, 10 min and 1 h apart


class Rate(msgspec.Struct, frozen=True):
    """What was added within a span, and how many a second."""

    sum: int
    per_second: float


class _History:
    """Samples of one counter, at three distances."""

    def __init__(self) -> None:
        self.spans: tuple[deque[tuple[int, int]], ...] = (
            deque(maxlen=_MINUTE),
            deque(maxlen=_HOUR),
            deque(maxlen=_DAY),
        )

    def rate(self, span: int) -> Rate:
        samples = self.spans[span]
        if len(samples) < 2:
            return Rate(0, 0.0)
        added = samples[-1][1] - samples[0][1]
        return Rate(added, added * 1000 / max(1, samples[-1][0] - samples[0][0]))

    def recent(self, ms: int) -> float | None:
        """How many a second were added within the last `ms`; None when it was not counted for so long."""
        last_ms, last = self.spans[0][-1]
        for at_ms, value in sorted({*self.spans[0], *self.spans[1]}, reverse=True):
            if last_ms - at_ms >= ms - SAMPLE_MS // 2:
                return (last - value) * 1000 / (last_ms - at_ms)
        return None


class Mornings:
    """What counters were when the last two days began, by local time; 0 before the start."""

    def __init__(self) -> None:
        self.yesterday: Mapping[tuple[str, str], int] = {}
        self.today: Mapping[tuple[str, str], int] = {}
        self._date: tuple[int, int] | None = None

    def tick(self, now_ms: int, counters: Mapping[tuple[str, str], int]) -> None:
        """It is now; these are the counters."""
        local = time.localtime(now_ms / 1000)
        date = local.tm_year, local.tm_yday
        if self._date not in (None, date):
            self.yesterday, self.today = self.today, counters
        self._date = date


class Stats:
    """`counters()` gives the present value of every counter by (name, key)."""

    def __init__(self, counters: Callable[[], dict[tuple[str, str], int]]) -> None:
        self._counters = counters
        self._histories: dict[tuple[str, str], _History] = {}
        self._samples = 0
        self._next_ms = 0
        self.mornings = Mornings()

    def tick(self, mono_ms: int, now_ms: int) -> int:
        """Sample if it is time; when it will be again."""
        if mono_ms >= self._next_ms:
            self._next_ms = mono_ms + SAMPLE_MS
            counters = self._counters()
            for name in self._histories.keys() - counters.keys():  # of topics and groups that are deleted
                del self._histories[name]
            for name, value in counters.items():
                history = self._histories.get(name)
                if history is None:
                    history = self._histories[name] = _History()
                    for span in history.spans:
                        span.append((mono_ms - SAMPLE_MS, 0))
                history.spans[0].append((mono_ms, value))
                if self._samples % 60 == 0:
                    history.spans[1].append((mono_ms, value))
                if self._samples % 360 == 0:
                    history.spans[2].append((mono_ms, value))
            self._samples += 1
            self.mornings.tick(now_ms, counters)
        return self._next_ms

    def rates(self, name: str, key: str) -> tuple[Rate, Rate, Rate] | None:
        """Minute, hour and day of one counter, or None when it has no data."""
        history = self._histories.get((name, key))
        return None if history is None else (history.rate(0), history.rate(1), history.rate(2))

    def recent(self, name: str, key: str) -> tuple[float | None, ...]:
        """How many a second in the last 10 s, minute and 10 minutes; None where it was not counted for so long."""
        history = self._histories.get((name, key))
        return tuple(None if history is None else history.recent(ms) for ms in (10_000, 60_000, 600_000))

    def value(self, name: str, key: str) -> int:
        """The present value of a counter, 0 when there is none."""
        return self._counters().get((name, key), 0)
