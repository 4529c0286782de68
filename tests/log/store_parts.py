"""Shared by the store's tests: a small store, a message, everything in a queue."""

from __future__ import annotations

import shutil
from pathlib import Path

from penstock.clock import FakeClock
from penstock.disk.files import Files
from penstock.disk.job import run_now
from penstock.log.consumequeue import ConsumeQueue
from penstock.log.draft import Draft
from penstock.log.options import StoreOptions
from penstock.log.reading import ReadResult
from penstock.log.store import LogStore
from penstock.wire.record import iter_records

SMALL = StoreOptions(
    mapped_file_size_commit_log=1 << 14,
    mapped_file_size_consume_queue=400,
    max_hash_slot_num=50,
    max_index_num=60,
    prefault_bytes=4096,
    reserve_offsets=64,
)


def make(
    folder: Path, *, files: Files | None = None, clock: FakeClock | None = None, options: StoreOptions = SMALL
) -> LogStore:
    return LogStore(folder, options, files=files, clock=clock or FakeClock())


def put(store: LogStore, body: bytes, topic: bytes = b"T", queue_id: int = 0, properties: bytes = b"") -> Draft:
    draft = Draft()
    draft.queue = store.queue(topic, queue_id)
    draft.set_body(body)
    draft.set_properties(properties)
    assert store.append(draft) == 0
    return draft


def contents(store: LogStore, queue: ConsumeQueue) -> list[tuple[int, bytes]]:
    """(queue offset, body) of all that a reader gets, from the smallest offset on."""
    result = ReadResult()
    found: list[tuple[int, bytes]] = []
    offset = queue.min_offset
    while True:
        status = store.read(queue, offset, 7, 1 << 20, -1, None, result)
        if status == 0:
            found += [(record.queue_offset, record.body) for record in iter_records(result.body(), check=True)]
        elif status not in (1, 2, 3):
            return found
        assert result.next_offset > offset
        offset = result.next_offset


def bodies(store: LogStore, topic: bytes = b"T", queue_id: int = 0) -> list[bytes]:
    return [body for _, body in contents(store, store.queue(topic, queue_id))]


def work(store: LogStore, rounds: int = 3) -> None:
    """Let time go on and do every job that is due."""
    for _ in range(rounds):
        store.clock.advance(1500)
        now_ms, mono_ms = store.clock.now_ms(), store.clock.monotonic_ms()
        store.tick(now_ms, mono_ms)
        run_now(store.take_jobs(mono_ms), mono_ms)
        store.tick(now_ms, mono_ms)
        run_now(store.take_jobs(mono_ms), mono_ms)


def snapshot(folder: Path, to: Path) -> Path:
    """A copy of the folder as a killed process leaves it."""
    shutil.copytree(folder, to)
    return to
