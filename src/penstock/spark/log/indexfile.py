"""A key-index file of a store, read with numpy: its entries, its hash chains, and what is wrong in them.

header 40 | slots 4 each: number of the newest entry | entries 20 each: hash 4, physical offset 8, seconds 4, previous 4
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from penstock.log.verify import index_shape
from penstock.spark.kernel.buffers import Longs, Records
from penstock.wire import layout
from penstock.wire.record import INDEX_HEAD

INDEX_NAMES = "[0-9]" * 17  # a moment; another file in their folder is somebody else's
INDEX_ENTRY = np.dtype([("hash", ">i4"), ("physical", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])


class IndexFile:
    """An index file, mapped."""

    def __init__(self, path: Path) -> None:
        size = path.stat().st_size
        self.path, self.count, self.slots, self.room = path, 0, 0, 0
        with open(path, "rb") as file:
            head = file.read(INDEX_HEAD.size)
        if len(head) == INDEX_HEAD.size:
            *_, self.used, self.count = INDEX_HEAD.unpack(head)
            self.slots, self.room = index_shape(path, size)
        self.whole = self.slots > 0 and 1 <= self.count <= self.room
        self.entries: Records = np.empty(0, INDEX_ENTRY)
        if self.whole:
            self.entries = np.memmap(path, INDEX_ENTRY, "r", self._entries_at(), self.count)

    def _entries_at(self) -> int:
        return layout.INDEX_HEAD_BYTES + self.slots * layout.INDEX_SLOT_BYTES

    def between(self, low: int, high: int) -> tuple[int, Records]:
        """(number of the first, entries) that point between these."""
        physical = self.entries["physical"]
        first, last = (
            bisect_left(range(1, max(self.count, 1)), bound, key=lambda n: int(physical[n])) + 1
            for bound in (low, high)
        )
        return first, np.array(self.entries[first:last])

    def find(self, hash_: int) -> list[int]:
        """Physical offsets of the entries with this hash, newest first."""
        found = []
        with open(self.path, "rb") as file:
            file.seek(layout.INDEX_HEAD_BYTES + hash_ % self.slots * layout.INDEX_SLOT_BYTES)
            n = int.from_bytes(file.read(4), "big")
        if n >= self.count:  # it came behind the count, in a file at work or a copy of one: its links may not be there
            at = np.flatnonzero(self.entries["hash"][1:] == hash_)[::-1] + 1
            return [int(physical) for physical in self.entries["physical"][at]]
        while 0 < n < self.count:
            if int(self.entries["hash"][n]) == hash_:
                found.append(int(self.entries["physical"][n]))
            previous = int(self.entries["previous"][n])
            n = previous if previous < n else 0  # links lead to older entries only
        return found

    def faults(self, moving: bool = False) -> Iterator[tuple[int, str]]:
        """(entry, why) of what is wrong in the file itself. `moving`: entries may be added meanwhile."""
        if not self.whole:
            yield 0, "its size or its count cannot be right"
            return
        entries = np.array(self.entries)
        physical = entries["physical"].astype(np.int64)[1:]
        for n in np.flatnonzero(np.diff(physical) < 0).tolist():
            yield n + 2, f"entry {n + 2} points before the one before it"
        hashes = entries["hash"].astype(np.int64)[1:]
        if len(hashes) and int(hashes.min()) < 0:
            yield int(np.argmin(hashes)) + 1, "a hash is negative"
            return
        slot = hashes % self.slots
        order = np.argsort(slot, kind="stable")
        same = slot[order][1:] == slot[order][:-1]
        previous = np.zeros(len(slot), np.int64)
        previous[order[1:][same]] = order[:-1][same] + 1
        for n in np.flatnonzero(entries["previous"][1:] != previous).tolist():
            yield n + 1, f"entry {n + 1} links to {int(entries['previous'][n + 1])}, not to {int(previous[n])}"
        wanted = np.zeros(self.slots, np.int64)
        wanted[slot] = np.arange(1, len(slot) + 1)
        heads = self._heads(moving)
        odd = np.flatnonzero(heads != wanted)
        if moving and len(odd):  # one may have been read while it was being written
            heads[odd] = self._heads(moving)[odd]
        for at in np.flatnonzero(heads != wanted).tolist():
            yield int(wanted[at]), f"slot {at} begins with entry {int(heads[at])}, not {int(wanted[at])}"

    def _heads(self, moving: bool) -> Longs:
        """The number that each slot begins with; `moving`: among those that were counted."""
        heads = np.fromfile(self.path, ">i4", self.slots, offset=layout.INDEX_HEAD_BYTES).astype(np.int64)
        if moving:
            self._as_before(heads)
        return heads

    def _as_before(self, heads: Longs) -> None:
        """Take slots that begin with a newer entry than was counted back to the first that was."""
        after = np.memmap(self.path, INDEX_ENTRY, "r", self._entries_at(), self.room)["previous"]
        for at in np.flatnonzero(heads >= self.count).tolist():
            n = int(heads[at])
            while self.count <= n < self.room:
                n = min(int(after[n]), n - 1)
            heads[at] = n
