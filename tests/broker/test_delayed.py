"""`broker.delayed`, through the requests of the tools: what waits for its time is seen, cancelled and fired."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

import penstock
from penstock import Admin, Message, Producer, PushConsumer
from penstock.broker import delayed
from penstock.clock import FakeClock
from penstock.errors import BrokerRefused, NoRoute
from penstock.fronts.requests import queues
from penstock.testing import Broker
from polling import eventually

HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(topic=({"name": "memory*", "kind": "queue", "level": "memory"},)) as broker:
        yield broker


@pytest.fixture
def admin(broker: Broker) -> Iterator[Admin]:
    with Admin(broker.registry) as admin:
        yield admin


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def deferred(broker: Broker, topic: str, channel: str) -> int:
    def count(server: Any) -> int:
        return int(server.broker.queueing.find(topic.encode()).channels[channel.encode()].deferred_count)

    found: int = broker.call(count)
    return found


def channels(admin: Admin, topic: str, *names: str) -> None:
    admin.change_queue(topic, "add")
    for name in names:
        admin.change_queue(topic, "add", channel=name)


def test_both_kinds_by_due_time(broker: Broker, admin: Admin) -> None:
    channels(admin, "both-queue", "a", "b")
    due = now_ms() + HOUR_MS
    with Producer(broker.registry) as producer:
        producer.send(Message("both-log", b"log", keys=("k1",), deliver_at_ms=due + 60_000))
        producer.send(Message("both-queue", b"queue", deliver_at_ms=due))
        producer.send(Message("both-log", b"level", delay_level=18))
    rows = [row for row in admin.delayed() if row["topic"].startswith("both-")]
    assert [(row["kind"], row["topic"], row["channel"], row["body"]) for row in rows] == [
        ("queue", "both-queue", "", "queue"),
        ("log", "both-log", "", "log"),
        ("log", "both-log", "", "level"),
    ]
    assert abs(rows[0]["due"] - due) < 2_000
    assert rows[1]["due"] == due + 60_000
    assert rows[1]["keys"] == ["k1"]
    assert [row["body"] for row in admin.delayed(topic="both-log", limit=1)] == ["log"]
    assert [row["body"] for row in admin.delayed(text="eve", topic="both-log")] == ["level"]
    assert [row["body"] for row in admin.delayed(key="k1")] == ["log"]
    assert [row["body"] for row in admin.delayed(key=rows[2]["msgId"])] == ["level"]
    assert admin.delayed(text="k1", topic="both-log") == []
    assert [row["body"] for row in admin.delayed(topic="both-queue", channel="b")] == ["queue"]
    assert admin.delayed(topic="both-queue", channel="c") == []
    assert admin.delayed_counts([due - 60_000, due + 50_000], topic="both-queue") == [0, 1, 0]


def test_a_requeue_waits_for_its_channel_alone(broker: Broker, admin: Admin) -> None:
    channels(admin, "requeued", "a", "b")
    with Producer(broker.registry) as producer, PushConsumer("a", broker.registry) as consumer:
        producer.send(Message("requeued", b"x"))
        consumer.subscribe("requeued")
        delivery = next(iter(consumer))
        delivery.nack(1800)
        eventually(lambda: deferred(broker, "requeued", "a") == 1)
    [row] = admin.delayed(topic="requeued")
    assert (row["channel"], row["attempts"], row["msgId"]) == ("a", 1, delivery.message.msg_id)
    assert deferred(broker, "requeued", "b") == 0
    admin.cancel_delayed(row["id"])
    assert deferred(broker, "requeued", "a") == 0
    assert admin.delayed(topic="requeued") == []


def test_a_group_s_retry_is_the_group_s(broker: Broker, admin: Admin) -> None:
    with Producer(broker.registry) as producer, PushConsumer("g", broker.registry, start="first") as consumer:
        producer.send(Message("retried", b"x"))
        consumer.subscribe("retried")
        next(iter(consumer)).nack(1234.5)
        [row] = admin.delayed(topic="retried", channel="g")
    assert (row["kind"], row["attempts"]) == ("log", 1)
    assert abs(row["due"] - now_ms() - 1_234_500) < 10_000  # to the millisecond, not by a level


@pytest.mark.parametrize("kind", ["queue", "log"])
def test_cancelled_is_never_delivered_not_after_a_restart(tmp_path: Any, kind: Any) -> None:
    clock = FakeClock(now_ms())
    due = clock.now_ms() + 3_600_000
    with (
        Broker(tmp_path, clock=clock) as broker,
        Producer(broker.registry, kind=kind) as producer,
        Admin(broker.registry) as admin,
    ):
        if kind == "queue":
            channels(admin, "work", "g")
        producer.send(Message("work", b"cancelled", deliver_at_ms=due))
        producer.send(Message("work", b"kept", deliver_at_ms=due))
        ids = {row["body"]: row["id"] for row in admin.delayed()}
        assert admin.cancel_delayed(ids["cancelled"])["body"] == "cancelled"
        with pytest.raises(BrokerRefused, match="no delayed message"):
            admin.cancel_delayed(ids["cancelled"])
        assert [row["body"] for row in admin.delayed()] == ["kept"]
        if kind == "queue":
            assert deferred(broker, "work", "g") == 1
    clock.advance(3_600_000)  # while it was stopped
    with Broker(tmp_path, clock=clock) as broker, PushConsumer("g", broker.registry, start="first") as consumer:
        consumer.subscribe("work")
        assert next(iter(consumer)).body == b"kept"
        with Producer(broker.registry) as producer:
            producer.send(Message("work", b"last"))
        assert next(iter(consumer)).body == b"last"


@pytest.mark.parametrize(("kind", "level"), [("queue", "os"), ("queue", "disk"), ("log", "os")])
def test_moved_comes_at_its_new_time_and_once(tmp_path: Any, kind: Any, level: str) -> None:
    """Earlier, later, and over a restart; a delay level is moved, too. A channel made after it was sent is not owed it."""
    clock = FakeClock(now_ms())
    due = clock.now_ms() + HOUR_MS
    with (
        Broker(tmp_path, clock=clock, level=level) as broker,
        Producer(broker.registry, kind=kind) as producer,
        Admin(broker.registry) as admin,
    ):
        if kind == "queue":
            channels(admin, "work", "g")
        for body in (b"earlier", b"later", b"past"):
            producer.send(Message("work", body, keys=("k",) if kind == "log" else (), deliver_at_ms=due))
        if kind == "log":
            producer.send(Message("work", b"level", delay_level=18))
        if kind == "queue":
            channels(admin, "work", "after")
        ids = {row["body"]: row["id"] for row in admin.delayed()}
        before = admin.delayed(text="later")
        moved = admin.fire_delayed(ids["later"], at_ms=due + HOUR_MS)
        assert (moved["body"], moved["due"]) == ("later", due + HOUR_MS)
        assert moved["id"] != ids["later"]
        with pytest.raises(BrokerRefused, match="no delayed message"):
            admin.fire_delayed(ids["later"], at_ms=due)
        twice = admin.fire_delayed(moved["id"], at_ms=due + 2 * HOUR_MS)
        (found,) = admin.delayed(text="later")
        assert found == {**before[0], "id": twice["id"], "due": due + 2 * HOUR_MS, "stored": found["stored"]} | (
            {"msgId": found["msgId"]} if kind == "log" else {}
        )
        admin.fire_delayed(ids["earlier"], at_ms=due - HOUR_MS // 2)
        admin.fire_delayed(ids["past"], at_ms=1)
        if kind == "log":
            admin.fire_delayed(ids["level"], at_ms=due - HOUR_MS // 4)
        clock.advance(10)
        eventually(lambda: [row["body"] for row in admin.delayed() if row["body"] == "past"] == [])
        if kind == "queue":
            eventually(lambda: deferred(broker, "work", "g") == 2)
            assert deferred(broker, "work", "after") == 0
    clock.advance(HOUR_MS - HOUR_MS // 4)  # while it was stopped
    with Broker(tmp_path, clock=clock, level=level) as broker, Admin(broker.registry) as admin:
        with PushConsumer("g", broker.registry, start="first") as consumer:
            consumer.subscribe("work")
            wanted = {b"past", b"earlier"} | ({b"level"} if kind == "log" else set())
            messages = iter(consumer)
            assert {next(messages).body for _ in wanted} == wanted
            assert [row["body"] for row in admin.delayed()] == ["later"]
            clock.advance(3 * HOUR_MS)
            assert next(messages).body == b"later"
            with Producer(broker.registry, kind=kind) as producer:
                producer.send(Message("work", b"last"))
            assert next(messages).body == b"last"
        if kind == "queue":
            (about,) = admin.queue_topics("work")
            (after,) = [one for one in about["channels"] if one["channel"] == "after"]
            assert after["depth"] == 1  # the last one


def test_a_requeue_is_moved_with_its_attempts(broker: Broker, admin: Admin) -> None:
    channels(admin, "moved-again", "a", "b")
    with Producer(broker.registry) as producer, PushConsumer("a", broker.registry) as consumer:
        producer.send(Message("moved-again", b"x"))
        consumer.subscribe("moved-again")
        next(iter(consumer)).nack(HOUR_MS / 1000)
        eventually(lambda: len(admin.delayed(topic="moved-again", channel="a")) == 1)
        (row,) = admin.delayed(topic="moved-again")
        moved = admin.fire_delayed(row["id"], at_ms=now_ms() + 1_500)
        assert (moved["attempts"], moved["channel"]) == (1, "a")
        again = next(iter(consumer))
        assert (again.message.body, again.message.attempts) == (b"x", 2)
        again.ack()
    eventually(lambda: deferred(broker, "moved-again", "a") == 0)
    assert deferred(broker, "moved-again", "b") == 0


@pytest.mark.parametrize("kind", ["queue", "log"])
def test_fired_is_delivered_at_once_and_once(broker: Broker, admin: Admin, kind: Any) -> None:
    topic = f"fired-{kind}"
    with Producer(broker.registry, kind=kind) as producer:
        if kind == "queue":
            channels(admin, topic, "g")
        producer.send(Message(topic, b"x", deliver_at_ms=now_ms() + HOUR_MS))
        [row] = admin.delayed(topic=topic)
        assert admin.fire_delayed(row["id"])["id"] == row["id"]
        with pytest.raises(BrokerRefused, match="no delayed message"):
            admin.fire_delayed(row["id"])
        assert admin.delayed(topic=topic) == []
        with PushConsumer("g", broker.registry, start="first") as consumer:
            consumer.subscribe(topic)
            assert next(iter(consumer)).body == b"x"
            producer.send(Message(topic, b"y"))
            assert next(iter(consumer)).body == b"y"


def test_what_nobody_is_owed_is_not_shown(broker: Broker, admin: Admin) -> None:
    channels(admin, "emptied", "a")
    with Producer(broker.registry) as producer:
        producer.send(Message("emptied", b"x", deliver_at_ms=now_ms() + HOUR_MS))
    assert len(admin.delayed(topic="emptied")) == 1
    before = admin.delayed_counts([0])[1]
    admin.change_queue("emptied", "empty", channel="a")
    assert admin.delayed(topic="emptied") == []
    assert deferred(broker, "emptied", "a") == 0
    assert admin.delayed_counts([0])[1] == before - 1  # it went on being counted, but for its topic alone
    assert len(admin.delayed(limit=10_000)) == before - 1


def test_memory_is_not_in_the_schedule(broker: Broker, admin: Admin) -> None:
    channels(admin, "memory-1", "a")
    with Producer(broker.registry) as producer:
        producer.send(Message("memory-1", b"x", deliver_at_ms=now_ms() + HOUR_MS))
    assert deferred(broker, "memory-1", "a") == 1
    assert admin.delayed(topic="memory-1") == []


def test_pages_join_up(broker: Broker, admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where many are due at the same moment."""
    monkeypatch.setattr(delayed, "WORK_MAX", 12)
    due = now_ms() + HOUR_MS
    with Producer(broker.registry) as producer:
        for number in range(20):
            producer.send(Message("pages", b"%d" % number, deliver_at_ms=due + number // 8))
    rows = admin.delayed(topic="pages")
    assert [int(row["body"]) for row in rows] == list(range(20))
    assert [int(row["body"]) for row in admin.delayed(topic="pages", limit=5)] == list(range(5))
    assert admin.delayed_counts([due, due + 1, due + 2], topic="pages") == [0, 8, 8, 4]
    assert admin.delayed_counts([], topic="pages") == [20]


def test_bad_requests(admin: Admin) -> None:
    with pytest.raises(ValueError, match="broker/number"):
        admin.cancel_delayed("17")
    with pytest.raises(NoRoute):
        admin.cancel_delayed("nobody/17")
    with pytest.raises(BrokerRefused):
        admin.fire_delayed("broker-a/123456789")
    with pytest.raises(BrokerRefused, match="level"):
        admin.change_queue("fine", "add", level="paper")
    with pytest.raises(BrokerRefused, match="none of add"):
        admin.change_queue("both-queue", "burn")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="not empty"):
        admin.change_queue("both-queue", "rm", channel="")


def test_queue_topics_and_channels_are_changed(broker: Broker, admin: Admin) -> None:
    admin.change_queue("changed", "add", level="disk")
    admin.change_queue("changed", "add", channel="c")
    with Producer(broker.registry) as producer:
        producer.send_batch([Message("changed", b"x")] * 3)
    [row] = admin.queue_topics("changed")
    [channel] = row["channels"]
    assert (row["broker"], row["kind"], row["level"], channel["depth"]) == ("broker-a", "queue", "disk", 3)
    for action, paused in (("pause", True), ("unpause", False)):
        admin.change_queue("changed", action, channel="c")  # type: ignore[arg-type]
        admin.change_queue("changed", action)  # type: ignore[arg-type]
        [row] = admin.queue_topics("changed")
        assert (row["paused"], row["channels"][0]["paused"]) == (paused, paused)
    admin.change_queue("changed", "empty", channel="c")
    assert admin.queue_topics("changed")[0]["channels"][0]["depth"] == 0
    admin.change_queue("changed", "rm", channel="c")
    assert admin.queue_topics("changed")[0]["channels"] == []
    with pytest.raises(NoRoute, match="channel 'c'"):
        admin.change_queue("changed", "rm", channel="c")
    assert admin.route("changed").kind == "queue"
    admin.delete_topic("changed")
    assert admin.queue_topics("changed") == []
    with pytest.raises(NoRoute):
        admin.route("changed")


def test_topics_come_by_pages(broker: Broker, admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = admin.queue_topics()
    monkeypatch.setattr(queues, "ROWS_MAX", 2)
    assert [row["topic"] for row in admin.queue_topics()] == [row["topic"] for row in whole]
    assert len(whole) > 3


def test_a_log_topic_has_channels_and_stays_a_log(broker: Broker, admin: Admin) -> None:
    admin.create_topic("a-log", 1)
    admin.change_queue("a-log", "add", channel="c")
    assert [row["kind"] for row in admin.queue_topics("a-log")] == ["log"]
    with pytest.raises(BrokerRefused, match="log topic"):
        admin.change_queue("a-log", "add")
    with pytest.raises(NoRoute):
        admin.change_queue("a-log", "rm")
    assert penstock.Message("a-log", b"").topic in admin.topics()
