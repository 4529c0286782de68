"""Lately: whose rows of a table changed, so that who knows how it was is told of those alone."""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import Generic, TypeVar

NAMES_MAX = 10_000

Name = TypeVar("Name")


class Lately(Generic[Name]):
    """The names of the rows that changed, in the order in which they did, and how many changes there were."""

    def __init__(self) -> None:
        self.count = 0
        self._names: deque[Name] = deque(maxlen=NAMES_MAX)

    def note(self, name: Name) -> None:
        """The row of this name came, went, or is another one."""
        self.count += 1
        self._names.append(name)

    def since(self, count: int) -> list[Name] | None:
        """Each of those behind so many changes, once; None when that is too long ago to be known."""
        fresh = self.count - count
        if not 0 <= fresh <= len(self._names):
            return None
        return list(dict.fromkeys(islice(reversed(self._names), fresh)))
