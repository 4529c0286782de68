"""The registry: topics and channels come and go, and are known again after a start."""

from __future__ import annotations

import json
import os
import resource
from pathlib import Path

import pytest

from broker.queueside import Quick, Side
from penstock.broker.levels import LEVEL_DISK, LEVEL_MEMORY, LEVEL_OS
from penstock.broker.nsq.registry import Registry
from penstock.disk.files import Files
from penstock.disk.nsqdata import read_nsqd_dat
from penstock.errors import Refused, StoreError

RULES = ({"name": "disk*", "kind": "queue", "level": "disk"}, {"name": "log*", "kind": "log", "queues": 2})


def test_a_topic_is_made_at_the_level_that_is_asked_for_or_ruled(tmp_path: Path) -> None:
    side = Side(tmp_path, topic=RULES, level="os")
    registry: Registry = side.queueing.registry
    assert registry.topic(b"plain").level == LEVEL_OS
    assert registry.topic(b"disk-1").level == LEVEL_DISK
    assert registry.topic(b"asked", "memory").level == LEVEL_MEMORY
    assert registry.topic(b"gone#ephemeral").level == LEVEL_MEMORY
    assert (registry.topic(b"log-1").kind, registry.topic(b"plain") is registry.topic(b"plain")) == ("log", True)
    assert (registry.has_queue(b"plain"), registry.has_queue(b"log-1"), registry.has_queue(b"none")) == (
        True,
        False,
        False,
    )
    side.close()


def test_a_log_topic_that_may_not_be_made_does_not_become_a_queue_topic(tmp_path: Path) -> None:
    side = Side(tmp_path, topic=RULES, auto_create_topic_enable=False)
    with pytest.raises(Refused, match="not exist") as refused:
        side.queueing.topic(b"log-1")
    assert refused.value.nsq == "E_BAD_TOPIC"
    assert side.queueing.find(b"log-1") is None
    assert side.queueing.topic(b"log.with.dots").kind == "queue"  # no log topic can have this name
    side.close()


def test_names_that_are_refused(tmp_path: Path) -> None:
    side = Side(tmp_path)
    side.broker.limits.max_topics = 1
    with pytest.raises(Refused, match='topic name "a b" is not valid') as refused:
        side.queueing.topic(b"a b")
    assert refused.value.nsq == "E_BAD_TOPIC"
    side.queueing.topic(b"one")
    with pytest.raises(Refused, match="no more than 1 topics"):
        side.queueing.topic(b"two")
    side.close()


def test_log_topics_are_not_counted_as_queue_topics(tmp_path: Path) -> None:
    """They were counted on both sides as soon as an NSQ client had named them."""
    side = Side(tmp_path, topic=RULES)
    for name in (b"log-1", b"log-2", b"log-3"):
        assert side.queueing.topic(name).kind == "log"
    side.broker.limits.max_topics = 2
    assert [side.queueing.topic(name).kind for name in (b"one", b"two", b"two")] == ["queue"] * 3
    with pytest.raises(Refused, match="no more than 2 topics"):
        side.queueing.topic(b"three")
    registry: Registry = side.queueing.registry
    registry.delete(registry.topics[b"one"])
    assert side.queueing.topic(b"three").kind == "queue"
    assert side.broker.limits.reached["topics"] == 1
    side.close()


def test_no_topic_takes_the_last_descriptors(tmp_path: Path) -> None:
    side = Side(tmp_path)
    side.queueing.publish(side.queueing.topic(b"before"), [b"one"])
    side.turn()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    probe = os.open("/", os.O_RDONLY)
    os.close(probe)
    resource.setrlimit(resource.RLIMIT_NOFILE, (probe + 3, limits[1]))
    try:
        with pytest.raises(Refused, match="raise the limit of open files") as refused:
            side.queueing.topic(b"new")
        assert (refused.value.nsq, refused.value.http) == ("E_PUB_FAILED", 503)
        assert side.queueing.find(b"new") is None
        side.queueing.publish(side.queueing.topic(b"before"), [b"two"])
        side.turn()
        assert os.open("/", os.O_RDONLY) == probe  # one is left for a connection
        os.close(probe)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    side.queueing.topic(b"new")
    side.reopen(clean=False)
    assert {b"before", b"new"} <= set(side.queueing.topics)
    assert side.queueing.topic(b"before").depth() == 2
    side.close()


def test_who_wants_to_know_hears_of_changes(tmp_path: Path) -> None:
    side = Side(tmp_path)
    heard: list[bytes] = []
    side.queueing.announce.append(heard.append)
    topic = side.queueing.topic(b"t")
    topic.channel(b"c")
    side.queueing.delete(topic)
    assert heard.count(b"t") >= 3
    assert side.queueing.find(b"t") is None
    side.queueing.delete(topic)  # a second time changes nothing
    side.close()


def test_topics_and_channels_are_known_after_a_kill(tmp_path: Path) -> None:
    side = Side(tmp_path, topic=RULES)
    for name in (b"a", b"disk-1", b"log-1"):
        side.queueing.topic(name).channel(b"c")
    side.queueing.topic(b"e#ephemeral").channel(b"c")
    side.queueing.write_table()
    side.reopen(clean=False)
    found = {topic.name: set(topic.channels) for topic in side.queueing.all()}
    assert found == {b"a": {b"c"}, b"disk-1": {b"c"}, b"log-1": {b"c"}}
    side.close()


def test_a_log_topic_of_another_protocol_is_found_by_its_name(tmp_path: Path) -> None:
    side = Side(tmp_path)
    side.broker.topics.create(b"Rocket", 2, 2)
    assert side.queueing.find(b"nothing") is None
    topic = side.queueing.find(b"Rocket")
    assert topic is not None
    assert topic.kind == "log"
    assert side.queueing.log_channels(b"Rocket", b"c") is None
    topic.channel(b"c")
    assert side.queueing.log_channels(b"Rocket", b"c") is topic
    side.close()


def test_what_the_broker_needs_for_itself_is_not_deleted(tmp_path: Path) -> None:
    """Nor by a client of NSQ, who deletes a log topic with everything in it."""
    side = Side(tmp_path, topic=RULES)
    registry: Registry = side.queueing.registry
    for name in (b"RMQ_SYS_TRANS_HALF_TOPIC", b"TBW102", b"rmq_sys_penstock_done"):
        with pytest.raises(Refused, match="the broker's own") as refused:
            registry.delete(registry.topic(name))
        assert refused.value.http == 403
        assert name in side.broker.topics.by_name
    registry.delete(registry.topic(b"log-1"))
    assert b"log-1" not in side.broker.topics.by_name
    side.close()


@pytest.mark.parametrize("name", [b"%RETRY%group", b"%DLQ%group", b"long" * 30])
def test_a_name_that_nsq_cannot_have_is_not_written_for_nsqd(tmp_path: Path, name: bytes) -> None:
    """Also not by looking at it; and a former version, which did, is forgiven."""
    side = Side(tmp_path)
    side.broker.topics.create(name, 1, 1)
    heard: list[bytes] = []
    side.queueing.registry.announce.append(heard.append)
    assert side.queueing.find(name) is None
    side.queueing.topic(b"plain")
    side.queueing.write_table()
    side.broker.close(True)
    assert [entry.name for entry in read_nsqd_dat(Files(), tmp_path)] == ["plain"]
    assert heard == [b"plain"]
    rows = json.loads((tmp_path / "nsqd.dat").read_text())
    rows["topics"].append({"kind": "log", "name": name.decode(), "paused": False, "channels": []})
    (tmp_path / "nsqd.dat").write_text(json.dumps({"topics": rows["topics"], "version": rows["version"]}))
    side = Side(tmp_path)
    assert list(side.queueing.topics) == [b"plain"]
    assert name in side.broker.topics.by_name
    side.close()


def test_a_deleted_log_topic_takes_its_channels_along(tmp_path: Path) -> None:
    """They were still there, and a start made the topic anew for them."""
    side = Side(tmp_path, topic=RULES)
    side.queueing.topic(b"log-1").channel(b"c")
    side.broker.topics.delete(b"log-1", side.broker.now_ms)
    side.turn()
    assert side.queueing.find(b"log-1") is None
    assert not list((tmp_path / "queues").glob("log-1/*"))
    side.queueing.write_table()
    side.broker.save_tables()
    for clean in (True, False):
        side.reopen(clean)
        assert b"log-1" not in side.broker.topics.by_name
        assert b"log-1" not in side.queueing.topics
    assert side.queueing.topic(b"log-1").channels == {}
    side.close()


class Stubborn(Quick):
    """A disk that deletes nothing of some names."""

    stays = ""

    def unlink(self, path: Path) -> None:
        if self.stays and self.stays in path.name:
            raise StoreError(f"cannot delete {path.name}")
        super().unlink(path)


@pytest.mark.parametrize(("level", "stays"), [("memory", ".diskqueue."), ("os", ".cursor"), ("log", ".cursor")])
def test_what_is_deleted_is_gone_though_a_file_of_it_stays(tmp_path: Path, level: str, stays: str) -> None:
    """From memory and from the table: one of them alone would be a channel that comes back with the next start."""
    kind = {"kind": "log"} if level == "log" else {"kind": "queue", "level": level}
    side = Side(tmp_path, files=Stubborn(), topic=({"name": "*", **kind},), mem_queue_size=0)
    for name in (b"kept", b"gone"):
        for channel in (b"one", b"two", b"three"):
            side.queueing.topic(name).channel(channel)
        side.queueing.publish(side.queueing.topic(name), [b"x" * 100] * 9)
        side.turn()
    kept, gone = side.queueing.topics[b"kept"], side.queueing.topics[b"gone"]
    side.files.stays = stays
    with pytest.raises(StoreError, match="cannot delete"):
        kept.delete_channel(b"two")
    with pytest.raises(StoreError, match="cannot delete"):
        side.queueing.delete(gone)
    assert (gone.open, gone.channels, b"gone" in side.queueing.topics) == (False, {}, False)
    side.turn()
    side.files.stays = ""
    side.reopen(clean=False)
    found = {topic.name: set(topic.channels) for topic in side.queueing.all()}
    assert found == {b"kept": {b"one", b"three"}}
    side.close()
