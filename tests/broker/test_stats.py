"""Rates out of counters."""

from __future__ import annotations

import random
from collections import deque

import pytest

from penstock.broker.stats import PIECE_MS, SAMPLE_MS, SAMPLED_AT_ONCE, Stats


def stats_of(counters: dict[tuple[str, str], int]) -> Stats:
    return Stats(lambda: ((name, key, value) for (name, key), value in list(counters.items())), lambda: dict(counters))


def test_rates() -> None:
    counters = {("N", "k"): 0}
    stats = stats_of(counters)
    assert stats.rates("N", "k") is None
    now = stats.tick(0, 0)
    for _ in range(12):
        counters["N", "k"] += 100
        now = stats.tick(now, now)
    rates = stats.rates("N", "k")
    assert rates is not None
    assert (rates[0].sum, rates[0].per_second) == (600, 600 * 1000 / (6 * SAMPLE_MS))


def test_the_last_seconds_minutes_and_mornings() -> None:
    counters = {("N", "k"): 0}
    stats = stats_of(counters)
    day_ms = 86_400_000
    assert stats.recent("N", "k") == (None, None, None)
    now, wall = 0, 1_700_000_000_000
    known: list[tuple[float | None, ...]] = []
    for n in range(130):
        counters["N", "k"] += 10 if n < 100 else 100
        now = stats.tick(now, wall + now)
        known.append(stats.recent("N", "k"))
    assert known[0] == (1.0, None, None)
    assert known[4] == (1.0, None, None)
    assert known[5] == (1.0, 1.0, None)
    assert known[70] == (1.0, 1.0, 1.0)
    assert known[101][0] == 10.0
    assert known[101][1] == 4.0  # two of six samples
    assert known[129][:2] == (10.0, 10.0)
    assert stats.mornings.today == {}
    total = counters["N", "k"] = 5_000
    now = stats.tick(now, wall + day_ms)
    assert stats.mornings.today["N", "k"] == total
    counters["N", "k"] += 7
    stats.tick(now, wall + 2 * day_ms)
    assert (stats.mornings.yesterday["N", "k"], stats.mornings.today["N", "k"]) == (total, total + 7)


class Lines:
    """The same with lists of (ms, value)."""

    def __init__(self, mono_ms: int) -> None:
        self.spans = [deque([(mono_ms - SAMPLE_MS, 0)], maxlen=kept) for kept in (7, 7, 25)]

    def put(self, number: int, mono_ms: int, value: int) -> None:
        for span, step in zip(self.spans, (1, 60, 360), strict=True):
            if number % step == 0:
                span.append((mono_ms, value))

    def rates(self) -> list[tuple[int, float]]:
        return [
            (span[-1][1] - span[0][1], (span[-1][1] - span[0][1]) * 1000 / max(1, span[-1][0] - span[0][0]))
            for span in self.spans
        ]

    def recent(self, ms: int) -> float | None:
        last_ms, last = self.spans[0][-1]
        for at_ms, value in sorted({*self.spans[0], *self.spans[1]}, reverse=True):
            if last_ms - at_ms >= ms - SAMPLE_MS // 2:
                return (last - value) * 1000 / (last_ms - at_ms)
        return None


@pytest.mark.parametrize("rounds", [700, 9_500])
def test_samples_beside_plain_lists(rounds: int) -> None:
    """Counters come and go, and rounds are late now and then."""
    rng, counters = random.Random(rounds), dict[tuple[str, str], int]()
    stats, lines, mono_ms = stats_of(counters), dict[tuple[str, str], Lines](), 0
    for number in range(rounds):
        if rng.random() < 0.01:
            counters["N", f"k{rng.randrange(4)}"] = rng.randrange(1_000)
        if rng.random() < 0.002 and counters:
            del counters[rng.choice(list(counters))]
        for about in counters:
            counters[about] += rng.randrange(100)
        stats.tick(mono_ms, mono_ms)
        for about in lines.keys() - counters.keys():
            del lines[about]
        for about, value in counters.items():
            lines.setdefault(about, Lines(mono_ms)).put(number, mono_ms, value)
        if number % 7 == 0 or number > rounds - 100:
            for about, line in lines.items():
                told = stats.rates(*about)
                assert told is not None
                assert [(rate.sum, rate.per_second) for rate in told] == line.rates()
                assert stats.recent(*about) == tuple(line.recent(ms) for ms in (10_000, 60_000, 600_000))
            assert all((stats.rates("N", f"k{n}") is None) == (("N", f"k{n}") not in counters) for n in range(4))
        mono_ms += SAMPLE_MS + (rng.randrange(20_000) if rng.random() < 0.05 else 0)


def test_many_counters_are_sampled_in_pieces() -> None:
    """Ten groups that read 4,000 topics are 80,000 counters: nobody else is served meanwhile."""
    counters = {("N", f"k{number}"): number for number in range(2 * SAMPLED_AT_ONCE + 1)}
    stats = stats_of(counters)
    assert stats.tick(0, 0) == PIECE_MS
    assert stats.rates("N", f"k{SAMPLED_AT_ONCE - 1}") is not None
    assert stats.rates("N", f"k{SAMPLED_AT_ONCE}") is None
    assert stats.tick(PIECE_MS, 0) == 2 * PIECE_MS
    assert stats.tick(2 * PIECE_MS, 0) == SAMPLE_MS
    rates = stats.rates("N", f"k{2 * SAMPLED_AT_ONCE}")
    assert rates is not None
    assert (rates[0].sum, rates[0].per_second) == (1_000, 100.0)
