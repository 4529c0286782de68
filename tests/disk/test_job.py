"""`disk.job`: work that blocks, and who learns how it ended."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.disk.job import REST_MS, Job, Take, Takers, run_now
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


def test_a_kind_that_raises_keeps_nothing_back_that_others_gave() -> None:
    takers, well = Takers(), [False]

    def two(mono_ms: int) -> Iterator[Job]:
        yield Job("first", lambda: None)
        if not well[0]:
            raise ValueError("planted")
        yield Job("second", lambda: None)

    kinds: list[tuple[str, Take]] = [
        ("two", two),
        ("none", lambda now: None),
        ("one", lambda now: Job("one", lambda: None)),
    ]
    jobs = takers.take(kinds, 100)
    assert [job.kind for job in jobs] == ["first", "taking two", "one"]
    with pytest.raises(ValueError, match="planted"):
        run_now(jobs, 100)
    assert [job.kind for job in takers.take(kinds, 100 + REST_MS - 1)] == ["one"]
    well[0] = True
    jobs = takers.take(kinds, 100 + REST_MS)
    assert [job.kind for job in jobs] == ["first", "second", "taking two", "one"]
    run_now(jobs, 0)  # which says that it is well again
    assert [job.kind for job in takers.take(kinds, 100 + REST_MS)] == ["first", "second", "one"]
