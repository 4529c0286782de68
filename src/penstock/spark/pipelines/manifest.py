"""What an archive holds and what it is about to hold, in one small file beside it.

    <folder>/_penstock/<topic>.json        {"version": 1, "topic": T, "next": {broker: {queue: offset}},
                                            "pending": [[broker, queue, first, until], …]}
    <folder>/topic=T/broker=B/queue=Q/<first>-<last>.parquet      20 digits each, so that names sort

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
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.client.reader import MessageQueue
from penstock.errors import Corrupt, Locked
from penstock.spark.planning import Offsets, Range

VERSION = 1
_NAME = re.compile(r"(\d{20})-(\d{20})\.parquet")


@dataclass
class Manifest:
    """The state of one topic's archive; `next` is the first offset of each queue that is not archived yet."""

    folder: Path
    topic: str
    next: Offsets = field(default_factory=dict)
    pending: list[Range] = field(default_factory=list)

    @property
    def path(self) -> Path:
        return self.folder / "_penstock" / f"{self.topic}.json"

    def save(self) -> None:
        """Replace the file; durable when this returns."""
        state: dict[str, Any] = {"version": VERSION, "topic": self.topic, "next": {}, "pending": []}
        for queue in sorted(self.next):
            state["next"].setdefault(queue.broker, {})[str(queue.queue_id)] = self.next[queue]
        state["pending"] = [[r.queue.broker, r.queue.queue_id, r.start, r.end] for r in self.pending]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self.path.with_suffix(".tmp")
        with open(fresh, "w") as file:
            json.dump(state, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self.path)
        flush_folder(self.path.parent)


def load(folder: Path, topic: str) -> Manifest:
    """The manifest as it was saved, or as the files' names tell. `Corrupt` when the file is not one."""
    manifest = Manifest(folder, topic)
    try:
        state = json.loads(manifest.path.read_text())
    except FileNotFoundError:
        for r in archived(folder, topic):
            manifest.next[r.queue] = max(manifest.next.get(r.queue, 0), r.end)
        return manifest
    except ValueError as error:
        raise Corrupt(manifest.path, 0, f"{error}; delete it to rebuild it from the files' names") from None
    if state.get("version") != VERSION:
        raise Corrupt(manifest.path, 0, f"version {state.get('version')} is not {VERSION}")
    for broker, queues in state["next"].items():
        for queue_id, offset in queues.items():
            manifest.next[MessageQueue(topic, broker, int(queue_id))] = offset
    manifest.pending = [Range(MessageQueue(topic, b, q), first, until) for b, q, first, until in state["pending"]]
    return manifest


def file_of(folder: Path, r: Range) -> Path:
    """Where a range's rows go: the same range always to the same file."""
    place = folder / f"topic={r.queue.topic}" / f"broker={r.queue.broker}" / f"queue={r.queue.queue_id}"
    return place / f"{r.start:020d}-{r.end - 1:020d}.parquet"


def archived(folder: Path, topic: str) -> list[Range]:
    """The ranges of all finished files, sorted."""
    found = []
    for path in (folder / f"topic={topic}").glob("broker=*/queue=*/*.parquet"):
        name = _NAME.fullmatch(path.name)
        if name:
            queue = MessageQueue(topic, path.parts[-3].partition("=")[2], int(path.parts[-2].partition("=")[2]))
            found.append(Range(queue, int(name[1]), int(name[2]) + 1))
    return sorted(found)


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


def flush_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
