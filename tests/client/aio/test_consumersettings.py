"""The settings of a consumer: one value, which nobody changes."""

from __future__ import annotations

import dataclasses

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
