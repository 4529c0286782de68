"""Schedule: every delayed message until it is due, in LMDB (`schedule.file`), derived from the commit log.

A message is first appended under a schedule topic (that is what its producer is answered for); the log hands the
record to `add`. When it is due the broker appends it under its real topic with the id in its prepared-transaction
offset, and the dispatch of
*that* record comes back to `done`. Only records that are flushed in the log are committed here, in groups and in one
transaction with the position: so after any crash replaying the log from there neither loses a delay nor doubles one.
The id is the schedule record's physical offset plus one, so that it is never zero.

What can be read of a damaged file is taken over, and the rest comes again from the log. An entry whose sum does not hold
is read from the log.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from penstock.disk.job import Job
from penstock.errors import StoreError
from penstock.message import ReceivedMessage
from penstock.schedule.delays import due_by_properties
from penstock.schedule.file import MAP_SIZE, Operation, ScheduleFile, key_of, record_of
from penstock.wire.names import SCHEDULE_TOPIC as LEVEL_TOPIC
from penstock.wire.names import TIMER_TOPIC as TIMER_TOPIC
from penstock.wire.record import decode_record

log = logging.getLogger("penstock.schedule")

COMMIT_MS = 100
COMMIT_COUNT = 10_000
_RETRY_MS = 1_000


class Due(NamedTuple):
    """A delayed message. The broker puts `id` into the prepared-transaction offset of what it appends."""

    due_ms: int
    id: int
    record: bytes
    damaged: bool = False  # the record is not what was stored, and the log has it no more


class Schedule:
    """Delayed messages by due time. The LMDB environment is made with the first of them."""

    topics = frozenset((LEVEL_TOPIC, TIMER_TOPIC))

    def __init__(self, folder: Path, *, delivered: Mapping[int, int] | None = None, map_size: int = MAP_SIZE) -> None:
        """`delivered` (level to queue offset) tells what a RocketMQ broker has delivered of a folder it leaves to us;
        we may have had it before, and messages from then.
        """
        self.lookup: Callable[[int], bytes | None] = lambda physical: None  # the record that the log has there
        self.error: BaseException | None = None
        self._file = ScheduleFile(folder, map_size)
        self._operations: list[Operation] = []
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

    @property
    def position(self) -> int:
        """Every record of the log below is taken, durably; -1 when that is not known."""
        return self._file.position

    def read_lost_from(self, lookup: Callable[[int], bytes | None]) -> None:
        """Where the record of a damaged entry is found by its physical offset."""
        self.lookup = lookup

    def _open(self) -> None:
        taken_over = self._file.open()
        # It may have been open before, and given up by LMDB: what is in memory may stand there, too.
        fresh = sum(id_ not in self._gone and self._file.due_of(id_) is None for id_ in self._fresh)
        self._count = self._file.count + fresh - sum(self._file.due_of(id_) is not None for id_ in self._gone)
        for id_, due_ms, record in taken_over:
            self.put(due_ms, id_, record, id_ - 1)

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
        for key, value in self._file.walk(b""):
            message = decode_record(self._read(key, value()).record, decompress=False)
            if message is not None and self._has_delivered(message):
                gone.append(key)
        self._file.remove(gone)
        self._count -= len(gone)

    def note_delivered(self, delivered: Mapping[int, int], physical: int, now_ms: int, most: int) -> bool:
        """A RocketMQ master whose log, up to `physical`, is copied here has delivered so much (level to queue offset); its
        log does not say so. Looks at `most` of those that are due by now; whether there are more.
        """
        self._delivered = {**self._delivered, **delivered}
        gone = []
        seen = 0
        for due in self.entries(0, now_ms + 1):
            if seen == most:
                break
            seen += 1
            message = None if due.damaged else decode_record(due.record, decompress=False)
            if message is not None and self._has_delivered(message):
                gone.append(due.id)
        for id_ in gone:
            self.done(id_, physical)
        return seen == most

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
        if prepared not in self._fresh and self._due_of(prepared) is None and not self._file.given_up:
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
        lost = [key for key in self._file.keys_from(end + 1) if int.from_bytes(key[8:]) not in self._fresh]
        if lost:
            self._file.remove(lost)
            self._count -= len(lost)
        self._file.cut(end)

    # ---- writing down

    def take_job(self, flushed: int, end: int, mono_ms: int) -> Job | None:
        """The next group of records below the flushed position, if one is due."""
        if self._running or mono_ms < self._retry_ms or self.error is not None:
            return None
        if not self._operations and (not self._file.is_open or self.position >= flushed):
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
        if not group and not self._file.is_open:
            return None
        try:
            if not self._file.is_open:
                self._open()
            self._file.grow_if_full(
                sum(len(record) for _, _, _, record in self._operations[:COMMIT_COUNT] if record is not None)
            )
        except StoreError as error:  # they are in memory and in the log; the jobs of others must not wait for them
            self._retry_ms = mono_ms + _RETRY_MS
            log.error("delayed messages not written down, tried again in %d ms error=%s", _RETRY_MS, error)
            return None
        self._running = True
        self._dirty_since = -1
        return Job(
            "schedule",
            lambda: self._file.commit(group, position),
            lambda error, now_ms: self._finish(group, position, error, now_ms),
        )

    def _finish(self, group: list[Operation], position: int, error: BaseException | None, now_ms: int) -> None:
        self._running = False
        if error is not None:
            self._retry_ms = now_ms + _RETRY_MS
            if self._file.is_damaged_by(error):
                self.error = error
                log.error(
                    "delayed messages are written down no more, and again from the log at the next start error=%s",
                    error,
                )
            self._file.take_up()
            return
        self._file.committed(position)
        del self._operations[: len(group)]
        for _, id_, due_ms, record in group:
            if record is not None:
                self._fresh.pop(id_, None)
                if id_ not in self._out and key_of(due_ms, id_) <= self._after:
                    self._after = b""
            else:
                self._gone.discard(id_)
        if len(self._heap) > 2 * len(self._fresh) + COMMIT_COUNT:
            self._tidy_heap()

    def _tidy_heap(self) -> None:
        """Most of it is in the file now: whoever next looks for what is due would have to go by all of that."""
        out, gone = self._out, self._gone
        self._heap = [(due_ms, id_) for id_, (due_ms, _) in self._fresh.items() if id_ not in out and id_ not in gone]
        heapq.heapify(self._heap)

    # ---- what is due

    def pop_due(self, now_ms: int, limit: int) -> list[Due]:
        """Messages due by now, oldest first. Each is handed out once; it stays here until its delivery is in the
        log.
        """
        found: list[Due] = []
        after = self._after
        for key, value in self._file.walk(after):
            due_ms, id_ = int.from_bytes(key[:8]), int.from_bytes(key[8:])
            if len(found) >= limit or due_ms > now_ms:
                break
            if self._is_waiting(id_):
                found.append(self._read(key, value()))
            after = key
        self._after = after  # not before all were read: where one cannot be now, those before it come again
        count = 0
        while self._heap and self._heap[0][0] <= now_ms and count < limit:
            due_ms, id_ = heapq.heappop(self._heap)
            fresh = self._fresh.get(id_)
            if fresh is not None and id_ not in self._out and id_ not in self._gone:
                found.append(Due(due_ms, id_, fresh[1]))
                self._out.add(id_)  # it may lie there twice: what was fired, and put back
                count += 1
        found.sort(key=lambda due: (due.due_ms, due.id))
        for due in found[limit:]:
            self._out.discard(due.id)
            self._again(due.due_ms, due.id)
        found = found[:limit]
        self._out.update(due.id for due in found)
        return found

    def _is_waiting(self, id_: int) -> bool:
        """Whether an entry of the file is not handed out, not over, and not in memory, too."""
        return id_ not in self._out and id_ not in self._gone and id_ not in self._fresh

    def _read(self, key: bytes, value: bytes) -> Due:
        """An entry of the file; of a damaged one the log's own record, while it is there."""
        due_ms, id_ = int.from_bytes(key[:8]), int.from_bytes(key[8:])
        record = record_of(key, value)
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
            elif self._file.given_up:
                self._after = b""  # it is looked for among all of them when the file is open again

    def _again(self, due_ms: int, id_: int) -> None:
        if id_ in self._fresh:
            heapq.heappush(self._heap, (due_ms, id_))
        elif key_of(due_ms, id_) <= self._after:
            self._after = b""

    def _due_of(self, id_: int) -> int | None:
        fresh = self._fresh.get(id_)
        if fresh is not None:
            return fresh[0]
        return self._file.due_of(id_)

    def next_due_ms(self) -> int | None:
        """When the next message that is not handed out is due; None when there is none."""
        earliest: int | None = None
        heap, out, gone = self._heap, self._out, self._gone  # these two may be large
        while heap and (heap[0][1] not in self._fresh or heap[0][1] in out or heap[0][1] in gone):
            heapq.heappop(heap)
        if self._heap:
            earliest = self._heap[0][0]
        for key, _ in self._file.walk(self._after):
            if self._is_waiting(int.from_bytes(key[8:])):
                due_ms = int.from_bytes(key[:8])
                return due_ms if earliest is None else min(earliest, due_ms)
        return earliest

    def behind(self, now_ms: int, most: int) -> tuple[int, int]:
        """How many that came or went are not in the file yet; how many are due by now and still here, counted up to `most`."""
        found = sum(1 for id_, (due_ms, _) in self._fresh.items() if due_ms <= now_ms and id_ not in self._gone)
        for key, _ in self._file.walk(b""):
            id_ = int.from_bytes(key[8:])
            if found >= most or int.from_bytes(key[:8]) > now_ms:
                break
            found += id_ not in self._gone and id_ not in self._fresh
        return len(self._operations), min(found, most)

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
        for key, value in self._file.walk(key_of(begin_ms, begin_id)):
            due_ms, id_ = int.from_bytes(key[:8]), int.from_bytes(key[8:])
            if due_ms >= end_ms:
                break
            while at < len(fresh) and fresh[at] < (due_ms, id_):
                yield from self._one(*fresh[at])
                at += 1
            if id_ not in self._gone and id_ not in self._fresh:
                yield self._read(key, value())
        for due_ms, id_ in fresh[at:]:
            yield from self._one(due_ms, id_)

    def _one(self, due_ms: int, id_: int) -> Iterable[Due]:
        fresh = self._fresh.get(id_)
        if fresh is not None and id_ not in self._gone:
            yield Due(due_ms, id_, fresh[1])

    def get(self, id_: int) -> Due | None:
        """One message by id."""
        due_ms = self._due_of(id_)
        if due_ms is None or id_ in self._gone:
            return None
        if id_ in self._fresh:
            return Due(due_ms, id_, self._fresh[id_][1])
        key = key_of(due_ms, id_)
        value = self._file.value(key)
        return self._read(key, value) if value is not None else None

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
        self._file.close()
        self._operations.clear()
        self._fresh.clear()
        self._heap.clear()
        self._gone.clear()
        self._out.clear()
