"""When all objects are looked at for cycles of garbage."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from penstock.garbage import FEW, MANY, SHARE, Collector


class Knot:
    """What only the collector can free."""

    def __init__(self) -> None:
        self.self = self


@pytest.fixture
def collector() -> Iterator[Collector]:
    before, enabled = gc.get_threshold(), gc.isenabled()
    gc.enable()  # a command that ran in this process may have left it so
    gc.collect()
    with contextlib.closing(Collector()) as found:
        yield found
    assert gc.get_threshold() == before
    if not enabled:
        gc.disable()


def old_knot() -> weakref.ref[Knot]:
    """Garbage that was kept until it had grown old."""
    knot = Knot()
    for _ in range(2):
        gc.collect(1)
    return weakref.ref(knot)


def grow(count: int) -> list[list[int]]:
    """So many objects that could be part of a cycle, kept until they are old."""
    return [[] for _ in range(count)]


def test_a_process_that_works_is_left_alone_until_there_is_much(collector: Collector) -> None:
    knot = old_knot()
    assert not collector.look(0.0, 0.0)
    kept = grow(FEW * 5 // 4)
    assert not collector.look(1.0, 0.5)
    assert knot() is not None
    kept += grow(MANY)
    assert knot() is not None  # nor does Python by itself
    assert collector.look(2.0, 1.0)
    assert knot() is None


def test_one_that_rests_collects_what_is_worth_it(collector: Collector) -> None:
    knot = old_knot()
    assert not collector.look(0.0, 0.0)
    assert not collector.look(1.0, 0.0)
    kept = grow(FEW * 5 // 4)
    assert collector.look(2.0, 0.001)
    assert knot() is None
    assert not collector.look(1_000.0, 0.001)
    assert kept


def test_what_comes_and_goes_is_no_reason(collector: Collector) -> None:
    """As with connections of one request: many objects grow old in turn, and none is left."""
    assert not collector.look(0.0, 0.0)
    for _ in range(40):
        grow(FEW // 4)
    assert not collector.look(1.0, 0.0)


def test_collecting_takes_its_share_of_the_time(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([10.0, 10.5])
    monkeypatch.setattr(
        "penstock.garbage.time", SimpleNamespace(perf_counter=lambda: next(ticks))
    )  # other threads have theirs
    assert not collector.look(0.0, 0.0)
    kept = grow(FEW * 5 // 4)
    assert collector.look(1.0, 0.0)
    kept += grow(MANY * 5 // 4)
    assert not collector.look(1.0 + 0.5 / SHARE - 1, 100.0)
    ticks = iter([10.0, 10.5])
    assert collector.look(1.0 + 0.5 / SHARE, 200.0)
    assert kept


async def test_it_ends_with_its_task() -> None:
    before = gc.get_threshold()
    task = asyncio.create_task(Collector().run())
    await asyncio.sleep(0)
    assert gc.get_threshold()[:2] == before[:2]
    assert gc.get_threshold() != before
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert gc.get_threshold() == before
