"""A sample of `./run chaos spark`: a kill of each kind under four plans; every start of a driver takes its time."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from chaos import sinks

pytestmark = [pytest.mark.spark, pytest.mark.chaos]


def test_every_row_once_whatever_is_killed() -> None:
    if not sinks.DATA.exists():
        pytest.skip(f"the real rows of {sinks.DATA.name} are not here")
    told: list[str] = []
    killed = sinks.run(1, told.append, rows=600, per_batch=100, seed=7)
    assert killed == {"driver": 1, "executor": 1, "broker": 1}, told
