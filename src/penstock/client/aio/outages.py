"""One line in the log when a peer goes away and one when it is back, whatever failed in between and how often."""

from __future__ import annotations

import logging
import time

log = logging.getLogger("penstock.client")


class Outages:
    """What is away now, by name."""

    def __init__(self) -> None:
        self._since: dict[str, tuple[float, int]] = {}  # name → (when it began, failures so far)

    def failed(self, name: str, doing: str, error: BaseException) -> None:
        """A call to a peer failed. Only the first failure of an outage is a warning."""
        since_s, count = self._since.get(name, (time.monotonic(), 0))
        self._since[name] = since_s, count + 1
        level = logging.DEBUG if count else logging.WARNING
        log.log(level, "%s is away, tried again until it is back: %s: %s", name, doing, error)

    def answered(self, name: str) -> None:
        """A call to a peer succeeded."""
        if self._since and name in self._since:
            since_s, count = self._since.pop(name)
            log.info("%s is back after %.1f s and %d failures", name, time.monotonic() - since_s, count)
