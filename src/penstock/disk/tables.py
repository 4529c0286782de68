"""A dict kept as JSON: replaced whole and safely, the previous version beside it as ``.bak``.

A power cut at any moment leaves the old or the new version, never an empty or a half one: temporary file, flush,
rename, flush of the folder. Java's fastjson writes integer keys without quotes (``{0:123}``); reading takes those too.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from penstock.disk.files import Files
from penstock.errors import StoreError

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


def load(files: Files, path: Path) -> dict[str, Any] | None:
    """The table at path, or its ``.bak`` when the file is missing, empty or garbage; None when neither is readable."""
    for candidate in (path, path.with_name(path.name + ".bak")):
        if not candidate.is_file():
            continue
        fd = files.open(candidate, writable=False)
        try:
            data = files.read(fd, 0, files.size(fd))
        finally:
            files.close(fd)
        try:
            return parse(data.decode("utf-8-sig"))
        except ValueError:
            continue
    return None


def save(files: Files, path: Path, table: dict[str, Any]) -> None:
    """Replace the table at path durably; StoreError leaves the old one in place."""
    data = json.dumps(table, indent=1, ensure_ascii=False).encode()
    replace(files, path, data)


def replace(files: Files, path: Path, data: bytes) -> None:
    """Replace the file's bytes durably, keeping the former ones as ``.bak``."""
    files.make_folder(path.parent)
    fresh = path.with_name(path.name + ".tmp")
    backup = path.with_name(path.name + ".bak")
    try:
        _write(files, fresh, data)
        if path.is_file() and path.stat().st_size:
            old = path.read_bytes()
            spare = path.with_name(path.name + ".bak.tmp")
            _write(files, spare, old)
            files.rename(spare, backup)
        files.rename(fresh, path)
        files.sync_folder(path.parent)
    except StoreError:
        files.unlink(fresh)
        raise


def _write(files: Files, path: Path, data: bytes) -> None:
    files.unlink(path)
    fd = files.open(path, create=True)
    try:
        files.write(fd, 0, data)
        files.datasync(fd)
    finally:
        files.close(fd)
