"""How far a long job is: a bar on a terminal, a plain line now and then in a pipe."""

from __future__ import annotations

import sys
import time
from typing import TextIO

LINE_SECONDS = 10.0
BAR = 30


class Progress:
    """Call it with (done, total); on a terminal it draws over itself, elsewhere a line at most every 10 s says news.

    Speed counts from the first call, so that no start-up slows it; how long it takes is said once it has been seen to move on.
    """

    def __init__(self, what: str, unit: str = "messages", out: TextIO | None = None, quiet: bool = False) -> None:
        self.what, self.unit = what, unit
        self.out = out or sys.stderr
        self.quiet = quiet
        self.live = self.out.isatty()
        self.began = 0.0  # of the first call
        self.shown = time.monotonic() if not self.live else 0.0
        self.said = -1
        self.first = 0  # what was done when something was done for the first time
        self.drawn = False

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        self.began = self.began or now
        self.first = self.first or done
        if (
            self.quiet
            or (done == self.said and not self.live)
            or now - self.shown < (0.1 if self.live else LINE_SECONDS)
        ):
            return
        self.shown, self.said = now, done
        line = self._line(done, total, now - self.began)
        if self.live:
            self.drawn = True
            self.out.write(f"\r\x1b[K{line}")
        else:
            self.out.write(line + "\n")
        self.out.flush()

    def _line(self, done: int, total: int, seconds: float) -> str:
        part = min(done / total, 1.0) if total else 0.0
        rate = done / seconds if seconds > 0 else 0.0
        left = f", {(total - done) / rate:.0f} s left" if rate and self.first < done < total else ""
        speed = f", {rate:,.0f}/s" if rate else ""
        counts = f"{done:,} of {total:,} {self.unit}{speed}{left}"
        if not self.live:
            return f"{self.what}: {counts}"
        filled = round(part * BAR)
        return f"{self.what} [{'#' * filled}{'.' * (BAR - filled)}] {counts}"

    def note(self, text: str) -> None:
        """Say something on a line of its own."""
        if not self.quiet:
            self.clear()
            self.out.write(text + "\n")
            self.out.flush()

    def clear(self) -> None:
        """Take the bar away."""
        if self.drawn:
            self.out.write("\r\x1b[K")
            self.out.flush()
            self.drawn = False
