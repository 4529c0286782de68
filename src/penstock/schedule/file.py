"""The file of the schedule: an LMDB environment, made with the first entry.

    due    due ms (8) id (8), big-endian  ->  a copy of the record: neither retention nor damage of the log eats a delay;
                                              behind it a CRC-32 of key and record (4)
    ids    id (8)                         ->  due ms (8)
    meta   "position"                     ->  every record of the log below has been taken (8)
           "sum"                          ->  CRC-32 of that (4)

Before LMDB opens the file it is walked through (`lmdbfile`): a damaged one moves to lost+found, and `open` gives what can
be read of it to its caller. `commit` runs in a worker thread, everything else on the broker's.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import mmap
import os
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import lmdb

from penstock.disk.refusals import NO_ROOM
from penstock.errors import DiskFull, StoreError
from penstock.lmdbfile import Damaged, LmdbFile, Tree
from penstock.wire.record import decode_record

log = logging.getLogger("penstock.schedule")

MAP_SIZE = 64 << 20
UNKNOWN = -1
ROOM_MIN = 16 << 20
_FULLNESS = 0.8
_DATABASES = {b"due", b"ids", b"meta"}
_BROKEN = "broken"
# What keeps us from a file, and says nothing of what is in it: it may be the only place that has a delayed message.
_NO_WAY_IN = (errno.EMFILE, errno.ENFILE, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOMEM)

Operation = tuple[int, int, int, bytes | None]  # (physical, id, due ms, record or None: remove)
Entry = tuple[int, int, bytes]  # (id, due ms, record)


def key_of(due_ms: int, id_: int) -> bytes:
    """Where an entry stands among the others."""
    return due_ms.to_bytes(8) + id_.to_bytes(8)


def _value(key: bytes, record: bytes) -> bytes:
    """What is stored for a record."""
    return record + zlib.crc32(record, zlib.crc32(key)).to_bytes(4)


def record_of(key: bytes, value: bytes) -> bytes | None:
    """The record of a stored value; None when it is damaged. What former versions wrote has no sum but the body's."""
    if value == _value(key, value[:-4]):
        return value[:-4]
    if int.from_bytes(value[:4]) == len(value) and decode_record(value, decompress=False, check=True) is not None:
        return value
    return None


def _says(error: Exception, numbers: Iterable[int]) -> bool:
    """Whether it is one of these errors of the system; LMDB's own have its text alone."""
    return any(os.strerror(number) in str(error) for number in numbers)


def _has_entries(file: LmdbFile, tree: Tree) -> bool:
    return next(iter(file.walk(tree)), None) is not None


class ScheduleFile:
    """See the module."""

    def __init__(self, folder: Path, map_size: int = MAP_SIZE) -> None:
        self.folder = folder
        self.position = UNKNOWN
        self.count = 0  # of entries when it was opened
        self.given_up = False  # LMDB gave it up, and it could not be opened again yet
        self._map_size = map_size
        self._rescued: list[Entry] | None = None  # of a damaged file, as long as no other could be made in its place
        self._env: Any = None  # lmdb has no types
        self._due: Any = None
        self._ids: Any = None
        self._meta: Any = None

    @property
    def is_open(self) -> bool:
        """Whether there is an environment."""
        return self._env is not None

    # -- opening -------------------------------------------------------------------------------------------------

    def open(self) -> list[Entry]:
        """Open the environment. Returns what was read of a damaged one, which is quarantined. StoreError, DiskFull."""
        try:
            if (self.folder / _BROKEN).exists():
                raise ValueError("a flush had failed")
            if self._rescued is not None:  # what lies there is what an attempt has left
                (self.folder / "data.mdb").unlink(missing_ok=True)
            elif self._unborn():
                (self.folder / "data.mdb").unlink()
            if (self.folder / "data.mdb").exists():
                self._check()
            self._open_environment()
        except (lmdb.Error, ValueError, OSError, Damaged) as error:
            self.close()
            if _says(error, NO_ROOM):
                raise DiskFull(f"schedule: {error}") from error
            if _says(error, _NO_WAY_IN) or self._rescued is not None or self._is_empty():
                raise StoreError(f"schedule: {error}") from error
            found = self._readable()
            try:
                self._quarantine(str(error))
                self.position, self.count, self._rescued = UNKNOWN, 0, sorted(found)
                self._open_environment()
            except (lmdb.Error, OSError) as again:
                self.close()
                raise StoreError(f"schedule: {again}") from error
        found, self._rescued = self._rescued or [], None
        self.given_up = False
        return found

    def _is_empty(self) -> bool:
        """Whether there is a folder, and nothing in it that could have been a schedule."""
        with contextlib.suppress(OSError):
            return set(os.listdir(self.folder)) <= {"lock.mdb"}
        return False

    def _unborn(self) -> bool:
        """Whether a power cut came while the file was made: it has no more than the two first pages, one of them empty."""
        path = self.folder / "data.mdb"
        if not path.is_file() or path.stat().st_size > 2 * mmap.PAGESIZE:
            return False
        data = path.read_bytes()
        return not any(data[: mmap.PAGESIZE]) or not any(data[mmap.PAGESIZE :])

    def _check(self) -> None:
        """Damaged, when the file holds anything that LMDB would stumble over, or that contradicts itself."""
        with LmdbFile(self.folder / "data.mdb") as file:
            trees = file.trees()
            if trees.keys() - _DATABASES or (
                trees.keys() != _DATABASES and any(_has_entries(file, tree) for tree in trees.values())
            ):
                raise Damaged(f"databases {sorted(trees)}")
            if trees.keys() != _DATABASES:
                return  # it was being made
            sums = dict.fromkeys(trees, 0)
            for name, tree in trees.items():
                for key, value, _ in file.walk(tree):
                    if name == b"due" and len(key) == 16:
                        sums[name] += hash((key[:8], key[8:]))
                    elif name == b"ids" and len(key) == len(value) == 8:
                        sums[name] += hash((value, key))
                    elif name != b"meta":
                        raise Damaged(f"a key of {len(key)} bytes")
            if trees and sums[b"due"] != sums[b"ids"]:
                raise Damaged("due times and ids contradict each other")
            file.check_free()

    def _readable(self) -> list[Entry]:
        """Every entry of a damaged file whose sum holds."""
        found: dict[int, Entry] = {}
        with contextlib.suppress(Damaged, OSError), LmdbFile(self.folder / "data.mdb") as file:
            for key, value in file.pairs(b"due"):
                record = record_of(key, value) if len(key) == 16 else None
                if record is not None:
                    found[int.from_bytes(key[8:])] = (int.from_bytes(key[8:]), int.from_bytes(key[:8]), record)
        return list(found.values())

    def _quarantine(self, why: str) -> None:
        lost = self.folder.parent / "lost+found"
        lost.mkdir(exist_ok=True)
        now_ms = time.time_ns() // 1_000_000
        to = lost / f"{self.folder.name}.{now_ms}"
        while to.exists():
            to = to.with_name(to.name + "-")
        self.folder.rename(to)
        line = {"from": self.folder.name, "to": to.name, "why": why, "at": now_ms}
        with (lost / "manifest.jsonl").open("a") as manifest:
            manifest.write(json.dumps(line) + "\n")
        log.error("schedule damaged, set aside as %s, rebuilt from the log error=%s", to.name, why)

    def _open_environment(self) -> None:
        size = self._map_size
        data = self.folder / "data.mdb"
        if data.is_file():
            size = max(size, data.stat().st_size * 2)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._take_room_for_the_lock()
        # no writemap: a full disk would then end the process instead of failing the commit
        self._env = lmdb.open(str(self.folder), map_size=size, max_dbs=3, writemap=False, sync=True, max_readers=8)
        self._map_size = size
        self._due, self._ids, self._meta = (self._env.open_db(name) for name in (b"due", b"ids", b"meta"))
        with self._env.begin() as txn:
            value, check = txn.get(b"position", db=self._meta), txn.get(b"sum", db=self._meta)
            if value is not None:
                if len(value) != 8 or check not in (None, zlib.crc32(value).to_bytes(4)):
                    raise ValueError("a damaged position")
                self.position = int.from_bytes(value)
            self.count = txn.stat(self._due)["entries"]

    def _take_room_for_the_lock(self) -> None:
        """LMDB writes this file through a mapping, with which a disk without room would end the process, too."""
        fd = os.open(self.folder / "lock.mdb", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.posix_fallocate(fd, 0, mmap.PAGESIZE)
        finally:
            os.close(fd)

    def take_up(self) -> None:
        """After a commit that failed: LMDB gives an environment up for good, readers' too, when the write that was to end the
        commit fails. Open it anew then; all former commits are there. StoreError.
        """
        if self._env is None:
            return
        try:
            with self._env.begin():
                return
        except lmdb.Error as gone:
            log.error("schedule opened anew error=%s", gone)
        position = self.position  # the commit may be there, and not on the disk
        self.close()
        try:
            self._open_environment()
        except (lmdb.Error, ValueError, OSError) as error:
            self.given_up = True
            raise StoreError(f"schedule: {error}") from error
        self.position = position

    def close(self) -> None:
        """Let go of the environment."""
        if self._env is not None:
            self._env.close()
            self._env = None

    # -- reading -------------------------------------------------------------------------------------------------

    def walk(self, begin: bytes) -> Iterator[tuple[bytes, Callable[[], bytes]]]:
        """The entries from a key on: each one's key, and what reads its value. Nothing when the file is not there."""
        if self._env is None:
            return
        with self._env.begin() as txn, txn.cursor(db=self._due) as cursor:
            more = cursor.set_range(begin)
            while more:
                yield bytes(cursor.key()), cursor.value
                more = cursor.next()

    def due_of(self, id_: int) -> int | None:
        """When an entry is due; None when there is none of this id."""
        if self._env is None or not 0 <= id_ < 1 << 63:
            return None
        with self._env.begin() as txn:
            value = txn.get(id_.to_bytes(8), db=self._ids)
        return int.from_bytes(value) if value is not None else None

    def value(self, key: bytes) -> bytes | None:
        """What is stored under a key."""
        with self._env.begin() as txn:
            value = txn.get(key, db=self._due)
        return None if value is None else bytes(value)

    def keys_from(self, id_: int) -> list[bytes]:
        """The keys of all entries with this id or a greater one."""
        if self._env is None:
            return []
        with self._env.begin() as txn, txn.cursor(db=self._ids) as cursor:
            if not cursor.set_range(id_.to_bytes(8)):
                return []
            return [bytes(due) + bytes(key) for key, due in cursor]

    # -- writing -------------------------------------------------------------------------------------------------

    def remove(self, keys: Iterable[bytes]) -> None:
        """Take entries out, here and now."""
        with self._env.begin(write=True) as txn:
            for key in keys:
                txn.delete(key, db=self._due)
                txn.delete(key[8:], db=self._ids)

    def grow_if_full(self, waiting: int) -> None:
        """With no transaction open: room for the next commits, and `waiting` bytes of records. StoreError."""
        info = self._env.info()
        used = (info["last_pgno"] + 1) * self._env.stat()["psize"]
        if used + 4 * waiting > self._map_size * _FULLNESS or used + ROOM_MIN > self._map_size:
            size = 2 * self._map_size + 4 * waiting
            try:
                self._env.set_mapsize(size)
            except lmdb.Error as error:
                raise StoreError(f"schedule: {error}") from error
            self._map_size = size

    def commit(self, group: Iterable[Operation], position: int) -> None:
        """Write the operations and the position in one transaction. StoreError."""
        try:
            with self._env.begin(write=True) as txn:
                for _, id_, due_ms, record in group:
                    key = id_.to_bytes(8)
                    if record is not None:
                        due_key = due_ms.to_bytes(8) + key
                        txn.put(due_key, _value(due_key, record), db=self._due)
                        txn.put(key, due_ms.to_bytes(8), db=self._ids)
                        continue
                    due = txn.pop(key, db=self._ids)
                    if due is not None:
                        txn.delete(bytes(due) + key, db=self._due)
                txn.put(b"position", position.to_bytes(8), db=self._meta)
                txn.put(b"sum", zlib.crc32(position.to_bytes(8)).to_bytes(4), db=self._meta)
        except lmdb.Error as error:
            raise StoreError(f"schedule: {error}") from error

    def committed(self, position: int) -> None:
        """A commit is over."""
        self.position = max(self.position, position)

    def cut(self, end: int) -> None:
        """The log ends there now. On the disk, too, before anything else is appended: a start behind a kill would go on from a
        position that the log has reached again with other records. StoreError.
        """
        if self.position > end:
            if self._env is not None:
                self.commit((), end)
            self.position = end

    def is_damaged_by(self, error: BaseException) -> bool:
        """Whether a failed commit leaves the file in doubt. Then it is built anew at the next start.

        LMDB says "Input/output error" for a full disk too, and then the next commit is as good as any. After a failed
        flush it goes on as if nothing had happened: we do not.
        """
        if "Input/output" not in str(error) or self._free_bytes() <= ROOM_MIN:
            return False
        with contextlib.suppress(OSError):
            (self.folder / _BROKEN).touch()
        return True

    def _free_bytes(self) -> int:
        stat = os.statvfs(self.folder)
        return stat.f_bavail * stat.f_frsize
