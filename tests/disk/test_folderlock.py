"""A folder that one process holds."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from penstock.disk.files import Files
from penstock.disk.folderlock import FolderLock
from penstock.errors import Locked, StoreError


def test_one_process_holds_the_folder(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path / "lock", Files())
    with pytest.raises(Locked, match="lock held by pid") as told:
        FolderLock(tmp_path / "lock", Files())
    assert "--data" in told.value.hint
    lock.release()
    lock.release()
    FolderLock(tmp_path / "lock", Files()).release()


def test_whoever_holds_a_folder_notices_that_it_is_gone(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    lock = FolderLock(folder / "lock", Files())
    assert lock.is_there()
    moved = folder.rename(tmp_path / "moved")
    assert not lock.is_there()
    folder.mkdir()
    FolderLock(folder / "lock", Files()).release()
    assert not lock.is_there()  # that one is another's
    (folder / "lock").unlink()
    folder.rmdir()
    moved.rename(folder)
    assert lock.is_there()
    lock.release()


def test_a_file_system_that_gives_new_numbers_is_no_removed_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Files, "is_at", lambda self, fd, path: False)
    lock = FolderLock(tmp_path / "lock", Files())
    assert lock.is_there()
    kept = (tmp_path / "lock").rename(tmp_path / "kept")
    assert not lock.is_there()
    (tmp_path / "lock").write_bytes(kept.read_bytes())
    assert not lock.is_there()  # nobody has that one
    other = FolderLock(tmp_path / "lock", Files())
    (tmp_path / "lock").write_text("lock held by pid 1")
    assert not lock.is_there()
    other.release()
    lock.release()


def test_a_file_system_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An NFS or a Lustre that was mounted so: the start ended with the system's words, and no path."""

    def refuse(fd: int, how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(StoreError, match=r"lock cannot be locked by flock\(2\): No locks available") as told:
        FolderLock(tmp_path / "lock", Files())
    assert isinstance(told.value.__cause__, OSError)  # by which the command has its hint
