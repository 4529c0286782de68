"""The table of topics is written from the rows of those that did not change: each change reaches the file."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.queueside import Reader, Side
from penstock.broker.nsq.table import RETRY_MS
from penstock.disk.files import Files
from penstock.disk.nsqdata import TopicEntry, read_nsqd_dat
from penstock.errors import DiskFull, Refused

LEVELS = ["memory", "os", "disk", "log"]


def side(folder: Path, level: str) -> Side:
    rules = ({"name": "t", "kind": "log", "queues": 2},) if level == "log" else ({"name": "t", "level": level},)
    made = Side(folder, topic=rules)
    for name in (b"t", b"u"):
        made.queueing.topic(name).channel(b"a")
    made.turn()
    return made


def stored(here: Side) -> dict[str, TopicEntry]:
    return {entry.name: entry for entry in read_nsqd_dat(here.files, Path(here.config.data))}


def anew(here: Side) -> dict[str, TopicEntry]:
    """What the table must say, nothing kept."""
    entries = [
        here.queueing.registry.table.entry(topic) for topic in here.queueing.topics.values() if not topic.ephemeral
    ]
    return {entry.name: entry for entry in entries}


def publish_and_pass(here: Side) -> None:
    here.queueing.topic(b"t").delete_channel(b"a")
    here.queueing.topic(b"t").channel(b"e#ephemeral")
    here.turn()
    here.queueing.publish(here.queueing.topic(b"t"), [b"passes"])
    here.turn(2_000)
    here.queueing.topic(b"v")


def pause_and_publish(here: Side) -> None:
    here.queueing.topic(b"t").pause()
    here.turn()
    here.queueing.publish(here.queueing.topic(b"t"), [b"one", b"two"])
    here.turn(2_000)
    here.queueing.topic(b"v")


def empty(here: Side) -> None:
    here.queueing.publish(here.queueing.topic(b"t"), [b"one", b"two"])
    here.queueing.publish(here.queueing.topic(b"t"), [b"later"], 60_000)
    here.turn(2_000)
    here.queueing.topic(b"t").empty_channel(here.queueing.topic(b"t").channels[b"a"])


def empty_without_channels(here: Side) -> None:
    here.queueing.topic(b"t").delete_channel(b"a")
    here.queueing.publish(here.queueing.topic(b"t"), [b"one", b"two"])
    here.turn(2_000)
    with contextlib.suppress(Refused):  # a log topic is not emptied
        here.queueing.topic(b"t").empty()


def again(here: Side) -> None:
    here.queueing.delete(here.queueing.topic(b"t"))
    here.turn()
    here.queueing.topic(b"t").channel(b"b")


CHANGES: dict[str, Callable[[Side], object]] = {
    "a topic is made": lambda here: here.queueing.topic(b"v"),
    "an ephemeral topic is made": lambda here: here.queueing.topic(b"v#ephemeral").channel(b"c"),
    "a topic is deleted": lambda here: here.queueing.delete(here.queueing.topic(b"t")),
    "a topic is made again": again,
    "a channel is made": lambda here: here.queueing.topic(b"t").channel(b"b"),
    "an ephemeral channel is made": lambda here: here.queueing.topic(b"t").channel(b"b#ephemeral"),
    "a channel is deleted": lambda here: here.queueing.topic(b"t").delete_channel(b"a"),
    "a topic is paused": lambda here: here.queueing.topic(b"t").pause(),
    "a paused topic is published to": pause_and_publish,
    "a channel is paused": lambda here: here.queueing.topic(b"t").pause_channel(
        here.queueing.topic(b"t").channels[b"a"], True
    ),
    "a channel is emptied": empty,
    "a topic is emptied": empty_without_channels,
    "messages pass an ephemeral channel": publish_and_pass,
}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_reaches_the_file(tmp_path: Path, level: str, change: str) -> None:
    here = side(tmp_path, level)
    before = stored(here)
    assert before == anew(here)
    assert set(before) == {"t", "u"}
    CHANGES[change](here)
    here.turn(2_000)
    after = stored(here)
    assert after == anew(here)
    assert after["u"] == before["u"]
    if "ephemeral" not in change and "emptied" not in change:
        assert after != before
    here.close()


@pytest.mark.parametrize("level", LEVELS)
def test_what_is_undone_is_undone_in_the_file(tmp_path: Path, level: str) -> None:
    here = side(tmp_path, level)
    topic = here.queueing.topic(b"t")
    before = stored(here)
    topic.pause()
    topic.pause_channel(topic.channels[b"a"], True)
    here.turn()
    paused = stored(here)["t"]
    assert (paused.paused, paused.channels[0].paused) == (True, True)
    topic.unpause()
    topic.pause_channel(topic.channels[b"a"], False)
    here.turn()
    assert stored(here) == before == anew(here)
    here.close()


def test_rules_of_a_start_reach_the_file(tmp_path: Path) -> None:
    here = side(tmp_path, "os")
    here.queueing.topic(b"t").pause()
    here.reopen(clean=False)
    assert stored(here) == anew(here)
    assert stored(here)["t"].more["level"] == "os"
    here.close()


def test_a_table_that_was_not_written_is_written_whole_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    here = side(tmp_path, "os")
    rename, write = Files.rename, Files.write

    def full(self: Files, path: Path, to: Path) -> None:
        if to.name == "nsqd.dat":
            raise DiskFull("no room")
        rename(self, path, to)

    def half(self: Files, fd: int, at: int, data: bytes) -> None:
        if Path(f"/proc/self/fd/{fd}").readlink().name == "nsqd.dat.changes":
            write(self, fd, at, data[:-1])
            raise DiskFull("no room")
        write(self, fd, at, data)

    monkeypatch.setattr(Files, "rename", full)
    monkeypatch.setattr(Files, "write", half)
    here.queueing.topic(b"t").channel(b"b")
    for _ in range(10):
        here.turn(RETRY_MS)
    assert "b" not in [channel.name for channel in stored(here)["t"].channels]
    assert caplog.text.count("nsqd.dat not written") == 1  # a line each second fills what is left of the disk
    monkeypatch.undo()
    here.turn(RETRY_MS)
    assert stored(here) == anew(here)
    assert [channel.name for channel in stored(here)["t"].channels] == ["a", "b"]
    here.close()


@pytest.mark.parametrize("level", LEVELS)
def test_a_clean_stop_says_how_often_each_message_was_tried(tmp_path: Path, level: str) -> None:
    here = side(tmp_path, level)
    reader = Reader()
    reader.ready_count = 10
    channel = here.queueing.topic(b"t").channels[b"a"]
    channel.add(reader)
    here.queueing.publish(here.queueing.topic(b"t"), [b"one"])
    here.turn(2_000)
    assert len(list(reader.deliveries())) == 1
    here.close()
    attempts = stored(here)["t"].channels[0].more.get("attempts", [])
    assert [count for _, _, count in attempts] == ([] if level == "memory" else [1])


@pytest.mark.parametrize("level", LEVELS)
def test_the_last_topics_are_gone_also_behind_a_clean_stop_at_once(tmp_path: Path, level: str) -> None:
    """Their rows stood in the table on, and the file that said otherwise was removed."""
    here = side(tmp_path, level)
    for topic in list(here.queueing.topics.values()):
        here.queueing.delete(topic)
    here.turn(1)
    assert stored(here) == {}
    here.reopen(True)
    assert stored(here) == {}
    assert not here.queueing.topics
    here.close()


@pytest.mark.parametrize("level", ["os", "disk"])
def test_a_topic_made_anew_behind_a_kill_keeps_its_messages_behind_the_next(tmp_path: Path, level: str) -> None:
    here = Side(tmp_path, level=level)
    here.queueing.topic(b"t")
    here.turn()
    here.queueing.delete(here.queueing.topics[b"t"])
    here.turn()
    here.reopen(clean=False)
    topic = here.queueing.topic(b"t")
    here.queueing.publish(topic, [b"one", b"two"])
    here.turn()
    here.reopen(clean=False)
    assert here.queueing.topics[b"t"].depth() == 2
    here.close()
