"""What a channel's source is, for those who know the kind of its topic."""

from __future__ import annotations

from penstock.delivery.channel import Channel
from penstock.delivery.cursor import CursorSource, Lane
from penstock.delivery.passing import PassingSource
from penstock.delivery.source import MemorySource


def cursors(channel: Channel) -> CursorSource:
    """The source of a channel of a log topic, or of a queue topic on disk."""
    source = channel.source
    assert isinstance(source, CursorSource)
    return source


def lanes(channel: Channel) -> list[Lane]:
    """The places it reads at; none where no cursor file is kept."""
    source = channel.source
    return source.lanes if isinstance(source, CursorSource) else []


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
