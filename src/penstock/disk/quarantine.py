"""lost+found: where damaged files go. Recovery deletes nothing (rule R14); retention removes them after three days.

lost+found/<path with dashes>.<ms>     the file or folder as it was found
lost+found/manifest.jsonl              a line each: {"from", "to", "why", "at"}
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import shutil
import time
from pathlib import Path

from penstock.disk.files import Files
from penstock.errors import StoreError

log = logging.getLogger("penstock.disk")


def quarantine(files: Files, root: Path, path: Path, why: str, now_ms: int | None = None) -> Path:
    """Move a file or folder of the data folder `root` to its lost+found, and say so; returns where it is now."""
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    lost = root / "lost+found"
    files.make_folder(lost)
    name = f"{'-'.join(path.relative_to(root).parts)}.{now_ms}"
    to, n = lost / name, 0
    while to.exists():
        n += 1
        to = lost / f"{name}.{n}"
    try:
        files.rename(path, to)
    except StoreError as error:
        if not (isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EXDEV):
            raise
        _carry(files, path, to)
    files.sync_folder(lost)
    files.sync_folder(path.parent)
    line = {"from": str(path.relative_to(root)), "to": to.name, "why": why, "at": now_ms}
    fd = files.open(lost / "manifest.jsonl", create=True)
    try:
        files.write(fd, files.size(fd), json.dumps(line).encode() + b"\n")
    finally:
        files.close(fd)
    log.error("set aside file=%s to=%s why=%s", line["from"], f"lost+found/{to.name}", why)
    return to


def _carry(files: Files, path: Path, to: Path) -> None:
    """What lies on a disk of its own cannot be renamed into another: it goes when the copy is on the disk. StoreError, and then
    it stays.
    """
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.copytree(path, to, symlinks=True)
        else:
            shutil.copy2(path, to, follow_symlinks=False)
        for copy in (to, *to.rglob("*")):
            if copy.is_dir() and not copy.is_symlink():
                files.sync_folder(copy)
            elif copy.is_file():
                _flush(files, copy)
        files.sync_folder(to.parent)
    except (OSError, StoreError) as error:
        with contextlib.suppress(OSError):
            _remove(to)
        raise StoreError(f"{path} is on a disk of its own, and cannot be copied to {to.parent}: {error}") from error
    try:
        _remove(path)
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}") from error


def _flush(files: Files, path: Path) -> None:
    fd = files.open(path, writable=False)
    try:
        files.datasync(fd)
    finally:
        files.close(fd)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def try_quarantine(files: Files, root: Path, path: Path, why: str) -> bool:
    """As `quarantine`; False when the disk does not allow it, and then the file stays where it is."""
    try:
        quarantine(files, root, path, why)
    except StoreError as error:
        log.error("not set aside file=%s why=%s error=%s", path, why, error)
        return False
    return True


def make_way(files: Files, root: Path, path: Path) -> None:
    """What has a name that a new file is to get is another's: a link would be followed and what is there overwritten, and a
    longer file, with what is written into it, is not what the next start looks for. What we made there ourselves and did not
    use is emptied. StoreError.
    """
    if files.unused.get(path) and path.is_file() and not path.is_symlink():
        _empty(files, path)
        files.unused[path] = False
    elif os.path.lexists(path):
        quarantine(files, root, path, "it was there before a file of this broker had its name")


def _empty(files: Files, path: Path) -> None:
    fd = files.open(path)
    try:
        files.cut(fd, 0)
    finally:
        files.close(fd)


def take_back(files: Files, path: Path) -> None:
    """Remove a file that was just made, and is not used after all: something else has failed, of which the caller tells. One
    that the disk keeps is taken when it is tried again, by `make_way`: set aside each time, such files would be more and more.
    """
    try:
        files.unlink(path)
    except StoreError as error:
        if path not in files.unused:
            log.error("a new file that is not used cannot be removed, and is used the next time error=%s", error)
        files.unused[path] = True


def clear(files: Files, root: Path, path: Path) -> None:
    """The name of a file that is about to be written beside another: what a killed process left there goes. A folder is not
    ours: it would be in the way for ever, and is set aside. StoreError.
    """
    if os.path.isdir(path) and not os.path.islink(path):
        quarantine(files, root, path, "a folder where a new file is to be written")
    else:
        files.unlink(path)


def data_folder(path: Path) -> Path:
    """The data folder of a file somewhere below its `queues`; else the file's own folder."""
    for parent in path.parents:
        if parent.name == "queues":
            return parent.parent
    return path.parent
