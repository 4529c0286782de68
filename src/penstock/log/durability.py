"""Up to which position replies may go out: what is flushed, when the next flush is due, when senders must wait.

A flush starts at most `interval_ms` after the oldest unflushed byte, at once when somebody waits for it, and one at a
time: whoever comes meanwhile is served by the next. The first error is final: the kernel has marked the pages clean,
so no later success means anything. A want of descriptors is none: a file was not even opened, and all of it is flushed a
moment later.

Whoever waits, waits for the log alone. The sums of its records follow at their own interval, and at once for a record that
could not be told from a torn one without (`CommitLog.unproven`). A checkpoint vouches for what has both.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import cython

from penstock.disk.job import REST_MS, Job
from penstock.disk.segments import Segment
from penstock.errors import NoDescriptor
from penstock.faults import Told
from penstock.log.commitlog import CommitLog

if cython.compiled:
    from cython.cimports.penstock import words
else:
    from penstock import words

log = logging.getLogger("penstock.log")

AHEAD_MIN = 1 << 20
_IN_HAND_SEGMENTS = 8  # the newest, which jobs may have in hand
_OPEN_SEGMENTS = 24  # the newest, which may still be open


class Durability:
    """The flushed position of a commit log. `error` is the first failed flush, and then the end of it."""

    def __init__(self, log: CommitLog, interval_ms: int, window_ms: int) -> None:
        self.log = log
        self.interval_ms = interval_ms
        self.window_ms = window_ms
        self.flushed = log.end
        self.summed = log.end
        """The sums of the records below are on the disk, and so are these."""
        self.wanted = False
        self.with_sums = True
        """Whether the last flush that was begun is of the sums as well."""
        self.error: BaseException | None = None
        self.flushes = 0
        self._dirty_since = -1
        self._sums_since = -1
        self._running = False
        self._retry_ms = 0  # a file could not be opened: no flush begins before this moment
        self._told = Told()

    def fail(self, error: BaseException) -> None:
        """No flush means anything any more."""
        self.error = error

    def want(self) -> None:
        """Somebody waits: flush at once."""
        self.wanted = True

    def look(self, mono_ms: int) -> None:
        """Notice that there are unflushed bytes."""
        if self._dirty_since < 0 and self.flushed < self.log.end:
            self._dirty_since = mono_ms
        if self._sums_since < 0 and self.summed < self.log.end:
            self._sums_since = mono_ms

    def blocked(self, mono_ms: int) -> bool:
        """Whether a byte has been unflushed for longer than the window of level `os`, or flushing is over."""
        return self.error is not None or (0 <= self._dirty_since < mono_ms - self.window_ms)

    def due_ms(self) -> int:
        """When the next flush must start, in monotonic time; far away when nothing is to be flushed."""
        if self._sums_since < 0 or self._running or self.error is not None:
            return words.FAR_MS
        if self._dirty_since < 0:
            return max(self._retry_ms, self._sums_since + self.interval_ms)
        return self._retry_ms if self.wanted else max(self._retry_ms, self._dirty_since + self.interval_ms)

    def take(self, mono_ms: int) -> Job | None:
        """The flush that is due now."""
        self.look(mono_ms)
        if self.due_ms() > mono_ms:
            return None
        late = mono_ms >= self._sums_since + self.interval_ms
        return self.start(mono_ms, sums=late or not self.wanted or self.log.unproven > self.summed)

    def start(self, mono_ms: int, *, sums: bool = True) -> Job:
        """A flush of everything appended so far, with its sums or without."""
        self.log.settle()
        target = self.log.end
        segments = [s for s in self.log.file.segments if s.first < target and s.first + s.size > self.flushed]
        behind = [s for s in self.log.file.segments if sums and s.first < target and s.first + s.size > self.summed]
        sidecars = [self.log.sums.get(segment.first) for segment in behind]
        self._running = True
        self.wanted = False
        self.with_sums = sums

        many = target - self.flushed >= words.UNMAP_BYTES_MIN

        def run() -> None:
            for segment in segments:
                if many:
                    segment.unmap()
                segment.datasync()
            for sidecar in sidecars:
                if sidecar is not None:
                    if many:
                        sidecar.unmap()
                    sidecar.datasync()

        def finish(error: BaseException | None, now_ms: int) -> None:
            self._running = False
            if isinstance(error, NoDescriptor):
                self._wait_for_descriptors(error, now_ms)
                return
            self.flushes += 1
            if error is not None:
                self.fail(error)
            if self.error is not None:
                return
            self._told.over()
            self.flushed = target
            self._dirty_since = mono_ms if self.log.end > target else -1
            if sums:
                self.summed = target
                self._sums_since = self._dirty_since
            for segment in self.log.file.segments[-_OPEN_SEGMENTS:-_IN_HAND_SEGMENTS]:
                segment.close()
                sidecar = self.log.sums.get(segment.first)
                if sidecar is not None:
                    sidecar.close()

        return Job("flush", run, finish)

    def _wait_for_descriptors(self, error: NoDescriptor, now_ms: int) -> None:
        self.wanted = True
        self._retry_ms = now_ms + REST_MS
        if self._told.is_news("", now_ms):
            log.error("the flush of the log waits, and who waits for it, for a file cannot be opened error=%s", error)


class Preparer:
    """Has the next segment made, and pages ahead of the write position backed, before they are needed."""

    def __init__(self, log: CommitLog, prefault_bytes: int) -> None:
        self.log = log
        self.prefault_bytes = prefault_bytes
        self._running = False
        self._retry_ms = 0
        self._opened_at = log.end

    def _ahead(self) -> int:
        """How far ahead: as far as this process has written, within limits. A quiet broker takes little of the disk."""
        return min(self.prefault_bytes, max(AHEAD_MIN, self.log.end - self._opened_at))

    def take(self, mono_ms: int) -> Job | None:
        """What should be prepared now."""
        if self._running or mono_ms < self._retry_ms:
            return None
        log = self.log
        left = log.file.end - log.end
        if log.prepared is None and left <= log.file.size // 2:
            return self._job(self._make_next)
        segment = log.file.at(log.end)
        if self.prefault_bytes and segment is not None:
            at = log.end - segment.first
            ahead = self._ahead()
            if log.streaming:
                if at + ahead > segment.allocated and segment.allocated < segment.size:
                    return self._job(lambda: self._back(segment, at + ahead))
            elif at + ahead > segment.prefaulted and segment.prefaulted < segment.size:
                begin = max(at, segment.prefaulted)
                end = min(segment.size, begin + ahead)
                return self._job(lambda: self._prefault(segment, begin, end))
        return None

    def _make_next(self) -> None:
        with self.log.making:
            if self.log.prepared is not None or self.log.file.end - self.log.end > self.log.file.size // 2:
                return
            segment, sidecar = self.log.make_next()
            self.log.keep_next(segment, sidecar)
        if self.log.streaming:
            self._back(segment, self._ahead())
        elif self.prefault_bytes:
            self._prefault(segment, 0, min(segment.size, self._ahead()))

    def _back(self, segment: Segment, end: int) -> None:
        """Take room alone: the pages come with what is written."""
        with self.log.backing:
            segment.back(min(segment.size, end))

    def _prefault(self, segment: Segment, begin: int, end: int) -> None:
        self._back(segment, end)
        segment.prefault(begin, end - begin)
        # Flushed now, the pages are allocated for good and small commits later are cheap. When the log is right behind, its
        # own flushes do that, and waiting for this one would leave it to fault its pages in by itself.
        if segment.first + begin - self.log.end > self.prefault_bytes // 2:
            segment.datasync_beside()

    def _job(self, run: Callable[[], None]) -> Job:
        self._running = True

        def finish(error: BaseException | None, now_ms: int) -> None:
            self._running = False
            if error is not None:
                self._retry_ms = now_ms + words.MS_A_SECOND  # appending tries by itself when it comes to it

        return Job("prepare", run, finish)
