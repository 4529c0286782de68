"""Rates out of counters."""

from __future__ import annotations

from penstock.broker.stats import SAMPLE_MS, Stats


def test_rates() -> None:
    counters = {("N", "k"): 0}
    stats = Stats(lambda: dict(counters))
    assert stats.rates("N", "k") is None
    now = stats.tick(0)
    for _ in range(12):
        counters["N", "k"] += 100
        now = stats.tick(now)
    rates = stats.rates("N", "k")
    assert rates is not None
    assert (rates[0].sum, rates[0].per_second) == (600, 600 * 1000 / (6 * SAMPLE_MS))
