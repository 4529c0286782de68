"""`broker.nsq.sources`: what a channel's source is, by the kind and the level of its topic."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.queueside import Side
from penstock.broker.nsq.sources import cursors, lanes, memory
from penstock.delivery.channel import Channel
from penstock.delivery.cursor import CursorSource
from penstock.delivery.source import MemorySource


def channel(side: Side, topic: bytes, name: bytes = b"c") -> Channel:
    found = side.broker.queueing.topic(topic).channel(name)
    assert isinstance(found, Channel)
    return found


def test_a_channel_on_disk_has_lanes_and_one_in_memory_has_none(tmp_path: Path) -> None:
    side = Side(tmp_path, topic=[{"name": "m*", "kind": "queue", "level": "memory"}, {"name": "d*", "kind": "queue"}])
    kept, passing, quick = channel(side, b"disk"), channel(side, b"disk", b"c#ephemeral"), channel(side, b"mem")
    assert isinstance(cursors(kept), CursorSource)
    assert len(lanes(kept)) == 1
    assert (lanes(passing), lanes(quick)) == ([], [])
    assert isinstance(memory(quick), MemorySource)
    with pytest.raises(AssertionError):
        cursors(passing)
    with pytest.raises(AssertionError):
        memory(kept)
    side.close()
