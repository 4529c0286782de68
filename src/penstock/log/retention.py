"""Which segments may go, and when writing must stop.

Segments go when they were last written more than `file_reserved_time_ms` ago and it is the hour for it, or the disk
is fuller than 75 %; beyond 85 % the oldest go whatever their age; beyond 90 % writes are refused until it is below
again. At most ten files a pass, never the last, never above the protected position except beyond 85 %. A segment whose file
somebody else deleted goes, too. Consume queues and index follow.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from penstock.disk.job import Job
from penstock.errors import StoreError
from penstock.log import status
from penstock.log.state import LogState

log = logging.getLogger("penstock.log")

DOOMED_RETRY_MS = 60_000
_HYSTERESIS = 0.01
_CLOCKS_AGREE_MS = 10 * 60_000
_DISTRUST_MS = _LATE_MS = 24 * 3_600_000
_DAY_MS = 24 * 3_600_000


class Retention:
    """Runs every ten seconds from `tick`; `take` hands out the removal of files as a job."""

    def __init__(self, store: LogState) -> None:
        self.store = store
        self.protected: Callable[[], int] | None = None
        """Says below which physical offset nobody needs the log any more; None: everywhere."""
        self.deleted = {"age": 0, "disk": 0, "missing": 0}
        """Segments of the log that went, by why: their age; the room was needed before it; somebody else deleted the file."""
        now_ms, mono_ms = store.clock.now_ms(), store.clock.monotonic_ms()
        self._started = (now_ms, store.clock.machine_ms(), mono_ms)
        last_ms = store.log.store_ms  # of the last record there is
        late = last_ms > 0 and now_ms - last_ms > _LATE_MS  # it was off, or idle, for so long, or the clock is wrong
        self._distrust_until = mono_ms + _DISTRUST_MS if late else 0
        self._next_ms = mono_ms
        self._doomed: list[Path] = []
        self._retry_ms = 0  # something could not be deleted: not before this moment
        self._running = False
        self._swept_ms = -_DAY_MS
        self.used_ratio = 0.0
        self._asked = False

    def protect(self, protected: Callable[[], int]) -> None:
        """Ask this from now on."""
        self.protected = protected

    def ask(self) -> None:
        """Delete what is old enough at the next tick, whatever the hour: somebody asked for it."""
        self._asked = True
        self._next_ms = 0

    def tick(self, now_ms: int, mono_ms: int) -> None:
        """Look at ages and at the disk, if ten seconds have passed."""
        if mono_ms < self._next_ms:
            return
        options = self.store.options
        self._next_ms = mono_ms + options.clean_interval_ms
        used, total = self.store.files.usage(self.store.folder)
        self.used_ratio = used / total if total else 0.0
        self._judge()  # first: what cannot be deleted changes nothing about this
        self._drop(now_ms, mono_ms)
        if mono_ms - self._swept_ms >= _DAY_MS // 24 and self.trusts(now_ms, mono_ms):
            self._swept_ms = mono_ms
            self._sweep_lost(now_ms)

    def _judge(self) -> None:
        """Refuse writes on a full disk, and take them again one hundredth below."""
        store = self.store
        refuse_at = store.options.disk_refuse_ratio
        if self.used_ratio >= refuse_at:
            store.refuse(status.DISK_FULL)
        elif store.refusal == status.DISK_FULL and self.used_ratio < refuse_at - _HYSTERESIS:
            store.refuse(status.OK)

    def trusts(self, now_ms: int, mono_ms: int) -> bool:
        """Age is only believed while all clocks tell the same story of how long this has run, and where it began soon after the
        last record, or a day ago. What is stored goes by `now_ms`, which the machine's clock moves no more, or is another's."""
        machine_ms = self.store.clock.machine_ms()
        now, machine, mono = self._started
        if any(abs(ran - (mono_ms - mono)) > _CLOCKS_AGREE_MS for ran in (now_ms - now, machine_ms - machine)):
            self._distrust_until = mono_ms + _DISTRUST_MS
            self._started = (now_ms, machine_ms, mono_ms)
            if abs(machine_ms - now_ms) > _CLOCKS_AGREE_MS:  # nobody else tells why a delayed message does not come
                log.warning(
                    "the machine's clock is another than the broker's, which goes on as it was until a restart ahead_ms=%d",
                    machine_ms - now_ms,
                )
        return mono_ms >= self._distrust_until

    def _age_ms(self, path: Path, now_ms: int) -> int:
        """How long ago a file was written, by that of the two clocks that says less: its time is by the machine's, which may have
        been set since, either way. 0 where the file system does not say: it may be gone."""
        try:
            return min(now_ms, self.store.clock.machine_ms()) - self.store.files.modified_ms(path)
        except StoreError:
            return 0

    def _is_missing(self, segment: Path) -> bool:
        """Somebody else deleted the file; a folder where the newest is not found either says nothing."""
        names = self.store.files.names(segment.parent)
        return segment.name not in names and self.store.log.file.segments[-1].path.name in names

    def _drop(self, now_ms: int, mono_ms: int) -> None:
        store, options = self.store, self.store.options
        forced = self.used_ratio >= options.disk_forced_clean_ratio
        by_age = (
            self._asked
            or time.localtime(now_ms / 1000).tm_hour == options.delete_when
            or self.used_ratio >= options.disk_max_used_ratio
        )
        self._asked = False
        trusted = self.trusts(now_ms, mono_ms)
        if not forced and not (by_age and trusted):
            return
        limit = self.protected() if self.protected is not None else store.log.end
        file = store.log.file
        went = dict.fromkeys(self.deleted, 0)
        while sum(went.values()) < options.delete_files_batch_max and len(file.segments) > 1:
            segment = file.segments[0]
            end = segment.first + segment.size
            if end > store.log.end or end > store.durability.flushed:
                break
            if trusted and self._age_ms(segment.path, now_ms) > options.file_reserved_time_ms and end <= limit:
                went["age"] += 1
            elif forced:
                went["disk"] += 1
            elif self._is_missing(segment.path):
                went["missing"] += 1  # its room is free when its mapping is
            else:
                break
            file.drop_first()
            segment.close()
            self._doomed += [segment.path, store.log.sums.drop(segment.first)]
        if any(went.values()):
            self._follow(file.first)
            self._tell(went)

    def _tell(self, went: Mapping[str, int]) -> None:
        """What was not asked for is a warning: who had not read it never will."""
        for why, count in went.items():
            self.deleted[why] += count
        first, used = self.store.log.file.first, self.used_ratio * 100
        if went["age"]:
            log.info("segments of the log reached their age, deleted count=%d begin=%d", went["age"], first)
        if went["disk"]:
            log.warning(
                "the disk is too full, segments of the log deleted before their age count=%d begin=%d used_percent=%.1f",
                went["disk"],
                first,
                used,
            )
        if went["missing"]:
            log.warning("files of the log were deleted by somebody else count=%d begin=%d", went["missing"], first)

    def _follow(self, first: int) -> None:
        """Consume queues and index begin where the log begins."""
        store = self.store
        for by_id in store.queues.values():
            for queue in by_id.values():
                self._doomed += [segment.path for segment in queue.follow(first)]
        if store.index is not None:
            self._doomed += store.index.follow(first)

    def _sweep_lost(self, now_ms: int) -> None:
        folder = self.store.folder / "lost+found"
        for name in self.store.files.names(folder):
            path = folder / name
            if name != "manifest.jsonl" and self._age_ms(path, now_ms) > self.store.options.lost_found_ms:
                self._doomed.append(path)

    def take(self, mono_ms: int) -> Job | None:
        """The removal of what was dropped."""
        if self._running or not self._doomed or mono_ms < self._retry_ms:
            return None
        self._running = True
        paths, self._doomed = self._doomed, []
        files = self.store.files
        kept: list[Path] = []

        def run() -> None:
            for path in paths:
                try:
                    if kept and path.name.isdecimal():
                        kept.append(path)  # or the log would have a hole, and queues that begin behind it
                    else:
                        files.unlink(path)
                except StoreError as error:
                    if path.name.isdecimal():  # else it is of lost+found, and found again by the next sweep
                        log.error("not deleted, tried again in %d ms path=%s error=%s", DOOMED_RETRY_MS, path, error)
                        kept.append(path)
            for folder in {path.parent for path in paths}:
                files.sync_folder(folder)

        def finish(error: BaseException | None, now_ms: int) -> None:
            self._running = False
            self._doomed[:0] = kept
            self._retry_ms = now_ms + DOOMED_RETRY_MS if kept else 0

        return Job("clean", run, finish)
