"""What the NSQ connections of one broker share: its settings and topics, the time of the turn, and the heartbeats."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sized
from typing import Protocol

import cython

from penstock.access.rights import Rights as UserRights
from penstock.broker.broker import Broker
from penstock.broker.nsq.queueing import Queueing
from penstock.fronts.nsq.layers import Layer
from penstock.tls import Tls
from penstock.wire.nsq import OK_FRAME

if cython.compiled:
    from cython.cimports.penstock.broker.clock import BrokerClock
    from cython.cimports.penstock.delivery.channel import Channel
    from cython.cimports.penstock.disk.gathering import Gathering
    from cython.cimports.penstock.octets import address
else:
    from penstock.broker.clock import BrokerClock
    from penstock.delivery.channel import Channel
    from penstock.disk.gathering import Gathering
    from penstock.octets import address

BEATS_MIN = 1_000  # entries before those of closed connections are taken out of the heap
BEATS_SPARE = 4  # times as many as there are connections


class Rights(Protocol):
    """What AUTH granted a connection."""

    identity: str
    identity_url: str

    @property
    def rules(self) -> Sized: ...
    def grants(self, permission: bytes, topic: bytes, channel: bytes, mono_ms: int) -> bool: ...


class Asking(Protocol):
    """A connection whose rights are asked for, and again when they have grown old."""

    remote: str
    certificate: str
    ended: bool
    layers: list[Layer]

    def grant(self, rights: Rights) -> None:
        """It has these from now on."""


class Beating(Protocol):
    """A connection, as the heartbeats see it."""

    due_number: int

    def number_beat(self, number: int) -> None:
        """Where it stands among those that are due."""

    def beat(self, mono_ms: int) -> int:
        """Do what is due; when to look again (0: never)."""


Ask = Callable[[Asking, bytes, Callable[["Rights | None"], None]], None]


class Shared:
    """`update` is called at the beginning of each turn, `tick` when a heartbeat may be due."""

    def __init__(
        self,
        broker: Broker,
        tls: Tls | None = None,
        ask: Ask | None = None,
        users: UserRights | None = None,
    ) -> None:
        self.broker = broker
        self.config = broker.config
        self.limits = broker.limits
        self.queueing: Queueing = broker.queueing
        self.time: BrokerClock = broker.time
        self._flush = broker.queueing.flush
        self.gathering: Gathering = broker.queueing.folder.pool.gathering
        self.tls = tls
        self.ask_authority = ask
        self.rejected: dict[bytes, int] = {}
        self.expiring = bool(broker.config.auth_http_address)  # what an auth server grants runs out
        self.users = None if self.expiring else users
        self.strict = self.expiring  # publishers need a right
        self.look_at_users()
        self.blocked = False
        self.healthy = True
        self.mono_ms = broker.mono_ms
        self.now_ns = broker.now_ns
        self.ok = OK_FRAME
        self.ok_at = address(OK_FRAME)
        self._beats: list[tuple[int, int]] = []
        self._due: dict[int, Beating] = {}  # number in `_beats` → who; one that left is no longer held
        self._number = 0

    def look_at_users(self) -> None:
        """There may be users now."""
        self.strict = self.expiring or (self.users is not None and self.users.on)

    def update(self) -> None:
        """The first thing in each turn."""
        time, flush = self.time, self._flush
        self.mono_ms = time.mono_ms
        self.now_ns = time.now_ns
        self.blocked = flush.blocked()
        self.healthy = flush.healthy

    def look_at(self, session: Beating, due_ms: int) -> None:
        """Look whether this session is due for a heartbeat then."""
        self._number += 1
        self._due.pop(session.due_number, None)
        session.number_beat(self._number)
        self._due[self._number] = session
        heapq.heappush(self._beats, (due_ms, self._number))

    def forget(self, session: Beating) -> None:
        """A connection is gone: nothing here keeps its session alive."""
        self._due.pop(session.due_number, None)
        if len(self._beats) > BEATS_MIN and len(self._beats) > BEATS_SPARE * len(self._due):
            self._beats = [beat for beat in self._beats if beat[1] in self._due]
            heapq.heapify(self._beats)

    def tick(self) -> int | None:
        """Heartbeats that are due; when the next one is."""
        beats, mono_ms = self._beats, self.mono_ms
        while beats and beats[0][0] <= mono_ms:
            session = self._due.pop(heapq.heappop(beats)[1], None)
            if session is None:
                continue
            again_ms = session.beat(mono_ms)
            if again_ms:
                self.look_at(session, max(again_ms, mono_ms + 1))
        return beats[0][0] if beats else None

    def left(self, channel: Channel) -> None:
        """A consumer left a channel: an ephemeral one goes with its last."""
        topic = self.queueing.topics.get(channel.topic_name)
        if channel.ephemeral and not channel.consumers and topic is not None:
            topic.delete_channel(channel.name)
        elif channel.waiting_count:
            self.queueing.mark_channel(channel)
