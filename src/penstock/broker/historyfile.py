"""`config/history.bin`: what the history knows, as MessagePack behind a head with its sum. A new one replaces the former."""

from __future__ import annotations

import logging
import sys
from array import array
from collections.abc import Mapping
from pathlib import Path
from zlib import crc32

import msgspec

from penstock.disk.files import Files
from penstock.disk.quarantine import clear, try_quarantine
from penstock.errors import StoreError

log = logging.getLogger("penstock.broker")

_MAGIC = b"penstock history 1\n"
_HEAD_BYTES = len(_MAGIC) + 4

Chunks = dict[int, "array[float]"]


class SavedTrack(msgspec.Struct, array_like=True):
    """A track in the file."""

    key: tuple[str, str, str]
    minutes_since: int
    minutes: dict[int, bytes]
    seconds_since: int
    seconds: dict[int, bytes]


class Saved(msgspec.Struct):
    """The file behind its head."""

    runs: list[tuple[int, int]]
    tracks: list[SavedTrack]


class HistoryFile:
    """See the module. `chunk_bytes`: how long each chunk is."""

    def __init__(self, files: Files, folder: Path, chunk_bytes: int) -> None:
        self._files = files
        self._folder = folder
        self._path = folder / "config" / "history.bin"
        self._chunk_bytes = chunk_bytes

    def open(self, bytes_max: int) -> Saved | None:
        """What it says, where there is one. One that is torn, foreign or too large goes to lost+found: it is never an error."""
        if not self._path.exists():
            return None
        try:
            return self._read(bytes_max)
        except (ValueError, StoreError, OSError) as error:
            log.error("%s cannot be used, history begins anew error=%s", self._path.name, error)
            try_quarantine(self._files, self._folder, self._path, "not the history it should be")
            return None

    def _read(self, bytes_max: int) -> Saved:
        fd = self._files.open(self._path, writable=False)
        try:
            size = self._files.size(fd)
            if size > bytes_max:
                raise ValueError("it is too large")
            data = self._files.read(fd, 0, size)
        finally:
            self._files.close(fd)
        body = data[_HEAD_BYTES:]
        if data[:_HEAD_BYTES] != _MAGIC + crc32(body).to_bytes(4):
            raise ValueError("its sum is another one")
        saved = msgspec.msgpack.decode(body, type=Saved)
        chunks = [raw for track in saved.tracks for part in (track.minutes, track.seconds) for raw in part.values()]
        if any(len(raw) != self._chunk_bytes for raw in chunks):
            raise ValueError("a chunk has another length")
        return saved

    def write(self, saved: Saved) -> None:
        """Put a new one in its place. StoreError: the former one stays."""
        body = msgspec.msgpack.encode(saved)
        fresh = self._path.with_name(self._path.name + ".tmp")
        self._files.make_folder(self._path.parent)
        clear(self._files, self._folder, fresh)
        try:
            fd = self._files.open(fresh, create=True)
            try:
                self._files.write(fd, 0, _MAGIC + crc32(body).to_bytes(4) + body)
                self._files.datasync(fd)
            finally:
                self._files.close(fd)
            self._files.rename(fresh, self._path)
        except StoreError:  # on a full disk messages want the room that it has taken
            self._files.unlink(fresh)
            raise


def raw(chunks: Mapping[int, array[float]]) -> dict[int, bytes]:
    """Chunks as they stand in the file, whatever the machine."""
    found = {}
    for number, chunk in chunks.items():
        if sys.byteorder == "big":
            chunk = array("f", chunk)
            chunk.byteswap()
        found[number] = chunk.tobytes()
    return found


def chunk_of(data: bytes) -> array[float]:
    """A chunk of the file."""
    chunk = array("f", data)
    if sys.byteorder == "big":
        chunk.byteswap()
    return chunk
