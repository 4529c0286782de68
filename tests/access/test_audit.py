"""The audit's line."""

from __future__ import annotations

import logging

import pytest

from access.people import user
from penstock.access.audit import audit


def test_one_line_whatever_it_says(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="penstock.audit"):
        audit(user("u"), "1.2.3.4:5", "DELETE topic=a\nadmin user=root", "ok")
        audit(None, "1.2.3.4:5", "x" * 1000, "refused: no\r\n")
    first, second = caplog.messages
    assert first == "admin user=u peer=1.2.3.4:5 act=DELETE topic=a\\nadmin user=root result=ok"
    assert second.startswith("admin user=- ")
    assert len(second) < 400
    assert "\r" not in second
