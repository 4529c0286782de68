"""The settings of a consumer: one value, which nobody changes."""

from __future__ import annotations

import dataclasses
from datetime import datetime

import pytest

from client.scripted import settings
from penstock.client.aio.consumersettings import ConsumerSettings


def test_who_shares_the_queues() -> None:
    assert settings(model="cluster").shared
    assert not settings(model="broadcast").shared


def test_they_are_a_value() -> None:
    one = settings()
    assert isinstance(one, ConsumerSettings)
    assert one == settings()
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.group = "other"  # type: ignore[misc]


@pytest.mark.parametrize(
    "wrong",
    [
        {"model": "x"}, {"kind": "x"},
        {"start": "middle"}, {"start": datetime(2026, 1, 1)}, {"concurrency": 0}, {"attempts_max": 0},
        {"window_count": 0}, {"window_bytes": -1}, {"in_flight_max": 0}, {"timeout_s": 0},
        {"consume_timeout_s": -1}, {"window_count": float("nan")}, {"start": 1.5},
    ],
)  # fmt: skip
def test_what_cannot_be_is_said_at_once(wrong: dict[str, object]) -> None:
    """Such a consumer would read nothing, and say nothing."""
    with pytest.raises(ValueError, match=r"."):
        settings(**wrong)
