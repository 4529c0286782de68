"""Upkeep: everything a store does besides appending and reading, as jobs and ticks.

flush       the log and its sums            (durability)
prepare     the next segment, pages ahead   (durability)
checkpoint  what is derived, then the positions that are durable now: data before what vouches for it
reserve     queue offsets ahead of those handed out
mark        the marker by which the next start tells a power cut from a killed process
clean       files that retention lets go
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple, cast

from penstock.disk import tables
from penstock.disk.files import Files, flush_together
from penstock.disk.folderlock import FolderLock
from penstock.disk.job import Job, Take, Takers, run_now
from penstock.disk.segments import Segment
from penstock.errors import DiskFull, NoDescriptor, StoreError
from penstock.faults import Told
from penstock.log import status
from penstock.log.checkpoint import DAMAGED_QUEUES, Checkpoint, CheckpointFile, LivePages
from penstock.log.consumequeue import ConsumeQueue
from penstock.log.durability import Durability, Preparer
from penstock.log.keyindex import IndexFile
from penstock.log.retention import Retention
from penstock.log.state import LogState
from penstock.wire.layout import FILLER_SIZE

log = logging.getLogger("penstock.log")

RESERVE_MAX = 4_000_000
RETRY_MS = 1_000
LOCK_EVERY_MS = 1_000


class FlushFailed(StoreError):
    """Of what a checkpoint was to vouch for."""


class Unflushed(NamedTuple):
    """What was derived and is not on the disk."""

    queues: list[ConsumeQueue]
    segments: list[Segment]
    folders: set[Path]
    index_files: list[IndexFile]

    def _all(self) -> list[Segment | IndexFile]:
        return [*self.segments, *self.index_files]

    def flush(self, files: Files, leave: Callable[[], bool]) -> bool:
        """Make it durable, file by file. False where `leave` said so in between: not all of it is. StoreError."""
        for segment in self.segments:
            segment.unmap()
        for file in self._all():
            if leave():
                return False
            file.datasync()
        for folder in sorted(self.folders, reverse=True):
            files.sync_folder(folder)
        return True

    def flush_together(self, files: Files) -> None:
        """The same; where they are many, by one flush of the file system. It takes along the live page, which must not be flushed
        while anything is appended. StoreError.
        """
        for segment in self.segments:
            segment.unmap()
        if not flush_together(files, [file.path for file in self._all()], self.folders):
            self.flush(files, lambda: False)


class Upkeep:
    """The slow half of one LogStore."""

    def __init__(self, store: LogState) -> None:
        self.store = store
        self.files = store.files
        self.folder = store.folder
        self.checkpoint = CheckpointFile(store.folder / "checkpoint", store.files)
        self.live = LivePages(store.folder, store.files)
        self.lock: FolderLock | None = None
        self.epoch = 0
        self.preparer: Preparer | None = None
        self.retention: Retention | None = None
        self.explicit: dict[tuple[bytes, int], int] = {}
        self.ahead: dict[tuple[bytes, int], int] = {}
        self._takers = Takers()
        self._failure: BaseException | None = None  # of what is no flush, and ended the writing
        self._running: set[str] = set()
        self._closes = False
        self._checkpoint_ms = 0
        self._flushed_state: Checkpoint | None = None
        self._mark_ms = 0
        self._lock_ms = 0  # when to look whether the folder is there
        self._marked_end = 0
        self._retry_ms: dict[str, int] = {}
        self._told = Told()  # of what is tried again
        self._reported: set[int] = set()
        self.damage = DamageFile(store.files, store.folder / "damage.jsonl")
        self.damaged_queues: dict[tuple[bytes, int], int] = {}
        self._ends: dict[str, dict[str, int]] = {}
        self.begins: dict[tuple[bytes, int], int] = {}  # of a copy: see `begin_queues`

    # ---- opening and closing

    def begin(self, end: int) -> None:
        """The log is at end and all of it is durable: start the timers and say on the disk that we are running."""
        store, options = self.store, self.store.options
        self._closes = False
        store.flush_by(Durability(store.log, options.flush_interval_ms, options.flush_window_ms))
        self.preparer = Preparer(store.log, options.prefault_bytes)
        self.retention = Retention(store)
        self._marked_end = end
        store.set_live(self.live.start(end))

    def state(self, *, clean: bool = False) -> Checkpoint:
        """What a checkpoint says when everything up to here is durable."""
        store = self.store
        name, count = store.index.state() if store.index is not None else (0, 0)
        end = store.log.end
        derived = store.underived if store.underived >= 0 else end
        return Checkpoint(0, self.epoch, clean, end, derived, name, count, store.log.store_ms, store.entry_count)

    def hasten(self) -> None:
        """The store is about to be closed: a checkpoint under way, which goes file by file, leaves the rest to `close_clean`."""
        self._closes = True

    def close_clean(self) -> None:
        """Flush all there is; then say that nothing needs to be looked at on the next start."""
        store = self.store
        if not store.healthy:
            return
        mono_ms = store.clock.monotonic_ms()
        flush = store.durability.start(mono_ms)
        run_now([flush], mono_ms)
        if store.durability.error is not None:
            raise StoreError(f"the last flush failed: {store.durability.error}")
        if store.durability.flushed < store.log.end:
            raise StoreError("a file of the log cannot be opened to be flushed")
        if store.underived >= 0:  # the next start derives the rest: it looks as after a kill
            return
        for subscriber in store.subscribers:
            job = subscriber.take_job(self._safe(), store.log.end, 1 << 62)
            if job is not None:
                run_now([job], mono_ms)
        # The live page may reach the disk with them here: the end of the log that it tells is flushed, and nothing is appended.
        self.dirty_derived().flush_together(self.files)
        self.write_offsets(ends=True)
        self.note_damage()
        self.checkpoint.write(self.state(clean=True))
        self.files.unlink(self.folder / "abort")
        self.live.remove()
        self.files.sync_folder(self.folder)

    def release(self) -> None:
        """Let go of the folder."""
        self.checkpoint.close()
        self.live.close()
        if self.lock is not None:
            self.lock.release()
            self.lock = None

    # ---- jobs

    def take_jobs(self, mono_ms: int) -> list[Job]:
        """What is due."""
        return self._takers.take(self._kinds(), mono_ms)

    def _kinds(self) -> Iterator[tuple[str, Take]]:
        store = self.store
        assert self.preparer is not None
        assert self.retention is not None
        if store.healthy:
            yield "flush of the log", self.take_flush
            yield "prepare", self.preparer.take
            yield "reserve", self._take_reserve
            yield "checkpoint", self._take_checkpoint
            yield "mark", self._take_mark
            for subscriber in store.subscribers:
                yield type(subscriber).__name__, partial(subscriber.take_job, self._safe(), store.log.end)
        yield "clean", self.retention.take

    def _safe(self) -> int:
        """Nothing below is ever cut: it is flushed here and, where others copy this log, confirmed. What is derived is
        written down up to here at most, for it cannot go back.
        """
        store = self.store
        flushed, confirmed = store.durability.flushed, store.confirmed
        if store.underived >= 0:
            flushed = min(flushed, store.underived)
        return flushed if confirmed < 0 else min(flushed, confirmed)

    def take_flush(self, mono_ms: int) -> list[Job]:
        """The flush of the log, when it is due."""
        flush = self.store.durability.take(mono_ms) if self.store.healthy else None
        return [] if flush is None else [self._guarded(flush)]

    def tick(self, now_ms: int, mono_ms: int) -> int:
        """Look at the disk and at what is due; returns the monotonic time of the next look."""
        store = self.store
        assert self.retention is not None
        if mono_ms >= self._lock_ms and self.lock is not None and not self.files.given_up:
            self._lock_ms = mono_ms + LOCK_EVERY_MS
            if not (self.lock.is_there() and store.log.file.is_there()):
                self._fail_without_folder()
        self.retention.tick(now_ms, mono_ms)
        self.note_damage()
        store.durability.look(mono_ms)
        return max(mono_ms, min(mono_ms + 1000, store.durability.due_ms()))

    def _fail_without_folder(self) -> None:
        """What is written now goes into files without names: nobody would ever find it. Or it would go to another's."""
        error = StoreError(f"{self.folder}, its file lock or its log's newest file was removed, renamed or replaced")
        self.files.give_up(str(error))
        self.store.durability.fail(error)
        self.store.fail(error)

    def _guarded(self, flush: Job) -> Job:
        state = self.state() if self.store.durability.with_sums else None  # of the position being flushed

        def finish(error: BaseException | None, mono_ms: int) -> None:
            flush.finish(error, mono_ms)
            if error is None:
                if state is not None:
                    self._flushed_state = state
                if self.store.durability.wanted:  # who came meanwhile is not kept waiting for the next millisecond
                    self.store.want_flush()
            elif self.store.durability.error is not None:
                self.store.fail(error)

        return Job(flush.kind, flush.run, finish)

    def _once(
        self, kind: str, run: Callable[[], None], done: Callable[[int], None], again: Callable[[], None] | None = None,
        *, passing: tuple[type[StoreError], ...] = (DiskFull, NoDescriptor),
    ) -> Job:  # fmt: skip
        """A job of which one at a time runs. A `passing` failure is tried again later, any other ends the writing."""
        self._running.add(kind)

        def finish(error: BaseException | None, mono_ms: int) -> None:
            self._running.discard(kind)
            if error is None:
                done(mono_ms)
            elif isinstance(error, passing) and not isinstance(error, FlushFailed):
                self._retry_ms[kind] = mono_ms + RETRY_MS
                if self._told.is_news(kind, mono_ms):
                    log.error("%s is not written now, it is tried again in %d ms error=%s", kind, RETRY_MS, error)
                if again is not None:
                    again()
            else:
                self._failure = error
                self.store.fail(error)

        return Job(kind, run, finish)

    @property
    def trouble(self) -> str:
        """Why nothing is stored any more."""
        return str(self.store.durability.error or self._failure or "the log cannot be written")

    def _may(self, kind: str, mono_ms: int) -> bool:
        return kind not in self._running and self._retry_ms.get(kind, 0) <= mono_ms

    def _take_checkpoint(self, mono_ms: int) -> Job | None:
        store = self.store
        if not self._may("checkpoint", mono_ms) or mono_ms < self._checkpoint_ms:
            return None
        known, value = self.checkpoint.value, self._flushed_state
        if value is None or (known is not None and known.derived >= value.derived):
            return None
        dirty = self.dirty_derived()
        started = time.perf_counter()
        flushed: list[bool] = []

        def run() -> None:
            try:
                whole = dirty.flush(self.files, lambda: self._closes)
            except NoDescriptor:
                raise
            except StoreError as error:  # tried again it would succeed: the kernel forgets what it could not write out
                raise FlushFailed(str(error)) from error
            if whole:
                flushed.append(True)
                self.checkpoint.write(value)  # all of it each time, so that no failure matters once it succeeds

        def done(now_ms: int) -> None:
            again()
            took_ms = int((time.perf_counter() - started) * 1000)
            self._checkpoint_ms = now_ms + max(store.options.checkpoint_interval_ms, 5 * took_ms)

        def again() -> None:
            if flushed:
                return
            for queue in dirty.queues:
                # Its topic may be deleted meanwhile, and before its first file it has no folder that could be flushed.
                if store.queues.get(queue.topic, {}).get(queue.queue_id) is queue and queue.file.segments:
                    queue.flush_again()
                    store.mark_dirty(queue)
            for index_file in dirty.index_files:
                index_file.mark_dirty()

        return self._once("checkpoint", run, done, again, passing=(StoreError,))

    def dirty_derived(self) -> Unflushed:
        """What must reach the disk so that everything derived below the log's end is there."""
        store = self.store
        segments: list[Segment] = []
        folders: set[Path] = set()
        queues = list(store.dirty_queues)
        for queue in queues:
            segments += queue.dirty_segments()
            queue.flushed()
            if queue.take_fresh():
                folder = queue.file.folder
                folders |= {folder, folder.parent, folder.parent.parent, self.folder}
        store.dirty_queues.clear()
        index_files: list[IndexFile] = []
        if store.index is not None:
            for index_file in store.index.index_files:
                if index_file.take_dirty():
                    index_files.append(index_file)
                    folders.add(self.folder / "index")
        return Unflushed(queues, segments, folders, index_files)

    def _take_reserve(self, mono_ms: int) -> Job | None:
        if not self._may("reserve", mono_ms):
            return None
        step = self.store.options.reserve_offsets
        short = self.store.take_short()
        if not short:
            return None
        fresh: list[tuple[ConsumeQueue, int]] = []
        for queue in short:
            key = queue.topic, queue.queue_id
            # a queue that comes back soon is a busy one, and a reservation takes the time of a few flushes
            ahead = self.ahead[key] = min(RESERVE_MAX, 4 * self.ahead.get(key, step * 8))
            reserved = max(queue.max_offset, queue.reserved) + ahead
            self.explicit[queue.topic, queue.queue_id] = reserved
            fresh.append((queue, reserved))
        data = self._offsets(ends=False)

        def done(now_ms: int) -> None:
            for queue, reserved in fresh:
                hidden = queue.max_offset > queue.reserved
                queue.reserve(reserved)
                if hidden:
                    self.store.notice(queue)

        def again() -> None:
            self.store.put_short([queue for queue, _ in fresh])

        path = self.folder / "offsets.json"
        return self._once("reserve", lambda: tables.replace(self.files, path, data), done, again, passing=(StoreError,))

    def _offsets(self, *, ends: bool) -> bytes:
        store = self.store
        if ends:
            self._ends = {
                topic.decode(): {str(n): queue.max_offset for n, queue in by_id.items() if queue.max_offset}
                for topic, by_id in store.queues.items()
            }
        begins = {"begins": _by_topic(self.begins)} if self.begins else {}
        return tables.encode({"reserved": _by_topic(self.explicit), "ends": self._ends} | begins)

    def begin_queues(self, begins: Mapping[tuple[bytes, int], int]) -> int:
        """The log is a copy that began when nothing of these queues was left in it: they go on at these offsets, as at the
        master, and not at the first again. Kept with what is reserved, from the next job of that on; not for queues whose own
        messages lead that far. How many entries stand for what is left out. StoreError.
        """
        store, count = self.store, 0
        for (topic, queue_id), offset in begins.items():
            queue = store.queue(topic, queue_id)
            last = queue.entry(queue.max_offset - 1) if queue.max_offset else None
            if queue.max_offset >= offset and last is not None and last[1] != FILLER_SIZE:
                self.begins.pop((topic, queue_id), None)  # or a tail that is lost and copied anew would be left out
                continue
            self.begins[topic, queue_id] = offset
            if queue.max_offset < offset:
                count += offset - queue.max_offset
                queue.fill_to(offset)
                store.mark_dirty(queue)
                store.put_short([queue])
        return count

    def write_offsets(self, *, ends: bool) -> None:
        """Write `offsets.json` now: with `ends` where each queue ends, and nothing reserved beyond."""
        if ends:
            self.explicit.clear()
        tables.replace(self.files, self.folder / "offsets.json", self._offsets(ends=ends))

    def _take_mark(self, mono_ms: int) -> Job | None:
        store = self.store
        if not self._may("mark", mono_ms) or mono_ms < self._mark_ms or self._marked_end == store.log.end:
            return None
        self._marked_end = store.log.end

        def done(now_ms: int) -> None:
            self._mark_ms = now_ms + 1000
            store.log.settle()
            store.set_live(self.live.turn(store.log.end))

        return self._once("mark", self.live.mark, done)

    # ---- damage

    def note_damage(self) -> None:
        """Write down what reads have come across."""
        store = self.store
        if not store.damaged_entries:
            return
        found = store.take_damaged()
        damaged_queues = dict(self.damaged_queues)
        entries: list[Mapping[str, object]] = []
        for physical, (topic, queue_id, offset) in found.items():
            if self._entry_is_wrong(store.queue(topic, queue_id), offset):
                damaged_queues[topic, queue_id] = offset
            if physical in self._reported:
                continue
            self._reported.add(physical)
            store.count_damage()
            entries.append(
                {
                    "position": physical,
                    "end": physical,
                    "topic": topic.decode(),
                    "queueId": queue_id,
                    "queueOffset": offset,
                }
            )
        if entries:
            first = entries[0]
            log.error(
                "readers came across damaged messages: %d, the first at offset %s of queue %s of topic %s, "
                "position %s of the log; damage.jsonl has them all",
                len(entries), first["queueOffset"], first["queueId"], first["topic"], first["position"],
            )  # fmt: skip
            self.write_damage(*entries)
        if damaged_queues.keys() != self.damaged_queues.keys():
            self.damaged_queues = damaged_queues
            table: dict[str, dict[str, int]] = {}
            for (topic, queue_id), offset in damaged_queues.items():
                table.setdefault(topic.decode(), {})[str(queue_id)] = offset
            try:
                tables.replace(self.files, self.folder / DAMAGED_QUEUES, tables.encode(table))
            except StoreError:
                self.damaged_queues = {}  # tried again with the next reader who comes across it

    def forget_damage(self, position: int) -> None:
        """The record there holds again: report it anew when it does not any more."""
        self._reported.discard(position)

    def _entry_is_wrong(self, queue: ConsumeQueue, offset: int) -> bool:
        """Whether it is the queue that is damaged there, and not the record."""
        log = self.store.log
        entry = queue.entry(offset)
        if entry is None:
            return False
        physical, size, _ = entry
        if physical < 0 or size <= 90:
            return True
        if physical < log.file.first:
            return False
        actual = log.size_at(physical)
        if actual > 0:
            return actual != size
        return physical + size != log.end and log.size_at(physical + size) < 0  # no record ends there

    def write_damage(self, *entries: Mapping[str, object]) -> None:
        """A line each in `damage.jsonl`; a second report of the same place is left out."""
        self.damage.write(self.store.clock.now_ms(), entries)


class DamageFile:
    """`damage.jsonl`. It is read once: a segment that is lost has a line for every message, and readers come across thousands
    of them in a turn.
    """

    def __init__(self, files: Files, path: Path) -> None:
        self._files = files
        self._path = path
        self._noted: set[tuple[int, object]] | None = None  # (position, end) of its lines; None: it is to be read

    def read_again(self) -> None:
        """Somebody else is about to write it."""
        self._noted = None

    def write(self, now_ms: int, entries: Iterable[Mapping[str, object]]) -> None:
        """Add what is not there yet. A disk that does not take it costs the lines: the log and the counter have told."""
        if self._noted is None:
            known = ((line.get("position"), line.get("end"), line) for line in read_damage(self._files, self._path))
            self._noted = {
                (position, end)
                for position, end, line in known
                if isinstance(position, int) and isinstance(end, int | None) and not line.get("repaired")
            }
        lines: dict[tuple[int, object], bytes] = {}
        for entry in entries:
            place = cast(int, entry["position"]), entry.get("end")
            if place not in self._noted:
                lines[place] = json.dumps({"at": now_ms, **entry}).encode() + b"\n"
        if not lines:
            return
        try:
            fd = self._files.open(self._path, create=True)
            try:
                self._files.write(fd, self._files.size(fd), b"".join(lines.values()))
            finally:
                self._files.close(fd)
        except StoreError:
            return
        self._noted.update(lines)


def _by_topic(offsets: Mapping[tuple[bytes, int], int]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for (topic, queue_id), offset in offsets.items():
        found.setdefault(topic.decode(), {})[str(queue_id)] = offset
    return found


def read_damage(files: Files, path: Path) -> list[dict[str, object]]:
    """The lines of a damage file that can be read."""
    if not path.is_file():
        return []
    found = []
    for line in path.read_bytes().splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            found.append(value)
    return found


__all__ = ["Upkeep", "read_damage", "status"]
