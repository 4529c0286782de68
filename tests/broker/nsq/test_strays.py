"""Strays: what came again before the broker was one of a set goes back into the schedule, or into lost+found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from broker.queueside import Reader, Side
from penstock.broker.nsq import strays
from penstock.broker.nsq.logchannels import LogChannels
from penstock.broker.replica import Replica

RULES = ({"name": "t", "kind": "log", "queues": 1},)
COUNT = 5


def topic_of(side: Side) -> LogChannels:
    topic = side.queueing.topic(b"t")
    assert isinstance(topic, LogChannels)
    return topic


def add(side: Side, ready: int = 100) -> Reader:
    reader = Reader()
    reader.ready_count = ready
    topic_of(side).channel(b"c").add(reader)
    topic_of(side).mark()
    side.turn()
    return reader


def alone(tmp_path: Path) -> Side:
    """A broker of no set, with messages that were given back and have come again."""
    side = Side(tmp_path, topic=RULES)
    reader = add(side)
    side.queueing.publish(topic_of(side), [b"%d" % n for n in range(COUNT)])
    side.turn()
    channel = topic_of(side).channels[b"c"]
    for one in list(reader.deliveries()):
        channel.requeue(reader, one.id, 1_000, side.broker.mono_ms)
    channel.remove(reader)
    for _ in range(4):
        side.turn(1_000)
    assert channel.depth() == COUNT
    assert waiting(side) == 0  # here alone
    return side


def waiting(side: Side) -> int:
    return sum(1 for _ in side.broker.core.schedule.entries())


def lead(side: Side) -> None:
    replica = Replica(side.broker.files, side.broker.folder, "a")
    replica.open(lossy=False)
    side.broker.copies.belong(replica)
    replica.lead(side.broker.store.min_position, side.broker.store.end_position)


@pytest.mark.parametrize("clean", [True, False])
def test_a_master_puts_them_back_into_the_schedule(tmp_path: Path, clean: bool) -> None:
    side = alone(tmp_path)
    side.config = replace(side.config, ha_port=0)
    side.reopen(clean)
    end = side.broker.store.end_position
    assert (waiting(side), len(side.queueing.strays.found)) == (0, COUNT)
    side.turn()
    assert side.broker.store.end_position == end  # nothing is stored before its epoch has begun
    lead(side)
    side.turn()
    assert (waiting(side), len(side.queueing.strays.found)) == (COUNT, 0)
    for _ in range(4):
        side.turn(1_000)
    assert waiting(side) == COUNT  # until the channel has finished them: that is what the next master has
    reader = add(side)
    found = list(reader.deliveries())
    assert sorted(one.body for one in found) == [b"%d" % n for n in range(COUNT)]
    assert {one.attempts for one in found} == {2}
    for one in found:
        topic_of(side).channels[b"c"].finish(reader, one.id, 0, side.broker.mono_ms)
    for _ in range(4):
        side.turn(1_000)
    assert waiting(side) == 0
    side.reopen(False)
    lead(side)
    side.turn(2_000)
    assert list(add(side).deliveries()) == []
    side.close()


def test_many_are_moved_in_several_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strays, "AT_ONCE", 2)
    side = alone(tmp_path)
    side.config = replace(side.config, ha_port=0)
    side.reopen(False)
    lead(side)
    side.turn()
    assert len(side.queueing.strays.found) == COUNT - 2
    side.reopen(False)  # killed in between: what was moved is moved
    assert (waiting(side), len(side.queueing.strays.found)) == (2, COUNT - 2)
    lead(side)
    for _ in range(3):
        side.turn()
    assert (waiting(side), len(side.queueing.strays.found)) == (COUNT, 0)
    side.turn(1_000)
    assert sorted(one.body for one in add(side).deliveries()) == [b"%d" % n for n in range(COUNT)]
    side.close()


def test_those_in_hand_are_left_to_their_consumer(tmp_path: Path) -> None:
    side = alone(tmp_path)
    side.config = replace(side.config, ha_port=0)
    side.reopen(False)
    reader = add(side, 2)
    held = list(reader.deliveries())
    assert len(held) == 2
    lead(side)
    side.turn()
    assert waiting(side) == COUNT - 2
    for one in held:
        topic_of(side).channels[b"c"].finish(reader, one.id, 0, side.broker.mono_ms)
    seen = []
    for _ in range(6):
        topic_of(side).mark()
        side.turn(1_000)
        for one in list(reader.deliveries()):
            seen.append(one.body)
            topic_of(side).channels[b"c"].finish(reader, one.id, 0, side.broker.mono_ms)
    assert sorted([*seen, *(one.body for one in held)]) == [b"%d" % n for n in range(COUNT)]
    side.close()


def test_a_slave_keeps_them_in_lost_and_found(tmp_path: Path) -> None:
    side = alone(tmp_path)
    side.config = replace(side.config, ha_port=0, role="slave")
    side.reopen(False)
    face = side.queueing.topics[b"t"]
    assert isinstance(face, LogChannels)
    face.forget_again(b"c")  # the master tells of its channels
    lost = side.broker.folder / "lost+found"
    (told,) = [json.loads(line) for line in (lost / "manifest.jsonl").read_text().splitlines()]
    assert told["why"].startswith(f"{COUNT} messages given back")
    assert any((lost / told["to"]).iterdir())
    assert face.channels[b"c"].depth() == 0
    side.turn(1_000)
    side.close()


def test_one_that_has_none_sets_nothing_aside(tmp_path: Path) -> None:
    side = Side(tmp_path, topic=RULES, ha_port=0)
    lead(side)
    reader = add(side)
    side.queueing.publish(topic_of(side), [b"x"])
    side.turn()
    (one,) = reader.deliveries()
    topic_of(side).channels[b"c"].requeue(reader, one.id, 1_000, side.broker.mono_ms)
    topic_of(side).channels[b"c"].remove(reader)
    for _ in range(4):
        side.turn(1_000)
    assert waiting(side) == 1
    side.config = replace(side.config, role="slave")
    side.reopen(False)
    face = side.queueing.topics[b"t"]
    assert isinstance(face, LogChannels)
    assert face.again
    assert not side.queueing.strays.found
    face.forget_again(b"c")
    assert not (side.broker.folder / "lost+found").exists()
    side.close()
