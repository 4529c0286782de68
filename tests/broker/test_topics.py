"""Topics, groups, offsets, clients and locks: rules and files, without sockets."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.levels import LEVELS, LOG_LEVELS
from penstock.broker.rules import TopicRule
from penstock.broker.topics import TopicTable
from penstock.disk.files import Files
from penstock.errors import Refused
from penstock.limits import Limits
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


def test_a_topic_of_its_first_use_has_no_more_queues_than_it_may() -> None:
    """Clients ask for four, whatever the broker allows: their first sends were all refused."""
    topics = table(limits=Limits(max_queues_per_topic=2))
    for asked, name in enumerate((b"Any", b"One", b"Two", b"Three", b"Four")):
        made = topics.create_from_template(name, b"TBW102", asked, 1000)
        assert made is not None
        assert made.queue_count == (min(asked, 2) or 2)
    with pytest.raises(Refused, match="a topic has 0 to 2 queues, not 3"):  # of one that is asked for
        topics.create(b"Wide", 3, 3)


def test_a_topic_that_is_refused_counts_for_nothing_in_the_rate() -> None:
    """Else whoever goes on trying takes the new topics of all others away."""
    topics = table(limits=Limits(max_topics=2, max_topic_creations_per_second=1))  # one of them is the template
    topics.share_names_with(lambda name: name == b"Taken")
    for _ in range(20):
        for wrong in (b"Taken", b"no topic"):
            with pytest.raises(Refused, match=r"queue topic|illegal"):
                topics.create_from_template(wrong, b"TBW102", 1, 1000)
    assert topics.create_from_template(b"First", b"TBW102", 1, 1000) is not None
    for _ in range(20):
        with pytest.raises(Refused, match="no more than 2 topics"):
            topics.create_from_template(b"Second", b"TBW102", 1, 1000)
    topics.delete(b"First", 1000)
    assert topics.create_from_template(b"Second", b"TBW102", 1, 1000) is not None
    assert topics.limits.reached == dict.fromkeys(topics.limits.reached, 0) | {"topics": 20}


def test_creation_can_be_off() -> None:
    assert table(auto_create=False).create_from_template(b"New", b"TBW102", 4, 0) is None


def test_rules_of_the_configuration() -> None:
    topics = table(rules=[(re.compile("bank.*"), {"level": "disk", "queues": 2})])
    assert (topics.create(b"bank-in", 4, 4).level, topics.create(b"bank-in", 4, 4).queue_count) == (1, 4)
    assert topics.create(b"bank-out", 4, 4).queue_count == 2
    assert topics.create(b"other", 4, 4).level == 0


@pytest.mark.parametrize("rule", [{"queues": 2}, {"kind": "queue"}])
def test_a_rule_changes_no_topic_of_before(rule: TopicRule) -> None:
    """A start read it as if it were made anew: what lies in its other queues was out of sight, or the topic was gone."""
    before = table()
    before.create(b"Sure", 8, 8)
    topics = table(rules=[(re.compile(".*"), rule)])
    topics.load(before.as_table())
    sure = topics.get(b"Sure")
    assert sure is not None
    assert (sure.read_queues, sure.write_queues, sure.queue_count) == (8, 8, 8)
    assert topics.create(b"SCHEDULE_TOPIC_XXXX", 18, 18, announce=False).queue_count == 18  # the broker's own


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
    # Bits that nobody knows: the registry would refuse the broker for them.
    again.load({"topicConfigTable": {"odd": {"perm": 1 << 20 | 6, "topicSysFlag": -(1 << 31) + 1}}})
    odd = again.get(b"odd")
    assert odd is not None
    assert (odd.perm, odd.sys_flag) == (6, 1)


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


def test_a_deleted_topic_holds_no_file_open_here_and_after_a_start(tmp_path: Path) -> None:
    """A broker whose topics came and went ran out of descriptors: each queue that was ever used held one."""

    def stored(name: bytes, queue_id: int) -> ConsumeQueue:
        queue = ConsumeQueue(tmp_path / name.decode() / str(queue_id), name, queue_id, 20 * 64, Files())
        queue.load()
        return queue

    topics = TopicTable(stored)
    for queue in topics.create(b"Gone", 2, 2).queues:
        queue.put_at(0, 100, 100, 0)
    gone = topics.delete(b"Gone", 0)
    assert gone is not None
    assert [queue.file.segments[0].map for queue in gone.queues] == [None, None]
    again = TopicTable(stored)
    again.load(topics.as_file())
    found = {queue_id: stored(b"Gone", queue_id) for queue_id in range(2)}
    assert [queue.entry(0) for queue in found.values()] == [(100, 100, 0)] * 2  # a start has looked at them
    again.take_up({b"Gone": found})
    assert again.get(b"Gone") is None
    assert [queue.file.segments[0].map for queue in found.values()] == [None, None]
    assert [queue.min_offset for queue in again.create(b"Gone", 2, 2).queues] == [1, 1]


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


def test_a_topic_that_is_made_anew_with_fewer_queues_has_no_old_messages_after_a_start() -> None:
    """The store still has the queue that is not among them, and a channel reads whatever the topic keeps."""
    topics = table()
    topics.create(b"Anew", 2, 2)
    topics.delete(b"Anew", 0)
    topics.create(b"Anew", 1, 1)
    again = table()
    again.load(topics.as_file())
    again.take_up({b"Anew": {0: queue_of(b"Anew", 0), 1: queue_of(b"Anew", 1)}})
    assert [queue.min_offset for queue in again.by_name[b"Anew"].queues] == [7, 7]
    assert not again.by_name[b"Anew"].keeps(1)


@pytest.mark.parametrize("default", LOG_LEVELS)
@pytest.mark.parametrize("level", LOG_LEVELS)
def test_the_level_of_a_topic_stays_whatever_that_of_new_ones_is(default: str, level: str) -> None:
    topics, by_table, by_change = (table(level=LEVELS[default]) for _ in range(3))
    topics.create(b"Old", 1, 1, level=LEVELS[level])
    by_table.load(topics.as_file())
    by_change.load_change(topics.as_change(b"Old"))
    assert [one.by_name[b"Old"].level for one in (by_table, by_change)] == [LEVELS[level]] * 2


def test_a_copy_that_is_told_of_a_purge_before_it_has_what_was_purged() -> None:
    topics = table()
    topic = topics.create(b"T", 1, 1)
    queue = topic.queues[0]
    topics.take_ends({"T": {"0": 9}}, 1)
    assert (queue.min_offset, topics.behind) == (7, {b"T"})
    queue.max_offset = 8
    topics.hide_copied()
    assert (queue.min_offset, topics.behind) == (8, {b"T"})
    queue.max_offset = 12
    topics.hide_copied()
    assert (queue.min_offset, topics.behind) == (9, set())
