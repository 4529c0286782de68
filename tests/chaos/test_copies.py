"""A sample of H-11 and H-14 (`./run chaos ha`)."""

from __future__ import annotations

import pytest

from chaos.copies import damage, find, run, staged


@pytest.mark.chaos
@pytest.mark.parametrize("part", [damage, staged])
def test_damage_and_staged_rows(part: object) -> None:
    told: list[str] = []
    run(part, 2, told.append, seed=4)  # type: ignore[arg-type]
    assert len(told) == 2


@pytest.mark.chaos
@pytest.mark.parametrize("defect", ["damage passed over", "sealed alone"])
def test_a_planted_defect_is_found(defect: str) -> None:
    assert find(defect, seed=4).startswith("H-1")
