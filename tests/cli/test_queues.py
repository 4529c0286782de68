"""The tools for queue topics, channels and delayed messages, as they are typed."""

import time

import pytest

from cli.conftest import Run
from penstock import Message, Producer
from penstock.testing import Broker


def test_topics_of_both_kinds(run: Run) -> None:
    run("topic", "add", "jobs", "--kind", "queue", "--level", "disk")
    assert run("topic", "add", "events", "--queues", "2", rows=True) == [
        {"topic": "events", "kind": "log", "done": "add"}
    ]
    rows = {row["topic"]: row for row in run("topic", "ls", rows=True)}
    assert (rows["jobs"]["kind"], rows["jobs"]["level"], rows["events"]["kind"]) == ("queue", "disk", "log")
    assert "jobs" in run("topic", "ls")
    run("topic", "rm", "jobs", status=2)  # nobody there to be asked
    assert run("topic", "rm", "jobs", "--force", rows=True) == [{"topic": "jobs", "done": "rm"}]
    run("topic", "rm", "events", "-f")
    assert {"jobs", "events"}.isdisjoint(row["topic"] for row in run("topic", "ls", rows=True))
    run("topic", "add", "one", "two", "three", "--queues", "1")
    assert {"one", "two", "three"} <= {row["topic"] for row in run("topic", "ls", rows=True)}
    assert "os, disk, pair, pair-disk" in run("topic", "add", "log", "--level", "memory", status=2)
    assert "penstock: no broker" in run("topic", "rm", "jobs", "-f", status=3)


def test_channels(run: Run, broker: Broker) -> None:
    run("topic", "add", "work", "--kind", "queue")
    done = {"topic": "work", "channel": "c", "broker": "broker-a", "done": "add"}
    assert run("channel", "add", "work", "c", rows=True) == [done]
    with Producer(broker.registry) as producer:
        producer.send(Message("work", b"x"))
    [row] = run("channel", "ls", "work", rows=True)
    assert (row["channel"], row["depth"], row["paused"]) == ("c", 1, False)
    run("channel", "pause", "work", "c")
    assert run("channel", "ls", rows=True)[0]["paused"]
    run("channel", "unpause", "work", "c")
    run("channel", "empty", "work", "c", "-f")
    [row] = run("channel", "ls", "work", rows=True)
    assert (row["depth"], row["paused"]) == (0, False)
    for verb in ("add", "pause", "unpause"):
        assert "the name of a channel is not empty" in run("channel", verb, "work", "", status=2)
    for verb in ("rm", "empty"):  # as of a variable that is not set: it was the topic that went
        assert "the name of a channel is not empty" in run("channel", verb, "work", "", "-f", status=2)
    assert run("topic", "describe", "work", rows=True)
    run("channel", "rm", "work", "c", status=2)
    run("channel", "rm", "work", "c", "-f")
    assert run("channel", "ls", "work", rows=True) == []
    assert "no broker has topic" in run("channel", "pause", "work", "c", status=3)


def test_delayed(run: Run, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    run("topic", "add", "later", "--kind", "queue")
    run("channel", "add", "later", "c")
    now_ms = time.time_ns() // 1_000_000
    with Producer(broker.registry) as producer:
        producer.send(Message("later", b"queued\nline", deliver_at_ms=now_ms + 1_800_000))
        producer.send(Message("later-log", b"logged", keys=("k",), deliver_at_ms=now_ms + 30_000))
    rows = run("delayed", "ls", rows=True)
    assert [(row["kind"], row["body"]) for row in rows] == [("log", "logged"), ("queue", "queued\nline")]
    assert [row["body"] for row in run("delayed", "ls", "--limit", "1", rows=True)] == ["logged"]
    assert [row["topic"] for row in run("delayed", "ls", "--topic", "later", "--channel", "c", rows=True)] == ["later"]
    table = run("delayed", "ls")
    assert "queued\\nline" in table
    assert rows[0]["id"] in table
    assert [row["topic"] for row in run("delayed", "find", "ueue", rows=True)] == ["later"]
    assert [row["topic"] for row in run("delayed", "find", "--id", "k", rows=True)] == ["later-log"]
    run("delayed", "find", status=2)
    counts = run("delayed", "histogram", rows=True)
    assert [row["count"] for row in counts] == [0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0]
    assert counts[-1]["before"] is None
    assert run("delayed", "histogram", "-t", "later").split("< 1 h")[1].split()[0] == "1"
    assert run("delayed", "cancel", rows[0]["id"], rows=True)[0]["body"] == "logged"
    assert "no delayed message" in run("delayed", "cancel", rows[0]["id"], status=3)
    (moved,) = run("delayed", "fire", "--delay", "9h", rows[1]["id"], rows=True)
    assert moved["due"] > rows[1]["due"]
    assert "no delayed message" in run("delayed", "fire", "--delay", "9h", rows[1]["id"], status=3)
    run("delayed", "fire", "--delay", "9h", "--at", "2030-01-01T00:00:00+00:00", moved["id"], status=2)
    run("delayed", "fire", "broker-a/" + "9" * 30, status=2)
    run("delayed", "ls", "--limit", "9" * 20, status=2)
    assert "time zone" in run("delayed", "fire", "--at", "2030-01-01T00:00:00", moved["id"], status=2)
    run("delayed", "fire", moved["id"])
    deadline = time.monotonic() + 60
    while run("channel", "ls", "later", rows=True)[0]["depth"] != 1:  # it goes there behind the flush of its record
        assert time.monotonic() < deadline
    assert run("delayed", "ls", rows=True) == []
    assert "broker/number" in run("delayed", "fire", "17", status=2)


def test_the_histogram_is_a_chart_on_a_terminal() -> None:
    from penstock.cli.queues import chart

    lines = chart([0, 0, 0, 1, 0, 0, 4, 0, 0, 0, 0], 80).splitlines()
    assert lines[0] == "5 delayed messages"
    bars = {line.partition("█")[0].strip(): line.count("█") for line in lines if "█" in line}
    assert bars["< 1 h"] > bars["< 1 min"] > 0
