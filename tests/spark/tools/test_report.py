"""The pages that jobs end with: what they show, and that nobody is shown an empty frame."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from spark_logs import write_log
from spark_records import Record

from penstock.spark.pipelines import stats, statspage
from penstock.spark.tools import report

HOUR = 3_600_000
BEGIN = int(datetime(2026, 11, 20, 22, tzinfo=UTC).timestamp() * 1000)


def charts(page: str) -> list[ElementTree.Element]:
    """The drawings; they are well-formed."""
    return [ElementTree.fromstring(text) for text in re.findall(r"<svg.*?</svg>", page, re.DOTALL)]


def texts(chart: ElementTree.Element) -> list[str]:
    return [element.text or "" for element in chart.iter("text")]


def page(folder: Path, hours: list[int], window: str, topics: tuple[bytes, ...] = (b"orders",)) -> str:
    times = [BEGIN + h * HOUR + 60_000 for h in hours]
    made = [Record(n, b"x", 0, topic, born_ms=at - 3, stored_ms=at) for topic in topics for n, at in enumerate(times)]
    write_log(folder, made, size=1 << 16)
    result = stats.run(None, path=folder, window=window)
    assert result.messages == len(made)
    return statspage.stats_page(result)


@pytest.mark.parametrize("window", ["1d", "1h", "all"])
def test_one_window_is_bars_and_no_empty_frame(tmp_path: Path, window: str) -> None:
    shown = page(tmp_path, [0] * 7, window)
    assert "<polyline" not in shown
    assert [texts(chart)[-1] for chart in charts(shown)] == ["7", "3"]
    assert "7 messages" in shown
    assert "stored from 2026-11-20 22:01:00 to 2026-11-20 22:01:00 UTC, in one window" in shown


def test_axes_are_round_and_name_the_whole_range(tmp_path: Path) -> None:
    shown = page(tmp_path, [0] * 7 + [1] * 3 + [30] * 9, "1h", (b"orders", b"<b>"))
    messages, latency, *_ = charts(shown)
    assert texts(messages)[:2] == ["<b>", "orders"]
    assert texts(messages)[2:8] == ["0", "2", "4", "6", "8", "10"]
    assert (texts(messages)[8], texts(messages)[-1]) == ("11-20 22:00", "11-22 04:00")
    places = [float(text.get("x") or 0) for text in messages.iter("text") if ":" in (text.text or "")]
    assert places == sorted(set(places))
    assert "stored from 2026-11-20 22:01:00 to 2026-11-22 04:01:00 UTC, in 3 windows of 1h" in shown
    # No message in a window is 0 messages, and no latency at all.
    (line, _), late = list(messages.iter("polyline")), list(latency.iter("polyline"))
    heights = [float(point.split(",")[1]) for point in (line.get("points") or "").split()]
    assert heights.count(max(heights)) == 2
    assert len(late) == 4
    assert "e+" not in shown


@pytest.mark.parametrize(
    ("top", "ticks"),
    [
        (1, [0, 1]), (7, [0, 2, 4, 6, 8]), (17_612, [0, 5000, 10_000, 15_000, 20_000]), (0, [0, 1]),
        (392, [0, 100, 200, 300, 400]), (0.3, [0, 0.1, 0.2, 0.3]), (1e9, [0, 2e8, 4e8, 6e8, 8e8, 1e9]),
    ],
)  # fmt: skip
def test_ticks(top: float, ticks: list[float]) -> None:
    assert report._ticks(top) == pytest.approx(ticks)


def test_numbers_on_an_axis_are_short() -> None:
    given: Any = (0, 0.25, 7, 1500, 9999, 25_000, 1_234_567, 98_565_645_934)
    assert [report.short(n) for n in given] == ["0", "0.25", "7", "1,500", "9,999", "25k", "1.235M", "98.57G"]
