"""Latency: end-to-end times of a channel's messages as quantiles, over two half windows that take turns.

Times fall into buckets that grow by 2 %, so any quantile is right to 1 %; a window is an array of counts.
"""

from __future__ import annotations

import math
from array import array

_GROWTH = math.log(1.02)
_BUCKETS = 1400  # 1 us to 12 days


class _Half:
    def __init__(self) -> None:
        self.counts = array("q", bytes(8 * _BUCKETS))
        self.count = 0


class Latency:
    """`add` when a message is finished; nanoseconds in and out, monotonic ms for the windows."""

    def __init__(self, window_ms: int) -> None:
        self.half_ms = max(1, window_ms // 2)
        self._now, self._before = _Half(), _Half()
        self._turn_ms = 0

    def add(self, took_ns: int, mono_ms: int) -> None:
        """One message took so long."""
        if mono_ms >= self._turn_ms:
            stale = mono_ms - self._turn_ms >= self.half_ms and self._turn_ms
            self._before = _Half() if stale else self._now
            self._now = _Half()
            self._turn_ms = mono_ms + self.half_ms
        bucket = int(math.log(took_ns / 1000) / _GROWTH) if took_ns > 1000 else 0
        self._now.counts[min(bucket, _BUCKETS - 1)] += 1
        self._now.count += 1

    @property
    def count(self) -> int:
        """Messages in the present window."""
        return self._now.count + self._before.count

    def quantiles(self, wanted: list[float], others: tuple[Latency, ...] = ()) -> list[int]:
        """The times below which these shares of the messages lie; several channels together with `others`."""
        halves = [half for one in (self, *others) for half in (one._now, one._before) if half.count]
        total = sum(half.count for half in halves)
        if not total:
            return [0] * len(wanted)
        sums = [sum(half.counts[n] for half in halves) for n in range(_BUCKETS)]
        found = []
        for quantile in wanted:
            rank, seen, bucket = quantile * total, 0, 0
            while not sums[bucket] or seen + sums[bucket] < rank:
                seen += sums[bucket]
                bucket += 1
            found.append(int(1000 * math.exp((bucket + 0.5) * _GROWTH)))
        return found
