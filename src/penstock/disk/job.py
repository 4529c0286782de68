"""A job: work that blocks on a disk. It runs in a thread, and ends where its owner lives."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from penstock.errors import StoreError

REST_MS = 200


class Job:
    """Work that blocks. `run` in any thread, then `finish` with what it raised (or None) where its owner lives."""

    def __init__(
        self, kind: str, run: Callable[[], None], finish: Callable[[BaseException | None, int], None] | None = None
    ) -> None:
        self.kind = kind
        self.run = run
        self._finish = finish

    def finish(self, error: BaseException | None, mono_ms: int) -> None:
        """Tell the owner that `run` is over."""
        if self._finish is not None:
            self._finish(error, mono_ms)


Take = Callable[[int], Iterable[Job] | Job | None]


class Takers:
    """Asks kinds of work for their jobs. One that raises keeps back nothing that others gave, nor what it gave before: for what
    it raised there is a job that fails, so that it is told of where jobs end. It is asked again a moment later.
    """

    def __init__(self) -> None:
        self._rests: dict[str, int] = {}  # kind → it raised, and is not asked before this moment

    def take(self, kinds: Iterable[tuple[str, Take]], mono_ms: int) -> list[Job]:
        """The jobs that are due of each (kind, who gives them)."""
        jobs: list[Job] = []
        for kind, take in kinds:
            if self._rests and mono_ms < self._rests.get(kind, mono_ms):
                continue
            try:
                found = take(mono_ms)
                if isinstance(found, Job):
                    jobs.append(found)
                elif found:
                    for job in found:
                        jobs.append(job)  # one by one: what comes before an exception is there
            except Exception as error:
                self._rests[kind] = mono_ms + REST_MS
                jobs.append(Job(f"taking {kind}", _nothing, partial(_raise, error)))
            else:
                if self._rests.pop(kind, None) is not None:
                    jobs.append(Job(f"taking {kind}", _nothing))  # and it is well again
        return jobs


def _raise(error: Exception, failed: BaseException | None, mono_ms: int) -> None:
    raise error


def _nothing() -> None:
    pass


def run_now(jobs: Iterable[Job], mono_ms: int) -> None:
    """Run and finish the jobs here, one after the other: for tests and for closing."""
    for job in jobs:
        error: BaseException | None = None
        try:
            job.run()
        except StoreError as failed:
            error = failed
        job.finish(error, mono_ms)
