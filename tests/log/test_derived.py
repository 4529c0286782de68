"""What is derived from a log, held against it: queues that are right, and those that are derived again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from store_parts import make, put, work

from penstock.log.checkpoint import DAMAGED_QUEUES
from penstock.log.contents import Contents, Recovery
from penstock.log.derived import Derived
from penstock.log.store import LogStore


def derived(store: LogStore) -> Derived:
    report = Recovery()
    contents = Contents(store, report)
    return Derived(store, report, contents)


def opened(folder: Path) -> LogStore:
    store = make(folder)
    store.open()
    for n in range(30):
        put(store, b"m%d" % n, queue_id=n % 2, properties=b"KEYS\x01k%d" % n if n % 3 else b"")
    return store


def test_sound_queues_and_a_sound_index(tmp_path: Path) -> None:
    store = opened(tmp_path)
    found = derived(store)
    assert found.bad_queues(store.end_position) == []
    assert found.index_joins()
    assert not any(found.headless(queue) for queue in store.queues[b"T"].values())
    store.close(False)


@pytest.mark.parametrize("size", [0, 40 + 50 * 4 + 60 * 20])
@pytest.mark.parametrize("newest", [True, False])
def test_an_index_file_whose_making_was_broken_off(tmp_path: Path, size: int, newest: bool) -> None:
    """A kill left it without a header, and the whole index was made anew. One that is older than the checkpoint had entries."""
    store = opened(tmp_path)
    work(store)
    store.close(False)
    (file,) = (tmp_path / "index").iterdir()
    begun = file.with_name(f"{int(file.name) + (1 if newest else -1):017d}")
    begun.write_bytes(bytes(size))
    store = make(tmp_path)
    report = store.open()
    assert report.rebuilt == ([] if newest else ["index"])
    assert not begun.exists()
    assert len(store.query(b"T", b"k7", 5, 0, 1 << 50)) == 1
    store.close(False)


def test_a_queue_whose_last_entry_leads_nowhere(tmp_path: Path) -> None:
    store = opened(tmp_path)
    queue = store.queue(b"T", 1)
    entry = queue.entry(queue.max_offset - 1)
    assert entry is not None
    queue.put_at(queue.max_offset - 1, entry[0] + 1, entry[1], entry[2])
    assert derived(store).bad_queues(store.end_position) == [] or entry[0] + 1 < store.end_position
    queue.put_at(queue.max_offset - 1, store.queue(b"T", 0).entry(0)[0], entry[1], entry[2])  # type: ignore[index]
    assert derived(store).bad_queues(store.end_position) == [queue]
    store.close(False)


def test_queues_that_a_reader_found_damaged_are_named_to_the_next_start(tmp_path: Path) -> None:
    store = opened(tmp_path)
    (tmp_path / DAMAGED_QUEUES).write_text(json.dumps({"T": {"1": 7, "x": 1, "2": -5}, "U": 3}))
    found = derived(store)
    found.read_blame()
    assert found.damaged_queues == {(b"T", 1)}
    store.close(False)


def test_after_a_power_cut_offsets_that_may_have_been_seen_are_skipped(tmp_path: Path) -> None:
    store = opened(tmp_path)
    end = store.queue(b"T", 0).max_offset
    found = derived(store)
    found.close_gaps()
    assert store.queue(b"T", 0).max_offset >= end + store.options.reserve_offsets
    assert found.report.gap_queues == 2
    store.close(False)


def test_the_index_of_a_rocketmq_broker_is_made_again_and_not_blamed(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.close(True)
    path = tmp_path / "checkpoint"
    times = bytearray(path.read_bytes())
    times[7] ^= 1  # it has flushed something since
    path.write_bytes(times)
    store = make(tmp_path)
    store.open()
    (moved,) = (json.loads(line) for line in (tmp_path / "lost+found" / "manifest.jsonl").read_text().splitlines())
    assert "no checkpoint of ours vouches for" in moved["why"]
    assert store.index is not None
    assert store.index.state()[1] == 21
    store.close(False)
