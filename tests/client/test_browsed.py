"""Messages as BROWSE shows them, whole: what is cut off is read to its end, in pieces."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from penstock.broker.browse import Wanted, row
from penstock.broker.nsq.looking import Seen
from penstock.client.browsed import WentAway, browsed, whole

BODIES = [("äöü" * 9).encode(), b"\xff" * 50, b"text, then \xff\xfe"]


def told(id_: str, body: bytes, begin: int = 0) -> dict[str, Any]:
    """A row as a broker says it."""
    return dict(row(Wanted("t", body_bytes=7, body_from=begin), "c", Seen(id_, 5_000_000, 1, body, {})))


def bytes_of(found: dict[str, Any]) -> bytes:
    return base64.b64decode(found["body"]) if found["encoding"] == "base64" else found["body"].encode()


@pytest.mark.parametrize("body", BODIES)
def test_a_body_that_was_cut_off_is_read_to_its_end(body: bytes) -> None:
    asked: list[int] = []

    def more(begin: int) -> dict[str, Any]:
        asked.append(begin)
        return told("i", body, begin)

    found = whole(told("i", body), more)
    assert asked
    assert (bytes_of(found), found["cut"]) == (body, False)
    assert whole(found, more) is found


@pytest.mark.parametrize("then", [None, {"id": "other", "encoding": "text", "body": "xy"}, "an older broker's"])
def test_a_body_that_goes_away_meanwhile_is_none(then: Any) -> None:
    first = {"cut": True, "id": "x", "size": 5, "encoding": "text", "body": "abc"}
    with pytest.raises(WentAway, match="went away"):
        whole(first, lambda begin: first if isinstance(then, str) else then)


def test_pages_are_gone_through() -> None:
    def pages(after: str, body_from: int = 0) -> tuple[list[dict[str, Any]], str | None]:
        number = int(after or "0")
        return [told(str(number), BODIES[number], body_from)], None if number == 2 else str(number + 1)

    assert [bytes_of(found) for found in browsed(pages)] == BODIES
