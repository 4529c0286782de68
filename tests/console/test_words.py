"""Figures for people: nothing known is a dash, zero is a zero."""

from __future__ import annotations

from urllib.parse import unquote, urljoin

import pytest

from penstock.console import words


@pytest.mark.parametrize(
    ("told", "wanted"),
    [
        (words.count(None), "–"), (words.count(0), "0"), (words.count(1234567), "1,234,567"),
        (words.rate(None), "–"), (words.rate(0), "0"), (words.rate(0.001), "<0.01"), (words.rate(12.345), "12.3"),
        (words.rate(12345), "12,345"), (words.size(0), "0 B"), (words.size(1536), "1.5 KiB"), (words.size(5 << 40), "5 TiB"),
        (words.age(0), "0 s"), (words.age(2.34), "2.3 s"), (words.age(90), "90 s"), (words.age(600), "10 min"),
        (words.age(10_000), "3 h"), (words.age(864_000), "10 d"), (words.share(0.534), "53 %"),
        (words.moment(0), "–"), (words.moment(1_700_000_000_000), "2023-11-14 22:13:20"),
        (words.moment(1 << 62), "9999-12-31 23:59:59"),
    ],
)  # fmt: skip
def test_figures(told: str, wanted: str) -> None:
    assert told == wanted


@pytest.mark.parametrize("name", [".", "..", "...", "a.", "~", "~.", "~~", "a/b", "ä?%", "%7E", "%RETRY%g"])
def test_a_name_is_one_part_of_a_path(name: str) -> None:
    told = words.part(name)
    assert words.name_of(told) == name
    assert urljoin("http://h/topics/", f"/topics/{told}/about") == f"http://h/topics/{told}/about"
    assert unquote(told) not in (".", "..")  # as browsers see it


def test_bodies() -> None:
    assert words.shown('{"a":1}', "json") == '{\n  "a": 1\n}'
    assert words.shown("{broken", "json") == "{broken"
    assert words.shown("[" * 100_000, "json").startswith("[[")
    assert words.shown("AP8=", "text", "base64").startswith("00000000  00 ff")
    assert words.shown("no base64!", "text", "base64") == "no base64!"
    assert "68 69" in words.shown("hi", "hex")


def test_what_is_not_seen_is_written_as_an_escape() -> None:
    assert words.visible("a\tb\r\nc\u00e9\u4e2d\U0001f600") == "a\tb\r\nc\u00e9\u4e2d\U0001f600"
    assert words.visible("\0\x1b[2J\x7f\x9b\u202e\u2066\ud800") == "\\x00\\x1b[2J\\x7f\\x9b\\u202e\\u2066\\ud800"
    assert words.visible(7) == 7
    from markupsafe import Markup

    assert words.visible(Markup("<svg>")) == "<svg>"
