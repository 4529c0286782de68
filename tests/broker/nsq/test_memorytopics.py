"""Topics in memory: what gathered without a channel is handed over a piece a turn, in order, whatever happens meanwhile."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
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


def gathered(side: Side, topic: MemoryTopic, *bodies: bytes, of: int = 1, gathers: bool = True) -> list[bytes]:
    """What a session publishes in one turn, in batches `of` so many: those that were taken."""
    found: list[bytes] = []
    for batch in (bodies[at : at + of] for at in range(0, len(bodies), of)):
        assert topic.ready(sum(map(len, batch)), len(batch), gathers) == 0
        for body in batch:
            topic.put_bytes(side.broker.now_ns, body, body is not batch[-1])
        with suppress(DiskFull):
            topic.placed()
            found += batch
    return found


LOOKS: dict[str, Callable[[Side, MemoryTopic], object]] = {
    "depth": lambda side, topic: topic.depth() == 3 or pytest.fail("some are not there yet"),
    "source": lambda side, topic: topic.source.queue,
    "batch": lambda side, topic: topic.ready(100, 2, False),
    "pump": lambda side, topic: topic.pump(side.broker.mono_ms),
    "pause": lambda side, topic: (topic.pause(), topic.unpause()),
    "channel": lambda side, topic: topic.channel(b"c"),
    "refused": lambda side, topic: (topic.ready(5, 1, True), topic.put_bytes(1, b"never", False)),  # and never placed
    "nothing": lambda side, topic: None,
}


@pytest.mark.parametrize("look", LOOKS)
def test_what_gathers_in_a_turn_is_there_for_whoever_looks(tmp_path: Path, look: str) -> None:
    side = side_of(tmp_path)
    topic = side.queueing.topic(b"t")
    assert isinstance(topic, MemoryTopic)
    gathered(side, topic, b"0", b"1", b"2")
    LOOKS[look](side, topic)
    gathered(side, topic, b"3")
    side.queueing.publish(topic, [b"4", b"5"])
    gathered(side, topic, b"6", b"x" * 30_000, b"7")
    assert topic.depth() + sum(channel.depth() for channel in topic.channels.values()) == 9
    found = [body for body in taken(side, topic, b"c") if len(body) == 1]
    assert found == numbered(8)
    side.close()


@pytest.mark.parametrize("end", ["empty", "topic", "clean"])
def test_a_turn_that_gathered_ends_otherwise(tmp_path: Path, end: str) -> None:
    side = side_of(tmp_path)
    topic = side.queueing.topic(b"t")
    assert isinstance(topic, MemoryTopic)
    gathered(side, topic, b"0", b"1")
    left: list[bytes] = []
    if end == "empty":
        topic.empty()
        gathered(side, topic, b"2")
        left = [b"2"]
    elif end == "topic":
        side.queueing.delete(topic)
    else:
        left = [b"0", b"1"]
    side.close()
    side = side_of(tmp_path)
    again = side.queueing.topic(b"t")
    assert isinstance(again, MemoryTopic)
    assert list(taken(side, again, b"c")) == left
    side.close()


@pytest.mark.parametrize("name", [b"t", b"t#ephemeral"])
@pytest.mark.parametrize("seed", [0, 5, 7])
def test_one_by_one_or_gathered_is_the_same(tmp_path: Path, name: bytes, seed: int) -> None:
    """Whatever is taken, refused by a full disk or dropped, and in whatever order it comes."""
    outcomes = []
    for gathers in (False, True):
        random = Random(seed)
        files = Full()
        folder, limit = tmp_path / str(gathers), random.choice((0, 5, 40, 1_000))
        side = Side(
            folder, level="memory", mem_queue_size=limit, max_msg_size=1 << 20, max_bytes_per_file=1 << 20, files=files
        )
        topic = side.queueing.topic(name)
        assert isinstance(topic, MemoryTopic)
        took: list[bytes] = []
        for number in range(0, 1_200, 3):
            what = random.random()
            files.full = what < 0.03 or (files.full and what > 0.1)
            size = int(random.choice((0, 0, 200, 200_000)) * random.random())
            bodies = [b"%d " % n + b"x" * size for n in range(number, number + 3)]
            took += gathered(side, topic, *bodies, of=random.choice((1, 3)), gathers=gathers)
            if random.random() < 0.05:
                side.turn()
        files.full = False
        dropped = topic.source.dropped
        came = list(taken(side, topic, b"c"))
        if name == b"t":
            assert came == took
        outcomes.append((took, came, dropped, topic.message_count))
        side.close()
    assert outcomes[0] == outcomes[1]
