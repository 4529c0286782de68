"""A sample of `./run chaos --only images`, and proof that images show what no kill can."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from chaos.blocklog import FLUSH, HEAD, MARK, WRITE
from chaos.images import Cut, Images, Journal, can_make_images, crash_images, find_in_images


@pytest.mark.chaos
@pytest.mark.parametrize(("kind", "level"), [("log", "os"), ("schedule", "disk")])
def test_crash_images(kind: str, level: str) -> None:
    reason = can_make_images()
    if reason is not None:
        pytest.skip(f"crash images cannot be made here: {reason}")
    told: list[str] = []
    assert crash_images(3, told.append, kind=kind, level=level, seed=9, seconds=1.5) == 3
    assert len(told) == 1


@pytest.mark.chaos
def test_an_answer_before_the_flush_is_found_in_an_image() -> None:
    reason = can_make_images()
    if reason is not None:
        pytest.skip(f"crash images cannot be made here: {reason}")
    said, _ = find_in_images("answered before flush", seed=3, count=20, seconds=1.5)
    assert (
        said
    )  # which cut comes first is a matter of time: messages lost, or the log damaged below its durable position


def journal(path: Path) -> Journal:
    """Two pages, a mark, a flush, a mark, four pages in one write."""
    pages = [bytes([n]) * 4096 for n in range(1, 7)]
    records = [
        (WRITE, 0, pages[0]), (WRITE, 4096, pages[1]), (MARK, 0, struct.pack("<Q", 5)), (FLUSH, 0, b""),
        (MARK, 0, struct.pack("<Q", 9)), (WRITE, 4096, b"".join(pages[2:])),
    ]  # fmt: skip
    path.write_bytes(b"".join(HEAD.pack(kind, at, len(data), n) + data for n, (kind, at, data) in enumerate(records)))
    return Journal(path)


def test_an_image_has_what_was_flushed_and_some_of_the_rest(tmp_path: Path) -> None:
    made = journal(tmp_path / "journal")
    assert made.blocks == [3, 5]  # where a cut may be: behind the first mark
    assert (made.told(3), made.told(5), made.told(6)) == (5, 9, 9)
    images = Images(made, tmp_path, mib=1)
    seen = set()
    for seed in range(150):
        image, _ = images.make(Cut(seed, 6))
        data = image.read_bytes()
        assert data[:4096] == b"\1" * 4096
        pages = [data[at] for at in range(4096, 5 * 4096, 4096)]
        assert all(page in (old, new) for page, old, new in zip(pages, (2, 0, 0, 0), (3, 4, 5, 6), strict=True))
        seen.add(tuple(pages))
        assert images.make(Cut(seed, 6))[0].read_bytes() == data
    assert len(seen) == 16  # every order that the disk may have chosen
    image, _ = images.make(Cut(1, 3))  # further back, before the flush
    assert image.read_bytes()[8192:] == bytes((1 << 20) - 8192)
