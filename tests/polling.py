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


def later_ms(apart_ms: int = 50) -> int:
    """A time of the wall clock, so far behind what was stored before and so far ahead of what is stored after it returns:
    a broker's clock follows this one slowly (`broker.clock`).
    """
    begin = time.time_ns() // 1_000_000
    eventually(lambda: time.time_ns() // 1_000_000 > begin + 2 * apart_ms)
    return begin + apart_ms
