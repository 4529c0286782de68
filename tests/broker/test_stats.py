"""Rates out of counters."""

from __future__ import annotations

from penstock.broker.stats import SAMPLE_MS, Stats


def test_rates() -> None:
    counters = {("N", "k"): 0}
    stats = Stats(lambda: dict(counters))
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
    stats = Stats(lambda: dict(counters))
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
