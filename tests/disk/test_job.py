"""`disk.job`: work that blocks, and who learns how it ended."""

from __future__ import annotations

import pytest

from penstock.disk.job import Job, run_now
from penstock.errors import StoreError


def test_the_owner_learns_how_it_ended() -> None:
    ended: list[tuple[str, BaseException | None, int]] = []

    def fail() -> None:
        raise StoreError("the disk is gone")

    run_now(
        [
            Job("good", lambda: None, lambda error, now: ended.append(("good", error, now))),
            Job("bad", fail, lambda error, now: ended.append(("bad", error, now))),
            Job("nobody asks", lambda: None),
        ],
        7,
    )
    assert [(name, type(error), now) for name, error, now in ended] == [("good", type(None), 7), ("bad", StoreError, 7)]


def test_what_is_no_error_of_the_disk_is_not_swallowed() -> None:
    with pytest.raises(ZeroDivisionError):
        run_now([Job("wrong", lambda: print(1 / 0))], 0)
