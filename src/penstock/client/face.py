"""What all blocking clients have in common: start, close, with."""

from __future__ import annotations

from collections.abc import Coroutine
from types import TracebackType
from typing import Protocol, TypeVar

from penstock.client.portal import portal


class Inner(Protocol):
    """The asyncio client behind one."""

    def start(self) -> Coroutine[object, None, object]:
        """Connect."""

    def close(self) -> Coroutine[object, None, None]:
        """Leave in order."""


C = TypeVar("C", bound="Client")


class Client:
    """What all blocking clients share: start, close, with."""

    _inner: Inner

    def start(self: C) -> C:
        """Connect to a name server. ConnectionLost when none answers."""
        portal().run(self._inner.start())
        return self

    def close(self) -> None:
        """Leave in order and close the connections."""
        portal().run(self._inner.close())

    def __enter__(self: C) -> C:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
