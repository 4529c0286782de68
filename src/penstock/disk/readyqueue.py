"""ReadyQueue: a queue topic's messages, one copy for all its channels, in mapped segments of gmq's record layout.

    <name>_<n>.queue   'v' (1) | length (4) | id (8) | attempts (2) | mark (4) | body     length counts from id on
    <name>_<n>.sums    head, at 0 and again in the last 32 bytes:
                       "PRDY" | life (3) | version (1) | first ordinal (8) | segment size (4) | tag (4)
                       | count when closed cleanly, or FFFFFFFF (4) | CRC-32 of the 28 bytes before (4)
                       then for each record, at 32 + n × 8:   start | "more follows" in bit 31 (4) | CRC-32 (4)

The mark (gmq's delay) is 0, or in a copy of an entry of the schedule what `mark_of` makes of the entry's id: a start after
a kill tells by it what was copied already.

A record's ordinal is its number in the queue; its id, which is also its timestamp in ns, rises from record to record of
one broker. The sum begins with the ordinal, mixed with the file's life (how often it was used before), and the sums of a
segment that is used again are cleared, so that what stood in it is never taken for a message; the tag says whose segment it
is. The records of one MPUB all but the last say "more follows":
of a batch that was cut off nothing is found. Positions are found by going through the sums (rule R11), not from memory.

Where sums are lost the records are found by their lengths, and behind the last one stands a zero: they are served
unchecked, their sums are made again. Nothing is deleted: what cannot be served goes to lost+found.

Files have their full length from the start and take room on the disk in steps, ahead of use: a mapped hole on a full
disk would end the process. A segment that every channel has finished goes to the pool, whose pages are warm, or away.
"""

# mypy: disable-error-code="no-any-return"
from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from zlib import crc32 as crc32_of

import cython

from penstock.disk.files import Files, is_full, last_byte
from penstock.disk.quarantine import data_folder, make_way, try_quarantine
from penstock.disk.readysegment import BROKEN, CHECKED, FOREIGN, FULL, UNCHECKED
from penstock.disk.stream import Stream
from penstock.errors import StoreError
from penstock.octets import Readable

if cython.compiled:
    from cython.cimports.penstock import words
    from cython.cimports.penstock.disk import readylayout as layout
    from cython.cimports.penstock.disk.gathering import Gathering
    from cython.cimports.penstock.disk.readysegment import ReadySegment
    from cython.cimports.penstock.octets import (
        be16,
        be64,
        copy,
        crc32,
        crc32_head,
        fence,
        put8,
        put16,
        put32,
        put64,
        ube32,
    )
else:
    from penstock import words
    from penstock.disk import readylayout as layout
    from penstock.disk.gathering import Gathering
    from penstock.disk.readysegment import ReadySegment
    from penstock.octets import be16, be64, copy, crc32, crc32_head, fence, put8, put16, put32, put64, ube32

log = logging.getLogger("penstock.disk")

POOL_MAX = 2
KEEP_NOTHING = 1 << 62
_FILE = re.compile(r".*_([0-9]{1,18})\.(queue|sums)")  # of any queue: a pattern for each name costs more than its files
_MARK_BITS, _MARK_SET = 0x7FFFFFFF, 0x80000000


def mark_of(schedule_id: int) -> int:
    """The mark of a copy of this entry: never 0."""
    return schedule_id & _MARK_BITS | _MARK_SET


class Pool:
    """Segments nobody needs: taken again with their pages warm, or removed by a thread (`take_gone`)."""

    def __init__(self, folder: Path, files: Files) -> None:
        self.folder = folder
        self.files = files
        self.spares: list[ReadySegment] = []
        self._gone: list[ReadySegment] = []
        self._stay: list[Path] = []  # that the disk has kept
        self._number = 0
        self.gathering = Gathering()
        self.after_cut = False  # a power cut ended the process before: what has no sums may never have been whole

    def put(self, segment: ReadySegment) -> None:
        """A finished segment: its name goes away at once, its room when a thread has time. Where the disk refuses that, the name
        goes with the room: whoever let go of it, often a publish that is stored, has nothing to do with it.
        """
        self._number += 1
        try:
            segment.move(self.folder / f".spare_{self._number}.queue")
        except StoreError as error:
            log.error("a used-up segment is removed, not used again: %s", error)
            if segment.life + 1 < layout.LIVES:  # a start, or a topic made anew, that finds it finds nothing in it
                with contextlib.suppress(StoreError):
                    segment.begin_again(segment.first + segment.count)
            self._gone.append(segment)
            return
        if len(self.spares) < POOL_MAX and segment.life + 1 < layout.LIVES:
            self.spares.append(segment)
        else:
            self._gone.append(segment)

    def take(self, size: int) -> ReadySegment | None:
        """A segment of this size to be used again."""
        for segment in self.spares:
            if segment.size == size and not segment.lent():
                self.spares.remove(segment)
                return segment
        return None

    def give_up(self, segment: ReadySegment) -> None:
        """One that was taken, and cannot be used."""
        self._gone.append(segment)

    def take_gone(self) -> list[ReadySegment]:
        """What a thread should remove now, with `remove`."""
        gone, self._gone = self._gone, []
        return gone

    def remove(self, segments: list[ReadySegment]) -> None:
        """Free the disk; for any thread. StoreError when one of them stays: the others are gone, and that one is tried again
        with the next ones.
        """
        failed: StoreError | None = None
        paths, self._stay = self._stay, []
        for segment in segments:
            segment.close()
            paths += [segment.path, segment.sums_path]
        for path in paths:
            try:
                self.files.unlink(path)
            except StoreError as error:
                self._stay.append(path)
                failed = error
        if failed is not None:
            raise failed

    def shrink(self) -> None:
        """Give the spares up, too: the disk is short, or the broker stops."""
        self._gone += self.spares
        self.spares = []

    def begin(self, after_cut: bool) -> None:
        """Remove what a former process left here; `after_cut`: a power cut ended it."""
        self.after_cut = after_cut
        for name in self.files.names(self.folder):
            if name.startswith(".spare_"):
                try:
                    self.files.unlink(self.folder / name)
                except StoreError as error:  # the next spare of its name takes its place
                    log.error("a used-up segment stays: %s", error)


def _number(segment: ReadySegment) -> int:
    return int(segment.path.stem.rpartition("_")[2])


def _place(kept: list[ReadySegment], segment: ReadySegment, count: int) -> int:
    """The ordinal of the first message of a segment whose head is lost, if its neighbours tell; else -1, and all of
    it comes again under new ordinals.
    """
    number = _number(segment)
    before = [other for other in kept if _number(other) == number - 1]
    behind = [other for other in kept if _number(other) == number + 1]
    for left in before:
        for right in behind:
            if left.first + left.count + count == right.first:
                return right.first - count
    return -1


def _emptied(kept: list[ReadySegment]) -> list[ReadySegment]:
    """Tell of segments that others follow, and whose last messages are not there any more: a kill leaves none such. Those without
    any: they are not used up.
    """
    found = []
    for segment, following in pairwise(kept):
        lost = segment.missing(following.first - segment.first - segment.count)
        if lost:
            log.error(
                "messages missing at the end of %s: %d; it was cut short or written over, or a power cut came before",
                segment.path.name, lost,
            )  # fmt: skip
            if not segment.count:
                found.append(segment)
    return found


class ReadyQueue(Stream):
    """One topic's stream. Appending never raises: 0, FULL or BROKEN."""

    def __init__(
        self, folder: Path, name: str, segment_bytes: int, pool: Pool, files: Files, stamped: bool = False
    ) -> None:
        Stream.__init__(self)
        self.folder = folder
        self.name = name
        self.tag = crc32_of(f"{folder.parent.name}/{folder.name}/{name}".encode())
        self.segment_bytes = segment_bytes
        self.pool = pool
        self.files = files
        self.segments: list[ReadySegment] = []
        self.last: ReadySegment = None  # type: ignore[assignment]  # the ReadySegment that is appended to
        self._seen: ReadySegment | None = None
        self.last_id = 0
        self.total = 0  # ordinal behind the last record
        self.visible = 0  # as far as readers may see
        self.stamped = stamped  # bodies begin with a timestamp in ns (8): the id is none
        self.unflushed = False
        self.renamed = False  # names in the folder changed since the last flush
        self.kept_from = KEEP_NOTHING  # what lies from here on is not dropped
        self._number = 0
        self._mark = 0
        self._batch = 0  # records of the open batch
        self._fresh_first = 0
        self._gathering: Gathering = pool.gathering
        self._gathers = False  # what is appended now

    # -- opening and closing -------------------------------------------------------------------------------------

    def open(self, ordinal: int = 0, names: Sequence[str] | None = None) -> None:
        """Find the segments, in the folder or among its `names`; an empty queue begins at `ordinal`, which no record had."""
        opened = [(segment, segment.open(self.pool.after_cut)) for segment in self._find(names)]
        end = ordinal
        kept: list[ReadySegment] = []
        lost: list[ReadySegment] = []  # without sums that can be believed
        for segment, state in opened:
            if state == CHECKED:
                if kept and segment.first < end:
                    if (
                        segment.first <= kept[len(kept) - 1].first
                    ):  # an older life of a file used again: nobody is owed it
                        self.pool.put(segment)
                        continue
                    kept[len(kept) - 1].clip(segment.first)  # what was torn off there is no part of the queue
                kept.append(segment)
                end = segment.first + segment.count
            elif state == UNCHECKED:
                lost.append(segment)
            elif state == FOREIGN:
                self._quarantine(segment, "another queue's segment, under a new name that was never flushed")
            else:
                self._quarantine(segment, "messages that do not fit their sums")
        for segment in lost:
            limit = segment.path.stat().st_size
            count = segment.records(limit)
            if not count:
                if last_byte(self.files, segment.path, segment.map, 0, limit):
                    self._quarantine(segment, "no message is found in it")
                else:
                    self.pool.put(segment)
            elif self.pool.after_cut:
                self._quarantine(segment, "messages without sums: a power cut came before they were flushed")
            else:
                first = _place(kept, segment, count)
                if first < 0:
                    first = end = max(end, ordinal)
                segment.adopt_unchecked(first)
                kept.append(segment)
                end = max(end, segment.first + segment.count)
        kept.sort(key=lambda segment: segment.first)
        for segment in () if self.pool.after_cut else _emptied(kept):
            self._quarantine(segment, "the messages that its sums tell of are not there")
            kept.remove(segment)
        self.segments = kept
        self.total = self.visible = self._fresh_first = max(end, ordinal)
        if self.segments:
            for segment in self.segments:
                if not segment.clean:  # who wrote it was killed, perhaps before the flush
                    self._fresh_first = min(self._fresh_first, segment.first)
                    self.unflushed = self.renamed = True
            last = self.segments[len(self.segments) - 1]
            last.mark(False)
            if end == self.total:
                self.last = last
            self.last_id = _newest_id(kept)

    def _find(self, names: Sequence[str] | None) -> list[ReadySegment]:
        """The segments of the folder in the order of their numbers; what is none goes to lost+found."""
        found: dict[int, Path] = {}
        odd: dict[int, Path] = {}
        for file in self.files.names(self.folder) if names is None else names:
            match = _FILE.fullmatch(file) if file.startswith(self.name) else None
            if match and match[0][: match.start(1) - 1] == self.name:
                number, path = int(match[1]), self.folder / file
                self._number = max(self._number, number)
                if path.is_dir():
                    try_quarantine(self.files, data_folder(path), path, "a folder where a segment should be")
                else:
                    (found if match[2] == "queue" else odd)[number] = path
        for number in odd.keys() - found.keys():
            try_quarantine(self.files, data_folder(odd[number]), odd[number], "sums of messages that are gone")
        size = self.segment_bytes
        return [ReadySegment(path, size, self.files, self.tag) for _, path in sorted(found.items())]

    def _quarantine(self, segment: ReadySegment, why: str) -> None:
        segment.close()
        for path in (segment.path, segment.sums_path):
            if path.exists():
                try_quarantine(self.files, data_folder(path), path, why)

    def close(self, clean: bool) -> None:
        """Let go of the files; `clean` after everything was flushed: the next start need not look."""
        for segment in self.segments:
            if clean:
                self._gathering.settle_of(segment)
                segment.mark(True)
            self._gathering.drop(segment)
            segment.close()
        self.segments = []
        self.last = self._seen = None  # type: ignore[assignment]

    # -- appending -----------------------------------------------------------------------------------------------

    def ready(self, length: int, records: int) -> int:
        """Make room for records of this many bytes in one segment: 0, FULL or BROKEN. `append` may follow so often."""
        self._gathers = False
        if self.last is not None:
            self._gathering.settle_of(self.last)
        return self._make_room(length, records)

    def gather(self, length: int, records: int) -> int:
        """As `ready`, but what is appended is with the system only after the gathering's `settle`: nothing may be answered
        before.
        """
        if length >= layout.WRITTEN_BYTES_MIN * records:
            return self.ready(length, records)
        answer = self._make_room(length, records)
        self._gathers = answer == 0 and self._gathering.take(self.last, length)
        if answer == 0 and not self._gathers:
            self.last.fetch(length)
        return answer

    def _make_room(self, length: int, records: int) -> int:
        segment = self.last
        if segment is None or segment.end + length > segment.size:
            answer = self._roll(length)
            if answer:
                return answer
            segment = self.last
        sums = layout.START + (segment.count + records) * layout.ENTRY_BYTES
        if segment.end + length <= segment.allocated and sums <= segment.sums_allocated:
            return 0
        return segment.room(length, records)

    def _roll(self, length: int) -> int:
        size = max(self.segment_bytes, length)  # a batch that fits no segment gets one of its own
        if length > layout.BYTES_MAX:
            return BROKEN
        if self.last is not None:
            self._gathering.settle_of(self.last)
            self.last.expect(scattered=False)
        path = self.folder / f"{self.name}_{self._number + 1}.queue"
        spare: ReadySegment | None = None
        try:
            self.files.make_folder(self.folder, durable=False)  # the flush makes its name durable
            for name in (path, path.with_suffix(".sums")):
                make_way(self.files, data_folder(path), name)
            segment = spare = self.pool.take(size)
            if segment is not None:
                segment.tag = self.tag
                segment.begin_again(self.total)
                segment.move(path)
            else:
                segment = ReadySegment(path, size, self.files, self.tag)
                segment.create(self.total)
        except StoreError as error:
            if spare is not None:
                self.pool.give_up(spare)
            return FULL if is_full(self.files, error) else BROKEN
        self._number += 1
        self.segments.append(segment)
        self.last = segment
        self.renamed = True
        return 0

    def append(
        self, now_ns: int, attempts: int, message_id: int, body: Readable, at: int, length: int, more: int
    ) -> None:
        """One record, after `ready` said 0. `message_id` 0: a new one, which is its time. `more`: the batch goes on.

        Readers see it when its batch is whole and `all_visible` was called.
        """
        if message_id == 0:
            message_id = now_ns
            if message_id <= self.last_id:
                message_id = self.last_id + 1
            self.last_id = message_id
        segment = self.last
        large = length >= layout.WRITTEN_BYTES_MIN and not self._gathers
        large = large and not segment.is_dirty(segment.end + layout.BODY + length)
        if large and segment.write(message_id, attempts, self._mark, body, at, length, more):
            self.total += 1
            self.unflushed = True
            return
        end = to = segment.end
        base = segment.base
        if self._gathers:
            base = self._gathering.base
            to -= self._gathering.start
        elif end + length + layout.BODY < segment.allocated:
            put8(base, end + length + layout.BODY, 0)  # the next life of the file must not run on into this one's rest
        put32(base, to + layout.LENGTH, length + layout.COUNTED_BYTES)
        put64(base, to + layout.ID, message_id)
        put16(base, to + layout.ATTEMPTS, attempts)
        put32(base, to + layout.MARK, self._mark)
        crc = (segment.first + segment.count) ^ segment.salt
        crc = crc32_head(layout.LETTER, length + layout.COUNTED_BYTES, message_id, attempts, self._mark, crc)
        crc = crc32(body, at, length, crc)  # not of the copy: that would wait for its page to come from memory
        copy(base, to + layout.BODY, body, at, length)
        fence()
        put8(base, to, layout.LETTER)  # last, over the zero there: a kill leaves a whole record, or none
        put32(segment.sums, layout.START + segment.count * layout.ENTRY_BYTES, end | (more << layout.MORE_BIT))
        put32(segment.sums, layout.CRC + segment.count * layout.ENTRY_BYTES, crc)
        segment.count += 1
        segment.end = end + length + layout.BODY
        self.total += 1
        self.unflushed = True

    def append_bytes(self, message_id: int, attempts: int, body: bytes, more: bool = False, mark: int = 0) -> None:
        """A message that has an id, after `ready` said 0."""
        self._mark = mark
        self.append(message_id, attempts, message_id, body, 0, len(body), 1 if more else 0)
        self._mark = 0

    def marked(self) -> list[tuple[int, int, int]]:
        """(mark, id, ordinal) of the records with a mark that a kill or power cut may have left behind."""
        self._gathering.settle()
        return [entry for segment in self.segments for entry in segment.marked()]

    def all_visible(self) -> None:
        """Everything appended may be read."""
        self.visible = self.total

    def visible_to(self, ordinal: int) -> None:
        """What lies below may be read."""
        self.visible = min(self.total, ordinal)

    def next_id(self, now_ns: int) -> int:
        """An id that no message here has: the time, or the next one."""
        self.last_id = max(now_ns, self.last_id + 1)
        return self.last_id

    def keep_from(self, ordinal: int) -> None:
        """What lies from here on is not dropped."""
        self.kept_from = ordinal

    # -- reading (Stream) ----------------------------------------------------------------------------------------

    def begin(self) -> int:
        return self.segments[0].first if self.segments else self.total

    def end(self) -> int:
        return self.visible

    def _segment(self, ordinal: int) -> ReadySegment | None:
        segment = self._seen  # type: ignore[assignment]
        if segment is not None and segment.first <= ordinal < segment.first + segment.count:
            return segment
        for segment in reversed(self.segments):
            if segment.first <= ordinal:
                if ordinal < segment.first + segment.count:
                    self._seen = segment
                    return segment
                return None
        return None

    def next(self, ordinal: int) -> int:
        segment = self.last
        if segment is not None and ordinal >= segment.first:
            return ordinal
        segment = self._seen  # type: ignore[assignment]
        if segment is not None and segment.first <= ordinal < segment.first + segment.count:
            return ordinal
        for segment in self.segments:
            if ordinal < segment.first:
                return segment.first
            if ordinal < segment.first + segment.count:
                return ordinal
        return max(ordinal, self.total)

    def count(self, ordinal: int) -> int:
        if self.visible <= ordinal:
            return 0
        last = self.last
        if last is not None and ordinal >= last.first:
            return self.visible - ordinal
        found = 0
        for segment in self.segments:
            begin = segment.first if segment.first > ordinal else ordinal
            end = segment.first + segment.count
            if end > self.visible:
                end = self.visible
            if begin < end:
                found += end - begin
        return found

    def find(self, ordinal: int) -> int:
        segment = self.last  # those who keep up, then the one who does not
        if segment is None or ordinal < segment.first or ordinal >= segment.first + segment.count:
            segment = self._segment(ordinal)  # type: ignore[assignment]
            if segment is None:
                return 0
        self._gathering.settle_of(segment)
        n = ordinal - segment.first
        if segment.damaged and n in segment.damaged:
            return 0
        at = segment.start(n)
        if segment.unverified and (at + layout.BODY > segment.end or segment.sum_matches(n, at, segment.end) == 0):
            segment.review()
            return self.find(ordinal)
        length = ube32(segment.base, at + layout.LENGTH)
        if segment.base[at] != layout.LETTER or length < layout.COUNTED_BYTES or at + layout.ID + length > segment.end:
            return 0
        self.base = segment.base
        self.at = at + layout.BODY
        self.length = length - layout.COUNTED_BYTES
        # Without its highest bit, which no id has: consumers could not say it.
        self.message_id = self.stamp_ns = be64(segment.base, at + layout.ID) & words.INT63_MAX
        self.attempts = be16(segment.base, at + layout.ATTEMPTS)
        if self.stamped:
            self.stamp_ns = be64(segment.base, at + layout.BODY)
            self.at += layout.STAMP_BYTES
            self.length -= layout.STAMP_BYTES
        return 1

    def lend(self) -> memoryview | None:
        for segment in self.segments:
            if segment.base is self.base:
                return memoryview(segment.map)[self.at : self.at + self.length]
        return None

    # -- letting go ----------------------------------------------------------------------------------------------

    def drop_below(self, ordinal: int) -> int:
        """Every channel has finished what lies below: whole segments go. Returns how many."""
        gone = 0
        if ordinal > self.kept_from:
            ordinal = self.kept_from
        while self.segments:
            segment = self.segments[0]
            if segment.first + segment.count > ordinal or segment is self.last:
                break
            del self.segments[0]
            self._forget(segment)
            gone += 1
        return gone

    def _forget(self, segment: ReadySegment) -> None:
        if self._seen is segment:
            self._seen = None
        self._gathering.settle_of(segment)
        self._gathering.drop(segment)
        self.pool.put(segment)
        self.renamed = True

    def drop_all(self) -> None:
        """Nobody is owed anything: every segment goes; ordinals go on."""
        for segment in self.segments:
            self._forget(segment)
        self.segments = []
        self.last = None  # type: ignore[assignment]
        self.visible = self.total

    # -- flushing ------------------------------------------------------------------------------------------------

    def take_flush(self) -> list[ReadySegment]:
        """The segments to be made durable now (their `datasync`, for a thread)."""
        self._gathering.settle()
        self.unflushed = False
        fresh = [segment for segment in self.segments if not segment.named or segment is self.last]
        for segment in self.segments:
            if segment is not self.last and segment.named and segment.first + segment.count > self._fresh_first:
                fresh.append(segment)
        self._fresh_first = self.total
        for segment in fresh:
            segment.begin_flush()
        return fresh

    def take_renamed(self) -> bool:
        """Whether names in the folder have changed since this was asked."""
        renamed, self.renamed = self.renamed, False
        return renamed


def _newest_id(segments: list[ReadySegment]) -> int:
    """The highest id that records have: of the newest that got its own, or of a copy behind it."""
    newest = 0
    for segment in reversed(segments):
        for n in range(segment.count - 1, -1, -1):
            if n not in segment.damaged:
                newest = max(newest, segment.message_id(n))
                if not _is_copy(segment, n):
                    return newest
    return newest


def _is_copy(segment: ReadySegment, n: int) -> bool:
    """Whether record n came with the id it had."""
    return ube32(segment.base, segment.start(n) + layout.MARK) != 0
