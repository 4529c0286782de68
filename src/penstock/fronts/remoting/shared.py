"""What the sessions of one broker share: its store and topics, and the buffers in which one request is prepared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import cython

from penstock.broker.broker import Broker
from penstock.delivery.waiters import Outcome
from penstock.wire import names
from penstock.wire.answers import Answers
from penstock.wire.layout import PROPERTIES_BYTES_MAX
from penstock.wire.outbox import Outbox

if cython.compiled:
    from cython.cimports.penstock import words
    from cython.cimports.penstock.log.draft import Draft
    from cython.cimports.penstock.log.reading import ReadResult
    from cython.cimports.penstock.octets import address
else:
    from penstock import words
    from penstock.log.draft import Draft
    from penstock.log.reading import ReadResult
    from penstock.octets import address

if TYPE_CHECKING:
    from penstock.broker.clock import BrokerClock
    from penstock.histogram import Histogram
    from penstock.log.store import LogStore


class Unanswered(Protocol):
    """A session with answers that wait for a flush."""

    def seal(self) -> bytes:
        """The answers of this turn that wait."""
        raise NotImplementedError

    def seal_copied(self) -> tuple[bytes, bool]:
        """Those that wait for slaves, and whether for their disks."""
        raise NotImplementedError

    def settled(self, answers: bytes, outcome: Outcome) -> None:
        """What they waited for has come, or never will."""

    def copied(self, answers: bytes, outcome: Outcome) -> None:
        """The same of slaves."""

    def alone(self, answers: bytes, outcome: Outcome) -> None:
        """There is no slave that could have it; `outcome` of the flush."""


class Shared:
    """One request is carried out at a time: `draft`, `result`, `raw` and `text` belong to it."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.store: LogStore = broker.store
        self._time: BrokerClock = broker.time
        self.answers = Answers(broker.store_host)
        self.draft = Draft()
        self.result = ReadResult()
        self._handed: Histogram = broker.core.handed_log
        self.raw = Outbox()
        self.text = Outbox()  # the properties text that is stored
        self.body_max = broker.config.max_message_size
        self.properties_max = min(broker.config.max_properties_size, PROPERTIES_BYTES_MAX)
        self.limits = broker.limits
        self.hold_enabled = broker.config.long_polling_enable
        self.picky = broker.config.min_in_sync > 1  # level `pair` may have to be refused
        self._cluster = f"{names.CLUSTER}\x01{broker.config.cluster_name}".encode()
        self.cluster = address(self._cluster)
        self.cluster_len = len(self._cluster)
        self._searched = names.SEARCHED
        self.searched = address(self._searched)
        self.blocked = False  # level `os`: unflushed bytes are older than the promised second
        self.holding: list[Unanswered] = []  # sessions with answers that wait for a flush that is not asked for yet

    def update(self) -> None:
        """The first thing in each turn."""
        self.blocked = self.store.blocked(self._time.mono_ms)

    def hand(self, stored_ms: int) -> None:
        """An answer hands out messages; the first of them was stored then."""
        self._handed.add_ns((self._time.now_ms - stored_ms) * words.NS_A_MS)

    def take_holding(self) -> list[Unanswered]:
        """The sessions with answers that wait for a flush that is not asked for yet."""
        holding, self.holding = self.holding, []
        return holding
