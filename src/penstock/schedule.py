"""Schedule: every delayed message until it is due, in LMDB, derived from the commit log.

    due    due ms (8) id (8), big-endian  ->  a copy of the record: neither retention nor damage of the log eats a delay;
                                              behind it a CRC-32 of key and record (4)
    ids    id (8)                         ->  due ms (8)
    meta   "position"                     ->  every record of the log below has been taken (8)
           "sum"                          ->  CRC-32 of that (4)

A message is first appended under a schedule topic (that is what its producer is answered for); the log hands the
record to `add`. When it is due the broker appends it under its real topic with the id in its prepared-transaction
offset, and the dispatch of
*that* record comes back to `done`. Only records that are flushed in the log are committed here, in groups and in one
transaction with the position: so after any crash replaying the log from there neither loses a delay nor doubles one.
The id is the schedule record's physical offset plus one, so that it is never zero.

Before LMDB opens the file it is walked through (`lmdbfile`): a damaged one moves to lost+found, what can be read of it is
taken over, and the rest comes again from the log. An entry whose sum does not hold is read from the log.
"""

from __future__ import annotations

import contextlib
import heapq
import json
import logging
import mmap
import os
import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import lmdb

from penstock.errors import StoreError
from penstock.lmdbfile import Damaged, LmdbFile, Tree
from penstock.message import ReceivedMessage
from penstock.wire.names import SCHEDULE_TOPIC as LEVEL_TOPIC
from penstock.wire.names import TIMER_TOPIC as TIMER_TOPIC
from penstock.wire.record import decode_record

log = logging.getLogger("penstock.schedule")

COMMIT_MS = 100
COMMIT_COUNT = 10_000
MAP_SIZE = 64 << 20
_FULLNESS = 0.8
_ROOM_MIN = 16 << 20
_RETRY_MS = 1_000
_UNKNOWN = -1
_DATABASES = {b"due", b"ids", b"meta"}
_BROKEN = "broken"


class Due(NamedTuple):
    """A delayed message. The broker puts `id` into the prepared-transaction offset of what it appends."""

    due_ms: int
    id: int
    record: bytes
    damaged: bool = False  # the record is not what was stored, and the log has it no more


class ScheduleJob(Protocol):
    """What the store's jobs look like."""

    kind: str

    def run(self) -> None:
        """Blocks; for any thread."""

    def finish(self, error: BaseException | None, mono_ms: int) -> None:
        """Where the schedule lives."""


class _Job:
    def __init__(self, run: Callable[[], None], finish: Callable[[BaseException | None, int], None]) -> None:
        self.kind = "schedule"
        self.run = run
        self.finish = finish


def due_by_properties(properties: Mapping[str, str], store_ms: int) -> int:
    """The moment RocketMQ 5's timer properties ask for, in ms; store_ms when there is none to be read."""
    for name, unit, base in (
        ("TIMER_DELIVER_MS", 1, 0),
        ("TIMER_DELAY_MS", 1, store_ms),
        ("TIMER_DELAY_SEC", 1000, store_ms),
    ):
        try:
            return base + max(0, int(properties[name])) * unit
        except (KeyError, ValueError):
            continue
    return store_ms


def _value(key: bytes, record: bytes) -> bytes:
    """What is stored for a record."""
    return record + zlib.crc32(record, zlib.crc32(key)).to_bytes(4)


def _record(key: bytes, value: bytes) -> bytes | None:
    """The record of a stored value; None when it is damaged. What former versions wrote has no sum but the body's."""
    if value == _value(key, value[:-4]):
        return value[:-4]
    if int.from_bytes(value[:4]) == len(value) and decode_record(value, decompress=False, check=True) is not None:
        return value
    return None


def _holds(file: LmdbFile, tree: Tree) -> bool:
    return next(iter(file.walk(tree)), None) is not None


class Schedule:
    """Delayed messages by due time. The LMDB environment is made with the first of them."""

    topics = frozenset((LEVEL_TOPIC, TIMER_TOPIC))

    def __init__(self, folder: Path, *, delivered: Mapping[int, int] | None = None, map_size: int = MAP_SIZE) -> None:
        """`delivered` (level to queue offset) tells what a RocketMQ broker has delivered of a folder it leaves to us;
        we may have had it before, and messages from then.
        """
        self.folder = folder
        self.position = _UNKNOWN
        self.lookup: Callable[[int], bytes | None] = lambda physical: None  # the record that the log has there
        self.error: BaseException | None = None
        self._map_size = map_size
        self._env: Any = None
        self._due: Any = None
        self._ids: Any = None
        self._meta: Any = None
        self._operations: list[tuple[int, int, int, bytes | None]] = []  # (physical, id, due, record or None: remove)
        self._fresh: dict[int, tuple[int, bytes]] = {}  # not committed yet
        self._heap: list[tuple[int, int]] = []
        self._gone: set[int] = set()  # removed, not committed yet
        self._out: set[int] = set()  # handed out, not done
        self._after = b""  # everything up to this key is handed out
        self._count = 0
        self._running = False
        self._dirty_since = -1
        self._retry_ms = 0
        self._delivered: Mapping[int, int] = dict(delivered or {})
        if folder.exists():
            self._open()
            if self._delivered:
                self._drop_delivered()

    # ---- LMDB

    def _open(self) -> None:
        try:
            if (self.folder / _BROKEN).exists():
                raise ValueError("a flush had failed")
            if self._unborn():
                (self.folder / "data.mdb").unlink()
            if (self.folder / "data.mdb").exists():
                self._check()
            self._open_environment()
        except (lmdb.Error, ValueError, OSError, Damaged) as error:
            self._drop_environment()
            found = self._readable()
            try:
                self._set_aside(str(error))
                self.position, self._count = _UNKNOWN, 0
                self._open_environment()
            except (lmdb.Error, OSError) as again:
                raise StoreError(f"schedule: {again}") from error
            for id_, due_ms, record in sorted(found):
                self.put(due_ms, id_, record, id_ - 1)

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
                trees.keys() != _DATABASES and any(_holds(file, tree) for tree in trees.values())
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

    def _readable(self) -> list[tuple[int, int, bytes]]:
        """(id, due ms, record) of every entry of a damaged file whose sum holds."""
        found: dict[int, tuple[int, int, bytes]] = {}
        with contextlib.suppress(Damaged, OSError), LmdbFile(self.folder / "data.mdb") as file:
            for key, value in file.pairs(b"due"):
                record = _record(key, value) if len(key) == 16 else None
                if record is not None:
                    found[int.from_bytes(key[8:])] = (int.from_bytes(key[8:]), int.from_bytes(key[:8]), record)
        return list(found.values())

    def _set_aside(self, why: str) -> None:
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
            self._count += txn.stat(self._due)["entries"]

    def _free_bytes(self) -> int:
        stat = os.statvfs(self.folder)
        return stat.f_bavail * stat.f_frsize

    def _drop_environment(self) -> None:
        if self._env is not None:
            self._env.close()
            self._env = None

    def _grow_if_full(self) -> None:
        """With no transaction open: room for the next commits."""
        info = self._env.info()
        used = (info["last_pgno"] + 1) * self._env.stat()["psize"]
        waiting = sum(len(record) for _, _, _, record in self._operations[:COMMIT_COUNT] if record is not None)
        if used + 4 * waiting > self._map_size * _FULLNESS or used + _ROOM_MIN > self._map_size:
            self._map_size = 2 * self._map_size + 4 * waiting
            self._env.set_mapsize(self._map_size)

    # ---- what the log tells

    def add(self, physical: int, record: bytes, tags_code: int, store_ms: int) -> None:
        """A delayed record of the log; for delay levels `tags_code` is the moment it is due."""
        message = decode_record(record, decompress=False)
        if message is None:
            return
        if message.topic == LEVEL_TOPIC.decode():
            if self._has_delivered(message):
                return
            due_ms = tags_code
        else:
            due_ms = due_by_properties(message.properties, store_ms)
        self.put(due_ms, physical + 1, record, physical)

    def _has_delivered(self, message: ReceivedMessage) -> bool:
        topic, offset = message.topic, message.queue_offset
        return topic == LEVEL_TOPIC.decode() and offset < self._delivered.get(message.queue_id + 1, 0)

    def _drop_delivered(self) -> None:
        gone = []
        with self._env.begin() as txn, txn.cursor(db=self._due) as cursor:
            for key, value in cursor:
                message = decode_record(self._read(bytes(key), bytes(value)).record, decompress=False)
                if message is not None and self._has_delivered(message):
                    gone.append(bytes(key))
        with self._env.begin(write=True) as txn:
            for key in gone:
                txn.delete(key, db=self._due)
                txn.delete(key[8:], db=self._ids)
        self._count -= len(gone)

    def put(self, due_ms: int, id_: int, record: bytes, physical: int) -> None:
        """Keep a message under its id, which the log knows of from physical on."""
        due_ms = min(max(due_ms, 0), (1 << 63) - 1)
        if id_ in self._fresh:
            return
        self._fresh[id_] = (due_ms, record)
        heapq.heappush(self._heap, (due_ms, id_))
        self._operations.append((physical, id_, due_ms, record))
        self._count += 1

    def done(self, prepared: int, physical: int) -> None:
        """The record at physical delivers (or cancels) the message with this id."""
        if prepared not in self._fresh and (self._env is None or self._due_of(prepared) is None):
            return
        self._operations.append((physical, prepared, 0, None))
        if prepared not in self._gone:
            self._count -= 1
        self._gone.add(prepared)
        self._out.discard(prepared)

    def cut(self, end: int) -> None:
        """Forget messages whose record stood at or behind end: a power cut took it."""
        if any(operation[0] >= end for operation in self._operations):  # taken over from a damaged file
            gone = {operation[1] for operation in self._operations if operation[0] >= end}
            self._operations = [operation for operation in self._operations if operation[0] < end]
            self._fresh = {id_: kept for id_, kept in self._fresh.items() if id_ not in gone}
            self._count -= len(gone)
        if self._env is None:
            return
        lost = []
        with self._env.begin() as txn, txn.cursor(db=self._ids) as cursor:
            if cursor.set_range((end + 1).to_bytes(8)):
                lost = [(bytes(key), bytes(value)) for key, value in cursor if int.from_bytes(key) not in self._fresh]
        if lost:
            with self._env.begin(write=True) as txn:
                for key, due in lost:
                    txn.delete(due + key, db=self._due)
                    txn.delete(key, db=self._ids)
            self._count -= len(lost)
        if self.position > end:
            self.position = end

    # ---- writing down

    def take_job(self, flushed: int, end: int, mono_ms: int) -> ScheduleJob | None:
        """The next group of records below the flushed position, if one is due."""
        if self._running or mono_ms < self._retry_ms or self.error is not None:
            return None
        if not self._operations and (self._env is None or self.position >= flushed):
            return None
        if self._dirty_since < 0:
            self._dirty_since = mono_ms
        wait_ms = COMMIT_MS if self._operations else 10 * COMMIT_MS
        if mono_ms - self._dirty_since < wait_ms and len(self._operations) < COMMIT_COUNT:
            return None
        group = []
        for operation in self._operations[:COMMIT_COUNT]:
            if operation[0] >= flushed:
                break
            group.append(operation)
        if self._operations and not group:
            return None
        whole = len(group) == len(self._operations)
        position = flushed if whole else self._operations[len(group)][0]
        if not whole and position > flushed:
            position = flushed
        if self._env is None:
            if not group:
                return None
            self._open()
        self._grow_if_full()
        self._running = True
        self._dirty_since = -1
        return _Job(
            lambda: self._commit(group, position), lambda error, now_ms: self._finish(group, position, error, now_ms)
        )

    def _commit(self, group: Iterable[tuple[int, int, int, bytes | None]], position: int) -> None:
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

    def _finish(
        self, group: list[tuple[int, int, int, bytes | None]], position: int, error: BaseException | None, now_ms: int
    ) -> None:
        self._running = False
        if error is not None:
            self._retry_ms = now_ms + _RETRY_MS
            # LMDB says "Input/output error" for a full disk too, and then the next commit is as good as any. After a failed
            # flush it goes on as if nothing had happened: we do not, and build it anew at the next start.
            if "Input/output" in str(error) and self._free_bytes() > _ROOM_MIN:
                self.error = error
                with contextlib.suppress(OSError):
                    (self.folder / _BROKEN).touch()
            return
        self.position = max(self.position, position)
        del self._operations[: len(group)]
        for _, id_, due_ms, record in group:
            if record is not None:
                self._fresh.pop(id_, None)
                if id_ not in self._out and due_ms.to_bytes(8) + id_.to_bytes(8) <= self._after:
                    self._after = b""
            else:
                self._gone.discard(id_)

    # ---- what is due

    def pop_due(self, now_ms: int, limit: int) -> list[Due]:
        """Messages due by now, oldest first. Each is handed out once; it stays here until its delivery is in the
        log.
        """
        found: list[Due] = []
        if self._env is not None:
            with self._env.begin() as txn, txn.cursor(db=self._due) as cursor:
                more = cursor.set_range(self._after)
                while more and len(found) < limit:
                    key = cursor.key()
                    due_ms, id_ = int.from_bytes(key[:8]), int.from_bytes(key[8:])
                    if due_ms > now_ms:
                        break
                    if id_ not in self._out and id_ not in self._gone and id_ not in self._fresh:
                        found.append(self._read(bytes(key), bytes(cursor.value())))
                    self._after = bytes(key)
                    more = cursor.next()
        count = 0
        while self._heap and self._heap[0][0] <= now_ms and count < limit:
            due_ms, id_ = heapq.heappop(self._heap)
            fresh = self._fresh.get(id_)
            if fresh is not None and id_ not in self._out and id_ not in self._gone:
                found.append(Due(due_ms, id_, fresh[1]))
                count += 1
        found.sort(key=lambda due: (due.due_ms, due.id))
        for due in found[limit:]:
            self._again(due.due_ms, due.id)
        found = found[:limit]
        self._out.update(due.id for due in found)
        return found

    def _read(self, key: bytes, value: bytes) -> Due:
        """An entry of the file; of a damaged one the log's own record, while it is there."""
        due_ms, id_ = int.from_bytes(key[:8]), int.from_bytes(key[8:])
        record = _record(key, value)
        if record is None:
            record = self.lookup(id_ - 1)
            message = None if record is None else decode_record(record, decompress=False, check=True)
            if message is None or message.topic.encode() not in self.topics:
                return Due(due_ms, id_, value, damaged=True)
        assert record is not None
        return Due(due_ms, id_, record)

    def put_back(self, id_: int) -> None:
        """What was handed out could not be delivered: hand it out again."""
        if id_ in self._out:
            self._out.discard(id_)
            due_ms = self._due_of(id_)
            if due_ms is not None:
                self._again(due_ms, id_)

    def _again(self, due_ms: int, id_: int) -> None:
        if id_ in self._fresh:
            heapq.heappush(self._heap, (due_ms, id_))
        elif due_ms.to_bytes(8) + id_.to_bytes(8) <= self._after:
            self._after = b""

    def _due_of(self, id_: int) -> int | None:
        fresh = self._fresh.get(id_)
        if fresh is not None:
            return fresh[0]
        if self._env is None or not 0 <= id_ < 1 << 63:
            return None
        with self._env.begin() as txn:
            value = txn.get(id_.to_bytes(8), db=self._ids)
        return int.from_bytes(value) if value is not None else None

    def next_due_ms(self) -> int | None:
        """When the next message that is not handed out is due; None when there is none."""
        earliest: int | None = None
        while self._heap and (self._heap[0][1] not in self._fresh or self._heap[0][1] in self._out | self._gone):
            heapq.heappop(self._heap)
        if self._heap:
            earliest = self._heap[0][0]
        if self._env is not None:
            with self._env.begin() as txn, txn.cursor(db=self._due) as cursor:
                more = cursor.set_range(self._after)
                while more:
                    key = cursor.key()
                    id_ = int.from_bytes(key[8:])
                    if id_ not in self._out and id_ not in self._gone and id_ not in self._fresh:
                        due_ms = int.from_bytes(key[:8])
                        earliest = due_ms if earliest is None else min(earliest, due_ms)
                        break
                    more = cursor.next()
        return earliest

    # ---- looking, cancelling, firing

    def __len__(self) -> int:
        return self._count

    def entries(self, begin_ms: int = 0, end_ms: int = 1 << 62, *, begin_id: int = 0) -> Iterable[Due]:
        """Messages due in begin … end, by due time and id; those handed out are among them until they are done.

        Of those due at begin itself only the ids from `begin_id` on.
        """
        begin = (begin_ms, begin_id)
        fresh = sorted(
            (due_ms, id_) for id_, (due_ms, _) in self._fresh.items() if begin <= (due_ms, id_) and due_ms < end_ms
        )
        at = 0
        if self._env is not None:
            with self._env.begin() as txn, txn.cursor(db=self._due) as cursor:
                more = cursor.set_range(begin_ms.to_bytes(8) + begin_id.to_bytes(8))
                while more:
                    key = bytes(cursor.key())
                    due_ms, id_ = int.from_bytes(key[:8]), int.from_bytes(key[8:])
                    if due_ms >= end_ms:
                        break
                    while at < len(fresh) and fresh[at] < (due_ms, id_):
                        yield from self._one(*fresh[at])
                        at += 1
                    if id_ not in self._gone and id_ not in self._fresh:
                        yield self._read(key, bytes(cursor.value()))
                    more = cursor.next()
        for due_ms, id_ in fresh[at:]:
            yield from self._one(due_ms, id_)

    def _one(self, due_ms: int, id_: int) -> Iterable[Due]:
        fresh = self._fresh.get(id_)
        if fresh is not None and id_ not in self._gone:
            yield Due(due_ms, id_, fresh[1])

    def histogram(self, now_ms: int, edges_ms: Iterable[int]) -> list[int]:
        """How many are due before now + each edge and not before the former; the last number is the rest."""
        edges = [now_ms + edge for edge in edges_ms]
        counts = [0] * (len(edges) + 1)
        at = 0
        for due in self.entries():
            while at < len(edges) and due.due_ms >= edges[at]:
                at += 1
            counts[at] += 1
        return counts

    def find(self, wanted: Callable[[Due], bool], limit: int = 100) -> list[Due]:
        """The first messages by due time for which wanted says yes."""
        found: list[Due] = []
        for due in self.entries():
            if wanted(due):
                found.append(due)
                if len(found) >= limit:
                    break
        return found

    def get(self, id_: int) -> Due | None:
        """One message by id."""
        due_ms = self._due_of(id_)
        if due_ms is None or id_ in self._gone:
            return None
        if id_ in self._fresh:
            return Due(due_ms, id_, self._fresh[id_][1])
        with self._env.begin() as txn:
            value = txn.get(due_ms.to_bytes(8) + id_.to_bytes(8), db=self._due)
        return self._read(due_ms.to_bytes(8) + id_.to_bytes(8), bytes(value)) if value is not None else None

    def fire_now(self, id_: int) -> Due | None:
        """Hand the message out whatever its time; None when it is not here or handed out already."""
        due = self.get(id_)
        if due is None or id_ in self._out:
            return None
        self._out.add(id_)
        return due

    def cancel(self, id_: int) -> Due | None:
        """Take the message out of delivery; None when it is too late.

        The log must learn of it, or a rebuilt schedule would know it again: the caller appends a record of its own
        with the id as its prepared-transaction offset, whose dispatch removes the entry.
        """
        return self.fire_now(id_)

    def close(self) -> None:
        """Let go, for good; what is not committed comes again from the log."""
        self._drop_environment()
        self._operations.clear()
        self._fresh.clear()
        self._heap.clear()
        self._gone.clear()
        self._out.clear()
