"""The rules of a set that an engine leads hold in every state that the search reaches, and each of them is needed."""

from __future__ import annotations

import pytest

from model.elected import BOUNDS, MUTANTS, Rules, explore, without


@pytest.mark.parametrize("name", BOUNDS)
def test_nothing_is_violated(name: str) -> None:
    found = explore(Rules(), BOUNDS[name])
    assert found.violation == "", " → ".join(found.path)
    assert found.all_of_them or found.states >= BOUNDS[name].states


def test_each_rule_has_a_mutant() -> None:
    assert set(MUTANTS) == set(Rules._fields)


@pytest.mark.parametrize("name", MUTANTS)
def test_each_rule_is_needed(name: str) -> None:
    found = explore(without(name), MUTANTS[name])
    assert found.violation, f"{found.states} states, and nothing was missed"
    assert found.path
