"""Requests that look messages up."""

from __future__ import annotations

import json

from fronts.raw_peer import RawPeer, heartbeat
from penstock.fronts.requests.lookup import Lookup
from penstock.wire.record import iter_records


def test_view_by_offset_gives_records_only(peer: RawPeer) -> None:
    placed = peer.send("View", b"x" * 100)
    physical = int(placed.ext["msgId"][16:], 16)
    found = peer.ask(33, {"offset": physical})
    assert found.code == 0
    assert next(iter_records(found.body)).body == b"x" * 100
    for offset in (1 << 60, 3, -1, physical + 50, physical + 1):
        answer = peer.ask(33, {"offset": offset})
        assert (answer.code, answer.remark) == (1, f"can not find message by the offset, {offset}")


def test_query_by_key(peer: RawPeer) -> None:
    peer.send("Keyed", b"one", {"KEYS": "a b", "UNIQ_KEY": "U1"})
    peer.send("Keyed", b"two", {"KEYS": "b", "UNIQ_KEY": "U2"})
    span = {"topic": "Keyed", "maxNum": 10, "beginTimestamp": 0, "endTimestamp": 1 << 60}
    assert sorted(m.body for m in iter_records(peer.ask(12, span | {"key": "b"}).body)) == [b"one", b"two"]
    unique = peer.ask(12, span | {"key": "U2", "_UNIQUE_KEY_QUERY": "true"})
    assert [m.body for m in iter_records(unique.body)] == [b"two"]
    assert peer.ask(12, span | {"key": "nothing"}).code == 22


def test_each_request_of_the_table_has_its_method() -> None:
    assert Lookup.TABLE
    for code, name in Lookup.TABLE.items():
        assert callable(getattr(Lookup, name, None)), code


def test_entries_of_a_consume_queue(peer: RawPeer) -> None:
    for n in range(5):
        peer.send("Cq", b"%d" % n, {"TAGS": "TagA"} if n else {})
    ask = lambda **more: peer.ask(321, {"topic": "Cq", "queueId": 0, "index": 1, "count": 2, **more})  # noqa: E731
    body = json.loads(ask().body)
    assert (body["minQueueIndex"], body["maxQueueIndex"]) == (0, 5)
    assert [entry["tagsCode"] for entry in body["queueData"]] == [0x27A807] * 2
    records = list(iter_records(peer.pull("Cq", 0, 1, maxMsgNums=2).body))
    assert [(entry["physicOffset"], entry["physicSize"]) for entry in body["queueData"]] == [
        (record.physical_offset, record.size) for record in records
    ]
    assert "filterData" not in body
    assert len(json.loads(ask(index=0, count=10**9).body)["queueData"]) == 5
    assert json.loads(ask(count=-1).body)["queueData"] == []
    for index in (5, 10**15, -1):
        answer = ask(index=index)
        assert (answer.code, answer.remark) == (0, f"Index {index} of 0@Cq is not exist!")
        assert json.loads(answer.body)["queueData"] == []
    for wrong in ({"queueId": 99}, {"topic": "nosuch"}, {"queueId": -1}):
        assert ask(**wrong).code == 1


def test_entries_of_a_consume_queue_with_who_reads_them(peer: RawPeer) -> None:
    peer.send("CqRead", b"x")
    ask = {"topic": "CqRead", "queueId": 0, "index": 0, "count": 1, "consumerGroup": "CqReaders"}
    assert json.loads(peer.ask(321, ask).body)["filterData"] == "CqReaders@CqRead is not online!"
    heartbeat(peer, "c1", "CqReaders", "CqRead", "TagA")
    body = json.loads(peer.ask(321, ask).body)
    assert (body["filterData"], body["subscriptionData"]["tagsSet"]) == ("null", ["TagA"])
    about = {"topic": "CqRead", "subString": "a > 5", "expressionType": "SQL92", "subVersion": 7}
    consumer = {"groupName": "CqReaders", "consumeType": "CONSUME_PASSIVELY", "subscriptionDataSet": [about]}
    peer.ask(34, body=json.dumps({"clientID": "c1", "consumerDataSet": [consumer]}).encode())
    assert json.loads(json.loads(peer.ask(321, ask).body)["filterData"])["expression"] == "a > 5"
