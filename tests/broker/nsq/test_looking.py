"""Looking at what channels hold: all of it is seen, and nothing is different afterwards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broker.queueside import Reader, Side
from penstock import words
from penstock.broker.browse import Browse, Wanted
from penstock.broker.nsq import looking
from penstock.broker.nsq.looking import Place, read_place
from penstock.broker.nsq.topics import Topic
from penstock.delivery.channel import Channel
from penstock.delivery.cursor import CursorSource
from penstock.delivery.passing import PassingSource
from penstock.delivery.source import MemorySource
from penstock.errors import Refused

LEVELS = ["memory", "os", "disk"]
STATES = ("ready", "in-flight", "deferred")


def state_of(channel: Channel) -> dict[str, object]:
    """All that looking could have changed."""
    slots, source = channel.slots, channel.source
    hand = sorted(
        (slots.id[n], slots.lane[n], slots.place[n], slots.attempts[n], slots.state[n], slots.owner[n], slots.due[n])
        for n in range(slots.capacity)
        if slots.state[n]
    )
    found: dict[str, object] = {
        "hand": hand, "waiting": list(channel.waiting), "depth": channel.depth(), "on disk": channel.backend_depth(),
        "in flight": channel.in_flight_count, "deferred": channel.deferred_count, "taken": channel.taken,
        "requeued": channel.requeue_count, "timed out": channel.timeout_count, "finished": channel.finish_count,
        "paused": channel.paused, "timer": channel.timer_ms, "messages": channel.message_count,
        "readers": [(r.in_flight, r.message_count, r.ready_count) for r in channel.consumers],
    }  # fmt: skip
    if isinstance(source, CursorSource):
        found["lanes"] = [
            (lane.head, lane.skip, lane.file.committed, lane.file.beyond, lane.stream.end()) for lane in source.lanes
        ]
        found["damaged"], found["remembered"] = source.damaged, dict(source.remembered)
    if isinstance(source, MemorySource):
        backend: Any = source.overflow.backend
        found["memory"] = (list(source.queue), list(source.over), source.dropped)
        found["backend"] = None if backend is None else (backend.depth, backend.taken, backend.damaged)
    if isinstance(source, PassingSource):
        found["head"] = source.head
    return found


def rows(side: Side, channel: str, state: str, *, topic: str = "t", limit: int = 100, pages: int = 50) -> list[Any]:
    """What is seen, by pages of `limit`."""
    found: list[Any] = []
    after = ""
    for _ in range(pages):
        page: Any = Browse(side.broker).page(Wanted(topic, channel, state, limit=limit, after=after))
        assert len(page["rows"]) <= limit
        found += page["rows"]
        after = page["next"]
        if after is None:
            return found
    raise AssertionError("pages without an end")


def look(side: Side, limit: int = 2) -> None:
    """At everything, by every way."""
    for channel in ("", "c"):
        for state in STATES:
            rows(side, channel, state, limit=limit)


def bodies(found: list[Any]) -> list[str]:
    return [row["body"] for row in found]


def reading(channel: Channel, ready: int) -> Reader:
    reader = Reader()
    reader.ready_count = ready
    channel.add(reader)
    return reader


def everything(side: Side, topic: Topic, channel: Channel) -> list[tuple[bytes, int]]:
    """(body, attempts) of what a reader gets until nothing comes any more."""
    reader, found = reading(channel, 100), []
    for _ in range(6):
        topic.mark()
        side.turn(70_000)
        for delivery in reader.deliveries():
            found.append((delivery.body, delivery.attempts))
            channel.finish(reader, delivery.id, 0, 0)
    return found


def busy(side: Side, name: bytes = b"c") -> tuple[Topic, Channel, Reader]:
    """A channel with messages in every state: two in flight, one that comes again, one deferred, more ready than memory has
    room for.
    """
    topic = side.queueing.topic(b"t")
    channel = topic.channel(name)
    reader = reading(channel, 4)
    for n in range(4):  # in memory there is room for three
        side.queueing.publish(topic, [b"m%02d" % n])
        side.turn()
        side.turn()
    given = list(reader.deliveries())
    assert [delivery.body for delivery in given] == [b"m00", b"m01", b"m02", b"m03"]
    reader.ready_count = 0
    channel.requeue(reader, given[0].id, 0, side.broker.mono_ms)
    channel.requeue(reader, given[1].id, 60_000, side.broker.mono_ms)
    side.queueing.publish(topic, [b"m%02d" % n for n in range(4, 24)])
    side.turn()
    side.turn()
    return topic, channel, reader


@pytest.mark.parametrize("level", LEVELS)
def test_each_state_is_seen(tmp_path: Path, level: str) -> None:
    side = Side(tmp_path, level=level)
    _, channel, _ = busy(side)
    assert bodies(rows(side, "c", "ready")) == ["m00", *(f"m{n:02d}" for n in range(4, 24))]
    assert bodies(rows(side, "c", "ready", limit=1)) == ["m00", *(f"m{n:02d}" for n in range(4, 24))]
    assert len(rows(side, "c", "ready")) == channel.depth()
    flying = rows(side, "c", "in-flight")
    assert [(row["body"], row["attempts"]) for row in flying] == [("m02", 1), ("m03", 1)]
    assert {row["due"] - row["delivered"] for row in flying} == {60_000}
    assert rows(side, "c", "in-flight", limit=1) == flying
    [later] = rows(side, "c", "deferred")
    assert (later["body"], later["attempts"]) == ("m01", 1)
    assert later["due"] > side.broker.now_ms
    assert bodies(rows(side, "", "in-flight")) == ["m02", "m03"]
    assert bodies(rows(side, "", "deferred")) == ["m01"]
    assert rows(side, "c", "ready")[0]["attempts"] == 1
    ids = {row["id"] for state in STATES for row in rows(side, "c", state)}
    assert len(ids) == 24
    side.close()


@pytest.mark.parametrize("name", [b"c", b"c#ephemeral"])
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("paused", [False, True])
def test_nothing_is_changed_by_looking(tmp_path: Path, level: str, name: bytes, paused: bool) -> None:
    looked, twin = Side(tmp_path / "looked", level=level), Side(tmp_path / "twin", level=level)
    outcomes = []
    for side in (looked, twin):
        topic, channel, reader = busy(side, name)
        if paused:
            topic.pause_channel(channel, True)
        for ms in (
            0,
            30_000,
            29_999,
            1,
            60_000,
        ):  # on the way both of what is in flight time out, and the deferred comes
            if side is looked:
                before = state_of(channel)
                for state in STATES:
                    for limit in (1, 3, 100):
                        rows(side, name.decode(), state, limit=limit)
                        rows(side, "", state, limit=limit)
                assert state_of(channel) == before
                channel.check()
            side.turn(ms)
        topic.pause_channel(channel, False)
        channel.remove(reader)
        outcomes.append(everything(side, topic, channel))
        side.close()
    assert outcomes[0] == outcomes[1]
    assert len(outcomes[0]) >= 3


@pytest.mark.parametrize("level", LEVELS)
def test_a_page_in_the_middle_goes_on_where_it_ended(tmp_path: Path, level: str) -> None:
    side = Side(tmp_path, level=level)
    busy(side)
    every = rows(side, "c", "ready")
    for limit in (1, 2, 3, 7):
        assert rows(side, "c", "ready", limit=limit) == every
    side.close()


@pytest.mark.parametrize("level", LEVELS)
def test_a_topic_without_a_channel(tmp_path: Path, level: str) -> None:
    side = Side(tmp_path, level=level)
    topic = side.queueing.topic(b"t")
    side.queueing.publish(topic, [b"m%d" % n for n in range(9)])
    side.queueing.publish(topic, [b"later"], 60_000)
    side.turn()
    before = topic.depth()
    assert bodies(rows(side, "", "ready", limit=2)) == [f"m{n}" for n in range(9)]
    assert bodies(rows(side, "", "deferred")) == ["later"]
    assert topic.depth() == before == 10  # as at nsqd, what is deferred is among them
    assert topic.channels == {}
    side.close()


def test_what_every_channel_has_finished_is_not_ready(tmp_path: Path) -> None:
    side = Side(tmp_path, level="os")
    topic = side.queueing.topic(b"t")
    channel = topic.channel(b"c")
    topic.channel(b"slow")
    side.queueing.publish(topic, [b"a", b"b"])
    reader = reading(channel, 1)
    side.turn()
    [first] = reader.deliveries()
    channel.finish(reader, first.id, 0, 0)
    assert bodies(rows(side, "", "ready")) == ["a", "b"]
    topic.delete_channel(b"slow")
    assert bodies(rows(side, "", "ready")) == ["b"]
    side.close()


@pytest.mark.parametrize("level", LEVELS)
def test_after_a_kill_and_after_a_stop(tmp_path: Path, level: str) -> None:
    side = Side(tmp_path, level=level)
    busy(side)
    for clean in (True, False):
        side.reopen(clean)
        channel = side.queueing.topics[b"t"].channels[b"c"]
        before = state_of(channel)
        found = rows(side, "c", "ready", limit=5)
        assert len(found) == channel.depth()
        assert state_of(channel) == before
    side.close()


def test_a_channel_of_a_log_topic(tmp_path: Path) -> None:
    side = Side(tmp_path)
    side.broker.topics.create(b"t", 2, 2)
    topic = side.queueing.find(b"t")
    assert topic is not None
    channel = topic.channel(b"c")
    for n in range(6):
        side.queueing.publish(topic, [b"m%d" % n])
    reader = reading(channel, 2)
    side.turn()
    before = state_of(channel)
    flying = rows(side, "c", "in-flight")
    assert sorted(bodies(flying + rows(side, "c", "ready", limit=1))) == [f"m{n}" for n in range(6)]
    assert {row["queue"] for row in flying} == {0, 1}
    assert state_of(channel) == before
    assert len(list(reader.deliveries())) == 2
    side.close()


@pytest.mark.parametrize("level", LEVELS)
def test_a_topic_deleted_between_two_pages(tmp_path: Path, level: str) -> None:
    side = Side(tmp_path, level=level)
    topic, _, _ = busy(side)
    page: Any = Browse(side.broker).page(Wanted("t", "c", limit=3))
    topic.delete_channel(b"c")
    with pytest.raises(Refused, match="has no channel c"):
        Browse(side.broker).page(Wanted("t", "c", after=page["next"]))
    side.queueing.delete(topic)
    with pytest.raises(Refused, match="no topic t"):
        Browse(side.broker).page(Wanted("t", "c", after=page["next"]))
    again = side.queueing.topic(b"t")
    again.channel(b"c")
    assert rows(side, "c", "ready") == []
    Browse(side.broker).page(Wanted("t", "c", after=page["next"]))  # a place of its former life
    side.close()


def test_what_is_damaged_is_passed_over(tmp_path: Path) -> None:
    side = Side(tmp_path, level="memory", mem_queue_size=1)
    topic = side.queueing.topic(b"t")
    channel = topic.channel(b"c")
    side.queueing.publish(topic, [b"m%d" % n for n in range(5)])
    [file] = tmp_path.rglob("t:c.diskqueue.000000.dat")
    data = bytearray(file.read_bytes())
    at = data.index(b"m2")
    data[at : at + 2] = b"XX"
    file.write_bytes(data)
    before = state_of(channel)
    assert bodies(rows(side, "c", "ready")) == ["m0", "m1", "m3", "m4"]
    assert state_of(channel) == before
    assert not list(tmp_path.rglob("*.bad"))
    side.close()


@pytest.mark.parametrize(
    "text", ["", "x1", "q-1", "q1-", "w1.5", "q" + "9" * 20, "q99999999999999999999", "b1\n", "i٣", "w 1", "q1--2"]
)
def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(Refused, match="after is what next was"):
        read_place(text)


@pytest.mark.parametrize("level", LEVELS)
def test_any_place_may_be_asked_for(tmp_path: Path, level: str) -> None:
    side = Side(tmp_path, level=level)
    _, channel, _ = busy(side)
    before = state_of(channel)
    big = words.ATTEMPTS_MAX
    runs: list[Callable[[Place], looking.Steps]] = [
        lambda begin: looking.ready(channel, begin),
        lambda begin: looking.in_flight(channel, begin, side.broker.time),
        lambda begin: looking.deferred_in_memory(channel, begin, side.broker.time),
        lambda begin: looking.ready_in_topic(side.queueing.topics[b"t"], begin),
    ]
    for run in runs:
        for part in "wqsboipd":
            for numbers in ([], [0], [3], [0, 7], [big, big], [(1 << 63) - 1, (1 << 63) - 1], [1, 2, 3]):
                assert len(list(run(Place(part, numbers)))) <= 30
    assert state_of(channel) == before
    side.close()
