"""Plots: what is not known is a gap, what is short is seen, names are escaped."""

from __future__ import annotations

import re

from penstock.console import words
from penstock.console.plots import Line, begin_known, plot, spark, thin


def test_a_gap_is_no_zero() -> None:
    drawn = str(plot("In", [Line("in", [1, 2, None, 4, 4])], 0, 1))
    path = re.findall(r' d="([^"]*)"', drawn)[0]
    assert path.count("M") == 2
    assert "In: in now 4, at most 4" in drawn


def test_nothing_known() -> None:
    assert "nothing known yet" in plot("In", [Line("in", [None] * 5)], 0, 1)
    assert "nothing known yet" in plot("In", [], 0, 1)
    assert 'd=""' in spark([], "x")


def test_a_short_peak_is_seen() -> None:
    values = [0.0] * 3600
    values[1234] = 99.0
    few = thin(values)
    assert len(few) <= 240
    assert max(value for value in few if value is not None) == 99
    assert thin([None] * 500, 100) == [None] * 100


def test_a_young_broker_is_not_a_dot() -> None:
    lines, since = begin_known([Line("a", [None] * 3590 + [1.0] * 10)], 1000, 1)
    assert (len(lines[0].values), since) == (120, 1000 + 3480)
    lines, since = begin_known([Line("a", [1.0] * 50)], 1000, 1)
    assert (len(lines[0].values), since) == (50, 1000)


def test_names_are_escaped() -> None:
    for drawn in (plot("<script>", [Line('"><img>', [1])], 0, 1, words.count), spark([1], "<b>")):
        assert "<script>" not in drawn
        assert "<img>" not in drawn
        assert "<b>" not in drawn


def test_axes_end_at_round_figures() -> None:
    drawn = str(plot("Bytes", [Line("bytes", [14_000])], 0, 1, words.size))
    assert ">20 KiB<" in drawn
    assert ">10 KiB<" in drawn
    assert ">100<" in str(plot("In", [Line("in", [66])], 0, 1))
