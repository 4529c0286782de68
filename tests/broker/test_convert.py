"""`convert`: a topic changes its kind when nothing would be lost, and says what would."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.queueside import Reader, Side
from penstock.broker.convert import Convert
from penstock.errors import Refused


def test_there_and_back(tmp_path: Path) -> None:
    side = Side(tmp_path)
    queueing = side.queueing
    topic = queueing.topic(b"jobs")
    channel, reader = topic.channel(b"c"), Reader()
    topic.pause_channel(topic.channel(b"paused"), True)
    queueing.publish(topic, [b"x"])
    side.turn()
    assert any("channel c has 1 messages" in text for text in Convert(side.broker, "jobs", "log").losses())
    topic.empty_channel(topic.channels[b"paused"])
    reader.ready_count = 1
    channel.add(reader)
    queueing.mark_channel(channel)
    side.turn()
    (one,) = reader.deliveries()
    assert sorted(Convert(side.broker, "jobs", "log").losses()) == [
        "channel c has 1 messages that are not finished", "channel c has consumers: stop them",
    ]  # fmt: skip
    with pytest.raises(Refused, match="not finished"):
        Convert(side.broker, "jobs", "log").run()
    channel.finish(reader, one.id, 0, side.broker.mono_ms)
    channel.remove(reader)
    Convert(side.broker, "jobs", "log").run()
    side.broker.save_tables()
    for clean in (True, False):
        side.reopen(clean)
        face = side.queueing.find(b"jobs")
        assert face is not None
        assert (face.kind, {name: bool(of.paused) for name, of in face.channels.items()}) == (
            "log",
            {b"c": False, b"paused": True},
        )
    log = side.broker.topics.by_name[b"jobs"]
    side.broker.put(log, 0, b"y", {}, born_host=side.broker.store_host, born_ms=1)
    side.turn()
    assert "it holds 1 messages: purge it, if they may go" in Convert(side.broker, "jobs", "queue").losses()
    side.broker.topics.purge(log, {0: 1}, side.broker.now_ms)
    face = side.queueing.find(b"jobs")
    assert face is not None
    face.purge({0: 1})  # type: ignore[attr-defined]
    Convert(side.broker, "jobs", "queue").run()
    side.broker.save_tables()
    side.reopen(False)
    topic = side.queueing.topics[b"jobs"]
    assert (topic.kind, sorted(topic.channels)) == ("queue", [b"c", b"paused"])
    assert b"jobs" not in side.broker.topics.by_name
    side.queueing.publish(topic, [b"z"])
    side.turn()
    assert topic.channels[b"c"].depth() == 1
    side.close()


def test_what_stands_against_it(tmp_path: Path) -> None:
    side = Side(tmp_path, topic=({"name": "q*", "kind": "queue"},))
    queueing = side.queueing
    for name, why in ((b"q-ruled", "a rule says"), (b"a.b", "cannot have this name"), (b"e#ephemeral", "ephemeral")):
        queueing.topic(name)
        assert any(why in text for text in Convert(side.broker, name.decode(), "log").losses()), name
    later = queueing.topic(b"later")
    queueing.publish(later, [b"x"], 60_000)
    side.turn()
    assert any("delayed" in text for text in Convert(side.broker, "later", "log").losses())
    waiting = queueing.topic(b"waiting")
    queueing.publish(waiting, [b"x"])
    assert Convert(side.broker, "waiting", "log").losses() == ["it holds 1 messages that no channel has"]
    for name, to, why in (
        ("nosuch", "log", "no topic nosuch"), ("waiting", "queue", "is a queue topic"), ("waiting", "both", "none of"),
        ("rmq_sys_wheel_timer", "queue", "the broker's own"),
    ):  # fmt: skip
        with pytest.raises(Refused, match=why):
            Convert(side.broker, name, to)
    side.close()


def test_a_start_never_finds_both(tmp_path: Path) -> None:
    """Killed before the turn ends, whichever way it went."""
    side = Side(tmp_path)
    side.queueing.topic(b"jobs").channel(b"c")
    side.queueing.write_table()
    for to in ("log", "queue", "log"):
        Convert(side.broker, "jobs", to).run()
        side.reopen(False)
        topic = side.queueing.find(b"jobs")
        assert topic is not None
        assert (topic.kind, b"jobs" in side.broker.topics.by_name, list(topic.channels)) == (to, to == "log", [b"c"])
        side.broker.save_tables()
    side.close()


def test_a_log_topic_that_was_a_queue_keeps_for_its_channels(tmp_path: Path) -> None:
    side = Side(tmp_path)
    side.queueing.topic(b"read").channel(b"c")
    side.queueing.topic(b"read").pause()
    side.queueing.topic(b"unread")
    for name in ("read", "unread"):
        Convert(side.broker, name, "log").run()
    side.broker.save_tables()
    side.reopen(False)
    topics = side.broker.topics.by_name
    assert (topics[b"read"].owed, topics[b"unread"].owed) == (True, False)
    assert side.queueing.topics[b"read"].paused
    side.broker.close(True)


def test_one_without_channels_does_where_nsqs_topics_have_copies(tmp_path: Path) -> None:
    side = Side(tmp_path, ha_port=0)
    side.queueing.topic(b"unread", queue=True)
    Convert(side.broker, "unread", "log").run()
    assert side.broker.topics.by_name[b"unread"].owed
    side.broker.close(True)


@pytest.mark.parametrize("name", ["a" * 65, "with%sign"])
def test_a_name_that_no_queue_topic_can_have(tmp_path: Path, name: str) -> None:
    """It was deleted, and not made."""
    side = Side(tmp_path)
    side.broker.topics.create(name.encode(), 1, 1)
    assert Convert(side.broker, name, "queue").losses() == ["a queue topic cannot have this name"]
    with pytest.raises(Refused, match="cannot have this name"):
        Convert(side.broker, name, "queue").run()
    assert name.encode() in side.broker.topics.by_name
    side.close()
