"""The head of a ready segment: which copies hold, and what a head of the first version may say."""

from __future__ import annotations

import struct
from pathlib import Path
from zlib import crc32

import pytest

from penstock.disk import readylayout as layout
from penstock.disk.files import Files
from penstock.disk.segmenthead import NOT_CLEAN, Head, parse_head, read_heads


def head_bytes(life: int = 3, first: int = 70, size: int = 4096, tag: int = 9, count: int = 5) -> bytes:
    summed = struct.pack(">IIQIII", layout.MAGIC, life << layout.LIFE_BIT | layout.VERSION_NOW, first, size, tag, count)
    return summed + struct.pack(">I", crc32(summed))


def test_a_head_holds_with_its_sum_only() -> None:
    data = head_bytes()
    assert parse_head(data) == Head(3, 70, 4096, 9, 5)
    for at in range(len(data)):
        assert parse_head(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]) is None
    assert parse_head(data[:-1]) is None
    for first, good in (((1 << 62) - 1, True), (1 << 62, False), ((1 << 64) - 1, False)):  # no broker gets there
        assert (parse_head(head_bytes(first=first)) is not None) is good


@pytest.mark.parametrize("bad", [(), (0,), (1,), (0, 1)])
def test_each_copy_is_read_by_itself(tmp_path: Path, bad: tuple[int, ...]) -> None:
    copies = [head_bytes(count=NOT_CLEAN), head_bytes(life=4)]
    for number in bad:
        copies[number] = copies[number][:-1] + bytes([copies[number][-1] ^ 1])
    path = tmp_path / "a.sums"
    path.write_bytes(copies[0] + bytes(800) + copies[1])
    heads, old = read_heads(Files(), path, 4096, 9)
    assert {head.life for head in heads} == {life for number, life in enumerate((3, 4)) if number not in bad}
    assert not old


@pytest.mark.parametrize(
    ("first", "size", "good"), [(8, 4096, True), (1 << 62, 4096, False), (8, 4095, False), (8, 1 << 31, False)]
)
def test_a_head_of_the_first_version_is_believed_within_bounds(
    tmp_path: Path, first: int, size: int, good: bool
) -> None:
    path = tmp_path / "a.sums"
    path.write_bytes(struct.pack(">IIQQQ", layout.MAGIC, 1, first, size, 1 << 40) + bytes(800))
    found = read_heads(Files(), path, 4096, 77)
    assert found == (([Head(0, first, size, 77, NOT_CLEAN)], True) if good else ([], False))
    assert read_heads(Files(), tmp_path / "none.sums", 4096, 77) == ([], False)
