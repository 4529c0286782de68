"""Windows of statistics in words."""

from __future__ import annotations

import pytest

from penstock.errors import ConfigError
from penstock.spark.pipelines.statspage import window_ms


@pytest.mark.parametrize(
    ("text", "ms"), [("all", 0), ("30s", 30_000), ("1m", 60_000), ("2h", 7_200_000), ("1d", 86_400_000)]
)
def test_windows(text: str, ms: int) -> None:
    assert window_ms(text) == ms


@pytest.mark.parametrize("text", ["", "m", "5", "1y", "-1m", "0s"])
def test_what_is_no_window(text: str) -> None:
    with pytest.raises(ConfigError):
        window_ms(text)
