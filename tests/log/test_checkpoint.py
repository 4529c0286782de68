"""Checkpoints, the lock, the store's identity and the live pages: what one start tells the next."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from penstock.disk import tables
from penstock.disk.files import Files
from penstock.errors import Corrupt
from penstock.log.checkpoint import (
    LIVE,
    Checkpoint,
    CheckpointFile,
    LivePages,
    newest,
    open_store_file,
    parse,
    times,
)

SIZES = (1 << 20, 6_000, 100, 400)


def written(folder: Path, *values: Checkpoint) -> bytes:
    file = CheckpointFile(folder / "checkpoint", Files())
    for value in values:
        file.write(value)
    file.close()
    return (folder / "checkpoint").read_bytes()


def test_the_newest_of_two_slots_counts(tmp_path: Path) -> None:
    written(tmp_path, *(Checkpoint(durable=n, derived=n, store_ms=n, epoch=7, clean=n == 3) for n in (1, 2, 3)))
    again = CheckpointFile(tmp_path / "checkpoint", Files())
    value = again.load()
    assert value is not None
    assert (value.generation, value.durable, value.epoch, value.clean) == (3, 3, 7, True)
    assert again.foreign_from == -1


def test_a_torn_slot_leaves_the_one_before(tmp_path: Path) -> None:
    data = written(tmp_path, Checkpoint(durable=1, store_ms=5), Checkpoint(durable=2, store_ms=5))
    slots = parse(data)
    assert sorted(slot.durable for slot in slots) == [1, 2]
    for at in (1024, 2048):
        torn = data[: at + 20] + b"?" + data[at + 21 :]
        assert len(parse(torn)) == 1
    assert parse(b"") == []


def test_another_broker_that_wrote_behind_ours_is_noticed(tmp_path: Path) -> None:
    data = written(tmp_path, Checkpoint(durable=2, store_ms=5))
    assert times(data) == (5, 5, 5)
    assert newest(data)[1]
    foreign = struct.pack(">qqq", 9, 8, 7) + data[24:]
    mark, counts = newest(foreign)
    assert mark is not None
    assert not counts
    assert newest(foreign, "pid 7 boot x")[1] is False  # both log and queues went on
    torn = struct.pack(">qqq", 9, 5, 5) + data[24:]
    assert newest(torn, "pid 7 boot x")[1] is True
    (tmp_path / "checkpoint").write_bytes(foreign)
    file = CheckpointFile(tmp_path / "checkpoint", Files())
    assert file.load() is None
    assert file.foreign_from == 2


def test_an_identity_keeps_its_sizes_and_counts_its_starts(tmp_path: Path) -> None:
    path = tmp_path / "store.json"
    first = open_store_file(Files(), path, *SIZES)
    again = open_store_file(Files(), path, 1, 2, 3, 4)
    assert (again.store_id, again.epoch) == (first.store_id, first.epoch + 1)
    assert (again.log_segment_size, again.queue_file_size, again.slots, again.entries) == SIZES
    tables.save(Files(), path, {"formatVersion": 2, "storeId": "x", "mappedFileSizeConsumeQueue": 1_024})
    assert (
        open_store_file(Files(), path, *SIZES).queue_file_size == 1_040
    )  # as a store may have it from a version before
    tables.save(Files(), path, {"formatVersion": 99, "storeId": "x"})
    with pytest.raises(Corrupt, match="format version 99"):
        open_store_file(Files(), path, *SIZES)


def test_live_pages_say_how_far_the_log_went(tmp_path: Path) -> None:
    pages = LivePages(tmp_path, Files())
    page = pages.start(100)
    page[16:24] = (250).to_bytes(8)
    assert [seen for seen in pages.seen() if seen[0] == LIVE] == [(LIVE, 1, 250, 100)]
    pages.mark()
    pages.turn(300)
    assert [seen[1:3] for seen in pages.seen() if seen[0] == LIVE] == [(2, 300)]
    pages.remove()
    assert LivePages(tmp_path, Files()).seen() == []
