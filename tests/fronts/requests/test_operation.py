"""Who is connected, page by page; a broker inside a program has no settings to read again."""

from __future__ import annotations

import pytest

from fronts.nsq_peer import NsqPeer, sized
from penstock import Admin, Message, Producer, PushConsumer
from penstock.errors import BrokerRefused
from penstock.fronts.requests import operation
from penstock.testing import Broker
from polling import eventually


def test_clients_of_both_protocols(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operation, "ROWS_MAX", 2)
    with Broker() as broker, Admin(broker.registry) as admin, Producer(broker.registry, group="shop") as producer:
        assert admin.clients() == []
        producer.send(Message("orders", b"x"))
        peer = NsqPeer(broker.nsq)
        assert peer.ask(b"PUB jobs\n" + sized(b"x")) == b"OK"
        reader = NsqPeer(broker.nsq)
        reader.subscribe(b"jobs", b"work", 5)
        with PushConsumer("billing", broker.registry) as consumer:
            consumer.subscribe("orders")
            wanted = {
                ("rocketmq", "producer", "shop"), ("rocketmq", "consumer", "billing"), ("nsq", "producer", "jobs"),
                ("nsq", "consumer", "jobs/work"),
            }  # fmt: skip
            eventually(lambda: {(row["protocol"], row["role"], row["of"]) for row in admin.clients()} == wanted)
        found = {row["role"]: row for row in admin.clients() if row["protocol"] == "nsq"}
        assert found["consumer"]["inFlight"] == 1
        assert found["consumer"]["address"].endswith(f":{reader.socket.getsockname()[1]}")
        peer.close()
        reader.close()
        eventually(lambda: not [row for row in admin.clients() if row["protocol"] == "nsq"])


def test_no_settings_to_read_again() -> None:
    with (
        Broker() as broker,
        Admin(broker.registry) as admin,
        pytest.raises(BrokerRefused, match="not started by a command"),
    ):
        admin.reload_config()
