"""Records that do not hold here, and the sound copies of them that other nodes of the set have.

    a read, the start, a copy ─▶ wanted ─▶ asked for ─▶ given: judged ─▶ job: pwrite, flush ─▶ checked again ─▶ readers go on

A copy is taken when it is a record of that place and the sum that stands here holds for it. The sum here is put right instead
where the record here is the one that was given, byte for byte; a sum one bit away is a damaged one, too, and one that is not
there holds for nothing. In all other cases the two nodes differ, and nothing is changed.

The bytes are written first and flushed, a sum that is put right goes afterwards: whoever ends midway leaves a record that does
not hold, as it was, and it is asked for again. Readers wait before a damaged record, for `WAIT_MS` at most: then it is passed
over, as it is by a broker without a set, and mended nevertheless when a copy comes.
"""

from __future__ import annotations

import json
import logging
import struct
from collections.abc import Iterator
from typing import NamedTuple

import msgspec
from isal import isal_zlib

from penstock.disk import tables
from penstock.disk.job import Job
from penstock.errors import StoreError
from penstock.log import sidelayout
from penstock.log.checksums import Sidecar
from penstock.log.follow import Follower
from penstock.log.store import LogStore
from penstock.log.upkeep import read_damage
from penstock.wire import layout
from penstock.wire.record import decode_record

log = logging.getLogger("penstock.log")

WAIT_MS = 10_000
RETRY_MS = 10_000  # after a write that failed
WANTED_MAX = 10_000
REPORTS_MAX = 20

_ENTRY = struct.Struct(">II")
_HEAD = struct.Struct(">II")  # of a record: its size, its magic number
_PLACE = struct.Struct(">q")


class Want(msgspec.Struct, eq=False):
    """A record that is asked for. `end`: the damage it is a part of ends there, where that is known."""

    position: int
    until_ms: int
    end: int = 0
    queues: set[tuple[bytes, int]] = msgspec.field(default_factory=set)
    cannot: int = 0  # so many of the nodes that are there have no sound copy
    writing: bool = False
    again_ms: int = 0
    passed: bool = False  # readers wait no more


class Mend(NamedTuple):
    """What is written: the record, and (entry 0 or above) its sum."""

    want: Want
    record: bytes
    same: bool  # the record is right already
    entry: int


class Repairs:
    """See the module. `hopeful`: other nodes have copies of this log, though none may be there yet."""

    def __init__(self, store: LogStore, *, hopeful: bool) -> None:
        self._store = store
        self._hopeful = hopeful
        self._peers = 0
        self.wanted: dict[int, Want] = {}
        self.repaired = 0
        self._gaps: dict[tuple[bytes, int], list[tuple[int, int]]] = {}  # queue → offsets that a start has not found
        self._given: list[Mend] = []
        self._running = False
        self._reports = 0

    # -- what is wanted --------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Want what former reads and starts have noted, as far as it does not hold."""
        store = self._store
        for line in read_damage(store.files, store.folder / "damage.jsonl"):
            begin, end = line.get("position"), line.get("end")
            if not isinstance(begin, int) or not isinstance(end, int) or line.get("repaired"):
                continue
            for position in self._records(begin, end):
                self._want(position, end)
            gaps = line.get("queueOffsets", [])
            for gap in gaps if isinstance(gaps, list) else []:
                topic, queue_id, first, to = gap
                self._gaps.setdefault((str(topic).encode(), int(queue_id)), []).append((int(first), int(to)))

    def _records(self, begin: int, end: int) -> Iterator[int]:
        """Where, from begin on, the records are that do not hold."""
        commit_log = self._store.log
        position = max(begin, commit_log.file.first)
        while position < min(max(end, begin + 1), commit_log.end):
            segment = commit_log.file.at(position)
            if segment is None:
                return
            size = commit_log.check(position)
            if size > 0:
                position += size
                continue
            sidecar = commit_log.sums.get(segment.first)
            n = -1 if sidecar is None else sidecar.find(position - segment.first)
            if size < 0:
                yield position
                if sidecar is None:
                    return  # the next one is known when this one is there
                known = n < sidecar.count and sidecar.start(n) == position - segment.first
                n += 1 if known else 0
            following = segment.first + segment.size
            if size < 0 and sidecar is not None and n < sidecar.count:
                following = max(position + 1, segment.first + sidecar.start(n))
            position = following

    def _want(self, position: int, end: int = 0) -> Want | None:
        want = self.wanted.get(position)
        commit_log = self._store.log
        if want is None and commit_log.file.first <= position < commit_log.end and len(self.wanted) < WANTED_MAX:
            want = self.wanted[position] = Want(position, self._store.clock.monotonic_ms() + WAIT_MS, end)
            self._report("a record does not hold, other nodes are asked for it position=%d", position)
        return want

    def _report(self, words: str, *of: object) -> None:
        self._reports += 1
        if self._reports <= REPORTS_MAX:
            log.error(words, *of)

    def found(self, position: int) -> None:
        """The record there does not hold; nothing is wanted where no record is."""
        segment = self._store.log.file.at(position)
        sidecar = None if segment is None else self._store.log.sums.get(segment.first)
        if segment is not None and sidecar is not None and _entry(sidecar, position - segment.first) >= 0:
            self._want(position)

    def awaits(self, topic: bytes, queue_id: int, offset: int, position: int) -> bool:
        """This message does not hold, or (position -1) was not found. Whether its readers are to wait."""
        now_ms = self._store.clock.monotonic_ms()
        if position < 0:
            gaps = self._gaps.get((topic, queue_id), ())
            if not any(first <= offset < to for first, to in gaps):
                return False
            waiting = [want for want in self.wanted.values() if want.end and self._waits(want, now_ms)]
            for want in waiting:
                want.queues.add((topic, queue_id))
            return bool(waiting)
        wanted = self._want(position)
        if wanted is None:
            return False
        self._store.damaged_entries.setdefault(position, (topic, queue_id, offset))
        wanted.queues.add((topic, queue_id))
        return self._waits(wanted, now_ms)

    def _waits(self, want: Want, now_ms: int) -> bool:
        return (self._hopeful or self._peers > 0) and now_ms < want.until_ms and not self._is_hopeless(want)

    def _is_hopeless(self, want: Want) -> bool:
        return 0 < self._peers <= want.cannot

    def says(self) -> dict[str, object]:
        """For people: nothing while there was no damage."""
        return {"damaged": len(self.wanted), "repaired": self.repaired} if self.wanted or self.repaired else {}

    def meet(self, peers: int) -> None:
        """So many nodes can be asked now."""
        self._peers = peers

    def tick(self, mono_ms: int) -> None:
        """Let readers go on that have waited long enough, and forget what is not in the log any more."""
        commit_log = self._store.log
        for position in commit_log.sums.take_doubtful():
            self._want(position)
        for want in list(self.wanted.values()):
            if not commit_log.file.first <= want.position < commit_log.end:
                del self.wanted[want.position]
                self._let_go(want)
            elif not want.passed and not self._waits(want, mono_ms):
                want.passed = True
                self._let_go(want)

    def _let_go(self, want: Want) -> None:
        for topic, queue_id in want.queues:
            self._store.notice(self._store.queue(topic, queue_id))

    # -- what other nodes have ---------------------------------------------------------------------------------------

    def due(self, mono_ms: int) -> Iterator[Want]:
        """What is to be asked for."""
        return (want for want in self.wanted.values() if not want.writing and mono_ms >= want.again_ms)

    def told(self, position: int) -> tuple[int, int]:
        """(size, sum) of a record as the sum here has it; 0 where that is not known."""
        segment = self._store.log.file.at(position)
        sidecar = None if segment is None else self._store.log.sums.get(segment.first)
        if segment is None or sidecar is None:
            return 0, 0
        n = _entry(sidecar, position - segment.first)
        if n < 0:
            return 0, 0
        size = sidecar.start(n + 1) - sidecar.start(n) if n + 1 < sidecar.count else 0
        whole = self._store.log.size_at(position)
        if whole > 0 and decode_record(self._store.log.bytes_at(position, whole), check=True) is not None:
            return whole, 0  # it may be the sum that is wrong
        return max(size, 0), sidecar.sum(n)

    def give(self, position: int, told_sum: int) -> bytes:
        """The record there for another node, whose sum of it (0: none) is this; empty where none is, where it is another one
        by that sum, or where it does not hold: then it is wanted here, too.
        """
        commit_log = self._store.log
        segment = commit_log.file.at(position)
        sidecar = None if segment is None else commit_log.sums.get(segment.first)
        n = -1 if segment is None or sidecar is None else _entry(sidecar, position - segment.first)
        if n < 0 or position >= commit_log.settled_end():
            return b""
        size = commit_log.check(position)
        record = commit_log.bytes_at(position, size) if size > 0 else b""
        if sidecar is None or not record or isal_zlib.crc32(record) != sidecar.sum(n):
            self._want(position)
            return b""
        wrong = told_sum ^ sidecar.sum(n)
        if told_sum and wrong & (wrong - 1):
            self._report("another node has another sum for the record position=%d", position)
            return b""
        return record

    def cannot(self, position: int) -> None:
        """A node has no sound copy."""
        want = self.wanted.get(position)
        if want is not None:
            want.cannot += 1
            if self._is_hopeless(want):
                self._report("no node has a sound copy of the record position=%d", position)

    def hope_again(self, position: int) -> None:
        """A node that had none is asked once more, or has gone."""
        want = self.wanted.get(position)
        if want is not None and want.cannot:
            want.cannot -= 1

    def given(self, position: int, record: bytes) -> bool:
        """Another node's copy; what is not wanted any more is of no use. False when it is not the record of this log."""
        want = self.wanted.get(position)
        if want is None or want.writing:
            return True
        mend = self._judge(want, record)
        if mend is None:
            self._report("a copy of a record is refused: the sum here does not hold for it position=%d", position)
            return False
        want.writing = True
        self._given.append(mend)
        return True

    def _judge(self, want: Want, record: bytes) -> Mend | None:
        """What is to be written; None: nothing, this is not the record of that place."""
        commit_log, position = self._store.log, want.position
        segment = commit_log.file.at(position)
        if segment is None or not _is_record(record, position):
            return None
        at, size = position - segment.first, len(record)
        if at + size + layout.BLANK_BYTES > segment.size or position + size > commit_log.end:
            return None
        same = commit_log.bytes_at(position, size) == record
        crc = isal_zlib.crc32(record)
        sidecar = commit_log.sums.get(segment.first)
        n = -1 if sidecar is None else _entry(sidecar, at)
        if sidecar is not None and n >= 0:
            wrong = sidecar.sum(n) ^ crc
            if wrong and not same and wrong & (wrong - 1):
                return None
            return Mend(want, record, same, n if wrong else -1)
        follows = position + size == commit_log.end or commit_log.size_at(position + size) >= 0
        if decode_record(record) is None or not (follows or position + size <= want.end):
            return None
        return Mend(want, record, same, -1 if sidecar is None else self._lost_entry(sidecar, at, crc))

    def _lost_entry(self, sidecar: Sidecar, at: int, crc: int) -> int:
        """Which entry is this record's, though its start is wrong; -1: that cannot be told."""
        n = int(sidecar.seek(at, crc))
        if n >= 0 and sidecar.sum(n) == crc:
            return n
        for n in range(sidecar.count):
            if sidecar.start(n) == sidecar.sum(n) == 0:
                before = sidecar.first + sidecar.start(n - 1) if n else -1
                if (n == 0 and at == 0) or (n and before + self._store.log.size_at(before) == sidecar.first + at):
                    return n
        return -1

    # -- mending -----------------------------------------------------------------------------------------------------

    def take_job(self) -> Job | None:
        """Write what was given."""
        if self._running or not self._given:
            return None
        mends, files, commit_log = self._given, self._store.files, self._store.log
        places = []
        for mend in mends:
            segment = commit_log.file.at(mend.want.position)
            if segment is not None:
                places.append(
                    (mend, segment.path, mend.want.position - segment.first, commit_log.sums.get(segment.first))
                )
        self._running, self._given = True, []

        def run() -> None:
            for sums in (False, True):
                for mend, path, at, sidecar in places:
                    target, begin, data = path, at, mend.record
                    if sums:
                        if mend.entry < 0 or sidecar is None:
                            continue
                        target = sidecar.path
                        begin = sidelayout.HEAD_BYTES + mend.entry * sidelayout.ENTRY_BYTES
                        data = _ENTRY.pack(at, isal_zlib.crc32(mend.record))
                    elif mend.same:
                        continue
                    fd = files.open(target)
                    try:
                        files.write(fd, begin, data)
                        files.datasync(fd)
                    finally:
                        files.close(fd)

        def finish(error: BaseException | None, mono_ms: int) -> None:
            self._running = False
            for mend in mends:
                mend.want.writing = False
                mend.want.again_ms = mono_ms + RETRY_MS
            if error is None:
                self._finish([mend for mend in mends if mend.want.position in self.wanted])
            else:
                self._report("a damaged record cannot be mended now error=%s", error)

        return Job("repair", run, finish)

    def _finish(self, mends: list[Mend]) -> None:
        """Look whether the records hold now, let what follows from them be there, and readers go on."""
        store = self._store
        follower = Follower(store)
        mended = []
        for mend in mends:
            want, position = mend.want, mend.want.position
            if not follower.derive_again(position):
                self._report("a record does not hold though it was mended position=%d", position)
                continue
            del self.wanted[position]
            self.repaired += 1
            mended.append(mend)
            log.warning("a damaged record was mended position=%d bytes=%d", position, len(mend.record))
            behind = position + len(mend.record)
            if behind < want.end and store.log.check(behind) < 0:
                self._want(behind, want.end)
            self._let_go(want)
        if not any(want.end for want in self.wanted.values()):
            self._gaps.clear()
        try:
            self._note(mended)
        except StoreError as error:
            self._report("not noted in damage.jsonl what was mended error=%s", error)

    def _note(self, mends: list[Mend]) -> None:
        """Say in `damage.jsonl` what is mended."""
        store = self._store
        store.upkeep.note_damage()
        path = store.folder / "damage.jsonl"
        lines = read_damage(store.files, path)
        told = set()
        for line in lines:
            begin, end = line.get("position"), line.get("end")
            if isinstance(begin, int) and isinstance(end, int) and begin < store.log.end and not line.get("repaired"):
                line["repaired"] = begin >= store.log.file.first and not any(True for _ in self._records(begin, end))
                if line["repaired"]:
                    told.add(begin)
                else:
                    del line["repaired"]
        for mend in mends:
            position = mend.want.position
            store.upkeep.forget_damage(position)
            if position not in told:
                end = position + len(mend.record)
                lines.append({"at": store.clock.now_ms(), "position": position, "end": end, "repaired": True})
        store.upkeep.damage.read_again()
        tables.replace(store.files, path, b"".join(json.dumps(line).encode() + b"\n" for line in lines))


def _entry(sidecar: Sidecar, at: int) -> int:
    """The entry of the record that begins there; -1: there is none."""
    if not sidecar.covers_from <= at < sidecar.covers_to:
        return -1
    n = sidecar.find(at)
    return n if n < sidecar.count and sidecar.start(n) == at else -1


def _is_record(record: bytes, position: int) -> bool:
    """Whether these bytes say of themselves that they are one record, and the one of this place."""
    if len(record) < layout.RECORD_FIXED_BYTES:
        return False
    size, magic = _HEAD.unpack_from(record)
    place = _PLACE.unpack_from(record, layout.PHYSICAL)[0]
    return size == len(record) and magic in (layout.MAGIC_V1, layout.MAGIC_V2) and place == position
