"""Latency: quantiles of what was finished lately."""

from __future__ import annotations

import pytest

from penstock.delivery.latency import Latency

MS = 1_000_000


def test_quantiles_are_right_to_two_percent() -> None:
    latency = Latency(60_000)
    for took_ms in range(1, 1001):
        latency.add(took_ms * MS, 1)
    for quantile, value in zip((0.5, 0.95, 0.99), latency.quantiles([0.5, 0.95, 0.99]), strict=True):
        assert value == pytest.approx(quantile * 1000 * MS, rel=0.02)
    assert latency.count == 1000


def test_nothing_yet_and_times_of_any_size() -> None:
    latency = Latency(60_000)
    assert latency.quantiles([0.5, 1.0]) == [0, 0]
    for took_ns in (-5, 0, 1, 1 << 62):
        latency.add(took_ns, 1)
    low, high = latency.quantiles([0.1, 1.0])
    assert 0 < low < 2_000
    assert high > 10 * 86_400_000 * MS


def test_what_is_older_than_the_window_is_forgotten() -> None:
    latency = Latency(10_000)
    latency.add(MS, 1)
    latency.add(MS, 5_001)
    assert latency.count == 2
    latency.add(MS, 10_001)
    assert latency.count == 2
    latency.add(MS, 60_000)
    assert latency.count == 1


def test_several_channels_together() -> None:
    one, other = Latency(60_000), Latency(60_000)
    for _ in range(9):
        one.add(MS, 1)
    other.add(100 * MS, 1)
    assert one.quantiles([0.99], (other,))[0] == pytest.approx(100 * MS, rel=0.02)
    assert one.quantiles([0.99])[0] == pytest.approx(MS, rel=0.02)
