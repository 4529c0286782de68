"""A sample of H-13 (`./run chaos ha`)."""

from __future__ import annotations

import shutil

import pytest

from chaos.mixed import HOW, run


@pytest.mark.chaos
def test_failovers_under_everything() -> None:
    if shutil.which("etcd") is None:
        pytest.skip("etcd is not on this machine")
    told: list[str] = []
    run(len(HOW), told.append, seed=4)
    assert len(told) == len(HOW) + 1
    assert "consumed" in told[-1]
