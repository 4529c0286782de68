"""Cutting the end of a log that its master has not, in steps of which any may be the last of a process.

    1  `intend`: ha/cut.json says from where on, durably; the broker starts anew
    2  the start, with the folder locked: `keep_tail` copies the tail to lost+found/log-<position>-<epoch>/
    3  recovery cuts the log there, its sums, its queues and its index, and flushes
    4  `done`: the intent goes

A start that finds an intent goes on at step 2, which copies nothing that was copied before.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, TypedDict

import msgspec
from isal import isal_zlib

from penstock.disk import tables
from penstock.disk.files import Files, number_names
from penstock.disk.segments import segment_name
from penstock.errors import StoreError

log = logging.getLogger("penstock.log")

INTENT = Path("ha") / "cut.json"
MANIFEST = "manifest.json"
_PIECE = 1 << 20


class Manifest(TypedDict):
    """What is said of a tail beside it; `pieces`: file, bytes and crc32 of each."""

    position: int
    end: int
    epoch: int
    why: str
    at: int
    pieces: list[dict[str, object]]


class Intent(NamedTuple):
    """The log is to end at `to`; it ended at `end`. `folder`: where the tail goes, in lost+found."""

    to: int
    end: int
    folder: str
    epoch: int
    why: str


def intend(files: Files, root: Path, to: int, end: int, epoch: int, why: str) -> Intent:
    """Write down that the next start cuts the log at `to`. StoreError."""
    name, n = f"log-{to}-{epoch}", 0
    while (root / "lost+found" / name).exists():
        n += 1
        name = f"log-{to}-{epoch}.{n}"
    intent = Intent(to, end, name, epoch, why)
    tables.save(files, root / INTENT, intent._asdict())
    return intent


def intended(files: Files, root: Path) -> Intent | None:
    """What a former run has written down. StoreError when it cannot be read: the log must not go on as it is."""
    path = root / INTENT
    if not path.exists():
        return None
    table = tables.load(files, path) or {}
    try:
        intent = Intent(
            int(table["to"]), int(table["end"]), str(table["folder"]), int(table["epoch"]), str(table["why"])
        )
    except (KeyError, TypeError, ValueError):
        intent = Intent(-1, -1, "", 0, "")
    if not 0 <= intent.to < intent.end or not intent.folder.startswith("log-") or "/" in intent.folder:
        raise StoreError(f"{path} cannot be read, and the end of the log was to be cut: set the folder aside")
    return intent


def done(files: Files, root: Path) -> None:
    """The log is cut, and all of that is on the disk."""
    path = root / INTENT
    files.unlink(path.with_name(path.name + ".bak"))
    files.unlink(path)
    files.sync_folder(path.parent)


def keep_tail(files: Files, root: Path, intent: Intent, segment_size: int, now_ms: int) -> Path:
    """Copy what stands behind the cut to lost+found, with sums; nothing when that is done already. StoreError."""
    lost = root / "lost+found"
    to = lost / intent.folder
    if to.exists():
        return to
    fresh = lost / f"{intent.folder}.tmp"
    for name in files.names(fresh):
        files.unlink(fresh / name)
    files.make_folder(fresh)
    pieces = []
    for first in number_names(files.names(root / "commitlog")):
        begin, end = max(first, intent.to), min(first + segment_size, intent.end)
        if begin < end:
            pieces.append(
                _copy(files, root / "commitlog" / segment_name(first), begin - first, end - first, fresh, begin)
            )
    table = {"position": intent.to, "end": intent.end, "epoch": intent.epoch, "why": intent.why, "at": now_ms,
             "pieces": pieces}  # fmt: skip
    tables.save(files, fresh / MANIFEST, table)
    files.sync_folder(fresh)
    files.rename(fresh, to)
    files.sync_folder(lost)
    log.error("the end of the log is cut position=%d bytes=%d kept=%s why=%s", intent.to,
              intent.end - intent.to, str(to.relative_to(root)), intent.why)  # fmt: skip
    return to


def _copy(files: Files, path: Path, at: int, end: int, folder: Path, position: int) -> dict[str, object]:
    source, crc = files.open(path, writable=False), 0
    try:
        fd = files.open(folder / segment_name(position), create=True)
        try:
            for piece in range(at, end, _PIECE):
                data = files.read(source, piece, min(_PIECE, end - piece))
                files.write(fd, piece - at, data)
                crc = isal_zlib.crc32(data, crc)
            files.datasync(fd)
        finally:
            files.close(fd)
    finally:
        files.close(source)
    return {"file": segment_name(position), "bytes": end - at, "crc32": f"{crc:08x}"}


def cut_tails(root: Path) -> Iterator[tuple[Path, Manifest]]:
    """(folder, manifest) of each tail that was cut from the log of this data folder, oldest first."""
    found = []
    for folder in (root / "lost+found").glob("log-*"):
        try:
            table = json.loads((folder / MANIFEST).read_bytes())
            found.append((folder, msgspec.convert(table, Manifest)))
        except (OSError, ValueError):
            continue
    return iter(sorted(found, key=lambda one: (one[1]["at"], one[0].name)))
