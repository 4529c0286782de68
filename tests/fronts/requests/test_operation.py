"""Who is connected, page by page; a broker inside a program has no settings to read again."""

from __future__ import annotations

import pytest

from fronts.nsq_peer import NsqPeer, sized
from penstock import Admin, Message, Producer, PushConsumer
from penstock.errors import BrokerRefused, NotFound
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


def test_a_client_of_either_protocol_is_disconnected() -> None:
    with Broker() as broker, Admin(broker.registry) as admin, Producer(broker.registry, group="shop") as producer:
        producer.send(Message("orders", b"x"))
        reader, other = NsqPeer(broker.nsq), NsqPeer(broker.nsq)
        reader.subscribe(b"jobs", b"work", 5)
        other.subscribe(b"jobs", b"work", 5)
        eventually(lambda: [row for row in admin.clients() if row["of"] == "shop"])
        eventually(lambda: len([row for row in admin.clients() if row["protocol"] == "nsq"]) == 2)
        port = reader.socket.getsockname()[1]
        address = next(row["address"] for row in admin.clients() if row["address"].endswith(f":{port}"))
        assert admin.disconnect(address) == 1
        reader.socket.settimeout(60)
        while reader.socket.recv(100):
            pass
        reader.close()
        eventually(lambda: len([row for row in admin.clients() if row["protocol"] == "nsq"]) == 1)
        with pytest.raises(NotFound, match="no client is connected from"):
            admin.disconnect(address)
        address = next(row["address"] for row in admin.clients() if row["of"] == "shop")
        assert admin.disconnect(address) >= 1
        producer.send(Message("orders", b"again"))  # it comes again
        other.close()


def test_no_settings_to_read_again() -> None:
    with (
        Broker() as broker,
        Admin(broker.registry) as admin,
        pytest.raises(BrokerRefused, match="not started by a command"),
    ):
        admin.reload_config()
