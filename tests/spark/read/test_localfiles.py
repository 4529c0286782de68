"""A broker's own files read where a task can see them."""

from __future__ import annotations

from pathlib import Path

import pytest
from store_parts import make, put

from penstock.client.routes import MessageQueue
from penstock.spark.read.localfiles import Segments
from penstock.wire.record import iter_records

QUEUE = MessageQueue("T", "a", 0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    store = make(tmp_path)
    store.open()
    for n in range(300):
        put(store, b"m%d" % n, queue_id=int(n % 3 == 0))
    store.close()
    return tmp_path


@pytest.mark.parametrize("window_bytes", [1, 1_000, 1 << 20])
def test_every_record_of_a_queue_and_no_other(folder: Path, window_bytes: int) -> None:
    found, expected = [], [b"m%d" % n for n in range(300) if n % 3]
    for data, places, first, _ in Segments(folder).runs(QUEUE, 5, 150, window_bytes):
        for number, place in enumerate(places.tolist()):
            size = int.from_bytes(data[place : place + 4])
            (record,) = iter_records(data[place : place + size], check=True)
            assert record.queue_offset == first + number
            found.append(record.body)
    assert found == expected[5:150]


def test_what_is_not_there_ends_the_reading(folder: Path) -> None:
    assert list(Segments(folder).runs(QUEUE._replace(topic="none"), 0, 10)) == []
    assert list(Segments(folder).runs(QUEUE, 1_000, 1_010)) == []
    last = max((folder / "commitlog").iterdir())
    last.unlink()
    assert sum(len(places) for _, places, _, _ in Segments(folder).runs(QUEUE, 0, 200)) < 200
