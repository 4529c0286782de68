"""The snapshot of a broker with both kinds of topic, read by both kinds of client."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

from nsq_peer import NsqPeer

import penstock
from penstock.fronts.snapshot import Snapshot
from penstock.testing import Broker


def _ask(broker: Broker, query: str) -> Any:
    with urllib.request.urlopen(f"http://{broker.http}/api/snapshot?{query}") as answer:
        return json.loads(answer.read())


def test_both_kinds_and_both_protocols() -> None:
    with Broker() as broker:
        reader = NsqPeer(broker.nsq)
        assert reader.ask(b"SUB q c\n") == b"OK"
        writer = NsqPeer(broker.nsq)
        assert writer.ask(b"PUB q\n\x00\x00\x00\x02hi") == b"OK"
        with penstock.Producer(broker.registry) as producer:
            for n in range(12):
                producer.send(penstock.Message("orders", b"%d" % n))
            with penstock.PullConsumer(broker.registry, group="g") as consumer:
                queue = consumer.queues("orders")[0]
                consumer.commit({queue: 1})
            told = _ask(broker, "")
            topics = {row["topic"]: row for row in told["topics"]}
            assert (topics["orders"]["kind"], topics["orders"]["messages"]) == ("log", 12)
            (group,) = topics["orders"]["readers"]
            assert (group["name"], group["kind"], group["lag"] > 0) == ("g", "group", True)
            (channel,) = topics["q"]["readers"]
            assert (channel["name"], channel["lag"], channel["consumers"]) == ("c", 1, 1)
            clients = {(one["protocol"], one["role"]): one for one in told["clients"]}
            assert {("nsq", "consumer"), ("nsq", "producer"), ("rocketmq", "producer")} <= clients.keys()
            assert clients["nsq", "consumer"]["topic"] == "q"
            alone = _ask(broker, "topic=orders&parts=topics")["topics"]
            assert [row["topic"] for row in alone] == ["orders"]
            assert sum(one["end"] - one["first"] for one in alone[0]["offsets"]) == 12
            assert alone[0]["readers"][0]["offsets"] == {str(queue.queue_id): 1}
        reader.socket.close()
        writer.socket.close()
        assert broker.call(lambda server: list(Snapshot(server.broker, "none").topics())) == []
