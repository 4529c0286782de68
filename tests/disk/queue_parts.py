"""What the tests of the disk queue share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lying_disk import LyingFiles

from penstock.disk.diskqueue import DiskQueue
from penstock.disk.files import Files
from penstock.disk.runs import framed

VECTORS = Path(__file__).parents[1] / "vectors" / "diskqueue"


def message(n: int) -> bytes:
    """Message n of the vectors, as their README has it."""
    return (n + 1).to_bytes(8) + b"\0\1" + b"%016x" % n + bytes([97 + n % 26]) * (n % 40)


def messages(*bounds: int) -> list[bytes]:
    return [message(n) for n in range(*bounds)]


def make(folder: Path, name: str = "t", files: Files | None = None, **more: Any) -> DiskQueue:
    return DiskQueue(folder, name, files or Files(), **{"max_bytes_per_file": 400, **more})


def put(queue: DiskQueue, *payloads: bytes) -> None:
    """These payloads in one call."""
    queue.put([framed(payloads)])


def drain(queue: DiskQueue, limit: int = 7) -> list[bytes]:
    """Everything there is, left in hand."""
    found: list[bytes] = []
    while queue.depth:
        taken = queue.take_payloads(limit)
        assert taken or not queue.depth
        found += taken
        assert len(found) < 10_000
    assert queue.take_payloads(limit) == []
    return found


def contents(folder: Path) -> dict[str, bytes]:
    """The files of the folder that go-diskqueue knows."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.suffix == ".dat"}


class KeepingFiles(LyingFiles):
    """A lying disk that does not give the inode of a removed file to a new one: it knows contents by inode. It also knows
    what a killed queue has left open.
    """

    def __init__(self, root: Path, seed: int = 0) -> None:
        super().__init__(root, seed)
        self._descriptors: set[int] = set()

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> int:
        fd = super().open(path, create=create, writable=writable)
        self._descriptors.add(fd)
        return fd

    def close(self, fd: int) -> None:
        self._descriptors.discard(fd)
        super().close(fd)

    def _hold(self, path: Path) -> None:
        if path.is_file():
            self.open(path, writable=False)

    def unlink(self, path: Path) -> None:
        self._hold(path)
        super().unlink(path)

    def rename(self, old: Path, new: Path) -> None:
        self._hold(new)
        super().rename(old, new)

    def let_go(self) -> None:
        for fd in list(self._descriptors):
            self.close(fd)
