"""KeyIndex: keys to places in the log, newest first, over several files, cuts and damage."""

from __future__ import annotations

from pathlib import Path

from store_parts import SMALL, make, put

from penstock.clock import FakeClock
from penstock.disk.files import Files
from penstock.log.keyindex import KeyIndex
from penstock.log.store import LogStore
from penstock.octets import java_hash

START_MS = 1_700_000_000_000


def hash_of(key: bytes) -> int:
    text = b"T#" + key
    return abs(java_hash(text, 0, len(text), 0))


def filled(folder: Path, count: int) -> tuple[LogStore, list[int]]:
    """Messages a second apart, of keys a, b and c in turn: an index file takes fewer than sixty."""
    clock = FakeClock(START_MS)
    store, places = make(folder, clock=clock), []
    store.open()
    for n in range(count):
        store.begin_turn(clock.now_ms())
        places.append(put(store, b"x", properties=b"KEYS\x01" + b"abc"[n % 3 : n % 3 + 1]).physical)
        clock.advance(1_000)
    return store, places


def reopened(folder: Path) -> tuple[KeyIndex, list[Path]]:
    index = KeyIndex(folder / "index", SMALL.max_hash_slot_num, SMALL.max_index_num, Files(), FakeClock())
    return index, index.load()


def test_keys_of_several_files_newest_first(tmp_path: Path) -> None:
    store, places = filled(tmp_path, 150)
    index = store.index
    assert len(index.index_files) == 3
    assert index.find(hash_of(b"b"), 0, 1 << 60, 1_000) == places[1::3][::-1]
    assert index.find(hash_of(b"b"), 0, 1 << 60, 2) == places[1::3][:-3:-1]
    during = index.find(hash_of(b"b"), START_MS + 4_000, START_MS + 10_000, 100)
    assert during == [places[10], places[7], places[4]]
    assert index.find(77, 0, 1 << 60, 100) == []
    assert (index.ends_at, index.is_sound()) == (places[-1], True)
    store.close()


def test_an_index_is_read_again(tmp_path: Path) -> None:
    store, places = filled(tmp_path, 150)
    state, ranges = store.index.state(), store.index.ranges()
    store.close()
    again, odd = reopened(tmp_path)
    assert (odd, again.state(), again.ranges(), again.ends_at) == ([], state, ranges, places[-1])
    assert again.find(hash_of(b"c"), 0, 1 << 60, 1_000) == places[2::3][::-1]
    again.close()


def test_going_back_to_a_former_state(tmp_path: Path) -> None:
    store, places = filled(tmp_path, 150)
    index = store.index
    name = int(index.index_files[1].path.name)
    gone = index.cut(name, 10)
    assert gone is not None
    assert len(gone) == 1
    first = index.index_files[0].count - 1
    assert index.find(hash_of(b"a"), 0, 1 << 60, 1_000) == places[: first + 9][::3][::-1]
    assert index.is_sound()
    assert index.cut(name, 99) is None
    store.close(False)


def test_files_that_cannot_be_believed(tmp_path: Path) -> None:
    store, _ = filled(tmp_path, 3)
    path = store.index.index_files[0].path
    store.close()
    (tmp_path / "index" / "odd").write_bytes(b"x")
    (tmp_path / "index" / "20200101000000000").write_bytes(b"short")
    data = bytearray(path.read_bytes())
    data[36:40] = (99).to_bytes(4)  # more entries than fit
    path.write_bytes(data)
    again, odd = reopened(tmp_path)
    assert len(odd) == 3
    assert again.state() == (0, 0)


def test_retention_gives_back_what_lies_below(tmp_path: Path) -> None:
    store, places = filled(tmp_path, 150)
    index = store.index
    second = index.index_files[1].end_physical()
    assert len(index.follow(second)) == 1
    assert len(index.follow(second + 1)) == 1
    assert index.follow(1 << 60) == []  # the newest stays
    assert set(index.find(hash_of(b"a"), 0, 1 << 60, 1_000)) < set(places[::3])
    assert len(index.forget()) == 1
    assert index.find(hash_of(b"a"), 0, 1 << 60, 1_000) == []
    store.close(False)
