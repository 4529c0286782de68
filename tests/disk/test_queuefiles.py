"""The files of a disk queue: their names, the meta file, sums."""

from __future__ import annotations

from pathlib import Path
from zlib import crc32

import pytest

from penstock.disk.files import Files
from penstock.disk.queuefiles import (
    NUMBER_MAX,
    Paths,
    Sums,
    entries_encode,
    load_sums,
    plausible,
    queues_in,
    read_meta,
    write_meta,
)


def test_names(tmp_path: Path) -> None:
    paths = Paths(tmp_path, "t:c")
    for number in (3, 0):
        paths.data(number).write_bytes(b"x")
    paths.sums(0).write_bytes(b"")
    Paths(tmp_path, "u").meta.write_bytes(b"")
    (tmp_path / "other.dat").write_bytes(b"")
    assert queues_in(Files(), tmp_path) == {"t:c": [0, 3], "u": []}
    assert paths.data(7).name == "t:c.diskqueue.000007.dat"


def test_a_folder_in_the_place_of_a_file_is_moved_away(tmp_path: Path) -> None:
    paths = Paths(tmp_path, "t")
    paths.data(0).mkdir()
    paths.clear_folders(Files())
    assert not paths.data(0).exists()
    assert len(list((tmp_path / "lost+found").iterdir())) == 2  # and the manifest


def test_a_folder_in_the_place_of_the_meta_files_temporary_one_is_moved_away(tmp_path: Path) -> None:
    paths = Paths(tmp_path, "q")
    folder = paths.meta.with_name(paths.meta.name + ".tmp")
    folder.mkdir()
    (folder / "inside").write_bytes(b"x")
    write_meta(Files(), paths.meta, 1, (0, 0), (0, 9))
    assert read_meta(Files(), paths.meta) == (1, (0, 0), (0, 9))
    assert [path.read_bytes() for path in (tmp_path / "lost+found").rglob("inside")] == [b"x"]


def test_the_meta_file(tmp_path: Path) -> None:
    path = tmp_path / "meta"
    assert read_meta(Files(), path) is None
    write_meta(Files(), path, 5, (0, 10), (2, 30))
    assert path.read_bytes() == b"5\n0,10\n2,30\n"
    assert read_meta(Files(), path) == (5, (0, 10), (2, 30))
    for junk in (b"", b"5\n0,10\n2,30", b"5\n0,10\n2,-30\n", b"x"):
        path.write_bytes(junk)
        assert read_meta(Files(), path) is None


@pytest.mark.parametrize(
    ("meta", "sizes", "fits"),
    [
        ((5, (0, 10), (1, 30)), {0: 100, 1: 30}, True),
        ((0, (0, 0), (0, 0)), {}, True),
        ((-1, (0, 10), (1, 30)), {0: 100, 1: 30}, False),
        ((5, (1, 10), (0, 30)), {0: 100, 1: 30}, False),
        ((5, (0, 10), (1, 31)), {0: 100, 1: 30}, False),
        ((5, (0, 10), (1, 30)), {0: 100}, False),
        ((5, (1, 0), (1, 30)), {0: 100, 1: 30}, False),
        ((5, (0, 10), (NUMBER_MAX, 0)), {0: 100}, False),
    ],
)
def test_whether_the_files_bear_it_out(meta: tuple, sizes: dict[int, int], fits: bool) -> None:  # type: ignore[type-arg]
    assert plausible(meta, sizes) is fits


def test_sums(tmp_path: Path) -> None:
    records = [b"one", b"two", b"three"]
    sums = Sums((n * 100 * 2 + (n == 1)) << 32 | crc32(record) for n, record in enumerate(records))
    assert [sums.start(n) for n in range(3)] == [0, 100, 200]
    assert [sums.more(n) for n in range(3)] == [False, True, False]
    assert sums.sum_matches(1, b"two")
    assert not sums.sum_matches(1, b"twa")
    assert [sums.find(at) for at in (0, 1, 100, 201)] == [0, 1, 1, 3]
    path = tmp_path / "sums"
    path.write_bytes(sums.encode())
    again = load_sums(Files(), path)
    assert again is not None
    assert again.entries == sums.entries
    assert len(entries_encode(sums.entries)) == 24
    assert load_sums(Files(), tmp_path / "none") is None
