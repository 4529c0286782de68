"""Requests of the tools: topics and configuration."""

from __future__ import annotations

from pathlib import Path

from fronts.raw_peer import RawPeer
from penstock.fronts.requests.admin import Administration
from penstock.testing import Broker
from penstock.wire.record import iter_records


def test_topic_of_a_million_queues(peer: RawPeer) -> None:
    ext = {"topic": "Wide", "defaultTopic": "TBW102", "readQueueNums": 10**6, "writeQueueNums": 10**6, "perm": 6,
           "topicFilterType": "SINGLE_TAG"}  # fmt: skip
    assert peer.ask(17, ext).code == 1
    assert peer.ask(17, ext | {"readQueueNums": 2, "writeQueueNums": 2}).code == 0
    assert peer.ask(17, ext | {"topic": "../../x", "readQueueNums": 2, "writeQueueNums": 2}).code == 1


def test_configuration_is_not_writable(peer: RawPeer) -> None:
    assert peer.ask(25, body=b"rocketmqHome=/tmp\n").code == 16


def test_a_topic_made_anew_goes_on_behind_the_old_offsets(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        peer = RawPeer(broker.remoting)
        for i in range(3):
            peer.send("Anew", b"old %d" % i)
        assert peer.ask(215, {"topic": "Anew"}).code == 0
        assert peer.pull("Anew", 0, 0).code == 17
        assert peer.ask(215, {"topic": "TBW102"}).code == 1
        peer.close()
    with Broker(tmp_path) as broker:
        peer = RawPeer(broker.remoting)
        assert peer.send("Anew", b"new").ext["queueOffset"] == "3"
        moved = peer.pull("Anew", 0, 0)
        assert (moved.code, moved.ext["nextBeginOffset"]) == (21, "3")
        assert [m.body for m in iter_records(peer.pull("Anew", 0, 3).body)] == [b"new"]
        assert peer.ask(329).code == 0
        peer.close()


def test_each_request_of_the_table_has_its_method() -> None:
    assert Administration.TABLE
    for code, name in Administration.TABLE.items():
        assert callable(getattr(Administration, name, None)), code
