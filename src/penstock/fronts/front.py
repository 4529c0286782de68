"""What a protocol is to the process: it makes sessions, and is asked at both ends of each turn.

A new protocol is a module with a Front and its sessions, one line where `app.Server` starts the others, and its settings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from penstock.log.consumequeue import ConsumeQueue


def no_beginning() -> None:
    """Nothing is to be done when a turn begins."""


class Session(Protocol):
    """One connection, as `net` sees it."""

    need: int

    def feed(self, owner: bytearray, total: int) -> int:
        """Carry out what is whole in the first `total` bytes; how many bytes that was. WireError: close."""

    def take(self) -> bytes:
        """What is to be written now."""

    def lost(self) -> None:
        """The connection is gone."""


class Front(Protocol):
    """All sessions of one protocol. One that derives from this class says its name and makes sessions; the rest is its choice."""

    name: str

    @property
    def rejected(self) -> Mapping[bytes, int]:
        """Reason → how often, for the metrics."""
        return {}

    def session(self, remote: str, wake: Callable[[], None]) -> Session:
        """The session of a new connection; `wake()` says that it has something to write though nothing was read."""
        raise NotImplementedError

    @property
    def begin_turn(self) -> Callable[[], None]:
        """Called first in each turn: the broker's time is that of the turn."""
        return no_beginning

    @property
    def ends_turns(self) -> bool:
        """Whether `end_turn` does anything."""
        return type(self).end_turn is not Front.end_turn

    def end_turn(self, news: list[ConsumeQueue]) -> None:
        """The last thing before answers are written; `news` are the message queues that got messages in this turn."""
        return  # a choice, not a duty

    def tick(self) -> int | None:
        """Do what is due; when (monotonic ms) something will be again."""
        return None
