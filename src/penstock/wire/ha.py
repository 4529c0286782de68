"""Frames of replication: what a master and a slave say to each other on the HA port (docs/replication-protocol.md).

    slave  ▶ FF 'PHA' | version (2) | flags (2)                  8 bytes: RocketMQ takes them for a negative report
    master ▶ FF 'PHB' | version (2) | flags (2) | nonce (16)    24 bytes
    then frames, whose heads are written and read in `haframe`

Numbers are big-endian.

RocketMQ's own protocol is bare of all that:

    slave  ▶ end of its log (8), again and again          master ▶ position (8) | size (4) | bytes of the log, cut anywhere
"""

from __future__ import annotations

import hmac
import struct
from collections.abc import Iterable
from hashlib import sha256
from typing import NamedTuple

from penstock.errors import WireError
from penstock.wire import fastjson
from penstock.wire.fastjson import JsonObject
from penstock.wire.haframe import FIXED_BYTES, Head, Positions, data_head, head
from penstock.wire.hawords import (
    ACCEPT,
    BEAT,
    FRAME_BYTES_MAX,
    GIVE,
    HEAD_BYTES,
    HELLO,
    MAY_I,
    META,
    POSITIONS_BYTES,
    REFUSE,
    SPOOL,
    SPOOLED,
    START,
    SUM_BYTES,
    TAKE,
    TAKEN,
    WANT,
    YES,
)

VERSION = 2
SECRET_WANTED = 1  # a flag of the master's greeting

OPENER = b"\xffPHA" + struct.pack(">HH", VERSION, 0)
GREETING_BYTES = 24
JSON_BYTES_MAX = 1 << 20
NONCE_BYTES = 16
ID_BYTES = 16
PROOF_BYTES = 32
TAG_BYTES = 8
REPORT_BYTES = 8
BARE_HEAD_BYTES = 12
BARE_BYTES = 32 << 10  # of the log in one piece, as RocketMQ's masters send it
BARE_BYTES_MAX = 4 << 20  # a RocketMQ slave has no buffer for more
SIGN_BIT = 0x80  # of the first byte of a number

SEALED, GONE, THERE = 1, 2, 4  # flags of SPOOL: nothing is added; drop it; these are all there are
SPOOL_FLUSHED, SPOOL_FAILED = 1, 2  # flags of SPOOLED
OFFSETS, CURSORS, TABLES, CHANNELS, ENDS, CHANGES, CHANNEL_CHANGES = 1, 3, 4, 5, 6, 7, 8  # kinds of META

WRONG_SET, WRONG_SEGMENTS, NOT_MASTER, BELOW_SAFE, NEWER_EPOCH, WRONG_VERSION, DIVERGED, BEHIND = range(2, 10)

_MASTER_IS = "; the master is at "

_NUMBER = struct.Struct(">I")
_HELLO = struct.Struct(">16s16s16sqqqqqqI")
_ACCEPT = struct.Struct(">16s8sqqqII")
_BEAT = struct.Struct(">qI")
_META = struct.Struct(">Iq")
META_BYTES_MAX = FRAME_BYTES_MAX - _META.size
_WANT = struct.Struct(">qII")
_FAVOUR = struct.Struct(">QI")
_REPORT = struct.Struct(">q")
_BARE = struct.Struct(">qi")
EPOCH = struct.Struct(">I8sq")


class Epoch(NamedTuple):
    """One mastership: its number, its random tag, and where in the log it begins."""

    number: int
    tag: bytes
    start: int


class Hello(NamedTuple):
    """What a slave says of itself."""

    nonce: bytes
    set_id: bytes
    store_id: bytes
    loss: int
    segment_size: int
    begin: int
    written: int
    flushed: int
    safe: int
    epoch: int
    epochs: tuple[Epoch, ...]
    about: JsonObject


class Accept(NamedTuple):
    """What a master answers: how much of the slave's log it shares, and where its own stands."""

    set_id: bytes
    tag: bytes
    cut_to: int
    begin: int
    written: int
    block_sum: int
    block_size: int
    epochs: tuple[Epoch, ...]
    about: JsonObject


class Wanted(NamedTuple):
    """A record by its place; size and CRC-32 are 0 where they are not known."""

    position: int
    size: int
    crc: int


class Spool(NamedTuple):
    """A piece of a spool, which belongs at `at` of its file."""

    token: str
    at: int
    data: bytes
    sealed: bool
    gone: bool
    there: bool  # its data are the tokens of all spools


class Spooled(NamedTuple):
    """A slave has so much of a spool."""

    token: str
    size: int
    flushed: bool
    failed: bool


# -- the opening ---------------------------------------------------------------------------------------------------------


def greeting(nonce: bytes, secret: bool) -> bytes:
    """What a master answers to the opener."""
    return b"\xffPHB" + struct.pack(">HH", VERSION, SECRET_WANTED if secret else 0) + nonce


def read_greeting(data: bytes) -> tuple[bytes, bool]:
    """The master's nonce, and whether it wants a secret. WireError."""
    if len(data) != GREETING_BYTES or data[:4] != b"\xffPHB":
        raise WireError("no greeting of a master")
    version, flags = struct.unpack_from(">HH", data, 4)
    if version != VERSION:
        raise WireError(f"the master speaks version {version} of replication, we speak {VERSION}")
    return data[8:], bool(flags & SECRET_WANTED)


def check_opener(data: bytes) -> None:
    """WireError when these 8 bytes do not open our protocol."""
    if data[:4] != OPENER[:4]:
        raise WireError("no slave of ours: RocketMQ's bare protocol is not served")
    if data[:6] != OPENER[:6]:
        raise WireError("a slave that speaks another version of replication")


def proof(secret: bytes, who: bytes, nonce: bytes, rest: bytes) -> bytes:
    """Whoever knows the secret can say this of a frame's rest, for this nonce of the other side."""
    return hmac.new(secret, who + nonce + rest, sha256).digest()


def proves(data: bytes, secret: bytes, who: bytes, nonce: bytes) -> bool:
    """Whether what follows the head of a HELLO or ACCEPT begins with the right proof of its rest."""
    return hmac.compare_digest(data[:PROOF_BYTES], proof(secret, who, nonce, data[PROOF_BYTES:]))


# -- frames --------------------------------------------------------------------------------------------------------------


def frame(kind: int, epoch: int, fixed: bytes, variable: bytes = b"", *, flags: int = 0, count: int = 0) -> bytes:
    """A whole frame."""
    return head(kind, epoch, fixed, len(variable), flags, count) + variable


def _epochs(epochs: Iterable[Epoch]) -> bytes:
    return b"".join(EPOCH.pack(*epoch) for epoch in epochs)


def _read_epochs(data: bytes, count: int) -> tuple[tuple[Epoch, ...], JsonObject]:
    size = count * EPOCH.size
    if len(data) < size or len(data) - size > JSON_BYTES_MAX:
        raise WireError("a table of epochs that is cut short")
    epochs = tuple(Epoch(*EPOCH.unpack_from(data, at)) for at in range(0, size, EPOCH.size))
    return epochs, read_json(data[size:])


def read_json(data: bytes) -> JsonObject:
    """The JSON object of a frame. WireError."""
    try:
        found = fastjson.loads(data)
    except (ValueError, RecursionError) as error:
        raise WireError("a frame whose JSON cannot be read") from error
    if not isinstance(found, dict):
        raise WireError("a frame whose JSON is no object")
    return found


def hello(told: Hello, secret: bytes, nonce: bytes) -> bytes:
    """The frame, with the proof for the master's nonce."""
    variable = _epochs(told.epochs) + fastjson.dumps(told.about)
    fixed = _HELLO.pack(*told[:10])
    fixed = proof(secret, b"slave", nonce, fixed + variable) + fixed
    return frame(HELLO, told.epoch, fixed, variable, count=len(told.epochs))


def read_hello(data: bytes, count: int) -> Hello:
    """What follows the head of a HELLO. WireError."""
    epochs, about = _read_epochs(data[FIXED_BYTES[HELLO] :], count)
    return Hello._make((*_HELLO.unpack_from(data, PROOF_BYTES), epochs, about))


def accept(told: Accept, epoch: int, secret: bytes, nonce: bytes) -> bytes:
    """The frame, with the proof for the slave's nonce."""
    variable = _epochs(told.epochs) + fastjson.dumps(told.about)
    fixed = _ACCEPT.pack(*told[:7])
    fixed = proof(secret, b"master", nonce, fixed + variable) + fixed
    return frame(ACCEPT, epoch, fixed, variable, count=len(told.epochs))


def read_accept(data: bytes, count: int) -> Accept:
    """What follows the head of an ACCEPT. WireError."""
    epochs, about = _read_epochs(data[FIXED_BYTES[ACCEPT] :], count)
    return Accept._make((*_ACCEPT.unpack_from(data, PROOF_BYTES), epochs, about))


def refuse(epoch: int, reason: int, text: str, master: str = "") -> bytes:
    """The slave cannot follow, and why; where slaves connect to the master, if that is known and another node."""
    text += f"{_MASTER_IS}{master}" if master else ""
    return frame(REFUSE, epoch, _NUMBER.pack(reason), text.encode())


def read_refuse(data: bytes) -> tuple[int, str]:
    """(reason, text)"""
    return _NUMBER.unpack_from(data)[0], data[4:].decode("utf-8", "replace")


def master_in(text: str) -> str:
    """The master's address in the text of a REFUSE; empty where it names none."""
    return text.rpartition(_MASTER_IS)[2] if _MASTER_IS in text else ""


def start(epoch: int, position: int) -> bytes:
    """The slave wants what stands from here on."""
    return frame(START, epoch, struct.pack(">q", position))


def read_start(data: bytes) -> int:
    """The position."""
    position: int = struct.unpack_from(">q", data)[0]
    return position


def data(epoch: int, positions: Positions, sums: bytes, records: bytes, *, flags: int = 0) -> bytes:
    """Records with their sums."""
    return data_head(epoch, positions, len(sums) // SUM_BYTES, len(records), flags) + sums + records


def beat(epoch: int, positions: Positions, wall_ms: int, lease_ms: int = 0, *, flags: int = 0) -> bytes:
    """The positions alone, and the time."""
    fixed = data_head(epoch, positions, 0, 0, flags)[HEAD_BYTES:] + _BEAT.pack(wall_ms, lease_ms)
    return frame(BEAT, epoch, fixed, flags=flags)


def take(epoch: int, position: int) -> bytes:
    """The slave is to be the master of a log that ends there."""
    return frame(TAKE, epoch, struct.pack(">q", position))


def taken(epoch: int, position: int) -> bytes:
    """It is."""
    return frame(TAKEN, epoch, struct.pack(">q", position))


def read_wall(data: bytearray | bytes, pos: int) -> int:
    """The sender's wall clock, in ms, in a BEAT whose positions begin there."""
    wall_ms, _ = _BEAT.unpack_from(data, pos + POSITIONS_BYTES)
    return int(wall_ms)


def meta(epoch: int, kind: int, position: int, body: bytes) -> bytes:
    """What does not stand in the log, to be applied when the log is at `position`."""
    return frame(META, epoch, _META.pack(kind, position), body, count=1)


def read_meta(data: bytes) -> tuple[int, int, bytes]:
    """(kind, position, body)"""
    kind, position = _META.unpack_from(data)
    return kind, position, data[_META.size :]


def want(epoch: int, told: Wanted) -> bytes:
    """The record does not hold here."""
    return frame(WANT, epoch, _WANT.pack(*told))


def give(epoch: int, told: Wanted, record: bytes) -> bytes:
    """The record as it is here; none: there is no sound one."""
    return frame(GIVE, epoch, _WANT.pack(*told), record)


def read_wanted(data: bytes) -> tuple[Wanted, bytes]:
    """What a WANT or GIVE is about, and the record."""
    return Wanted(*_WANT.unpack_from(data)), data[_WANT.size :]


def spool(epoch: int, token: str, at: int, data: bytes, *, sealed: bool) -> bytes:
    """More of a spool; `sealed`: nothing comes behind."""
    name = token.encode()
    return frame(SPOOL, epoch, struct.pack(">q", at), name + data, flags=SEALED if sealed else 0, count=len(name))


def spool_gone(epoch: int, token: str) -> bytes:
    """The master needs it no more."""
    name = token.encode()
    return frame(SPOOL, epoch, struct.pack(">q", 0), name, flags=GONE, count=len(name))


def spools_there(epoch: int, tokens: list[str]) -> bytes:
    """All there are: a slave drops the others."""
    return frame(SPOOL, epoch, struct.pack(">q", 0), " ".join(tokens).encode(), flags=THERE)


def read_spool(head: Head, data: bytes) -> Spool:
    """What follows the head of a SPOOL."""
    at, rest = read_start(data), data[8:]
    name, flags = rest[: head.entries].decode("ascii", "replace"), head.flags
    return Spool(name, at, rest[head.entries :], bool(flags & SEALED), bool(flags & GONE), bool(flags & THERE))


def spooled(epoch: int, told: Spooled) -> bytes:
    """A slave has it."""
    flags = (SPOOL_FLUSHED if told.flushed else 0) | (SPOOL_FAILED if told.failed else 0)
    return frame(SPOOLED, epoch, struct.pack(">q", told.size), told.token.encode(), flags=flags)


def read_spooled(head: Head, data: bytes) -> Spooled:
    """What follows the head of a SPOOLED."""
    flags = head.flags
    token = data[8:].decode("ascii", "replace")
    return Spooled(token, read_start(data), bool(flags & SPOOL_FLUSHED), bool(flags & SPOOL_FAILED))


def may_i(epoch: int, number: int, for_ms: int) -> bytes:
    """The engine does not answer: may the master go on for so long? A question has a number."""
    return frame(MAY_I, epoch, _FAVOUR.pack(number, for_ms))


def yes(epoch: int, number: int, for_ms: int) -> bytes:
    """This slave does not stand before so much time has passed since it read the question."""
    return frame(YES, epoch, _FAVOUR.pack(number, for_ms))


def read_favour(data: bytes) -> tuple[int, int]:
    """(number, for how long in ms) of a MAY_I or a YES."""
    number, for_ms = _FAVOUR.unpack_from(data)
    return number, for_ms


# -- RocketMQ's protocol -------------------------------------------------------------------------------------------------


def is_bare(data: bytearray | bytes) -> bool:
    """Whether the first eight bytes of a slave are a report: a position, which is not negative."""
    return data[0] < SIGN_BIT


def is_echo(data: bytearray | bytes) -> bool:
    """Whether these bytes are the opener: a RocketMQ master, which takes it for a position, sends it back after 5 s."""
    return data[: len(OPENER)] == OPENER


def report(position: int) -> bytes:
    """A slave's log ends there."""
    return _REPORT.pack(position)


def read_report(data: bytearray | bytes, pos: int) -> int:
    """The position."""
    position: int = _REPORT.unpack_from(data, pos)[0]
    return position


def bare_head(position: int, size: int) -> bytes:
    """So many bytes of the log follow, which belong there; none: that is where the next ones do."""
    return _BARE.pack(position, size)


def read_bare_head(data: bytearray | bytes, pos: int) -> tuple[int, int]:
    """(position, size). WireError."""
    position, size = _BARE.unpack_from(data, pos)
    if position < 0 or not 0 <= size <= BARE_BYTES_MAX:
        raise WireError(f"a piece of {size} bytes at {position} of a log")
    return position, size
