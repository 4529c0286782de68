"""Two logs held against each other, and the records of a tail that was cut: for people, without a broker."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from penstock.disk.files import Files, number_names
from penstock.disk.segments import segment_name
from penstock.errors import StoreError, WireError
from penstock.log.epochs import EpochFile, shared_end
from penstock.message import ReceivedMessage
from penstock.wire.ha import Epoch
from penstock.wire.record import MAGIC_BLANK, decode_record

_BLANK = MAGIC_BLANK.to_bytes(4)
_PIECE = 1 << 20


class Difference(NamedTuple):
    """`shared`: the logs are one up to there by their epochs; `same`: by their bytes. Of each: its end, [number, tag, start]."""

    shared: int
    same: int
    one: tuple[int, list[tuple[int, str, int]]]
    other: tuple[int, list[tuple[int, str, int]]]


class _Log:
    def __init__(self, folder: Path) -> None:
        self._paths: dict[int, Path] = {}
        self.epochs: tuple[Epoch, ...] = EpochFile(Files(), folder / "ha" / "epochs").load() or ()
        names = list(number_names(Files().names(folder / "commitlog")))
        self._paths = {first: folder / "commitlog" / segment_name(first) for first in names}
        self.size = max((path.stat().st_size for path in self._paths.values()), default=1)
        self.begin = min(names, default=0)
        self.end = max((first + _used(path) for first, path in self._paths.items() if _used(path)), default=self.begin)

    def bytes_at(self, position: int, most: int) -> bytes:
        """At most so many, of one segment."""
        first = position - position % self.size
        path = self._paths.get(first)
        if path is None:
            return b""
        with path.open("rb") as stream:
            stream.seek(position - first)
            return stream.read(min(most, self.end - position))


def _used(path: Path) -> int:
    """Behind the last byte of a segment that is not zero."""
    if not path.is_file():  # opening a pipe would wait for a writer
        raise StoreError(f"{path} is no file")
    size = path.stat().st_size
    with path.open("rb") as stream:
        while size > 0:
            begin = max(0, size - _PIECE)
            stream.seek(begin)
            kept = len(stream.read(size - begin).rstrip(b"\0"))
            if kept:
                return begin + kept
            size = begin
    return 0


def compare(one: Path, other: Path) -> Difference:
    """Hold the logs of two data folders against each other, from where both begin. A last record that ends with zeros may
    count as shorter by them.
    """
    logs = _Log(one), _Log(other)
    position, end = max(log.begin for log in logs), min(log.end for log in logs)
    while position < end:
        mine, theirs = (log.bytes_at(position, _PIECE) for log in logs)
        n = min(len(mine), len(theirs))
        if n == 0:
            break
        if mine[:n] != theirs[:n]:
            position += next(i for i in range(n) if mine[i] != theirs[i])
            break
        position += n
    shared = shared_end(logs[0].epochs, logs[0].end, logs[1].epochs, logs[1].end)
    rows = [(log.end, [(epoch.number, epoch.tag.hex(), epoch.start) for epoch in log.epochs]) for log in logs]
    return Difference(shared, min(position, end), rows[0], rows[1])


def messages(tail: Path) -> Iterator[ReceivedMessage | dict[str, object]]:
    """The messages of a tail that was cut; what cannot be read of a piece ends it, with a row that says so."""
    for piece in json.loads((tail / "manifest.json").read_bytes())["pieces"]:
        data, at = (tail / piece["file"]).read_bytes(), 0
        while at < len(data):
            try:
                found = decode_record(data, at, check=True)
            except WireError as error:
                yield {"position": int(piece["file"]) + at, "error": str(error)}
                break
            if found is None:  # the blank record at the end of a segment, or zeros
                if data[at + 4 : at + 8] not in (_BLANK, bytes(4), b""):
                    yield {"position": int(piece["file"]) + at, "error": "no record"}
                break
            yield found
            at += found.size


def records(tail: Path) -> Iterator[dict[str, object]]:
    """The same for people."""
    for found in messages(tail):
        yield found if isinstance(found, dict) else {
            "position": found.physical_offset, "topic": found.topic, "queue": found.queue_id,
            "offset": found.queue_offset, "properties": dict(found.properties),
            "body": base64.b64encode(found.body).decode(),
        }  # fmt: skip
