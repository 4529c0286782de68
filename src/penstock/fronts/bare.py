"""Replication in RocketMQ 4's own protocol, which says nothing but positions and bytes: a RocketMQ slave of ours, and we as the
slave of a RocketMQ master.

Neither side proves who it is, so both are only for addresses that `ha_rocketmq` names. A RocketMQ slave gets what is safe: what
no master of this set ever cuts off again, so that its log remains the beginning of ours whoever that is. It is never in sync:
it does not say what is on its disk. A RocketMQ master has no epochs: a node of a set of ours does not follow it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from penstock.access.users import address_matches
from penstock.broker.copies import Copies
from penstock.broker.mastership import Mastership
from penstock.broker.replica import Replica
from penstock.config import BrokerConfig, parts
from penstock.errors import WireError
from penstock.fronts.hasession import HaSession, SessionsFront
from penstock.log import status
from penstock.log.follow import Pieces
from penstock.log.store import LogStore
from penstock.wire import ha

log = logging.getLogger("penstock.ha")

BEAT_MS = 5_000
SILENT_MS = 20_000
STUMBLES_MAX = 20  # connections, a second apart
WINDOW_BYTES = 4 << 20  # sent and not reported
TURN_BYTES = 1 << 20


def admitted(config: BrokerConfig, remote: str) -> bool:
    """Whether RocketMQ's protocol is spoken with the peer at this address."""
    host = remote.rpartition(":")[0].strip("[]")
    return any(address_matches(pattern, host) for pattern in parts(config.ha_rocketmq))


def stands(store: LogStore, position: int) -> bool:
    """Whether a piece of this log that was sent can have ended there: before a record, at whole pieces of a large one, or
    behind the last of a segment.
    """
    first = position - position % store.log.file.size
    sidecar = store.log.sums.get(first)
    at = position - first
    if at == 0 or sidecar is None:
        return True
    n = sidecar.find(at)
    if n < sidecar.count and sidecar.start(n) == at:
        return True
    if n == 0:
        return False
    inside = at - sidecar.start(n - 1)
    return inside >= store.log.size_at(first + sidecar.start(n - 1)) or inside % ha.BARE_BYTES == 0


def piece_end(store: LogStore, position: int, limit: int) -> int:
    """Where a piece ends that begins at this position: with a record if one ends within reach."""
    first = position - position % store.log.file.size
    sidecar = store.log.sums.get(first)
    end = position + ha.BARE_BYTES
    if sidecar is not None:
        n = sidecar.find(end - first + 1)
        if n > 0 and first + sidecar.start(n - 1) > position:
            end = first + sidecar.start(n - 1)
    return min(end, limit, first + store.log.file.size)


class RocketmqSlave:
    """A RocketMQ slave that has connected to us."""

    def __init__(self, store: LogStore, replica: Replica, copies: Copies, remote: str) -> None:
        self._store = store
        self._replica = replica
        self._copies = copies
        self.remote = remote
        self.position = -1  # of what it is sent next
        self._reported = 0

    def hear(self, owner: bytearray, total: int) -> int:
        """Its reports; how many bytes they are. The newest counts. WireError."""
        whole = total - total % ha.REPORT_BYTES
        if whole:
            if self.position < 0:
                self._begin(ha.read_report(owner, 0))
            told = ha.read_report(owner, whole - ha.REPORT_BYTES)
            if not 0 <= told <= self.position:
                raise WireError(f"a RocketMQ slave that reports {told} of {self.position}")
            self._reported = max(self._reported, told)
            self._copies.bare[self.remote] = told
        return whole

    def _begin(self, told: int) -> None:
        store, safe = self._store, self.safe
        begin = store.log.file.first if store.log.file.segments else 0
        if store.following:
            raise WireError("a RocketMQ slave follows masters only, and this broker is a slave")
        if told != 0 and not begin <= told <= safe:
            raise WireError(f"a RocketMQ slave whose log ends at {told}: ours is from {begin} to {safe}")
        if told != 0 and not stands(store, told):
            raise WireError(f"a RocketMQ slave whose log ends at {told}, where no record of ours begins")
        self.position = self._reported = told or begin
        log.info("a RocketMQ slave follows peer=%s position=%d behind=%d", self.remote, self.position,
                 store.end_position - self.position)  # fmt: skip

    @property
    def safe(self) -> int:
        """Nothing below is ever cut off."""
        return self._replica.safe(self._store.flushed_position, self._copies.confirmed)

    @property
    def overtaken(self) -> bool:
        """Whether retention has taken what it lacks; the log says so."""
        begin = self._store.min_position
        if not 0 <= self.position < begin:
            return False
        log.error("a RocketMQ slave lacks what retention has taken: empty it peer=%s position=%d begin=%d",
                  self.remote, self.position, begin)  # fmt: skip
        return True

    def next(self) -> bytes:
        """What it is sent in this turn."""
        store, safe = self._store, self.safe
        most = min(safe, self.position + TURN_BYTES, self._reported + WINDOW_BYTES)
        said = []
        while 0 <= self.position < most:
            end = piece_end(store, self.position, safe)
            said += [
                ha.bare_head(self.position, end - self.position),
                store.log.bytes_at(self.position, end - self.position),
            ]
            self.position = end
        return b"".join(said)

    def beat(self) -> bytes:
        """It is told that we are there."""
        return ha.bare_head(self.position, 0) if self.position >= 0 else b""

    def lost(self) -> None:
        """Its connection is gone."""
        self._copies.bare.pop(self.remote, None)


class Stumbles:
    """How often no sound record came at one place: a bit that flips on the way does not do so there again and again."""

    def __init__(self) -> None:
        self._position = -1
        self._times = 0

    def count(self, position: int) -> None:
        """Once more, there."""
        self._times = self._times + 1 if position == self._position else 1
        self._position = position

    @property
    def passed(self) -> int:
        """The place that is passed over; -1: none."""
        return self._position if self._times >= STUMBLES_MAX else -1


class FollowingFront(SessionsFront, Protocol):
    """What a slave's connection is part of."""

    mastership: Mastership
    stumbles: Stumbles


class RocketmqMaster(HaSession):
    """Our connection to a RocketMQ master."""

    beat_ms = BEAT_MS
    silent_ms = SILENT_MS

    def __init__(self, front: FollowingFront, remote: str, wake: Callable[[], None]) -> None:
        super().__init__(front, remote, wake)
        self._mastership = front.mastership
        self._stumbles = front.stumbles
        self._pieces = Pieces(self.store, front.stumbles.passed)
        self.running = False  # it has sent something that makes sense
        self._said = (-1, -1)
        self._end = 0
        self._report()

    def feed(self, owner: bytearray, total: int) -> int:
        """Take every piece. WireError."""
        self.heard_ms = self.broker.mono_ms
        pos = 0
        while not self.closing:
            if total - pos < ha.BARE_HEAD_BYTES:
                self.need = 0
                return pos
            position, size = ha.read_bare_head(owner, pos)
            begin = pos + ha.BARE_HEAD_BYTES
            if total - begin < size:
                self.need = ha.BARE_HEAD_BYTES + size
                return pos
            self._take(position, owner, begin, begin + size)
            pos = begin + size
        return total

    def _take(self, position: int, owner: bytearray, begin: int, end: int) -> None:
        pieces, store = self._pieces, self.store
        if pieces.follower.empty:
            if begin == end:
                return
            size = store.log.file.size
            if position % size or pieces.follower.begin_at(position) != status.OK:
                raise WireError(f"a log that begins at {position} cannot be copied in segments of {size} bytes")
        if position != pieces.position:
            raise WireError(f"the RocketMQ master goes on at {position}, our log ends at {pieces.position}")
        if not self.running:
            self.running = True
            self._mastership.hear_master(True)
            log.info("following a RocketMQ master=%s position=%d", self.remote, position)
        self._end = position + end - begin
        outcome = pieces.take(owner, begin, end)
        if outcome == status.ILLEGAL:
            self.broker.copies.count_bad()
            self._stumbles.count(pieces.bad)
            raise WireError(
                f"no sound record of a RocketMQ master at {pieces.bad}: it is damaged, or its segments are not of "
                f"{store.log.file.size} bytes (mapped_file_size_commit_log)"
            )
        if outcome != status.OK:
            log.error("the log cannot be copied now status=%d position=%d", outcome, store.end_position)
            self.end()

    def end_turn(self, mono_ms: int) -> None:
        if self.closing:
            return
        store, copies = self.store, self.broker.copies
        if (store.end_position, store.flushed_position) != self._said:
            self._report()
            written, flushed = self._said
            copies.told(written, min(written, flushed))
        if self.running:
            copies.hear(self.remote, max(self._end, store.end_position), self.heard_ms)

    def _report(self) -> None:
        store = self.store
        self._said = store.log.settled_end(), store.flushed_position
        self.say(ha.report(self._said[0]))

    def beat(self) -> None:
        self._report()

    def lost(self) -> None:
        if self.running:
            self._mastership.hear_master(False)
        super().lost()
