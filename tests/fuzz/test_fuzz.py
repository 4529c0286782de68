"""A sample of `./run fuzz`, always the same one."""

from __future__ import annotations

import random
from pathlib import Path

from fuzz.campaign import fuzz
from fuzz.inputs import INPUT_BYTES_MAX, spoil, targets


def test_spoilt_inputs_hurt_nobody(tmp_path: Path) -> None:
    fuzz(tmp_path, 1_500, 1, print)


def test_a_seed_gives_the_same_inputs() -> None:
    for target in targets():
        first, second = (
            [spoil(source, target) for _ in range(50)] for source in (random.Random("7 x"), random.Random("7 x"))
        )
        assert first == second
        assert all(len(data) <= INPUT_BYTES_MAX for data in first)
        assert any(data in target.seeds for data in [spoil(random.Random(n), target) for n in range(50)])
