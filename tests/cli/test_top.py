"""`penstock top`: rates from counters read twice, of both kinds of topic."""

from __future__ import annotations

import socket
from typing import cast

import pytest

from cli.conftest import Run
from penstock import Admin, Message, Producer, PullConsumer
from penstock.cli.top import Rates, lines, snapshot
from penstock.testing import Broker
from polling import eventually


def test_rates() -> None:
    rates = Rates()
    assert rates.of(("t", "in"), 5, 1.0) is None
    assert rates.of(("t", "in"), 25, 3.0) == 10.0
    assert rates.of(("t", "in"), 3, 4.0) is None  # the broker started again
    assert rates.of(("t", "in"), 4, 4.0) is None


def test_both_kinds(run: Run, broker: Broker) -> None:
    rates = Rates()
    with Admin(broker.registry) as admin, Producer(broker.registry) as producer:
        admin.create_topic("seen", 1)
        admin.change_queue("work", "add")
        admin.change_queue("work", "add", channel="c")
        producer.send(Message("seen", b"x"))
        producer.send(Message("work", b"x"))
        with PullConsumer(broker.registry, group="late") as consumer:
            consumer.commit({admin.route("seen").subscribe_queues()[0]: 0})
        snapshot(admin, rates, 10.0)
        for _ in range(4):
            producer.send(Message("seen", b"x"))
            producer.send(Message("work", b"x"))
        rows = {(row["topic"], row["reader"]): row for row in snapshot(admin, rates, 12.0)}
    for key in (("seen", "late"), ("work", "c")):
        assert (rows[key]["in_s"], rows[key]["out_s"], rows[key]["lag"]) == (2.0, 0.0, 5)
        assert float(str(rows[key]["lag_s"])) >= 0
    assert "seen" in run("top", "--count", "2", "--interval", "0.1")
    assert {"topic", "lag"} <= set(run("top", "--count", "1", rows=True)[0])


def test_a_channel_of_a_log_topic_is_one_row(broker: Broker) -> None:
    """It has committed offsets, as a group has: it had two rows, which counted with one another's counters."""
    host, _, port = broker.nsq.rpartition(":")
    with (
        socket.create_connection((host, int(port)), 20) as consumer,
        Producer(broker.registry) as producer,
        Admin(broker.registry) as admin,
    ):
        admin.create_topic("both", 1)
        consumer.sendall(b"  V2SUB both c\nRDY 1\n")
        assert consumer.recv(10) == b"\0\0\0\6\0\0\0\0OK"
        producer.send(Message("both", b"x"))
        message = consumer.recv(100)
        consumer.sendall(b"FIN %s\n" % message[18:34])
        eventually(lambda: any(queue.topic == "both" for queue in admin.all_group_stats().get("c", ())))
        (row,) = [row for row in snapshot(admin, Rates(), 1.0) if row["topic"] == "both"]
        assert (row["kind"], row["reader"]) == ("log", "c")


def test_a_topic_that_is_deleted_meanwhile(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    with Admin(broker.registry) as admin:
        admin.create_topic("stays", 1)
        admin.change_queue("stays-too", "add")
        there = admin.topics()
        monkeypatch.setattr(admin, "topics", lambda: [*there, "deleted"])
        kinds = {row["topic"]: row["kind"] for row in snapshot(admin, Rates(), 1.0)}
        assert (kinds["stays"], kinds["stays-too"]) == ("log", "queue")  # which nobody reads


def test_a_topic_that_its_broker_has_no_more_and_the_registry_still_has(broker: Broker, run: Run) -> None:
    run("topic", "add", "half-gone")
    with Admin(broker.registry) as admin:
        eventually(lambda: "half-gone" in admin.topics())
        broker.call(lambda server: server.broker and server.broker.topics.delete(b"half-gone", server.broker.now_ms))
        assert "half-gone" in admin.topics()
    assert "half-gone" not in run("top", "--count", "1")


def test_a_channel_that_several_brokers_have_is_one_row() -> None:
    def told(messages: int, depth: int, age_ms: int | None) -> dict[str, object]:
        channel = {"channel": "c", "messages": messages, "depth": depth, "inFlight": 1, "lagMillis": age_ms}
        return {"topic": "jobs", "kind": "queue", "messages": messages, "channels": [channel]}

    class Cluster:
        """Two brokers whose channels each had 10 messages more a second."""

        at = 0

        def topics(self) -> list[str]:
            return []

        def all_group_stats(self) -> dict[str, object]:
            return {}

        def queue_topics(self) -> list[dict[str, object]]:
            self.at += 10
            return [told(self.at, 2, 7_000), told(1_000 + self.at, 3, 9_000)]

    cluster, rates = cast(Admin, Cluster()), Rates()
    snapshot(cluster, rates, 1.0)
    (row,) = snapshot(cluster, rates, 2.0)
    assert (row["in_s"], row["out_s"], row["lag"], row["lag_s"]) == (20.0, 20.0, 7, 9.0)


def test_a_screen_is_no_larger_than_the_terminal() -> None:
    row = {"topic": "a\x1b[2Jb" * 30, "kind": "log", "reader": "", "in_s": None, "out_s": 1.0, "lag": 5, "lag_s": None}
    shown = list(lines([row] * 50, 40, 10))
    assert len(shown) == 9
    assert all(len(line) <= 40 and "\x1b" not in line for line in shown)
