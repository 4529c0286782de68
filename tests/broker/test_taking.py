"""What a slave takes beside the log: tables become the master's, and only what changed is told."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.access.rights import Rights
from penstock.broker import groups, taking
from penstock.broker.broker import Broker
from penstock.broker.clock import BrokerClock
from penstock.broker.lately import NAMES_MAX
from penstock.broker.taking import LAST_MS, OFFSETS_MS, Tables, Taking, TakingTime, ends_untold, last_records
from penstock.clock import FakeClock
from penstock.config import BrokerConfig
from penstock.errors import WireError
from penstock.process import Process
from penstock.wire import fastjson, ha


def opened(folder: Path, **settings: object) -> Broker:
    small = {"mapped_file_size_commit_log": 1 << 16, "max_hash_slot_num": 100, "max_index_num": 100}
    broker = Broker(BrokerConfig(data=str(folder), **small, **settings), clock=FakeClock())  # type: ignore[arg-type]
    broker.open()
    broker.time.update()
    return broker


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Broker, Broker]]:
    master, slave = opened(tmp_path / "a"), opened(tmp_path / "b", role="slave")
    yield master, slave
    master.close()
    slave.close()


def tell(tables: Tables, slave: Broker) -> int:
    """Tell the slave everything there is to tell; how many frames that took."""
    frames = list(tables.news())
    frames += [(ha.OFFSETS, body) for body in tables.offsets(0, tables._broker.store.end_position, at_once=True)]
    for kind, body in frames:
        Taking(slave).take(kind, body)
    return len(frames)


def test_topics_groups_and_offsets_become_the_masters(pair: tuple[Broker, Broker]) -> None:
    master, slave = pair
    tables = Tables(master)
    master.topics.create(b"orders", 3, 2, level=3)
    master.groups.update({"groupName": "readers", "retryMaxTimes": 5}, 1)
    master.offsets.commit("readers", "orders", 2, 77)
    slave.topics.create(b"old", 1, 1)
    slave.groups.update({"groupName": "gone"}, 1)
    assert tell(tables, slave) == 2
    assert slave.topics.as_table()["topicConfigTable"] == master.topics.as_table()["topicConfigTable"]
    assert slave.groups.as_table()["subscriptionGroupTable"] == master.groups.as_table()["subscriptionGroupTable"]
    assert slave.offsets.get("readers", "orders", 2) == 77
    assert tell(tables, slave) == 0  # nothing is new
    master.offsets.commit("readers", "orders", 2, 78)
    assert tell(tables, slave) == 1
    assert slave.offsets.get("readers", "orders", 2) == 78
    master.offsets.drop_group("readers")
    master.topics.delete(b"orders", 5)
    tell(tables, slave)
    assert slave.offsets.get("readers", "orders", 2) is None
    assert b"orders" not in slave.topics.by_name


def state(broker: Broker) -> tuple[object, ...]:
    """What a node keeps of topics and groups."""
    topics, groups = broker.topics.as_file(), broker.groups.as_table()
    return (
        topics["topicConfigTable"],
        topics["deletedTopicEnds"],
        groups["subscriptionGroupTable"],
        groups.get("forbiddenTable"),
    )


@pytest.mark.parametrize("seed", range(6))
def test_who_is_told_of_single_topics_and_groups_has_the_tables_of_who_is_told_all(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    master = opened(tmp_path / "m")
    slaves = [opened(tmp_path / name, role="slave") for name in ("rows", "whole")]
    told = [Tables(master), Tables(master)]
    told[0].tell_changes()
    takers = [Taking(slave) for slave in slaves]
    kinds: list[int] = []

    def tell_both() -> None:
        for tables, takes in zip(told, takers, strict=True):
            for kind, body in tables.news():
                takes.take(kind, body)
                kinds.append(kind)

    names = [f"t{n}" for n in range(8)]
    for now_ms in range(1, 150):
        name, group = chance.choice(names), "g" + chance.choice(names)
        topic = master.topics.get(name.encode())
        what = chance.randrange(8)
        if what < 3:
            before = None if topic is None else topic.settings()
            queues = chance.randint(1 if topic is None else topic.queue_count, 6)
            made = master.topics.create(name.encode(), queues, queues, chance.choice((2, 4, 6)), now_ms=now_ms)
            if what == 2 and chance.random() < 0.5:  # the slaves hear of it, and then the disk is full
                tell_both()
                master.topics.undo(made, before)
        elif what == 3 and topic is not None:
            master.topics.delete(name.encode(), now_ms)
        elif what == 4 and topic is not None:
            undo = master.topics.keep(topic, topic.settings().more._replace(keep_ms=chance.randrange(9)), now_ms)
            if chance.random() < 0.3:
                undo()
        elif what == 5:
            master.groups.update({"groupName": group, "retryMaxTimes": chance.randrange(20)}, now_ms)
        elif what == 6:
            master.groups.forbid(group, name, chance.random() < 0.5, now_ms)
        elif what == 7:
            master.groups.delete(group, now_ms)
        if chance.random() < 0.4:
            tell_both()
            assert [state(slave) for slave in slaves] == [state(master)] * 2
    assert kinds.count(ha.CHANGES) > 20
    assert kinds.count(ha.TABLES) == kinds.count(ha.CHANGES) + 2
    for broker in (master, *slaves):
        broker.close()


def test_a_new_topic_is_told_without_those_that_are_there(pair: tuple[Broker, Broker]) -> None:
    master, slave = pair
    tables = Tables(master)
    tables.tell_changes()
    for n in range(1_000):
        master.topics.create(b"t%d" % n, 1, 1)
        master.groups.update({"groupName": f"g{n}"}, 1)
    tell(tables, slave)
    master.topics.create(b"one-more", 1, 1)
    [(kind, body)] = tables.news()
    assert (kind, len(body) < 1_000) == (ha.CHANGES, True)
    Taking(slave).take(kind, body)
    assert state(slave) == state(master)
    master.groups.update({"groupName": "g1", "retryMaxTimes": 7}, 2)
    for n in range(NAMES_MAX):
        master.groups.lately.note(f"gone{n}")
    [(kind, body)] = tables.news()
    assert kind == ha.TABLES  # which others changed is not known any more
    Taking(slave).take(kind, body)
    assert state(slave) == state(master)


def test_a_topic_that_a_slave_could_not_take_is_taken_with_the_next_news(pair: tuple[Broker, Broker]) -> None:
    master, slave = pair
    tables = Tables(master)
    tables.tell_changes()
    taking = Taking(slave)
    in_the_way = {b"orders"}
    slave.topics.share_names_with(in_the_way.__contains__)

    def tell_it() -> set[bytes]:
        for kind, body in tables.news():
            taking.take(kind, body)
        return {b"orders", b"other", b"third"} & slave.topics.by_name.keys()

    tell_it()
    master.topics.create(b"orders", 2, 2)
    assert tell_it() == set()
    master.topics.create(b"other", 1, 1)
    assert tell_it() == {b"other"}
    in_the_way.clear()
    master.topics.create(b"third", 1, 1)
    assert tell_it() == {b"orders", b"other", b"third"}


@pytest.mark.parametrize("body", [
    b'{"topics": {}}', b'{"topics": [1]}', b'{"topics": [{}]}', b'{"topics": [{"name": "t", "config": {}}]}',
    b'{"groups": [{"name": "g"}]}', b'{"groups": [{"name": "g", "config": {}}]}',
])  # fmt: skip
def test_changes_that_make_no_sense(pair: tuple[Broker, Broker], body: bytes) -> None:
    with pytest.raises(WireError):
        Taking(pair[1]).take(ha.CHANGES, body)


def test_what_a_group_may_not_read_it_may_not_read_at_a_slave_either(pair: tuple[Broker, Broker]) -> None:
    master, slave = pair
    tables = Tables(master)
    master.groups.update({"groupName": "readers"}, 1)
    for topic in ("secrets", "more"):
        master.groups.forbid("readers", topic, True, 2)
    slave.groups.update({"groupName": "readers"}, 1)
    slave.groups.forbid("readers", "orders", True, 1)
    assert tell(tables, slave) == 2  # and that there are no offsets
    assert slave.groups.by_name["readers"].forbidden == {"secrets", "more"}
    assert slave.tables.restless
    version = dict(slave.groups.version)
    master.groups.update({"groupName": "another"}, 3)
    tell(tables, slave)
    assert slave.groups.version["counter"] == version["counter"] + 1  # the other group
    master.groups.forbid("readers", "more", False, 4)
    tell(tables, slave)
    assert slave.groups.by_name["readers"].forbidden == {"secrets"}


def test_offsets_are_told_behind_the_log_that_they_were_made_with(pair: tuple[Broker, Broker]) -> None:
    """A group goes on behind what it gave back: a slave that has not got the copy yet must not know."""
    master, slave = pair
    tables = Tables(master)
    topic = master.topics.create(b"orders", 1, 1)

    def store() -> int:
        master.put(topic, 0, b"x", {}, born_host=master.store_host, born_ms=1)
        return master.store.end_position

    def told(mono_ms: int, sent: int, at_once: bool = False) -> int | None:
        for body in tables.offsets(mono_ms, sent, at_once):
            Taking(slave).take(ha.OFFSETS, body)
        return slave.offsets.get("readers", "orders", 0)

    end = store()
    master.offsets.commit("readers", "orders", 0, 1)
    assert told(0, end - 1) is None
    later = store()
    master.offsets.commit("readers", "orders", 0, 2)
    assert told(1, end - 1) is None
    assert told(2, end) == 1  # as it was when the log ended there
    assert told(OFFSETS_MS - 1, later) == 1  # once a second
    assert told(OFFSETS_MS, later) == 2
    master.offsets.commit("readers", "orders", 0, 3)
    assert told(OFFSETS_MS + 1, later) == 2
    assert told(OFFSETS_MS + 1, later, at_once=True) == 3
    master.offsets.commit("readers", "orders", 0, 4)
    assert told(2 * OFFSETS_MS + 1, later - 1) == 3
    master.offsets.commit("readers", "orders", 0, 5)
    assert told(2 * OFFSETS_MS + 2, later, at_once=True) == 5  # what waited, and what has changed since


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (ha.TABLES, b"[]"), (ha.TABLES, b"{"), (ha.OFFSETS, b'{"offsets": {"t@g": {"x": 5}}}'),
        (ha.OFFSETS, b'{"offsets": {"t@g": {"1": [5]}}}'),
        (ha.TABLES, b'{"topics": {"topicConfigTable": {"t": {"readQueueNums": []}}}}'),
    ],
)  # fmt: skip
def test_tables_that_make_no_sense(pair: tuple[Broker, Broker], kind: int, body: bytes) -> None:
    with pytest.raises(WireError):
        Taking(pair[1]).take(kind, body)


def test_a_topic_that_cannot_be_made_costs_one_topic(pair: tuple[Broker, Broker]) -> None:
    body = b'{"topics": {"topicConfigTable": {"bad name": {}, "good": {}}}, "groups": {}}'
    Taking(pair[1]).take(ha.TABLES, body)
    assert b"good" in pair[1].topics.by_name


def test_a_group_that_cannot_be_costs_one_group(pair: tuple[Broker, Broker]) -> None:
    """A RocketMQ broker has one of no name, where a client has said goodbye to none: no group and no offset was taken."""
    groups = {name: {"retryMaxTimes": 3} for name in ("", "a b", "readers")}
    Taking(pair[1]).take(
        ha.TABLES,
        fastjson.dumps({"topics": {"topicConfigTable": {}}, "groups": {"subscriptionGroupTable": groups}}),
    )
    assert [name for name in groups if name in pair[1].groups.by_name] == ["readers"]


def test_a_slave_delivers_nothing_and_makes_no_queue_topic(pair: tuple[Broker, Broker]) -> None:
    from penstock.errors import Refused

    slave = pair[1]
    process = Process(slave.clock, pytest.fail, Rights())
    process.take(broker=slave)
    for _ in range(5):
        assert process.tick() > slave.mono_ms
        assert process.next_due_ms() > slave.mono_ms  # or the loop would never rest
    with pytest.raises(Refused, match="not master"):
        slave.queueing.topic(b"q")
    with pytest.raises(Refused, match="slave"):
        slave.put(slave.topics.create(b"t", 1, 1), 0, b"x", {}, born_host=slave.store_host, born_ms=1)
    assert slave.store.end_position == 0


def test_the_last_records_below_a_position(pair: tuple[Broker, Broker]) -> None:
    master = pair[0]
    topic = master.topics.create(b"t", 1, 1)
    places = [
        master.put(topic, 0, b"%d" % n * 300, {}, born_host=master.store_host, born_ms=1).physical for n in range(9)
    ]
    end = master.store.end_position
    assert last_records(master.store, 0, 4096) == (0, 0)
    size, crc = last_records(master.store, end, 1000)
    assert end - size in places
    assert last_records(master.store, end, 4096, size) == (size, crc)
    assert last_records(master.store, places[3], 1000)[1] != crc
    assert last_records(master.store, end, 1000, 5000) == (0, 0)


def test_where_a_topic_was_purged_is_taken_though_the_log_is_behind(pair: tuple[Broker, Broker]) -> None:
    """The slave notes it with its topics; the queue begins there when a start finds the log."""
    master, slave = pair
    tables = Tables(master)
    topic = master.topics.create(b"orders", 2, 2)
    tell(tables, slave)
    master.topics.purge(topic, {1: 5}, 7)
    version = dict(slave.topics.version)
    assert tell(tables, slave) == 1
    assert slave.topics.as_file()["deletedTopicEnds"] == {"orders": {"1": 5}}
    assert slave.topics.version != version  # it will be written
    assert slave.topics.by_name[b"orders"].queues[1].min_offset == 0
    version = dict(slave.topics.version)
    master.groups.update({"groupName": "another"}, 1)
    assert tell(tables, slave) == 1
    assert slave.topics.version == version  # the same again is no change
    Taking(slave).take(
        ha.TABLES, b'{"topics": {"topicConfigTable": {"orders": {}}, "deletedTopicEnds": {"orders": {"x": 1}}}}'
    )
    assert slave.topics.by_name[b"orders"].queues[1].min_offset == 0


def test_a_purge_of_what_never_came_hides_nothing_at_the_slave_that_becomes_the_master(tmp_path: Path) -> None:
    master, slave = opened(tmp_path / "a"), opened(tmp_path / "b", role="slave")

    def store(broker: Broker, count: int) -> None:
        topic = broker.topics.by_name[b"orders"]
        for _ in range(count):
            broker.put(topic, 0, b"x", {}, born_host=broker.store_host, born_ms=1)

    master.topics.create(b"orders", 1, 1)
    store(master, 10)
    master.topics.purge(master.topics.by_name[b"orders"], {0: 10}, 7)
    tell(Tables(master), slave)
    for broker in (master, slave):
        broker.save_tables()
        broker.close()
    promoted = opened(tmp_path / "b")
    store(promoted, 5)
    promoted.close()
    again = opened(tmp_path / "b")
    queue = again.topics.by_name[b"orders"].queues[0]
    assert (queue.min_offset, queue.max_offset) == (0, 5)
    again.close()
    kept = opened(tmp_path / "a")  # where the log has it, the purge holds
    queue = kept.topics.by_name[b"orders"].queues[0]
    assert (queue.min_offset, queue.max_offset) == (10, 10)
    kept.close()


YEARS_MS = 10 * 365 * 86_400_000


@pytest.mark.parametrize("ahead_ms", [YEARS_MS, -YEARS_MS, 10_100, -10_100])
def test_the_masters_time_is_taken_when_it_is_told_twice(ahead_ms: int) -> None:
    clock = FakeClock()
    time = BrokerClock(clock)
    taking = TakingTime(time)
    begin = time.now_ms
    taking.hear(begin + ahead_ms)
    taking.hear(begin + ahead_ms)  # of the same turn: both have waited
    assert time.now_ms == begin
    clock.advance(500)
    time.update()
    taking.hear(begin + ahead_ms + 520)
    assert time.now_ms == begin + ahead_ms + 520
    assert time.now_ns // 1_000_000 == time.now_ms
    clock.advance(2_000)
    time.update()
    assert time.now_ms == begin + ahead_ms + 2_520
    assert BrokerClock(clock).now_ms == time.now_ms  # as when the same process starts anew as the master


def test_clocks_that_differ_little_and_what_cannot_be_a_time_change_nothing() -> None:
    clock = FakeClock()
    time = BrokerClock(clock)
    taking = TakingTime(time)
    for _ in range(5):
        for wall_ms in (time.now_ms + 9_999, time.now_ms - 9_999, 0, -1, -(1 << 63), (1 << 63) - 1, LAST_MS):
            before = time.now_ms
            taking.hear(wall_ms)
            clock.advance(500)
            time.update()
            assert time.now_ms == before + 500


def test_frames_that_waited_while_the_process_was_stopped_are_not_believed() -> None:
    clock = FakeClock()
    time = BrokerClock(clock)
    taking = TakingTime(time)
    said = time.now_ms
    clock.advance(300_000)
    time.update()
    for _ in range(100):  # one each 500 ms, all read at once
        said += 500
        taking.hear(said)
    clock.advance(500)
    time.update()
    now = time.now_ms
    taking.hear(now)
    assert time.now_ms == now


def test_where_queues_end_that_the_log_says_nothing_of(pair: tuple[Broker, Broker]) -> None:
    """What was purged and is still in the log is copied; a copy that begins behind it sees nothing of it."""
    master, slave = pair
    topic = master.topics.create(b"orders", 2, 2)
    for _ in range(3):
        master.put(topic, 1, b"x", {}, born_host=master.store_host, born_ms=1)
    end = master.store.end_position
    assert ends_untold(master.store, end) == {}
    master.topics.purge(topic, {1: 3}, 1)
    assert ends_untold(master.store, 0) == {}
    assert ends_untold(master.store, end) == {"orders": {"1": 3}}
    Taking(slave).take(ha.ENDS, b'{"ends": {"orders": {"1": 3}}}')
    queue = slave.store.queue(b"orders", 1)
    assert (queue.min_offset, queue.max_offset) == (3, 3)
    with pytest.raises(WireError):
        Taking(slave).take(ha.ENDS, b'{"ends": {"orders": {"x": 3}}}')


def test_offsets_that_went_while_a_slave_was_away_go(pair: tuple[Broker, Broker]) -> None:
    """The first that a connection tells are all there are; what is told later stands beside them."""
    master, slave = pair
    for broker in pair:
        broker.topics.create(b"orders", 1, 1)
    master.offsets.commit("stays", "orders", 0, 1)
    slave.offsets.commit("gone", "orders", 0, 2)
    tables = Tables(master)
    tell(tables, slave)
    assert slave.offsets.table == {("orders", "stays"): {0: 1}}
    slave.offsets.commit("here", "orders", 0, 3)
    master.offsets.commit("stays", "orders", 0, 4)
    tell(tables, slave)
    assert slave.offsets.table == {("orders", "stays"): {0: 4}, ("orders", "here"): {0: 3}}
    master.offsets.drop_group("stays")
    tell(Tables(master), slave)
    assert slave.offsets.table == {}


@pytest.mark.parametrize("away", [False, True])
def test_a_group_that_went_and_came_again_has_the_masters_offsets_alone(
    pair: tuple[Broker, Broker], away: bool
) -> None:
    """A queue that it has not committed yet is read from where the group begins, at the slave that becomes the master, too."""
    master, slave = pair
    tables = Tables(master)
    for queue_id in range(4):
        master.offsets.commit("readers", "orders", queue_id, 100)
    tell(tables, slave)
    master.offsets.drop_group("readers")
    master.offsets.commit("readers", "orders", 2, 1)
    tell(Tables(master) if away else tables, slave)
    assert slave.offsets.table == {("orders", "readers"): {2: 1}}


@pytest.mark.parametrize("seed", range(6))
def test_lives_of_committed_offsets(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commits, new groups, copies of their places and groups that go: whoever was told has the master's table."""
    monkeypatch.setattr(groups, "CHANGED_MAX", 8)
    monkeypatch.setattr(taking, "PLACES_MAX", 3)
    chance = random.Random(seed)
    master, slave = (opened(tmp_path / name) for name in "ab")
    names = [f"g{n}" for n in range(8)]

    def connected() -> tuple[Tables, Taking]:
        tables = Tables(master)
        if seed % 2:
            tables.tell_parts()
        return tables, Taking(slave)

    tables, takes = connected()
    mono_ms = told = 0
    for _ in range(300):
        what, group, topic = chance.randrange(20), chance.choice(names), f"t{chance.randrange(3)}"
        if what < 14:
            master.offsets.commit(group, topic, chance.randrange(3), chance.randrange(5))
        elif what == 14:
            master.offsets.drop_group(group)
        elif what == 15:
            master.offsets.clone(group, chance.choice(names), chance.choice([None, topic]))
        elif what == 16:
            tables, takes = connected()
        elif what == 17:
            mono_ms += OFFSETS_MS
            for body in tables.offsets(mono_ms, master.store.end_position):
                takes.take(ha.OFFSETS, body)
            assert slave.offsets.table == master.offsets.table
            told += 1
    assert told > 5
    for broker in (master, slave):
        broker.close()


@pytest.mark.parametrize("in_parts", [False, True])
def test_many_offsets_are_told_in_parts_to_who_understands_that(
    pair: tuple[Broker, Broker], monkeypatch: pytest.MonkeyPatch, in_parts: bool
) -> None:
    """One frame of half a million groups and topics would be longer than a frame may be, and no slave could join."""
    monkeypatch.setattr(taking, "PLACES_MAX", 50)
    master, slave = pair
    slave.offsets.commit("gone", "orders", 0, 2)
    for n in range(200):
        master.offsets.commit(f"g{n}", "orders", n % 7, n)
    tables, takes = Tables(master), Taking(slave)
    if in_parts:
        tables.tell_parts()
    told = list(tables.offsets(0, master.store.end_position))
    assert len(told) == (8 if in_parts else 1)
    for number, body in enumerate(told, 1):
        takes.take(ha.OFFSETS, body)
        assert (("orders", "gone") in slave.offsets.table) is (number < len(told))
    assert slave.offsets.table == master.offsets.table


def test_a_commit_is_told_without_the_offsets_of_other_groups(pair: tuple[Broker, Broker]) -> None:
    master, _ = pair
    for n in range(2_000):
        master.offsets.commit(f"g{n}", "orders", 0, 1)
    tables, end = Tables(master), master.store.end_position
    assert [fastjson.loads(body).get("all") for body in tables.offsets(0, end)] == [True]
    master.offsets.commit("g7", "orders", 0, 1)  # where it is already
    assert list(tables.offsets(OFFSETS_MS, end)) == []
    master.offsets.commit("g7", "orders", 0, 2)
    assert [fastjson.loads(body) for body in tables.offsets(2 * OFFSETS_MS, end)] == [
        {"offsets": {"orders@g7": {"0": 2}}}
    ]
