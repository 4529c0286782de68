"""Reading a broker's own files, where a task can see them: the bytes then pass no socket.

The broker says which offsets are durable; where they stand is in the consume queue (20 bytes per message: physical
offset 8, size 4, tags code 8; files named by the byte position of their first entry), and the records are in the commit
log's segments, named by their first byte. A segment stays readable while it is mapped, also when retention deletes it.
Anything that is not as expected ends the reading early, and what is left is fetched from the broker.
"""

from __future__ import annotations

import mmap
import os
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from penstock.client.reader import MessageQueue

ENTRY = np.dtype([("physical", ">i8"), ("size", ">i4"), ("tags", ">i8")])
ENTRIES_AT_ONCE = 65_536
SEGMENTS_MAX = 8  # mapped at a time


class Segments:
    """The files of one data folder."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._mapped: dict[int, mmap.mmap] = {}

    def runs(self, queue: MessageQueue, start: int, end: int) -> Iterator[tuple[mmap.mmap, Any, int, int]]:
        """(segment, positions in it, first queue offset, segment's first byte) of offsets from `start` on.

        Ends before `end` where a file is missing or an entry is none.
        """
        at = start
        while at < end:
            entries = self._entries(queue, at, min(end - at, ENTRIES_AT_ONCE))
            physical = entries["physical"].astype(np.int64)
            if not len(entries) or entries["size"][0] < 91 or self._segment(int(physical[0])) is None:
                return
            base, segment = self._segment(int(physical[0])) or (0, None)
            inside = (physical >= base) & (physical < base + len(segment or b"")) & (entries["size"] >= 91)
            count = len(entries) if inside.all() else int(np.argmin(inside))
            yield segment, (physical[:count] - base).astype(np.int32), at, base  # type: ignore[misc]
            at += count

    def _entries(self, queue: MessageQueue, first: int, most: int) -> Any:
        folder = self.folder / "consumequeue" / queue.topic / str(queue.queue_id)
        found = _file_of(folder, first * ENTRY.itemsize)
        if found is None:
            return np.empty(0, ENTRY)
        begin, path = found
        with open(path, "rb") as file:
            raw = os.pread(file.fileno(), most * ENTRY.itemsize, first * ENTRY.itemsize - begin)
        return np.frombuffer(raw[: len(raw) - len(raw) % ENTRY.itemsize], ENTRY)

    def _segment(self, physical: int) -> tuple[int, mmap.mmap] | None:
        for base, mapped in self._mapped.items():
            if base <= physical < base + len(mapped):
                return base, mapped
        found = _file_of(self.folder / "commitlog", physical)
        if found is None:
            return None
        base, path = found
        try:
            with open(path, "rb") as file:
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError):  # gone, empty, or no room in a limited address space
            return None
        if not base <= physical < base + len(mapped) or len(mapped) >= 1 << 31:
            return None
        while len(self._mapped) >= SEGMENTS_MAX:
            del self._mapped[next(iter(self._mapped))]
        self._mapped[base] = mapped
        return base, mapped


def _file_of(folder: Path, position: int) -> tuple[int, Path] | None:
    """(first byte, path) of the file of a segmented store that has this byte, or would."""
    try:
        names = sorted(name for name in os.listdir(folder) if len(name) == 20 and name.isdigit())
    except OSError:
        return None
    at = bisect_right(names, f"{position:020d}") - 1
    return (int(names[at]), folder / names[at]) if at >= 0 else None
