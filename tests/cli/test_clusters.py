"""`penstock client ls`, `penstock broker ls`, as they are typed."""

from __future__ import annotations

from cli.conftest import Run
from penstock import Message, Producer
from penstock.cli.clusters import broker_ls, client
from penstock.testing import Broker


def test_brokers(run: Run, broker: Broker) -> None:
    (row,) = run("broker", "ls", rows=True)
    assert (row["broker"], row["role"], row["address"], row["state"]) == ("broker-a", "master", broker.remoting, "up")
    assert row["up_s"] >= 0
    assert "broker-a" in run("broker", "ls")
    assert broker_ls.name == "ls"


def test_clients(run: Run, broker: Broker) -> None:
    with Producer(broker.registry, group="shop") as producer:
        producer.send(Message("orders", b"x"))
        rows = run("client", "ls", "--of", "shop", rows=True)
        assert [(row["broker"], row["protocol"], row["role"]) for row in rows] == [("broker-a", "rocketmq", "producer")]
        assert "shop" in run("client", "ls")
        assert run("client", "ls", "--protocol", "nsq", "--of", "shop", rows=True) == []
    run("client", "ls", "--protocol", "mqtt", status=2)
    assert list(client.commands) == ["ls"]
