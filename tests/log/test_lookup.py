"""Looking messages up by place, time and key."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from store_parts import make, put

from penstock.clock import FakeClock
from penstock.log.lookup import Lookup
from penstock.log.store import LogStore
from penstock.wire.record import decode_record

START_MS = 1_700_000_000_000


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LogStore]:
    """Five messages, ten seconds apart."""
    clock = FakeClock(START_MS)
    store = make(tmp_path, clock=clock)
    assert isinstance(store, Lookup)
    store.open()
    for n in range(5):
        store.begin_turn(clock.now_ms())
        put(store, b"m%d" % n, properties=b"KEYS\x01k%d all" % n)
        clock.advance(10_000)
    yield store
    store.close()


def test_where_records_begin_that_lie_together(store: LogStore) -> None:
    first = store.queue(b"T", 0).entry(0)
    assert first is not None
    found = store.positions(first[0], 5)
    assert found == [store.queue(b"T", 0).entry(n)[0] for n in range(5)]  # type: ignore[index]


def test_store_times(store: LogStore) -> None:
    queue = store.queue(b"T", 0)
    assert [store.store_time(queue, n) - START_MS for n in range(5)] == [0, 10_000, 20_000, 30_000, 40_000]
    assert store.store_time(queue, 5) == -1
    assert store.store_time(queue, -1) == -1


@pytest.mark.parametrize(
    ("after_ms", "nearest", "lower"),
    [(-5, 0, 0), (0, 0, 0), (4_000, 0, 1), (5_000, 0, 1), (6_000, 1, 1), (40_000, 4, 4), (99_000, 4, 5)],
)
def test_offsets_by_time(store: LogStore, after_ms: int, nearest: int, lower: int) -> None:
    queue = store.queue(b"T", 0)
    assert store.offset_by_time(queue, START_MS + after_ms) == nearest
    assert store.offset_by_time(queue, START_MS + after_ms, lower=True) == lower


def test_keys(store: LogStore) -> None:
    def bodies(key: bytes, topic: bytes = b"T", most: int = 10, end_ms: int = 1 << 60) -> list[bytes]:
        found = [decode_record(record) for record in store.query(topic, key, most, 0, end_ms)]
        return [message.body for message in found if message is not None]

    assert bodies(b"k3") == [b"m3"]
    assert bodies(b"all", most=2) == [b"m4", b"m3"]  # newest first
    assert bodies(b"all", end_ms=START_MS + 10_000) == [b"m1", b"m0"]
    assert bodies(b"k3", topic=b"U") == []
    assert bodies(b"al") == []
