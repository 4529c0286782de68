"""`registry.routes`: who is alive, what they serve, and when they are forgotten."""

import pytest

from penstock.errors import Refused
from penstock.registry.routes import EXPIRY_MS, Registration, RouteTables, TopicQueues

T = TopicQueues(4, 4, 6)
NOW = 1_700_000_000_000


def told(broker: str = "a", address: str = "10.0.0.1:1", broker_id: int = 0, **more: object) -> Registration:
    values: dict[str, object] = {"version": (1, 1, 0), "topics": {"T": T}, "ha_address": address + "2", **more}
    return Registration(broker, address, "C", broker_id, **values)  # type: ignore[arg-type]


def test_a_route_lists_living_brokers_only() -> None:
    tables = RouteTables()
    first, second = object(), object()
    tables.register(told("b", "10.0.0.2:1"), second, NOW)
    tables.register(told("a"), first, NOW)
    route = tables.route("T")
    assert route is not None
    assert [d["brokerName"] for d in route["brokerDatas"]] == ["a", "b"]
    assert route["queueDatas"][0] == {
        "brokerName": "a",
        "perm": 6,
        "readQueueNums": 4,
        "topicSynFlag": 0,
        "topicSysFlag": 0,
        "writeQueueNums": 4,
    }
    assert tables.lost(first) == ["10.0.0.1:1"]
    route = tables.route("T")
    assert route is not None
    assert [d["brokerName"] for d in route["brokerDatas"]] == ["b"]
    tables.lost(second)
    assert tables.route("T") is None
    assert (tables.topics, tables.addresses, tables.cluster_of, tables.live) == ({}, {}, {}, {})


def test_expiry_follows_heartbeats() -> None:
    tables = RouteTables()
    assert tables.tick(NOW) == NOW + 5_000
    tables.register(told("a"), object(), NOW)
    tables.register(told("b", "10.0.0.2:1"), object(), NOW)
    assert tables.heard("10.0.0.1:1", (1, 1, 0), NOW + 60_000) == (False, (1, 1, 0))
    assert tables.heard("10.0.0.2:1", (1, 2, 0), NOW + 60_000) == (True, (1, 1, 0))
    assert tables.heard("10.0.0.3:1", (1, 2, 0), NOW) == (True, None)
    assert tables.tick(NOW + EXPIRY_MS) == NOW + EXPIRY_MS + 10_000
    assert set(tables.live) == {"10.0.0.1:1", "10.0.0.2:1"}
    tables.tick(NOW + EXPIRY_MS + 10_000)
    assert set(tables.live) == {"10.0.0.1:1"}
    tables.tick(NOW + EXPIRY_MS + 60_001)
    assert not tables.live


def test_a_reconnected_broker_outlives_its_old_connection() -> None:
    tables = RouteTables()
    old, new = object(), object()
    tables.register(told(), old, NOW)
    tables.register(told(), new, NOW + 1)
    assert tables.lost(old) == []
    assert tables.route("T") is not None


def test_topics_come_from_masters_and_when_changed() -> None:
    tables = RouteTables()
    peer = object()
    tables.register(told("a", "10.0.0.9:1", 1, topics={"S": T}), object(), NOW)
    assert tables.route("S") is None
    tables.register(told(), peer, NOW)
    tables.register(told(topics={"T": TopicQueues(1, 1, 6)}), peer, NOW)
    assert tables.topics["T"]["a"] == T
    tables.register(told(topics={"U": T}, version=(1, 2, 0)), peer, NOW)
    assert set(tables.topics) == {"T", "U"}


def test_a_slave_learns_its_master() -> None:
    tables = RouteTables()
    assert tables.register(told("a", "10.0.0.9:1", 1), object(), NOW) == ("", "")
    assert tables.register(told(), object(), NOW) == ("", "")
    assert tables.register(told("a", "10.0.0.9:1", 1), object(), NOW) == ("10.0.0.1:12", "10.0.0.1:1")


def test_an_address_moves_to_its_new_id() -> None:
    tables = RouteTables()
    tables.register(told("a", broker_id=1), object(), NOW)
    tables.register(told("a", broker_id=0), object(), NOW)
    assert tables.addresses == {"a": {0: "10.0.0.1:1"}}


def test_an_address_moves_to_its_new_name() -> None:
    """The end of the old connection may never be heard of: the old name is nobody's then, and goes with the move."""
    tables = RouteTables()
    old, new = object(), object()
    tables.register(told("a", nsq_address="10.0.0.1:2", nsq_topics=frozenset({"q"})), old, NOW)
    tables.register(told("b", topics={"U": T}), new, NOW)
    assert tables.addresses == {"b": {0: "10.0.0.1:1"}}
    assert tables.route("T") is None
    assert not tables.queue_route("q")
    tables.lost(old)
    assert tables.route("U") is not None
    tables.lost(new)
    assert (tables.topics, tables.addresses, tables.cluster_of, tables.live) == ({}, {}, {}, {})


def test_a_master_that_is_gone_is_no_place_for_a_queue_topic_while_there_is_another() -> None:
    """Its slave keeps the broker's name: without that, all of it would be forgotten."""
    tables = RouteTables()
    gone, jobs = object(), frozenset({"jobs"})
    tables.register(told("a", nsq_address="10.0.0.1:2", nsq_topics=jobs | {"here"}), gone, NOW)
    tables.register(told("a", "10.0.0.3:1", 1), object(), NOW)
    tables.register(told("b", "10.0.0.2:1", nsq_address="10.0.0.2:2", nsq_topics=jobs), object(), NOW)
    tables.lost(gone)
    assert tables.queue_route("jobs") == tables.queue_route("new", new=True) == {"b": "10.0.0.2:2"}
    assert tables.queue_route("here") == {"a": "10.0.0.1:2"}  # senders try again until another is the master
    assert tables.queue_route("new") == {}
    tables.register(told("a", "10.0.0.3:1", nsq_address="10.0.0.3:2", nsq_topics=jobs), object(), NOW)
    assert tables.queue_route("jobs") == {"a": "10.0.0.3:2", "b": "10.0.0.2:2"}


def test_only_the_registrant_may_unregister() -> None:
    tables = RouteTables()
    mine = object()
    tables.register(told(), mine, NOW)
    with pytest.raises(Refused):
        tables.unregister("a", "10.0.0.1:1", 0, object())
    with pytest.raises(Refused):
        tables.unregister("a", "10.0.0.1:1", 7, mine)
    tables.unregister("a", "10.0.0.1:1", 0, mine)
    tables.unregister("a", "10.0.0.1:1", 0, mine)
    assert tables.route("T") is None


def test_tools() -> None:
    tables = RouteTables()
    peer = object()
    tables.register(told(topics={"T": T, "U": TopicQueues(1, 1, 6, 1), "V": TopicQueues(1, 1, 6, 2)}), peer, NOW)
    assert tables.clusters() == {"C": ["a"]}
    assert tables.topics_of("C") == ["T", "U", "V"]
    assert tables.topics_of("D") == []
    assert (tables.topics_with(1), tables.topics_with(2), tables.topics_with(2, without=1)) == (["U"], ["V"], ["V"])
    assert tables.set_writable("a", False) == 3
    assert tables.topics["T"]["a"].perm == 4
    assert tables.set_writable("a", True) == 3
    assert tables.topics["T"]["a"].perm == 6
    tables.delete_topic("T", "D")
    assert "T" in tables.topics
    tables.delete_topic("T", "C")
    tables.delete_topic("U")
    assert set(tables.topics) == {"V"}


def test_of_two_brokers_with_one_name_and_id_the_first_stays() -> None:
    tables, here, there = RouteTables(), object(), object()
    first = Registration("broker-a", "127.0.0.1:1", "C", 0, topics={"T": TopicQueues(4, 4, 6)})
    second = Registration("broker-a", "127.0.0.1:2", "C", 0, topics={"T": TopicQueues(8, 8, 6)})
    tables.register(first, here, 0)
    assert tables.rival(second, there, 30_000) == "127.0.0.1:1"
    assert tables.rival(Registration("broker-a", "127.0.0.1:3", "C", 1), there, 30_000) == ""  # a slave is none
    assert tables.rival(second, here, 30_000) == ""  # the same broker under another address
    assert tables.rival(first, there, 30_000) == ""  # the same broker by another connection
    tables.register(first, here, 60_000)
    assert tables.rival(second, there, 110_000) == "127.0.0.1:1"
    assert tables.rival(second, there, 130_000) == ""  # nothing was heard of the other for long
    tables.lost(here)  # it died: whoever comes next is the broker, wherever it is
    assert tables.rival(second, there, 60_001) == ""


def test_the_newest_master_of_a_replica_set_counts() -> None:
    tables, here, there = RouteTables(), object(), object()
    old = Registration("broker-a", "127.0.0.1:1", "C", 0, "127.0.0.1:11", epoch=3)
    new = Registration("broker-a", "127.0.0.1:2", "C", 0, "127.0.0.1:12", epoch=4)
    tables.register(old, here, 0)
    assert tables.rival(new, there, 1) == ""  # though the other one was just heard of: it may hang
    tables.register(new, there, 1)
    assert tables.addresses["broker-a"] == {0: "127.0.0.1:2"}
    assert tables.superseded(old) == 4
    assert tables.superseded(new) == 0
    assert tables.master_of("broker-a") == ("127.0.0.1:12", "127.0.0.1:2")
    slave = Registration("broker-a", "127.0.0.1:1", "C", 1, epoch=3)
    foreign = Registration("broker-a", "127.0.0.1:3", "C", 0)
    assert tables.superseded(slave) == tables.superseded(foreign) == 0
    assert tables.rival(foreign, here, 2) == "127.0.0.1:2"  # it says no epoch: it is a broker of the same name
    assert tables.rival(Registration("broker-a", "127.0.0.1:4", "C", 0, epoch=4), here, 2) == "127.0.0.1:2"
    tables.lost(there)
    tables.lost(here)
    assert tables.superseded(old) == 0  # the set is forgotten, and comes anew
