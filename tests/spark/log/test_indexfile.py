"""Index files read with numpy: what the broker finds, and each planted fault."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from store_parts import make, put, work

from penstock.octets import java_hash
from penstock.spark.log.derive import key_hash
from penstock.spark.log.indexfile import IndexFile


@pytest.fixture
def path(tmp_path: Path) -> Path:
    store = make(tmp_path)
    store.open()
    for n in range(40):
        put(store, b"x", properties=b"KEYS\1k%d" % (n % 7))
    (found,) = store.index.index_files
    store.close()
    return found.path


def test_the_same_as_the_broker_finds(path: Path) -> None:
    index = IndexFile(path)
    assert (index.whole, index.count) == (True, 41)
    text = b"T#k3"
    places = index.find(abs(java_hash(text, 0, len(text), 0)))
    assert len(places) == 6
    assert places == sorted(places, reverse=True)
    first, entries = index.between(places[-1], places[0])
    assert int(entries["physical"][0]) == places[-1]
    assert first >= 1
    assert list(index.faults()) == []


@pytest.mark.parametrize(("at", "why"), [(4, "points before|links|slot"), (16, "links to")])
def test_planted_faults(path: Path, at: int, why: str) -> None:
    index = IndexFile(path)
    data = bytearray(path.read_bytes())
    struct.pack_into(">i", data, 40 + index.slots * 4 + 20 * 20 + at, 0x7FFF0000 if at == 4 else 33)
    path.write_bytes(data)
    import re

    assert any(re.search(why, text) for _, text in IndexFile(path).faults())


def test_a_file_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(b"x" * 39)
    index = IndexFile(tmp_path / "short")
    assert not index.whole
    assert [number for number, _ in index.faults()] == [0]


def test_what_is_added_meanwhile_hides_nothing(tmp_path: Path) -> None:
    """A slot that begins with an entry that came behind the count: in a folder at work, and in a copy of one."""
    store = make(tmp_path / "store")
    store.open()
    where = [put(store, b"x", b"T", 0, b"KEYS\1same").physical for _ in range(10)]
    work(store)
    (path,) = (tmp_path / "store" / "index").iterdir()
    index = IndexFile(path)
    for _ in range(3):
        put(store, b"x", b"T", 0, b"KEYS\1same")
    work(store)
    assert index.count == 11
    assert index.find(key_hash("T", "same")) == where[::-1]
    store.close()
