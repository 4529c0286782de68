"""Exceptions of what a loop does again and again: told of once in a while, counted, and never its end."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from penstock.errors import StoreError

log = logging.getLogger("penstock.net")

FAULTS_IN_A_ROW_MAX = 20
FAULT_LOG_MS = 10_000
TOLD_AGAIN_MS = 60_000
TOLD_MAX = 100


class Faults:
    """Exceptions of steps that every turn or tick takes: reported, and the other steps go on.

    A failing disk is a state that may end (rule P8), so it never stops the process. Any other exception that the same
    step raises `FAULTS_IN_A_ROW_MAX` times in a row does: `stop` is called with a sentence.
    """

    def __init__(self, stop: Callable[[str], None]) -> None:
        self.stop = stop
        self.count = 0  # since the start
        self.failing: dict[str, str] = {}  # step → what it raised last time
        self._in_a_row: dict[str, int] = {}
        self._failed: set[str] = set()  # in this round
        self._logged_ms: dict[str, int] = {}

    def report(self, step: str, error: BaseException, mono_ms: int) -> None:
        """A step raised."""
        self.count += 1
        self._failed.add(step)
        self.failing[step] = f"{step}: {error or type(error).__name__}"
        if mono_ms - self._logged_ms.get(step, -FAULT_LOG_MS) >= FAULT_LOG_MS:
            self._logged_ms[step] = mono_ms
            disk = isinstance(error, StoreError)
            log.error("failed step=%s error=%s", step, error, exc_info=None if disk else error)
        if isinstance(error, StoreError):
            return
        count = self._in_a_row[step] = self._in_a_row.get(step, 0) + 1
        if count == FAULTS_IN_A_ROW_MAX:
            self.stop(f"{step} failed {count} times in a row: {error!r}")

    def settle(self, steps: Iterable[str]) -> None:
        """All these steps were taken: those that did not raise are well again."""
        for step in steps:
            if step not in self._failed:
                self.failing.pop(step, None)
                self._in_a_row.pop(step, None)
        self._failed.clear()


class Told:
    """What others say to us again and again, as long as it is so: a line at first, and one a minute."""

    def __init__(self) -> None:
        self._told_ms: dict[str, int] = {}

    def is_news(self, what: str, mono_ms: int) -> bool:
        """Whether to write it down: it has not been for a minute, or all is well in between."""
        before = self._told_ms.get(what)
        if before is not None and mono_ms - before < TOLD_AGAIN_MS:
            return False
        if len(self._told_ms) >= TOLD_MAX:
            self._told_ms.clear()
        self._told_ms[what] = mono_ms
        return True

    def over(self) -> None:
        """All is well."""
        self._told_ms.clear()
