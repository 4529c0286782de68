"""The tables of a broker's `config` folder: topics and groups when they change, offsets every five seconds.

Topics and groups go to disk before anybody is told that they changed; all changes of a turn are one write: of topics into the
file of changes beside their table, which is written whole when that is long, when no topic has changed for ten seconds,
and at a clean stop. Offsets go
behind a flush of the log: a group that gave a message back has committed an offset behind it, and the copy must be on
the disk first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial

from penstock.broker import shapes
from penstock.broker.core import Core
from penstock.broker.leveloffsets import LevelOffsets
from penstock.disk.changes import ChangedTable, noted
from penstock.disk.job import Job
from penstock.disk.tables import encode, save
from penstock.errors import DiskFull, StoreError

log = logging.getLogger("penstock.broker")

OFFSETS_EVERY_MS = 5_000
RETRY_MS = 1_000
QUIET_MS = 10_000


class Tables:
    """See the module."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._folder = core.folder / "config"
        self._file = ChangedTable(core.files, core.folder, self._folder / "topics.json")
        self._whole = False  # topics.json is to be written whole
        self._changed: dict[bytes, None] = {}  # topics that the file of changes must name
        self._changed_ms = 0
        self._retry_ms = 0
        self._when_saved: list[Callable[[StoreError | None], None]] = []
        self._offsets_due_ms = 0
        self._offsets_waiting: list[Callable[[], None]] = []
        self._offsets_end = 0
        self._levels = LevelOffsets(core)
        self.level_offsets = self._levels.table
        self.restless = True  # `save_changed` has something to do for topics

    # -- opening -------------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Read every table that is there; a damaged one is quarantined, and its former version read."""
        core = self._core
        table = partial(shapes.open_table, core.files, core.folder)
        topics = table("topics.json", shapes.topics, "topics are made of the queues that hold messages")
        core.topics.load(topics)
        for change in noted(core.files, self._folder / "topics.json", topics):
            core.topics.load_change(change)
        core.groups.load(table("subscriptionGroup.json", shapes.groups, "groups are made again when they are used"))
        again = "every group begins where it says (ConsumeFromWhere); `penstock group reset` sets another place"
        core.offsets.load(table("consumerOffset.json", shapes.offsets, again))
        table("delayOffset.json", shapes.delays, "it is written again")

    def begin(self) -> None:
        """The topics are whole: clamp the offsets, write what changed, and from now on hear of changes."""
        core = self._core
        self._clamp_offsets()
        core.topics.changed.append(self._topic_changed)
        self._whole = self.restless = True
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

    def _topic_changed(self, name: bytes) -> None:
        self._changed[name] = None
        self._changed_ms = self._core.time.mono_ms
        self.restless = True

    # -- topics and groups ---------------------------------------------------------------------------------------

    def save_changed(self) -> None:
        """`write` for what nobody asked for by name, at the end of each turn; after a failure once a second."""
        core = self._core
        waiting, self._when_saved = self._when_saved, []
        if (self._whole or self._changed or core.groups.dirty) and (waiting or core.time.mono_ms >= self._retry_ms):
            try:
                self.write()
            except StoreError as error:
                self._retry_ms = core.time.mono_ms + RETRY_MS
                for call in waiting:
                    call(error)
                raise
        for call in waiting:
            call(None)
        self.restless = bool(self._whole or self._changed or self._when_saved)

    def tick(self) -> None:
        """What the file of changes says goes into the table once nothing has changed for ten seconds: at the end of this turn."""
        if self._file.lines and self._core.time.mono_ms >= self._changed_ms + QUIET_MS:
            self._whole = self.restless = True

    def when_saved(self, call: Callable[[StoreError | None], None]) -> None:
        """At the end of this turn, when the tables are on disk: `call(None)`; or `call(error)`, and what was changed is to
        be taken back.
        """
        self._when_saved.append(call)
        self.restless = True

    def write(self) -> None:
        """Topics and groups that changed go to disk, before anybody is told that they did. StoreError."""
        core = self._core
        if self._whole or (self._changed and not self._file.ready):
            self._whole = True  # until it is done
            self._file.replace(encode(core.topics.as_file()))
            self._whole = False
            self._changed.clear()
        elif self._changed:
            self._whole = True  # a change that was refused must not stay there
            self._file.add([core.topics.as_change(name) for name in self._changed])
            self._whole = self._file.full
            self._changed.clear()
        if core.groups.dirty:
            save(core.files, self._folder / "subscriptionGroup.json", core.groups.as_table())
            core.groups.saved()

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
                log.error("committed offsets not written, tried again in %d ms error=%s", OFFSETS_EVERY_MS, error)
            elif error is not None:
                raise error

        return Job("save", run, finish)

    def close(self) -> None:
        """A clean stop: everything goes to disk, the log is flushed already."""
        core = self._core
        core.offsets.changed()
        self._whole = self._whole or bool(self._file.lines or self._changed)  # the file of changes goes
        self.write()
        self._file.remove()
        for write in self._offset_writes() if core.store.healthy else ():
            write()

    def release(self) -> None:
        """Let go of the files, as they are."""
        self._file.release()

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
