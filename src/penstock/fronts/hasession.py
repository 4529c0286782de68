"""What both sides of a connection of replication have in common: frames in, bytes out, a connection that is not silent."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Protocol

import cython

from penstock.broker.broker import Broker
from penstock.errors import WireError
from penstock.fronts.haexchange import Exchange
from penstock.wire import ha
from penstock.wire.fastjson import JsonObject
from penstock.wire.outbox import Part

if cython.compiled:
    from cython.cimports.penstock.wire import hawords
    from cython.cimports.penstock.wire.haframe import Head, read_head
else:
    from penstock.wire import hawords
    from penstock.wire.haframe import Head, read_head

log = logging.getLogger("penstock.ha")

BEAT_MS = 500
PACE_MS = 5  # what nobody waits for is said so late, with what has come meanwhile
SILENT_MS = 10_000  # then the connection is dead
LAST_BYTES = 4 << 10  # of records that both sides compare before anything is sent
# Of a frame before the peer has proved who it is: a thousand epochs (20 KB) and, of a master, the addresses of a hundred nodes.
OPENING_BYTES_MAX = 1 << 17
JOINED_BYTES_MAX = 16 << 10  # more is written from where it lies


class SessionsFront(Protocol):
    """Who has made a session, and is told of its end."""

    broker: Broker

    def gone(self, session: HaSession) -> None:
        """Its connection is."""


class HaSession:
    """What the two sides have in common: frames in, bytes out, a connection that is not silent."""

    def __init__(self, front: SessionsFront, remote: str, wake: Callable[[], None]) -> None:
        self._made_by = front
        self.broker = front.broker
        self.store = front.broker.store
        self.copies = front.broker.copies
        self.time = front.broker.time
        self.beat_ms, self.silent_ms = BEAT_MS, SILENT_MS
        self.remote = remote
        self.need = 0
        self.closing = False
        self.trusted = False  # the peer has proved that it knows the secret
        self.nonce = os.urandom(ha.NONCE_BYTES)
        self.heard_ms = self.time.mono_ms
        self.spoke_ms = self.time.mono_ms
        self._wake = wake
        self._out: list[Part] = []
        self._opened = False
        self.exchange: Exchange | None = None  # of damaged records, with a peer that knows that

    def fresh(self) -> bool:
        """Whether there is more to be said than records, which may wait."""
        return False

    def feed(self, owner: bytearray, total: int) -> int:
        """Carry out every whole frame. WireError: no peer of ours."""
        self.heard_ms = self.time.mono_ms
        pos = 0
        if not self._opened:
            pos = self._open(owner, total)
            if not pos:
                return 0
            self._opened = True
        while pos < total and not self.closing:
            head, need = read_head(owner, pos, total)
            if need > OPENING_BYTES_MAX and not self.trusted:
                raise WireError(f"a first frame of {need} bytes")
            if head is None:
                self.need = need
                return pos
            if head.kind & hawords.SKIPPED == 0:
                self.frame(head, owner)
            elif not self.trusted:
                raise WireError("a frame to be passed over, of a peer that has proved nothing")
            pos = head.end
        self.need = 0
        return total

    def _open(self, owner: bytearray, total: int) -> int:
        """The bytes before the first frame: how many they are, or 0 while they are not all there."""
        raise NotImplementedError

    def frame(self, head: Head, owner: bytearray) -> None:
        """One whole frame."""
        raise NotImplementedError

    def body(self, head: Head, owner: bytearray) -> bytes:
        """What follows the head of a frame, as an object."""
        return bytes(memoryview(owner)[head.fixed : head.end])

    def say(self, data: Part) -> None:
        """Send it at the end of the turn."""
        self._out.append(data)
        self.spoke_ms = self.time.mono_ms
        self._wake()

    def sayer(self) -> Callable[[Part], None]:
        """`say`, for others."""
        me = self  # compiled, an object whose method is bound; of its own type it would be a C function
        return me.say

    def take(self) -> bytes:
        """What is to be written now."""
        out, self._out = self._out, []
        return b"".join(out)

    def take_parts(self) -> bytes | list[Part]:
        """The same, as parts where it is much."""
        out, self._out = self._out, []
        size = 0
        for part in out:
            size += len(part)
        return out if size > JOINED_BYTES_MAX else b"".join(out)

    def end(self) -> None:
        """Close behind what was said."""
        self.closing = True
        self._wake()

    def look(self, mono_ms: int) -> None:
        """Close a connection that is silent, keep ours from being so."""
        if mono_ms - self.heard_ms > self.silent_ms and not self.closing:
            log.warning("replication connection closed peer=%s reason=silent for %d ms", self.remote,
                        mono_ms - self.heard_ms)  # fmt: skip
            self.end()
        elif mono_ms - self.spoke_ms >= self.beat_ms:
            self.beat()

    def asks(self) -> int:
        """The epoch in which the peer can be asked for records; 0: not now."""
        return 0

    def exchange_with(self, about: JsonObject) -> None:
        """The peer has said this of itself, and its log is ours: damaged records may be asked of it, if it knows that."""
        if about.get("repairs") is True and self.broker.repairs is not None:
            self.exchange = Exchange(self.broker.repairs, self.sayer())

    def exchanged(self, head: Head, owner: bytearray, epoch: int) -> bool:
        """Carry out a WANT or a GIVE of this epoch; False when the frame is none."""
        if head.kind not in (hawords.WANT, hawords.GIVE) or self.exchange is None or head.epoch != epoch:
            return False
        self.exchange.hear(head, self.body(head, owner), self.time.mono_ms)
        return True

    def beat(self) -> None:
        """Say that we are there."""

    def end_turn(self, mono_ms: int) -> None:
        """Say what this turn has brought."""

    def lost(self) -> None:
        """The connection is gone."""
        self.closing = True
        if self.exchange is not None:
            self.exchange.lost()
        self._made_by.gone(self)
