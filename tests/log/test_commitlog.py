"""CommitLog: records in RocketMQ's bytes, and which bytes are taken for one."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from store_parts import SMALL, bodies, make, put, snapshot

from occupants import OCCUPANTS, demand_aside, occupy
from penstock.disk.files import Files
from penstock.disk.job import run_now
from penstock.errors import DiskFull, StoreError
from penstock.log.commitlog import BAD, BLANK, GATHER_BYTES
from penstock.log.draft import Draft
from penstock.log.options import StoreOptions
from penstock.log.store import LogStore
from penstock.wire import layout

ROOMY = StoreOptions(mapped_file_size_commit_log=4 << 20, max_hash_slot_num=50, max_index_num=20_000)


def gather(store: LogStore, body: bytes, properties: bytes = b"") -> Draft:
    draft = Draft()
    draft.queue = store.queue(b"T", 0)
    draft.set_body(body)
    draft.set_properties(properties)
    assert store.gather(draft) == 0
    return draft


class Writes(Files):
    """Which writes went to the log, and whether they fail, all of them or behind so many bytes."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.error: type[StoreError] | None = None
        self.part = 0

    def write(self, fd: int, at: int, data: bytes | memoryview) -> None:
        if len(data) > 100:
            self.sizes.append(len(data))
            if self.error is not None:
                super().write(fd, at, data[: self.part])
                raise self.error("by order of the test")
        super().write(fd, at, data)


def test_a_record_is_taken_for_one_when_all_its_lengths_agree(tmp_path: Path) -> None:
    store = make(tmp_path)
    store.open()
    drafts = [put(store, b"body %d" % n, properties=b"KEYS\x01k") for n in range(2)]
    log, draft = store.log, drafts[0]
    segment = log.file.at(0)
    assert segment is not None
    at = draft.physical
    for place in (
        layout.SIZE + 3,
        layout.MAGIC,
        layout.PHYSICAL + 7,
        layout.BODY_LENGTH + 3,
        draft.size - len(b"KEYS\x01k") - 1,
    ):
        was = segment.map[at + place]
        segment.map[at + place : at + place + 1] = bytes([was ^ 1])
        assert log.size_at(at) == BAD, place
        segment.map[at + place : at + place + 1] = bytes([was])
    segment.map[at + layout.BODY : at + layout.BODY + 1] = b"?"
    assert (log.size_at(at), log.check(at)) == (draft.size, BAD)  # its lengths agree, its body does not
    store.close()


def test_a_segment_ends_with_a_blank(tmp_path: Path) -> None:
    store = make(tmp_path)
    store.open()
    last = 0
    while (draft := put(store, b"x" * 1_000)).physical < store.log.file.size:
        last = draft.physical + draft.size
    assert draft.physical == store.log.file.size
    assert store.log.size_at(last) == BLANK
    assert store.log.bytes_at(last + 4, 4) == layout.MAGIC_BLANK.to_bytes(4)
    store.close()


def test_records_stand_where_they_say(tmp_path: Path) -> None:
    store = make(tmp_path)
    store.open()
    drafts = [put(store, b"m%d" % n) for n in range(3)]
    log = store.log
    assert [log.size_at(draft.physical) for draft in drafts] == [draft.size for draft in drafts]
    assert log.size_at(log.end) == BAD
    assert log.stands_for(drafts[1].physical, 0, 1)
    assert not log.stands_for(drafts[1].physical, 0, 2)
    segment = log.file.at(0)
    assert segment is not None
    segment.map[drafts[1].physical + layout.FLAG : drafts[1].physical + layout.FLAG + 1] = b"?"
    assert (log.size_at(drafts[1].physical), log.check(drafts[1].physical)) == (drafts[1].size, BAD)
    assert log.check(drafts[2].physical) == drafts[2].size
    store.close()


@pytest.mark.parametrize("size", [1, 1 << 14])
def test_what_fits_no_segment_is_too_large(tmp_path: Path, size: int) -> None:
    store = make(tmp_path)
    store.open()
    assert store.log.room(size, 1) == (0 if size == 1 else 3)
    store.close()


def test_what_was_gathered_is_with_the_system_when_it_is_settled(tmp_path: Path) -> None:
    store = make(tmp_path / "s", options=ROOMY)
    store.open()
    put(store, b"before")
    for n in range(20):
        gather(store, b"%d" % n)
    path = tmp_path / "s" / "commitlog" / f"{0:020d}"
    assert b"before" in path.read_bytes()[: store.log.settled_end()]
    assert not any(path.read_bytes()[store.log.settled_end() :])
    killed = make(snapshot(tmp_path / "s", tmp_path / "killed"), options=ROOMY)
    report = killed.open()
    assert (bodies(killed), report.damage, report.power_cut) == ([b"before"], [], False)
    assert put(killed, b"after").queue_offset == 1
    killed.close()
    store.settle()
    settled = make(snapshot(tmp_path / "s", tmp_path / "settled"), options=ROOMY)
    report = settled.open()
    assert (len(bodies(settled)), report.damage, report.power_cut) == (21, [], False)
    settled.close()
    store.close()


READERS = {
    "read": lambda store, last: bodies(store)[-1] == b"last",
    "size_at": lambda store, last: store.log.size_at(last.physical) == last.size,
    "check": lambda store, last: store.log.check(last.physical) == last.size,
    "stands_for": lambda store, last: store.log.stands_for(last.physical, 0, last.queue_offset),
    "bytes_at": lambda store, last: b"last" in store.log.bytes_at(last.physical, last.size),
    "record_at": lambda store, last: b"last" in store.record_at(last.physical),
    "query": lambda store, last: len(store.query(b"T", b"key", 3, 0, 1 << 60)) == 1,
    "store_time": lambda store, last: store.store_time(store.queue(b"T", 0), last.queue_offset) > 0,
    "flush": lambda store, last: b"last" in flushed(store),
}


def flushed(store: LogStore) -> bytes:
    """What is in the log's file when a flush of all that was appended begins."""
    found = []
    job = store.durability.start(0)
    segment = store.log.file.at(0)
    assert segment is not None
    found.append(segment.path.read_bytes())
    run_now([job], 0)
    assert store.flushed_position == store.end_position
    return found[0]


@pytest.mark.parametrize("before", [0, 1, 300])
@pytest.mark.parametrize("reader", READERS)
def test_whoever_reads_in_the_same_turn_sees_everything(tmp_path: Path, reader: str, before: int) -> None:
    store = make(tmp_path, options=ROOMY)
    store.open()
    for n in range(before):
        gather(store, b"%d" % n * 100)
    last = gather(store, b"last", b"KEYS\x01key")
    assert READERS[reader](store, last)
    store.close()


@pytest.mark.parametrize(("error", "part"), [(None, 0), (StoreError, 0), (DiskFull, 5_000), (StoreError, 12_000)])
def test_large_turns_are_written_and_what_fails_goes_through_the_mapping(
    tmp_path: Path, error: type[StoreError] | None, part: int
) -> None:
    files = Writes()
    store = make(tmp_path / "s", files=files, options=ROOMY)
    store.open()
    files.error, files.part = error, part
    expected = []
    for turn in range(30):
        for n in range(1 + turn * 7 % 100):
            expected.append(b"%d.%d " % (turn, n) * 60)
            gather(store, expected[-1])
        store.settle()
        assert store.log.settled_end() == store.end_position
    assert files.sizes
    assert max(files.sizes) <= GATHER_BYTES
    assert bodies(store) == expected
    files.error = None
    killed = make(snapshot(tmp_path / "s", tmp_path / "killed"), options=ROOMY)
    report = killed.open()
    assert (bodies(killed), report.damage, report.cut_bytes, report.power_cut) == (expected, [], 0, False)
    killed.close()
    store.close()


def test_a_record_larger_than_what_is_gathered_and_the_end_of_a_segment(tmp_path: Path) -> None:
    store = make(tmp_path / "s", options=ROOMY)
    store.open()
    expected = [bytes([n]) * size for n, size in enumerate([10, GATHER_BYTES - 300, 2 << 20, 10, 1 << 20, 1 << 20, 3])]
    for body in expected:
        gather(store, body)
    store.settle()
    assert store.end_position > ROOMY.mapped_file_size_commit_log
    killed = make(snapshot(tmp_path / "s", tmp_path / "killed"), options=ROOMY)
    report = killed.open()
    assert (bodies(killed), report.damage, report.cut_bytes) == (expected, [], 0)
    killed.close()
    store.close()


def test_pages_are_not_made_ready_for_what_is_written_in_large_pieces(tmp_path: Path) -> None:
    store = make(tmp_path, options=ROOMY)
    store.open()
    assert not store.log.streaming
    for _ in range(2):
        for n in range(3_000):
            gather(store, b"x" * 300)
            if n % 100 == 99:
                store.settle()
    assert store.log.streaming
    for _ in range(3_000):
        put(store, b"x" * 300)
    assert not store.log.streaming
    store.close()


@pytest.mark.parametrize("what", OCCUPANTS)
def test_what_has_the_name_of_the_next_segment_makes_way(tmp_path: Path, what: str) -> None:
    """A longer file was written into, and the next start took it for none of the log's: what was acknowledged was gone."""
    data, outside = tmp_path / "data", tmp_path / "outside"
    store = make(data)
    store.open()
    put(store, b"first")
    path = data / "commitlog" / f"{SMALL.mapped_file_size_commit_log:020d}"
    occupy(path, what, SMALL.mapped_file_size_commit_log, outside)
    sent = [b"%d" % n * 400 for n in range(60)]
    for body in sent:
        put(store, body)
    store.close()
    with contextlib.closing(make(data)) as again:
        again.open()
        assert bodies(again) == [b"first", *sent]
    demand_aside(data, f"commitlog-{path.name}", outside)
