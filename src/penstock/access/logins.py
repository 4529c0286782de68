"""Failed logins are limited, for each address and for each name, so that secrets cannot be guessed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

WINDOW_MS = 60_000
KEPT_MAX = 10_000  # addresses and names

Key = tuple[str, str]  # an address, or a name: a name may look like an address


def _keys(host: str, name: str) -> list[Key]:
    """What a login counts for. One by token has no name: those of others are not refused for it, and nobody guesses a token."""
    return [("address", host), ("name", name)] if name else [("address", host)]


class FailedLogins:
    """How often logins failed in the last minute. `limit` 0: as often as one likes."""

    def __init__(self, limit: int, reached: Callable[[], None] = lambda: None) -> None:
        self.limit = limit
        self._reached = reached  # told of each login that is refused unseen
        self.refused = 0  # logins that were not even looked at
        self._since: OrderedDict[Key, tuple[int, int]] = OrderedDict()  # who → when the minute began, how often

    def too_many(self, host: str, name: str, mono_ms: int) -> bool:
        """Whether a login is to be refused unseen; counted."""
        if not self.limit or not any(self._full(key, mono_ms) for key in _keys(host, name)):
            return False
        self.refused += 1
        self._reached()
        return True

    def _full(self, key: Key, mono_ms: int) -> bool:
        begun_ms, count = self._since.get(key, (mono_ms, 0))
        return count >= self.limit and mono_ms - begun_ms < WINDOW_MS

    def failed(self, host: str, name: str, mono_ms: int) -> None:
        """A login failed."""
        for key in _keys(host, name):
            begun_ms, count = self._since.pop(key, (mono_ms, 0))
            if mono_ms - begun_ms >= WINDOW_MS:
                begun_ms, count = mono_ms, 0
            self._since[key] = (begun_ms, count + 1)
        while len(self._since) > KEPT_MAX:
            self._since.popitem(last=False)
