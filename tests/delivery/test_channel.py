"""Channel over a source in memory, without a broker: who gets what, and what the counters say."""

from __future__ import annotations

import pytest

from penstock.delivery.channel import Channel, Consumer
from penstock.delivery.source import MemorySource, Source
from penstock.wire.nsq import message_data
from penstock.words import DONE, NOT_IN_FLIGHT, NOT_OWNER


class Reader(Consumer):
    def __init__(self, ready: int = 100) -> None:
        Consumer.__init__(self)
        self.ready_count = ready
        self.got: list[tuple[int, int]] = []

    def deliver(self, source: Source, attempts: int) -> int:
        self.got.append((source.message_id, attempts))
        return 0


class Keeper:
    """Whoever has the channel: it takes dead letters and deferred messages if it may."""

    def __init__(self, takes: bool = True) -> None:
        self.takes = takes
        self.buried: list[int] = []
        self.filled_up = 0

    def due(self, channel: Channel) -> None:
        pass

    def filled(self, channel: Channel) -> None:
        self.filled_up += 1

    def bury(self, channel: Channel, slot: int, why: str) -> bool:
        if self.takes:
            self.buried.append(channel.slots.id[slot])
        return self.takes

    def defer(self, channel: Channel, slot: int, delay_ms: int) -> bool:
        return False


def channel(count: int, owner: Keeper | None = None, **more: int) -> Channel:
    source = MemorySource(1000, None)
    source.put([message_data(1, 0, n, b"x") for n in range(1, count + 1)])
    return Channel(b"c", b"t", source, owner=owner or Keeper(), **more)


def test_no_more_than_a_consumer_is_ready_for() -> None:
    one, reader = channel(5), Reader(ready=2)
    one.add(reader)
    assert one.pump(0) == 2
    assert (one.in_flight_count, one.depth(), reader.in_flight) == (2, 3, 2)
    assert one.finish(reader, 1, 5, 0) == DONE
    assert one.pump(0) == 1
    assert reader.got == [(1, 1), (2, 1), (3, 1)]
    one.check()


def test_a_message_is_its_readers_alone() -> None:
    one, reader, other = channel(1), Reader(), Reader(ready=0)
    one.add(reader)
    one.add(other)
    one.pump(0)
    assert one.finish(other, 1, 0, 0) == NOT_OWNER
    assert one.finish(reader, 9, 0, 0) == NOT_IN_FLIGHT
    assert one.finish(reader, 1, 0, 0) == DONE
    assert one.finish(reader, 1, 0, 0) == NOT_IN_FLIGHT


def test_a_timeout_gives_it_to_the_next_with_one_attempt_more() -> None:
    one, reader, other = channel(1), Reader(), Reader()
    one.add(reader)
    one.pump(0)
    one.remove(reader)
    one.add(other)
    assert one.tick(one.due_ms() - 1) == 0
    assert one.tick(one.due_ms()) == 1
    one.pump(0)
    assert (other.got, one.timeout_count) == ([(1, 2)], 1)
    one.check()


def test_touch_gives_a_full_timeout_and_no_more_than_the_limit() -> None:
    one, reader = channel(1, msg_timeout_max_ms=100), Reader()
    reader.msg_timeout_ms = 60
    one.add(reader)
    one.pump(0)
    assert one.due_ms() == 60
    one.touch(reader, 1, 30)
    assert one.due_ms() == 90
    one.touch(reader, 1, 80)
    assert one.due_ms() == 100


def test_deferred_in_memory_until_its_time() -> None:
    one, reader = channel(1), Reader()
    one.add(reader)
    one.pump(0)
    assert one.requeue(reader, 1, 500, 0) == DONE
    assert (one.deferred_count, one.depth(), one.pump(499)) == (1, 0, 0)
    one.tick(500)
    assert one.pump(500) == 1
    assert reader.got == [(1, 1), (1, 2)]
    one.check()


@pytest.mark.parametrize("takes", [True, False])
def test_too_many_attempts_end_with_the_dead_letters_if_they_can_be_stored(takes: bool) -> None:
    owner = Keeper(takes)
    one, reader = channel(1, owner, attempts_max=2), Reader()
    one.add(reader)
    for _ in range(3):
        one.pump(0)
        one.requeue(reader, 1, 0, 0)
    assert (owner.buried, one.buried_count) == (([1], 1) if takes else ([], 0))
    assert reader.got == [(1, 1), (1, 2)] + ([] if takes else [(1, 3)])


def test_paused_and_emptied() -> None:
    one, reader = channel(4), Reader(ready=2)
    one.add(reader)
    one.pause(True)
    assert one.pump(0) == 0
    one.pause(False)
    one.pump(0)
    one.empty()
    assert (one.depth(), one.in_flight_count, reader.in_flight) == (0, 0, 0)
    assert one.finish(reader, 1, 0, 0) == NOT_IN_FLIGHT
    one.check()
