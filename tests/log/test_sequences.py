"""What is remembered of idempotent producers, and what a crash leaves of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.disk.files import Files
from penstock.disk.job import run_now
from penstock.errors import Refused
from penstock.log.sequences import PRODUCERS_MAX, WINDOW, Sequences, Stored, parse

P, Q = "a" * 16, "b" * 16


def stored(at: int, count: int = 1) -> Stored:
    return Stored(at + 100 * count, "T", 0, at // 100, count, ((at, count),))


@pytest.fixture
def sequences(tmp_path: Path) -> Sequences:
    return Sequences(tmp_path / "config" / "sequences.json", Files())


def reopened(old: Sequences) -> Sequences:
    return Sequences(old.path, Files())


@pytest.mark.parametrize("value", [b"", b"x", b"a.1.1", b"A" * 16 + b".1.1", P.encode() + b".0.1", P.encode() + b".1.0",
                                   P.encode() + b".1", P.encode() + b"._1.1", P.encode() + b".1.1.1", b"\xff" * 16])  # fmt: skip
def test_only_a_sequence_is_one(value: bytes) -> None:
    with pytest.raises(Refused):
        parse(value)
    assert parse(P.encode() + b".7.3") == (P, 7, 3)


def test_the_last_numbers_are_known_in_any_order(sequences: Sequences) -> None:
    for number in (2, 1, 4, WINDOW + 1):
        assert sequences.find(P, number) is None
        sequences.took(P, number, stored(number * 100))
    assert sequences.find(P, 2) == stored(200)
    assert sequences.find(P, 3) is None
    assert sequences.find(Q, 1) is None
    sequences.took(P, WINDOW + 3, stored(9_900))
    with pytest.raises(Refused, match="older than the last 32"):
        sequences.find(P, 3)
    for number in range(100, 200):
        sequences.took(P, number, stored(number * 100))
    assert len(sequences.by_producer[P]) == WINDOW


def test_producers_are_bounded_and_the_one_that_slept_longest_goes(sequences: Sequences) -> None:
    sequences.took(P, 1, stored(100))
    for n in range(PRODUCERS_MAX - 1):
        sequences.took(f"{n:016x}", 1, stored(200))
    sequences.find(P, 1)
    sequences.took(Q, 1, stored(300))
    assert sequences.find(P, 1) == stored(100)
    assert f"{0:016x}" not in sequences.by_producer


def test_a_snapshot_holds_what_is_flushed_and_the_log_the_rest(sequences: Sequences) -> None:
    sequences.took(P, 1, stored(100))
    first = reopened(sequences)
    assert (first.position, first.by_producer) == (0, {})  # no snapshot: all that is known is in the log
    sequences.took(P, 2, stored(200))
    sequences.took(P, 3, stored(300))
    job = sequences.take_job(300, 400, 10_000)
    assert job is not None
    run_now([job], 10_000)
    again = reopened(sequences)
    assert (again.position, again.by_producer) == (300, {P: {1: stored(100), 2: stored(200)}})
    again.again(f"{P}.3.1".encode(), b"T", 0, 3, 300, 100)
    assert again.find(P, 3) == stored(300)
    again.cut(350)
    assert again.find(P, 3) is None
    assert again.find(P, 2) is not None
    assert sequences.take_job(300, 400, 99_000) is None
    assert sequences.take_job(400, 400, 99_000) is not None


def test_a_table_that_does_not_change_has_its_place_written_down_all_the_same(sequences: Sequences) -> None:
    """At a clean stop, and once a minute: else the next start would read all that the log has behind it."""
    first = sequences.take_job(100, 100, 10_000)
    assert first is not None
    run_now([first], 10_000)
    assert sequences.take_job(90_000, 90_000, 20_000) is None
    late = sequences.take_job(90_000, 90_000, 80_000)
    assert late is not None
    run_now([late], 80_000)
    assert reopened(sequences).position == 90_000
    assert sequences.take_job(95_000, 95_000, 80_001) is None
    at_the_stop = sequences.take_job(95_000, 95_000, 1 << 62)
    assert at_the_stop is not None
    run_now([at_the_stop], 80_001)
    assert reopened(sequences).position == 95_000


def test_a_snapshot_that_cannot_be_read_is_made_from_the_whole_log(sequences: Sequences) -> None:
    sequences.path.parent.mkdir()
    sequences.path.write_text(json.dumps({"position": 7, "producers": {P: [[1]]}}))
    assert (reopened(sequences).position, reopened(sequences).by_producer) == (0, {})


def test_a_batch_is_counted_from_the_log_and_copies_are_not(sequences: Sequences) -> None:
    value = f"{P}.1.3".encode()
    sequences.again(value, b"T", 1, 7, 1000, 50)
    sequences.again(value, b"T", 1, 8, 1050, 50)
    assert sequences.find(P, 1) == Stored(1100, "T", 1, 7, 3, ((1000, 2),))
    sequences.again(value, b"%RETRY%G", 0, 0, 1100, 60)  # a consumer sent the first one back
    sequences.again(value, b"T", 1, 9, 2000, 50)  # the rest, sent again after the crash
    found = sequences.find(P, 1)
    assert found is not None
    assert (found.parts, found.there, found.end) == (((1000, 2), (2000, 1)), 3, 2050)
    sequences.again(value, b"T", 1, 10, 2050, 50)
    assert sequences.find(P, 1) == found


def test_a_cut_below_the_snapshot_holds_for_a_start_behind_a_kill(sequences: Sequences) -> None:
    """The log has reached the snapshot's position again, with other records: both what was cut and what came are read anew."""
    for number, at in ((1, 100), (2, 300)):
        sequences.took(P, number, stored(at))
    run_now([job for job in [sequences.take_job(500, 500, 1_000)] if job is not None], 0)
    assert reopened(sequences).position == 500
    slave = reopened(sequences)
    slave.cut(250)
    assert list(slave.by_producer[P]) == [1]
    slave.took(Q, 1, stored(400))  # and the process is killed before the next snapshot
    again = reopened(slave)
    again.cut(600)
    assert (again.position, again.find(P, 2)) == (0, None)  # all of the log is read again
