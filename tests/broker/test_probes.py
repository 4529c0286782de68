"""What the history measures of a real broker: both kinds of topic, every door."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.queueside import Side
from penstock.broker.history import Key
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
    assert Key("channel", "q", "c") in probes.every()
    assert len(probes.disk()) == 4


def test_what_stays_is_not_made_anew_and_what_is_another_one_is(side: Side) -> None:
    """A list of ten thousand topics that is made anew each minute holds everybody up for a fifth of a second."""
    broker, probes = side.broker, Probes(side.broker.core, side.queueing)
    topic = side.queueing.topic(b"q")
    topic.channel(b"c")
    log = broker.topics.create(b"l", 2, 2)
    read = broker.groups.find("g", 0).get_counts
    read[b"l"] = [2, 300, 1, 0]
    side.queueing.topic(b"l").channel(b"g")  # and a group of the same name is not told twice
    broker.offsets.commit("h", "l", 0, 2)
    first = probes.every()
    assert set(first) == {
        Key("topic", "q"), Key("channel", "q", "c"), Key("topic", "l"), Key("channel", "l", "g"), Key("group", "l", "h")
    }  # fmt: skip
    assert all(first[key] is probe for key, probe in probes.every().items())
    broker.groups.find("h", 0).get_counts[b"l"] = [5, 0, 0, 0]
    second = probes.every()
    assert {key for key in first if second[key] is not first[key]} == {Key("topic", "l"), Key("group", "l", "h")}
    assert second[Key("topic", "l")].counts()[1] == 7
    read[b"l"] = list(read[b"l"])  # as high, and another one's
    assert probes.every()[Key("topic", "l")] is not second[Key("topic", "l")]
    side.queueing.delete(topic)
    side.queueing.topic(b"q").channel(b"c")
    third = probes.every()
    assert {key for key in second if third[key] is not second[key]} == {
        Key("topic", "q"), Key("channel", "q", "c"), Key("topic", "l")
    }  # fmt: skip
    assert log.open
