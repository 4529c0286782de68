"""What a disk refuses: why nothing could be stored there, and what is told of it."""

from __future__ import annotations

import errno
import logging
import os
import time

from penstock.errors import StoreError
from penstock.faults import Told
from penstock.words import NS_A_MS

log = logging.getLogger("penstock.disk")

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
TOO_MANY = (errno.EMFILE, errno.ENFILE)
_OF_ALL = (*NO_ROOM, *TOO_MANY, errno.ENOMEM, errno.EROFS, errno.EACCES)  # with these hardly another file fares better
_LATELY_MS = 10_000


class Refusals:
    """Why nothing could be stored on a disk: for the log, once a minute, and for whoever asks whether it can."""

    def __init__(self) -> None:
        self._told = Told()
        self._why, self._at_ms = "", 0

    def note(self, error: StoreError) -> None:
        """An append is refused for this."""
        mono_ms = time.monotonic_ns() // NS_A_MS
        cause = error.__cause__
        number = cause.errno if isinstance(cause, OSError) else None
        if self._told.is_news(f"{type(error).__name__} {number or ''}", mono_ms):
            log.warning("nothing is stored error=%s", error)
        if number in _OF_ALL:
            self._why, self._at_ms = os.strerror(number), mono_ms

    def lately(self) -> str:
        """In the system's words, if it is no matter of one file and was seen in the last ten seconds; else empty. Nobody may have
        asked for room since, so this is forgotten: whoever sends then finds out anew.
        """
        return self._why if time.monotonic_ns() // NS_A_MS - self._at_ms < _LATELY_MS else ""

    def is_news(self, what: str) -> bool:
        """Whether to write down what follows from refusals: once a minute, as long as it is so."""
        return self._told.is_news(what, time.monotonic_ns() // NS_A_MS)

    def goes_on(self, error: Exception) -> None:
        """A write is refused, and the same bytes go through a mapping, whose room is taken: with each batch, perhaps."""
        if self.is_news("mapping"):
            log.error("a ready queue's write failed, it goes on through the mapping error=%s", error)


def at_start(folder: object, error: StoreError) -> str:
    """What stands against a start that finds no room for what it must write, and what to do."""
    number = error.__cause__.errno if isinstance(error.__cause__, OSError) else errno.ENOSPC
    if number == errno.EFBIG:
        return (
            f"a start has to write some small files in {folder}, and no file of this process may be so large: raise the limit "
            f"(ulimit -f, LimitFSIZE) and start again ({error})"
        )
    what = f"this user's quota for {folder} is used up" if number == errno.EDQUOT else f"the disk of {folder} is full"
    return f"{what}, and a start has to write some small files: free at least 8 MiB there and start again ({error})"
