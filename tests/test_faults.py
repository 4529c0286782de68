"""Faults: one step that raises does not keep the others from being taken; a step that raises for ever ends the process."""

from __future__ import annotations

import logging

import pytest

from penstock.errors import StoreError
from penstock.faults import FAULT_LOG_MS, FAULTS_IN_A_ROW_MAX, TOLD_MAX, Faults, Told


def test_the_same_step_in_a_row_ends_the_process_once() -> None:
    said: list[str] = []
    faults = Faults(said.append)
    for _ in range(FAULTS_IN_A_ROW_MAX - 1):
        faults.report("tick", ValueError("odd"), 0)
        faults.settle(["tick"])
    assert said == []
    faults.report("tick", ValueError("odd"), 0)
    assert said == [f"tick failed {FAULTS_IN_A_ROW_MAX} times in a row: ValueError('odd')"]


def test_a_step_that_succeeds_in_between_begins_anew() -> None:
    said: list[str] = []
    faults = Faults(said.append)
    for _ in range(FAULTS_IN_A_ROW_MAX - 1):
        faults.report("tick", ValueError("odd"), 0)
        faults.settle(["tick", "other"])
    assert faults.failing == {"tick": "tick: odd"}
    faults.settle(["tick"])  # it was taken and did not raise
    assert faults.failing == {}
    faults.report("tick", ValueError("odd"), 0)
    assert said == []
    assert faults.count == FAULTS_IN_A_ROW_MAX


def test_a_failing_disk_never_ends_the_process() -> None:
    said: list[str] = []
    faults = Faults(said.append)
    for _ in range(3 * FAULTS_IN_A_ROW_MAX):
        faults.report("flush", StoreError("full"), 0)
    assert said == []


def test_a_fault_is_told_once_in_a_while(caplog: pytest.LogCaptureFixture) -> None:
    faults = Faults(lambda why: None)
    with caplog.at_level(logging.ERROR, "penstock.net"):
        for mono_ms in (0, 1, FAULT_LOG_MS - 1, FAULT_LOG_MS):
            faults.report("flush", StoreError("full"), mono_ms)
    assert len(caplog.records) == 2


def test_what_is_said_again_and_again_is_told_once_a_minute() -> None:
    told = Told()
    assert [told.is_news("refused", ms) for ms in (0, 500, 59_999, 60_000, 60_500)] == [True, False, False, True, False]
    assert told.is_news("another", 60_500)
    assert not told.is_news("refused", 61_000)
    told.over()
    assert told.is_news("refused", 61_500)
    assert sum(told.is_news(f"{n}", 62_000) for n in range(10_000)) == 10_000  # and no more than a hundred are kept
    assert len(told._told_ms) <= TOLD_MAX
