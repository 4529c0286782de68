"""`penstock peek`, `channel peek` and `channel info`, as they are typed."""

import time
from datetime import UTC, datetime

import pytest

from cli.conftest import Run
from penstock import Message, Producer, PushConsumer
from penstock.cli.peek import BODY_SHOWN
from penstock.cli.tools import printable
from penstock.testing import Broker


def test_a_queue_topic(run: Run, broker: Broker) -> None:
    run("topic", "add", "work", "--kind", "queue")
    run("channel", "add", "work", "c")
    with Producer(broker.registry) as producer:
        for body in (b"one", b"\x1b[2Jtwo\xff", b"three"):
            producer.send(Message("work", body))
    for words in (("peek", "work"), ("peek", "work", "--channel", "c"), ("channel", "peek", "work", "c")):
        found = run(*words, rows=True)
        assert [row["encoding"] for row in found] == ["text", "base64", "text"]
        assert [row["broker"] for row in run(*words, "-l", "1", rows=True)] == ["broker-a"]
        table = run(*words)
        assert "\x1b" not in table
        assert "\\x1b[2Jtwo" in table
    for state in ("in-flight", "deferred"):
        assert run("peek", "work", "--state", state, rows=True) == []
        assert "nothing" in run("channel", "peek", "work", "c", "--state", state)
    [info] = run("channel", "info", "work", "c", rows=True)
    assert (info["topic"], info["channel"], info["depth"], info["inFlight"]) == ("work", "c", 3, 0)
    assert "depth" in run("channel", "info", "work", "c")
    run("send", "work", "x" * 200)
    assert f" {'x' * BODY_SHOWN}…" in run("peek", "work")


def test_a_log_topic(run: Run, broker: Broker) -> None:
    with Producer(broker.registry) as producer:
        for n in range(6):
            producer.send(Message("events", b"e%d" % n, keys=(f"k{n}",)))
    found = run("peek", "events", rows=True)
    assert [row["body"] for row in found] == [f"e{n}" for n in range(6)]
    assert [row["body"] for row in run("peek", "events", "--from", "end", "-l", "2", rows=True)] == ["e4", "e5"]
    assert [row["body"] for row in run("peek", "events", "--key", "k3", rows=True)] == ["e3"]
    queue = found[0]["queue"]
    assert {row["queue"] for row in run("peek", "events", "--from", f"{queue}/0", rows=True)} == {queue}
    moment = datetime.fromtimestamp(found[3]["stored"] / 1000, UTC).isoformat()
    assert "e3" in [row["body"] for row in run("peek", "events", "--from", moment, rows=True)]
    assert "e5" in run("peek", "events", "--from", "first")
    for moment in ("-1h", "0001-01-01T00:00:00+00:00"):
        assert run("peek", "events", "--from", moment, rows=True) == found
    run("topic", "purge", "events", "--to", "0001-01-01T00:00:00+00:00", "--yes")
    assert len(run("peek", "events", rows=True)) == 6


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (("peek", "nonesuch"), 3), (("peek", "nonesuch", "-c", "c"), 3), (("channel", "peek", "nonesuch", "c"), 3),
        (("channel", "info", "nonesuch", "c"), 3), (("channel", "info", "", "c"), 3), (("peek", ""), 3),
        (("peek", "known", "-c", "typo"), 3), (("channel", "info", "known", "typo"), 3),
        (("peek", "known", "-l", "0"), 2), (("peek", "known", "-l", "-1"), 2), (("peek", "known", "-l", "1001"), 2),
        (("peek", "known", "--state", "lost"), 2), (("peek", "known", "--from", "last"), 2),
        (("peek", "known", "--key", "k"), 2), (("peek", "known", "-c", "c", "--from", "0"), 2),
        (("peek", "known", "--from", "yesterday"), 2), (("peek", "known", "--from", "2026-11-20T10:00:00"), 2),
        (("peek", "<script>"), 3), (("peek", "known", "--from", "9" * 40), 2),
    ],
)  # fmt: skip
def test_what_is_not_there_or_makes_no_sense(run: Run, words: tuple[str, ...], status: int) -> None:
    run("topic", "add", "known", "--kind", "queue")
    run(*words, status=status)
    assert "nonesuch" not in run("topic", "ls")
    assert run("channel", "ls", "known", rows=True) == []


def test_nothing_is_done_to_a_terminal() -> None:
    assert printable("a\x1b[31m\x07\x9b\u202eä\n") == "a\\x1b[31m\\x07\\x9b\\u202eä\\n"


def test_what_a_consumer_has(run: Run, broker: Broker) -> None:
    """With whom a message is; looking neither times it out nor counts as an attempt."""
    run("topic", "add", "jobs", "--kind", "queue", "--level", "disk")
    run("channel", "add", "jobs", "c")
    with Producer(broker.registry) as producer:
        producer.send(Message("jobs", b"now"))
        producer.send(Message("jobs", b"later", deliver_at_ms=time.time_ns() // 1_000_000 + 3_600_000))
    with PushConsumer("c", broker.registry, kind="queue") as consumer:
        consumer.subscribe("jobs")
        delivery = next(iter(consumer))
        for _ in range(3):
            [row] = run("peek", "jobs", "--state", "in-flight", rows=True)
        assert (row["body"], row["channel"], row["attempts"]) == ("now", "c", 1)
        assert row["address"].startswith("127.0.0.1:")
        assert row["due"] > row["delivered"]
        assert row["client"] in run("channel", "peek", "jobs", "c", "--state", "in-flight")
        assert run("peek", "jobs", "-c", "c", rows=True) == []
        [row] = run("peek", "jobs", "-c", "c", "--state", "deferred", rows=True)
        assert (row["body"], row["attempts"]) == ("later", 0)
        assert "later" in run("peek", "jobs", "--state", "deferred")
        assert delivery.message.attempts == 1
        delivery.ack()
    [info] = run("channel", "info", "jobs", "c", rows=True)
    assert (info["inFlight"], info["requeued"], info["timedOut"], info["deferred"]) == (0, 0, 0, 1)


def test_a_topic_of_either_kind_is_described(run: Run, broker: Broker) -> None:
    with Producer(broker.registry) as producer:
        for n in range(5):
            producer.send(Message("described", b"%d" % n))
    with PushConsumer("readers", broker.registry, start="first") as consumer:
        consumer.subscribe("described")
        for _, delivery in zip(range(5), consumer, strict=False):
            delivery.ack()
    [row] = run("topic", "describe", "described", rows=True)
    assert (row["kind"], row["level"], row["perm"], row["stored"]) == ("log", "os", 6, 5)
    assert row["oldest"] <= time.time_ns() // 1_000_000
    assert [group["group"] for group in row["groups"]] == ["readers"]
    assert "readers" in run("topic", "describe", "described")
    run("topic", "add", "tasks", "--kind", "queue", "--level", "disk")
    [row] = run("topic", "describe", "tasks", rows=True)
    assert (row["kind"], row["level"], row["depth"], row["oldest"], row["channels"]) == ("queue", "disk", 0, None, [])
    run("channel", "add", "tasks", "c")
    with Producer(broker.registry) as producer:
        producer.send(Message("tasks", b"x"))
    [row] = run("topic", "describe", "tasks", rows=True)
    assert [(one["channel"], one["depth"]) for one in row["channels"]] == [("c", 1)]
    text = run("topic", "describe", "tasks")
    assert "RW" in text
    assert "inFlight" in text
    assert "no broker has topic" in run("topic", "describe", "nonesuch", status=3)
    run("topic", "describe", "", status=3)
    assert "nonesuch" not in run("topic", "ls")
