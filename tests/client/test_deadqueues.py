"""`client.deadqueues`: dead letters of queue topics, read and sent again at a real broker."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock import Admin, Message, Producer, PushConsumer
from penstock.client.deadletters import DeadLetters
from penstock.client.deadqueues import DeadQueues
from penstock.client.results import Reject
from penstock.errors import NotFound
from penstock.message import ReceivedMessage
from polling import eventually

Fresh = Callable[[str], str]


def died(registry: str, topic: str, bodies: list[bytes]) -> None:
    """These messages of a queue topic are rejected by the channel `work`."""

    def refuse(message: object) -> None:
        raise Reject("no")

    with Admin(registry) as admin, Producer(registry, kind="queue") as producer:
        admin.change_queue(topic, "add")
        admin.change_queue(topic, "add", channel="work")
        for body in bodies:
            producer.send(Message(topic, body))
        with PushConsumer("work", registry, listener=refuse) as consumer:
            consumer.subscribe(topic)
            eventually(lambda: depth(admin, f"{topic}.work.dead") == len(bodies))


def depth(admin: Admin, topic: str) -> int:
    rows = admin.queue_topics(topic)
    return sum(row["depth"] + sum(one["depth"] for one in row["channels"]) for row in rows)


def test_why_they_died_and_each_is_sent_once(registry: str, fresh: Fresh) -> None:
    topic = fresh("jobs")
    died(registry, topic, [b"one", b"two", b"\xffthree"])
    with Admin(registry) as admin, DeadLetters(registry) as letters:
        queue = DeadQueues(admin, f"{topic}.work.dead")
        assert queue.there
        assert not DeadQueues(admin, f"{topic}.other.dead").there
        found = list(queue.letters())
        assert [one.body for one in found] == [b"one", b"two", b"\xffthree"]
        first = found[0]
        assert (first.properties["DLQ_REASON"], first.properties["DLQ_GROUP"]) == ("rejected", "work")
        assert first.properties["RETRY_TOPIC"] == topic
        assert first.msg_id == first.nsq_id
        told: list[tuple[int, str]] = []

        def tell(message: ReceivedMessage, to: str) -> None:
            told.append((message.queue_offset, to))

        name = f"{topic}.work"
        assert letters.redrive(name, dry_run=True, each=tell).topics == {topic: 3}
        assert told == [(n, topic) for n in range(3)]
        assert letters.resend(name, [found[1].msg_id, found[1].msg_id]).count == 1
        eventually(lambda: depth(admin, topic) == 1)
        assert [one.body for one, _ in letters.letters(name)] == [b"one", b"\xffthree"]
        assert letters.redrive(name, limit=1, rate=1000).count == 1
        assert letters.redrive(f"{name}.dead").count == 1
        assert letters.redrive(name).count == 0
        assert letters.delete_sent(name) == 0
        eventually(lambda: depth(admin, topic) == 3)
        (row,) = [one for one in letters.topics() if one.name == name]
        assert (row.kind, row.count, row.left) == ("queue", 0, 0)


def test_more_than_a_page(registry: str, fresh: Fresh) -> None:
    topic = fresh("many")
    died(registry, topic, [b"%d" % n for n in range(250)])
    with Admin(registry) as admin, DeadLetters(registry) as letters:
        assert letters.redrive(f"{topic}.work", text="1", limit=120).count == 120
        assert letters.redrive(f"{topic}.work").count == 130
        eventually(lambda: depth(admin, topic) == 250)
        with pytest.raises(NotFound):
            letters.redrive(f"{topic}.other")
