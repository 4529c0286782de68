"""A job: work that blocks on a disk. It runs in a thread, and ends where its owner lives."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from penstock.errors import StoreError


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


def run_now(jobs: Iterable[Job], mono_ms: int) -> None:
    """Run and finish the jobs here, one after the other: for tests and for closing."""
    for job in jobs:
        error: BaseException | None = None
        try:
            job.run()
        except StoreError as failed:
            error = failed
        job.finish(error, mono_ms)
