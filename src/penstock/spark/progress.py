"""How far a long job is: a bar on a terminal, a plain line now and then in a pipe."""

from __future__ import annotations

import sys
import time
from typing import TextIO

LINE_SECONDS = 10.0
BAR = 30


class Progress:
    """Call it with (done, total); on a terminal it draws over itself, elsewhere it prints a line every 10 s."""

    def __init__(self, what: str, unit: str = "messages", out: TextIO | None = None, quiet: bool = False) -> None:
        self.what, self.unit = what, unit
        self.out = out or sys.stderr
        self.quiet = quiet
        self.live = self.out.isatty()
        self.began = time.monotonic()
        self.shown = self.began if not self.live else 0.0
        self.drawn = False

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if self.quiet or now - self.shown < (0.1 if self.live else LINE_SECONDS):
            return
        self.shown = now
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
        left = f", {(total - done) / rate:.0f} s left" if rate and total > done else ""
        counts = f"{done:,} of {total:,} {self.unit}, {rate:,.0f}/s{left}"
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
