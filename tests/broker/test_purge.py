"""Purging: what lies below a place is gone for groups and channels, over a restart and a kill, and nothing else is."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from broker.queueside import Side
from cli.conftest import rows_of
from ha_parts import SMALL, Process
from penstock import Admin, Message, Producer, PullConsumer
from penstock.broker.purge import Purge
from penstock.cli.main import main
from penstock.client.routes import MessageQueue
from penstock.errors import BrokerRefused, NotFound, Refused


@pytest.fixture
def side(tmp_path: Path) -> Iterator[Side]:
    side = Side(tmp_path)
    yield side
    side.close()


def put(side: Side, name: bytes, count: int, ms: int = 1000) -> None:
    topic = side.broker.topics.get(name) or side.broker.topics.create(name, 2, 2)
    for n in range(count):
        properties = {"UNIQ_KEY": f"u{n}"}
        side.broker.put(topic, n % 2, b"%d" % n, properties, born_host=side.broker.store_host, born_ms=1)
        side.turn(ms)


def steps(side: Side, topic: str, to: str, queue: int | None = None) -> list[tuple[int, int, int]]:
    return [tuple(step) for step in Purge(side.broker, topic, to, queue).plan()]  # type: ignore[misc]


def test_places_of_a_log_topic(side: Side) -> None:
    put(side, b"T", 10)
    assert steps(side, "T", "end") == [(0, 0, 5), (1, 0, 5)]
    assert steps(side, "T", "3") == [(0, 0, 3), (1, 0, 3)]
    assert steps(side, "T", "99", 1) == [(1, 0, 5)]
    assert steps(side, "T", "time:0") == [(0, 0, 0), (1, 0, 0)]
    middle = side.broker.store.store_time(side.broker.topics.by_name[b"T"].queues[0], 2)
    assert steps(side, "T", f"time:{middle}") == [(0, 0, 2), (1, 0, 2)]
    wrong = (("T", "soon", None), ("T", "-1", None), ("T", "1", 2), ("U", "end", None), ("T", "time:", None))
    for topic, to, queue in wrong:
        with pytest.raises(Refused):
            steps(side, topic, to, queue)
    with pytest.raises(Refused):
        steps(side, "SCHEDULE_TOPIC_XXXX", "end")


def test_what_cannot_be_written_is_taken_back(side: Side) -> None:
    put(side, b"T", 10)
    _, undo = Purge(side.broker, "T", "3").run()
    queue = side.broker.topics.by_name[b"T"].queues[0]
    assert queue.min_offset == 3
    undo()
    assert queue.min_offset == 0
    _, undo = Purge(side.broker, "T", "2").run()
    Purge(side.broker, "T", "1").run()  # never back
    assert queue.min_offset == 2


@pytest.mark.parametrize("level", ["os", "disk", "memory"])
def test_a_queue_topic(side: Side, level: str) -> None:
    topic = side.queueing.topic(b"q", level)
    ahead, behind = topic.channel(b"ahead"), topic.channel(b"behind")
    for n in range(10):
        side.queueing.publish(topic, [b"%d" % n])
        side.turn(1000)
    if level == "memory":
        with pytest.raises(Refused, match="to its end only"):
            steps(side, "q", "3")
    else:
        assert steps(side, "q", "3") == [(0, 0, 3)]
        Purge(side.broker, "q", "3").run()
        side.turn(10)
        assert (behind.depth(), ahead.depth()) == (7, 7)
        ready = topic.streams()[0]
        assert ready.find(5)
        Purge(side.broker, "q", f"time:{ready.stamp_ns // 1_000_000}").run()
        assert behind.depth() == 5
        assert steps(side, "q", "2") == [(0, 5, 5)]  # it goes never back
    Purge(side.broker, "q", "end").run()
    side.turn(10)
    assert (behind.depth(), ahead.depth()) == (0, 0)
    side.queueing.publish(topic, [b"new"])
    side.turn(10)
    assert (behind.depth(), ahead.depth()) == (1, 1)


def test_a_queue_topic_without_channels(side: Side) -> None:
    topic = side.queueing.topic(b"q", "os")
    for n in range(10):
        side.queueing.publish(topic, [b"%d" % n])
    side.turn(10)
    Purge(side.broker, "q", "4").run()
    assert topic.depth() == 6
    Purge(side.broker, "q", "end").run()
    assert topic.depth() == 0
    side.queueing.publish(topic, [b"new"])
    side.turn(10)
    assert topic.channel(b"c").depth() == 1


@pytest.mark.parametrize("kind", ["queue", "log"])
def test_what_a_paused_topic_holds_counts_until_it_is_purged(tmp_path: Path, kind: str) -> None:
    side = Side(tmp_path, topic=({"name": "t", "kind": kind, "queues": 1, "level": "os"},))
    topic = side.queueing.topic(b"t")
    topic.channel(b"c")
    topic.pause()
    side.queueing.publish(topic, [b"0", b"1", b"2"])
    side.turn()
    assert topic.depth() == 3
    Purge(side.broker, "t", "2").run()
    assert topic.depth() == 1
    side.queueing.write_table()
    side.reopen(True)
    topic = side.queueing.topics[b"t"]
    assert topic.depth() == 1
    Purge(side.broker, "t", "end").run()
    assert topic.depth() == 0
    side.close()


def test_every_door_over_a_kill(tmp_path: Path) -> None:
    """Groups, channels of log topics, queue topics; the command asks and says what it would do."""
    ports = dict.fromkeys(
        ("remoting_port", "nsq_port", "http_port", "registry_port", "lookup_port", "lookup_http_port"), 0
    )
    process = Process("up", tmp_path / "data", tmp_path / "log", **SMALL, **ports, vip_port="false").start()

    def run(*words: str, status: int = 0) -> str:
        done = CliRunner().invoke(main, [*words, "-n", process.addresses["registry"]])
        assert done.exit_code == status, done.output
        return str(done.output)

    def seen() -> tuple[list[int], int, int, int]:
        with Admin(process.addresses["registry"]) as admin, PullConsumer(process.addresses["registry"]) as consumer:
            deadline = time.monotonic() + 60
            while True:
                try:
                    consumer.assign("orders", [MessageQueue("orders", "broker-a", 0)], start="first")
                    break
                except Exception:
                    assert time.monotonic() < deadline
            found = [int(m.body) for batch in consumer.getmany(5).values() for m in batch]
            channels = {(row["topic"], one["channel"]): one for row in admin.queue_topics() for one in row["channels"]}
            lag = sum(row.lag for row in admin.group_stats("late").values())
            return found, channels["orders", "c"]["depth"], channels["work", "d"]["depth"], lag

    try:
        run("topic", "add", "orders", "--queues", "1")
        run("topic", "add", "work", "--kind", "queue")
        run("channel", "add", "orders", "c")
        run("channel", "add", "work", "d")
        with Producer(process.addresses["registry"]) as producer:
            for n in range(8):
                producer.send(Message("orders", b"%d" % n))
                producer.send(Message("work", b"%d" % n))
        with PullConsumer(process.addresses["registry"], group="late") as consumer:
            consumer.commit({MessageQueue("orders", "broker-a", 0): 1})
        assert seen() == ([0, 1, 2, 3, 4, 5, 6, 7], 8, 8, 7)
        would = rows_of(run("topic", "purge", "orders", "--to", "5", "--dry-run", "--json"))
        assert [(row["from"], row["to"], row["messages"], row["done"]) for row in would] == [(0, 5, 5, "")]
        run("topic", "purge", "orders", "--to", "5", status=2)  # not asked on a terminal
        assert seen() == ([0, 1, 2, 3, 4, 5, 6, 7], 8, 8, 7)
        assert rows_of(run("topic", "purge", "orders", "--to", "5", "-f", "--json"))[0]["done"] == "purge"
        run("topic", "purge", "work", "--to", "6", "-f")
        assert seen() == ([5, 6, 7], 3, 2, 3)
        process.kill()
        process.start()
        assert seen()[:3] == ([5, 6, 7], 3, 2)  # committed offsets are written every 5 s
        run("group", "reset", "late", "orders", "--to", "0", "--new")
        run("group", "reset", "late", "orders", "--to", "0")
        assert seen()[3] == 3  # nobody gets behind it again
        moment = datetime.now(UTC).isoformat()
        run("topic", "purge", "orders", "--to", moment, "-f")
        run("topic", "purge", "work", "-f")
        assert seen() == ([], 0, 0, 0)
        process.stop()
        process.start()
        assert seen() == ([], 0, 0, 0)
        with Producer(process.addresses["registry"]) as producer:
            assert producer.send(Message("orders", b"9")).queue_offset == 8  # offsets go on
        assert seen() == ([9], 1, 0, 1)
        run("topic", "purge", "nosuch", "-f", status=3)
        run("topic", "purge", "orders", "--to", "yesterday", "-f", status=2)
        run("topic", "purge", "orders", "--to", "2026-11-20T10:00:00", "-f", status=2)
        with Admin(process.addresses["registry"]) as admin:
            with pytest.raises(NotFound):
                admin.purge_topic("nosuch")
            with pytest.raises(BrokerRefused):
                admin.purge_topic("SCHEDULE_TOPIC_XXXX")
        assert json.loads(run("topic", "describe", "orders", "--json"))["stored"] == 1
    finally:
        process.stop()
