"""Lately: whose rows of a table changed, so that who knows how it was is told of those alone."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

NAMES_MAX = 10_000

Name = TypeVar("Name")


class Lately(Generic[Name]):
    """The names of the rows that changed last, so many of them, and how many changes there were."""

    def __init__(self, names_max: int = NAMES_MAX) -> None:
        self.count = 0
        self._names_max = names_max
        self._numbers: OrderedDict[Name, int] = OrderedDict()  # of the last change of each, in this order
        self._forgotten = 0  # so many changes are not known any more

    def note(self, name: Name) -> None:
        """The row of this name came, went, or is another one."""
        self.count += 1
        self._numbers[name] = self.count
        self._numbers.move_to_end(name)
        if len(self._numbers) > self._names_max:
            _, self._forgotten = self._numbers.popitem(last=False)

    def since(self, count: int) -> list[Name] | None:
        """Each of those behind so many changes, once, the last one first; None when that is too long ago to be known."""
        if not self._forgotten <= count <= self.count:
            return None
        found = []
        for name, number in reversed(self._numbers.items()):
            if number <= count:
                break
            found.append(name)
        return found
