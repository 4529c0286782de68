"""KeyIndex: keys to places in the log, newest first, over several files, cuts and damage."""

from __future__ import annotations

import random
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from lying_disk import LyingFiles
from msgspec.structs import replace
from store_parts import SMALL, make, put, work

from penstock.clock import FakeClock
from penstock.disk.files import Files, file_of
from penstock.errors import DiskFull, NoDescriptor, StoreError
from penstock.log import status
from penstock.log.keyindex import KeyIndex
from penstock.log.store import LogStore
from penstock.log.verify import verify
from penstock.octets import java_hash
from penstock.wire import layout

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


def test_the_first_message_of_a_file_is_found_by_its_time(tmp_path: Path) -> None:
    """However long after the last one of the file before it came; and a file with no other is believed at a start."""
    clock = FakeClock(START_MS)
    store = make(tmp_path, clock=clock)
    store.open()
    while len(store.index.index_files) < 3 or store.index.index_files[-1].count < 2:
        clock.advance(100_000)
        store.begin_turn(clock.now_ms())
        place, now_ms = put(store, b"x", properties=b"KEYS\x01a").physical, clock.now_ms()
        assert store.index.find(hash_of(b"a"), now_ms, now_ms, 10) == [place]
        assert len(store.query(b"T", b"a", 10, now_ms, now_ms)) == 1
        assert len(store.query(b"T", b"a", 10, now_ms + 1_000, now_ms + 90_000)) == 0
        assert store.index.is_sound()
    store.close()
    again, _ = reopened(tmp_path)
    assert again.is_sound()
    again.close()


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
    gone = index.cut(name, 10, 0)
    assert gone is not None
    assert len(gone) == 1
    first = index.index_files[0].count - 1
    assert index.find(hash_of(b"a"), 0, 1 << 60, 1_000) == places[: first + 9][::3][::-1]
    assert index.is_sound()
    assert index.cut(name, 99, 0) is None
    store.close(False)


def test_files_that_cannot_be_believed(tmp_path: Path) -> None:
    store, _ = filled(tmp_path, 3)
    path = store.index.index_files[0].path
    store.close()
    (tmp_path / "index" / "20200101000000000").write_bytes(b"short")
    data = bytearray(path.read_bytes())
    data[36:40] = (99).to_bytes(4)  # more entries than fit
    path.write_bytes(data)
    again, odd = reopened(tmp_path)
    assert len(odd) == 2
    assert again.state() == (0, 0)


def test_what_is_another_s_is_left_alone_and_the_index_is_used(tmp_path: Path) -> None:
    """A README, or an editor's copy, was set aside at each start, and the whole index made anew."""
    store, places = filled(tmp_path, 150)
    newest = store.index.index_files[2].path
    store.close()
    names = ["README", "7", f"{newest.name}.bak", f".{newest.name}.swp", f"{newest.name}0", "9" * 40, "²"]
    for name in names:
        (newest.parent / name).write_bytes(newest.read_bytes()[:100])
    assert verify(tmp_path).ok
    store = make(tmp_path)
    assert store.open().rebuilt == []
    assert store.index.find(hash_of(b"b"), 0, 1 << 60, 1_000) == places[1::3][::-1]
    store.close()
    assert {path.name for path in newest.parent.iterdir()} >= set(names)
    assert not (tmp_path / "lost+found").exists()


def test_an_index_with_holes_is_used_where_the_disk_is_full(tmp_path: Path) -> None:
    """A sparse copy, and RocketMQ's own: opening took room for its holes, and where there was none it was set aside."""
    store, places = filled(tmp_path, 20)
    path = store.index.index_files[0].path
    store.close()
    files = LyingFiles(tmp_path)
    files.adopt()
    data = path.read_bytes()
    path.unlink()
    with open(path, "xb") as file:
        file.write(data[: layout.INDEX_HEAD_BYTES])
        file.truncate(len(data))
        file.seek(0)
        file.write(data)
    files.full = True
    files._room[path.stat().st_ino] = layout.INDEX_HEAD_BYTES
    index = KeyIndex(tmp_path / "index", SMALL.max_hash_slot_num, SMALL.max_index_num, files, FakeClock())
    assert index.load() == []
    assert index.find(hash_of(b"b"), 0, 1 << 60, 1_000) == places[1::3][::-1]
    assert index.room(1) == status.DISK_FULL
    files.full = False
    assert index.room(1) == status.OK
    assert files._room[path.stat().st_ino] > layout.INDEX_HEAD_BYTES


@pytest.mark.parametrize("lacks", ["open", "map"])
def test_without_descriptors_or_memory_no_index_file_is_set_aside(tmp_path: Path, lacks: str) -> None:
    store, _ = filled(tmp_path, 3)
    store.close()
    files: Any = Files()

    def none(*_: object, **__: object) -> int:
        raise NoDescriptor("Too many open files")

    setattr(files, lacks, none)
    index = KeyIndex(tmp_path / "index", SMALL.max_hash_slot_num, SMALL.max_index_num, files, FakeClock())
    with pytest.raises(NoDescriptor):
        index.load()


def test_an_index_file_that_cannot_be_made_nor_removed_is_made_of_the_same_name_again(tmp_path: Path) -> None:
    """Each send of a message with a key left one more behind."""

    class Stubborn(LyingFiles):
        stubborn = True

        def unlink(self, path: Path) -> None:
            if self.stubborn and path.parent.name == "index" and path.exists():
                raise StoreError(f"{path}: Input/output error")
            super().unlink(path)

    files, clock = Stubborn(tmp_path), FakeClock(START_MS)
    files.full = True
    index = KeyIndex(tmp_path / "index", SMALL.max_hash_slot_num, SMALL.max_index_num, files, clock)
    for _ in range(3):
        assert index.room(1) == status.DISK_FULL
        clock.advance(1)
    assert len(list((tmp_path / "index").iterdir())) == 1
    files.full = False
    assert index.room(1) == status.OK
    assert [path.name for path in (tmp_path / "index").iterdir()] == [index.index_files[0].path.name]


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


@pytest.mark.parametrize("entries", [2, 3, 60])
def test_one_message_with_more_keys_than_a_file_has_entries(tmp_path: Path, entries: int) -> None:
    names = [b"k%d" % n for n in range(200)]
    store = make(tmp_path, options=replace(SMALL, max_index_num=entries))
    store.open()
    places = [put(store, b"x", properties=b"KEYS\x01" + b" ".join(names)).physical for _ in range(3)]
    assert store.index.is_sound()
    for name in names:
        assert store.index.find(hash_of(name), 0, 1 << 60, 9) == places[::-1]
    store.close()
    again = make(tmp_path, options=replace(SMALL, max_index_num=entries))
    again.open()
    places.append(put(again, b"x", properties=b"KEYS\x01" + b" ".join(names)).physical)
    assert again.index.find(hash_of(names[-1]), 0, 1 << 60, 9) == places[::-1]
    again.close()


PAGES = replace(
    SMALL,
    max_hash_slot_num=3000,
    max_index_num=9000,
    mapped_file_size_commit_log=1 << 20,
    mapped_file_size_consume_queue=40_000,
)
"""An index of several pages: of slots 3, of entries 44."""


def unlinked(folder: Path) -> list[str]:
    """What is wrong with the slots and links of a store that was stopped."""
    return [f"{one.file} {one.why}" for one in verify(folder).findings if one.file.startswith("index/")]


def keyed(store: LogStore, first: int, end: int) -> list[int]:
    return [put(store, b"x", properties=b"KEYS\x01k%d" % (n % 2500)).physical for n in range(first, end)]


def test_slots_go_back_without_a_look_at_what_is_durable(tmp_path: Path) -> None:
    """As a killed process leaves them: only the slots behind the checkpoint are followed back."""
    store = make(tmp_path, options=PAGES)
    store.open()
    places = keyed(store, 0, 3000)
    work(store)
    places += keyed(store, 3000, 3600)
    store.close(clean=False)
    path = next((tmp_path / "index").iterdir())
    at = layout.INDEX_HEAD_BYTES + PAGES.max_hash_slot_num * layout.INDEX_SLOT_BYTES + 1000 * layout.INDEX_ENTRY_BYTES
    data = bytearray(path.read_bytes())
    data[at : at + layout.INDEX_ENTRY_BYTES] = bytes(layout.INDEX_ENTRY_BYTES)  # an entry that nobody asks for
    path.write_bytes(data)
    again = make(tmp_path, options=PAGES)
    report = again.open()
    assert (report.rebuilt, report.start) == ([], places[3000])
    assert path.read_bytes()[at : at + layout.INDEX_ENTRY_BYTES] == bytes(
        layout.INDEX_ENTRY_BYTES
    )  # and it was not looked at
    found = again.index.find(hash_of(b"k700"), 0, 1 << 60, 9)
    assert found == [places[n] for n in (3200, 700)]
    again.close()


@pytest.mark.parametrize("seed", range(40))
def test_any_pages_of_the_index_that_a_power_cut_leaves(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every second start is broken off in the middle, by a kill or by another cut: the next one has it all the same."""
    noise = random.Random(seed)
    places: list[tuple[int, int]] = []  # key, place in the log
    folder, files = tmp_path / "0", LyingFiles(tmp_path / "0", seed)
    folder.mkdir()
    boots = 0
    monkeypatch.setattr("penstock.log.checkpoint.boot_id", lambda: f"boot {boots}")
    for cut in range(1, 5):
        store = make(folder, files=files, options=PAGES)
        end = store.open().end
        places = [one for one in places if one[1] < end]
        for _ in range(noise.randrange(4)):
            first = noise.randrange(2500)
            more = keyed(store, first, first + noise.randrange(400))
            places += [((first + n) % 2500, at) for n, at in enumerate(more)]
            if noise.random() < 0.6:
                work(store, 1)
        store.close(clean=False)
        for life in range(noise.randrange(1, 3)):
            after = tmp_path / f"{cut}.{life}"
            if life == 0 or noise.random() < 0.5:
                files.power_cut(after)
                boots += 1
            else:
                shutil.copytree(folder, after)  # a kill
            folder, files = after, Broken(after, noise.randrange(150))
            files.random.seed(noise.random())
            files.adopt()
            store = make(folder, files=files, options=PAGES)
            with suppress(StoreError):
                store.open()
            files.left = 1 << 60
            store.close(clean=False)
        for name in ("live0", "live1"):
            if noise.random() < 0.2:
                (folder / name).unlink(missing_ok=True)
    store = make(folder, files=files, options=PAGES)
    end = store.open().end
    places = [one for one in places if one[1] < end]
    for key in {key for key, _ in places}:
        expected = [at for other, at in places if other == key][::-1]
        assert [at for at in store.index.find(hash_of(b"k%d" % key), 0, 1 << 60, 99) if at in expected] == expected, key
        assert len(store.query(b"T", b"k%d" % key, 64, 0, 1 << 60)) == len(expected)
    store.close()
    assert unlinked(folder) == []


class Broken(LyingFiles):
    """Fails from a call on that a start makes: what it has done until then is there, the rest is not."""

    def __init__(self, root: Path, left: int) -> None:
        super().__init__(root)
        self.left = left
        for name in ("open", "write", "datasync", "data_ranges", "sync_folder", "unlink", "map", "read"):
            setattr(self, name, self.counted(getattr(self, name)))

    def counted(self, call):  # type: ignore[no-untyped-def]
        def one(*given, **named):  # type: ignore[no-untyped-def]
            self.left -= 1
            if self.left < 0:
                raise StoreError("broken off, by order of the test")
            return call(*given, **named)

        return one


def test_verify_names_slots_that_lead_elsewhere(tmp_path: Path) -> None:
    store = make(tmp_path, options=PAGES)
    store.open()
    keyed(store, 0, 500)
    store.close()
    assert unlinked(tmp_path) == []
    path = next((tmp_path / "index").iterdir())
    data = bytearray(path.read_bytes())
    slot = layout.INDEX_HEAD_BYTES + hash_of(b"k7") % PAGES.max_hash_slot_num * layout.INDEX_SLOT_BYTES
    data[slot : slot + 4] = bytes(4)
    path.write_bytes(data)
    assert unlinked(tmp_path) == [f"index/{path.name} 1 slots do not lead to their newest entry"]


def killed(folder: Path, count: int = 4100) -> tuple[list[int], Path]:
    """A store of so many keys with a checkpoint behind the first 3000, as a killed process leaves it."""
    store = make(folder, options=PAGES)
    store.open()
    places = keyed(store, 0, 3000)
    work(store)
    places += keyed(store, 3000, count)
    store.close(clean=False)
    return places, next((folder / "index").iterdir())


def whole(folder: Path, places: list[int]) -> None:
    store = make(folder, options=PAGES)
    assert store.open().rebuilt == []
    for key in range(2500):
        found = store.index.find(hash_of(b"k%d" % key), 0, 1 << 60, 9)
        assert [at for at in places[key::2500][::-1] if at not in found] == [], key
    store.close()
    assert unlinked(folder) == []


@pytest.mark.parametrize("split", range(4, 20, 4))
def test_a_link_on_a_page_that_was_lost_is_not_taken_for_none(tmp_path: Path, split: int) -> None:
    """The last entry may stand on two pages: the one with its key is there, the one with its link reads as zeros."""
    entries = layout.INDEX_HEAD_BYTES + PAGES.max_hash_slot_num * layout.INDEX_SLOT_BYTES
    last = next(n for n in range(3100, 4200) if (entries + n * layout.INDEX_ENTRY_BYTES + split) % 4096 == 0)
    places, path = killed(tmp_path, last)
    data = path.read_bytes()
    path.write_bytes(data[: entries + last * layout.INDEX_ENTRY_BYTES + split].ljust(len(data), b"\0"))
    whole(tmp_path, places)


def test_a_start_broken_off_while_it_links_is_begun_again(tmp_path: Path) -> None:
    places, path = killed(tmp_path)
    data = bytearray(path.read_bytes())
    data[layout.INDEX_SLOTS_USED : layout.INDEX_SLOTS_USED + 4] = b"\xff" * 4
    slots_end = layout.INDEX_HEAD_BYTES + PAGES.max_hash_slot_num * layout.INDEX_SLOT_BYTES
    data[layout.INDEX_HEAD_BYTES : slots_end] = bytes(slots_end - layout.INDEX_HEAD_BYTES)
    path.write_bytes(data)
    whole(tmp_path, places)


def test_nothing_stands_behind_the_entries_that_are_left(tmp_path: Path) -> None:
    """What a later cut would take for an entry of its own."""
    places, path = killed(tmp_path)
    log = tmp_path / "commitlog" / f"{0:020d}"
    log.write_bytes(log.read_bytes()[: places[3500]].ljust(PAGES.mapped_file_size_commit_log, b"\0"))
    store = make(tmp_path, options=PAGES)
    store.open()
    count = store.index.state()[1]
    store.close()
    entries = layout.INDEX_HEAD_BYTES + PAGES.max_hash_slot_num * layout.INDEX_SLOT_BYTES
    assert count <= 3501
    assert path.read_bytes()[entries + count * layout.INDEX_ENTRY_BYTES :].strip(b"\0") == b""


@pytest.mark.parametrize("error", [DiskFull("no room"), StoreError("Input/output error")])
def test_a_start_says_why_the_index_cannot_be_made(tmp_path: Path, error: StoreError) -> None:
    """Whatever it was, the start asked for room on the disk."""

    class Refusing(Files):
        def grow(self, fd: int, size: int) -> None:
            if file_of(fd).parent.name == "index":
                raise error
            super().grow(fd, size)

    store = make(tmp_path)
    store.open()
    put(store, b"x", properties=b"KEYS\x01k\x02")
    store.close()
    for path in (tmp_path / "index").iterdir():
        path.unlink()
    store = make(tmp_path, files=Refusing())
    with pytest.raises(StoreError, match="key index") as told:
        store.open()
    assert isinstance(told.value, DiskFull) == isinstance(error, DiskFull)
