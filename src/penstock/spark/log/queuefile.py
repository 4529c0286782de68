"""The files of a consume queue, read with numpy and compared with the records that the log holds."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from penstock.spark.kernel.buffers import ENTRY, Longs, Records
from penstock.spark.log.derive import LogWindow, segment_files
from penstock.wire import layout

DAY_MS = 86_400_000


def entries_of(path: Path) -> Records:
    """A consume-queue file's entries; none of a file that was dropped since it was listed."""
    try:
        return np.fromfile(path, ENTRY)
    except FileNotFoundError:
        return np.empty(0, ENTRY)


class QueueFiles:
    """A consume queue's entries, mapped file by file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = [(n // layout.ENTRY_BYTES, Path(path)) for n, path in segment_files(str(folder))]
        self.loaded: dict[int, Records] = {}

    def entries(self, number: int) -> Records:
        if number not in self.loaded:
            self.loaded.clear()
            self.loaded[number] = entries_of(self.files[number][1])
        return self.loaded[number]

    def disagree(self, w: LogWindow, mine: Longs) -> Longs:
        """Which of these records the queue has another entry for; an offset without an entry (deleted, not yet made) is not one.

        An entry of a delayed message carries its due time, which depends on the broker's settings: any that is not past fits.
        """
        offsets, physical, sizes, codes = w.offset[mine], w.physical[mine], w.size[mine], w.code[mine]
        late, tags, stored = w.late[mine], w.tag[mine], w.stored[mine]
        wrong = np.zeros(len(offsets), bool)
        for number, (first, _) in enumerate(self.files):
            if number + 1 < len(self.files) and (offsets >= self.files[number + 1][0]).all():
                continue
            held = self.entries(number)
            inside = np.flatnonzero((offsets >= first) & (offsets < first + len(held)))
            if not len(inside):
                continue
            found = held[offsets[inside] - first]
            same = (found["physical"] == physical[inside]) & (found["size"] == sizes[inside])
            code = found["code"].astype(np.int64)
            moment = late[inside] & ((code >= stored[inside] - DAY_MS) | (code == tags[inside]))
            same &= (code == codes[inside]) | moment
            wrong[inside] = ~same & (found["size"] != 0)
        return np.flatnonzero(wrong)
