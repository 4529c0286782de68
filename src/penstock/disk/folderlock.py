"""Who has a folder: one process at a time."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from penstock.disk.files import Files
from penstock.errors import Locked, StoreError


def _locked(fd: int, path: Path) -> bool:
    """Take the file's exclusive lock until it is closed; False when another process has it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:  # an NFS without locks, a Lustre mounted without them
        raise StoreError(f"{path} cannot be locked by flock(2): {error.strerror}") from error
    return True


class FolderLock:
    """The file `lock`, held by one process at a time, which is a `kind`. Raises Locked, which names the other."""

    def __init__(self, path: Path, files: Files, kind: str = "broker") -> None:
        self._files = files
        self._path = path
        self._text = f"lock held by pid {os.getpid()}".ljust(40).encode()
        self._fd = files.open(path, create=True)
        try:
            is_ours = _locked(self._fd, path)
        except StoreError:
            self.release()
            raise
        if not is_ours:
            text = files.read(self._fd, 0, 100).decode("ascii", "replace").strip()
            self.release()
            raise Locked(
                f"{path.parent} is in use by another {kind} ({text or 'unknown process'})",
                "Stop that one first, or name another folder with --data.",
            )
        try:
            files.write(self._fd, 0, self._text)
        except StoreError:
            self.release()
            raise

    def is_there(self) -> bool:
        """Whether the file is where it was: else the folder was removed or renamed, and another process may have its name."""
        return self._files.is_at(self._fd, self._path) or self._is_ours()

    def _is_ours(self) -> bool:
        """Whether the file that is there is the one in hand though it has another number, as on a network's file system that
        gives them anew: it has our text, and nobody can lock it a second time. True where nothing tells.
        """
        try:
            if not self._path.exists():
                return False
            fd = self._files.open(self._path)
            try:
                return self._files.read(fd, 0, len(self._text)) == self._text and not _locked(fd, self._path)
            finally:
                self._files.close(fd)
        except (OSError, StoreError):
            return True

    def release(self) -> None:
        if self._fd >= 0:
            self._files.close(self._fd)
            self._fd = -1
