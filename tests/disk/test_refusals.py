"""Refusals of a disk: what is told of them, and for how long they count."""

from __future__ import annotations

import errno
import os
import time

import pytest

from penstock.disk.refusals import Refusals
from penstock.errors import DiskFull
from penstock.words import NS_A_MS


def no_room() -> DiskFull:
    error = DiskFull("no room for 8 bytes (by order of the test)")
    error.__cause__ = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return error


def test_a_refusal_is_told_once_a_minute_and_counts_for_ten_seconds(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ms = 1_000_000
    monkeypatch.setattr(time, "monotonic_ns", lambda: now_ms * NS_A_MS)
    refusals = Refusals()
    assert refusals.lately() == ""
    for _ in range(3):
        refusals.note(no_room())
        refusals.goes_on(MemoryError())
        refusals.goes_on(no_room())
    assert [line.partition(" error=")[0] for line in caplog.messages] == [
        "nothing is stored", "a ready queue's write failed, it goes on through the mapping",
    ]  # fmt: skip
    assert refusals.lately() == os.strerror(errno.ENOSPC)
    now_ms += 10_000
    assert refusals.lately() == ""
    now_ms += 50_000
    refusals.goes_on(no_room())
    assert len(caplog.messages) == 3
