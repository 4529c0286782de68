"""The driver's part of an audit: what the tasks found is put together and compared across the pieces of the log."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

import numpy as np

from penstock.spark.kernel.buffers import Longs
from penstock.spark.log import derive
from penstock.spark.log.files import LogSegment
from penstock.spark.log.indexfile import INDEX_NAMES, IndexFile
from penstock.spark.log.queuefile import entries_of
from penstock.spark.pipelines.findings import FINDINGS_MAX, AuditResult, MessageFinding, PieceAudit
from penstock.wire import layout


class Judge:
    """Puts the parts together."""

    def __init__(
        self,
        folder: Path,
        segments: list[LogSegment],
        parts: list[PieceAudit],
        result: AuditResult,
        durable: int | None,
        moving: bool,
    ) -> None:
        self.folder, self.result, self.durable, self.moving = folder, result, durable, moving
        self.end = segments[-1].base + segments[-1].end
        self.usual = max(segment.size for segment in segments)
        self.first = max([part.base + self.usual for part in parts if part.dropped], default=segments[0].base)
        self.segments = [segment for segment in segments if segment.base >= self.first]
        self.parts = [part for part in parts if part.base >= self.first]
        self.last = segments[-1].path
        self.findings: list[MessageFinding] = []
        self.holes: list[tuple[int, int]] = []  # bytes of the log that are known to be lost
        self.gone: dict[tuple[str, int], set[int]] = {}

    def run(self) -> None:
        result = self.result
        if len(self.segments) < result.segments:
            why = f"{result.segments - len(self.segments)} segments were dropped while this ran"
            self.findings.append(MessageFinding("note", "", why, end=self.first))
            result.keep_segments(len(self.segments))
        for part in self.parts:
            result.take(part)
            self.findings += part.findings
        for segment in self.segments:
            counts = [part.segments.get(segment.base, [0, 0]) for part in self.parts]
            result.per_segment.append([segment.base, *(sum(c[i] for c in counts) for i in (0, 1))])
        self._segments()
        self.holes += [(one.position, one.end) for one in self.findings if one.level == "damage"]
        self._queues()
        self._index()
        order = {"damage": 0, "derived": 1, "note": 2}
        self.findings.sort(key=lambda one: (order[one.level], one.position, one.topic, one.queue, one.offset))
        result.tell(self.findings)

    def _segments(self) -> None:
        usual = self.usual
        for before, after in pairwise(self.segments):
            end = before.base + usual
            if before.size < usual:
                self._lost("the segment is cut short", before.path, before.base + before.size, min(end, after.base))
            if after.base > end:
                self._lost("a segment is missing", before.path, end, after.base)
            elif after.base < end:
                self._lost("the segment begins inside the one before it", after.path, after.base, end)
        if self.durable is not None and self.durable > self.end:
            self._lost("the log ends before its durable position", self.last, self.end, self.durable)

    def _lost(self, why: str, path: str, position: int, end: int) -> None:
        self.findings.append(MessageFinding("damage", path, why, position=position, end=end))

    # queues

    def _queues(self) -> None:
        base = self.folder / "consumequeue"
        there = {
            (topic.name, int(name))
            for topic in (base.iterdir() if base.is_dir() else ())
            for name in _names(topic)
            if name.isdigit()
        }
        stretches: dict[tuple[str, int], list[list[int]]] = {}
        for part in self.parts:
            for key, found in part.stretches.items():
                stretches.setdefault(key, []).extend(found)
        count = 0
        for key in sorted(there | stretches.keys()):
            topic, number = key
            offsets, physical, sizes, fillers = self._entries(base / topic / str(number))
            count += len(offsets)
            self._follow(
                key, stretches.get(key, []), dict(zip(offsets.tolist(), physical.tolist(), strict=True)), fillers
            )
            self._lead(key, stretches.get(key, []), offsets, physical, sizes)
        self.result.count_queues(len(there | stretches.keys()), count)

    def _entries(self, folder: Path) -> tuple[Longs, Longs, Longs, set[int]]:
        """(offsets, physical offsets, sizes) of the entries that should lead to a record, and the offsets given up."""
        found, fillers = [np.empty((0, 3), np.int64)], set()
        for first, path in derive.segment_files(str(folder)):
            held = entries_of(Path(path))
            size, physical = held["size"].astype(np.int64), held["physical"].astype(np.int64)
            offsets = first // layout.ENTRY_BYTES + np.arange(len(held))
            given_up = (size == layout.FILLER_SIZE) & (physical == 0)
            fillers.update(offsets[given_up].tolist())
            real = ((size != 0) | (physical != 0)) & ~given_up
            found.append(np.stack([offsets[real], physical[real], size[real]], 1))
        every = np.concatenate(found)
        return every[:, 0], every[:, 1], every[:, 2], fillers

    def _follow(
        self, key: tuple[str, int], stretches: list[list[int]], entries: dict[int, int], fillers: set[int]
    ) -> None:
        """Gaps and doubles in a queue's offsets, in the order of the log."""
        topic, queue = key
        covered: list[list[int]] = []
        expected = None
        for first, last, physical in stretches:
            if expected is None or first == expected:
                pass
            elif first > expected:
                lost = [
                    offset for offset in range(expected, min(first, expected + FINDINGS_MAX)) if offset not in fillers
                ]
                why = f"offsets {expected} to {first - 1} are missing"
                if lost:
                    self.findings.append(
                        MessageFinding(
                            "damage", "", why, topic=topic, queue=queue, offset=lost[0], position=physical, end=physical
                        )
                    )
                else:
                    self.findings.append(
                        MessageFinding(
                            "note", "", why + ": the broker gave them up", topic=topic, queue=queue, offset=expected
                        )
                    )
            elif first == 0 and entries.get(0) == physical:
                self.findings.append(
                    MessageFinding(
                        "note",
                        "",
                        "the topic was deleted and created again",
                        topic=topic,
                        queue=queue,
                        offset=0,
                        position=physical,
                        end=physical,
                    )
                )
                covered, expected = [], None
            else:
                again = (
                    f"offset {first} again" if last == first else f"offsets {first} to {min(last, expected - 1)} again"
                )
                self.findings.append(
                    MessageFinding(
                        "damage", "", again, topic=topic, queue=queue, offset=first, position=physical, end=physical
                    )
                )
            covered.append([first, last])
            expected = max(last + 1, expected or 0)

    def _lead(
        self, key: tuple[str, int], stretches: list[list[int]], offsets: Longs, physical: Longs, sizes: Longs
    ) -> None:
        """Entries that lead to no record of the queue."""
        topic, queue = key
        known = np.zeros(len(offsets), bool)
        for first, last, _ in stretches:
            known[np.searchsorted(offsets, first) : np.searchsorted(offsets, last, "right")] = True
        orphans = ~known & (physical >= self.first)
        if self.moving:
            orphans &= physical < self.end
        if self.moving and orphans.any():  # an entry may have been read while it was written
            again, places, *_ = self._entries(self.folder / "consumequeue" / topic / str(queue))
            now = dict(zip(again.tolist(), places.tolist(), strict=True))
            orphans &= [now.get(n) == at for n, at in zip(offsets.tolist(), physical.tolist(), strict=True)]
        for i in np.flatnonzero(orphans).tolist():
            at = int(physical[i])
            if any(begin <= at < end for begin, end in self.holes):
                level, why = "damage", "the message is lost: its bytes are damaged or gone"
            else:
                level, why = "derived", "the consume-queue entry leads to no record of this queue and offset"
            where = f"consumequeue/{topic}/{queue}"
            self.findings.append(
                MessageFinding(
                    level,
                    where,
                    why,
                    topic=topic,
                    queue=queue,
                    offset=int(offsets[i]),
                    position=at,
                    end=at + int(sizes[i]),
                )
            )

    def _index(self) -> None:
        paths = sorted((self.folder / "index").glob(INDEX_NAMES))
        for path in paths:
            try:
                index = IndexFile(path)
                faults = list(index.faults(self.moving))
            except FileNotFoundError:  # dropped since
                continue
            if self.moving and path == paths[-1] and index.count == 0:  # being made
                continue
            for n, why in faults:
                at = int(index.entries["physical"][n]) if index.whole and 0 < n < index.count else -1
                self.findings.append(MessageFinding("derived", str(path), why, position=at, end=at))
            beyond = np.asarray(index.entries["physical"][1:], np.int64) >= self.end
            for n in [] if self.moving else np.flatnonzero(beyond).tolist():
                at = int(index.entries["physical"][n + 1])
                self.findings.append(
                    MessageFinding(
                        "derived", str(path), f"index entry {n + 1} points beyond the log", position=at, end=at
                    )
                )


def _names(folder: Path) -> list[str]:
    """What is in a folder; nothing in one that was dropped since it was listed."""
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
