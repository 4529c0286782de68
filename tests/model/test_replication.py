"""The rules of replication hold in every state that the search reaches, and each rule is needed: without it they do not."""

from __future__ import annotations

import pytest

from model.replication import BOUNDS, MUTANTS, Rules, bounds_of, explore, rules_without


@pytest.mark.parametrize("beginning", BOUNDS)
def test_nothing_is_violated(beginning: str) -> None:
    found = explore(Rules(), BOUNDS[beginning], beginning)
    assert found.violation == "", " → ".join(found.path)
    assert found.all_of_them or found.states >= BOUNDS[beginning].states


@pytest.mark.parametrize("name", MUTANTS)
def test_each_rule_is_needed(name: str) -> None:
    found = explore(rules_without(name), *bounds_of(name))
    assert found.violation, f"{found.states} states, and nothing was missed"
    assert found.path
