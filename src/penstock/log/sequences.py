"""The sequence numbers of idempotent producers: a send that comes again is answered as before, and not appended.

A producer that wants this sends the property `PSEQ`, and it is stored with the message (with each of a batch):

    PSEQ    producer, 16 hexadecimal digits | . | number, from 1 | . | messages in this send

A producer is one client's sends to one message queue. Of each the last 32 numbers are remembered, with where the
messages were stored; a client has no more than that between the oldest send that is not answered and the newest, so
that order on the way does not matter. A batch of which a crash has left a part in the log is completed when it comes
again. All this is read from the log again at the start, on top of a snapshot (`config/sequences.json`) of what was flushed.
"""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any, NamedTuple

from penstock.disk.files import Files
from penstock.disk.job import Job
from penstock.disk.tables import save, take
from penstock.errors import Refused

WINDOW = 32
PRODUCERS_MAX = 8_192
SNAPSHOT_MS = 5_000
QUIET_MS = 60_000  # later, where nothing was added: all that the log has behind a snapshot is read again at the start
SNAPSHOT_BYTES = 64 << 20
ILLEGAL, TOO_OLD = 13, 77_006


class Stored(NamedTuple):
    """One send: `parts` are (physical offset, messages) that lie together, `end` is behind the last of them."""

    end: int
    topic: str
    queue_id: int
    queue_offset: int
    messages: int
    parts: tuple[tuple[int, int], ...]

    @property
    def there(self) -> int:
        """How many of its messages are in the log."""
        return sum(count for _, count in self.parts)


def parse(value: bytes) -> tuple[str, int, int]:
    """(producer, number, count). Refused (13) when it is none."""
    producer, _, rest = value.decode("latin-1").partition(".")
    number, _, count = rest.partition(".")
    numbers = (number + count).isascii() and number.isdecimal() and count.isdecimal() and len(rest) < 26
    if len(producer) != 16 or producer.strip("0123456789abcdef") or not numbers or not int(number) or not int(count):
        raise Refused("PSEQ is no producer, number and count", remoting=ILLEGAL)
    return producer, int(number), int(count)


class Sequences:
    """Known to the store as a subscriber that wants no topic: what it needs is found when the log is read again."""

    topics: frozenset[bytes] = frozenset()

    def __init__(self, path: Path, files: Files) -> None:
        self.path = path
        self.files = files
        self.by_producer: OrderedDict[str, dict[int, Stored]] = OrderedDict()
        self.position = -1
        self.repeats = 0
        self._dirty = False
        self._due_ms = 0
        self._running = False
        root = path.parent.parent
        table = take(files, root, path, _fits, "what producers have sent is read from the log again")
        if table is not None:
            self._take(table)
        else:
            self.position = 0  # the log from its start
            self._dirty = True

    def _take(self, table: dict[str, Any]) -> None:
        try:
            for producer, window in table["producers"].items():
                self.by_producer[producer] = {
                    int(number): Stored(end, topic, queue_id, offset, count, tuple((p, n) for p, n in parts))
                    for number, (end, topic, queue_id, offset, count, parts) in window
                }
            self.position = max(0, int(table["position"]))
        except (KeyError, TypeError, ValueError, AttributeError):
            self.by_producer.clear()
            self.position = 0  # the log from its start
            self._dirty = True

    # -- sends

    def count_repeat(self) -> None:
        """A send came again that is stored already."""
        self.repeats += 1

    def find(self, producer: str, number: int) -> Stored | None:
        """Where this send is; None when it is new. Refused when it is too old to be known."""
        window = self.by_producer.get(producer)
        if window is None:
            return None
        self.by_producer.move_to_end(producer)
        found = window.get(number)
        if found is None and number <= max(window) - WINDOW:
            raise Refused(f"send {number} of producer {producer} is older than the last {WINDOW}", remoting=TOO_OLD)
        return found

    def took(self, producer: str, number: int, stored: Stored) -> None:
        """This send is in the log."""
        window = self.by_producer.get(producer)
        if window is None:
            window = self.by_producer[producer] = {}
            if len(self.by_producer) > PRODUCERS_MAX:
                self.by_producer.popitem(last=False)
        window[number] = stored
        if len(window) > WINDOW:
            newest = max(window)
            for old in [n for n in window if n <= newest - WINDOW]:
                del window[old]
        self._dirty = True

    # -- the log, read again

    def again(self, value: bytes, topic: bytes, queue_id: int, queue_offset: int, physical: int, size: int) -> None:
        """A record with a PSEQ. Copies of it, delivered late or sent back by a consumer, count for nothing."""
        try:
            producer, number, count = parse(value)
            known = self.find(producer, number)
        except Refused:
            return
        name, end = topic.decode("latin-1"), physical + size
        if known is None:
            self.took(producer, number, Stored(end, name, queue_id, queue_offset, count, ((physical, 1),)))
        elif (
            known.there < known.messages and (known.topic, known.queue_id) == (name, queue_id) and physical >= known.end
        ):
            *before, (first, together) = known.parts
            parts = (
                (*before, (first, together + 1)) if physical == known.end else (*known.parts, (physical, 1))
            )  # the rest of a batch, appended when it came again
            self.took(producer, number, known._replace(end=end, parts=parts))

    def add(self, physical: int, record: bytes, tags_code: int, store_ms: int) -> None:
        """No topic is wanted."""

    def done(self, prepared: int, physical: int) -> None:
        """Nothing here is waited for."""

    def cut(self, end: int) -> None:
        """Forget what a power cut took, or was cut off: that must be sent, and stored, again. So must the snapshot, before
        anything else is appended: the log may reach its position again, with other records, and this process be killed then.
        """
        for window in self.by_producer.values():
            for number in [n for n, stored in window.items() if stored.end > end]:
                del window[number]
        for producer in [p for p, window in self.by_producer.items() if not window]:
            del self.by_producer[producer]
        if self.position > end:
            self.position, self._dirty = end, True
            for path in (self.path, self.path.with_name(self.path.name + ".bak")):
                self.files.unlink(path)
            self.files.sync_folder(self.path.parent)

    # -- the snapshot

    def take_job(self, flushed: int, end: int, mono_ms: int) -> Job | None:
        """Write down what is flushed, now and then."""
        if self._running or self.position < 0 or self.position >= flushed:
            return None
        due_ms = self._due_ms if self._dirty else self._due_ms + QUIET_MS
        if mono_ms < due_ms and flushed - self.position < SNAPSHOT_BYTES:
            return None
        self._running = True
        self._dirty = any(stored.end > flushed for window in self.by_producer.values() for stored in window.values())
        producers = {
            producer: kept
            for producer, window in self.by_producer.items()
            if (kept := [(number, stored) for number, stored in window.items() if stored.end <= flushed])
        }
        table = {"position": flushed, "producers": producers}

        def finish(error: BaseException | None, now_ms: int) -> None:
            self._running = False
            self._due_ms = now_ms + SNAPSHOT_MS + len(producers)  # a large one less often
            if error is None:
                self.position = flushed
            else:
                self._dirty = True

        return Job("sequences", lambda: save(self.files, self.path, table), finish)

    def close(self) -> None:
        """All of it is in the log."""


def _fits(table: dict[str, Any]) -> bool:
    return isinstance(table.get("position"), int) and isinstance(table.get("producers"), dict)
