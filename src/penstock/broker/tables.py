"""The tables of a broker's `config` folder: topics and groups when they change, offsets every five seconds.

Topics and groups go to disk before anybody is told that they changed; all changes of a turn are one write into the file of
changes beside their table, which is written whole when that is long, when nothing has changed there for ten seconds, and at
a clean stop. Offsets go
behind a flush of the log: a group that gave a message back has committed an offset behind it, and the copy must be on
the disk first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Generic, TypeVar

from penstock.broker import shapes
from penstock.broker.core import Core
from penstock.broker.leveloffsets import LevelOffsets
from penstock.disk.changes import Change, ChangedTable, noted
from penstock.disk.job import Job
from penstock.disk.tables import encode, save
from penstock.errors import DiskFull, StoreError
from penstock.faults import Told

log = logging.getLogger("penstock.broker")

Row = Mapping[str, object]
Name = TypeVar("Name")

OFFSETS_EVERY_MS = 5_000
RETRY_MS = 1_000
QUIET_MS = 10_000


class _Kept(Generic[Name]):
    """One table of rows with names. `whole` is what its file holds; `row` what is noted beside it of a row that changed."""

    def __init__(self, core: Core, name: str, whole: Callable[[], Row], row: Callable[[Name], Row]) -> None:
        self._core = core
        self._whole_table = whole
        self._row = row
        self._path = core.folder / "config" / name
        self._file = ChangedTable(core.files, core.folder, self._path)
        self._whole = False  # the table is to be written whole
        self._changed: dict[Name, None] = {}  # names that the file of changes must have
        self._changed_ms = 0

    def noted(self, table: Row) -> list[Change]:
        """What was noted behind the table that was read."""
        return noted(self._core.files, self._path, table)

    def note(self, name: Name) -> None:
        """The row of this name changed."""
        self._changed[name] = None
        self._changed_ms = self._core.time.mono_ms

    @property
    def waits(self) -> bool:
        """Whether there is something to be written."""
        return self._whole or bool(self._changed)

    @property
    def quiet(self) -> bool:
        """Whether nothing has changed for long enough that the table may take what is noted beside it."""
        return bool(self._file.lines) and self._core.time.mono_ms >= self._changed_ms + QUIET_MS

    def want_whole(self) -> None:
        """It is written whole the next time."""
        self._whole = True

    def write(self) -> None:
        """What changed goes to disk. StoreError: it is to be written whole, before anything else."""
        if self._whole or (self._changed and not self._file.ready):
            self._whole = True  # until it is done
            self._file.replace(encode(self._whole_table()))
            self._whole = False
        elif self._changed:
            self._whole = True  # a change that was refused must not stay there
            self._file.add([self._row(name) for name in self._changed])
            self._whole = self._file.full
        self._changed.clear()

    def close(self) -> None:
        """A clean stop: the table has it all, and the file of changes goes."""
        self._whole = self._whole or bool(self._file.lines or self._changed)
        self.write()
        self._file.remove()

    def release(self) -> None:
        """Let go of the file, as it is."""
        self._file.release()


class Tables:
    """See the module."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._folder = core.folder / "config"
        self._topics = _Kept(core, "topics.json", core.topics.as_file, core.topics.as_change)
        self._groups = _Kept(core, "subscriptionGroup.json", core.groups.as_table, core.groups.as_change)
        self._kept: tuple[_Kept[bytes], _Kept[str]] = (self._topics, self._groups)
        self._retry_ms = 0
        self._when_saved: list[Callable[[StoreError | None], None]] = []
        self._offsets_due_ms = 0
        self._offsets_waiting: list[Callable[[], None]] = []
        self._offsets_end = 0
        self._told = Told()
        self._levels = LevelOffsets(core)
        self.level_offsets = self._levels.table
        self.restless = True  # `save_changed` has something to do

    # -- opening -------------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Read every table that is there; a damaged one is quarantined, and its former version read."""
        core = self._core
        table = partial(shapes.open_table, core.files, core.folder)
        topics = table("topics.json", shapes.topics, "topics are made of the queues that hold messages")
        core.topics.load(topics)
        for change in self._topics.noted(topics):
            core.topics.load_change(change)
        groups = table("subscriptionGroup.json", shapes.groups, "groups are made again when they are used")
        core.groups.load(groups)
        for change in self._groups.noted(groups):
            core.groups.load_change(change)
        again = "every group begins where it says (ConsumeFromWhere); `penstock group reset` sets another place"
        core.offsets.load(table("consumerOffset.json", shapes.offsets, again))
        table("delayOffset.json", shapes.delays, "it is written again")

    def begin(self) -> None:
        """The topics are whole: clamp the offsets, write what changed, and from now on hear of changes."""
        core = self._core
        self._clamp_offsets()
        core.topics.changed.append(partial(self._changed, self._topics))
        core.groups.changed.append(partial(self._changed, self._groups))
        for kept in self._kept:
            kept.want_whole()
        self.restless = True
        try:
            self.save_changed()
        except DiskFull as error:
            log.error("tables not written, tried again every second error=%s", error)
        self._offsets_due_ms = core.time.mono_ms + OFFSETS_EVERY_MS

    def _clamp_offsets(self) -> None:
        """An offset above the log's end becomes the end."""
        core = self._core
        for (topic, _group), queues in core.offsets.table.items():
            config = core.topics.get(topic.encode())
            for queue_id, offset in queues.items():
                if config is not None and queue_id < config.queue_count:
                    queues[queue_id] = min(offset, core.store.queue(topic.encode(), queue_id).max_offset)

    def _changed(self, kept: _Kept[Name], name: Name) -> None:
        kept.note(name)
        self.restless = True

    # -- topics and groups ---------------------------------------------------------------------------------------

    def save_changed(self) -> None:
        """`write` for what nobody asked for by name, at the end of each turn; after a failure once a second."""
        core = self._core
        waiting, self._when_saved = self._when_saved, []
        if any(kept.waits for kept in self._kept) and (waiting or core.time.mono_ms >= self._retry_ms):
            try:
                self.write()
            except StoreError as error:
                self._retry_ms = core.time.mono_ms + RETRY_MS
                for call in waiting:
                    call(error)
                raise
        for call in waiting:
            call(None)
        self.restless = bool(self._when_saved) or any(kept.waits for kept in self._kept)

    def tick(self) -> None:
        """What a file of changes says goes into its table once nothing has changed for ten seconds: at the end of this turn."""
        for kept in self._kept:
            if kept.quiet:
                kept.want_whole()
                self.restless = True

    def when_saved(self, call: Callable[[StoreError | None], None]) -> None:
        """At the end of this turn, when the tables are on disk: `call(None)`; or `call(error)`, and what was changed is to
        be taken back.
        """
        self._when_saved.append(call)
        self.restless = True

    def write(self) -> None:
        """Topics and groups that changed go to disk, before anybody is told that they did. StoreError."""
        for kept in self._kept:
            kept.write()

    # -- offsets -------------------------------------------------------------------------------------------------

    def take_offset_jobs(self) -> Iterator[Job]:
        """Offsets every 5 s, but not before all is flushed that the log held when they were looked at."""
        core = self._core
        if core.time.mono_ms >= self._offsets_due_ms:
            self._offsets_due_ms = core.time.mono_ms + OFFSETS_EVERY_MS
            if not self._offsets_waiting:
                self._offsets_waiting, self._offsets_end = self._offset_writes(), core.store.end_position
        if self._offsets_waiting and core.store.flushed_position >= self._offsets_end:
            writes, self._offsets_waiting = self._offsets_waiting, []
            yield self._write_offsets(writes)
        self._levels.step()

    def _write_offsets(self, writes: list[Callable[[], None]]) -> Job:
        core = self._core

        def run() -> None:
            for write in writes:
                write()

        def finish(error: BaseException | None, mono_ms: int) -> None:
            if isinstance(error, StoreError):
                # The old file stays, and the next round tries again, though nobody commits any more.
                core.offsets.changed()
                if self._told.is_news("offsets", mono_ms):
                    log.error("committed offsets not written, tried again in %d ms error=%s", OFFSETS_EVERY_MS, error)
            elif error is not None:
                raise error
            else:
                self._told.over()

        return Job("save", run, finish)

    def close(self) -> None:
        """A clean stop: everything goes to disk, the log is flushed already."""
        core = self._core
        core.offsets.changed()
        for kept in self._kept:
            kept.close()
        for write in self._offset_writes() if core.store.healthy else ():
            write()

    def release(self) -> None:
        """Let go of the files, as they are."""
        for kept in self._kept:
            kept.release()

    def _offset_writes(self) -> list[Callable[[], None]]:
        core = self._core
        if not core.offsets.dirty:
            return []
        save_to = partial(save, core.files)
        writes: list[Callable[[], None]] = [
            partial(save_to, self._folder / "consumerOffset.json", core.offsets.as_table())
        ]
        try:
            levels = self._levels.table()
        except StoreError as error:
            log.error("how far the delay levels are delivered is not written now error=%s", error)
            levels = None
        if levels is not None:  # else what was written last is not too far
            writes.append(partial(save_to, self._folder / "delayOffset.json", {"offsetTable": levels}))
        core.offsets.saved()
        return writes
