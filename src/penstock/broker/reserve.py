"""Room for a start on a full disk: the file `reserve` is given up when a start finds none, and made again when there is.

A start writes some small files (`store.json`, `abort`, the tables) before it can serve reads, and a broker on a full disk
must start: only then can anybody look what to delete.
"""

from __future__ import annotations

import logging
from pathlib import Path

from penstock.disk.files import Files, write_in_place
from penstock.disk.job import Job
from penstock.errors import DiskFull, StoreError

log = logging.getLogger("penstock.broker")

NAME = "reserve"
BYTES = 1 << 20
PLENTY = 64 * BYTES  # that much must be free before some of it is taken
FIRST_MS, EVERY_MS = 1_000, 60_000


class Reserve:
    """The file of one data folder."""

    def __init__(self, folder: Path, files: Files) -> None:
        self.folder = folder
        self.path = folder / NAME
        self.files = files
        self._due_ms = -1
        self._kept = False
        self._running = False

    def _free(self) -> int:
        used, total = self.files.usage(self.folder)
        return total - used

    def open(self) -> None:
        """Before a start writes anything: have room for that. StoreError."""
        self.files.make_folder(self.folder)
        if not any(self.folder.iterdir()):
            write_in_place(self.folder)  # what room was taken for is ours
        if self._free() < BYTES and self.path.is_file() and self.path.stat().st_size:
            self.files.unlink(self.path)
            log.error(
                "the disk is full: the room kept for a start is given up, messages are refused until there is room"
            )

    def take_job(self, mono_ms: int) -> Job | None:
        """Keep room again, if it is time and there is plenty."""
        if self._due_ms < 0:
            self._due_ms = mono_ms + FIRST_MS
        if self._kept or self._running or mono_ms < self._due_ms:
            return None
        self._due_ms = mono_ms + EVERY_MS
        self._running = True

        def finish(error: BaseException | None, now_ms: int) -> None:
            self._running = False

        return Job("reserve", self._keep, finish)

    def _keep(self) -> None:
        try:
            if self._free() < PLENTY:
                return
            fd = self.files.open(self.path, create=True)
            try:
                self.files.allocate(fd, 0, BYTES)
                self._kept = True
            finally:
                self.files.close(fd)
        except StoreError as error:
            log.info("no room is kept for a start on a full disk error=%s", error)
            if isinstance(error, DiskFull):
                self.files.unlink(self.path)
