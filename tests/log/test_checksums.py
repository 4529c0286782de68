"""Sums beside a segment: entry by entry, over reopening, cuts and damage."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.disk.files import Files
from penstock.log.checksums import Sidecar
from penstock.log.sidelayout import HEAD_BYTES

SEGMENT = 1 << 16


def new_sidecar(folder: Path, count: int, covers_from: int = 0) -> Sidecar:
    sidecar = Sidecar(folder / "00000000000000000000", 0, SEGMENT, Files())
    sidecar.create(covers_from)
    for n in range(count):
        assert sidecar.room(1) == 0
        sidecar.put(n * 100, 1_000 + n)
    return sidecar


def reopened(folder: Path, *, mend: bool = True) -> Sidecar:
    sidecar = Sidecar(folder / "00000000000000000000", 0, SEGMENT, Files())
    sidecar.open(mend)
    return sidecar


def test_sums_are_found_again(tmp_path: Path) -> None:
    new_sidecar(tmp_path, 20, covers_from=48).close()
    sidecar = reopened(tmp_path)
    assert list(sidecar.entries()) == [(n * 100, 1_000 + n) for n in range(20)]
    assert (sidecar.covers_from, sidecar.count) == (48, 20)
    assert [sidecar.find(start) for start in (0, 1, 100, 1_900, 1_901)] == [0, 1, 1, 19, 20]
    sidecar.close()


def test_what_is_cut_stays_away(tmp_path: Path) -> None:
    sidecar = new_sidecar(tmp_path, 20)
    sidecar.cut(700)
    assert sidecar.count == 7
    sidecar.put(700, 5)
    sidecar.close()
    again = reopened(tmp_path)
    assert list(again.entries())[-1] == (700, 5)
    assert again.count == 8
    again.close()


def test_what_stands_behind_the_first_missing_sum_does_not_count(tmp_path: Path) -> None:
    sidecar = new_sidecar(tmp_path, 20)
    for lost in (3, 12, 13, 14):
        sidecar.map[HEAD_BYTES + 8 * lost : HEAD_BYTES + 8 * (lost + 1)] = bytes(8)
    sidecar.trim(500)  # what is missing before the start is damage, and no end
    assert (sidecar.count, sidecar.find(1_150)) == (12, 12)
    sidecar.trim(0)
    assert sidecar.count == 3
    sidecar.trim(5_000)
    assert sidecar.count == 3
    sidecar.close()


@pytest.mark.parametrize("at", [0, 5, 9, 17, 21])
def test_a_damaged_header_costs_no_sum(tmp_path: Path, at: int) -> None:
    sidecar = new_sidecar(tmp_path, 5)
    sidecar.map[at : at + 1] = bytes([sidecar.map[at] ^ 0xFF])
    sidecar.close()
    again = reopened(tmp_path)
    assert list(again.entries()) == [(n * 100, 1_000 + n) for n in range(5)]
    assert again.covers_from == 0
    again.close()


def test_an_entry_is_found_by_its_start_or_by_its_sum(tmp_path: Path) -> None:
    sidecar = new_sidecar(tmp_path, 5)
    sidecar.map[HEAD_BYTES + 2 * 8 : HEAD_BYTES + 2 * 8 + 4] = b"\xff\xff\xff\xf0"  # the start of the third
    assert sidecar.seek(300, 0) == 3
    assert sidecar.seek(200, 1_002) == 2
    assert sidecar.seek(200, 77) == -1
    sidecar.close()
