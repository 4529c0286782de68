"""A disk that lies in stated ways: it keeps what was flushed and any subset of the rest, fails flushes, and fills up.

`LyingFiles` works on a real folder. `power_cut(to)` writes what a machine may find there after the power came back:
of a file whose name was flushed the pages as of its last flush, each changed page since then with probability one
half; of a name that was not flushed the file or nothing.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from pathlib import Path

from penstock.disk.files import Files
from penstock.errors import DiskFull, StoreError

PAGE = 4096


class Killed(BaseException):
    """The process ends here."""


class LyingFiles(Files):
    written_at_most: int | None = None  # so much of a write is done before the process is killed

    def __init__(self, root: Path, seed: int = 0) -> None:
        self.root = root
        self.random = random.Random(seed)
        self.fail_flush = False
        self.full = False
        self.flushes = 0
        self.used_ratio = 0.1
        self._paths: dict[int, Path] = {}
        self._room: dict[int, int] = {}  # by inode: allocated up to here
        self._content: dict[int, bytes] = {}  # by inode: as of the last flush
        self._names: dict[Path, dict[str, int]] = {root: {}}  # by folder: as of its last flush
        self._refused: dict[int, dict[int, bytes]] = {}  # by inode and place: pages that a failed flush was for

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> int:
        fd = super().open(path, create=create, writable=writable)
        self._paths[fd] = path
        return fd

    def allocate(self, fd: int, at: int, length: int) -> None:
        inode = os.fstat(fd).st_ino
        if self.full and self._room.get(inode, self.size(fd)) < at + length:
            raise DiskFull("no room (by order of the test)")
        super().allocate(fd, at, length)
        self._room[inode] = max(self._room.get(inode, 0), at + length)

    def grow(self, fd: int, size: int) -> None:
        self._room.setdefault(os.fstat(fd).st_ino, self.size(fd))
        super().grow(fd, size)

    def write(self, fd: int, at: int, data: bytes | memoryview) -> None:
        if self.full and self.size(fd) < at + len(data):
            raise DiskFull("no room (by order of the test)")
        if self.written_at_most is not None:
            super().write(fd, at, data[: self.written_at_most])
            raise Killed
        super().write(fd, at, data)
        refused = self._refused.get(os.fstat(fd).st_ino, {})
        for page in [page for page in refused if at < page + PAGE and page < at + len(data)]:
            del refused[page]

    def write_parts(self, fd: int, at: int, parts: Sequence[bytes | bytearray | memoryview]) -> None:
        self.write(fd, at, b"".join(parts))

    def datasync(self, fd: int) -> None:
        self.flushes += 1
        inode, now = os.fstat(fd).st_ino, self._now(fd)
        if self.fail_flush:
            durable = self._content.get(inode, b"").ljust(len(now), b"\0")
            refused = self._refused.setdefault(inode, {})
            for at in range(0, len(now), PAGE):
                if now[at : at + PAGE] != durable[at : at + PAGE]:
                    refused[at] = now[at : at + PAGE]
            for call in self.when_unwritten:
                call()
            raise StoreError("Input/output error (by order of the test)")
        self._content[inode] = self._on_disk(inode, now)

    def _on_disk(self, inode: int, now: bytes) -> bytes:
        """What can reach the disk of a file's contents."""
        out, durable = bytearray(now), self._content.get(inode, b"").ljust(len(now), b"\0")
        for at, page in self._refused.get(inode, {}).items():
            if now[at : at + PAGE] == page:  # nobody has written there since
                out[at : at + PAGE] = durable[at : at + len(page)]
        return bytes(out)

    def sync_folder(self, folder: Path) -> None:
        if self.fail_flush:
            raise StoreError("Input/output error (by order of the test)")
        try:
            self._names[folder] = {entry.name: entry.inode() for entry in os.scandir(folder)}
        except OSError as error:
            raise StoreError(str(error)) from error

    def sync_all(self, fd: int) -> bool:
        if self.fail_flush:
            raise StoreError("Input/output error (by order of the test)")
        self.adopt()
        return True

    def check_written(self, fd: int) -> bool:
        if self.fail_flush:
            raise StoreError("Input/output error (by order of the test)")
        return True

    def usage(self, folder: Path) -> tuple[int, int]:
        return int(self.used_ratio * 1000), 1000

    def _now(self, fd: int) -> bytes:
        return os.pread(fd, os.fstat(fd).st_size, 0)

    def adopt(self) -> None:
        """All that lies here now is durable: the folder a power cut left."""
        for folder, _, names in os.walk(self.root):
            here = Path(folder)
            self._names[here] = {entry.name: entry.inode() for entry in os.scandir(here)}
            for name in names:
                self._content[(here / name).stat().st_ino] = (here / name).read_bytes()

    def power_cut(self, to: Path) -> None:
        """Write the folder that is found afterwards."""
        to.mkdir()
        self._restore(self.root, to)

    def _restore(self, folder: Path, to: Path) -> None:
        now = {entry.name: entry for entry in os.scandir(folder)} if folder.is_dir() else {}
        names: dict[str, int] = dict(self._names.get(folder, {}))
        for name, entry in now.items():
            if name not in names and self.random.random() < 0.5:
                names[name] = entry.inode()
        for name in list(names):
            if name not in now and self.random.random() < 0.5:
                del names[name]  # removed, and the removal reached the disk
        inodes = {entry.inode(): entry for entry in now.values()}
        for name, inode in names.items():
            here = inodes.get(inode)
            if here is not None and here.is_dir():
                (to / name).mkdir()
                self._restore(Path(here.path), to / name)
                continue
            durable = self._content.get(inode)
            current = self._on_disk(inode, Path(here.path).read_bytes()) if here is not None else None
            if durable is None and current is None:
                continue
            (to / name).write_bytes(self._mix(durable, current))

    def _mix(self, durable: bytes | None, current: bytes | None) -> bytes:
        if durable is None:
            assert current is not None
            durable = bytes(len(current)) if self.random.random() < 0.7 else b""
        if current is None:
            return durable
        size = max(len(durable), len(current)) if self.random.random() < 0.7 else len(durable)
        durable, current = durable.ljust(size, b"\0")[:size], current.ljust(size, b"\0")[:size]
        out = bytearray(durable)
        for at in range(0, size, PAGE):
            if durable[at : at + PAGE] != current[at : at + PAGE] and self.random.random() < 0.5:
                out[at : at + PAGE] = current[at : at + PAGE]
        return bytes(out)
