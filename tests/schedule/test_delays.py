"""What a delay property means: the same for a message that is sent, a record that is stored, and a job that derives."""

from __future__ import annotations

import pytest

from penstock.errors import Refused
from penstock.schedule.delays import TIMER_PROPERTIES, DelayRule, due_by_properties
from penstock.spark.log.derive import _due

NOW = 1_700_000_000_000
RULE = DelayRule((1_000, 5_000))


@pytest.mark.parametrize(
    ("properties", "due_ms"),
    [
        ({}, None),
        ({"DELAY": "0"}, None),
        ({"DELAY": "1"}, NOW + 1_000),
        ({"DELAY": "9"}, NOW + 5_000),
        ({"TIMER_DELIVER_MS": str(NOW + 7)}, NOW + 7),
        ({"TIMER_DELIVER_MS": str(NOW)}, None),
        ({"TIMER_DELAY_MS": "20"}, NOW + 20),
        ({"TIMER_DELAY_SEC": "3"}, NOW + 3_000),
        ({"TIMER_DELAY_SEC": "3", "TIMER_DELAY_MS": "20"}, NOW + 20),
        ({"TIMER_DELAY_MS": "20", "TIMER_DELIVER_MS": str(NOW + 7)}, NOW + 7),
        ({"TIMER_DELAY_MS": "20", "DELAY": "1"}, NOW + 1_000),
    ],
)
def test_what_is_sent(properties: dict[str, str], due_ms: int | None) -> None:
    assert RULE.due_ms(properties, NOW) == due_ms


@pytest.mark.parametrize("name", ["DELAY", *TIMER_PROPERTIES])
@pytest.mark.parametrize("value", ["", "x", "-1", "1.5", "١", "9" * 19])
def test_a_number_that_is_none_is_refused(name: str, value: str) -> None:
    with pytest.raises(Refused) as caught:
        RULE.due_ms({name: value}, NOW)
    assert caught.value.remoting == 13


@pytest.mark.parametrize("name", TIMER_PROPERTIES)
@pytest.mark.parametrize("value", [1, 999, NOW + 60_000])
def test_the_schedule_and_the_jobs_read_what_the_broker_accepted(name: str, value: int) -> None:
    properties = {name: str(value)}
    text = f"{name}\1{value}\2".encode()
    stored = due_by_properties(properties, NOW)
    assert stored == _due(text, NOW, -1)
    if stored > NOW:
        assert stored == RULE.due_ms(properties, NOW)


@pytest.mark.parametrize(("name", "value"), [("TIMER_DELAY_SEC", "9" * 18), ("TIMER_DELAY_MS", "9" * 18)])
def test_a_moment_that_fits_no_clock_is_refused(name: str, value: str) -> None:
    with pytest.raises(Refused, match=f"{name} is too far ahead") as caught:
        RULE.due_ms({name: value}, NOW)
    assert caught.value.remoting == 13
    assert due_by_properties({name: value + "000"}, NOW) == 10**18 - 1  # of another broker's log


def test_a_stored_record_without_sense_is_due_at_once() -> None:
    assert due_by_properties({"TIMER_DELAY_MS": "soon"}, NOW) == NOW
    assert due_by_properties({"TIMER_DELAY_MS": "soon", "TIMER_DELAY_SEC": "1"}, NOW) == NOW + 1_000
    assert due_by_properties({"TIMER_DELAY_MS": "-5"}, NOW) == NOW
