"""The generated tables of a page are those of the program."""

from __future__ import annotations

from pathlib import Path

from penstock.spark.pages import rewritten

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"


def test_the_page_is_up_to_date() -> None:
    assert rewritten(PAGE.read_text()) == PAGE.read_text()


def test_only_what_stands_between_the_markers_changes() -> None:
    page = PAGE.read_text().replace("<!-- columns -->\n", "<!-- columns -->\nold\n") + "an end\n"
    assert rewritten(page) == PAGE.read_text() + "an end\n"
