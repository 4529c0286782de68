"""A log that its broker writes on while somebody else reads it: what looks torn may be a write under way."""

from __future__ import annotations

import time

from penstock.log.commitlog import CommitLog

LOOKS, PAUSE_S = 20, 0.01  # the largest record is written in less
_BEGUN_BYTES = 1 << 16


def is_begun(log: CommitLog, position: int) -> bool:
    """Whether there is anything behind a position, before the zeros that are written next."""
    segment = log.file.at(position)
    if segment is None:
        return False
    at = position - segment.first
    return bool(bytes(segment.map[at : at + _BEGUN_BYTES]).strip(b"\0"))


def comes_whole(log: CommitLog, position: int, *, told: bool = False) -> bool:
    """Whether what was no record at a position is one when it is looked at again, for 0.2 s. `told`: an entry leads there, which
    stands in its file before the record does, so that nothing of it need be there yet.
    """
    for _ in range(LOOKS):
        if log.check(position) >= 0:
            return True
        if not told and not is_begun(log, position):
            return False
        time.sleep(PAUSE_S)
    return False
