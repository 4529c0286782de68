"""The epochs of a log: who was its master from which position on, as a table in `ha/epochs`; and where two logs part.

    "PEPO" | version (2) | count (2) | count × (epoch (4) | tag (8) | start (8)) | CRC-32 of all before (4)

Two epochs are one when number, tag and start agree. Where two logs part is told by their tables and ends alone, not by what
was confirmed: a follower does not know yet what was, and would cut too much (Kafka's KIP-101).
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path

from isal import isal_zlib

from penstock.disk import tables
from penstock.disk.files import Files
from penstock.errors import StoreError
from penstock.wire.ha import EPOCH, Epoch

EPOCHS_MAX = 1_000

_MAGIC = b"PEPO"
_VERSION = 1
_HEAD = struct.Struct(">4sHH")
_SUM = struct.Struct(">I")


def encode(epochs: Sequence[Epoch]) -> bytes:
    """The bytes of the file."""
    data = _HEAD.pack(_MAGIC, _VERSION, len(epochs)) + b"".join(EPOCH.pack(*epoch) for epoch in epochs)
    return data + _SUM.pack(isal_zlib.crc32(data))


def decode(data: bytes) -> tuple[Epoch, ...]:
    """The table in the bytes of the file. ValueError when they are none."""
    if len(data) < _HEAD.size + _SUM.size or _SUM.unpack(data[-4:])[0] != isal_zlib.crc32(data[:-4]):
        raise ValueError("the sum does not hold")
    magic, version, count = _HEAD.unpack_from(data)
    if (magic, version) != (_MAGIC, _VERSION) or len(data) != _HEAD.size + count * EPOCH.size + _SUM.size:
        raise ValueError("not a table of epochs of this version")
    return checked(Epoch(*EPOCH.unpack_from(data, _HEAD.size + n * EPOCH.size)) for n in range(count))


def checked(epochs: Iterable[Epoch]) -> tuple[Epoch, ...]:
    """The table, if numbers rise and starts do not fall. ValueError."""
    table = tuple(epochs)
    for one, following in itertools.pairwise(table):
        if following.number <= one.number or following.start < one.start:
            raise ValueError(f"epoch {following.number} at {following.start} stands behind {one.number} at {one.start}")
    if table and table[0].start < 0:
        raise ValueError(f"an epoch that begins at {table[0].start}")
    return table


class EpochFile:
    """The file with the table of one data folder."""

    def __init__(self, files: Files, path: Path) -> None:
        self._files = files
        self.path = path

    def load(self) -> tuple[Epoch, ...] | None:
        """The table; None when there is no file. StoreError when it cannot be believed: a former table would let this log
        pass for more of another one than it is, so none is taken instead.
        """
        if not self.path.is_file():
            return None
        data = tables.read_whole(self._files, self.path)
        try:
            return decode(data)
        except ValueError as error:
            raise StoreError(f"{self.path} cannot be read ({error}): restore it, or set the folder aside") from None

    def save(self, epochs: Sequence[Epoch]) -> None:
        """Replace the table durably. StoreError."""
        tables.replace(self._files, self.path, encode(epochs))


def aligned(ours: Sequence[Epoch], theirs: Sequence[Epoch]) -> tuple[Sequence[Epoch], Sequence[Epoch]]:
    """Two tables from the first epoch that both can have: a table lets its oldest ones go (`EPOCHS_MAX`), and one node does so
    before the other hears of the epoch for which it did. An epoch in common says that all before it are.
    """
    if ours and theirs:
        if ours[0].number < theirs[0].number and theirs[0] in ours:
            ours = ours[ours.index(theirs[0]) :]
        elif theirs[0].number < ours[0].number and ours[0] in theirs:
            theirs = theirs[theirs.index(ours[0]) :]
    return ours, theirs


def common(ours: Sequence[Epoch], theirs: Sequence[Epoch]) -> int:
    """How many epochs two tables have in common, from the first that both can have."""
    count = 0
    for mine, other in zip(*aligned(ours, theirs), strict=False):
        if mine != other:
            break
        count += 1
    return count


def shared_end(ours: Sequence[Epoch], our_end: int, theirs: Sequence[Epoch], their_end: int) -> int:
    """Up to where two logs are one, by their epochs: to the end of the last one in common, on either side."""
    count = common(ours, theirs)
    ends = [our_end, their_end]
    ends += [table[count].start for table in aligned(ours, theirs) if count < len(table)]
    return min(ends)


def held(epochs: Sequence[Epoch], end: int) -> tuple[Epoch, ...]:
    """The epochs of which a log that ends there has records: it may know of later ones."""
    return tuple(epoch for epoch in epochs if epoch.start < end)


def newest(epochs: Sequence[Epoch]) -> Epoch | None:
    """The last of a table; None of an empty one."""
    return epochs[-1] if epochs else None


def begun(epochs: Sequence[Epoch], tag: bytes, end: int) -> tuple[Epoch, ...]:
    """The table of a log that ends there, with a new epoch: its number is above all that are known, and epochs that would
    begin behind the end are none of this log.
    """
    last = newest(epochs)
    number = last.number + 1 if last is not None else 1
    return (*(epoch for epoch in epochs if epoch.start <= end), Epoch(number, tag, end))[-EPOCHS_MAX:]
