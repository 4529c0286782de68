"""What a channel's source is, for those who know the kind of its topic."""

from __future__ import annotations

from penstock.delivery.channel import Channel
from penstock.delivery.cursor import CursorSource, Lane
from penstock.delivery.passing import PassingSource
from penstock.delivery.source import MemorySource
from penstock.log.stream import LogStream
from penstock.words import IN_FLIGHT, WAITING

SEARCH_MAX = 4_096
STAMP_BYTES = 8  # a message's data begins with its timestamp


def cursors(channel: Channel) -> CursorSource:
    """The source of a channel of a log topic, or of a queue topic on disk."""
    source = channel.source
    assert isinstance(source, CursorSource)
    return source


def lanes(channel: Channel) -> list[Lane]:
    """The places it reads at; none where no cursor file is kept."""
    source = channel.source
    return source.lanes if isinstance(source, CursorSource) else []


def queue_lanes(channel: Channel) -> list[Lane]:
    """Those of the message queues of a log topic: a lane's number is the queue's. Behind them may be one of deferred messages."""
    return [lane for lane in lanes(channel) if isinstance(lane.stream, LogStream)]


def lag_ms(channel: Channel, now_ms: int) -> int | None:
    """How long the oldest message that is not finished has been stored; 0 when there is none. Deferred ones do not
    count. None: it is not known without a search of more than `SEARCH_MAX` messages, or of the disk.
    """
    source, stamps = channel.source, []
    if isinstance(source, CursorSource):
        for lane in source.lanes:
            place = lane.stream.next(max(lane.file.committed, lane.stream.begin()))
            if place < lane.stream.end() and source.point_at(lane.number, place):
                stamps.append(source.stamp_ns)
        return _age_ms(stamps, now_ms)
    slots = channel.slots
    if slots.count and slots.capacity > SEARCH_MAX:
        return None
    for slot in range(slots.capacity if slots.count else 0):
        if slots.state[slot] in (IN_FLIGHT, WAITING) and source.point_at(slots.lane[slot], slots.place[slot]):
            stamps.append(source.stamp_ns)
    if isinstance(source, MemorySource) and source.depth():
        oldest = source.oldest()
        if not oldest:
            return _age_ms(stamps, now_ms) if stamps else None
        stamps.append(int.from_bytes(oldest[:STAMP_BYTES]))
    return _age_ms(stamps, now_ms)


def _age_ms(stamps: list[int], now_ms: int) -> int:
    return max(0, now_ms - min(stamps) // 1_000_000) if stamps else 0


def memory(channel: Channel) -> MemorySource:
    """The source of a channel of level `memory`."""
    source = channel.source
    assert isinstance(source, MemorySource)
    return source


def finish_ahead(channel: Channel, lane: int, place: int) -> None:
    """A place that the channel has not come to is done: it passes over it."""
    source = channel.source
    assert isinstance(source, CursorSource | PassingSource)
    source.finish_ahead(lane, place)
