"""The threads that jobs run in: one flushes, another does what may take long (allocating segments, writing tables)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial

from penstock.disk.job import Job
from penstock.faults import Told
from penstock.histogram import Histogram
from penstock.threads import Threads

log = logging.getLogger("penstock.disk")

TELL_AGAIN_S = 0.01
LONG_S = 3.0  # a flush that takes longer is told of: answers wait for it, and whoever pings a client may have given up
FLUSH_S_BRIEF = 0.002
FLUSH_FADES = 0.9


class Workers:
    """`done` is called with each job and what it raised, where `tell` brings it: on the loop, from any thread."""

    def __init__(
        self, tell: Callable[[Callable[[], None]], object], done: Callable[[Job, BaseException | None], None]
    ) -> None:
        self._tell = tell
        self._done = done
        # Not the standard library's: those take no more work once the program ends, and a broker in it is stopped after that.
        self._flush_thread = Threads(1, "penstock-flush")
        self._slow_thread = Threads(1, "penstock-files")
        for thread in (self._flush_thread, self._slow_thread):
            thread.submit(bool)  # it is made now: from Python 3.12 on none can be once the program ends
        self._flush_s = FLUSH_S_BRIEF  # of the last flushes the longest, the older the less
        self._flushes = 0  # begun, or in the row
        self._flush_began = 0.0  # the one under way
        self._told = Told()
        self._told_of = 0.0
        self.under_way = 0
        self.took = {"flush": Histogram(), "other": Histogram()}  # jobs, by what they are

    @property
    def brief(self) -> bool:
        """Whether flushes are over so soon that the loop may do one by itself."""
        return self._flush_s < FLUSH_S_BRIEF

    def start(self, job: Job) -> None:
        """Run the job in its thread."""
        thread = self._flush_thread if job.kind == "flush" else self._slow_thread
        self._begin(job)
        thread.submit(self._run, job)

    def run_here(self, job: Job) -> None:
        """Run the job now."""
        self._begin(job)
        self._finish(job, *_timed(job))

    def _begin(self, job: Job) -> None:
        self.under_way += 1
        if job.kind == "flush":
            self._flushes += 1
            if self._flushes == 1:
                self._flush_began = time.perf_counter()

    @property
    def hanging_s(self) -> float:
        """How long the flush under way has taken, once that is over LONG_S; 0: there is no such flush."""
        for_s = time.perf_counter() - self._flush_began if self._flushes else 0.0
        return for_s if for_s > LONG_S else 0.0

    def are_done(self) -> bool:
        """Whether no job is under way. For the end of a process: it says that the disk keeps it, where a flush does."""
        for_s = self.hanging_s
        if for_s and self._told_of != self._flush_began:
            self._told_of = self._flush_began
            log.warning("the disk does not answer, and the end waits for it flush_ms=%d", int(for_s * 1000))
        return not self.under_way

    def _run(self, job: Job) -> None:
        error, took_s = _timed(job)
        while True:
            try:
                self._tell(partial(self._finish, job, error, took_s))
            except MemoryError:  # answers wait for this job, and the end of the process does
                time.sleep(TELL_AGAIN_S)
            except RuntimeError:
                return  # the loop was closed under a job that nobody waits for any more
            else:
                return

    def _finish(self, job: Job, error: BaseException | None, took_s: float) -> None:
        self.under_way -= 1
        self.took["flush" if job.kind == "flush" else "other"].add(took_s)
        if job.kind == "flush":
            self._flushes -= 1
            self._flush_began = time.perf_counter()  # of the next one in the row
            self._flush_s = max(took_s, self._flush_s * FLUSH_FADES)
            if took_s > LONG_S and self._told.is_news("", int(time.monotonic() * 1000)):
                log.warning("the disk was slow: answers have waited for a flush took_ms=%d", int(took_s * 1000))
        self._done(job, error)

    def close(self) -> None:
        """Wait for the threads."""
        self._flush_thread.shutdown(wait=True)
        self._slow_thread.shutdown(wait=True)


def _timed(job: Job) -> tuple[BaseException | None, float]:
    """Run a job: what it raised, and how long it took."""
    began = time.perf_counter()
    error: BaseException | None = None
    try:
        job.run()
    except Exception as caught:
        error = caught
    return error, time.perf_counter() - began
