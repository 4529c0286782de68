"""The unchanged `rocketmq` wheel of PyPI (C++ client, JSON headers with mixed types) against our broker."""

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from penstock import Message, Producer, PushConsumer
from penstock.testing import Broker

Stored = Callable[[str], list[Any]]


@pytest.mark.sample
def test_send_then_push(wheel: Any, topic: str, group: str, stored: Stored) -> None:
    sent = wheel.run("send", topic, "P", 6, "TagA")
    assert [line["status"] for line in sent] == [0] * 6
    assert {m.msg_id for m in stored(topic)} == {line["id"] for line in sent}
    got = wheel.run("push", topic, group, 6)
    assert sorted(line["body"] for line in got) == [str(i) for i in range(6)]
    assert {(line["tags"], line["colour"], line["topic"]) for line in got} == {("TagA", "red", topic)}
    assert {line["id"] for line in got} == {line["id"] for line in sent}


def test_a_new_topic_is_made(wheel: Any, group: str, stored: Stored) -> None:
    topic = f"New{group}"
    wheel.run("send", topic, "P", 4)
    assert sorted(m.body for m in stored(topic)) == [b"0", b"1", b"2", b"3"]
    assert {m.queue_id for m in stored(topic)} == {0, 1, 2, 3}


def test_oneway(wheel: Any, topic: str, stored: Stored) -> None:
    wheel.run("oneway", topic, "P", 20)
    assert sorted(int(m.body) for m in stored(topic)) == list(range(20))


def test_async(wheel: Any, topic: str, stored: Stored) -> None:
    sent = wheel.run("async", topic, "P", 50)
    assert [line["status"] for line in sent] == [0] * 50
    assert {m.msg_id for m in stored(topic)} == {line["id"] for line in sent}


def test_orderly_send_and_push(wheel: Any, topic: str, group: str) -> None:
    wheel.run("orderly", topic, "P", 20)
    got = wheel.run("push", topic, group, 20, "*", "orderly")
    for queue in (0, 1):
        assert [int(line["body"]) for line in got if line["queue"] == queue] == list(range(queue, 20, 2))


def test_large_bodies_travel_compressed(wheel: Any, topic: str, group: str, stored: Stored) -> None:
    wheel.run("send", topic, "P", 2, "", 100_000)
    assert all(m.sys_flag & 1 and len(m.body) == 100_001 for m in stored(topic))
    got = wheel.run("push", topic, group, 2)
    assert [len(line["body"]) for line in got] == [100_001] * 2


def test_delay(wheel: Any, topic: str, group: str) -> None:
    process = wheel.start("push", topic, group, 1)
    wheel.wait_for(process)
    [sent] = wheel.run("delay", topic, "P", 3)
    [got] = wheel.finish(process)
    assert (got["body"], got["topic"]) == ("later", topic)
    assert got["at"] - sent["at"] > 0.8


def test_tags(wheel: Any, topic: str, group: str) -> None:
    for tag in ("A", "B", "C"):
        wheel.run("send", topic, "P", 2, tag)
    got = wheel.run("push", topic, group, 4, "A || C")
    assert Counter(line["tags"] for line in got) == {"A": 2, "C": 2}


def test_pull(wheel: Any, topic: str, group: str) -> None:
    wheel.run("send", topic, "P", 8, "A")
    wheel.run("send", topic, "P", 4, "B")
    assert len(wheel.run("pull", topic, group)) == 12
    assert [line["tags"] for line in wheel.run("pull", topic, group, "B")] == ["B"] * 4


def test_a_held_pull_wakes(wheel: Any, topic: str, group: str, broker: Broker) -> None:
    process = wheel.start("push", topic, group, 3)
    wheel.wait_for(process)
    time.sleep(1)
    with Producer(broker.registry) as producer:
        for i in range(3):
            producer.send(Message(topic, b"%d" % i, tags="T", properties={"colour": "blue"}))
    got = wheel.finish(process)
    assert sorted(line["body"] for line in got) == ["0", "1", "2"]
    assert {line["colour"] for line in got} == {"blue"}


def test_retry(wheel: Any, topic: str, group: str) -> None:
    process = wheel.start("push", topic, group, 4, "*", "cluster", "1")
    wheel.wait_for(process)
    wheel.run("send", topic, "P", 3)
    got = wheel.finish(process)
    assert Counter(line["body"] for line in got) == {"0": 1, "1": 2, "2": 1}
    assert [line["times"] for line in got if line["body"] == "1"] == [0, 1]


def test_broadcast(wheel: Any, topic: str, group: str) -> None:
    processes = [wheel.start("push", topic, group, 4, "*", "broadcast") for _ in range(2)]
    for process in processes:
        wheel.wait_for(process)
    time.sleep(2)
    wheel.run("send", topic, "P", 4)
    for process in processes:
        assert sorted(line["body"] for line in wheel.finish(process)) == ["0", "1", "2", "3"]


def test_two_members_share(wheel: Any, topic: str, group: str, broker: Broker) -> None:
    """One of theirs and one of ours in one group: each message goes to one of them."""
    ours: list[bytes] = []
    with PushConsumer(group, broker.registry, listener=lambda m: ours.append(m.body), start="first") as consumer:
        consumer.subscribe(topic)
        process = wheel.start("push", topic, group, 20, "*", "cluster", "", 6)
        wheel.wait_for(process)
        time.sleep(3)
        wheel.run("send", topic, "P", 20)
        theirs = [line["body"] for line in wheel.finish(process)]
        deadline = time.monotonic() + 5
        while len(ours) + len(theirs) < 20 and time.monotonic() < deadline:
            time.sleep(0.05)
    assert sorted(int(b) for b in [*ours, *theirs]) == list(range(20))
    assert ours
    assert theirs
