"""Tables of JSON: the newest that is whole is read, and no damage becomes the backup."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.disk import tables
from penstock.disk.files import Files
from penstock.errors import DiskFull, StoreError


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


def test_a_damaged_table_never_becomes_the_backup(tmp_path: Path) -> None:
    files, path = Files(), tmp_path / "t.json"
    tables.save(files, path, {"a": 1})
    tables.save(files, path, {"a": 2})
    path.write_bytes(b"")
    tables.save(files, path, {"a": 3})
    path.write_bytes(b"")
    assert tables.load(files, path) == {"a": 1}


def test_a_table_that_does_not_fit_into_memory_is_named(tmp_path: Path) -> None:
    """A sparse file of a terabyte: the start ended for want of memory, or of threads."""

    class Huge(Files):
        def read(self, fd: int, at: int, length: int) -> bytes:
            raise MemoryError

    path = tmp_path / "topics.json"
    path.write_bytes(b"{}")
    with pytest.raises(StoreError, match=r"topics\.json has 2 bytes, which is too many: move it away"):
        tables.take(Huge(), tmp_path, path, lambda table: True, "nothing")
    assert path.exists()


def test_a_table_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """A start ends with this sentence, and nothing else would say which file it is."""

    class Bad(Files):
        def read(self, fd: int, at: int, length: int) -> bytes:
            raise StoreError("a read: Input/output error")

    path = tmp_path / "t.json"
    tables.save(Files(), path, {"a": 1})
    with pytest.raises(StoreError, match=r"t\.json: a read: Input/output error"):
        tables.load(Bad(), path)


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


@pytest.mark.parametrize("former", [{"a": 1}, None])
def test_a_folder_that_cannot_be_flushed_leaves_the_old_table(tmp_path: Path, former: dict[str, object] | None) -> None:
    """Whoever asked is told that nothing was written down; a start that found it done would act on it."""

    class Unflushed(Files):
        def sync_folder(self, folder: Path) -> None:
            raise StoreError("a flush of the folder: Input/output error")

    path = tmp_path / "t.json"
    if former is not None:
        tables.save(Files(), path, {"a": 0})
        tables.save(Files(), path, former)
    for _ in range(2):
        with pytest.raises(StoreError):
            tables.save(Unflushed(), path, {"a": 2})
        assert tables.load(Files(), path) == former
    tables.save(Files(), path, {"a": 3})
    assert tables.load(Files(), path) == {"a": 3}


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
