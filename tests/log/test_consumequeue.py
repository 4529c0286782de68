"""ConsumeQueue: entries by offset, what is durable, what is cut, and queues that begin later."""

from __future__ import annotations

import contextlib
import weakref
from pathlib import Path

import pytest
from store_parts import SMALL, bodies, make, put

from occupants import OCCUPANTS, demand_aside, occupy
from penstock.disk.files import PAGES_BYTES, Files
from penstock.log.consumequeue import ConsumeQueue, TagCodes
from penstock.wire.layout import ENTRY_BYTES, FILLER_SIZE

SIZE = 5 * ENTRY_BYTES


def queue(folder: Path, count: int = 0) -> ConsumeQueue:
    """Entries of records of 100 bytes, one behind another."""
    made = ConsumeQueue(folder / "0", b"T", 0, SIZE, Files())
    made.reserve(1_000)
    for n in range(count):
        made.put_at(n, n * 100, 100, n + 7)
    return made


def test_entries_over_many_files(tmp_path: Path) -> None:
    made = queue(tmp_path, 12)
    assert [made.entry(n) for n in (0, 4, 5, 11)] == [(n * 100, 100, n + 7) for n in (0, 4, 5, 11)]
    assert made.entry(12) is None
    made.close()
    again = queue(tmp_path)
    assert again.load() == []
    assert (again.min_offset, again.max_offset) == (0, 12)
    again.close()


@pytest.mark.parametrize(("flushed", "end"), [(0, 0), (99, 0), (100, 1), (550, 5), (1_200, 12)])
def test_what_is_durable_lies_wholly_below_the_flushed_position(tmp_path: Path, flushed: int, end: int) -> None:
    made = queue(tmp_path, 12)
    assert made.durable_end(flushed) == end
    made.close()


def test_readers_see_what_is_reserved_and_not_hidden(tmp_path: Path) -> None:
    made = queue(tmp_path, 6)
    assert made.visible_end() == 6
    made.hidden_from = 4
    assert made.visible_end() == 4
    made.hidden_from = 1 << 62
    made.reserve(5)
    assert made.visible_end() == 5
    made.close()


def test_a_cut_leaves_nothing_behind_it(tmp_path: Path) -> None:
    made = queue(tmp_path, 12)
    gone = made.cut(700)
    assert (made.max_offset, len(gone)) == (7, 1)
    assert made.entry(7) is None
    assert made.survey(700)
    assert made.max_offset == 7
    made.close()


def test_offsets_left_out_become_fillers(tmp_path: Path) -> None:
    made = queue(tmp_path, 2)
    made.put_at(5, 900, 100, 0)
    assert [made.entry(n)[1] for n in range(6)] == [100, 100, FILLER_SIZE, FILLER_SIZE, FILLER_SIZE, 100]  # type: ignore[index]
    assert made.first_at_or_after(150) == 5
    assert made.first_at_or_after(901) == 6
    made.close()


def test_a_queue_that_begins_later_remembers_it(tmp_path: Path) -> None:
    made = queue(tmp_path)
    made.fill_to(8)
    assert (made.min_offset, made.max_offset) == (8, 8)
    made.put_at(8, 0, 100, 0)
    made.close()
    again = queue(tmp_path)
    again.load()
    assert (again.min_offset, again.max_offset) == (8, 9)
    again.close()


def test_retention_gives_back_whole_files(tmp_path: Path) -> None:
    made = queue(tmp_path, 12)
    assert len(made.follow(700)) == 1
    assert (made.min_offset, made.max_offset) == (7, 12)
    assert made.entry(2) is None
    made.close()


def test_a_queue_of_a_deleted_topic_holds_no_file_open_and_goes_on_where_it_ended(tmp_path: Path) -> None:
    made = queue(tmp_path, 12)
    reading = made.file.at(11 * ENTRY_BYTES)
    assert reading is not None
    held = weakref.ref(reading.map)
    gone = weakref.ref(made.file.segments[0].map)
    assert (held(), gone()) != (None, None)
    made.retire()
    assert gone() is None
    assert held() is not None  # who is in the middle of it reads on
    assert (made.min_offset, made.max_offset, made.visible_end()) == (12, 12, 12)
    assert len(made.follow(1 << 40)) == 2
    assert [segment.map for segment in made.file.segments] == [None]  # retention maps none of them
    made.put_at(12, 1_200, 100, 19)
    assert [made.entry(n) for n in (11, 12)] == [(n * 100, 100, n + 7) for n in (11, 12)]
    made.close()
    again = queue(tmp_path)
    again.load()
    assert again.max_offset == 13
    again.close()


def test_tags_codes() -> None:
    codes = TagCodes([5, -7, 1 << 40])
    assert [codes.match(code) for code in (5, -7, 1 << 40, 0, 7)] == [True, True, True, False, False]
    assert not TagCodes([]).match(0)


@pytest.mark.parametrize("busy", [True, False])
def test_a_busy_queue_has_pages_ahead_of_it_and_a_quiet_one_has_not(tmp_path: Path, busy: bool) -> None:
    files = Files()
    made = ConsumeQueue(tmp_path / "0", b"T", 0, 100_000 * ENTRY_BYTES, files)
    made.reserve(1_000_000)
    count = 8 * PAGES_BYTES // ENTRY_BYTES
    for n in range(count):
        made.put_at(n, n * 100, 100, n + 7)
        if not busy and n % 20 == 0:
            made.flushed()
    segment = made.file.segments[0]
    fd = files.open(segment.path)
    (found,) = files.data_ranges(fd, 0, segment.size)
    files.close(fd)
    used = (count * ENTRY_BYTES + 4095) // 4096 * 4096
    assert found == (0, segment.allocated if busy else used)
    assert made.entry(count - 1) == (count * 100 - 100, 100, count + 6)
    made.close()
    again = ConsumeQueue(tmp_path / "0", b"T", 0, 100_000 * ENTRY_BYTES, files)
    assert again.load() == []
    assert again.max_offset == count
    again.close()


@pytest.mark.parametrize("what", OCCUPANTS)
def test_what_has_the_name_of_the_next_file_makes_way(tmp_path: Path, what: str) -> None:
    """A link was followed and the file it leads to overwritten; beside a folder or a pipe the topic took no more messages."""
    data, outside = tmp_path / "data", tmp_path / "outside"
    with contextlib.closing(make(data)) as store:
        store.open()
        put(store, b"first")
        path = data / "consumequeue" / "T" / "0" / f"{SMALL.mapped_file_size_consume_queue:020d}"
        occupy(path, what, SMALL.mapped_file_size_consume_queue, outside)
        sent = [b"%d" % n for n in range(60)]
        for body in sent:
            put(store, body)
    with contextlib.closing(make(data)) as again:
        assert not again.open().moved
        assert bodies(again) == [b"first", *sent]
    demand_aside(data, f"consumequeue-T-0-{path.name}", outside)
