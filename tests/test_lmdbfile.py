"""An LMDB file read without LMDB: the same pairs, and damage is found before LMDB would stumble over it."""

from __future__ import annotations

import os
import random
from pathlib import Path

import lmdb
import pytest

from penstock.lmdbfile import Damaged, LmdbFile

PAIRS = {b"%08d" % n: b"v%d" % n * (1 + n % 40) for n in range(600)} | {b"large": b"x" * 20_000}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with lmdb.open(str(tmp_path / "env"), max_dbs=2, map_size=1 << 24, sync=False) as env:
        database = env.open_db(b"things")
        with env.begin(write=True) as transaction:
            for key, value in PAIRS.items():
                transaction.put(key, value, db=database)
        with env.begin(write=True) as transaction:  # free pages come of this
            for key in list(PAIRS)[:50]:
                transaction.delete(key, db=database)
    return tmp_path / "env" / "data.mdb"


def walked(path: Path) -> dict[bytes, bytes]:
    with LmdbFile(path) as file:
        found = {key: value for tree in file.trees().values() for key, value, _ in file.walk(tree)}
        file.check_free()
        return found


def test_what_lmdb_wrote(path: Path) -> None:
    kept = dict(list(PAIRS.items())[50:])
    assert walked(path) == kept
    with LmdbFile(path) as file:
        assert dict(file.pairs(b"things")) == kept
        assert dict(file.pairs(b"nothing")) == {}


@pytest.mark.parametrize("size", [0, 1, 100, 4096, 4200])
def test_a_file_without_meta_pages(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(Damaged):
        LmdbFile(path)
    with pytest.raises(Damaged):
        LmdbFile(path.with_name("nothing"))


def test_a_named_pipe_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be waited for until somebody writes: a start did so for ever."""

    def wait(*_: object) -> int:
        raise AssertionError("it waits")

    os.mkfifo(tmp_path / "data.mdb")
    monkeypatch.setattr(os, "open", wait)
    with pytest.raises(Damaged, match="no file"):
        LmdbFile(tmp_path / "data.mdb")


def test_any_damage_is_named_or_harmless(path: Path) -> None:
    """Any changed bytes give pairs or Damaged, never another error; what can still be read is what was written."""
    whole, rng = path.read_bytes(), random.Random(1)
    named = 0
    for round_ in range(120):
        data = bytearray(whole)
        page = rng.randrange(len(data) // 4096) * 4096
        at = page + rng.randrange(24 if round_ % 2 else 4088)  # every other time in the head of a page
        data[at : at + 8] = rng.randbytes(8)
        path.write_bytes(data)
        try:
            walked(path)
        except Damaged:
            named += 1
        try:
            with LmdbFile(path) as file:
                list(file.pairs(b"things"))
        except Damaged:
            pass  # not even meta pages
    assert named > 20
