"""Who has a folder: one process at a time."""

from __future__ import annotations

import os
from pathlib import Path

from penstock.disk.files import Files
from penstock.errors import Locked, StoreError


class FolderLock:
    """The file `lock`, held by one process at a time, which is a `kind`. Raises Locked, which names the other."""

    def __init__(self, path: Path, files: Files, kind: str = "broker") -> None:
        self._files = files
        self._path = path
        self._fd = files.open(path, create=True)
        if not files.lock(self._fd):
            text = files.read(self._fd, 0, 100).decode("ascii", "replace").strip()
            self.release()
            raise Locked(
                f"{path.parent} is in use by another {kind} ({text or 'unknown process'})",
                "Stop that one first, or name another folder with --data.",
            )
        try:
            files.write(self._fd, 0, f"lock held by pid {os.getpid()}".ljust(40).encode())
        except StoreError:
            self.release()
            raise

    def is_there(self) -> bool:
        """Whether the file is where it was: else the folder was removed or renamed, and another process may have its name."""
        return self._files.is_at(self._fd, self._path)

    def release(self) -> None:
        if self._fd >= 0:
            self._files.close(self._fd)
            self._fd = -1
