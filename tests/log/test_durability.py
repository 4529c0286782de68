"""When a flush starts, one at a time, and what its failure ends."""

from __future__ import annotations

from pathlib import Path

import pytest
from store_parts import make, put

from penstock.disk.job import Job, run_now
from penstock.errors import StoreError
from penstock.log.durability import Durability
from penstock.log.store import LogStore


@pytest.fixture
def store(tmp_path: Path) -> LogStore:
    store = make(tmp_path)
    store.open()
    return store


def test_a_flush_starts_so_long_after_the_oldest_byte(store: LogStore) -> None:
    durability = Durability(store.log, 500, 1_000)
    assert durability.take(0) is None
    put(store, b"x")
    assert durability.take(10) is None
    assert durability.due_ms() == 510
    assert (durability.blocked(1_010), durability.blocked(1_011)) == (False, True)
    job = durability.take(510)
    assert job is not None
    assert durability.take(10_000) is None  # one at a time
    run_now([job], 520)
    assert (durability.flushed, durability.blocked(99_999), durability.due_ms()) == (store.log.end, False, None)


def test_at_once_when_somebody_waits(store: LogStore) -> None:
    durability = Durability(store.log, 500, 1_000)
    put(store, b"x")
    durability.look(10)
    durability.wanted = True
    assert durability.due_ms() == 0
    job = durability.take(10)
    assert job is not None
    put(store, b"y")
    flushed = store.log.end
    run_now([job], 20)
    assert durability.flushed < flushed  # what came meanwhile is the next one's
    assert durability.due_ms() == 510


def test_the_first_failure_is_final(store: LogStore) -> None:
    durability = Durability(store.log, 500, 1_000)
    put(store, b"x")
    job = durability.start(0)
    job.finish(StoreError("input/output error"), 5)
    assert isinstance(durability.error, StoreError)
    assert (durability.take(10_000), durability.blocked(0)) == (None, True)


def test_jobs_are_finished_with_what_they_raised() -> None:
    told: list[tuple[bool, int]] = []

    def fails() -> None:
        raise StoreError("no")

    run_now(
        [
            Job("good", lambda: None, lambda error, ms: told.append((error is None, ms))),
            Job("bad", fails, lambda error, ms: told.append((error is None, ms))),
            Job("untold", lambda: None),
        ],
        7,
    )
    assert told == [(True, 7), (False, 7)]
