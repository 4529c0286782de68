"""A sample of `./run chaos --only queue`, and proof that its oracle sees: brokers with planted defects are found."""

from __future__ import annotations

import pytest

from chaos.defects import DEFECTS
from chaos.queuekills import find_defect, queue_kills


@pytest.mark.chaos
@pytest.mark.parametrize(("level", "rounds"), [("os", 4), ("disk", 2)])
def test_queue_kills(level: str, rounds: int) -> None:
    told: list[str] = []
    queue_kills(rounds, told.append, level=level, seed=6)
    assert len(told) == rounds + 1


@pytest.mark.chaos
@pytest.mark.parametrize(
    "defect", ["answered before appended", "finished in memory", "deferred early", "position of memory", "ids again"]
)
def test_planted_defects_are_found(defect: str) -> None:
    rule, _ = find_defect(defect, seed=7)
    assert rule in DEFECTS[defect][1]
