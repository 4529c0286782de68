"""The head of a frame of replication, and the fixed parts that each turn writes and reads: positions and ACKs.

    type (1) | flags (1) | count (2) | length of what follows these 16 bytes (4) | epoch (4)
    | CRC-32 of the 12 bytes before and of the fixed part (4) | fixed part | variable part

Numbers are big-endian. The CRC covers what a frame says of positions; records have sums of their own. `wire.ha` has the rest.
"""

from __future__ import annotations

import cython

from penstock.errors import WireError

if cython.compiled:
    from cython.cimports.penstock.octets import (
        address,
        be16,
        be64,
        blank_array,
        crc32,
        put8,
        put16,
        put32,
        put64,
        ube32,
    )
    from cython.cimports.penstock.wire import hawords
else:
    from penstock.octets import address, be16, be64, blank_array, crc32, put8, put16, put32, put64, ube32
    from penstock.wire import hawords

# How long the fixed part is, by type.
FIXED_BYTES = {
    hawords.HELLO: 132, hawords.ACCEPT: 88, hawords.REFUSE: 4, hawords.START: 8, hawords.DATA: hawords.POSITIONS_BYTES,
    hawords.BEAT: 52, hawords.META: 12, hawords.ACK: hawords.ACK_BYTES, hawords.MAY_I: 12, hawords.YES: 12, hawords.TAKE: 8,
    hawords.TAKEN: 8, hawords.GIVE: 16, hawords.WANT: 16, hawords.SPOOL: 8, hawords.SPOOLED: 8,
}  # fmt: skip
_fixed_of = bytes(FIXED_BYTES.get(kind, hawords.UNKNOWN) for kind in range(256))


class Head:
    """The first 16 bytes of a frame, checked; `fixed` is where its fixed part begins, `variable` and `end` likewise."""

    def __init__(self, kind: int, flags: int, entries: int, epoch: int, fixed: int, variable: int, end: int) -> None:
        self.kind = kind
        self.flags = flags
        self.entries = entries
        self.epoch = epoch
        self.fixed = fixed
        self.variable = variable
        self.end = end


class Positions:
    """The positions in each DATA and BEAT: of what follows, the end of the master's log, what is confirmed, its beginning."""

    def __init__(self, position: int, written: int, confirmed: int, confirmed_flushed: int, begin: int) -> None:
        self.position = position
        self.written = written
        self.confirmed = confirmed
        self.confirmed_flushed = confirmed_flushed
        self.begin = begin


class Ack:
    """How far a slave is, and how much room its disk has."""

    def __init__(self, written: int, flushed: int, dispatched: int, free: int) -> None:
        self.written = written
        self.flushed = flushed
        self.dispatched = dispatched
        self.free = free


def read_head(data: bytearray | memoryview | bytes, pos: int, total: int) -> tuple[Head | None, int]:
    """The head of the frame at pos, or None and how many bytes it needs (0: not known yet). WireError.

    A frame whose type we do not know and that may be passed over comes with an empty fixed part.
    """
    if total - pos < hawords.HEAD_BYTES:
        return None, 0
    b = address(data)
    kind = b[pos]
    length = ube32(b, pos + hawords.LENGTH_AT)
    fixed = _fixed_of[kind]
    known = fixed != hawords.UNKNOWN
    if not known:
        fixed = 0
        if kind & hawords.SKIPPED == 0:
            raise WireError(f"a frame of the unknown type {kind:#x}")
    if length > hawords.FRAME_BYTES_MAX or (known and length < fixed):
        raise WireError(f"a frame of type {kind:#x} with {length} bytes")
    at = pos + hawords.HEAD_BYTES
    if total >= at + fixed:  # said before the rest is waited for
        told = crc32(b, at, fixed, crc32(b, pos, hawords.SUM_AT, 0))
        if told != ube32(b, pos + hawords.SUM_AT):
            raise WireError("the sum of a frame's head does not hold")
    if total < at + length:
        return None, hawords.HEAD_BYTES + length
    flags, entries, epoch = b[pos + hawords.FLAGS_AT], be16(b, pos + hawords.COUNT_AT), ube32(b, pos + hawords.EPOCH_AT)
    return Head(kind, flags, entries, epoch, at, at + fixed, at + length), 0


def head(kind: int, epoch: int, fixed: bytes, size: int, flags: int, count: int) -> bytes:
    """The head and the fixed part of a frame whose variable part has this size."""
    n = len(fixed)
    frame = blank_array(hawords.HEAD_BYTES + n)
    frame[hawords.HEAD_BYTES :] = fixed
    _finish(address(frame), kind, flags, count, n, size, epoch)
    return bytes(frame)


def _finish(b: memoryview, kind: int, flags: int, count: int, fixed: int, size: int, epoch: int) -> None:
    """Write the head before a fixed part that is there."""
    put8(b, 0, kind)
    put8(b, hawords.FLAGS_AT, flags)
    put16(b, hawords.COUNT_AT, count)
    put32(b, hawords.LENGTH_AT, fixed + size)
    put32(b, hawords.EPOCH_AT, epoch)
    put32(b, hawords.SUM_AT, crc32(b, hawords.HEAD_BYTES, fixed, crc32(b, 0, hawords.SUM_AT, 0)))


def _put_positions(b: memoryview, told: Positions) -> None:
    put64(b, hawords.HEAD_BYTES, told.position)
    put64(b, hawords.HEAD_BYTES + hawords.WRITTEN_AT, told.written)
    put64(b, hawords.HEAD_BYTES + hawords.CONFIRMED_AT, told.confirmed)
    put64(b, hawords.HEAD_BYTES + hawords.CONFIRMED_FLUSHED_AT, told.confirmed_flushed)
    put64(b, hawords.HEAD_BYTES + hawords.BEGIN_AT, told.begin)


def data_head(epoch: int, positions: Positions, count: int, size: int, flags: int) -> bytes:
    """The beginning of a DATA frame: `count` sums and `size` bytes of records follow."""
    frame = blank_array(hawords.HEAD_BYTES + hawords.POSITIONS_BYTES)
    b = address(frame)
    _put_positions(b, positions)
    _finish(b, hawords.DATA, flags, count, hawords.POSITIONS_BYTES, hawords.SUM_BYTES * count + size, epoch)
    return bytes(frame)


def read_positions(data: bytearray | bytes, pos: int) -> Positions:
    """The positions of a DATA or BEAT."""
    b = address(data)
    return Positions(
        be64(b, pos), be64(b, pos + hawords.WRITTEN_AT), be64(b, pos + hawords.CONFIRMED_AT),
        be64(b, pos + hawords.CONFIRMED_FLUSHED_AT), be64(b, pos + hawords.BEGIN_AT),
    )  # fmt: skip


def ack(epoch: int, told: Ack, flags: int = 0) -> bytes:
    """How far the slave is."""
    frame = blank_array(hawords.HEAD_BYTES + hawords.ACK_BYTES)
    b = address(frame)
    put64(b, hawords.HEAD_BYTES, told.written)
    put64(b, hawords.HEAD_BYTES + hawords.FLUSHED_AT, told.flushed)
    put64(b, hawords.HEAD_BYTES + hawords.DISPATCHED_AT, told.dispatched)
    put64(b, hawords.HEAD_BYTES + hawords.FREE_AT, told.free)
    _finish(b, hawords.ACK, flags, 0, hawords.ACK_BYTES, 0, epoch)
    return bytes(frame)


def read_ack(data: bytearray | bytes, pos: int) -> Ack:
    """The positions of an ACK."""
    b = address(data)
    return Ack(
        be64(b, pos),
        be64(b, pos + hawords.FLUSHED_AT),
        be64(b, pos + hawords.DISPATCHED_AT),
        be64(b, pos + hawords.FREE_AT),
    )
