"""A chart as a picture and as text."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock import charts

LINES = charts.Chart(
    "load", "time (UTC)", "mean cpu", True, {"a": [(1.7e9 + n, n) for n in range(9)], "b": [(1.7e9, 4.0)]}
)
BARS = charts.Chart("words", "word", "events", bars=[("alpha", 30.0), ("beta", 3.0)])


def test_text_has_title_names_and_times() -> None:
    pytest.importorskip("plotext")
    drawn = charts.text(LINES, 80, 16)
    assert "load" in drawn
    assert " a " in drawn
    assert "22:13:20" in drawn
    assert "\x1b" not in drawn
    assert "\x1b" in charts.text(LINES, 80, 16, colour=True)


def test_bars_are_in_proportion() -> None:
    first, second = charts.text(BARS, 60).splitlines()[1:3]
    assert first.count("█") == pytest.approx(10 * second.count("█"), abs=5)
    assert first.endswith("30")


@pytest.mark.filterwarnings("ignore")
def test_a_picture_is_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    charts.picture([LINES, BARS], tmp_path / "chart.png")
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")
