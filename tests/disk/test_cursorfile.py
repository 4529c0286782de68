from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from log.lying_disk import LyingFiles
from occupants import demand_aside, occupy
from penstock.disk.cursorfile import PAGE, PAGE_BITS, WINDOW_MAX, CursorFile
from penstock.disk.files import Files
from penstock.disk.stream import Stream
from penstock.errors import StoreError


class Whole(Stream):
    """There is a record of every ordinal."""

    def begin(self) -> int:
        return 0

    def next(self, ordinal: int) -> int:
        return ordinal


def make(path: Path, begin: int = 0, end: int = 1 << 40) -> CursorFile:
    file = CursorFile(path / "c.cursor", Files())
    file.open(begin)
    file.settle(end, Whole())
    return file


@given(
    begin=st.sampled_from([0, 1, PAGE_BITS - 2, 10 * PAGE_BITS + 7]),
    steps=st.lists(
        st.tuples(st.sampled_from(["finish", "commit", "reopen"]), st.integers(0, 3 * PAGE_BITS)), max_size=30
    ),
)
@settings(max_examples=50, deadline=None)
def test_bits_beside_a_set(tmp_path_factory: pytest.TempPathFactory, begin: int, steps: list[tuple[str, int]]) -> None:
    folder = tmp_path_factory.mktemp("cursor")
    file = make(folder, begin)
    committed, finished = begin, set()
    for what, n in steps:
        ordinal = committed + 1 + n
        if what == "finish" and ordinal not in finished:
            assert file.finish(ordinal) == 0
            finished.add(ordinal)
        elif what == "commit":
            committed += n % 500
            file.commit(committed)
            finished = {o for o in finished if o >= committed}
        elif what == "reopen":
            file = make(folder)
            assert file.committed == committed
            assert file.beyond == len(finished)
        around = {committed, committed + 1, *finished, *(o + 1 for o in finished)}
        assert {o for o in around if file.finished(o)} == finished
        assert file.reach() == max({committed, *(o + 1 for o in finished)})


def test_the_window_has_an_end(tmp_path: Path) -> None:
    file = make(tmp_path)
    assert file.finish(WINDOW_MAX - 1) == 0
    assert file.path.stat().st_size <= 33 * PAGE
    assert file.finish(40 * PAGE_BITS) == 1
    assert file.finished(WINDOW_MAX - 1)
    assert not file.finished(40 * PAGE_BITS)


def test_what_a_power_cut_took_from_the_stream_is_not_finished(tmp_path: Path) -> None:
    file = make(tmp_path)
    for ordinal in (3, 5, 90, 40_000):
        file.finish(ordinal)
    file = make(tmp_path, end=50)
    assert file.beyond == 2
    assert [o for o in (3, 5, 90, 40_000) if file.finished(o)] == [3, 5]


def test_an_old_page_is_not_taken_for_a_new_one(tmp_path: Path) -> None:
    file = make(tmp_path)
    file.finish(7)
    file.commit(2 * PAGE_BITS)  # the page with bit 7 now stands for the ordinals two pages on
    assert not file.finished(2 * PAGE_BITS + 7)
    assert make(tmp_path).beyond == 0


@pytest.mark.parametrize("junk", [b"", b"PCUR", b"\xff" * 4096, b"\0" * 12288])
def test_a_file_that_is_none_begins_anew(tmp_path: Path, junk: bytes) -> None:
    (tmp_path / "c.cursor").write_bytes(junk)
    file = make(tmp_path, begin=12)
    assert file.committed == 12
    assert file.beyond == 0


def test_beginning_anew_forgets(tmp_path: Path) -> None:
    file = make(tmp_path)
    file.finish(5)
    file.restart(3)
    assert (file.committed, file.beyond, file.finished(5)) == (3, 0, 0)


def written(path: Path) -> CursorFile:
    file = make(path)
    file.commit(40)
    for ordinal in (41, 43, 44, 5000):
        file.finish(ordinal)
    file.commit(42)
    return file


def test_one_bit_anywhere_makes_nothing_finished_that_is_not(tmp_path: Path) -> None:
    path = written(tmp_path).path
    whole = path.read_bytes()
    inside = (PAGE, PAGE + 7, PAGE + 9, PAGE + 15, PAGE + 20, PAGE + 21, PAGE + 90, PAGE + 641, 2 * PAGE)
    for at in [0, 4, 7, 9, 16, *range(512, 536, 2), *range(1025, 1048, 2), *inside]:
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[at] ^= 1 << bit
            path.write_bytes(damaged)
            file = make(tmp_path, begin=0)
            assert file.committed <= 42, (at, bit)
            known = [o for o in (41, 43, 44, 5000) if o >= file.committed and file.finished(o)]
            assert file.beyond == len(known), (at, bit)
            assert file.reach() >= file.committed


@pytest.mark.parametrize(
    ("at", "length"), [(0, 16), (512, 24), (1024, 24), (0, 512), (0, PAGE), (PAGE, PAGE), (0, 3 * PAGE)]
)
@pytest.mark.parametrize("byte", [b"\0", b"\xff"])
def test_a_part_that_is_overwritten_makes_nothing_finished(tmp_path: Path, at: int, length: int, byte: bytes) -> None:
    path = written(tmp_path).path
    whole = path.read_bytes()
    path.write_bytes(whole[:at] + byte * length + whole[at + length :])
    file = make(tmp_path, begin=0)
    assert file.committed <= 42
    assert {o for o in range(file.committed, 6000) if file.finished(o)} <= {41, 43, 44, 5000}


@pytest.mark.parametrize("size", [0, 1, 600, 1100, PAGE, PAGE + 20, 2 * PAGE, 2 * PAGE + 1, 5 * PAGE])
def test_a_file_of_another_length_says_no_more_than_it_did(tmp_path: Path, size: int) -> None:
    path = written(tmp_path).path
    path.write_bytes(path.read_bytes().ljust(size, b"\0")[:size])
    file = make(tmp_path, begin=7)
    assert file.committed in ((7,) if size < 600 else (40, 42))
    assert {o for o in range(file.committed, 6000) if file.finished(o)} <= {41, 43, 44, 5000}
    assert file.finish(60) == 0
    again = make(tmp_path, begin=7)
    assert again.finished(60)
    assert again.committed == file.committed


def test_a_commit_cut_short_is_the_old_one_or_the_new_one(tmp_path: Path) -> None:
    """The process ends between any two stores of a commit: each of the three numbers may be old or new."""
    path = written(tmp_path).path
    before = path.read_bytes()
    file = make(tmp_path)
    file.commit(600)
    after = path.read_bytes()
    places = [at for at in range(512, 1048, 8) if before[at : at + 8] != after[at : at + 8]]
    assert len(places) == 3
    for which in range(8):
        mixed = bytearray(before)
        for n, at in enumerate(places):
            if which >> n & 1:
                mixed[at : at + 8] = after[at : at + 8]
        path.write_bytes(mixed)
        assert make(tmp_path).committed == (600 if which == 7 else 42)


def test_going_back_is_not_undone_by_damage(tmp_path: Path) -> None:
    file = written(tmp_path)
    file.restart(3)
    for at in (512, 1024):
        data = bytearray(file.path.read_bytes())
        data[at + 15] ^= 4
        (tmp_path / "d").mkdir(exist_ok=True)
        (tmp_path / "d" / "c.cursor").write_bytes(data)
        assert make(tmp_path / "d", begin=0).committed == 3


def test_version_1_is_read(tmp_path: Path) -> None:
    """What was written before the sums: committed once, and pages of 32,704 bits."""
    old_bits = (PAGE - 8) * 8
    pages = [bytearray(PAGE), bytearray(PAGE)]
    for ordinal in (13, 17, old_bits + 5):
        page = pages[ordinal // old_bits]
        page[:8] = (ordinal // old_bits * old_bits).to_bytes(8)
        page[8 + ordinal % old_bits // 8] |= 1 << ordinal % 8
    head = b"PCUR" + (1).to_bytes(4) + (2).to_bytes(8) + (12).to_bytes(8)
    (tmp_path / "c.cursor").write_bytes(head.ljust(PAGE, b"\0") + b"".join(pages))
    for _ in range(2):
        file = make(tmp_path)
        assert file.committed == 12
        assert file.beyond == 3
        assert [o for o in range(12, 40_000) if file.finished(o)] == [13, 17, old_bits + 5]


def test_what_cannot_be_believed_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "queues" / "t"
    path.mkdir(parents=True)
    (path / "c.cursor").write_bytes(b"junk" * 1000)
    assert make(path, begin=5).committed == 5
    (kept,) = (tmp_path / "lost+found").glob("queues-t-c.cursor.*")
    assert kept.read_bytes() == b"junk" * 1000
    (tmp_path / "queues" / "u" / "c.cursor").mkdir(parents=True)
    assert make(tmp_path / "queues" / "u", begin=6).committed == 6


@pytest.mark.parametrize("seed", range(12))
def test_what_was_finished_before_a_flush_is_after_any_power_cut(tmp_path: Path, seed: int) -> None:
    """A busy channel: the number moves over several pages before the next flush, and their places would be used anew."""
    disk = tmp_path / "disk"
    disk.mkdir()
    files = LyingFiles(disk, seed)
    file = CursorFile(disk / "c.cursor", files)
    file.open(0)
    file.settle(1 << 40, Whole())
    early = [*range(1, 400, 2), *range(PAGE_BITS - 300, PAGE_BITS)]
    for ordinal in early:
        assert file.finish(ordinal) == 0
    file.datasync()
    files.sync_folder(disk)
    file.durable = file.committed
    maps = [file.map]  # kept, so that no later file gets the number of one that is gone: the disk knows files by it
    for page in range(1, 5):  # in order up to here, and some beyond
        file.commit(page * PAGE_BITS)
        for ordinal in range(page * PAGE_BITS + 5, page * PAGE_BITS + 50):
            assert file.finish(ordinal) == 0
            maps.append(file.map)
    files.power_cut(tmp_path / "after")
    again = CursorFile(tmp_path / "after" / "c.cursor", Files())
    again.open(0)
    again.settle(1 << 40, Whole())
    assert [o for o in early if o >= again.committed and not again.finished(o)] == []


def test_pages_are_used_anew_once_the_number_is_durable(tmp_path: Path) -> None:
    file = make(tmp_path)
    for page in range(200):
        file.commit(page * PAGE_BITS)
        assert file.finish(page * PAGE_BITS + 7) == 0
        file.durable = file.committed
    assert file.path.stat().st_size == 3 * PAGE


def test_a_flush_that_never_ends_does_not_stop_a_channel(tmp_path: Path) -> None:
    file = make(tmp_path)
    for page in range(100):
        file.commit(page * PAGE_BITS)
        assert file.finish(page * PAGE_BITS + 7) == 0
    assert file.path.stat().st_size <= 33 * PAGE
    assert file.finished(99 * PAGE_BITS + 7)


class Keeping(Files):
    """A disk that takes no name away."""

    def unlink(self, path: Path) -> None:
        if path.exists():
            raise StoreError(f"{path}: Input/output error")


def test_a_removed_cursor_that_the_disk_keeps_tells_nothing(tmp_path: Path) -> None:
    """A channel of the same name, made later, would get what lies behind the place of the one that is gone."""
    file = CursorFile(tmp_path / "c.cursor", Keeping())
    file.open(3)
    file.settle(1 << 40, Whole())
    file.finish(5)
    file.commit(4)
    with pytest.raises(StoreError):
        file.remove()
    again = make(tmp_path, begin=70)
    assert (again.committed, again.beyond, again.reach()) == (70, 0, 70)
    assert not (tmp_path / "lost+found").exists()


class NoRename(Files):
    """No file gets another's name while `refused`."""

    refused = True

    def rename(self, old: Path, new: Path) -> None:
        if self.refused:
            raise StoreError("the disk")
        super().rename(old, new)


def test_a_wider_file_that_does_not_get_the_name_is_not_written_to(tmp_path: Path) -> None:
    make(tmp_path)
    files = NoRename()
    file = CursorFile(tmp_path / "c.cursor", files)
    file.open(0)
    assert file.finish(5 * PAGE_BITS) == 1
    assert [one.name for one in tmp_path.iterdir()] == ["c.cursor"]
    assert file.finish(7) == 0
    file.commit(3)
    again = make(tmp_path)
    assert (again.committed, again.finished(7), again.beyond) == (3, 1, 1)
    files.refused = False
    assert file.finish(5 * PAGE_BITS) == 0
    assert make(tmp_path).finished(5 * PAGE_BITS)


def test_a_wider_file_left_by_a_killed_process_finishes_nothing(tmp_path: Path) -> None:
    former = make(tmp_path)
    former.finish(5 * PAGE_BITS + 3)
    former.path.rename(tmp_path / "c.cursor.tmp")
    make(tmp_path)  # of a channel that is made anew
    assert not make(tmp_path).finished(5 * PAGE_BITS + 3)


def test_a_link_in_place_of_a_wider_file_is_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(b"precious")
    file = make(tmp_path)
    (tmp_path / "c.cursor.tmp").symlink_to(elsewhere)
    assert file.finish(5 * PAGE_BITS) == 0
    assert elsewhere.read_bytes() == b"precious"
    assert not file.path.is_symlink()


@pytest.mark.parametrize("what", ["folder", "link", "pipe"])
def test_what_has_the_name_of_the_new_file_makes_way(tmp_path: Path, what: str) -> None:
    """A folder there let the topic have no such channel for ever."""
    path = tmp_path / "queues" / "t" / "c.cursor"
    path.parent.mkdir(parents=True)
    fresh = path.with_name("c.cursor.tmp")
    occupy(fresh, what, PAGE, tmp_path / "outside")
    if what == "folder":
        (fresh / "theirs").write_bytes(b"theirs")
    make(path.parent, begin=5).finish(7)
    assert make(path.parent).finished(7)
    assert not fresh.exists()
    if what == "folder":
        demand_aside(tmp_path, "queues-t-c.cursor.tmp", tmp_path / "outside")
