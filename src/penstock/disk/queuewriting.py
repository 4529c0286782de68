"""Where a disk queue is written: its last data file with the sums (`WriteFile`), and what is not durable yet (`Syncing`).

A sync flushes what was put, the sums first, then writes the meta file: every `sync_every` operations, and `sync_timeout_ms`
after the first one that is not flushed. Where the owner has threads (`beside`), one of them does that (`take_job`), so
that nobody else of the broker waits for it. A lock keeps it from what closes the files or writes the meta file meanwhile.
"""

from __future__ import annotations

import logging
import threading
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from penstock.disk import queuefiles
from penstock.disk.files import Files
from penstock.disk.job import Job
from penstock.disk.quarantine import make_way, take_back
from penstock.disk.queuefiles import SUMS_HEAD, Paths, Place, RecordFile, Sums
from penstock.errors import StoreError
from penstock.faults import Told

log = logging.getLogger("penstock.disk")

FLUSHES_BEHIND = 40  # so many times `sync_every` operations may wait for the thread that flushes
PACE_MS = 25  # between two flushes of a thread: what makes files durable costs the same for few messages as for many

Places = tuple[int, Place, Place]  # depth, read position, write position: what the meta file says


class WriteFile:
    """The data file that is written, with its sums: open together, or not at all. `spoiled`: it could not be cut back
    after a write that failed, and ends there.
    """

    def __init__(self, files: Files, paths: Paths) -> None:
        self.files = files
        self.paths = paths
        self.sums: Sums | None = None
        self.spoiled = False
        self._data_fd = self._sums_fd = -1

    @property
    def is_open(self) -> bool:
        return self._data_fd >= 0

    def append(self, at: int, records: Sequence[memoryview], entries: array[int]) -> None:
        """Write records at the file's end and the entries of their sums: both, or with StoreError neither."""
        assert self.sums is not None
        sums_at = len(SUMS_HEAD) + 8 * len(self.sums)
        try:
            self.files.write(self._sums_fd, sums_at, queuefiles.entries_encode(entries))
            self.files.write_parts(self._data_fd, at, records)
        except StoreError:
            try:
                self.files.cut(self._data_fd, at)
                self.files.cut(self._sums_fd, sums_at)
            except StoreError:
                self.spoiled = True
            raise
        self.sums.entries.extend(entries)

    def begin_anew(self) -> None:
        """What could not be cut back does not matter any more."""
        self.spoiled = False

    def create(self, number: int) -> None:
        """Make a data file and its sums; after a failure neither is there."""
        made: list[int] = []
        paths = self.paths.sums(number), self.paths.data(number)
        try:
            for path, head in zip(paths, (SUMS_HEAD, b""), strict=True):
                make_way(self.files, self.paths.folder, path)
                made.append(self.files.open(path, create=True))
                self.files.write(made[-1], 0, head)
            self.files.sync_folder(self.paths.folder)  # after a power cut the file must not be there without its sums
        except StoreError:
            for fd, path in zip(made, paths, strict=False):
                self.files.close(fd)
                take_back(self.files, path)
            raise
        self._sums_fd, self._data_fd = made
        self.sums = Sums()

    def reopen(self, number: int, end: int) -> bool:
        """Open a file that ends there; False when its sums do not reach to its end."""
        sums = queuefiles.load_sums(self.files, self.paths.sums(number))
        if sums is None or not len(sums):
            return False
        file = RecordFile(self.files, self.paths.data(number))
        try:
            start = sums.start(len(sums) - 1)
            last = file.record(start, end)
            if last is None or start + len(last) != end or file.size() != end:
                return False
        finally:
            file.close()
        data = self.files.open(self.paths.data(number))
        try:
            self._sums_fd = self.files.open(self.paths.sums(number))
        except StoreError:
            self.files.close(data)
            raise
        self._data_fd = data
        self.sums = sums
        return True

    def datasync(self) -> None:
        """Make what was written durable, the sums first."""
        if self._data_fd >= 0:
            self.files.datasync(self._sums_fd)
            self.files.datasync(self._data_fd)

    def close(self) -> None:
        """Hold no descriptor: there may be many queues."""
        if self._data_fd >= 0:
            self.files.close(self._data_fd)
            self.files.close(self._sums_fd)
        self._data_fd = self._sums_fd = -1
        self.sums = None


class Syncing:
    """What of a disk queue is not durable, and how it becomes so. A flush that failed is final (`failed`): nothing more is
    taken in until the queue is opened anew. A meta file that cannot be written is not: it is written as a whole each time.
    """

    def __init__(self, writer: WriteFile, places: Callable[[], Places], sync_every: int, sync_timeout_ms: int) -> None:
        self.operations = 0  # since the last sync
        self.failed: StoreError | None = None
        self._writer = writer
        self._places = places
        self._sync_every = sync_every
        self._sync_timeout_ms = sync_timeout_ms
        self._due_ms: int | None = None
        self._wanting: set[Syncing] | None = None
        self._flushing = False
        self._rests_until_ms = 0
        self._told = Told()
        self._lock = threading.RLock()  # of the files that are written, and of the meta file
        self._number = 0  # of what the owner did to them: a thread that comes behind it has nothing to do

    def beside(self, wanting: set[Syncing]) -> None:
        """A thread flushes from now on: when one is due, this puts itself there, and `take_job` gives it."""
        self._wanting = wanting

    @contextmanager
    def alone(self) -> Iterator[None]:
        """No thread flushes meanwhile; one that has not begun never does."""
        with self._lock:
            self._number += 1
            yield

    @property
    def rolls_cheaply(self) -> bool:
        """Whether a thread flushes, and is not at it: nobody has to wait for it now, and it has left little to be flushed."""
        return self._wanting is not None and not self._flushing

    def note(self, operations: int) -> None:
        """So many messages were put, or are done."""
        self.operations += operations

    def moved(self) -> None:
        """The read position is another one: the meta file is to say so."""
        self.operations = max(1, self.operations)

    def begin(self, operations: int) -> None:
        """All is durable but so much."""
        self.operations = operations

    def look(self) -> None:
        """Before more is put: a flush may be due. StoreError: see `sync`."""
        if self.operations >= self._sync_every:
            self._want()

    def tick(self, mono_ms: int) -> int | None:
        """A flush may be due by time. When to ask again; None when nothing waits, and the file is closed. StoreError."""
        if self.failed is not None:
            return None
        if self._due_ms is None:
            if not self.operations:
                return None
            self._due_ms = mono_ms + self._sync_timeout_ms
        if mono_ms >= self._due_ms or self.operations >= self._sync_every:
            self._due_ms = mono_ms + self._sync_timeout_ms
            if self.operations:
                self._want()
            elif not self._flushing:  # nothing happened since the last one
                self._due_ms = None
                self._writer.close()
        return self._due_ms

    def _want(self) -> None:
        """A flush is due: a thread's, unless there is none, or it is too far behind."""
        if self._wanting is None or self.operations >= FLUSHES_BEHIND * self._sync_every:
            self.sync()
        elif not self._flushing:
            self._wanting.add(self)

    def rests(self, mono_ms: int) -> bool:
        """Whether a thread has flushed this a moment ago, so that the next flush may wait for more; not when the owner would
        soon have to do it.
        """
        return mono_ms < self._rests_until_ms and 2 * self.operations < FLUSHES_BEHIND * self._sync_every

    def take_job(self, failed: Callable[[StoreError], None]) -> Job | None:
        """The flush that is due, for a thread; None when it is not any more. `failed` is told what `sync` would raise."""
        if self.failed is not None or self._flushing or not self.operations:
            return None
        number, operations, places = self._number, self.operations, self._places()
        self._flushing = True
        lost: list[StoreError] = []

        def run() -> None:
            with self._lock:
                if self._number != number:
                    return  # what is meant here is flushed, or gone
                try:
                    self._writer.datasync()
                except StoreError as error:
                    lost.append(error)
                    raise
                self._put_meta(places)

        def finish(error: BaseException | None, mono_ms: int) -> None:
            self._flushing = False
            self._rests_until_ms = mono_ms + PACE_MS
            if lost:
                self.failed = lost[0]
                failed(lost[0])
            elif error is None and self._number == number:
                self._told.over()
                moved = self._places()[1] != places[1]
                self.operations = max(int(moved), self.operations - operations)
            elif isinstance(error, StoreError) and self._told.is_news("", mono_ms):
                log.error("a disk queue's meta file is not written now, it is tried again error=%s", error)

        return Job("disk queue", run, finish)

    def sync(self) -> None:
        """Flush what was put, then write the meta file, here and now. StoreError; where it is only the meta file `failed` is
        None.
        """
        if self.operations:
            with self.alone():
                self.flush()
                self.write_meta()
            self.operations = 0

    def flush(self) -> None:
        """Make what was put durable. StoreError, which is final."""
        try:
            self._writer.datasync()
        except StoreError as error:
            self.failed = error
            raise

    def write_meta(self, *, flush: bool = True) -> None:
        """What the queue holds by now. StoreError."""
        with self._lock:
            self._put_meta(self._places(), flush=flush)

    def _put_meta(self, places: Places, *, flush: bool = True) -> None:
        depth, read, write = places
        queuefiles.write_meta(self._writer.files, self._writer.paths.meta, depth, read, write, flush=flush)

    def let_go(self) -> None:
        """Close the file that is written, and ask for nothing more: the queue may be gone, and its meta file with it."""
        if self._wanting is not None:
            self._wanting.discard(self)
        with self.alone():
            self._writer.close()
