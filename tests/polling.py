"""Waiting in tests: for a condition, looked at every few milliseconds, until a deadline that is far away."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

EVERY_S = 0.01
WITHIN_S = 60.0


def eventually(
    condition: Callable[[], object], within_s: float = WITHIN_S, say: str = "it did not happen in time"
) -> None:
    """Return when the condition is true."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, say
        time.sleep(EVERY_S)


async def until(condition: Callable[[], object], within_s: float = WITHIN_S) -> None:
    """The same in an event loop."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(EVERY_S)


def later_ms() -> int:
    """The wall clock in milliseconds, once it is past every time that was given out before."""
    begin = time.time_ns() // 1_000_000
    eventually(lambda: time.time_ns() // 1_000_000 > begin + 1)
    return begin + 1
