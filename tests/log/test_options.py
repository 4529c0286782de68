"""Settings of a store: RocketMQ's notation of delay levels."""

from __future__ import annotations

import pytest

from penstock.log.options import StoreOptions, delay_levels


def test_delay_levels() -> None:
    assert delay_levels("1s 2m 3h 1d") == (1_000, 120_000, 10_800_000, 86_400_000)
    assert len(delay_levels(StoreOptions().message_delay_level)) == 18
    for bad in ("5", "s", "5x", "1s 2", "-"):
        with pytest.raises(ValueError, match=r"delay level|invalid literal"):
            delay_levels(bad)
