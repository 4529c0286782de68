"""Reindex makes the broker's own files, goes on after a kill, and mends."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from spark_logs import copy, files, write_log
from spark_records import Record

from penstock.errors import ConfigError, Locked
from penstock.spark.kernel import batches, numpydecode
from penstock.spark.kernel.buffers import ENTRY
from penstock.spark.pipelines import audit, reindex
from penstock.wire import layout


@pytest.mark.parametrize("kernel", ["decode", "numpydecode"])
def test_reindex_makes_the_files_of_the_broker(
    good: Path, tmp_path: Path, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kernel == "numpydecode":
        monkeypatch.setattr(batches, "kernel", numpydecode)
    for split_bytes in (1 << 30, 5000):
        to = tmp_path / str(split_bytes)
        result = reindex.run(None, good, to=to, split_bytes=split_bytes)
        assert (result.records, result.entries, result.keys) == (350, 350, 700)
        assert files(to / "consumequeue") == files(good / "consumequeue")
        assert list(files(to / "index").values()) == list(files(good / "index").values())


def test_a_damaged_store_is_mended_by_reindex_and_opens(good: Path, tmp_path: Path) -> None:
    from store_parts import bodies, make

    store = copy(good, tmp_path / "s")
    for path in (store / "consumequeue").rglob("*"):
        if path.is_file():
            path.write_bytes(random.Random(5).randbytes(path.stat().st_size))
    assert not audit.run(None, store).ok
    assert 330 < reindex.run(None, store, dry_run=True).records < 370
    assert not (store / "reindex").exists()
    assert reindex.run(None, store, swap=True).swapped
    assert audit.run(None, store).ok
    assert (store / "lost+found").is_dir()
    opened = make(store)
    opened.open()
    assert len(bodies(opened, b"rare")) == 39
    with pytest.raises(Exception, match="in use"):
        reindex.run(None, store, swap=True)
    opened.close()


def test_a_killed_reindex_goes_on(good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(reindex, "_write_queues", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            reindex.run(None, good, to=tmp_path, split_bytes=5000)
    parts = sorted((tmp_path / ".parts").iterdir())
    parts[3].unlink()
    result = reindex.run(None, good, to=tmp_path, split_bytes=5000)
    assert (result.resumed, result.records) == (len(parts) - 1, 350)
    assert files(tmp_path / "consumequeue") == files(good / "consumequeue")
    assert not (tmp_path / ".parts").exists()


def test_one_run_at_a_time_writes_to_a_folder(good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = []

    def meanwhile(*_: object) -> tuple[int, int]:
        for swap in (False, True):
            with pytest.raises(Locked, match="another reindex run") as caught:
                reindex.run(None, store, to=tmp_path / "to", swap=swap)
            refused.append(caught.value)
        return 0, 0

    store = copy(good, tmp_path / "store")
    with monkeypatch.context() as patch:
        patch.setattr(reindex, "_write_queues", meanwhile)
        reindex.run(None, store, to=tmp_path / "to")
    assert len(refused) == 2
    assert reindex.run(None, store, to=tmp_path / "to", swap=True).entries == 350


def test_a_store_is_not_written_over(good: Path, tmp_path: Path) -> None:
    store = copy(good, tmp_path / "store")
    before = files(store / "consumequeue")
    with pytest.raises(ConfigError, match="is a store folder"):
        reindex.run(None, good, to=store)
    assert files(store / "consumequeue") == before


def test_a_segment_that_was_brought_back_since_is_read_again(
    good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run before was killed when it had read the damaged one."""
    store = copy(good, tmp_path / "store")
    segment = sorted((store / "commitlog").iterdir())[1]
    whole = segment.read_bytes()
    segment.write_bytes(whole[:2000] + bytes(2000) + whole[4000:])
    with monkeypatch.context() as patch:
        patch.setattr(reindex, "_write_queues", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            reindex.run(None, store, to=tmp_path / "to", split_bytes=5000)
    segment.write_bytes(whole)
    os.utime(segment, (1, 1))  # as it was: a backup keeps times
    assert reindex.run(None, store, to=tmp_path / "to", split_bytes=5000).resumed > 0
    assert files(tmp_path / "to" / "consumequeue") == files(good / "consumequeue")


def test_holes_are_fillers_and_the_newest_of_doubles_counts(tmp_path: Path) -> None:
    made = [Record(n, b"b") for n in (3, 4, 7, 4)]
    write_log(tmp_path, made)
    reindex.run(None, tmp_path, to=tmp_path / "new")
    entries = np.fromfile(next((tmp_path / "new" / "consumequeue").rglob("0*0")), ENTRY)
    size = len(replace(made[0]).encode())
    assert entries["size"][:9].tolist() == [layout.FILLER_SIZE] * 3 + [size] * 2 + [layout.FILLER_SIZE] * 2 + [size, 0]
    assert int(entries["physical"][4]) == 3 * size
