"""Topics in memory: what gathered without a channel is handed over a piece a turn, in order, whatever happens meanwhile."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from broker.queueside import Quick, Reader, Side
from penstock import words
from penstock.broker.nsq.memorytopics import RETRY_MS, SPILL_MS, MemoryTopic
from penstock.broker.nsq.sources import memory
from penstock.errors import DiskFull, Refused

MANY = 2 * words.HAND_OVER_MAX + 500


class Full(Quick):
    """A disk without room while `full`."""

    full = False

    def write_parts(self, fd: int, at: int, parts: Sequence[bytes | memoryview]) -> None:
        if self.full:
            raise DiskFull("no room (by order of the test)")
        super().write_parts(fd, at, parts)


def side_of(folder: Path, **settings: Any) -> Side:
    return Side(folder, **({"level": "memory", "mem_queue_size": 100_000, "max_bytes_per_file": 1 << 20} | settings))


def numbered(count: int, at: int = 0) -> list[bytes]:
    return [b"%d" % n for n in range(at, at + count)]


def filled(side: Side, name: bytes = b"t") -> MemoryTopic:
    topic = side.queueing.topic(name)
    assert isinstance(topic, MemoryTopic)
    side.queueing.publish(topic, numbered(MANY))
    return topic


def taken(side: Side, topic: MemoryTopic, name: bytes) -> Iterator[bytes]:
    reader, channel = Reader(), topic.channel(name)
    reader.ready_count = 2_500
    channel.add(reader)
    while True:
        topic.mark()
        side.turn()
        found = list(reader.deliveries())
        if not found:
            channel.remove(reader)
            return
        for delivery in found:
            channel.finish(reader, delivery.id, 0, 0)
            yield delivery.body


@pytest.mark.parametrize("mem_queue_size", [100_000, 1_000])
def test_a_piece_a_turn_and_what_comes_meanwhile_behind_it(tmp_path: Path, mem_queue_size: int) -> None:
    side = side_of(tmp_path, mem_queue_size=mem_queue_size)
    topic = filled(side)
    channel = topic.channel(b"c")
    assert channel.depth() == words.HAND_OVER_MAX
    assert topic.depth() == MANY - words.HAND_OVER_MAX
    side.queueing.publish(topic, numbered(3, MANY))
    second = topic.channel(b"second")  # has what no channel had so far
    assert side.queueing.next_due_ms() <= side.broker.mono_ms  # in the next turn, not in a minute
    for _ in range(3):
        side.turn()
    assert topic.depth() == 0
    assert channel.depth() == channel.message_count == MANY + 3
    assert second.depth() == MANY + 3 - words.HAND_OVER_MAX
    side.queueing.publish(topic, numbered(2, MANY + 3))
    assert topic.depth() == 0
    assert list(taken(side, topic, b"c")) == numbered(MANY + 5)
    assert list(taken(side, topic, b"second")) == numbered(MANY + 5)[words.HAND_OVER_MAX :]
    side.close()


def test_a_pause_in_the_middle(tmp_path: Path) -> None:
    side = side_of(tmp_path)
    topic = filled(side)
    channel = topic.channel(b"c")
    topic.pause()
    for _ in range(3):
        side.turn()
    assert (channel.depth(), topic.depth()) == (words.HAND_OVER_MAX, MANY - words.HAND_OVER_MAX)
    side.queueing.publish(topic, numbered(1, MANY))
    topic.unpause()
    assert list(taken(side, topic, b"c")) == numbered(MANY + 1)
    side.close()


@pytest.mark.parametrize("end", ["empty", "channel", "topic", "clean", "killed"])
def test_it_ends_in_the_middle(tmp_path: Path, end: str) -> None:
    side = side_of(tmp_path, mem_queue_size=0 if end == "killed" else 100_000)
    topic = filled(side)
    topic.channel(b"c")
    if end == "empty":
        topic.empty()
        side.queueing.publish(topic, numbered(1, MANY))
        assert list(taken(side, topic, b"c")) == [*numbered(words.HAND_OVER_MAX), b"%d" % MANY]
    elif end == "channel":
        topic.delete_channel(b"c")
        side.turn()
        assert topic.depth() == MANY - words.HAND_OVER_MAX
        assert list(taken(side, topic, b"d")) == numbered(MANY)[words.HAND_OVER_MAX :]
    elif end == "topic":
        side.queueing.registry.delete(topic)
        side.turn()
        side.turn()
        assert side.queueing.next_due_ms() > side.broker.mono_ms
    else:
        side.reopen(end == "clean")
        again = side.queueing.topic(b"t")
        assert isinstance(again, MemoryTopic)
        found = list(taken(side, again, b"c"))
        assert sorted(set(found), key=int) == numbered(MANY)
        if end == "clean":
            assert found == numbered(MANY)
    side.close()


def test_a_full_disk_in_the_middle(tmp_path: Path) -> None:
    files = Full()
    side = side_of(tmp_path, files=files, mem_queue_size=500)
    topic = filled(side)
    files.full = True
    channel = topic.channel(b"c")
    there = channel.depth()
    assert there < words.HAND_OVER_MAX
    for _ in range(3):
        side.turn()
    assert topic.depth() + channel.depth() == MANY
    files.full = False
    side.turn()
    assert channel.depth() == there  # it is not tried at each turn
    side.turn(RETRY_MS)
    assert list(taken(side, topic, b"c")) == numbered(MANY)
    side.close()


@pytest.mark.parametrize("channel", [True, False])
def test_what_a_memory_queue_does_not_hold_survives_a_kill(tmp_path: Path, channel: bool) -> None:
    """It gathers in memory for two looks at most, then it is in the files; a full disk is tried again, and told of once."""
    files = Full()
    side = side_of(tmp_path, files=files, mem_queue_size=1_000)
    topic = side.queueing.topic(b"t")
    assert isinstance(topic, MemoryTopic)
    if channel:
        topic.channel(b"c")
    files.full = True
    side.queueing.publish(topic, numbered(1_600))
    side.turn()
    assert side.queueing.next_due_ms() == side.broker.mono_ms + SPILL_MS
    side.turn(SPILL_MS)
    side.turn(RETRY_MS)
    files.full = False
    for _ in range(2):
        side.turn(RETRY_MS)
    assert side.queueing.next_due_ms() > side.broker.mono_ms + RETRY_MS  # nothing is looked at again and again
    side.reopen(False)
    again = side.queueing.topic(b"t")
    assert isinstance(again, MemoryTopic)
    assert list(taken(side, again, b"c")) == numbered(600, 1_000)
    side.close()


def test_deferred_messages_come_behind(tmp_path: Path) -> None:
    side = side_of(tmp_path)
    topic = filled(side)
    for n in range(words.HAND_OVER_MAX + 5):
        topic.defer(side.broker.now_ns, b"later %d" % n, 500)
    channel = topic.channel(b"c")
    assert channel.deferred_count == 0
    for _ in range(6):
        side.turn()
    assert (channel.depth(), channel.deferred_count) == (MANY, words.HAND_OVER_MAX + 5)
    side.close()


class Choosy(Quick):
    """A disk that takes no messages of some channels, in the order of their calls."""

    refused: tuple[str, ...] = ()

    def write_parts(self, fd: int, at: int, parts: Sequence[bytes | memoryview]) -> None:
        if os.readlink(f"/proc/self/fd/{fd}").rpartition("/")[2].startswith(self.refused):
            raise DiskFull("no room (by order of the test)")
        super().write_parts(fd, at, parts)


@pytest.mark.parametrize("deferred", [False, True])
@pytest.mark.parametrize("first", [b"memory", b"a", b"b"])
def test_what_a_channel_cannot_take_no_other_one_has(tmp_path: Path, first: bytes, deferred: bool) -> None:
    """A producer that is refused sends again, as often as it takes; so is a deferred message given again."""
    files = Choosy()
    side = side_of(tmp_path, files=files, mem_queue_size=0)
    topic = side.queueing.topic(b"t")
    assert isinstance(topic, MemoryTopic)
    for name in dict.fromkeys((first, b"memory", b"a", b"b")):
        topic.channel(name)
    memory(topic.channels[b"memory"]).limit = 1_000
    sent: list[bytes] = []
    files.refused = ("t:a.", "t:b.")
    for n in range(5):
        files.refused = (("t:a.", "t:b."), ("t:b.",), ("t:b.",), ("t:a.",), ())[n]
        for _ in range(3):
            if deferred:
                stored = topic.redeliver(1, 1_000 + n, 0, b"%d" % n, None) == 0
            else:
                try:
                    side.queueing.publish(topic, [b"%d" % n])
                    stored = True
                except Refused:
                    stored = False
            if stored:
                sent.append(b"%d" % n)
                break
    assert sent[-1:] == [b"4"]
    for name in topic.channels:
        assert sorted(taken(side, topic, name)) == sorted(sent), name
    side.close()
