"""The files of a consume queue, held against the log's records."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from store_parts import make, put

from penstock.spark.log.derive import windows
from penstock.spark.log.files import cut, find
from penstock.spark.log.queuefile import QueueFiles, entries_of
from penstock.wire.layout import ENTRY_BYTES


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    store = make(tmp_path)
    store.open()
    for n in range(50):
        put(store, b"m%d" % n)
    store.close()
    return tmp_path


def disagreeing(folder: Path) -> int:
    queue = QueueFiles(folder / "consumequeue" / "T" / "0")
    count = 0
    for pieces in cut(find(str(folder)), 1 << 30, None):
        for piece in pieces:
            for window in windows(piece):
                count += len(queue.disagree(window, np.arange(len(window.offset))))  # type: ignore[union-attr]
    return count


def test_entries(folder: Path) -> None:
    first = min((folder / "consumequeue" / "T" / "0").iterdir())
    assert entries_of(first)["size"][0] > 91
    assert len(entries_of(folder / "nothing")) == 0


def test_an_entry_that_says_otherwise(folder: Path) -> None:
    assert disagreeing(folder) == 0
    first = min((folder / "consumequeue" / "T" / "0").iterdir())
    data = bytearray(first.read_bytes())
    data[3 * ENTRY_BYTES + 7] ^= 1
    first.write_bytes(data)
    assert disagreeing(folder) == 1
