"""Lately: the names behind a number of changes, beside a list of all of them."""

from __future__ import annotations

import random

from penstock.broker.lately import Lately


def test_the_names_behind_any_number_of_changes() -> None:
    chance = random.Random(1)
    lately: Lately[int] = Lately(40)
    noted: list[int] = []
    assert lately.since(0) == []
    assert lately.since(-1) is None  # of somebody who knows nothing
    known = 0
    for _ in range(1_000):
        name = chance.randrange(50)
        lately.note(name)
        noted.append(name)
        count = chance.randrange(len(noted) + 1)
        found = lately.since(count)
        if len(set(noted[count:])) > 40:
            assert found is None
        elif found is not None:
            assert found == list(dict.fromkeys(reversed(noted[count:])))
            known += 1
    assert known > 50
    assert lately.since(lately.count + 1) is None


def test_one_that_changes_again_and_again_takes_no_others_place() -> None:
    lately: Lately[str] = Lately(3)
    lately.note("once")
    for _ in range(100):
        lately.note("again")
    assert lately.since(0) == ["again", "once"]
    for name in ("two", "three"):
        lately.note(name)
    assert (lately.since(0), lately.since(1)) == (None, ["three", "two", "again"])
