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
    assert isinstance(row["disk"], float)  # it was a text
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
    assert "say --force" in run("client", "disconnect", "1.2.3.4:5", status=2)
    assert "no client is connected" in run("client", "disconnect", "1.2.3.4:5", "--force", status=3)
    with Producer(broker.registry, group="cut-off") as producer:
        producer.send(Message("orders", b"x"))
        (row,) = run("client", "ls", "--of", "cut-off", rows=True)
        assert "connections ended" in run("client", "disconnect", row["address"], "--force")
        producer.send(Message("orders", b"again"))
    assert set(client.commands) == {"ls", "disconnect"}
