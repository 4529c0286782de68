"""Messages in flight to this client over NSQ, each until it is settled: what is done for each of them, compiled."""

from __future__ import annotations

import time
from functools import partial
from typing import Protocol

from penstock.client import nsqframes
from penstock.client.aio.delivery import Handed, Owner
from penstock.client.aio.nsqconnection import NsqConnection
from penstock.client.results import Outcome
from penstock.message import ReceivedMessage

_BEGUN_LATE = 4  # a part of its timeout: when so much is over as its work begins, it gets the whole again


class Reader(Owner, Protocol):
    """Who reads the channel."""

    def settle(self, hand: InFlight, message: ReceivedMessage, outcome: Outcome) -> None:
        """Tell the broker what became of a message that is not done."""


class InFlight:
    """A message in flight to this client (a `Hand`)."""

    def __init__(self, reader: Reader, connection: NsqConnection, message_id: str, now_s: float) -> None:
        self._reader = reader
        self.connection = connection
        self.message_id = message_id
        self.touched_s = now_s
        self.keep_until_s = float("inf")
        self.settled = False

    @property
    def gone(self) -> bool:
        return self.settled or self.connection.closed

    @property
    def owner(self) -> Reader:
        return self._reader

    def begin(self, for_s: float | None) -> None:
        now_s = time.monotonic()  # the loop's clock, for any thread
        self.keep_until_s = now_s if for_s is None else now_s + for_s
        if now_s - self.touched_s > self.connection.msg_timeout_s / _BEGUN_LATE:
            self.connection.soon(partial(self.touch, now_s))

    def touch(self, now_s: float) -> None:
        """A whole timeout from now."""
        if not self.gone:
            self.touched_s = now_s
            self.connection.send(nsqframes.touch(self.message_id))

    def close(self) -> None:
        """It is settled: nothing more is said of it."""
        self.settled = True

    async def extend(self, message: ReceivedMessage) -> None:
        self.touch(time.monotonic())

    async def settle(self, message: ReceivedMessage, outcome: Outcome) -> None:
        self._reader.settle(self, message, outcome)


def begin_all(
    reader: Reader, connection: NsqConnection, messages: list[ReceivedMessage], now_s: float
) -> list[InFlight]:
    """These messages came: a hand for each."""
    return [InFlight(reader, connection, message.nsq_id, now_s) for message in messages]


def close_all(done: list[Handed], in_flight: set[InFlight]) -> dict[NsqConnection, list[str]]:
    """These are settled: their ids by the connections they came on. Those that were settled before are left out."""
    ids: dict[NsqConnection, list[str]] = {}
    for handed in done:
        hand: InFlight = handed.hand  # type: ignore[assignment]
        if hand.settled:
            continue
        hand.settled = True
        in_flight.discard(hand)
        found = ids.get(hand.connection)
        if found is None:
            found = ids[hand.connection] = []
        found.append(hand.message_id)
    return ids
