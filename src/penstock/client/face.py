"""What all blocking clients have in common: start, close, with."""

from __future__ import annotations

import os
import weakref
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

_started: weakref.WeakSet[Client] = weakref.WeakSet()
# What clients had before a fork: never let go of, for their sockets and loop are the parent's, too.
_of_parent: list[dict[str, object]] = []


class OfParent:
    """In the place of everything that a client had before a fork: it would write into the parent's connections."""

    def close(self) -> None:
        """The parent does."""

    def __getattr__(self, name: str) -> object:
        raise RuntimeError("this client is the parent process's: after a fork make new ones")


def _forked() -> None:
    """In the child."""
    for client in list(_started):
        client._leave_to_parent()


os.register_at_fork(after_in_child=_forked)


class Client:
    """What all blocking clients share: start, close, with."""

    _inner: Inner

    def start(self: C) -> C:
        """Connect to a name server. ConnectionLost when none answers."""
        portal().run(self._inner.start())
        _started.add(self)
        return self

    def close(self) -> None:
        """Leave in order and close the connections."""
        if not isinstance(self._inner, OfParent):
            portal().run(self._inner.close())

    def _leave_to_parent(self) -> None:
        """This process is a child of the one that made the client: from now on RuntimeError."""
        _of_parent.append(dict(vars(self)))
        for name in vars(self):
            setattr(self, name, OfParent())

    def __enter__(self: C) -> C:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
