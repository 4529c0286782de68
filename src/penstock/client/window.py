"""Messages of one message queue between their pull and the commit of their offset. No I/O here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from penstock.message import ReceivedMessage


class Of(Protocol):
    """Something in hand that is about a message."""

    @property
    def message(self) -> ReceivedMessage: ...


class Window:
    """Which messages are out, so that the committed offset never passes one that is not settled."""

    def __init__(self, offset: int) -> None:
        self.next_offset = offset
        self.bytes_ = 0
        self._sizes: dict[int, int] = {}  # unsettled queue offsets in the order they came, which is ascending

    def __len__(self) -> int:
        return len(self._sizes)

    @property
    def committed(self) -> int:
        """The oldest queue offset not settled: where another consumer must go on."""
        return next(iter(self._sizes), self.next_offset)

    @property
    def span(self) -> int:
        """Offsets between the oldest unsettled message and the next to be pulled."""
        return self.next_offset - self.committed

    def add(self, messages: list[ReceivedMessage], next_offset: int) -> None:
        """Messages came, in order; the next pull is from next_offset on."""
        for message in messages:
            size = len(message.body)
            self._sizes[message.queue_offset] = size
            self.bytes_ += size
        self.next_offset = next_offset

    def go_on_at(self, next_offset: int) -> None:
        """The next pull is from there on."""
        self.next_offset = next_offset

    def settle(self, queue_offset: int) -> None:
        """A message is done with, or given back. Settling twice is harmless."""
        self.bytes_ -= self._sizes.pop(queue_offset, 0)

    def settle_all(self, handed: Sequence[Of]) -> None:
        """All these are done with."""
        for one in handed:
            self.bytes_ -= self._sizes.pop(one.message.queue_offset, 0)
