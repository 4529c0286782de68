"""The words and widths of a chart."""

from __future__ import annotations

import pytest

from penstock.demo.summary import _nice, _span


@pytest.mark.parametrize(
    ("width", "nice"), [(0, 1.0), (-5, 1.0), (1, 1), (1.2, 2), (3, 5), (7, 10), (0.03, 0.05), (420, 500)]
)
def test_widths_are_round(width: float, nice: float) -> None:
    assert _nice(width) == pytest.approx(nice)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.5, "0.5 s"), (1, "1 s"), (60, "1 minute"), (90, "90 s"), (7200, "2 hours"), (86400, "1 day")],
)
def test_steps_in_words(seconds: float, text: str) -> None:
    assert _span(seconds) == text
