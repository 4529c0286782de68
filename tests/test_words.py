"""The named numbers are the same in both builds."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock import words

DECLARATIONS = sorted(Path(words.__file__).parent.rglob("*.pxd"))
PAIRS = [path for path in DECLARATIONS if "cdef enum:" in path.read_text()]


@pytest.mark.parametrize("path", PAIRS, ids=lambda path: path.stem)
def test_both_builds_have_the_same_numbers(path: Path) -> None:
    declared = {name: eval(value) for name, value in re.findall(r"^    (\w+) = (.+)$", path.read_text(), re.M)}
    namespace: dict[str, object] = {}
    exec(path.with_suffix(".py").read_text(), namespace)
    named = {name: value for name, value in namespace.items() if name.isupper() and isinstance(value, int)}
    assert declared == named
    assert len(declared) > 5


@pytest.mark.parametrize("path", PAIRS, ids=lambda path: path.stem)
def test_an_enumeration_has_one_type(path: Path) -> None:
    """Where one constant is beyond an int, GCC since 13 gives all of its enumeration that type: a length minus one of them is
    no longer below 0."""
    for block in path.read_text().split("cdef enum:")[1:]:
        values = [eval(value) for value in re.findall(r"^    \w+ = (.+)$", block, re.M)]
        assert len({-(2**31) <= value < 2**31 for value in values}) == 1, values


def test_there_is_a_pair_to_compare() -> None:
    assert "words" in [path.stem for path in PAIRS]
