"""The head of a ready segment, which stands twice in the file of its sums; `readyqueue` draws its bytes."""

from __future__ import annotations

from pathlib import Path
from struct import Struct
from typing import NamedTuple
from zlib import crc32

from penstock.disk import readylayout as layout
from penstock.disk.files import Files

NOT_CLEAN = 0xFFFFFFFF  # the count of a segment that is in use
_HEAD = Struct(">IIQIIII")  # magic, life and version, first ordinal, segment size, tag, count, sum
_OLD_HEAD = Struct(">IIQQQ")  # of version 1: magic, version, first ordinal, segment size, count
_SUMMED = 28  # bytes of a head
_OLD_VERSION = 1
_FIRST_END = 1 << 62  # of an ordinal: those that follow must fit as well
_OLD_SIZE_END = 1 << 31  # what a head of version 1, which has no sum, may say


class Head(NamedTuple):
    """What a head says."""

    life: int
    first: int
    size: int
    tag: int
    records: int


def parse_head(data: bytes) -> Head | None:
    """One copy of the head; None when its sum does not hold, or it is none."""
    if len(data) != _HEAD.size:
        return None
    magic, version, first, size, tag, count, crc = _HEAD.unpack(data)
    if magic != layout.MAGIC or version & layout.VERSION_BITS != layout.VERSION_NOW or crc32(data[:_SUMMED]) != crc:
        return None
    if first >= _FIRST_END:
        return None
    return Head(version >> layout.LIFE_BIT, first, size, tag, count)


def read_heads(files: Files, path: Path, size: int, tag: int) -> tuple[list[Head], bool]:
    """The copies of the head that hold, of the sums of a segment of this size; whether it is one of version 1, without a sum and
    so without a tag. StoreError.
    """
    if not path.is_file():
        return [], False
    fd = files.open(path)
    try:
        length = files.size(fd)
        copies = [files.read(fd, at, layout.HEAD_BYTES) for at in {0, max(0, length - layout.HEAD_BYTES)}]
        front = files.read(fd, 0, layout.HEAD_BYTES)
    finally:
        files.close(fd)
    found = [head for head in map(parse_head, copies) if head is not None]
    if not found and len(front) == _OLD_HEAD.size:
        magic, version, first, segment_size, count = _OLD_HEAD.unpack(front)
        old = magic == layout.MAGIC and version == _OLD_VERSION
        if old and first < _FIRST_END and size <= segment_size < _OLD_SIZE_END:
            return [Head(0, first, segment_size, tag, min(count, NOT_CLEAN))], True
    return found, False
