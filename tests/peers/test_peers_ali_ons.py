"""The unchanged `ali-ons` package of npm (JSON headers with numbers, send V2) against our broker."""

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from penstock import Message, Producer
from penstock.testing import Broker

Stored = Callable[[str], list[Any]]


@pytest.mark.sample
def test_send_then_push(ali_ons: Any, topic: str, group: str, stored: Stored) -> None:
    sent = ali_ons.run("send", topic, "P", 6, "TagA")
    assert [line["status"] for line in sent] == ["SEND_OK"] * 6
    messages = stored(topic)
    assert sorted(m.body for m in messages) == [b"%d" % i for i in range(6)]
    assert {(m.tags, len(m.keys)) for m in messages} == {("TagA", 1)}
    got = ali_ons.run("push", topic, group, 6)
    assert sorted(line["body"] for line in got) == [str(i) for i in range(6)]
    assert {line["tags"] for line in got} == {"TagA"}


def test_tags(ali_ons: Any, topic: str, group: str) -> None:
    for tag in ("A", "B"):
        ali_ons.run("send", topic, "P", 3, tag)
    got = ali_ons.run("push", topic, group, 3, "B")
    assert [line["tags"] for line in got] == ["B"] * 3


def test_a_held_pull_wakes(ali_ons: Any, topic: str, group: str, broker: Broker) -> None:
    process = ali_ons.start("push", topic, group, 3)
    ali_ons.wait_for(process)
    time.sleep(2)
    with Producer(broker.registry) as producer:
        producer.send_batch([Message(topic, b"%d" % i) for i in range(3)])
    assert sorted(line["body"] for line in ali_ons.finish(process)) == ["0", "1", "2"]


def test_broadcast(ali_ons: Any, topic: str, group: str) -> None:
    processes = [ali_ons.start("push", topic, group, 4, "*", "broadcast") for _ in range(2)]
    for process in processes:
        ali_ons.wait_for(process)
    time.sleep(2)
    ali_ons.run("send", topic, "P", 4)
    for process in processes:
        assert sorted(line["body"] for line in ali_ons.finish(process)) == ["0", "1", "2", "3"]


def test_retry(ali_ons: Any, topic: str, group: str) -> None:
    ali_ons.run("send", topic, "P", 3)
    got = ali_ons.run("push", topic, group, 4, "*", "cluster", "1")
    assert Counter(line["body"] for line in got) == {"0": 1, "1": 2, "2": 1}
    assert [line["times"] for line in got if line["body"] == "1"] == [0, 1]


def test_large_bodies(ali_ons: Any, topic: str, group: str) -> None:
    ali_ons.run("send", topic, "P", 2, "", 200_000)
    assert [len(line["body"]) for line in ali_ons.run("push", topic, group, 2)] == [200_001] * 2


def test_two_members_share(ali_ons: Any, topic: str, group: str) -> None:
    processes = [ali_ons.start("push", topic, group, 20, "*", "cluster", "", 8) for _ in range(2)]
    for process in processes:
        ali_ons.wait_for(process)
    time.sleep(3)
    ali_ons.run("send", topic, "P", 20)
    got = [ali_ons.finish(process) for process in processes]
    assert sorted(int(line["body"]) for lines in got for line in lines) == list(range(20))
    assert [len(lines) for lines in got] == [10, 10]
