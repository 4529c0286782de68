"""An entry of the schedule: what a message of a queue topic, or of a log topic's channel, says of itself while it waits.

The properties are ours alone: fronts refuse them in what they are sent (`reserved`), and they count only in records that
this broker put under the timer topic for itself, which no sender can address.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from penstock.broker.topics import TIMER_TOPIC
from penstock.message import ReceivedMessage
from penstock.schedule.schedule import Due
from penstock.wire import names
from penstock.wire.names import RESERVED_PREFIX as RESERVED_PREFIX
from penstock.wire.record import decode_record

TOPIC_PROPERTY = names.RESERVED_PREFIX + "QUEUE"
CHANNEL_PROPERTY = names.RESERVED_PREFIX + "CHANNEL"
ID_PROPERTY = names.RESERVED_PREFIX + "ID"
ATTEMPTS_PROPERTY = names.RESERVED_PREFIX + "ATTEMPTS"
LANE_PROPERTY = (
    names.RESERVED_PREFIX + "LANE"
)  # which of its channel's streams a message given back with a delay stood in
PLACE_PROPERTY = names.RESERVED_PREFIX + "PLACE"  # and where
STAMP_PROPERTY = names.RESERVED_PREFIX + "STAMP"  # where the id is not the timestamp
SINCE_PROPERTY = names.RESERVED_PREFIX + "SINCE"  # the entry that it was first, where it was moved to another time
LEFT_PROPERTY = (
    names.RESERVED_PREFIX + "LEFT"
)  # a dead letter that is sent again: topic, channel, id and place it leaves
RESERVED = frozenset(
    (
        TOPIC_PROPERTY, CHANNEL_PROPERTY, ID_PROPERTY, ATTEMPTS_PROPERTY, LANE_PROPERTY, PLACE_PROPERTY, STAMP_PROPERTY,
        LEFT_PROPERTY, SINCE_PROPERTY,
    )
)  # fmt: skip
_MARK = TOPIC_PROPERTY.encode()  # in the bytes of each of ours
AGAIN_LANE = -1  # the lane of messages deferred before, whatever its number is


def reserved(names: Iterable[str]) -> str:
    """The first property that nobody outside may set, or nothing."""
    return next((name for name in names if name.startswith(RESERVED_PREFIX)), "")


class Left(NamedTuple):
    """Where a dead letter is taken from, when it is sent again."""

    topic: bytes
    channel: bytes
    id: int
    place: int

    def text(self) -> str:
        """As the record carries it."""
        return f"{self.topic.decode()} {self.channel.decode()} {self.id} {self.place}"


def _left(text: str) -> Left:
    topic, channel, id_, place = text.split(" ")
    return Left(topic.encode(), channel.encode(), _number(id_, 1 << 63), _number(place, 1 << 62))


class Deferred(msgspec.Struct, frozen=True):
    """`channel` empty: for every channel. `place` -1: it was published with a delay, or is a dead letter that `left`
    another topic. `since`: the schedule id that it had first, where it was moved to another time; 0: its own.
    """

    topic: bytes
    channel: bytes
    id: int
    attempts: int
    stamp_ns: int
    lane: int = 0
    place: int = -1
    left: Left | None = None
    since: int = 0

    def properties(self) -> dict[str, str]:
        """As the record carries it."""
        found = {
            TOPIC_PROPERTY: self.topic.decode(),
            CHANNEL_PROPERTY: self.channel.decode(),
            ID_PROPERTY: str(self.id),
            ATTEMPTS_PROPERTY: str(self.attempts),
        }
        if self.stamp_ns != self.id:
            found[STAMP_PROPERTY] = str(self.stamp_ns)
        if self.place >= 0:
            found[PLACE_PROPERTY] = str(self.place)
        if self.lane:
            found[LANE_PROPERTY] = str(self.lane)
        if self.left is not None:
            found[LEFT_PROPERTY] = self.left.text()
        if self.since:
            found[SINCE_PROPERTY] = str(self.since)
        return found


def deferred(message: ReceivedMessage) -> Deferred | None:
    """What a record of the schedule says; None when it is an ordinary message. ValueError when it makes no sense."""
    properties = message.properties
    if TOPIC_PROPERTY not in properties or properties.get(names.REAL_TOPIC) != TIMER_TOPIC.decode():
        return None
    message_id = _number(properties.get(ID_PROPERTY, "0"), 1 << 63)
    return Deferred(
        properties[TOPIC_PROPERTY].encode(),
        properties.get(CHANNEL_PROPERTY, "").encode(),
        message_id,
        _number(properties.get(ATTEMPTS_PROPERTY, "0"), 1 << 16),
        _number(properties.get(STAMP_PROPERTY, str(message_id)), 1 << 63),
        _number(properties.get(LANE_PROPERTY, "0"), 1 << 31),
        _number(properties.get(PLACE_PROPERTY, "-1"), 1 << 62),
        _left(properties[LEFT_PROPERTY]) if LEFT_PROPERTY in properties else None,
        _number(properties.get(SINCE_PROPERTY, "0"), 1 << 62),
    )


def deferred_of(due: Due) -> Deferred | None:
    """What an entry of the schedule says that belongs to the queue side; None for any other, or one without sense."""
    if due.damaged or _MARK not in due.record:  # a start asks of every entry, and most may be RocketMQ's
        return None
    message = decode_record(due.record, 0, decompress=False)
    try:
        return None if message is None else deferred(message)
    except ValueError:
        return None


def _number(text: str, limit: int) -> int:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal()) or len(digits) > 19 or not -2 < int(text) < limit:
        raise ValueError(f"no number for an entry of the schedule: {text!r}")
    return int(text)
