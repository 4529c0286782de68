"""Stream: records addressed by an ordinal, as a cursor reads them. A ready queue is one, a log topic's queue another."""

# mypy: disable-error-code="no-any-return"
from __future__ import annotations

import cython


class MessageView:
    """One message at a time in attributes, without an object of its own: the body is `length` bytes at `at` of `base`,
    valid until whoever points at another.
    """

    def __init__(self) -> None:
        self.base: memoryview = cython.NULL
        self.at = 0
        self.length = 0
        self.stamp_ns = 0
        self.message_id = 0
        self.attempts = 0  # before this delivery

    def body(self) -> bytes:
        """The body as an object."""
        if cython.compiled:
            data: bytes = self.base[self.at : self.at + self.length]  # type: ignore[assignment]
        else:
            data = bytes(self.base[self.at : self.at + self.length])
        return data

    def lend(self) -> memoryview | None:
        """The body as a part of a buffer that keeps it as it is for as long as the view lives; None: it must be copied."""
        return None


class Stream(MessageView):
    """What a cursor asks of a stream. Ordinals rise; some may have no record (a gap, a damaged one)."""

    def __init__(self) -> None:
        MessageView.__init__(self)
        self.awaits = False  # what `find` did not show may come yet: nobody is to go on behind it

    def begin(self) -> int:
        """The first ordinal there may be a record of."""
        raise NotImplementedError

    def end(self) -> int:
        """Behind the last record that may be read."""
        raise NotImplementedError

    def next(self, ordinal: int) -> int:
        """The ordinal itself, or where the records go on when it lies in a gap."""
        raise NotImplementedError

    def count(self, ordinal: int) -> int:
        """How many records there are from the ordinal to the end."""
        raise NotImplementedError

    def find(self, ordinal: int) -> int:
        """Show the record; 1, or 0 when it is damaged or gone."""
        raise NotImplementedError
