"""A table that is written whole now and then: what changed since, a line each, in `<table>.changes` beside it.

    head      CRC-32 of the JSON, 8 hex digits | {"table": mark of the table it follows, "former": mark of the one before}
    change    the same sum | {"name": whose row it is, …}

A mark is the CRC-32 and the length of the table's file: lines that follow another table (one that somebody else has
written) say nothing. A line stands for itself: one whose sum does not hold, the torn last one, costs no other.

The table is replaced before the file of changes: in between that follows the former table, and all it says is in the
new one. The former one stays as ``.bak``, for the day that only the table's own ``.bak`` can be read.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from zlib import crc32

import msgspec

from penstock.disk import tables
from penstock.disk.files import Files
from penstock.disk.quarantine import try_quarantine
from penstock.errors import StoreError

log = logging.getLogger("penstock.disk")

Change = dict[str, object]

_LINES_MIN = 64 << 10  # fewer are not worth a table


def noted(files: Files, path: Path, table: Mapping[str, object] | None) -> list[Change]:
    """What was noted behind the table that was read at path, in its order; of no table all there is.

    What changed and was changed back leaves the same table: the former file of changes may follow that, too, and all it
    says is in the new one. So it counts only where the present one does not follow the table.
    """
    mark = table.mark if isinstance(table, tables.Table) else None
    former, present = (_read(files, path.with_name(path.name + suffix)) for suffix in (".changes.bak", ".changes"))
    if mark is not None and present and present[0].get("table") == mark:
        former = []
    found: list[Change] = []
    for lines in (former, present):
        if lines and (mark is None or mark in (lines[0].get("table"), lines[0].get("former"))):
            found += [line for line in lines[1:] if isinstance(line.get("name"), str)]
    return found


def _read(files: Files, path: Path) -> list[Change]:
    if not path.is_file():
        return []
    found: list[Change] = []
    for line in tables.read_whole(files, path).split(b"\n"):
        text = line[9:]
        if not text or line[:9] != b"%08x " % crc32(text):
            if not found:
                return []
            if line:
                log.error("a line of %s is torn or damaged: that change is left out", path.name)
            continue
        value = json.loads(text)
        found.append(value if isinstance(value, dict) else {})
    return found


class ChangedTable:
    """The table at path and its changes, by the one who writes them."""

    def __init__(self, files: Files, root: Path, path: Path) -> None:
        """`root`: the data folder."""
        self.files = files
        self.root = root
        self.table = path
        self.path = path.with_name(path.name + ".changes")
        self.lines = 0
        self._size = 0
        self._table_bytes = 0
        self._mark = ""
        self._fd = -1

    @property
    def full(self) -> bool:
        """Whether the table is to be written whole: its changes are longer than it, and both are read at a start."""
        return self._size > max(_LINES_MIN, self._table_bytes)

    def replace(self, data: bytes) -> None:
        """Write the table whole; what is added from now on follows it. StoreError: nothing can be added until it is
        done again.
        """
        self.release()
        former = self._mark
        if not former and self.table.is_file():
            former = tables.mark(tables.read_whole(self.files, self.table))
        self._mark = ""
        tables.replace(self.files, self.table, data)
        self._mark = tables.mark(data)
        for suffix in ("", ".bak", ".tmp"):
            odd = self.path.with_name(self.path.name + suffix)
            if odd.is_dir():
                try_quarantine(self.files, self.root, odd, "a folder where a file of changes should be")
        head = _line({"table": self._mark, "former": former})
        fresh = self.path.with_name(self.path.name + ".tmp")
        self.files.unlink(fresh)
        fd = self.files.open(fresh, create=True)
        try:
            self.files.write(fd, 0, head)
            self.files.datasync(fd)
            if self.path.is_file():
                self.files.rename(self.path, self.path.with_name(self.path.name + ".bak"))
            self.files.rename(fresh, self.path)
            self.files.sync_folder(self.path.parent)
        except BaseException:
            self.files.close(fd)
            raise
        self._fd, self._size, self._table_bytes, self.lines = fd, len(head), len(data), 0

    @property
    def ready(self) -> bool:
        """Whether changes can be added."""
        return self._fd >= 0

    def add(self, found: Iterable[Mapping[str, object]], durable: bool = True) -> None:
        """Note the changes; they are durable when this returns, or with the next flush of `path` by whomever. StoreError: they
        are not, and the table must be written whole.
        """
        data = b"".join(map(_line, found))
        try:
            self.files.write(self._fd, self._size, data)
            if durable:
                self.files.datasync(self._fd)
        except StoreError:
            self._take_back()
            raise
        self._size += len(data)
        self.lines += 1

    def _take_back(self) -> None:
        try:
            self.files.cut(self._fd, self._size)
        except StoreError as error:
            log.error("%s keeps the beginning of a change that was refused error=%s", self.path.name, error)
        self.release()

    def release(self) -> None:
        """Add nothing any more."""
        if self._fd >= 0:
            self.files.close(self._fd)
            self._fd = -1

    def remove(self) -> None:
        """The table is whole and stays so: whoever reads it next may not know of changes."""
        self.release()
        self.files.unlink(self.path)
        self.files.unlink(self.path.with_name(self.path.name + ".bak"))


def _line(value: Mapping[str, object]) -> bytes:
    text = msgspec.json.encode(value)
    return b"%08x %s\n" % (crc32(text), text)
