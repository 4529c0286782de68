"""A dict kept as JSON: replaced whole and safely, the previous version beside it as ``.bak``.

A power cut at any moment leaves the old or the new version, never an empty or a half one: temporary file, flush,
rename, flush of the folder. The last field, ``"sum"``, is the CRC-32 of all bytes before it: a digit that changed is
still JSON. A file without it (RocketMQ's, nsqd's) is read as it is.

Java's fastjson writes integer keys without quotes (``{0:123}``); reading takes those too.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec

from penstock.disk.files import Files
from penstock.disk.quarantine import try_quarantine
from penstock.errors import StoreError

log = logging.getLogger("penstock.disk")

_BARE_KEY = re.compile(r'"(?:[^"\\]|\\.)*"|([{,]\s*)(-?\d+)(?=\s*:)')


def parse(text: str) -> dict[str, Any]:
    """The object in the text, unquoted integer keys allowed; ValueError when it is anything else."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        try:
            value = json.loads(_BARE_KEY.sub(lambda m: m[0] if m[2] is None else f'{m[1]}"{m[2]}"', text))
        except RecursionError as error:
            raise ValueError("nested too deep") from error
    if not isinstance(value, dict):
        raise ValueError("not an object")
    return value


class Table(dict[str, Any]):
    """A table that was read; `mark` tells its file's bytes from any others."""

    mark = ""


def mark(data: bytes) -> str:
    """What tells these bytes of a file from others."""
    return f"{crc32(data):08x}-{len(data)}"


_SUM = re.compile(rb',\s*"sum": "([0-9a-f]{8})"\s*}\s*$')
Fits = Callable[[dict[str, object]], bool]


def load(files: Files, path: Path, fits: Fits | None = None) -> dict[str, Any] | None:
    """The table at path, or its ``.bak`` when the file is missing, empty, garbage or of another shape (`fits` says);
    None when neither is readable. Changes nothing.
    """
    for candidate in (path, path.with_name(path.name + ".bak")):
        table = _read(files, candidate)
        if table is not None and (fits is None or fits(table)):
            return table
    return None


def is_sound(files: Files, path: Path) -> bool:
    """Whether the file at path is a table: if not, `load` gives its former version."""
    return _read(files, path) is not None


def take(files: Files, root: Path, path: Path, fits: Fits, without: str) -> dict[str, Any] | None:
    """As `load`, by the one who owns the file: what cannot be used goes to lost+found of the data folder `root`, and a
    line says so; `without` says what happens when there is no backup either.
    """
    for suffix in ("", ".bak", ".tmp", ".bak.tmp"):
        odd = path.with_name(path.name + suffix)
        if odd.is_dir():
            try_quarantine(files, root, odd, "a folder where a table should be")
    was_there = False
    for candidate in (path, path.with_name(path.name + ".bak")):
        if not candidate.is_file():
            continue
        was_there = True
        table = _read(files, candidate)
        if table is not None and fits(table):
            if candidate != path:
                log.error(
                    "%s cannot be used: its former version %s is taken. If it was edited by hand: copy it back from "
                    "lost+found without its last field, the sum", path.name, candidate.name,
                )  # fmt: skip
            return table
        try_quarantine(files, root, candidate, "not the table it should be")
    if was_there:
        log.error("%s and its former version cannot be used: %s", path.name, without)
    return None


def read_whole(files: Files, path: Path) -> bytes:
    """The bytes of a file that is there. StoreError, which names it, also where there is no memory for so many."""
    fd = files.open(path, writable=False)
    try:
        return files.read(fd, 0, files.size(fd))
    except MemoryError as error:
        raise StoreError(f"{path} has {files.size(fd)} bytes, which is too many: move it away") from error
    except StoreError as error:
        raise StoreError(f"{path}: {error}") from error
    finally:
        files.close(fd)


def _read(files: Files, path: Path) -> Table | None:
    if not path.is_file():
        return None
    data = read_whole(files, path)
    try:
        table = Table(parse(data.decode("utf-8-sig")))
    except ValueError:
        return None
    table.mark = mark(data)
    told = _SUM.search(data)
    if told is None:
        return None if "sum" in table else table
    table.pop("sum", None)
    return table if int(told[1], 16) == crc32(data[: told.start()]) else None


def encode(table: Mapping[str, object], *, summed: bool = True) -> bytes:
    """The bytes of a table, with their sum."""
    data = msgspec.json.format(msgspec.json.encode(table), indent=1)
    if not table or not summed:
        return data
    return summed_up(data[:-2])


def summed_up(body: bytes) -> bytes:
    """A table whose last field and bracket are missing, with its sum."""
    return body + b',\n "sum": "%08x"\n}' % crc32(body)


def save(files: Files, path: Path, table: Mapping[str, object], *, summed: bool = True) -> None:
    """Replace the table at path durably; StoreError leaves the old one in place. Not `summed`: people edit it by hand."""
    replace(files, path, encode(table, summed=summed))


def replace(files: Files, path: Path, data: bytes) -> None:
    """Replace the file's bytes durably, keeping the former ones as ``.bak``."""
    files.make_folder(path.parent)
    fresh = path.with_name(path.name + ".tmp")
    backup = path.with_name(path.name + ".bak")
    kept = done = False
    try:
        _write(files, fresh, data)
        if path.is_file() and path.stat().st_size:  # the former one gets a second name: its bytes are durable
            spare = path.with_name(path.name + ".bak.tmp")
            try:
                files.unlink(spare)
                files.link(path, spare)
            except StoreError:  # a file system without second names
                _write(files, spare, read_whole(files, path))
            files.rename(spare, backup)
            kept = True
        files.rename(fresh, path)
        done = True
        files.sync_folder(path.parent)
    except StoreError:
        with contextlib.suppress(StoreError):
            if done and kept:  # whoever asked is told that nothing has changed: no start may find that it has
                files.rename(backup, path)
            else:
                files.unlink(path if done else fresh)
        raise


def _write(files: Files, path: Path, data: bytes) -> None:
    files.unlink(path)
    fd = files.open(path, create=True)
    try:
        files.write(fd, 0, data)
        files.datasync(fd)
    finally:
        files.close(fd)
