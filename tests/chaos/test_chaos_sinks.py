"""A sample of `./run chaos spark`: three kills of each kind under four plans; every start of a driver takes its time."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from chaos import sinks

pytestmark = [pytest.mark.spark, pytest.mark.chaos]


def test_every_row_once_whatever_is_killed() -> None:
    if not sinks.DATA.exists():
        pytest.skip(f"the real rows of {sinks.DATA.name} are not here")
    told: list[str] = []
    # One executor with two cores, and small batches: what takes its time is starting things again.
    killed = sinks.run(3, told.append, rows=600, per_batch=60, seed=7, master="local-cluster[1,2,1024]")
    assert killed.total() == 9, told
    assert killed["driver", "between"] == killed["broker", "between second"] == 1, told
