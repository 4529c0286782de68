"""The filter language: what it accepts, what it finds, and what it refuses. RocketMQ itself is asked in tests/peers."""

from __future__ import annotations

import math
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import Refused
from penstock.wire.sql92 import BYTES_MAX, DEPTH_MAX, compile_selector

PROPERTIES = {"a": "10", "f": "2.5", "s": "abc", "t": "true", "q": "it's", "nan": "NaN", "TAGS": "paid", "$x_1": "-3"}


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("a = 10", True), ("a = '10'", True), ("a = 10.0", True), ("a = '10.0'", False), ("f > 2", False), ("f > 2.0", True),
        ("a > 9 AND a<11", True), ("a between 10 and 10", True), ("a NOT BETWEEN 1 AND 9", True), ("a <> 10", False),
        ("s in ('abc', 'd')", True), ("s NOT IN ('abc')", False), ("gone IN ('abc')", False), ("gone NOT IN ('abc')", False),
        ("gone IS NULL", True), ("gone is not null", False), ("NOT gone IS NULL", True), ("gone = gone", True),
        ("gone = 1", False), ("NOT (gone = 1)", False), ("1 = gone", False), ("NOT (1 = gone)", True), ("NOT (gone > 1)", False),
        ("q = 'it''s'", True), ("t = TRUE", True), ("s = FALSE", True), ("TRUE = t", False), ("s > 1", False), ("s > f", False),
        ("a > f", True), ("nan > 1e300", True), ("nan = 1.5", False), ("-a < 0", False), ("a > -1", True), ("$x_1 < 0", True),
        ("TRUE", True), ("FALSE OR TAGS = 'paid'", True), ("gone = 1 OR TRUE", True), ("gone > 1 AND FALSE", False),
        ("NOT (gone > 1 AND FALSE)", True), ("s", False), ("NOT s", True), ("a /* ten */ = -- it is\n 10L", True),
        ("NOT a = 10 AND TRUE", False), ("1 = 1 = TRUE", True), ("a = 10 OR b = 1 AND FALSE", True), ("NULL IS NULL", True),
    ],
)  # fmt: skip
def test_what_matches(text: str, wanted: bool) -> None:
    assert compile_selector(text).matches(PROPERTIES) is wanted


@pytest.mark.parametrize(
    "text",
    [
        "", "1", "'abc'", "a >", "a > 'abc'", "a > TRUE", "(a = 1) > 2", "a IN (1)", "1 IN ('a')", "a IN ()", "a BETWEEN 2 AND 1",
        "a BETWEEN NULL AND 1", "a = NULL", "a <> NULL", "TRUE = 'x'", "a = 1 ANDD b = 2", "a = 1;", "a = 'x", "(a = 1", "a = 1)",
        "9223372036854775808 = a", "a = 1e400", "a = 0.0", "007 = a", "a LIKE 'x'", "a + 1 = 2", "-a", "a & b", "\0", "a = ü",
        "/* a = 1",
    ],
)  # fmt: skip
def test_what_is_refused(text: str) -> None:
    with pytest.raises(Refused) as refused:
        compile_selector(text)
    assert refused.value.remoting == 23


def test_bounds() -> None:
    inside = "(" * (DEPTH_MAX // 2 - 1) + "a = 10" + ")" * (DEPTH_MAX // 2 - 1)
    assert compile_selector(inside).matches(PROPERTIES)
    for text in ("(" * DEPTH_MAX + "a = 10" + ")" * DEPTH_MAX, "NOT " * (DEPTH_MAX + 1) + "TRUE", "-" * 500 + "1 = a",
                 "a = '" + "x" * BYTES_MAX + "'"):  # fmt: skip
        with pytest.raises(Refused):
            compile_selector(text)
    long = " OR ".join(["a = 1"] * (BYTES_MAX // 9))
    assert not compile_selector(long).matches(PROPERTIES)


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=80) | st.text("aAbB'\"()<>=-+.0123456789eEL \n/*NOTANDORISULBETWEN,", max_size=120))
def test_any_text_is_compiled_or_refused(text: str) -> None:
    try:
        selector = compile_selector(text)
    except Refused:
        return
    assert selector.matches(PROPERTIES) in (True, False)
    assert selector.matches({}) in (True, False)


@settings(max_examples=300, deadline=None)
@given(
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.integers(0, (1 << 63) - 1),
    st.sampled_from(["<", "<=", ">", ">=", "=", "<>"]),
)
def test_integers_compare_exactly(value: int, literal: int, sign: str) -> None:
    python = {"=": "==", "<>": "!="}.get(sign, sign)
    wanted = eval(f"{value} {python} {literal}")
    assert compile_selector(f"a {sign} {literal}").matches({"a": str(value)}) is wanted


@settings(max_examples=200, deadline=None)
@given(st.floats(1e-300, 1e300), st.floats(allow_nan=False))
def test_floats_compare_as_java_does(literal: float, value: float) -> None:
    text = repr(literal) if "e" in repr(literal) or "." in repr(literal) else f"{literal!r}.0"
    said = {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, repr(value))
    assert compile_selector(f"a > {text}").matches({"a": said}) is (value > literal)


@pytest.mark.parametrize(
    ("value", "wanted"),
    [("9" * 5000, None), ("-" + "9" * 5000, None), ("0" * 5000 + "7", True), ("-" + "0" * 5000, False)],
)  # fmt: skip
def test_a_property_may_have_thousands_of_digits(value: str, wanted: bool | None) -> None:
    """Whoever sends it must not end the pulls of those who select by it."""
    assert compile_selector("a > 5").matches({"a": value}) is (wanted is True)
    assert compile_selector("NOT (a > 5)").matches({"a": value}) is (wanted is False)


def test_a_hostile_text_costs_no_more_than_its_length() -> None:
    began = time.process_time()
    for text in ("/*" * 1000, "'" * 2047, "1" * 2047, "a" * 2048 + ".", "--" * 1000, "." * 2000, "1e" * 1000):
        with pytest.raises(Refused):
            compile_selector(text)
    assert time.process_time() - began < 60
