"""DiskQueue: the Backend of a queue topic or channel, in go-diskqueue's files (`queuefiles`): nsqd can go on with ours,
and we with nsqd's.

`put` writes the sums, then the records, each with one call; what was put survives the end of the process. `take`
hands out; `done` and `finish` let the read position move, which goes no further than what is finished or kept
elsewhere, and a file that is used up is deleted. What was put is flushed, and the meta file written, now and then
(`queuewriting.Syncing`).

Opening believes the meta file as far as the files bear it out. What lies behind its write position is checked record by
record, a torn end is cut off, and writing goes on in a new file. Without a meta file to believe, reading starts at the
oldest file: a message may come twice, none is skipped. A damaged record costs itself where there are sums, else the
rest of its file; the bytes are kept in ``<data file>.bad``. Nothing but damage makes such a file.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from penstock.disk import queuefiles
from penstock.disk.files import Files
from penstock.disk.framing import weigh
from penstock.disk.quarantine import take_back, try_quarantine
from penstock.disk.queuefiles import LENGTH, START_MAX, Paths, Place, RecordFile, Sums
from penstock.disk.queuewriting import Places, Syncing, WriteFile
from penstock.disk.runs import Run, octets_of, size_of
from penstock.errors import Closed, StoreError

log = logging.getLogger("penstock.disk")

EARLY_PART = 4  # of a file: so much of it is left unused where it ends at a moment at which that is cheap


class Handed:
    """The places behind what was handed out and is not done, oldest first: runs of records that follow each other in a file."""

    def __init__(self) -> None:
        self.count = 0
        self._runs: deque[tuple[Place, Sums | None, int, int]] = deque()  # the end, the sums, the first one's, how many
        self._dropped = 0  # of the first run

    def __len__(self) -> int:
        return self.count

    def add(self, end: Place, sums: Sums | None, first: int, count: int) -> None:
        """Records up to a place; where there are sums, `first` is the first record's."""
        self._runs.append((end, sums, first, count))
        self.count += count

    def drop(self, count: int) -> Place:
        """The oldest are done, one at least; the place behind them."""
        self.count -= count
        self._dropped += count
        while True:
            end, sums, first, length = self._runs[0]
            if self._dropped < length:
                break
            self._dropped -= length
            self._runs.popleft()
            if not self._dropped:
                return end
        assert sums is not None  # without sums records are handed out one by one
        return end[0], sums.start(first + self._dropped)

    def clear(self) -> None:
        """None are out."""
        self.count = self._dropped = 0
        self._runs.clear()


class DiskQueue:
    """One queue, first in, first out. Nothing is on the disk before the first message.

    `payload_bytes`: the least of a payload, and the most that is believed of a record without a sum by itself
    (`queuefiles.believed`). `present` are the numbers of the queue's files where the caller knows them (`queues_in`), else
    the folder is looked through.
    StoreError when the disk cannot be read or repaired.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        files: Files,
        *,
        max_bytes_per_file: int = 100 << 20,
        sync_every: int = 2500,
        sync_timeout_ms: int = 2000,
        payload_bytes: tuple[int, int] = (26, (1 << 20) + 26),
        present: Sequence[int] | None = None,
    ) -> None:
        self.name = name
        self.files = files
        self.paths = Paths(folder, name)
        self.max_bytes_per_file = min(max_bytes_per_file, START_MAX)
        self.sizes = payload_bytes
        self.depth = 0  # what was not taken yet; never 0 while there is something
        self.damaged = 0  # times that something was set aside while reading
        self._closed = False
        self._read: Place = (0, 0)  # everything before is done
        self._next: Place = (0, 0)  # what is handed out next
        self._out = Handed()
        self._first = 0  # the number of the oldest of them
        self._finished: set[int] = set()
        self._write: Place = (0, 0)
        self._writer = WriteFile(files, self.paths)
        self.syncing = Syncing(self._writer, self._places, sync_every, sync_timeout_ms)
        self._used_up: list[int] = []  # files that the disk keeps, to be deleted yet
        self._ends: dict[int, int] = {}  # where the other files end, in their order
        self._reader: tuple[int, RecordFile, Sums | None] | None = None
        self._doubtful: Place | None = None  # the meta file's position, until a record was found there
        self.paths.clear_folders(files)
        numbers = queuefiles.queues_in(files, folder).get(name, []) if present is None else present
        if numbers or self.paths.meta.is_file():
            self._open(sorted(number for number in numbers if self.paths.data(number).is_file()))

    # -- opening ------------------------------------------------------------------------------------------------------

    def _open(self, numbers: list[int]) -> None:
        files = self.files
        meta = queuefiles.read_meta(files, self.paths.meta)
        if meta is not None:
            spent = [n for n in numbers if n < meta[1][0] and queuefiles.spent(files, self.paths, n)]
            numbers = [number for number in numbers if number not in spent]
            self._used_up = queuefiles.use_up(files, self.paths, spent)
        sizes = {number: queuefiles.file_size(files, self.paths.data(number)) for number in numbers}
        trusted = meta is not None and queuefiles.plausible(meta, sizes)
        oldest = (numbers[0], 0) if numbers else (0, 0)
        read = vouched = oldest
        if meta is not None and trusted:
            self.depth, read, vouched = meta
            if read[0] not in sizes:  # used up, and deleted
                read = oldest if numbers else vouched
                ends = {n: vouched[1] if n == vouched[0] else size for n, size in sizes.items() if n <= vouched[0]}
                self.depth = sum(queuefiles.count(files, self.paths, n, end, self.sizes) for n, end in ends.items())
        elif meta is None and self.paths.meta.is_file() and self.paths.meta.stat().st_size:
            try_quarantine(files, self.paths.folder, self.paths.meta, "not the meta file of a disk queue")
        if not trusted and numbers:
            log.warning("queue %s: no meta file to go by, so reading starts at the oldest file", self.name)
        self._read = self._next = read
        self._doubtful = read
        self._ends, self._write = sizes, vouched
        if trusted and sizes.get(vouched[0], 0) == vouched[1] and (not numbers or numbers[-1] <= vouched[0]):
            sizes.pop(vouched[0], None)
            self._settle()
        else:
            self._recover(vouched, trusted)

    def _recover(self, vouched: Place, trusted: bool) -> None:
        """Check and flush what nobody vouched for, and write on in a new file."""
        for number in self._ends:
            if number >= vouched[0]:
                start = vouched[1] if number == vouched[0] else 0
                count, end = queuefiles.repair(self.files, self.paths, number, start, self.sizes, trusted=trusted)
                self.depth += count
                self._ends[number] = end
        self._write = (max([*self._ends, vouched[0]]) + 1, 0)
        self.syncing.begin(1)
        self._settle()
        try:
            self.syncing.write_meta()
        except StoreError as error:  # a full disk: another start would find the same, and the next sync tries again
            log.warning("queue %s: %s", self.name, error)

    # -- writing ------------------------------------------------------------------------------------------------------

    def put(self, runs: Sequence[Run]) -> None:
        """All of these records in or, with StoreError or DiskFull, none: now, and after a crash."""
        self._alive()
        self.syncing.look()
        size = size_of(runs)
        if not size:
            return
        begin = self._write
        entries = weigh(runs, begin[1], self.sizes[0])
        self._make_room(size)
        number, at = self._write
        if (number, at) != begin:  # in a new file
            entries = weigh(runs, at, self.sizes[0])
        self._writer.append(at, octets_of(runs), entries)
        self._write = number, at + size
        self.depth += len(entries)
        self.syncing.note(len(entries))

    def _make_room(self, total: int) -> None:
        """Let the write file be open with room for so many bytes; a new one, if need be."""
        number, at = self._write
        writer = self._writer
        full = self.max_bytes_per_file
        if self.syncing.rolls_cheaply:
            full -= full // EARLY_PART
        if at and (writer.spoiled or at + total > full or not (writer.is_open or writer.reopen(number, at))):
            self._roll()
        elif not writer.is_open:
            writer.create(number)
            if not self.paths.meta.is_file():
                self.syncing.write_meta(flush=False)

    def _roll(self) -> None:
        """Go on in a new file. The old one is flushed first, so that the meta file can vouch for it."""
        with self.syncing.alone():
            self._roll_alone()

    def _roll_alone(self) -> None:
        self.syncing.flush()
        self._writer.close()
        number, at = self._write
        self._writer.create(number + 1)
        self._write = number + 1, 0
        try:
            self.syncing.write_meta()
        except StoreError:
            self._write = number, at
            self._writer.close()
            for path in (self.paths.data(number + 1), self.paths.sums(number + 1)):
                take_back(self.files, path)
            raise
        self._ends[number] = at
        self._writer.begin_anew()
        self.syncing.begin(0)
        self._settle()

    # -- reading ------------------------------------------------------------------------------------------------------

    def take(self, limit: int) -> Run | None:
        """The next records in order, some, at most `limit`; None: there are none. They stay in the queue until they are done.
        StoreError when the disk cannot be read: the next call tries again.
        """
        if self._closed:
            raise Closed(f"the queue {self.name} is closed")
        run = None
        while run is None and self._next != self._write:
            number, at = self._next
            if at >= self._end(number):
                self._next = (self._following(number), 0)
            else:
                run = self._take_run(number, at, limit) or self._take_one(number, at)
        if run is not None:
            self.depth -= run.count
        self._settle()
        return run

    def take_payloads(self, limit: int) -> list[bytes]:
        """As many as there are up to a limit, each as an object."""
        found: list[bytes] = []
        while len(found) < limit and (run := self.take(limit - len(found))):
            found += run.payloads()
        return found

    def _take_run(self, number: int, at: int, limit: int) -> Run | None:
        """Take what is beyond doubt from this place on."""
        file, sums = self._file(number)
        if sums is None:
            return None
        run = file.run(sums, at, self._end(number), limit, self.sizes)
        return None if run is None else self._hand_out(run, (number, at), sums)

    def _hand_out(self, run: Run, place: Place, sums: Sums | None) -> Run:
        """The records from this place on are in somebody's hand."""
        number, at = place
        run.stand_for(self.taken)
        self._next = number, at + run.end - run.at
        self._out.add(self._next, sums, 0 if sums is None else sums.find(at), run.count)
        return run

    def _take_one(self, number: int, at: int) -> Run | None:
        """Take the record at this place and go behind it, or over what is no record."""
        file, sums = self._file(number)
        end = self._end(number)
        n = sums.find(at) if sums is not None else 0
        if sums is None or n == len(sums):
            record = file.record(at, end)
            matches = queuefiles.believed(file, record, at, end, self.sizes)
            following = end
        elif sums.start(n) != at:
            self._next = (number, min(end, _start_around(file, sums, n, at)))
            return None
        else:
            following = min(end, sums.start(n + 1)) if n + 1 < len(sums) else end
            record = file.record(at, following)
            matches = record is not None and sums.sum_matches(n, record)
        if record is not None and matches:
            return self._hand_out(Run(record, 0, len(record), 1), (number, at), sums)
        if (number, at) == self._doubtful and sums is None and at and not _is_start(file, at):
            self._next = (number, 0)
            self._doubtful = None
            return None
        queuefiles.quarantine(self.files, self.paths.data(number), at, following, "no record as it was written")
        self.damaged += 1
        self.depth -= 1
        self._next = (number, following)
        return None

    def _file(self, number: int) -> tuple[RecordFile, Sums | None]:
        written = self._writer.sums if number == self._write[0] else None  # a reader sees these grow
        known = self._reader
        if known is None or known[0] != number or (written is not None and known[2] is not written):
            self._close_reader()
            sums = queuefiles.load_sums(self.files, self.paths.sums(number)) if written is None else written
            self._reader = known = number, RecordFile(self.files, self.paths.data(number)), sums
        return known[1:]

    def _end(self, number: int) -> int:
        return self._write[1] if number == self._write[0] else self._ends.get(number, 0)

    def _following(self, number: int) -> int:
        return next((n for n in self._ends if n > number), self._write[0])

    @property
    def taken(self) -> int:
        """How many were handed out since the queue was opened: the number of the next one, for `finish`."""
        return self._first + len(self._out)

    @property
    def broken(self) -> bool:
        """Whether something is finished behind what is not: the files cannot say so."""
        return bool(self._finished)

    def done(self, count: int) -> None:
        """The oldest `count` of what was handed out are finished, or kept elsewhere."""
        self.finish(range(self._first, self._first + count))

    def finish(self, numbers: Sequence[int]) -> None:
        """The messages with these numbers are finished, or kept elsewhere; in any order."""
        if not isinstance(numbers, range):
            ordered = sorted(numbers)
            row = range(ordered[0], ordered[0] + len(ordered)) if ordered else range(0)
            numbers = row if ordered == list(row) else ordered
        first = self._first
        if (
            isinstance(numbers, range)
            and numbers.start == first
            and not self._finished
            and 0 < len(numbers) <= len(self._out)
        ):
            self.syncing.note(len(numbers))
            self._advance(len(numbers))
            return
        taken = self.taken
        known = [number for number in numbers if first <= number < taken]
        if known:
            self._finished.update(known)
            self.syncing.note(len(known))
            self._advance()

    def _advance(self, count: int = 0) -> None:
        """The oldest `count` of what was handed out are done with, and behind them what is finished."""
        finished = self._finished
        while count < len(self._out) and self._first + count in finished:
            finished.discard(self._first + count)
            count += 1
        if count == len(self._out):
            finished.clear()
        read = self._out.drop(count) if count else self._read
        self._first += count
        self._move_to(read)
        self._settle()

    def _settle(self) -> None:
        """Go over the ends of files, delete what is used up, and let the depth be true where it is known."""
        number, at = self._next
        while number != self._write[0] and at >= self._ends.get(number, 0):
            number, at = self._following(number), 0
            self._next = number, at
        if not self._out:
            self._move_to(self._next)
        self.depth = 0 if self._next == self._write else max(1, self.depth)

    def _move_to(self, read: Place) -> None:
        """Let the read position be there, and delete the files before it."""
        if read == self._read:
            return
        self._read = read
        self.syncing.moved()
        gone = [n for n in self._ends if n < read[0]]
        for number in gone:
            del self._ends[number]
            if self._reader is not None and self._reader[0] == number:
                self._close_reader()
        if gone:  # what the disk keeps this time is tried again when the next file is used up, and at the end
            self._used_up = queuefiles.use_up(self.files, self.paths, [*self._used_up, *gone])

    # -- flushing and closing -----------------------------------------------------------------------------------------

    def tick(self, mono_ms: int) -> int | None:
        """Flush when it is time; returns when to be asked again, None when nothing waits. StoreError: see `Syncing`."""
        if self._closed:
            return None
        due_ms = self.syncing.tick(mono_ms)
        if due_ms is None:
            self._close_reader()
        return due_ms

    def sync(self) -> None:
        """Flush what was put, then write the meta file. StoreError: see `Syncing`."""
        self._alive()
        self.syncing.sync()

    def _places(self) -> Places:
        """The depth counts from the read position on: what is in hand is in the queue."""
        return self.depth + len(self._out), self._read, self._write

    def _close_reader(self) -> None:
        if self._reader is not None:
            self._reader[1].close()
        self._reader = None

    def empty(self) -> None:
        """Drop everything, what is in hand included. After a StoreError some of it may come again with the next start:
        files could neither be deleted, nor be said to be used up.
        """
        self._alive()
        self.syncing.let_go()
        self._close_reader()
        used = self.paths.meta.is_file()
        numbers = [*self._ends, self._write[0]]
        self._first += len(self._out)
        self._out.clear()
        self._finished.clear()
        self._ends.clear()
        self._write = (self._write[0] + used, 0)
        self._read = self._next = self._write
        self._writer.begin_anew()
        self.depth = 0
        self.syncing.begin(int(used))
        with ExitStack() as steps:
            steps.callback(self.sync)  # in the end, and whatever the disk refused
            left = queuefiles.use_up(self.files, self.paths, [*self._used_up, *numbers])
            self._used_up = [number for number in left if number != self._write[0]]
            if any(not queuefiles.spent(self.files, self.paths, number) for number in left):
                raise StoreError(f"files of the emptied queue {self.name} cannot be deleted")

    def delete(self) -> None:
        """Close, and leave no file but what was set aside. StoreError when something cannot be deleted."""
        self.syncing.let_go()
        self._close_reader()
        self._closed = True
        self.depth = 0
        with ExitStack() as steps:
            steps.callback(self.files.unlink, self.paths.meta)
            if queuefiles.use_up(self.files, self.paths, [*self._used_up, *self._ends, self._write[0]]):
                raise StoreError(f"files of the deleted queue {self.name} stay")

    def close(self) -> None:
        """Flush, and let go of the files. What is in hand is in the queue again when it is opened."""
        if self._closed:
            return
        try:
            if self.syncing.failed is None:
                self.sync()
            self._used_up = queuefiles.use_up(self.files, self.paths, self._used_up)
        finally:
            self.syncing.let_go()
            self._close_reader()
            self._closed = True

    def _alive(self) -> None:
        if self._closed:
            raise Closed(f"the queue {self.name} is closed")
        if self.syncing.failed is not None:
            raise StoreError(f"the queue {self.name} takes nothing in after a failed flush: {self.syncing.failed}")


def look(queue: DiskQueue, begin: Place | None = None) -> Iterator[tuple[Place, bytes | None]]:
    """What was not taken yet, from a place on, each with the place behind it; None for what is damaged. Nothing is taken,
    moved or set aside. StoreError when the disk cannot be read.
    """
    place = queue._next if begin is None else max(begin, queue._next)
    while not queue._closed and place < queue._write:
        number = place[0]
        if number in queue._ends or number == queue._write[0]:
            file, sums = RecordFile(queue.files, queue.paths.data(number)), queue._writer.sums
            try:
                if number != queue._write[0] or sums is None:
                    sums = queuefiles.load_sums(queue.files, queue.paths.sums(number))
                for behind, payload in _look_into(file, sums, place[1], queue._end(number), queue.sizes):
                    yield (number, behind), payload
            finally:
                file.close()
        place = (queue._following(number), 0)
        if place[0] <= number:
            return


def _look_into(
    file: RecordFile, sums: Sums | None, at: int, end: int, sizes: tuple[int, int]
) -> Iterator[tuple[int, bytes | None]]:
    """The payloads of one file between two places."""
    n = 0 if sums is None else sums.find(at)
    while at < end:
        if sums is None:
            record = file.record(at, end)
            good = queuefiles.believed(file, record, at, end, sizes)
            at = at + len(record) if record is not None and good else end
        elif n == len(sums) or sums.start(n) >= end:
            return
        else:
            following = min(end, sums.start(n + 1)) if n + 1 < len(sums) else end
            record = file.record(sums.start(n), following)
            good = record is not None and sums.sum_matches(n, record)
            at, n = following, n + 1
        yield at, record[LENGTH.size :] if record is not None and good else None


def _start_around(file: RecordFile, sums: Sums, n: int, at: int) -> int:
    """Where to read when no record starts at `at`: the one it lies in, or the next one."""
    if n:
        before = file.record(sums.start(n - 1), sums.start(n))
        if before is not None and sums.start(n - 1) + len(before) > at:
            return sums.start(n - 1)
    return sums.start(n)


def _is_start(file: RecordFile, at: int) -> bool:
    """Whether a record of a file without sums starts at `at`."""
    place = 0
    while place < at:
        record = file.record(place, at)
        if record is None:
            return False
        place += len(record)
    return True
