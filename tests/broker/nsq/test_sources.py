"""`broker.nsq.sources`: what a channel's source is, by the kind and the level of its topic."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.queueside import Reader, Side
from penstock.broker.nsq.sources import SEARCH_MAX, cursors, lag_ms, lanes, memory
from penstock.delivery.channel import Channel
from penstock.delivery.cursor import CursorSource
from penstock.delivery.source import MemorySource
from penstock.words import DONE


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


@pytest.mark.parametrize("name", [b"disk", b"mem", b"log", b"disk#ephemeral"])
def test_the_lag_is_the_age_of_the_oldest_message_that_is_not_finished(tmp_path: Path, name: bytes) -> None:
    rules = [
        {"name": "m*", "kind": "queue", "level": "memory"}, {"name": "log", "kind": "log", "queues": 1},
        {"name": "d*", "kind": "queue"},
    ]  # fmt: skip
    side = Side(tmp_path, topic=rules, mem_queue_size=10)
    topic, one = side.queueing.topic(name), channel(side, name)
    assert lag_ms(one, side.broker.now_ms) == 0
    for n in range(3):
        side.queueing.publish(topic, [b"%d" % n])
        side.turn(1_000)
    assert lag_ms(one, side.broker.now_ms) == 3_000
    reader = Reader()
    reader.ready_count = 2
    one.add(reader)
    topic.mark()
    side.turn(1_000)
    first, second = reader.deliveries()
    assert lag_ms(one, side.broker.now_ms) == 4_000  # in flight is not finished
    assert one.finish(reader, second.id, side.broker.now_ms * 1_000_000, side.broker.mono_ms) == DONE
    assert lag_ms(one, side.broker.now_ms) == 4_000
    reader.ready_count = 0
    assert one.finish(reader, first.id, side.broker.now_ms * 1_000_000, side.broker.mono_ms) == DONE
    assert lag_ms(one, side.broker.now_ms) == 2_000
    side.close()


def test_a_lag_that_takes_a_long_search_is_not_known(tmp_path: Path) -> None:
    side = Side(tmp_path, topic=[{"name": "m*", "kind": "queue", "level": "memory"}], mem_queue_size=SEARCH_MAX + 2)
    topic, one, reader = side.queueing.topic(b"mem"), channel(side, b"mem"), Reader()
    reader.ready_count = SEARCH_MAX + 1
    one.add(reader)
    side.queueing.publish(topic, [b"x"] * (SEARCH_MAX + 1))
    side.turn()
    assert one.in_flight_count == SEARCH_MAX + 1
    assert lag_ms(one, side.broker.now_ms) is None
    side.close()
