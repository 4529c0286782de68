"""Groups and their offsets, without sockets."""

from __future__ import annotations

import pytest

from penstock.broker.groups import GroupTable, OffsetTable
from penstock.errors import Refused


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
