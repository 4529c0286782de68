"""What a flush that failed leaves to the next start: `unwritten`, an empty file of the data folder.

The kernel has marked the pages clean that it could not write out, and forgets them some time. Until then every reader finds
them there, the next start of a broker as well, whose own flush has nothing to do and succeeds: it would answer for messages
that are gone when the machine starts again. So a failed flush leaves a note, and the start that finds it has all that was
written lately written once more, before it looks at anything. After a start of the machine there is nothing to be saved, and
nothing false to be seen: what is written then is what was read from the disk.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from penstock.disk.files import Files
from penstock.errors import StoreError
from penstock.words import MS_A_SECOND

log = logging.getLogger("penstock.disk")

NAME = "unwritten"
LATELY_MS = 3_600 * MS_A_SECOND  # before the note: a disk may have hung for long, and all it refused is younger
_WINDOW = 4 << 20  # no page of the system is larger, nor lies in two
# The pages by which a start tells a kill from a power cut must not reach the disk, and nobody is to rely on the others.
_LEFT_OUT = ("live0", "live1", "lock", "abort", "reserve", NAME)
_LOST = "lost+found"


def note(files: Files, root: Path) -> None:
    """A flush has failed; for any thread. The name need not be durable: it is for starts that find the same pages."""
    path = root / NAME
    try:
        if not path.exists():
            files.close(files.open(path, create=True))
    except StoreError as error:
        log.error("what could not be flushed is not noted for the next start error=%s", error)


def write_again(files: Files, root: Path) -> None:
    """Where a flush has failed before: write and flush what may be in memory alone. For whoever has the folder's lock, before
    anything is mapped. StoreError when the disk refuses it still; the next start tries again.
    """
    path = root / NAME
    if not path.is_file():
        return
    written = list(_written_lately(files, root, files.modified_ms(path) - LATELY_MS))
    log.warning("a flush failed before this start: what was written lately is written once more files=%d", len(written))
    for file in written:
        try:
            _rewrite(files, file)
        except StoreError as error:
            raise StoreError(f"{file} cannot be written once more after a failed flush: {error}") from error.__cause__
    for folder, _, _ in os.walk(root):
        files.sync_folder(Path(folder))
    files.unlink(path)
    files.sync_folder(root)
    log.info("what a failed flush was for is on the disk files=%d", len(written))


def _written_lately(files: Files, root: Path, since_ms: int) -> Iterator[Path]:
    """What a broker may have written since then; what it may not write to it has not written."""
    for folder, below, names in os.walk(root):
        if Path(folder) == root and _LOST in below:
            below.remove(_LOST)
        for name in names:
            file = Path(folder, name)
            ours = name not in _LEFT_OUT and file.is_file() and os.access(file, os.W_OK)
            if ours and files.modified_ms(file) >= since_ms:
                yield file


def _rewrite(files: Files, path: Path) -> None:
    """A window at a time: read, forgotten, written. ext4 takes a page that it could not write for one whose place is settled,
    and would write it where no start of the machine finds it: it must be a new page.
    """
    fd = files.open(path)
    try:
        with contextlib.suppress(StoreError):
            files.datasync(fd)  # only what is not on its way to the disk can be forgotten; the flush below counts
        size = files.size(fd)
        for window in range(0, size, _WINDOW):
            parts: list[tuple[int, bytes]] = []
            for at, end in files.data_ranges(fd, window, min(size, window + _WINDOW)):
                try:
                    parts.append((at, files.read(fd, at, end - at)))
                except StoreError as error:  # a bad part of the disk: it is told of where it is needed
                    log.error("not written once more, it cannot be read file=%s at=%d error=%s", path, at, error)
            if parts:
                forget(fd, window, _WINDOW)
            for at, data in parts:
                files.write(fd, at, data)
        files.datasync(fd)
    finally:
        files.close(fd)


def forget(fd: int, at: int, length: int) -> None:
    """Let these bytes be what the disk has, as far as they are not mapped or on their way there; for whoever has them."""
    with contextlib.suppress(OSError):
        os.posix_fadvise(fd, at, length, os.POSIX_FADV_DONTNEED)
