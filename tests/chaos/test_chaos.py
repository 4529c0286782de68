"""A sample of `./run chaos`: a few kills with damage, and power cuts where they can be made."""

from __future__ import annotations

import pytest

from chaos.campaign import can_cut_power, kills, power_cuts
from chaos.defects import CUT_DEFECTS
from chaos.queuecuts import find_cut_defect, queue_power_cuts


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


@pytest.mark.chaos
@pytest.mark.parametrize(("level", "side"), [("os", "queues"), ("disk", "log"), ("os", "staged")])
def test_power_cuts_between_what_is_done_and_what_says_so(level: str, side: str) -> None:
    reason = can_cut_power()
    if reason is not None:
        pytest.skip(f"power cuts cannot be made here: {reason}")
    told: list[str] = []
    assert queue_power_cuts(2, told.append, level=level, seed=8, side=side) == 2
    assert len(told) == 2


@pytest.mark.chaos
def test_a_publish_that_is_answered_too_early_is_found() -> None:
    reason = can_cut_power()
    if reason is not None:
        pytest.skip(f"power cuts cannot be made here: {reason}")
    rule, _ = find_cut_defect("published before flushed", seed=7)
    assert rule in CUT_DEFECTS["published before flushed"].rules
