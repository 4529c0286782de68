"""The group flush: one for all ready queues and cursors that changed, in a worker thread, and for all who wait for it.

Flushes have numbers. An answer that must be durable waits for the number of the next one (`Ticket`); that is done when
the queue files are flushed, and the log up to where it ended when the flush began, because messages are deferred there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import cython

from penstock.broker.core import Core
from penstock.broker.levels import LEVEL_DISK, LEVEL_MEMORY, LEVEL_OS
from penstock.broker.nsq.folder import QueueFolder
from penstock.broker.nsq.moving import Moving
from penstock.broker.nsq.sources import lanes
from penstock.delivery.waiters import Outcome, Positions
from penstock.disk.cursorfile import CursorFile
from penstock.disk.files import TOGETHER_MIN, Files
from penstock.disk.job import REST_MS, Job, Take, Takers, run_now
from penstock.disk.readysegment import ReadySegment
from penstock.errors import NoDescriptor, StoreError
from penstock.faults import Told

if cython.compiled:
    from cython.cimports.penstock import words
    from cython.cimports.penstock.broker.nsq.topics import Topic
else:
    from penstock import words
    from penstock.broker.nsq.topics import Topic

log = logging.getLogger("penstock.queueing")


def _unless_gone(path: Path, flush: Callable[[], None]) -> None:
    """Flush what may be deleted at any moment."""
    try:
        flush()
    except StoreError:
        if path.exists():
            raise


def _datasync(files: Files, path: Path) -> None:
    fd = files.open(path)
    try:
        files.datasync(fd)
    finally:
        files.close(fd)


class Ticket:
    """An answer that waits for a flush."""

    def __init__(self, number: int, flush: GroupFlush) -> None:
        self.number = number
        self._flush = flush

    def then(self, call: Callable[[bool], None]) -> None:
        """`call(True)` once it is flushed, `call(False)` when the flush failed."""
        self._flush.wait(self.number, call)


class _Work:
    """What one flush takes: found on the loop, flushed in a thread."""

    def __init__(self) -> None:
        self.segments: list[ReadySegment] = []
        self.cursors: list[tuple[CursorFile, int]] = []  # with what is committed there
        self.files: list[Path] = []  # what vouches for them: first
        self.folders: set[Path] = set()
        self.totals: list[tuple[Topic, int]] = []

    def take(self, topic: Topic, folder: QueueFolder) -> None:
        """All that a topic has written."""
        for stream in topic.streams():
            if stream.unflushed and not (topic.level == LEVEL_OS and topic.idle()):
                self.segments += stream.take_flush()
                self.totals.append((topic, stream.total))
                if stream.take_renamed():
                    self.folders |= {stream.folder.parent, *folder.above(stream.folder)}
        for channel in topic.channels.values():
            for lane in lanes(channel):
                file = lane.file
                if file.dirty:
                    self.cursors.append((file, file.committed))
                    if file.take_flush():
                        self.folders |= folder.above(file.path.parent)

    def run(self, folder: QueueFolder) -> None:
        """Flush all of it. StoreError."""
        others = [*self.files, *(cursor.path for cursor, _ in self.cursors)]
        many = max(len(self.segments), len(others)) >= TOGETHER_MIN
        if many and folder.flush_all(self.segments, others, self.folders):
            return
        for path in self.files:
            _unless_gone(path, partial(_datasync, folder.files, path))
        for segment in self.segments:
            segment.datasync()
        for cursor, _ in self.cursors:
            _unless_gone(cursor.path, cursor.datasync)
        for path in sorted(self.folders, reverse=True):
            _unless_gone(path, partial(folder.files.sync_folder, path))

    def done(self) -> None:
        """All of it is durable. Every topic is told; what one of them raises comes behind that."""
        for cursor, ordinal in self.cursors:
            cursor.flushed(ordinal)
        raised: list[Exception] = []
        for topic, total in self.totals:
            try:
                topic.flushed(total)
            except Exception as error:
                raised.append(error)
        if raised:
            raise raised[0]


class GroupFlush:
    """See the module. Every method on the broker's thread."""

    def __init__(self, core: Core, folder: QueueFolder, moving: Moving) -> None:
        self._time = core.time
        self._store = core.store
        self._folder = folder
        self._moving = moving
        self.healthy = True
        self.error = ""
        self.wanted = False
        self.done = 0  # every flush up to this number succeeded
        self.dirty_since = -1  # when the oldest byte came that no finished flush has taken
        self._dirty: dict[Topic, None] = {}
        self._files: list[Path] = []
        self._folders: set[Path] = set()
        self._takers = Takers()
        self._retry_ms = 0  # something could not be taken up, or opened: no flush begins before this moment
        self._left: _Work | None = None  # what a flush has left to the next one
        self._told = Told()
        self._running = False
        self._started = 0  # number of the last flush that was begun
        self._log: tuple[int, int] | None = None  # a flush that still waits for the log: (number, position)
        self.waiting = Positions()  # answers, by the number of the flush they wait for

    # -- what is dirty, and who waits ----------------------------------------------------------------------------

    def note(self, topic: Topic) -> None:
        """The topic has written something, perhaps."""
        if topic not in self._dirty:
            self._dirty[topic] = None
            if self.dirty_since < 0:
                self.dirty_since = self._time.mono_ms
        topic.trim()

    def note_file(self, path: Path, topic: Topic) -> None:
        """The file says something of the topic that is to be durable with its messages. It may be replaced durably meanwhile."""
        if path not in self._files:
            self._files.append(path)
        self.note(topic)

    def note_removed(self, path: Path) -> None:
        """A file of a channel is gone: after the next flush no power cut brings it back, to be the place of another channel."""
        self._folders |= self._folder.above(path.parent)
        if self.dirty_since < 0:
            self.dirty_since = self._time.mono_ms

    def forget(self, topic: Topic) -> None:
        """The topic is deleted."""
        self._dirty.pop(topic, None)

    def want(self, topic: Topic) -> int:
        """Somebody waits: flush as soon as can be. The number of the flush that covers everything so far."""
        self.wanted = True
        self.note(topic)
        self._store.want_flush()
        return self._started + 1

    def next(self, topic: Topic) -> int:
        """The number of the flush that takes what the topic has now; 0 when it is gone."""
        if not topic.open:
            return 0
        self.note(topic)
        return self._started + 1

    def ticket(self, topic: Topic) -> Ticket | None:
        """What the answer to a publish must wait for."""
        if topic.level == LEVEL_DISK or (topic.level == LEVEL_OS and self.blocked()):
            return Ticket(self.want(topic), self)
        return None

    def blocked(self) -> bool:
        """Whether something acknowledged has been unflushed for longer than level `os` allows."""
        if 0 <= self.dirty_since < self._time.mono_ms - words.FLUSH_WINDOW_MS:
            return True
        return self._store.blocked(self._time.mono_ms)  # deferred messages are the log's

    def wait(self, number: int, call: Callable[[bool], None], owner: object = None) -> None:
        """`call` when flush `number` is done, or has failed."""
        if not self.healthy:
            call(False)
        elif number <= self.done:
            call(True)
        else:
            self.waiting.wait(number, owner or self, lambda outcome: call(outcome == Outcome.REACHED))

    # -- flushing ------------------------------------------------------------------------------------------------

    def due_ms(self) -> int:
        """When the next flush must begin; far away when nothing is to be flushed."""
        if self._running or not self.healthy or self._log is not None:
            return words.FAR_MS
        if self.wanted:
            return self._retry_ms
        return words.FAR_MS if self.dirty_since < 0 else max(self._retry_ms, self.dirty_since + words.FLUSH_INTERVAL_MS)

    def take_jobs(self) -> list[Job]:
        """The flush that is due, those of disk queues, and files to be removed."""
        pool = self._folder.pool
        # A flush may still be at work on what was let go of since it began: its files stay open until it is done.
        gone = [] if self._running or self._left is not None else pool.take_gone()
        kinds: list[tuple[str, Take]] = [("disk queues", partial(self._folder.take_jobs, self.fail))]
        if self.due_ms() <= self._time.mono_ms:
            kinds.append(("flush", self._begin))
        jobs = self._takers.take(kinds, self._time.mono_ms)
        if gone:
            jobs.append(Job("clean", lambda: pool.remove(gone)))
        return jobs

    def _begin(self, mono_ms: int) -> Iterator[Job]:
        """The flush that is due. What a topic raises comes behind it: the others are flushed, and whoever waits is told that it
        was none, for it does not cover all; the next one does.
        """
        work, self._left = self._left or _Work(), None
        left: dict[Topic, None] = {}
        raised: list[Exception] = []
        for topic in self._dirty:
            try:
                work.take(topic, self._folder)
            except Exception as error:
                left[topic] = None
                raised.append(error)
        self._dirty = left
        yield self._job(work, whole=not raised)
        if raised:
            self._retry_ms = mono_ms + REST_MS
            self.waiting.fail()
            raise raised[0]

    def _job(self, work: _Work, *, whole: bool = True) -> Job:
        work.files += self._files
        work.folders |= self._folders
        self._files, self._folders = [], set()
        began_ms = self._time.mono_ms
        self.wanted = False
        self._running = True
        self._started += 1
        number, position = self._started, self._store.end_position

        def finish(error: BaseException | None, mono_ms: int) -> None:
            self._running = False
            if isinstance(error, NoDescriptor):  # a file was not even opened, and no page is taken for a flushed one
                self._left, self._retry_ms = work, mono_ms + REST_MS
                if self._told.is_news("", mono_ms):
                    log.error("the flush waits, and who waits for it, for a file cannot be opened error=%s", error)
                return
            if error is not None:
                self.fail(error)
                return
            self._told.over()
            if whole:
                self.dirty_since = began_ms if self._dirty else -1
                self._log = (number, position)
            try:
                work.done()
            finally:
                self.finish()

        return Job("flush", lambda: work.run(self._folder), finish)

    def finish(self) -> None:
        """When the queue files are durable; so must be what was deferred through the log meanwhile."""
        if not self.healthy:
            self.waiting.fail()  # who began to wait after the failure
        if self._log is None:
            return
        number, position = self._log
        store = self._store
        if not store.healthy:
            self.fail(store.durability.error or StoreError(store.upkeep.trouble))
            return
        if store.flushed_position < position:  # sessions wait for the number alone: nobody need be in `waiting`
            store.want_flush()
            return
        self._log = None
        self.done = number
        try:
            self._moving.settle(self)
        finally:
            self.waiting.settle(number)

    def flush_again(self, topics: list[Topic]) -> None:
        """The former process was killed: what it wrote is with the kernel, and is flushed before anything is answered."""
        for topic in topics:
            if topic.level == LEVEL_MEMORY:
                continue
            for channel in topic.channels.values():
                for lane in lanes(channel):
                    lane.file.flush_again()
            self.note(topic)
        self._moving.settle(self)
        if self._dirty:
            run_now(self._begin(self._time.mono_ms), self._time.mono_ms)

    def flush_last(self, topics: list[Topic]) -> None:
        """A clean stop: flush everything here and now."""
        for topic in topics:
            if topic.level != LEVEL_MEMORY:
                self.note(topic)
        run_now(self._begin(self._time.mono_ms), self._time.mono_ms)
        if self._left is not None:
            raise StoreError("a file cannot be opened to be flushed")
        self.done = max(self.done, self._started if self.healthy else 0)
        self._moving.settle(self, len(self._moving))

    def fail(self, error: BaseException) -> None:
        """A flush failed: nothing is acknowledged any more (rule W5)."""
        self.healthy = False
        self.error = str(error)
        self._log = None
        log.error("flush failed, no publish is accepted until a restart error=%s", error)
        self.waiting.fail()
