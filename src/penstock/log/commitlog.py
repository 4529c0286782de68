"""CommitLog: records one behind another in segments, in RocketMQ 4.9's bytes.

      0 total size (4)        28 own physical offset (8)         ..  reconsume times (4)
      4 magic DAA320A7 (4)    36 sys flag (4)                    ..  prepared transaction offset (8)
      8 body CRC-32 (4)       40 born time (8)                   ..  body length (4), body
     12 queue id (4)          48 born host (4 or 16) + port (4)  ..  topic length (1), topic
     16 flag (4)              ..  store time (8)                 ..  properties length (2), properties
     20 queue offset (8)      ..  store host (4 or 16) + port

A segment ends with a blank record: remaining size (4), magic CBD43194. A record is written only where eight bytes
stay free behind it, so there is always room for the blank. Sums over whole records stand in a sidecar (`checksums`).

Records gather in memory until `settle` hands them to the system: what fills pages of its own in one `pwrite`, which costs
half of faulting the same pages in; the rest, and what `pwrite` refuses, through the mapping, whose room is taken. Nobody is
answered, and nobody reads, before. Readers use the mapping: both show the same bytes.
"""

# mypy: disable-error-code="no-any-return"
from __future__ import annotations

import logging
from threading import Lock

import cython

from penstock.disk.files import is_full
from penstock.disk.quarantine import make_way, take_back
from penstock.disk.segments import Segment, SegmentedFile, segment_name
from penstock.errors import StoreError
from penstock.log.checksums import Checksums, Sidecar
from penstock.log.draft import Draft
from penstock.octets import Readable

if cython.compiled:
    from cython.cimports.penstock import words
    from cython.cimports.penstock.log import sidelayout, status
    from cython.cimports.penstock.octets import (
        address,
        be16,
        be32,
        be64,
        copy,
        crc32,
        fence,
        find,
        put8,
        put16,
        put32,
        put64,
        ube32,
    )
    from cython.cimports.penstock.wire import layout
else:
    from penstock import words
    from penstock.log import sidelayout, status
    from penstock.octets import (
        address,
        be16,
        be32,
        be64,
        copy,
        crc32,
        fence,
        find,
        put8,
        put16,
        put32,
        put64,
        ube32,
    )
    from penstock.wire import layout

log = logging.getLogger("penstock.log")

BLANK = 0
BAD = -1

GATHER_BYTES = 256 << 10  # are held back at most, unless one record is larger
WRITE_BYTES_MIN = 16 << 10  # less goes through the mapping, whose pages a thread has made ready
_JUDGED_BYTES = 1 << 20  # how many bytes tell in which way the next ones will mostly go


def measure(b: Readable, at: int, room: int, physical: int) -> int:
    """The size of the record at b[at:], of which `room` bytes may be looked at; BLANK (0) or BAD (-1).

    A record is taken for one when its magic, its own physical offset and all its lengths agree.
    """
    if room < layout.BLANK_BYTES:
        return -1
    total = be32(b, at)
    magic = ube32(b, at + layout.MAGIC)
    if magic == layout.MAGIC_BLANK:
        return 0 if total == room else -1
    if magic != layout.MAGIC_V1 and magic != layout.MAGIC_V2:
        return -1
    if total < layout.RECORD_FIXED_BYTES or total > room or be64(b, at + layout.PHYSICAL) != physical:
        return -1
    q = _body_length_at(be32(b, at + layout.SYS_FLAG))
    tl = 2 if magic == layout.MAGIC_V2 else 1
    if q + layout.LENGTH_BYTES > total:
        return -1
    body_len = be32(b, at + q)
    t = q + layout.LENGTH_BYTES + body_len
    if body_len < 0 or t + tl + 2 > total:
        return -1
    t += tl + (be16(b, at + t) if tl == 2 else b[at + t])
    if t + 2 > total:
        return -1
    props_len = be16(b, at + t)
    if t + 2 + props_len != total:
        return -1
    return total


def body_matches(b: Readable, at: int) -> bool:
    """Whether the body of a measured record has the sum it names. An empty one has none."""
    q = at + _body_length_at(be32(b, at + layout.SYS_FLAG))
    body_len = be32(b, q)
    crc = crc32(b, q + layout.LENGTH_BYTES, body_len, 0) & layout.CRC_MASK
    return body_len == 0 or crc == be32(b, at + layout.BODY_CRC)


def proves_itself(b: Readable, at: int) -> bool:
    """Whether a measured record whose body sum holds is whole, told without its own sum: what a power cut kept from the
    disk reads as zeros, and there is no zero byte in its topic and properties. One that has such bytes proves nothing.
    """
    t = at + _body_length_at(be32(b, at + layout.SYS_FLAG))
    t += layout.LENGTH_BYTES + be32(b, t)
    if ube32(b, at + layout.MAGIC) == layout.MAGIC_V2:
        tl = be16(b, t)
        t += 2
    else:
        tl = b[t]
        t += 1
    p = t + tl + 2
    return tl > 0 and find(b, t, t + tl, 0) < 0 and find(b, p, p + be16(b, t + tl), 0) < 0


def _body_length_at(sys: int) -> int:
    """Where the length of the body stands in a record with these hosts."""
    at = layout.BODY_LENGTH
    if sys & layout.SYS_BORN_IPV6:
        at += layout.HOST_V6_MORE
    if sys & layout.SYS_STORE_IPV6:
        at += layout.HOST_V6_MORE
    return at


class CommitLog:
    """Appends at `end`. Whoever appends calls `room` first, which may need a new segment, then `put`."""

    def __init__(
        self, file: SegmentedFile, sums: Checksums, store_host: bytes, body_max: int = layout.BODY_BYTES_MAX
    ) -> None:
        self.file = file
        self.body_max = body_max
        self.sums = sums
        self.end = 0
        self.unproven = 0  # behind the last record that does not prove itself
        self.store_ms = 0
        self.prepared: tuple[Segment, Sidecar] | None = None  # (segment, sidecar) made ahead
        self.making = Lock()  # held by whoever makes the next segment
        self._host_object = store_host
        self._host = address(store_host)
        self._host_len = len(store_host)
        self._segment: Segment | None = None
        self._base: memoryview = cython.NULL
        self._buffer = bytearray(GATHER_BYTES)
        self._gathered = address(self._buffer)
        self._room = GATHER_BYTES
        self._at = 0  # in the segment: where the next record goes
        self._settled = 0  # and up to where the system has them; the rest is gathered
        self.gather_bytes = GATHER_BYTES
        self.write_bytes_min = WRITE_BYTES_MIN
        self.streaming = False  # most goes by `pwrite`: pages made ready ahead would be of no use
        self._by_write = 0
        self._by_map = 0
        self._limit = 0
        self._backed = 0
        self.backing = Lock()  # held by whoever takes room for the segment at work

    def record_size(self, d: Draft) -> int:
        """Bytes of the draft as a record, or -1 when a part of it is too large."""
        if d.body_len > self.body_max or d.queue.topic_len > layout.TOPIC_BYTES_MAX:
            return -1
        d.all_props_len = d.props_len + d.tail_len
        if d.tail_len > 0 and d.props_len > 0 and d.props[d.props_pos + d.props_len - 1] != 2:
            d.all_props_len += 1
        if d.all_props_len > layout.PROPERTIES_BYTES_MAX:
            return -1
        return layout.RECORD_BARE_BYTES + d.born_len + self._host_len + d.body_len + d.queue.topic_len + d.all_props_len

    # ---- writing

    def seek(self, end: int) -> None:
        """Go on appending at end, which recovery has found."""
        self.end = end
        self._segment = segment = self.file.at(end)
        if segment is None:
            self._base = cython.NULL
            self._at = self._settled = self._limit = 0
            return
        self._base = segment.base
        self._at = self._settled = end - segment.first
        self._limit = segment.size
        self._backed = 0  # the first append looks
        segment.open_descriptor()
        sidecar = self.sums.get(segment.first)
        if sidecar is not None and sidecar.count > 0 and sidecar.start(sidecar.count - 1) >= self._at:
            sidecar.cut(self._at)
        if sidecar is None or sidecar.count > self._at // layout.RECORD_FIXED_BYTES + 1:  # more sums than records
            self.sums.drop(segment.first)
            self.sums.quarantine(segment.first)
            sidecar = self.sums.make(segment.first)
            sidecar.create(self._at)
        self.sums.turn(sidecar)

    def seek_reading(self, end: int) -> None:
        """The log ends here and is only read."""
        self.end = end

    def room(self, size: int, records: int) -> int:
        """0 when so many records of `size` bytes together can be put without a break; else DISK_FULL, NOT_WRITABLE,
        TOO_LARGE.
        """
        if self._at - self._settled + size > self.gather_bytes:
            self.settle()
            if size > self._room:
                self._buffer = bytearray(size)
                self._gathered = address(self._buffer)
                self._room = size
        remaining = self._limit - self._at
        size += layout.BLANK_BYTES
        if size > remaining:
            remaining = self._roll(size - layout.BLANK_BYTES)
            if remaining:
                return remaining
        if self._at + size > self._backed:
            remaining = self._back(size)
            if remaining:
                return remaining
        return self.sums.room(records)

    def _back(self, size: int) -> int:
        """Let so many bytes at the end have room on the disk: 0, DISK_FULL, NOT_WRITABLE. Mostly a thread has done it."""
        segment = self._segment
        if self._at + size > segment.allocated:  # type: ignore[union-attr]
            try:
                with self.backing:
                    segment.back(self._at + size)  # type: ignore[union-attr]
            except StoreError as error:
                return status.DISK_FULL if is_full(self.file.files, error) else status.NOT_WRITABLE
        self._backed = segment.allocated  # type: ignore[union-attr]
        return status.OK

    @property
    def backed_end(self) -> int:
        """Up to here the log has room on the disk."""
        segment = self._segment
        return self.end if segment is None else max(self.end, segment.first + segment.allocated)

    def _roll(self, size: int) -> int:
        """Close the segment with a blank record and go on in the next."""
        self.settle()
        if size + layout.BLANK_BYTES > self.file.size:
            return status.TOO_LARGE
        if self._base != cython.NULL and self._at + layout.BLANK_BYTES > self._backed:
            room = self._back(layout.BLANK_BYTES)
            if room:
                return room
        try:
            with self.making:
                if self.prepared is None:
                    self.prepared = self.make_next()
        except StoreError as error:
            return status.DISK_FULL if is_full(self.file.files, error) else status.NOT_WRITABLE
        segment, sidecar = self.prepared
        self.prepared = None
        if self._base != cython.NULL:
            put32(self._base, self._at, self._limit - self._at)
            put32(self._base, self._at + layout.MAGIC, layout.MAGIC_BLANK)
        self.file.adopt(segment)
        self.sums.turn(sidecar)
        self._segment = segment
        self._base = segment.base
        self._at = self._settled = 0
        self._limit = segment.size
        self._backed = segment.allocated
        self.end = segment.first
        return status.OK

    def make_next(self) -> tuple[Segment, Sidecar]:
        """The segment after the last and its sidecar, durable by name. For any thread. StoreError, DiskFull."""
        folder = self.file.folder
        make_way(self.file.files, folder.parent, folder / segment_name(self.file.end))
        segment = self.file.make_next()
        try:
            sidecar = self.sums.make(segment.first)
            self.sums.quarantine(segment.first)
            sidecar.create()
            sidecar.datasync()  # the head: entries are flushed later than the records they stand for
            self.file.files.sync_folder(self.file.folder)
            self.file.files.sync_folder(self.sums.folder)
        except StoreError:
            segment.close()
            take_back(self.file.files, segment.path)
            raise
        return segment, sidecar

    def keep_next(self, segment: Segment, sidecar: Sidecar) -> None:
        """Made ahead; `making` is held."""
        self.prepared = (segment, sidecar)

    def put(self, d: Draft, queue_offset: int, now_ms: int) -> None:
        """Gather the draft as a record at the end; `room` said 0. Its physical, queue_offset, store_ms and size are
        set.
        """
        b = self._gathered
        at = self._at - self._settled
        if now_ms < self.store_ms:
            now_ms = self.store_ms  # store times never decrease within a log
        self.store_ms = now_ms
        sys = d.sys_flag & ~(layout.SYS_BORN_IPV6 | layout.SYS_STORE_IPV6)
        if d.born_len == layout.HOST_V6_BYTES:
            sys |= layout.SYS_BORN_IPV6
        if self._host_len == layout.HOST_V6_BYTES:
            sys |= layout.SYS_STORE_IPV6
        put32(b, at, d.size)
        put32(b, at + layout.BODY_CRC, crc32(d.body, d.body_pos, d.body_len, 0) & layout.CRC_MASK)
        put32(b, at + layout.QUEUE_ID, d.queue.queue_id)
        put32(b, at + layout.FLAG, d.flag)
        put64(b, at + layout.QUEUE_OFFSET, queue_offset)
        put64(b, at + layout.PHYSICAL, self.end)
        put32(b, at + layout.SYS_FLAG, sys)
        put64(b, at + layout.BORN_MS, d.born_ms)
        copy(b, at + layout.BORN_HOST, d.born, 0, d.born_len)
        p = at + layout.BORN_HOST + d.born_len
        put64(b, p, now_ms)
        copy(b, p + layout.MS_BYTES, self._host, 0, self._host_len)
        p += layout.MS_BYTES + self._host_len - layout.RECONSUME_TIMES
        put32(b, p + layout.RECONSUME_TIMES, d.reconsume_times)
        put64(b, p + layout.PREPARED, d.prepared)
        put32(b, p + layout.BODY_LENGTH, d.body_len)
        copy(b, p + layout.BODY, d.body, d.body_pos, d.body_len)
        p += layout.BODY + d.body_len
        put8(b, p, d.queue.topic_len)
        copy(b, p + 1, d.queue.topic_at, 0, d.queue.topic_len)
        p += 1 + d.queue.topic_len
        put16(b, p, d.all_props_len)
        copy(b, p + 2, d.props, d.props_pos, d.props_len)
        if d.tail_len > 0:
            put8(b, p + 2 + d.props_len, 2)  # the separator, unless the tail covers it
            copy(b, p + 2 + d.all_props_len - d.tail_len, d.tail, d.tail_pos, d.tail_len)
        if find(b, p + 2, p + 2 + d.all_props_len, 0) >= 0:
            self.unproven = self.end + d.size
        put32(b, at + layout.MAGIC, layout.MAGIC_V1)
        crc = crc32(b, at, d.size, 0)
        self.sums.put(self._at, crc)
        d.physical = self.end
        d.queue_offset = queue_offset
        d.store_ms = now_ms
        d.queue_id = d.queue.queue_id
        self._at += d.size
        self.end += d.size

    def put_block(self, b: Readable, pos: int, size: int, sums: int, count: int) -> int:
        """Gather `count` whole records b[pos:pos+size] as they are, with the sums at b[sums:] (start in the block, CRC-32);
        0, or as `room`. ILLEGAL where this segment has no room for them: a master's segment of the same size had it.
        """
        if self._at + size + layout.BLANK_BYTES > self._limit:
            return status.ILLEGAL
        room = self.room(size, count)
        if room:
            return room
        copy(self._gathered, self._at - self._settled, b, pos, size)
        for n in range(count):
            at = sums + n * layout.SUM_BYTES
            self.sums.put(self._at + ube32(b, at), ube32(b, at + layout.LENGTH_BYTES))
        self._at += size
        self.end += size
        return status.OK

    def note(self, store_ms: int, unproven: int) -> None:
        """What a gathered record says: when it was stored, and (not 0) where it ends if it does not prove itself."""
        if store_ms > self.store_ms:
            self.store_ms = store_ms
        if unproven > self.unproven:
            self.unproven = unproven

    def turn(self) -> int:
        """End the segment here, as its master did, and go on in the next; 0, or as `room`."""
        return self._roll(0)

    def begin_at(self, position: int) -> int:
        """Let an empty log begin with the segment at this position; 0, or as `room`."""
        if self.file.segments:
            return status.ILLEGAL
        with self.making:
            if self.prepared is not None and self.prepared[0].first != position:
                self._forget_prepared()
            self.file.start_at(position)
            self.end = self.file.end
        return self._roll(0)

    def _forget_prepared(self) -> None:
        """What was made ahead is of no use."""
        if self.prepared is not None:
            for part in self.prepared:
                part.close()
            for part in self.prepared:
                self.file.files.unlink(part.path)
            self.prepared = None

    def settled_end(self) -> int:
        """Below this position the system has everything: it outlives the process."""
        return self.end - (self._at - self._settled)

    def prefer_writes(self) -> None:
        """Hand over by calls whatever is a page or more: where two processes share the time of a machine turns are small, and
        each page that small turns reach through the mapping is a fault that reads ahead.
        """
        self.write_bytes_min = words.PAGE_BYTES
        self.streaming = True

    def settle(self) -> None:
        """Hand over to the system what was gathered. Before anything of it is answered, read or flushed.

        What stands on the page that the last records ended on goes last and through the mapping, each magic number behind the
        rest of its record: that page may be on its way to the disk, and one that was written back with a magic number has all
        before it, as has everything on the pages behind.
        """
        size = self._at - self._settled
        if size == 0:
            return
        head = (words.PAGE_BYTES - self._settled % words.PAGE_BYTES) % words.PAGE_BYTES
        if head > size:
            head = size
        if size - head >= self.write_bytes_min or (self.streaming and size > head):
            self._by_write += size
            self._write(head, size)
        else:
            self._by_map += size
            self._lay(head, size)
        self._lay(0, head)
        self._settled = self._at
        if self._by_write + self._by_map > _JUDGED_BYTES:
            self.streaming = self._by_write > self._by_map
            self._by_write = self._by_map = 0

    def _write(self, begin: int, end: int) -> None:
        """These of the gathered bytes in one call. An error there is none to the sender: room is taken, so they go through
        the mapping, as everything once did.
        """
        segment = self._segment
        at = self._settled + begin
        try:
            segment.files.write(segment.fd, at, memoryview(self._buffer)[begin:end])  # type: ignore[union-attr]
        except Exception as error:
            log.error("the log's pwrite failed, it goes on through its mapping error=%s", error)
            self._lay(begin, end)

    def _lay(self, begin: int, end: int) -> None:
        """These of the gathered bytes through the mapping, each record's magic number behind the rest of it."""
        to = self._base
        b = self._gathered
        at = self._settled
        p = 0
        while p < end:  # from record to record
            following = p + be32(b, p) if be32(b, p) > 0 else end  # a damaged record may say anything
            stop = min(following, end)
            start = max(p + layout.BLANK_BYTES, begin)  # behind size and magic number
            if start < stop:
                copy(to, at + start, b, start, stop - start)
            fence()
            start = max(p, begin)
            stop = min(p + layout.BLANK_BYTES, end)
            if start < stop:
                copy(to, at + start, b, start, stop - start)
            p = following

    # ---- reading

    def size_of(self, physical: int) -> int:
        """The size of a record of this turn, which nobody need look at to know that it is one."""
        segment = self._segment
        at = physical - segment.first  # type: ignore[union-attr]
        return be32(self._gathered, at - self._settled) if at >= self._settled else be32(self._base, at)

    def size_at(self, physical: int) -> int:
        """The size of a record that begins at physical, by its lengths alone; BLANK, or BAD."""
        if physical < 0 or physical >= self.end:
            return -1
        if self._at > self._settled:
            self.settle()
        segment = self.file.at(physical)
        if segment is None:
            return -1
        at = physical - segment.first
        return measure(segment.base, at, segment.size - at, physical)

    def check(self, physical: int) -> int:
        """As size_at, and BAD as well when a sum does not hold. Does not look at `end`: recovery is finding it."""
        if self._at > self._settled:
            self.settle()
        segment = self.file.at(physical)
        if segment is None:
            return -1
        at = physical - segment.first
        size = measure(segment.base, at, segment.size - at, physical)
        if size > 0:
            if not body_matches(segment.base, at):
                return -1
            verdict = self.sums.verdict(segment.first, at, crc32(segment.base, at, size, 0))
            if verdict == sidelayout.BROKEN or (verdict == sidelayout.MISSING and not proves_itself(segment.base, at)):
                return -1
        return size

    def stands_for(self, physical: int, queue_id: int, offset: int) -> bool:
        """Whether the record there says itself that it is this one of its queue."""
        if self._at > self._settled:
            self.settle()
        segment = self.file.at(physical)
        if segment is None:
            return False
        at = physical - segment.first
        return (
            be32(segment.base, at + layout.QUEUE_ID) == queue_id
            and be64(segment.base, at + layout.QUEUE_OFFSET) == offset
        )

    def bytes_at(self, physical: int, size: int) -> bytes:
        """A copy of so many bytes of one segment."""
        if self._at > self._settled:
            self.settle()
        segment = self.file.at(physical)
        assert segment is not None
        at = physical - segment.first
        return bytes(segment.map[at : at + size])

    def close(self) -> None:
        self._forget_prepared()
        self._segment = None
        self._base = cython.NULL
        self._at = self._settled = self._limit = 0
        self.file.close()
        self.sums.close()
