"""Topics, groups, offsets, clients and locks: rules and files, without sockets."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.broker.clients import EXPIRY_MS, LOCK_MS, ClientTable, Member, QueueLocks, Subscription
from penstock.broker.groups import GroupTable, OffsetTable
from penstock.broker.stats import SAMPLE_MS, Stats
from penstock.broker.topics import TopicTable
from penstock.disk.files import Files
from penstock.errors import Refused
from penstock.log.consumequeue import ConsumeQueue


def queue_of(name: bytes, queue_id: int) -> ConsumeQueue:
    """Seven messages that retention has not touched."""
    queue = ConsumeQueue(Path("queue"), name, queue_id, 20 * 64, Files())
    queue.max_offset = 7
    return queue


def table(**options: Any) -> TopicTable:
    topics = TopicTable(queue_of, **options)
    topics.create(b"TBW102", 8, 8, 7, announce=False)
    return topics


def test_a_topic_is_made_from_the_template() -> None:
    topics = table()
    made = topics.create_from_template(b"New", b"TBW102", 4, 1000)
    assert made is not None
    assert (made.read_queues, made.write_queues, made.perm) == (4, 4, 6)
    wide = topics.create_from_template(b"Wide", b"TBW102", 100, 1000)
    assert wide is not None
    assert wide.queue_count == 8
    assert topics.create_from_template(b"X", b"New", 4, 1000) is None  # no INHERIT bit
    retry = topics.create_from_template(b"%RETRY%g", b"nothing", 4, 1000)
    assert retry is not None
    assert (retry.queue_count, retry.is_retry) == (1, True)
    assert topics.version["counter"] == 3


def test_creation_can_be_off() -> None:
    assert table(auto_create=False).create_from_template(b"New", b"TBW102", 4, 0) is None


def test_rules_of_the_configuration() -> None:
    topics = table(rules=[(re.compile("bank.*"), {"level": "disk", "queues": 2})])
    assert (topics.create(b"bank-in", 4, 4).level, topics.create(b"bank-in", 4, 4).queue_count) == (1, 4)
    assert topics.create(b"bank-out", 4, 4).queue_count == 2
    assert topics.create(b"other", 4, 4).level == 0


def test_topics_json_of_rocketmq_and_of_smartgo() -> None:
    topics = table()
    topics.create(b"Sure", 3, 2, level=1)
    again = table()
    again.load(topics.as_table())
    sure = again.get(b"Sure")
    assert sure is not None
    assert (sure.read_queues, sure.write_queues, sure.level) == (3, 2, 1)
    nested = {
        "topicConfigTable": {
            "topicConfigTable": {"%RETRY%g": {"readQueueNums": 1, "writeQueueNums": 1, "perm": 6, "topicFilterType": 0}}
        }
    }
    again.load(nested)
    assert again.get(b"%RETRY%g") is not None
    again.load({"topicConfigTable": {"../x": {}, "ok": {"readQueueNums": "many"}, "fine": {}}})
    assert again.get(b"../x") is None
    assert again.get(b"fine") is not None


def test_a_session_that_holds_a_deleted_topic_sees_it() -> None:
    topics = table()
    topic = topics.create(b"Gone", 1, 1)
    assert topics.delete(b"Gone", 0) is topic
    assert not topic.open
    assert topics.delete(b"Gone", 0) is None
    assert topics.create(b"Gone", 1, 1).queues[0].min_offset == 7
    again = table()
    again.load(topics.as_file())
    assert again.by_name[b"Gone"].queues[0].min_offset == 7


def test_topics_of_the_store_that_the_file_does_not_know() -> None:
    topics = table()
    topics.create(b"Deleted", 1, 1)
    topics.delete(b"Deleted", 0)
    queue = queue_of(b"T", 0)
    topics.take_up({b"Lost": {0: queue, 3: queue}, b"Deleted": {0: queue}})  # type: ignore[dict-item]
    lost = topics.get(b"Lost")
    assert lost is not None
    assert lost.queue_count == 4
    assert topics.get(b"Deleted") is None


def test_groups() -> None:
    groups = GroupTable()
    assert groups.find("g", 5).retry_max == 16
    groups.update({"groupName": "g", "retryMaxTimes": 3, "consumeEnable": False}, 6)
    again = GroupTable(auto_create=False)
    again.load(groups.as_table())
    assert (again.by_name["g"].retry_max, again.by_name["g"].consume_enable) == (3, False)
    with pytest.raises(Refused) as refused:
        again.find("unknown", 0)
    assert refused.value.remoting == 26
    for name in ("", "../x", "g" * 256):
        with pytest.raises(Refused):
            groups.find(name, 0)
    smartgo = GroupTable()
    smartgo.load({"T": {"groupName": "h", "retryMaxTimes": 7}, "dataVersion": {"counter": 3, "timestamp": 9}})
    assert (smartgo.by_name["h"].retry_max, smartgo.version["counter"]) == (7, 3)


def test_offsets() -> None:
    offsets = OffsetTable()
    offsets.commit("g", "T", 0, 10)
    offsets.commit("g", "T", 1, 20)
    offsets.commit("g", "T", 0, 5)
    again = OffsetTable()
    again.load(offsets.as_table())
    assert again.queues("g", "T") == {0: 5, 1: 20}
    again.load({"offsets": {"h@U": {"queue 1": 7, "queue x": 8}}, "offsetTable": {"bad": {}, "T@g": {"0": "text"}}})
    assert again.queues("h", "U") == {1: 7}
    assert again.get("g", "T", 0) == 5
    again.clone("g", "copy", None)
    assert again.queues("copy", "T") == {0: 5, 1: 20}
    again.drop_group("g")
    assert again.topics_of("g") == []


def member(client_id: str, peer: Any, heard_ms: int = 0) -> Member:
    return Member(client_id, peer, "JAVA", 409, heard_ms)


def test_clients_come_and_go() -> None:
    clients, here, there = ClientTable(), SimpleNamespace(remote="a"), SimpleNamespace(remote="b")
    subs = {"T": Subscription("T")}
    assert clients.consumer_heard("g", member("1", here), {}, subs)
    assert not clients.consumer_heard("g", member("1", here), {}, subs)
    assert clients.consumer_heard("g", member("2", there), {}, subs)
    newer = {"T": Subscription("T", "A", version=2, codes=[65], tags=["A"])}
    assert clients.consumer_heard("g", member("2", there), {}, newer)
    assert not clients.consumer_heard("g", member("1", here), {}, {"T": Subscription("T", version=1)})
    assert clients.consumers["g"].subscriptions["T"].expression == "A"
    assert clients.consumer_heard("g", member("1", there), {}, {"T": Subscription("T")})  # a reconnected client
    assert [group.name for group in clients.leave("2", "", "g")] == ["g"]
    clients.producer_heard("p", member("3", there))
    assert clients.lost(there) == []  # the last member went: nobody is left to be told
    assert (clients.consumers, clients.producers) == ({}, {})


def test_silent_clients_expire() -> None:
    clients, here = ClientTable(), SimpleNamespace(remote="a")
    clients.consumer_heard("g", member("1", here, 0), {}, {})
    clients.consumer_heard("g", member("2", here, EXPIRY_MS), {}, {})
    assert [group.name for group in clients.expire(EXPIRY_MS + 1)] == ["g"]
    assert list(clients.consumers["g"].members) == ["2"]


def test_queue_locks_expire() -> None:
    locks, queue = QueueLocks(), ("T", "b", 0)
    assert locks.lock("g", "one", [queue], 0) == [queue]
    assert locks.lock("g", "two", [queue], LOCK_MS - 1) == []
    assert locks.lock("other", "two", [queue], 0) == [queue]
    assert locks.lock("g", "two", [queue], LOCK_MS) == [queue]
    locks.unlock("g", "one", [queue])
    assert locks.lock("g", "one", [queue], LOCK_MS) == []


def test_rates() -> None:
    counters = {("N", "k"): 0}
    stats = Stats(lambda: dict(counters))
    assert stats.rates("N", "k") is None
    now = stats.tick(0)
    for _ in range(12):
        counters["N", "k"] += 100
        now = stats.tick(now)
    rates = stats.rates("N", "k")
    assert rates is not None
    assert (rates[0].sum, rates[0].per_second) == (600, 600 * 1000 / (6 * SAMPLE_MS))
