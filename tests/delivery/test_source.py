"""MemorySource: first in, first out over memory and disk, and what a clean stop writes down."""

from __future__ import annotations

from pathlib import Path

import pytest

from disk.queue_parts import drain, make
from penstock.delivery.source import MemorySource
from penstock.wire.nsq import message_data


def data(number: int, attempts: int = 0) -> bytes:
    return message_data(number * 10, attempts, number, b"m%d" % number)


def taken(source: MemorySource) -> list[bytes]:
    found = []
    while source.take():
        found.append(source.body())
    return found


def test_what_a_message_shows() -> None:
    source = MemorySource(5, None)
    source.put([data(7, attempts=2)])
    assert source.take() == 1
    assert (source.body(), source.message_id, source.stamp_ns, source.attempts) == (b"m7", 7, 70, 2)
    place = source.place
    assert source.take() == 0
    assert source.show(0, place) == 1
    source.done(0, place)
    assert source.show(0, place) == 0


def test_without_a_disk_the_overflow_is_dropped_and_counted() -> None:
    source = MemorySource(3, None)
    source.put([data(n) for n in range(5)])
    source.put([data(5)])
    assert (source.depth(), source.dropped) == (3, 3)
    assert taken(source) == [b"m0", b"m1", b"m2"]
    source.put([data(6)])
    source.empty()
    assert (source.depth(), source.take()) == (0, 0)


def test_order_holds_over_memory_and_disk(tmp_path: Path) -> None:
    backend = make(tmp_path)
    source = MemorySource(3, backend)
    for n in range(10):
        source.put([data(n)])
    assert (source.depth(), source.backend_depth()) == (10, 7)
    assert taken(source) == [b"m%d" % n for n in range(10)]
    assert source.depth() == 0
    backend.close()


@pytest.mark.parametrize("finished", [0, 1, 4])
def test_a_clean_stop_keeps_what_is_not_done(tmp_path: Path, finished: int) -> None:
    backend = make(tmp_path)
    source = MemorySource(3, backend)
    source.put([data(n) for n in range(6)])
    in_hand = []
    for number in range(4):
        source.take()
        if number < finished:
            source.done(0, source.place)
        else:
            in_hand.append((source.place, 1))
    source.save(in_hand)
    backend.close()
    again = make(tmp_path)
    assert {payload[26:] for payload in drain(again)} == {b"m%d" % n for n in range(finished, 6)}
    again.close()
