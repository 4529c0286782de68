"""The portal: coroutines for threads that wait."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest

from penstock.client.portal import Portal, portal


def test_one_for_the_process_and_its_child_another() -> None:
    first = portal()
    assert portal() is first
    first.pid = os.getpid() + 1  # as a forked child finds it
    try:
        assert portal() is not first
    finally:
        first.pid = os.getpid()


def test_results_and_errors_come_through() -> None:
    async def work(fails: bool) -> int:
        await asyncio.sleep(0)
        if fails:
            raise KeyError("no")
        return threading.get_ident()

    one = Portal()
    assert one.run(work(False)) != threading.get_ident()
    assert one.call(lambda a, b: a + b, 2, b=3) == 5
    with pytest.raises(KeyError):
        one.run(work(True))


def test_a_blocking_call_in_its_own_loop_is_refused() -> None:
    one = Portal()

    async def inner() -> None:
        """Never awaited."""

    async def outer() -> str:
        with pytest.raises(RuntimeError, match=r"penstock\.aio"):
            one.run(inner())
        return "refused"

    assert one.run(outer()) == "refused"
