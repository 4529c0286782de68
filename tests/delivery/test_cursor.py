"""Cursors: what is finished ahead of the reader, and moves to and from the schedule that a kill cuts short."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker.queueside import Delivery, Reader, Side
from penstock.delivery.cursor import CursorSource


class Killed(Exception):
    """Here the process ends."""


def subscribe(side: Side, name: bytes, ready: int = 100) -> Reader:
    reader = Reader()
    reader.ready_count = ready
    side.queueing.topic(b"t").channel(name).add(reader)
    side.queueing.topic(b"t").mark()
    return reader


def read(side: Side, reader: Reader, ms: int = 0) -> list[Delivery]:
    side.turn(ms)
    return list(reader.deliveries())


def finish(side: Side, name: bytes, reader: Reader, messages: list[Delivery]) -> None:
    channel = side.queueing.topic(b"t").channel(name)
    for message in messages:
        assert channel.finish(reader, message.id, 0, 0) == 0
    side.queueing.mark_channel(channel)


def open_side(folder: Path, *channels: bytes) -> Side:
    side = Side(folder)
    for name in channels:
        side.queueing.topic(b"t").channel(name)
    side.turn()
    return side


def test_the_committed_place_passes_what_was_finished_ahead(tmp_path: Path) -> None:
    """Else no segment would ever be let go, and the channel stopped at the end of its window."""
    side = open_side(tmp_path, b"a")
    reader = subscribe(side, b"a", ready=1)
    topic = side.queueing.topic(b"t")
    side.queueing.publish(topic, [b"0"])
    first = read(side, reader)
    topic.channel(b"a").source.finish_ahead(0, 1)  # the next message is another channel's
    side.queueing.publish(topic, [b"1", b"2", b"3"])
    side.turn()
    finish(side, b"a", reader, first)
    for _ in range(2):
        finish(side, b"a", reader, read(side, reader))
    source = topic.channel(b"a").source
    assert isinstance(source, CursorSource)
    file = source.lanes[0].file
    side.turn()
    assert (file.committed, file.beyond) == (4, 0)
    side.close()


def killed_in(part: object, name: str, monkeypatch: pytest.MonkeyPatch, *, after: bool) -> None:
    """Let the process end in a method of a part of the broker, before it did or after."""
    whole = getattr(part, name)

    def ends(*words: Any) -> None:
        if after:
            whole(*words)
        raise Killed

    monkeypatch.setattr(part, name, ends)


def test_a_message_given_back_is_not_in_two_places_after_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    side = open_side(tmp_path, b"a", b"b")
    side.queueing.publish(side.queueing.topic(b"t"), [b"one", b"two"])
    reader = subscribe(side, b"a")
    messages = read(side, reader)
    killed_in(side.queueing.deferral, "give_back", monkeypatch, after=True)
    with pytest.raises(Killed):
        side.queueing.topic(b"t").channel(b"a").requeue(reader, messages[0].id, 500, side.clock.monotonic_ms())
    side.reopen(False)
    channel = side.queueing.topic(b"t").channel(b"a")
    assert channel.depth() + channel.deferred_count == 2
    reader = subscribe(side, b"a")
    assert [m.body for m in read(side, reader)] == [b"two"]
    assert [(m.body, m.attempts) for m in read(side, reader, 600)] == [(b"one", 2)]
    assert [m.body for m in read(side, subscribe(side, b"b"))] == [b"one", b"two"]
    side.close()


@pytest.mark.parametrize("how", ["published", "given back", "given back by both"])
def test_a_deferred_message_does_not_come_twice_after_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    side = open_side(tmp_path, b"a", b"b")
    topic = side.queueing.topic(b"t")
    if how == "published":
        side.queueing.publish(topic, [b"one"], 500)
    else:
        side.queueing.publish(topic, [b"one"])
        for name in (b"a", b"b") if how == "given back by both" else (b"a",):
            reader = subscribe(side, name)
            (message,) = read(side, reader)
            topic.channel(name).requeue(reader, message.id, 500 if name == b"a" else 800, side.clock.monotonic_ms())
        side.turn()
    killed_in(side.broker.sending, "put_over", monkeypatch, after=False)
    with pytest.raises(Killed):
        for _ in range(4):  # behind the flush
            side.turn(600)
    side.reopen(False)
    for name in (b"a", b"b"):
        reader = subscribe(side, name)
        came = read(side, reader)
        finish(side, name, reader, came)
        later = read(side, reader, 1000)
        finish(side, name, reader, later)
        assert [m.body for m in came + later] == [b"one"]
        channel = side.queueing.topic(b"t").channel(name)
        assert channel.depth() + channel.in_flight_count + channel.deferred_count == 0
    side.close()


def test_what_was_finished_and_lost_is_not_counted(tmp_path: Path) -> None:
    """A power cut may keep a channel's bits and not the messages they are about: the depth was too low for ever."""
    side = open_side(tmp_path, b"a")
    topic = side.queueing.topic(b"t")
    reader = subscribe(side, b"a")
    side.queueing.publish(topic, [b"%d" % n for n in range(16)])
    assert len(read(side, reader)) == 16
    flushed = {path: path.read_bytes() for path in (tmp_path / "queues" / "t").glob("t_*")}
    side.queueing.publish(topic, [b"%d" % n for n in range(16, 32)])
    finish(side, b"a", reader, read(side, reader)[::2])
    side.broker.close(False)
    for path, data in flushed.items():
        path.write_bytes(data)
    for _ in range(2):  # the second start finds what the first one made of it
        side.open()
        side.turn()
        channel = side.queueing.topic(b"t").channel(b"a")
        assert channel.depth() == 16
        side.broker.close(False)
    side.open()
    fresh = [b"%d" % n for n in range(100, 140)]
    side.queueing.publish(side.queueing.topic(b"t"), fresh)
    side.turn()
    assert side.queueing.topic(b"t").channel(b"a").depth() == 16 + 40
    reader = subscribe(side, b"a")
    messages = read(side, reader)
    assert [m.body for m in messages] == [b"%d" % n for n in range(16)] + fresh
    finish(side, b"a", reader, messages)
    assert side.queueing.topic(b"t").channel(b"a").depth() == 0
    side.close()


def test_a_channel_that_stands_before_the_first_message_counts_from_there(tmp_path: Path) -> None:
    """An old number in the cursor, a stream that begins later: bits between are about nothing."""
    side = open_side(tmp_path, b"a")
    topic = side.queueing.topic(b"t")
    reader = subscribe(side, b"a", ready=1000)
    side.queueing.publish(topic, [b"x" * 30_000] * 3)
    side.queueing.publish(topic, [b"y"] * 4)
    messages = read(side, reader)
    cursor = tmp_path / "queues" / "t" / "a.cursor"
    finish(side, b"a", reader, messages[1:])  # bits; the first keeps the number back
    side.turn()
    kept = cursor.read_bytes()
    finish(side, b"a", reader, messages[:1])
    side.queueing.publish(topic, [b"z"] * 5)
    side.turn()
    side.turn()
    assert topic.stream.begin() > 0
    side.broker.close(False)
    cursor.write_bytes(kept)
    side.open()
    side.turn()
    assert side.queueing.topic(b"t").channel(b"a").depth() == 5
    side.close()


def test_a_lane_of_deferred_messages_goes_on_behind_what_was_finished_and_lost(tmp_path: Path) -> None:
    """Else the next message would get the place of a lost one, whose bit may be on the disk still."""
    side = Side(tmp_path, topic=({"name": "t", "kind": "log", "queues": 1},))
    channel = side.queueing.topic(b"t").channel(b"a")
    side.turn()
    reader = subscribe(side, b"a")
    side.queueing.publish(side.queueing.topic(b"t"), [b"%d" % n for n in range(6)])
    flushed: dict[Path, bytes] = {}
    for _ in range(2):  # each time they come from the lane of deferred messages, under new places
        messages = read(side, reader)
        assert len(messages) == 6
        flushed = {path: path.read_bytes() for path in (tmp_path / "queues" / "t" / "a.again").glob("a_*")}
        for message in messages:
            channel.requeue(reader, message.id, 100, side.clock.monotonic_ms())
        for _ in range(4):
            side.turn(60)
    finish(side, b"a", reader, read(side, reader)[1::2])
    side.turn()
    assert side.queueing.topic(b"t").again[b"a"].total == 12
    side.broker.close(False)
    for path, data in flushed.items():
        path.write_bytes(data)
    side.open()
    assert side.queueing.topic(b"t").again[b"a"].total >= 12
    side.close()


@pytest.mark.parametrize("kind", ["queue", "log"])
def test_a_channel_emptied_keeps_what_is_finished_beyond_what_it_may_read(tmp_path: Path, kind: str) -> None:
    """It was set back to there, and was given again what it had been set past, or what another channel had given back."""
    side = Side(tmp_path, topic=({"name": "t", "kind": kind, "queues": 1, "level": "os"},))
    topic = side.queueing.topic(b"t")
    channel = topic.channel(b"a")
    topic.channel(b"b")
    topic.pause()
    side.queueing.publish(topic, [b"0", b"1", b"2", b"3", b"4"])
    side.turn()
    if kind == "log":
        assert topic.reset(b"a", {0: 2})  # type: ignore[attr-defined]
        channel.source.finish_ahead(0, 3)
    else:
        for place in (0, 1, 3):
            channel.source.finish_ahead(0, place)
    topic.empty_channel(channel)
    topic.unpause()
    reader = subscribe(side, b"a")
    assert [message.body for message in read(side, reader)] == [b"2", b"4"]
    assert channel.depth() == 0
    channel.check()
    other = subscribe(side, b"b")
    assert len(read(side, other)) == 5
    side.close()
