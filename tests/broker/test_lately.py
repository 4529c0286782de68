"""Lately: the names behind a number of changes, beside a list of all of them."""

from __future__ import annotations

import random

from penstock.broker.lately import NAMES_MAX, Lately


def test_the_names_behind_any_number_of_changes() -> None:
    chance = random.Random(1)
    lately: Lately[int] = Lately()
    noted: list[int] = []
    assert lately.since(0) == []
    assert lately.since(-1) is None  # of somebody who knows nothing
    for _ in range(NAMES_MAX + 200):
        name = chance.randrange(50)
        lately.note(name)
        noted.append(name)
    for count in [*range(190, 210), *range(NAMES_MAX, NAMES_MAX + 201)]:
        found = lately.since(count)
        if count < 200:
            assert found is None
        else:
            assert found is not None
            assert len(found) == len(set(found))
            assert set(found) == set(noted[count:])
    assert lately.since(lately.count + 1) is None
