"""Files, tables and segments: the ground everything stands on."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.disk import tables
from penstock.disk.files import Files, number_names, wipe
from penstock.disk.segments import SegmentedFile, segment_name
from penstock.errors import Corrupt, DiskFull, StoreError


def test_a_short_write_goes_on_and_one_of_nothing_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, write = Files(), os.pwrite
    fd = files.open(tmp_path / "f", create=True)
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: write(fd, data[:3], at))
    files.write(fd, 2, b"0123456789")
    assert (tmp_path / "f").read_bytes() == b"\0\x000123456789"
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: 0)
    with pytest.raises(StoreError, match="wrote nothing"):
        files.write(fd, 0, b"x")
    files.close(fd)


def test_a_file_is_written_at_its_places(tmp_path: Path) -> None:
    files = Files()
    fd = files.open(tmp_path / "f", create=True)
    files.allocate(fd, 0, 100)
    files.write(fd, 98, b"abcd")
    assert files.size(fd) == 102
    assert files.read(fd, 97, 10) == b"\0abcd"
    view = files.map(fd, 102)
    view[0:2] = b"xy"
    files.datasync(fd)
    assert files.read(fd, 0, 2) == b"xy"
    files.close(fd)


def test_failures_are_ours(tmp_path: Path) -> None:
    files = Files()
    with pytest.raises(StoreError):
        files.open(tmp_path / "no" / "file")
    fd = files.open(tmp_path / "f", create=True)
    with pytest.raises(DiskFull):
        files.allocate(fd, 0, 1 << 55)
    with pytest.raises(StoreError):
        files.map(fd, 1000)
    files.close(fd)
    files.unlink(tmp_path / "nothing")
    assert files.names(tmp_path / "nothing") == []
    with pytest.raises(StoreError):
        files.rename(tmp_path / "nothing", tmp_path / "x")


def test_wiping_touches_only_what_was_written(tmp_path: Path) -> None:
    files = Files()
    fd = files.open(tmp_path / "f", create=True)
    files.allocate(fd, 0, 1 << 20)
    view = files.map(fd, 1 << 20)
    view[10:20] = b"0123456789"
    view[300_000:300_003] = b"abc"
    assert wipe(files, tmp_path / "f", view, 15, 1 << 20) == 300_003
    assert view[:20] == bytes(10) + b"01234" + bytes(5)
    assert view[20:].count(0) == (1 << 20) - 20
    assert wipe(files, tmp_path / "f", view, 15, 1 << 20) == 15
    files.close(fd)


def test_names_of_segments() -> None:
    names = ["00000000000000000010", "x", "1", "00000000000000000000", "0000000000000000000²"]
    assert list(number_names(names)) == [0, 10]
    assert segment_name(1 << 30) == "00000000001073741824"


def test_a_table_and_its_backup(tmp_path: Path) -> None:
    files, path = Files(), tmp_path / "config" / "t.json"
    assert tables.load(files, path) is None
    tables.save(files, path, {"a": 1})
    tables.save(files, path, {"a": 2, "ü": "…"})
    assert tables.load(files, path) == {"a": 2, "ü": "…"}
    for damage in (b"", b"{", b"[1]", b"\xff\xfe"):
        path.write_bytes(damage)
        assert tables.load(files, path) == {"a": 1}
    path.unlink()
    assert tables.load(files, path) == {"a": 1}
    assert sorted(p.name for p in path.parent.iterdir()) == ["t.json.bak"]


def test_any_changed_byte_of_a_table_is_found_out(tmp_path: Path) -> None:
    files, path = Files(), tmp_path / "t.json"
    for n in (1, 2):
        tables.save(files, path, {"offsetTable": {"T@G": {"0": 123456 * n}}})
    whole = path.read_bytes()
    for bit in range(len(whole) * 8):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        found = tables.load(files, path)
        assert found is not None
        assert found["offsetTable"]["T@G"]["0"] in (123456, 246912), bytes(data)


def test_what_cannot_be_used_is_kept(tmp_path: Path) -> None:
    files, path = Files(), tmp_path / "config" / "t.json"

    def fits(table: dict[str, object]) -> bool:
        return isinstance(table.get("a"), int)

    assert tables.take(files, tmp_path, path, fits, "it begins empty") is None
    for n in (1, 2):
        tables.save(files, path, {"a": n})
    for damage in (b"[1]", b'{"a": "x"}', b"{", b""):
        path.write_bytes(damage)
        assert tables.take(files, tmp_path, path, fits, "it begins empty") == {"a": 1}
        assert not path.exists()
        tables.save(files, path, {"a": 2})
    path.unlink()
    path.mkdir()
    path.with_name("t.json.tmp").mkdir()
    assert tables.take(files, tmp_path, path, fits, "it begins empty") == {"a": 1}
    tables.save(files, path, {"a": 3})
    assert tables.load(files, path) == {"a": 3}
    assert len(list((tmp_path / "lost+found").glob("config-t.json*"))) == 6


def test_disk_use_is_counted_as_df_counts(tmp_path: Path) -> None:
    used, total = Files().usage(tmp_path)
    told = subprocess.run(
        ["df", "--output=used,avail", "-B1", str(tmp_path)], capture_output=True, text=True, check=True
    )
    df_used, df_available = map(int, told.stdout.split("\n")[1].split())
    assert abs(used - df_used) < 64 << 20
    assert abs(total - df_used - df_available) < 64 << 20


def test_a_damaged_table_never_becomes_the_backup(tmp_path: Path) -> None:
    files, path = Files(), tmp_path / "t.json"
    tables.save(files, path, {"a": 1})
    tables.save(files, path, {"a": 2})
    path.write_bytes(b"")
    tables.save(files, path, {"a": 3})
    path.write_bytes(b"")
    assert tables.load(files, path) == {"a": 1}


def test_a_full_disk_leaves_the_old_table(tmp_path: Path) -> None:
    class Full(Files):
        def write(self, fd: int, at: int, data: bytes) -> None:
            raise DiskFull("full")

    path = tmp_path / "t.json"
    tables.save(Files(), path, {"a": 1})
    with pytest.raises(DiskFull):
        tables.save(Full(), path, {"a": 2})
    assert tables.load(Files(), path) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["t.json"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"offsetTable":{"topic@group":{0:123,1:120}}}', {"offsetTable": {"topic@group": {"0": 123, "1": 120}}}),
        ('{"offsetTable":{1:2,\n\t3:17}}', {"offsetTable": {"1": 2, "3": 17}}),
        ('{"a":"{0:1}"}', {"a": "{0:1}"}),
        ('{"a":"\\"{0:1}",2:[{-3:4}]}', {"a": '"{0:1}', "2": [{"-3": 4}]}),
    ],
)
def test_javas_unquoted_keys(text: str, value: object) -> None:
    assert tables.parse(text) == value


@given(st.text(max_size=60) | st.text('{}[]:,"0123456789\\ a', max_size=60))
def test_any_text_is_an_object_or_a_value_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert isinstance(tables.parse(text), dict)


@given(st.dictionaries(st.text(max_size=10), st.integers() | st.text(max_size=10), max_size=5))
def test_json_stays_json(table: dict[str, object]) -> None:
    assert tables.parse(json.dumps(table)) == table


def test_a_run_of_segments(tmp_path: Path) -> None:
    files = Files()
    run = SegmentedFile(tmp_path / "log", 4096, files)
    run.start_at(9000)
    for _ in range(3):
        run.adopt(run.make_next())
    assert (run.first, run.end) == (8192, 8192 + 3 * 4096)
    assert run.at(8191) is None
    assert run.at(run.end) is None
    second = run.at(8192 + 4096)
    assert second is run.segments[1]
    assert run.last() is run.segments[2]
    run.close()
    (tmp_path / "log" / segment_name(0)).write_bytes(bytes(4096))
    (tmp_path / "log" / segment_name(4096)).write_bytes(bytes(100))
    again = SegmentedFile(tmp_path / "log", 4096, files)
    assert [path.name for path in again.load()] == [segment_name(n) for n in (4096, 8192, 12288, 16384)]
    assert (again.first, again.end) == (0, 4096)
    (tmp_path / "log" / segment_name(0)).write_bytes(bytes(4095))
    with pytest.raises(Corrupt):
        again.at(0)


def test_no_room_for_a_segment_leaves_nothing_behind(tmp_path: Path) -> None:
    class Full(Files):
        def allocate(self, fd: int, at: int, length: int) -> None:
            raise DiskFull("full")

    run = SegmentedFile(tmp_path / "log", 4096, Full())
    with pytest.raises(DiskFull):
        run.make_next()
    assert list((tmp_path / "log").iterdir()) == []
