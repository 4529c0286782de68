"""`redrive`: dead letters of queue topics go where they came from, each once, wherever the process ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.queueside import Reader, Side
from penstock.broker.browse import Browse
from penstock.broker.browse import Wanted as Look
from penstock.broker.nsq.redrive import Wanted
from penstock.errors import Refused

DEAD = b"jobs.work.dead"


def died(side: Side, bodies: list[bytes], times: int = 1) -> None:
    """These messages of `jobs` are rejected by the channel `work`."""
    topic = side.queueing.topic(b"jobs")
    channel, reader = topic.channel(b"work"), Reader()
    reader.ready_count = 100
    channel.add(reader)
    side.queueing.publish(topic, bodies)
    side.turn()
    for one in list(reader.deliveries()):
        channel.reject(reader, one.id)
    side.turn(10)
    channel.remove(reader)


def taken(side: Side, topic: bytes = b"jobs", channel: bytes = b"work") -> list[bytes]:
    """What a channel gives, finished."""
    of, reader = side.queueing.topic(topic).channel(channel), Reader()
    reader.ready_count = 100
    of.add(reader)
    of.owner.due(of)
    found = []
    for _ in range(5):
        side.queueing.mark_channel(of)
        side.turn(10)
        for one in list(reader.deliveries()):
            found.append(one.body)
            of.finish(reader, one.id, 0, side.broker.mono_ms)
    of.remove(reader)
    return sorted(found)


def send(side: Side, **wanted: object) -> list[str]:
    """One call; where each goes."""
    found = side.queueing.redrive.page(Wanted(DEAD, **wanted))  # type: ignore[arg-type]
    rows = found["rows"]
    assert isinstance(rows, list)
    return [row["to"] for row in rows]


def test_why_is_noted_beside_the_queue(tmp_path: Path) -> None:
    side = Side(tmp_path)
    died(side, [b"a"])
    for _ in range(2):
        (row,) = Browse(side.broker).page(Look(DEAD.decode()))["rows"]  # type: ignore[misc]
        told = row["properties"]
        assert (told["DLQ_REASON"], told["DLQ_GROUP"], told["DLQ_ATTEMPTS"]) == ("rejected", "work", "1")
        assert told["RETRY_TOPIC"] == "jobs"
        assert len(told["ORIGIN_MESSAGE_ID"]) == 16
        assert told["DLQ_TIME"].isdecimal()
        side.reopen(clean=False)
    side.close()


@pytest.mark.parametrize("level", ["os", "disk"])
def test_each_goes_once(tmp_path: Path, level: str) -> None:
    side = Side(tmp_path, level=level)
    died(side, [b"a", b"b", b"c"])
    assert send(side, dry_run=True) == ["jobs"] * 3
    dead = side.queueing.topic(DEAD)
    assert not dead.channels
    assert send(side) == ["jobs"] * 3
    assert send(side) == []  # they are on their way
    side.turn(10)
    side.turn(10)
    assert send(side) == []
    assert dead.channels[b"redrive"].depth() == 0
    assert taken(side) == [b"a", b"b", b"c"]
    dead.channels[b"redrive"].check()
    assert not side.queueing.deferral.leaving
    side.close()


def test_those_that_match_and_so_many(tmp_path: Path) -> None:
    side = Side(tmp_path)
    died(side, [b"red 1", b"blue 1", b"red 2", b"blue 2"])
    assert len(send(side, text=b"red", limit=1)) == 1
    side.turn(10)
    side.turn(10)
    assert taken(side) == [b"red 1"]
    (row,) = side.queueing.redrive.page(Wanted(DEAD, text=b"blue 2", dry_run=True))["rows"]  # type: ignore[misc]
    assert send(side, text=row["id"].encode()) == ["jobs"]
    side.turn(10)
    side.turn(10)
    assert taken(side) == [b"blue 2"]
    assert side.queueing.topic(DEAD).channels[b"redrive"].depth() == 2
    side.reopen(clean=True)
    assert send(side) == ["jobs"] * 2
    side.turn(10)
    side.turn(10)
    assert taken(side) == [b"blue 1", b"red 2"]
    side.close()


def test_by_id_and_by_why(tmp_path: Path) -> None:
    side = Side(tmp_path)
    died(side, [b"one", b"two"])
    rows = side.queueing.redrive.page(Wanted(DEAD, text=b"reject", dry_run=True))["rows"]
    assert isinstance(rows, list)
    assert len(rows) == 2
    died(side, [b"about " + rows[0]["id"].encode()])
    assert len(send(side, text=rows[0]["id"].encode(), dry_run=True)) == 2
    assert send(side, id=rows[0]["id"]) == ["jobs"]
    side.turn(10)
    side.turn(10)
    assert taken(side) == [b"one"]
    assert send(side, text=b"no such reason") == []
    side.close()


@pytest.mark.parametrize("turns", [0, 1, 2, 3])
def test_a_killed_broker_sends_each_once(tmp_path: Path, turns: int) -> None:
    side = Side(tmp_path)
    died(side, [b"a", b"b"])
    send(side)
    for _ in range(turns):
        side.turn(1)
    side.reopen(clean=False)
    for _ in range(3):
        side.turn(10)
    assert send(side) == []
    assert taken(side) == [b"a", b"b"]
    assert send(side) == []
    side.close()


def test_what_was_given_and_not_finished_goes_too(tmp_path: Path) -> None:
    side = Side(tmp_path)
    died(side, [b"a", b"b"])
    dead = side.queueing.topic(DEAD)
    channel, reader = dead.channel(b"ops"), Reader()
    reader.ready_count = 1
    channel.add(reader)
    side.turn()
    (one,) = reader.deliveries()
    with pytest.raises(Refused, match="has consumers"):
        send(side)
    assert send(side, dry_run=True) == ["jobs"]  # the other one is in flight
    channel.requeue(reader, one.id, 0, side.broker.mono_ms)
    channel.remove(reader)
    assert send(side) == ["jobs"] * 2
    side.turn(10)
    side.turn(10)
    assert (channel.depth(), channel.in_flight_count, channel.waiting_count) == (0, 0, 0)
    channel.check()
    assert taken(side) == [b"a", b"b"]
    side.close()


def test_a_consumer_that_comes_meanwhile_does_no_harm(tmp_path: Path) -> None:
    side = Side(tmp_path)
    died(side, [b"a"])
    channel, reader = side.queueing.topic(DEAD).channel(b"ops"), Reader()
    send(side)
    reader.ready_count = 1
    channel.add(reader)
    side.queueing.mark_channel(channel)
    side.turn()
    for _ in range(2):
        side.turn(10)
    for one in list(reader.deliveries()):
        channel.finish(reader, one.id, 0, side.broker.mono_ms)
    channel.check()
    assert taken(side) == [b"a"]
    assert channel.depth() == 0
    side.close()


def test_of_several_channels_one_is_said(tmp_path: Path) -> None:
    side = Side(tmp_path)
    died(side, [b"a"])
    dead = side.queueing.topic(DEAD)
    dead.channel(b"y")
    dead.channel(b"x")  # owed what comes from now on
    with pytest.raises(Refused, match="has the channels x, y"):
        send(side)
    with pytest.raises(Refused, match="no channel z"):
        send(side, channel=b"z")
    assert send(side, channel=b"y") == ["jobs"]
    side.turn(10)
    side.turn(10)
    assert (dead.channels[b"x"].depth(), dead.channels[b"y"].depth()) == (0, 0)
    side.close()


def test_elsewhere_and_nowhere(tmp_path: Path) -> None:
    side = Side(tmp_path, topic=({"name": "log*", "kind": "log", "queues": 1}, {"name": "mem*", "level": "memory"}))
    died(side, [b"a", b"b"])
    queueing = side.queueing
    with pytest.raises(Refused, match="no topic nosuch"):
        send(side, to=b"nosuch")
    assert b"nosuch" not in queueing.topics
    queueing.topic(b"log-t")
    with pytest.raises(Refused, match="not another queue topic"):
        send(side, to=b"log-t")
    with pytest.raises(Refused, match="not another queue topic"):
        send(side, to=DEAD)
    with pytest.raises(Refused, match="no dead letters in jobs"):
        queueing.redrive.page(Wanted(b"jobs"))
    queueing.topic(b"mem-t").channel(b"c")
    assert send(side, to=b"mem-t", limit=1) == ["mem-t"]
    assert taken(side, b"mem-t", b"c") == [b"a"]
    queueing.delete(queueing.topic(b"jobs"))
    with pytest.raises(Refused, match="no topic jobs"):
        send(side)
    queueing.topic(b"other").channel(b"c")
    assert send(side, to=b"other") == ["other"]
    side.turn(10)
    side.turn(10)
    assert taken(side, b"other", b"c") == [b"b"]
    side.close()


def test_a_name_that_two_channels_share(tmp_path: Path) -> None:
    side = Side(tmp_path)
    for topic, channel in ((b"a", b"b.c"), (b"a.b", b"c")):
        of, reader = side.queueing.topic(topic).channel(channel), Reader()
        reader.ready_count = 10
        of.add(reader)
        side.queueing.publish(side.queueing.topic(topic), [topic])
        side.turn()
        for one in list(reader.deliveries()):
            of.reject(reader, one.id)
        side.turn(10)
        of.remove(reader)
    redrive = side.queueing.redrive
    assert sorted(redrive.origins(b"a.b.c.dead")) == [b"a", b"a.b"]
    rows = redrive.page(Wanted(b"a.b.c.dead"))["rows"]
    assert [row["to"] for row in rows] == ["a", "a.b"]  # type: ignore[attr-defined]
    side.close()
