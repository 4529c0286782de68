"""What a slave takes beside the log: tables become the master's, and only what changed is told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.broker.broker import Broker
from penstock.broker.taking import Tables, Taking, last_records
from penstock.clock import FakeClock
from penstock.config import BrokerConfig
from penstock.errors import WireError
from penstock.wire import ha


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
    frames = [(ha.TABLES, body) for body in tables.news()] + [(ha.OFFSETS, body) for body in tables.offsets()]
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


def test_a_slave_delivers_nothing_and_makes_no_queue_topic(pair: tuple[Broker, Broker]) -> None:
    from penstock.errors import Refused

    slave = pair[1]
    for _ in range(5):
        assert slave.tick() > slave.mono_ms
        assert slave.next_due_ms() > slave.mono_ms  # or the loop would never rest
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
