"""Who derives something of its own from the records of a log, and who mends them."""

from __future__ import annotations

from typing import Protocol

from penstock.disk.job import Job


class Subscriber(Protocol):
    """Derives something of its own from records of some topics; `position`: it has taken every record below."""

    @property
    def topics(self) -> frozenset[bytes]:
        """Those whose records it wants."""

    @property
    def position(self) -> int:
        """-1 when it does not know."""

    def add(self, physical: int, record: bytes, tags_code: int, store_ms: int) -> None:
        """A record of one of the topics; for delay levels `tags_code` is the moment it is due."""

    def done(self, prepared: int, physical: int) -> None:
        """The record at physical names another one as its origin."""

    def cut(self, end: int) -> None:
        """Forget what came from records at or after end: a power cut took them."""

    def take_job(self, flushed: int, end: int, mono_ms: int) -> Job | None:
        """Something to write down, of records below flushed only."""

    def close(self) -> None:
        """The store closes."""


class Remembered(Protocol):
    """The sequence numbers of producers, as replaying the log sees them."""

    def again(self, value: bytes, topic: bytes, queue_id: int, queue_offset: int, physical: int, size: int) -> None:
        """A record with a sequence number, once more."""


class Mending(Protocol):
    """Who gets sound copies of damaged records from elsewhere."""

    def found(self, position: int) -> None:
        """The record there does not hold, if there is one."""

    def awaits(self, topic: bytes, queue_id: int, offset: int, position: int) -> bool:
        """This message does not hold, or was not found (position -1). Whether readers are to wait for it."""
