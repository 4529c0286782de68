"""Copying a log: a `Feeder` cuts the master's into blocks of whole records, a `Follower` appends them byte for byte.

    block:  count × (start in the block (4) | CRC-32 of the record (4)), and the records as they lie in the segment

The sums are those of the master's sidecar. The follower checks each record against its sum before it takes any of a block,
keeps the master's sum beside it, and derives everything else by `dispatch`, as for a message of its own.

A RocketMQ master sends pieces cut anywhere, without sums: `Pieces` makes blocks of them, whose sums are those of what came.
"""

# mypy: disable-error-code="no-any-return"
from __future__ import annotations

import logging

import cython

from penstock.errors import StoreError
from penstock.log.keyindex import refusal
from penstock.octets import Readable

if cython.compiled:
    from cython.cimports.penstock import words
    from cython.cimports.penstock.disk.segments import Segment
    from cython.cimports.penstock.log import status
    from cython.cimports.penstock.log.checksums import Sidecar
    from cython.cimports.penstock.log.commitlog import body_matches, measure
    from cython.cimports.penstock.log.consumequeue import ConsumeQueue
    from cython.cimports.penstock.log.draft import Draft
    from cython.cimports.penstock.log.store import LogStore
    from cython.cimports.penstock.octets import address, be32, be64, copy, crc32, find, put32, same, ube32
    from cython.cimports.penstock.wire import layout
else:
    from penstock import words
    from penstock.disk.segments import Segment
    from penstock.log import status
    from penstock.log.checksums import Sidecar
    from penstock.log.commitlog import body_matches, measure
    from penstock.log.consumequeue import ConsumeQueue
    from penstock.log.draft import Draft
    from penstock.log.store import LogStore
    from penstock.octets import address, be32, be64, copy, crc32, find, put32, same, ube32
    from penstock.wire import layout

log = logging.getLogger("penstock.log")

PIECED_RECORD_BYTES_MAX = 32 << 20  # so much is held of a record that is not whole yet


class Feeder:
    """Reads one log from `position` on, a block at a time; `checked_to`: sums below are checked, for the disk may have
    changed what lies there.
    """

    def __init__(self, store: LogStore, position: int) -> None:
        self.store = store
        self.position = position
        self.checked_to = store.end_position
        self.count = 0  # of the block
        self.size = 0
        self.begin = 0
        self.damaged = False  # one of its records does not hold at the master: it is copied as it is
        self.last = False  # the segment ends behind the block
        self._segment: Segment | None = None
        self._buffer = bytearray(layout.SUM_BYTES * words.BLOCK_RECORDS_MAX)
        self._sums = address(self._buffer)

    def next(self, most: int) -> bool:
        """Cut the next block, of at most so many bytes unless one record is larger; whether there is one. StoreError when
        retention has taken what stood there, or nothing can be made of it.
        """
        self.count = self.size = 0
        self.damaged = self.last = False
        self.begin = self.position
        store = self.store
        if self.position >= store.log.end:
            return False
        store.settle()
        segment = store.log.file.at(self.position)
        if segment is None:
            raise StoreError(f"the log begins at {store.log.file.first}, behind {self.position}")
        self._segment = segment
        at = self.position - segment.first
        stop = store.log.end - segment.first
        if stop > segment.size:
            stop = segment.size
        self._cut(segment, store.log.sums.get(segment.first), at, stop, most)
        self.position += self.size
        if self.last:
            self.position = segment.first + segment.size
        return True

    def _cut(self, segment: Segment, sidecar: Sidecar | None, at: int, stop: int, most: int) -> None:
        n = 0 if sidecar is None else sidecar.find(at)
        begin = at
        b = segment.base
        while at < stop and self.count < words.BLOCK_RECORDS_MAX:
            known = sidecar is not None and n < sidecar.count and sidecar.start(n) == at
            size = 0
            if known and segment.first + at >= self.checked_to and n + 1 < sidecar.count:  # type: ignore[union-attr]
                size = sidecar.start(n + 1) - at  # type: ignore[union-attr]  # appended by this run: the sums say where it ends
            if size <= 0 or size > stop - at:
                size = measure(b, at, segment.size - at, segment.first + at)
            if size == 0:
                self.last = True
                break
            if size < 0:
                size = 0
                if known:
                    size = self._torn(segment, sidecar, n, at, stop)
                if size == 0 or self.count > 0:
                    self.damaged = False  # of the next block
                    if self.count > 0:
                        break
                    raise StoreError(f"no record can be told at {segment.first + at} of the log")
            if self.count > 0 and at + size - begin > most:
                break
            if segment.first + at < self.checked_to or not known:
                crc = crc32(b, at, size, 0)
                if known and sidecar.sum(n) != crc:  # type: ignore[union-attr]
                    if self.count > 0:
                        break
                    self.damaged = True
                    self._found(segment.first + at)
            if known:
                crc = sidecar.sum(n)  # type: ignore[union-attr]
                n += 1
            put32(self._sums, self.count * layout.SUM_BYTES, at - begin)
            put32(self._sums, self.count * layout.SUM_BYTES + layout.LENGTH_BYTES, crc)
            self.count += 1
            at += size
            if self.damaged:  # alone: nothing that is checked on arrival goes unchecked with it
                break
        self.size = at - begin

    def _torn(self, segment: Segment, sidecar: Sidecar | None, n: int, at: int, stop: int) -> int:
        """How far a damaged record reaches, by the place of the next sum; 0 when that cannot be told."""
        following = stop
        if n + 1 < sidecar.count:  # type: ignore[union-attr]
            following = sidecar.start(n + 1)  # type: ignore[union-attr]
        if following <= at or following > stop:
            return 0
        self.damaged = True
        self._found(segment.first + at)
        log.error("a damaged record is copied as it is position=%d bytes=%d", segment.first + at, following - at)
        return following - at

    def _found(self, physical: int) -> None:
        if self.store.repair is not None:
            self.store.repair.found(physical)

    def parts(self) -> tuple[bytes, bytes | memoryview]:
        """The sums and the records of the block that was cut; these as they lie in the log."""
        sums = bytes(self._buffer[: self.count * layout.SUM_BYTES])
        if self.size == 0:
            return sums, b""
        segment = self._segment
        at = self.begin - segment.first  # type: ignore[union-attr]
        return sums, memoryview(segment.map)[at : at + self.size]  # type: ignore[union-attr]

    def block(self) -> bytes:
        """The same in one piece."""
        return b"".join(self.parts())


class Follower:
    """Appends to a log what its master has."""

    def __init__(self, store: LogStore) -> None:
        self.store = store
        self.draft = Draft()
        self.bad = -1  # the position of the record whose sum did not hold
        self._recent: list[ConsumeQueue | None] = [None] * words.RECENT_QUEUES

    def take(self, owner: bytearray, sums: int, count: int, end: int, damaged: bool) -> int:
        """Append the block owner[sums:end] at the log's end: OK; ILLEGAL and `bad`, and nothing is taken, when a sum does not
        hold; another `status` when it cannot be stored now.
        """
        b = address(owner)
        pos = sums + count * layout.SUM_BYTES
        if count <= 0 or pos >= end:
            return status.OK if count == 0 and pos == end else status.ILLEGAL
        store = self.store
        if not store.is_open or not store.healthy:
            return status.NOT_WRITABLE
        if not self._sound(b, pos, sums, count, end, damaged):
            return status.ILLEGAL
        if store.underived >= 0 and not self._derive_rest():
            return status.DISK_FULL
        first = store.log.end
        store.announce(end - pos)
        room = store.log.put_block(b, pos, end - pos, sums, count)
        if room:
            return room
        for n in range(count):
            at = pos + ube32(b, sums + n * layout.SUM_BYTES)
            crc = ube32(b, sums + n * layout.SUM_BYTES + layout.LENGTH_BYTES)
            if not self._derive(b, at, end, first + at - pos, crc, damaged):
                store.derived_to(first + at - pos)
                break
        store.settle()
        return status.OK

    def _sound(self, b: Readable, pos: int, sums: int, count: int, end: int, damaged: bool) -> bool:
        """Whether the block is made of `count` records, each where its sum says, each with its sum."""
        first = self.store.log.end
        following = pos
        self.bad = first
        if damaged and count != 1:
            return False
        for n in range(count):
            at = pos + ube32(b, sums + n * layout.SUM_BYTES)
            self.bad = first + following - pos
            if at != following:
                return False
            following = end
            if n + 1 < count:
                following = pos + ube32(b, sums + (n + 1) * layout.SUM_BYTES + 0)
            if following <= at or following > end:
                return False
            if damaged:
                continue
            size = measure(b, at, end - at, first + at - pos)
            if size != following - at:
                return False
            if crc32(b, at, size, 0) != ube32(b, sums + n * layout.SUM_BYTES + layout.LENGTH_BYTES):
                return False
        self.bad = -1
        return True

    def _derive(self, b: Readable, at: int, end: int, physical: int, crc: int, damaged: bool) -> bool:
        """All that follows from the record at b[at:]; False when the disk has no room for it now. One that is damaged stays a
        hole.
        """
        store = self.store
        d = self.draft
        if damaged:
            size = measure(b, at, end - at, physical)
            if size <= 0 or crc32(b, at, size, 0) != crc:
                store.count_damage(physical)
                return True
        d.load(b, at)
        d.tail_len = 0
        holes = find(b, d.props_pos, d.props_pos + d.props_len, 0) >= 0
        store.log.note(d.store_ms, physical + d.size if holes else 0)
        try:
            d.queue = self._queue_of(d)
        except StoreError as error:
            log.error("a copied record is of no queue position=%d error=%s", physical, error)
            return True
        try:
            if store.index is not None and (answer := store.index.room(2 + d.keys_len // 2)):
                raise refusal(answer)
            store.dispatch(d)
        except StoreError as error:  # the record is kept: the rest follows when there is room, or at the next start
            if store.files.refusals.is_news("copied"):
                log.error("a copied record is not in its queue yet position=%d error=%s", physical, error)
            return False
        if d.seq_len > 0 and store.sequences is not None:
            store.sequences.again(d.sequence(), d.queue.topic, d.queue_id, d.queue_offset, physical, d.size)
        return True

    def _queue_of(self, d: Draft) -> ConsumeQueue:
        """The queue of a loaded record, mostly one of those of the last records: queues stay while their store is open."""
        n = (d.queue_id + d.topic_len + d.topic[d.topic_pos + d.topic_len // 2]) & (words.RECENT_QUEUES - 1)
        queue = self._recent[n]
        if (
            queue is None
            or queue.queue_id != d.queue_id
            or queue.topic_len != d.topic_len
            or not same(queue.topic_at, 0, d.topic, d.topic_pos, d.topic_len)
        ):
            queue = self._recent[n] = self.store.queue(d.topic_name(), d.queue_id)
        return queue

    def _derive_rest(self) -> bool:
        """Derive what could not be when it was copied; whether all of it is now."""
        store = self.store
        at = store.underived
        while at < store.log.end:
            segment = store.log.file.at(at)
            sidecar = None if segment is None else store.log.sums.get(segment.first)
            n = -1 if sidecar is None else sidecar.find(at - segment.first)  # type: ignore[union-attr]
            if n < 0 or n >= sidecar.count or sidecar.start(n) != at - segment.first:  # type: ignore[union-attr]
                at += store.log.file.size - at % store.log.file.size  # retention took it, or the segment ends here
                continue
            following = sidecar.start(n + 1) if n + 1 < sidecar.count else segment.size  # type: ignore[union-attr]
            if not self._derive(
                segment.base, at - segment.first, following, at, sidecar.sum(n), True  # type: ignore[union-attr]
            ):  # fmt: skip
                store.derived_to(at)
                return False
            at = segment.first + following  # type: ignore[union-attr]
        store.derived_to(-1)
        return True

    def derive_again(self, physical: int) -> bool:
        """Let what follows from a record be there that was mended: its place in its queue, unless another message has that.
        Whether the record holds.
        """
        store = self.store
        segment = store.log.file.at(physical)
        size = -1 if segment is None else store.log.check(physical)
        if size <= 0:
            return False
        at = physical - segment.first  # type: ignore[union-attr]
        d = self.draft
        d.load(segment.base, at)  # type: ignore[union-attr]
        try:
            queue = store.queue(d.topic_name(), d.queue_id)
        except StoreError:
            return True
        if d.queue_offset >= queue.min_offset and not d.sys_flag & layout.SYS_HALF:
            entry = queue.entry(d.queue_offset)
            if (
                entry is None
                or entry[0] < store.log.file.first
                or store.log.size_at(entry[0]) != entry[1]
                or not store.log.stands_for(entry[0], d.queue_id, d.queue_offset)
            ):
                self._derive(segment.base, at, at + size, physical, 0, False)  # type: ignore[union-attr]
        store.notice(queue)
        return True

    def turn(self) -> int:
        """End the segment as the master did: OK, or why not now."""
        return int(self.store.log.turn())

    def begin_at(self, position: int) -> int:
        """Begin an empty log where the master's begins."""
        return int(self.store.log.begin_at(position))

    @property
    def empty(self) -> bool:
        """Whether there is nothing yet."""
        return not self.store.log.file.segments


class Pieces:
    """Appends to a log what comes in pieces. Only whole records are taken whose lengths, position and body sum hold.

    What stands at `passed` is no record at its master, either, however often it is asked: it is kept as it is, up to the next
    record that holds, with a sum that does not hold for it, so that no reader takes it for one.
    """

    def __init__(self, store: LogStore, passed: int = -1) -> None:
        self.follower = Follower(store)
        self._passed = passed
        self._sought = 1  # so far it was looked for
        self.store = store
        self.bad = -1  # where the log goes on with something else than a record
        self._held = bytearray()  # the beginning of a record
        self._skipped = 0  # bytes behind a segment's last record that are yet to come
        self._buffer = bytearray(layout.SUM_BYTES * words.BLOCK_RECORDS_MAX)
        self._sums = address(self._buffer)

    @property
    def position(self) -> int:
        """Where the next byte belongs."""
        return self.store.log.end - self._skipped + len(self._held)

    def take(self, owner: bytearray, pos: int, end: int) -> int:
        """Append what owner[pos:end] makes whole: OK; ILLEGAL and `bad` at something else than a record; another `status`
        when it cannot be stored now: then this object is of no use any more.
        """
        skipped = min(self._skipped, end - pos)
        self._skipped -= skipped
        self._held += memoryview(owner)[pos + skipped : end]
        outcome = status.OK
        going = True
        while going and outcome == status.OK:
            outcome, going = self._cut()
        return outcome

    def _cut(self) -> tuple[int, bool]:
        """Take the records that are whole, at most as many as a block has. How that went, and whether to go on."""
        b = address(self._held)
        total = len(self._held)
        size = self.store.log.file.size
        first = self.store.log.end
        at = 0
        count = 0
        found = 1  # 0: the segment ends here, -1: no record is here
        while count < words.BLOCK_RECORDS_MAX and total - at >= layout.BLANK_BYTES:
            found = self._whole(b, at, size - (first + at) % size, first + at)
            if found <= 0 or total - at < found:
                break
            if measure(b, at, found, first + at) != found or not body_matches(b, at):
                found = -1
                break
            put32(self._sums, count * layout.SUM_BYTES, at)
            put32(self._sums, count * layout.SUM_BYTES + layout.LENGTH_BYTES, crc32(b, at, found, 0))
            count += 1
            at += found
        if count > 0:
            table = count * layout.SUM_BYTES
            block = bytearray(table + at)
            copy(address(block), 0, self._sums, 0, table)
            copy(address(block), table, b, 0, at)
            outcome = self.follower.take(block, 0, count, table + at, False)
            if outcome != status.OK:
                self.bad = self.follower.bad
                return outcome, False
            self._held = self._held[at:]
        if found < 0 and first + at == self._passed:
            return self._pass(self._gap())
        if found < 0:
            self.bad = first + at
            return status.ILLEGAL, False
        if found > 0:
            return status.OK, count == words.BLOCK_RECORDS_MAX
        room = size - (first + at) % size
        outcome = self.follower.turn()
        if outcome == status.OK:
            gone = min(room, len(self._held))
            self._skipped = room - gone
            self._held = self._held[gone:]
        return outcome, True

    def _gap(self) -> int:
        """How many of the bytes held lie before the next record that holds, or before the end of the segment; 0 while that has
        not come, -1 when it never does.
        """
        b = address(self._held)
        total = len(self._held)
        size = self.store.log.file.size
        first = self.store.log.end
        room = size - first % size
        end = min(total, room)
        at = self._sought
        while at + layout.BLANK_BYTES <= end:
            magic = ube32(b, at + layout.MAGIC)
            if magic == layout.MAGIC_BLANK and be32(b, at) == room - at:
                return at
            if magic == layout.MAGIC_V1 or magic == layout.MAGIC_V2:
                if at + layout.RECORD_FIXED_BYTES > end:
                    break
                found = self._whole(b, at, room - at, first + at)
                if found > 0 and be64(b, at + layout.PHYSICAL) == first + at:
                    if at + found > end:
                        break
                    if measure(b, at, found, first + at) == found and body_matches(b, at):
                        return at
            at += 1
        self._sought = at
        return -1 if end == room or total > PIECED_RECORD_BYTES_MAX else 0

    def _pass(self, size: int) -> tuple[int, bool]:
        """Keep so many bytes that are no record. As `_cut`."""
        if size == 0:
            return status.OK, False
        if size < 0:
            self.bad = self._passed
            return status.ILLEGAL, False
        block = bytearray(layout.SUM_BYTES) + self._held[:size]
        to = address(block)
        put32(to, layout.LENGTH_BYTES, crc32(to, layout.SUM_BYTES, size, 0) ^ layout.CRC_MASK)
        log.error(
            "what is no record at a RocketMQ master either is passed over position=%d bytes=%d", self._passed, size
        )
        outcome = self.follower.take(block, 0, 1, layout.SUM_BYTES + size, True)
        if outcome == status.OK:
            self._held = self._held[size:]
            self._passed = -1
        return outcome, True

    def _whole(self, b: Readable, at: int, room: int, physical: int) -> int:
        """The size that the record at b[at:] says it has; 0 for the end of its segment, -1 for what is none."""
        size = be32(b, at)
        if ube32(b, at + layout.MAGIC) == layout.MAGIC_BLANK:
            return 0 if size == room else -1
        if size < layout.RECORD_FIXED_BYTES or size + layout.BLANK_BYTES > room or size > PIECED_RECORD_BYTES_MAX:
            return -1
        return size
