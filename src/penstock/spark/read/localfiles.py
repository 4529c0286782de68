"""Reading a broker's own files, where a task can see them: the bytes then pass no socket.

The broker says which offsets are durable; where they stand is in the consume queue (20 bytes per message: physical
offset 8, size 4, tags code 8; files named by the byte position of their first entry), and the records are in the commit
log's segments, named by their first byte. They are read in windows that fit a core's cache: decoding touches each record
twice, and out of a mapping both times would wait for memory. An open segment stays readable when retention deletes it.
Anything that is not as expected ends the reading early, and what is left is fetched from the broker. So does a queue whose
records lie far apart between those of others: the broker picks them in less time than it takes to read all of them.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from penstock.client.routes import MessageQueue
from penstock.spark.kernel.buffers import ENTRY, Ints, Longs, Records
from penstock.wire import layout

ENTRIES_AT_ONCE = 65_536
WINDOW_BYTES = 1 << 20
GAP_BYTES = 16 << 10  # of others' records: rather two reads than these
OPEN_MAX = 8  # segments


class Segments:
    """The files of one data folder."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._open: dict[int, tuple[int, int]] = {}  # first byte: descriptor, size

    def runs(
        self, queue: MessageQueue, start: int, end: int, window_bytes: int = WINDOW_BYTES, near: bool = False
    ) -> Iterator[tuple[bytes, Ints, int, int]]:
        """(window, positions in it, first queue offset, window's first byte) of offsets from `start` on.

        Ends before `end` where a file is missing or an entry is none; with `near` also where records lie far apart.
        """
        self._forget_replaced()
        at = start
        while at < end:
            entries = self._entries(queue, at, min(end - at, ENTRIES_AT_ONCE))
            first = entries["physical"].astype(np.int64)
            last = first + entries["size"]
            good = entries["size"] >= layout.RECORD_FIXED_BYTES
            whole = len(entries) if good.all() else int(np.argmin(good))
            if not whole:
                return
            gaps = np.append(np.flatnonzero(first[1:whole] - last[: whole - 1] > GAP_BYTES) + 1, whole)
            if near and not _close(entries["size"][:whole], first, last, len(gaps)):
                return
            done = 0
            while done < whole:
                found = self._segment(int(first[done]))
                if found is None:
                    return
                base, descriptor, size = found
                window = min(int(first[done]) + window_bytes, base + size)
                # Entries ascend; one record at least, and none beyond the window or the segment.
                until = int(gaps[np.searchsorted(gaps, done, "right")])
                count = max(int(np.searchsorted(last[done:until], window, "right")), 1)
                begin, stop = int(first[done]), int(last[done + count - 1])
                data = os.pread(descriptor, stop - begin, begin - base)
                if len(data) < stop - begin:
                    return
                yield data, (first[done : done + count] - begin).astype(np.int32), at + done, begin
                done += count
            if whole < len(entries):
                return
            at += whole

    def _entries(self, queue: MessageQueue, first: int, most: int) -> Records:
        folder = self.folder / "consumequeue" / queue.topic / str(queue.queue_id)
        found = _file_of(folder, first * ENTRY.itemsize)
        if found is None:
            return np.empty(0, ENTRY)
        begin, path = found
        try:
            with open(path, "rb") as file:
                raw = os.pread(file.fileno(), most * ENTRY.itemsize, first * ENTRY.itemsize - begin)
        except OSError:
            return np.empty(0, ENTRY)
        return np.frombuffer(raw[: len(raw) - len(raw) % ENTRY.itemsize], ENTRY)

    def _forget_replaced(self) -> None:
        """Close segments that other files have replaced: the folder was created again. Those that retention took stay open."""
        for base, (descriptor, _) in list(self._open.items()):
            try:
                there = os.stat(self.folder / "commitlog" / f"{base:020d}").st_ino
            except OSError:
                continue
            if there != os.fstat(descriptor).st_ino:
                os.close(self._open.pop(base)[0])

    def path_of(self, physical: int) -> str:
        """The segment with this byte, of those that were read last."""
        found = self._segment(physical)
        return str(self.folder if found is None else self.folder / "commitlog" / f"{found[0]:020d}")

    def _segment(self, physical: int) -> tuple[int, int, int] | None:
        """(first byte, descriptor, size) of the segment with this byte."""
        for base, (descriptor, size) in self._open.items():
            if base <= physical < base + size:
                return base, descriptor, size
        found = _file_of(self.folder / "commitlog", physical)
        if found is None:
            return None
        base, path = found
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # retention was faster
            return None
        size = os.fstat(descriptor).st_size
        if physical >= base + size:
            os.close(descriptor)
            return None
        while len(self._open) >= OPEN_MAX:
            os.close(self._open.pop(next(iter(self._open)))[0])
        self._open[base] = descriptor, size
        return base, descriptor, size


def _close(sizes: Longs, first: Longs, last: Longs, runs: int) -> bool:
    """Whether reading runs of records with small gaps between them reads little else, and in pieces worth a call."""
    wanted = int(sizes.sum(dtype=np.int64))
    inside = first[1 : len(sizes)] - last[: len(sizes) - 1]
    others = int(inside[inside <= GAP_BYTES].sum())
    return others <= wanted and (runs == 1 or wanted >= runs * GAP_BYTES)


def _file_of(folder: Path, position: int) -> tuple[int, Path] | None:
    """(first byte, path) of the file of a segmented store that has this byte, or would."""
    try:
        names = sorted(name for name in os.listdir(folder) if len(name) == 20 and name.isdigit())
    except OSError:
        return None
    at = bisect_right(names, f"{position:020d}") - 1
    return (int(names[at]), folder / names[at]) if at >= 0 else None
