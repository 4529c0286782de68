"""Progress on a terminal and in a pipe."""

from __future__ import annotations

import io

import pytest

from penstock.spark.tools.progress import Progress


def test_progress_is_a_line_now_and_then_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("penstock.spark.tools.progress.time.monotonic", lambda: now[0])
    out = io.StringIO()
    say = Progress("archive t", out=out)
    for done in range(0, 1000, 100):
        now[0] += 3
        say(done, 1000)
    assert out.getvalue().splitlines() == [
        "archive t: 300 of 1,000 messages, 33/s, 21 s left",
        "archive t: 700 of 1,000 messages, 33/s, 9 s left",
    ]
    out = io.StringIO()
    say = Progress("audit", "bytes", out=out)
    now[0] += 60  # Spark starts
    for done in (0, 0, 0, 0, 500, 500, 500, 800, 1000):
        say(done, 1000)
        now[0] += 11
    assert out.getvalue().splitlines() == [
        "audit: 0 of 1,000 bytes",
        "audit: 500 of 1,000 bytes, 11/s",
        "audit: 800 of 1,000 bytes, 10/s, 19 s left",
        "audit: 1,000 of 1,000 bytes, 11/s",
    ]
    quiet = Progress("x", out=out, quiet=True)
    quiet.note("never")
    assert "never" not in out.getvalue()


def test_progress_draws_over_itself_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    out = Terminal()
    say = Progress("archive t", out=out)
    say(5, 10)
    assert out.getvalue().startswith("\r\x1b[Karchive t [###############...............] 5 of 10")
    say.clear()
    assert out.getvalue().endswith("\r\x1b[K")
