"""What the history measures of a real broker: both kinds of topic, every door."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.queueside import Side
from penstock.broker.history import Key, Probe
from penstock.broker.probes import Probes


@pytest.fixture
def side(tmp_path: Path) -> Iterator[Side]:
    side = Side(tmp_path, level="os")
    yield side
    side.close()


def _last(side: Side, key: Key, field: str) -> object:
    told = side.broker.history.read(key, "hour", 1)
    assert told is not None
    values = told[field]
    assert isinstance(values, list)
    return values[0]


def test_topics_groups_and_channels(side: Side) -> None:
    broker = side.broker
    side.turn(1000)
    topic = side.queueing.topic(b"q")
    topic.channel(b"c")
    broker.topics.create(b"l", 2, 2, now_ms=broker.now_ms)
    side.turn(1000)
    side.queueing.publish(topic, [b"12345"] * 4)
    log = broker.topics.get(b"l")
    assert log is not None
    for _ in range(6):
        side.turn()
        broker.put(log, 0, b"body", {}, born_host=broker.store_host, born_ms=broker.now_ms)
    broker.offsets.commit("g", "l", 0, 2)
    broker.groups.find("g", 0).get_counts[b"l"] = [2, 300, 1, 0]
    side.turn(1000)
    assert (_last(side, Key("topic", "q"), "in"), _last(side, Key("topic", "q"), "bytes")) == (4, 20)
    assert _last(side, Key("channel", "q", "c"), "lag") == 4
    assert _last(side, Key("topic", "l"), "in") == 6
    assert (_last(side, Key("group", "l", "g"), "lag"), _last(side, Key("group", "l", "g"), "bytes")) == (4, 300)
    assert _last(side, Key("broker"), "in") == 10
    assert _last(side, Key("broker"), "lag") == 8
    side.turn(9000)
    assert _last(side, Key("group", "l", "g"), "lag_s") >= 5  # type: ignore[operator]
    side.queueing.delete(topic)
    side.turn(1000)
    assert broker.history.read(Key("topic", "q"), "hour", 1) is None


def test_the_shape_is_another_one_when_something_comes_or_goes(side: Side) -> None:
    probes = Probes(side.broker.core, side.queueing)
    shapes = [probes.shape()]
    topic = side.queueing.topic(b"q")
    shapes.append(probes.shape())
    topic.channel(b"c")
    shapes.append(probes.shape())
    side.broker.offsets.commit("g", "l", 0, 2)
    shapes.append(probes.shape())
    side.broker.groups.find("g", 0).get_counts[b"l"] = [2, 300, 1, 0]
    shapes.append(probes.shape())
    assert len(set(shapes)) == len(shapes)
    assert Key("channel", "q", "c") in dict(filter(None, probes.every()))
    assert len(probes.disk()) == 4


def test_each_is_listed_once_and_what_has_come_since_is_measured(side: Side) -> None:
    broker, probes = side.broker, Probes(side.broker.core, side.queueing)

    def every() -> dict[Key, Probe]:
        told = [one for one in probes.every() if one is not None]
        assert len(dict(told)) == len(told)
        return dict(told)

    topic = side.queueing.topic(b"q")
    topic.channel(b"c")
    broker.topics.create(b"l", 2, 2)
    read = broker.groups.find("g", 0).get_counts
    read[b"l"] = [2, 300, 1, 0]
    side.queueing.topic(b"l").channel(b"g")  # and a group of the same name is not told twice
    broker.offsets.commit("h", "l", 0, 2)
    assert set(every()) == {
        Key("topic", "q"), Key("channel", "q", "c"), Key("topic", "l"), Key("channel", "l", "g"), Key("group", "l", "h")
    }  # fmt: skip
    broker.groups.find("h", 0).get_counts[b"l"] = [5, 600, 0, 0]
    broker.groups.find("i", 0).get_counts[b"l"] = [1, 0, 0, 0]  # which has committed nothing
    second = every()
    assert second[Key("topic", "l")].counts()[1] == 8
    assert second[Key("group", "l", "h")].counts()[1:3] == (5, 600)
    assert Key("group", "l", "i") in second
    side.queueing.delete(topic)
    assert not {Key("topic", "q"), Key("channel", "q", "c")} & set(every())


def test_a_list_goes_on_though_things_come_and_go(side: Side) -> None:
    broker, probes = side.broker, Probes(side.broker.core, side.queueing)
    for number in range(20):
        side.queueing.topic(b"q%d" % number).channel(b"c")
        broker.topics.create(b"l%d" % number, 1, 1)
        broker.offsets.commit("g", f"l{number}", 0, 0)
        broker.groups.find(f"h{number}", 0).get_counts[b"l%d" % number] = [1, 0, 0, 0]
    found = set()
    for step, one in enumerate(probes.every()):
        found |= set() if one is None else {one[0]}
        if step % 5 == 0 and (number := step // 5) < 10:
            side.queueing.delete(side.queueing.topics[b"q%d" % (19 - number)])
            broker.topics.delete(b"l%d" % (19 - number), broker.now_ms)
            broker.offsets.commit("new", f"l{number}", 0, 0)
            side.queueing.topic(b"new%d" % number).channel(b"c")
    kept = [(f"q{number}", f"l{number}") for number in range(10)]
    assert {Key("channel", q, "c") for q, _ in kept} | {Key("group", text, "g") for _, text in kept} <= found
