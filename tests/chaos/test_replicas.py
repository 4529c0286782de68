"""A sample of `./run chaos ha`."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from chaos.faulty import DEFECTS
from chaos.replicas import NODES, WIRES, find, make_faulty, replicas
from ha_parts import Process


@pytest.mark.chaos
@pytest.mark.parametrize("faults", [("both_killed", "slave_full", "places_changed"), ("wire_flips", "wire_cut")])
def test_faults(faults: tuple[str, ...]) -> None:
    told: list[str] = []
    assert set(faults) <= {*NODES, *WIRES}
    replicas(len(faults), told.append, seed=3, faults=faults, longest_s=2.0)
    assert len(told) == len(faults) + 1


@pytest.mark.chaos
@pytest.mark.parametrize("defect", ["answered alone"])
def test_a_planted_defect_is_found(defect: str) -> None:
    said = find(defect, seed=5)
    assert said.startswith(("R1:", "R2:")), said


@pytest.mark.parametrize("defect", DEFECTS)
def test_each_defect_can_be_planted(defect: str, tmp_path: Path) -> None:
    """It is planted in what the broker calls: a method that has another name by now would be missed by nobody."""
    node = Process("broker", tmp_path, tmp_path / "log")
    make_faulty(node, tmp_path / "disk", defect)
    words = [*node.words[:5], "--help"]
    told = subprocess.run(words, env={**os.environ, **node.environment}, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr


def test_a_broker_that_cannot_start_is_no_finding() -> None:
    """A defect that could not be planted in compiled modules was found in each run."""
    with pytest.raises(RuntimeError, match="no rule objects"):
        find("nobody knows this one")
