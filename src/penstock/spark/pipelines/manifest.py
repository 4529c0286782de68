"""What an archive holds and what it is about to hold, in one small file beside it.

    <folder>.penstock/<topic>.json         {"version": 1, "topic": T, "next": {broker: {queue: offset}},
                                            "pending": [[broker, queue, first, until], …],
                                            "stored": {broker: {queue: [offset, when the message before it was stored]}}}
    <folder>/topic=T/broker=B/queue=Q/<first>-<last>.parquet      20 digits each, so that names sort
                                            a `%` of T is `%25` where readers, who decode such names, would make another one of it
    <folder>/T/broker=B/…                  of a topic that was begun as a Delta table: some readers take `topic=T` in the
                                            place of a table for a column of it
    <folder>/_penstock/<topic>.lock        empty

In the folder itself stand Parquet files and empty ones alone, because readers that take a folder as it is refuse it
otherwise. Notes inside it, in `_penstock`, are those of older versions; they are there still where nothing can be written
beside the folder.

A run writes the ranges it is going to archive into `pending` before the first file, and moves `next` past them after
the last. A killed run's ranges are finished first and under the same names, whatever has arrived meanwhile: so no two
files ever overlap, and a file that stands under its name is whole (it is written aside, flushed and renamed).
The file may be lost: `next` is then rebuilt from the names.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote, unquote

from penstock.client.routes import MessageQueue
from penstock.errors import Corrupt, Locked
from penstock.spark.read.planning import Offsets, Range

VERSION = 1
_TOPIC, _PERCENT = "topic=", quote("%")
_NAME = re.compile(r"(\d{20})-(\d{20})\.parquet")
_UNFINISHED = re.compile(r"(.+)\.[0-9a-f]{32}\.writing")


_REBUILD = "delete it to rebuild it from the files' names"


@dataclass
class Manifest:
    """The state of one topic's archive; `next` is the first offset of each queue that is not archived yet."""

    folder: Path
    topic: str
    next: Offsets = field(default_factory=dict)
    pending: list[Range] = field(default_factory=list)
    stored: dict[MessageQueue, tuple[int, int]] = field(
        default_factory=dict
    )  # an older version writes the file without

    def paths(self) -> list[Path]:
        """Where the file may be; where it would be looked for first, first."""
        return [place / f"{self.topic}.json" for place in (_beside(self.folder), self.folder / "_penstock")]

    def begin(self, ranges: list[Range]) -> None:
        """Note, before it is done, that these ranges are written now."""
        self.pending = ranges
        self.save()

    def end(self) -> None:
        """The files of the ranges that were begun are whole."""
        for r in self.pending:
            self.next[r.queue] = r.end
        self.pending = []
        self.save()

    def save(self) -> None:
        """Replace the file; durable when this returns."""
        state: dict[str, Any] = {"version": VERSION, "topic": self.topic, "next": {}, "pending": [], "stored": {}}
        for queue in sorted(self.next):
            state["next"].setdefault(queue.broker, {})[str(queue.queue_id)] = self.next[queue]
        state["pending"] = [[r.queue.broker, r.queue.queue_id, r.start, r.end] for r in self.pending]
        for queue in sorted(self.stored):
            state["stored"].setdefault(queue.broker, {})[str(queue.queue_id)] = self.stored[queue]
        path = notes_of(self.folder) / f"{self.topic}.json"
        fresh = path.with_suffix(".tmp")
        with open(fresh, "w") as file:
            json.dump(state, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
        flush_folder(path.parent)
        for other in self.paths():
            if other != path and other.exists():
                other.unlink()


def load(folder: Path, topic: str) -> Manifest:
    """The manifest as it was saved, or as the files' names tell. `Corrupt` when the file is not one."""
    manifest = Manifest(folder, topic)
    try:
        path = next((path for path in manifest.paths() if path.exists()), manifest.paths()[0])
        state = json.loads(path.read_text())
    except FileNotFoundError:
        for r in archived(folder, topic):
            manifest.next[r.queue] = max(manifest.next.get(r.queue, 0), r.end)
        return manifest
    except ValueError as error:
        raise Corrupt(path, 0, f"{error}; {_REBUILD}") from None
    if isinstance(state, dict) and state.get("version", VERSION) != VERSION:
        raise Corrupt(path, 0, f"version {state.get('version')} is not {VERSION}")
    try:
        for broker, queues in state["next"].items():
            for queue_id, offset in queues.items():
                manifest.next[MessageQueue(topic, broker, int(queue_id))] = int(offset)
        pending = [
            Range(MessageQueue(topic, b, int(q)), int(first), int(until)) for b, q, first, until in state["pending"]
        ]
        for broker, queues in state.get("stored", {}).items():
            for queue_id, (offset, moment) in queues.items():
                manifest.stored[MessageQueue(topic, broker, int(queue_id))] = int(offset), int(moment)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise Corrupt(path, 0, f"not the notes of an archive; {_REBUILD}") from None
    return Manifest(folder, topic, manifest.next, pending, manifest.stored)


def _beside(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.penstock")


def notes_of(folder: Path) -> Path:
    """Where notes and half-written files go: beside the folder, on the same file system; else inside it. Made if need be."""
    beside = _beside(folder)
    make_folder(folder)
    try:
        make_folder(beside)
        if beside.stat().st_dev == folder.stat().st_dev and os.access(beside, os.W_OK):
            return beside
    except OSError:  # the folder is not writable
        pass
    inside = folder / "_penstock"
    make_folder(inside)
    return inside


def root_of(folder: Path, topic: str) -> Path:
    """The folder of a topic's files, which is the place of its Delta table."""
    marked, plain = folder / f"{_TOPIC}{topic}", folder / topic
    encoded = marked if unquote(topic) == topic else folder / f"{_TOPIC}{topic.replace('%', _PERCENT)}"
    there = (place for place in (marked, encoded, plain) if place.is_dir())  # `marked` of a version that did not encode
    return next(there, encoded)


def topic_of(path: Path) -> str:
    """The topic whose file this is."""
    return path.parts[-4].removeprefix(_TOPIC).replace(_PERCENT, "%")


def file_of(folder: Path, r: Range) -> Path:
    """Where a range's rows go: the same range always to the same file."""
    place = root_of(folder, r.queue.topic) / f"broker={r.queue.broker}" / f"queue={r.queue.queue_id}"
    return place / f"{r.start:020d}-{r.end - 1:020d}.parquet"


def archived(folder: Path, topic: str) -> list[Range]:
    """The ranges of all finished files, sorted."""
    found = []
    for path in root_of(folder, topic).glob("broker=*/queue=*/*.parquet"):
        name = _NAME.fullmatch(path.name)
        if name:
            queue = MessageQueue(topic, path.parts[-3].partition("=")[2], int(path.parts[-2].partition("=")[2]))
            found.append(Range(queue, int(name[1]), int(name[2]) + 1))
    return sorted(found)


@contextmanager
def written(folder: Path, topic: str, path: Path) -> Iterator[BinaryIO]:
    """What becomes the file `path` once all of it is on the disk. Whatever fails leaves nothing: there may be no room for it."""
    make_folder(path.parent)
    unfinished = notes_of(folder) / f"{topic}.{uuid.uuid4().hex}.writing"
    try:
        with open(unfinished, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    flush_folder(path.parent)


def unfinished(folder: Path, topic: str) -> list[Path]:
    """What killed runs of this topic left half written; another topic's name may begin with it."""
    found = list(root_of(folder, topic).glob("broker=*/queue=*/.*.writing"))
    for path in notes_of(folder).glob("*.writing"):
        name = _UNFINISHED.fullmatch(path.name)
        if name and name[1] == topic:
            found.append(path)
    return found


@contextmanager
def locked(folder: Path, topic: str) -> Iterator[None]:
    """One run per topic and folder at a time. `Locked` when another one is at it."""
    place = folder / "_penstock"
    place.mkdir(parents=True, exist_ok=True)
    with open(place / f"{topic}.lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise Locked(f"another archive run writes {topic} to {folder}") from None
        yield


def make_folder(folder: Path) -> None:
    """The folder and the ones above it, each durable: a power cut could take a whole part of an archive that is noted."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        flush_folder(folder.parent)


def flush_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
