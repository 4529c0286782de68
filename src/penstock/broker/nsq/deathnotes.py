"""Why the messages of a queue topic's dead letters died: a line each in `queues/<topic>/deaths.jsonl`.

    line    CRC-32 of the JSON, 8 hex digits | {"place": in the ready queue, "id": of the message, "properties": {…}}

A ready queue's records have no properties. The lines lie in the order of the places, so that one is found by halving, and
the file is cut below what the queue still holds when it has doubled. A line says something of the message with its id
alone: what a killed process noted of a letter that it did not store means nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from zlib import crc32

import msgspec

from penstock.broker.nsq.folder import NOTES, QueueFolder, file_name
from penstock.broker.nsq.topics import QueueTopic
from penstock.disk.quarantine import clear, data_folder
from penstock.errors import StoreError

log = logging.getLogger("penstock.queueing")

LINE_BYTES_MAX = 16 << 10
WINDOW_BYTES = 64 << 10
TRIM_BYTES = 1 << 20  # a shorter file is not worth it
_SUM_BYTES = 9


class Note(msgspec.Struct):
    """One line."""

    place: int
    id: str
    properties: dict[str, str]


class DeathNotes:
    """See the module."""

    def __init__(self, folder: QueueFolder) -> None:
        self._folder = folder
        self._files = folder.files
        self._trim_at: dict[bytes, int] = {}  # by topic: a file as large as this is looked through
        self._window: tuple[bytes, dict[tuple[int, str], dict[str, str]]] = (b"", {})

    def path(self, topic: bytes) -> Path:
        """The file of a topic of dead letters."""
        return self._folder.queues / file_name(topic) / NOTES

    def add(self, topic: QueueTopic, place: int, id_: str, properties: Mapping[str, str]) -> None:
        """Note why the letter at this place is one. A disk that does not take it costs the note, not the letter."""
        line = _line(Note(place, id_, dict(properties)))
        if len(line) > LINE_BYTES_MAX:
            return
        path = self.path(topic.name)
        self._window = (b"", {})
        try:
            self._files.make_folder(path.parent)
            fd = self._files.open(path, create=True)
            try:
                end = self._end(fd, place)
                if end < self._files.size(fd):
                    self._files.cut(fd, end)
                self._files.write(fd, end, line)
                if end > self._trim_at.get(topic.name, TRIM_BYTES):
                    self._trim(fd, path, topic)
                    self._trim_at[topic.name] = max(TRIM_BYTES, 2 * path.stat().st_size)
            finally:
                self._files.close(fd)
        except (StoreError, OSError) as error:
            log.error("why a message died is not noted topic=%s error=%s", topic.name.decode(), error)

    def _end(self, fd: int, place: int) -> int:
        """Where the line of this place goes: behind the last whole line of one before it."""
        size = self._files.size(fd)
        begin = max(0, size - 2 * LINE_BYTES_MAX)
        last = _last_line(self._files.read(fd, begin, size - begin), torn=begin > 0)
        if last is not None and last[0].place < place:
            return begin + last[1]
        return self._search(fd, place, size)

    def _search(self, fd: int, place: int, size: int) -> int:
        """Where the line of this place begins, or would."""
        low, high = 0, size
        while high - low > WINDOW_BYTES:
            middle = (low + high) // 2
            found = next(_lines(self._files.read(fd, middle, 2 * LINE_BYTES_MAX), middle, torn=True), None)
            if found is None or found[1].place >= place:
                high = middle
            else:
                low = found[0]
        end = low
        for _, note, behind in _lines(self._files.read(fd, low, high - low + 2 * LINE_BYTES_MAX), low):
            if note.place >= place:
                break
            end = behind
        return end

    def _trim(self, fd: int, path: Path, topic: QueueTopic) -> None:
        """Leave out what lies before the queue. Who is killed in between has the one file or the other."""
        size = self._files.size(fd)
        begin = self._search(fd, topic.first(), size)
        if not begin:
            return
        fresh = path.with_name(NOTES + ".tmp")
        clear(self._files, data_folder(fresh), fresh)
        to = self._files.open(fresh, create=True)
        try:
            self._files.write(to, 0, self._files.read(fd, begin, size - begin))
        finally:
            self._files.close(to)
        self._files.rename(fresh, path)

    def find(self, topic: bytes, place: int, id_: str) -> dict[str, str] | None:
        """The properties of the letter at this place; None when nothing is noted of it."""
        name, notes = self._window
        found = notes.get((place, id_)) if name == topic else None
        if found is not None:
            return found
        path = self.path(topic)
        if not path.is_file():
            return None
        fd = self._files.open(path, writable=False)
        try:
            data = self._files.read(fd, self._search(fd, place, self._files.size(fd)), WINDOW_BYTES)
        finally:
            self._files.close(fd)
        notes = {(note.place, note.id): note.properties for _, note, _ in _lines(data, 0)}
        self._window = topic, notes
        return notes.get((place, id_))


def _line(note: Note) -> bytes:
    text = msgspec.json.encode(note)
    return b"%08x %s\n" % (crc32(text), text)


def _lines(data: bytes, begin: int, *, torn: bool = False) -> Iterator[tuple[int, Note, int]]:
    """Where each whole line begins, what it says, and where it ends; `torn`: the data begins inside a line."""
    at = data.find(b"\n") + 1 if torn else 0
    while (end := data.find(b"\n", at)) >= 0:
        note = read_line(data[at:end])
        if note is not None:
            yield begin + at, note, begin + end + 1
        at = end + 1


def _last_line(data: bytes, *, torn: bool) -> tuple[Note, int] | None:
    """What the last whole line says, and where it ends. From the end backwards: each letter that is added asks."""
    first = data.find(b"\n") + 1 if torn else 0
    end = data.rfind(b"\n", first)
    while end >= 0:
        at = data.rfind(b"\n", first, end) + 1 or first
        note = read_line(data[at:end])
        if note is not None:
            return note, end + 1
        end = at - 1 if at > first else -1
    return None


def read_line(line: bytes) -> Note | None:
    """What a line says, without its end; None when its sum does not hold."""
    text = line[_SUM_BYTES:]
    if line[:_SUM_BYTES] != b"%08x " % crc32(text):
        return None
    try:
        return msgspec.json.decode(text, type=Note)
    except msgspec.MsgspecError:
        return None
