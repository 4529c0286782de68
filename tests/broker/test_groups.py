"""Groups and their offsets, without sockets."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.queueside import Side
from penstock.broker.groups import GroupTable, OffsetTable, lag, oldest_ms
from penstock.errors import Refused
from penstock.limits import Limits
from penstock.wire.names import SYSTEM_GROUPS


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


def test_there_is_room_for_so_many() -> None:
    limits = Limits(max_groups=2 + len(SYSTEM_GROUPS))
    groups = GroupTable(limits=limits)
    groups.find("a", 5)
    for names in (("b", "c"), ("b", "c", "a")):
        with pytest.raises(Refused, match="no more than"):
            groups.demand_room(names)
    groups.demand_room(("b", "b", "a"))
    groups.find("b", 5)
    groups.demand_room(("a", "b"))
    with pytest.raises(Refused):
        groups.find("c", 5)
    assert limits.reached["groups"] == 3
    groups.update({"groupName": "c"}, 6)  # a slave has all that its master has
    groups.delete("b", 7)
    groups.delete("c", 7)
    assert groups.find("d", 8).name == "d"


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


def test_a_queue_in_which_a_group_committed_nothing_is_still_before_it(tmp_path: Path) -> None:
    side = Side(tmp_path)
    topic = side.broker.sending.topic_to_write(b"logs", queues=3)
    for number, count in enumerate((4, 2, 0)):
        for _ in range(count):
            broker = side.broker
            broker.put(topic, number, b"x", {}, born_host=broker.store_host, born_ms=broker.now_ms)
    side.turn(5_000)
    store, now_ms = side.broker.store, side.broker.now_ms
    assert lag(topic.queues, {0: 3}) == 1 + 2
    assert lag(topic.queues, {0: 9, 1: 2}) == 0  # beyond the end is nothing
    assert lag(topic.queues, {}) == 0  # nobody knows where it will begin
    assert oldest_ms(store, topic.queues, {0: 4, 1: 0}, now_ms) >= 5_000
    assert oldest_ms(store, topic.queues, {0: 4, 1: 2}, now_ms) == 0
    side.close()
