"""A sample of `./run chaos`: a few kills with damage, and power cuts where they can be made."""

from __future__ import annotations

import pytest

from chaos.campaign import can_cut_power, kills, power_cuts


@pytest.mark.chaos
@pytest.mark.parametrize("level", ["os", "disk"])
def test_kills(level: str) -> None:
    told: list[str] = []
    kills(3, told.append, level=level, seed=4)
    assert len(told) == 4


@pytest.mark.chaos
@pytest.mark.parametrize("level", ["os", "disk"])
def test_power_cut(level: str) -> None:
    reason = can_cut_power()
    if reason is not None:
        pytest.skip(f"power cuts cannot be made here: {reason}")
    told: list[str] = []
    power_cuts(1, told.append, level=level, seed=5)
    assert len(told) == 1
