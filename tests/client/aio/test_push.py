"""`client.aio.push` against a real broker: groups, retries, order, broadcast, and members that come and go."""

import asyncio
import re
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from client.steps import mute, numbered, send
from penstock.aio import Admin, Producer
from penstock.client.aio import logconsumer, push
from penstock.client.aio.push import PushConsumer
from penstock.client.results import Reject, Retry
from penstock.client.sending import send_request
from penstock.errors import Closed, ConnectionLost
from penstock.message import Message, ReceivedMessage
from polling import until

Fresh = Callable[[str], str]


async def test_listener_gets_everything_once(registry: str, fresh: Fresh) -> None:
    topic, group = fresh("push"), fresh("g")
    got: list[ReceivedMessage] = []

    async def listener(message: ReceivedMessage) -> None:
        got.append(message)

    await send(registry, topic, *numbered(20), tags="a", keys=("k",))
    async with PushConsumer(group, registry, listener=listener, start="first") as consumer:
        await consumer.subscribe(topic)
        await send(registry, topic, *numbered(20, 20))
        await until(lambda: len(got) >= 40)
    assert sorted(int(m.body) for m in got) == list(range(40))
    assert {m.topic for m in got} == {topic}


async def test_offsets_survive_the_consumer(registry: str, fresh: Fresh) -> None:
    topic, group = fresh("resume"), fresh("g")
    got: list[bytes] = []
    await send(registry, topic, *numbered(10))
    for round_ in range(2):
        async with PushConsumer(group, registry, listener=lambda m: got.append(m.body), start="first") as consumer:
            await consumer.subscribe(topic)
            await until(lambda: len(got) >= 10 * (round_ + 1))  # noqa: B023
        if round_ == 0:
            await send(registry, topic, *numbered(10, 10))
    assert sorted(map(int, got)) == list(range(20))


async def test_where_a_new_group_starts(registry: str, fresh: Fresh) -> None:
    """A young queue is read from its start whatever `start` says: RocketMQ's rule, kept by the broker."""
    topic, group = fresh("last"), fresh("g")
    got: list[bytes] = []
    await send(registry, topic, *numbered(8))
    async with PushConsumer(group, registry, listener=lambda m: got.append(m.body), start="last") as consumer:
        await consumer.subscribe(topic)
        await until(lambda: len(got) >= 8)
    assert sorted(map(int, got)) == list(range(8))


async def test_tags(registry: str, fresh: Fresh) -> None:
    topic, group = fresh("tags"), fresh("g")
    got: list[str | None] = []
    for tag in ("a", "b", "c"):
        await send(registry, topic, *numbered(4), tags=tag)
    async with PushConsumer(group, registry, listener=lambda m: got.append(m.tags), start="first") as consumer:
        await consumer.subscribe(topic, "a || c")
        await until(lambda: len(got) >= 8)
        await send(registry, topic, *numbered(8), tags="a")  # behind all the others, in every queue
        await until(lambda: len(got) >= 16)
    assert Counter(got) == {"a": 12, "c": 4}


async def test_two_members_share_and_take_over(registry: str, fresh: Fresh) -> None:
    topic, group = fresh("share"), fresh("g")
    got: dict[str, list[int]] = {"one": [], "two": []}
    await send(registry, topic, b"0")

    def listener(name: str) -> Callable[[ReceivedMessage], None]:
        return lambda message: got[name].append(int(message.body))

    one = await PushConsumer(group, registry, listener=listener("one"), start="first").start()
    two = await PushConsumer(group, registry, listener=listener("two"), start="first").start()
    for consumer in (one, two):
        await consumer.subscribe(topic)

    def mine(consumer: PushConsumer) -> int:
        return sum(q.topic == topic for q in consumer.assigned)

    await until(lambda: (mine(one), mine(two)) == (2, 2))
    await send(registry, topic, *numbered(40, 1))
    await until(lambda: len(got["one"]) + len(got["two"]) >= 41)
    assert len(got["one"]) >= 20
    assert len(got["two"]) >= 20
    await one.close()
    await until(lambda: mine(two) == 4)
    await send(registry, topic, *numbered(8, 41))
    await until(lambda: {*got["one"], *got["two"]} == set(range(49)))
    await two.close()


async def test_failures_come_again_and_end_in_the_dead_letter_topic(registry: str, fresh: Fresh) -> None:
    topic, group = fresh("retry"), fresh("g")
    tries: list[tuple[bytes, int, str]] = []

    def listener(message: ReceivedMessage) -> bool | None:
        tries.append((message.body, message.reconsume_times, message.topic))
        if message.body == b"once" and message.reconsume_times == 0:
            raise Retry(1)
        if message.body == b"never":
            return False
        if message.body == b"dead":
            raise Reject
        return None

    await send(registry, topic, b"once", b"never", b"dead", b"fine")
    async with PushConsumer(group, registry, listener=listener, start="first", attempts_max=3) as consumer:
        await consumer.subscribe(topic)
        await until(lambda: len(tries) >= 7 and (b"never", 2, topic) in tries)
        dead: list[ReceivedMessage] = []
        async with PushConsumer(fresh("g"), registry, listener=dead.append, start="first") as other:
            await other.subscribe(f"%DLQ%{group}")
            await until(lambda: len(dead) >= 2)
    assert Counter(body for body, _, _ in tries) == {b"once": 2, b"never": 3, b"dead": 1, b"fine": 1}
    assert {t for _, _, t in tries} == {topic}
    assert sorted(m.body for m in dead) == [b"dead", b"never"]
    assert {m.properties["RETRY_TOPIC"] for m in dead} == {topic}


async def test_iteration_settles(registry: str, fresh: Fresh) -> None:
    topic, group = fresh("iter"), fresh("g")
    await send(registry, topic, *numbered(6))
    seen: list[bytes] = []
    async with PushConsumer(group, registry, start="first") as consumer:
        await consumer.subscribe(topic)
        async for delivery in consumer:
            assert delivery.topic == topic
            seen.append(delivery.body)
            if len(seen) == 3:
                break  # this one is not acked
    again: list[bytes] = []
    async with PushConsumer(group, registry, start="first") as consumer:
        await consumer.subscribe(topic)
        async for delivery in consumer:
            again.append(delivery.body)
            await delivery.ack()
            if {*seen[:2], *again} == set(numbered(6)) and seen[2] in again:
                break


async def test_orderly_keeps_the_order_of_a_queue(registry: str, fresh: Fresh) -> None:
    topic, group = fresh("order"), fresh("g")
    got: list[tuple[str, int]] = []
    failed: set[bytes] = set()

    async def listener(message: ReceivedMessage) -> None:
        assert message.sharding_key is not None
        if message.body == b"5" and message.sharding_key not in failed:
            failed.add(message.sharding_key)  # type: ignore[arg-type]
            raise Retry
        await asyncio.sleep(0.001)
        got.append((message.sharding_key, int(message.body)))

    async with Producer(registry) as producer:
        for i in range(20):
            for key in "xyz":
                await producer.send(Message(topic, b"%d" % i, sharding_key=key))
    one = await PushConsumer(group, registry, listener=listener, start="first", orderly=True).start()
    two = await PushConsumer(group, registry, listener=listener, start="first", orderly=True).start()
    for consumer in (one, two):
        await consumer.subscribe(topic)
    await until(lambda: len(set(got)) == 60, 40)
    for key in "xyz":
        assert list(dict.fromkeys(i for k, i in got if k == key)) == list(range(20))
    await one.close()
    await two.close()


async def test_broadcast(registry: str, fresh: Fresh, tmp_path: Path) -> None:
    topic, group = fresh("broad"), fresh("g")
    await send(registry, topic, *numbered(4))
    got: dict[str, list[int]] = {"one": [], "two": []}
    folders: dict[str, str | Path] = {"one": tmp_path / "one", "two": str(tmp_path / "two")}
    for round_ in range(2):
        for name, numbers in got.items():
            async with PushConsumer(
                group,
                registry,
                listener=lambda m, numbers=numbers: numbers.append(int(m.body)),  # type: ignore[misc]
                model="broadcast",
                start="first",
                offsets_folder=folders[name],
            ) as consumer:
                await consumer.subscribe(topic)
                await until(lambda: len(numbers) >= 4 * (round_ + 1))  # noqa: B023
        if round_ == 0:
            await send(registry, topic, *numbered(4, 4))
    assert sorted(got["one"]) == sorted(got["two"]) == list(range(8))


async def test_a_broadcast_misses_nothing_of_a_queue_that_is_new(registry: str, fresh: Fresh, tmp_path: Path) -> None:
    """Sent before the consumer noticed the queue: `start` is for those that were there."""
    topic, got = fresh("broad"), list[bytes]()
    await send(registry, topic, b"old")
    async with (
        PushConsumer(
            fresh("g"), registry, listener=lambda m: got.append(m.body), model="broadcast", offsets_folder=tmp_path
        ) as consumer,
        Admin(registry) as admin,
    ):
        await consumer.subscribe(topic)
        async with Producer(registry) as producer:
            queues = len(await producer.queues(topic))
        await until(lambda: len(consumer.assigned) == queues)  # they come one by one
        await admin.create_topic(topic, queues + 1)
        await until_served(registry, topic, queues + 1)
        async with Producer(registry) as producer:
            queue = next(iter(consumer.assigned))._replace(queue_id=queues)
            await producer.send(Message(topic, b"new"), queue=queue)
        await consumer._cluster.refresh(topic)
        consumer._group.rebalance_soon()
        await until(lambda: bool(got), 20)
        assert got == [b"new"]


async def until_served(registry: str, topic: str, queues: int) -> None:
    async with Producer(registry) as producer:
        for _ in range(2_000):
            await producer._cluster.refresh(topic)
            if len(producer._cluster.routes[topic].subscribe_queues()) == queues:
                return
            await asyncio.sleep(0.01)
    raise AssertionError("the registry does not say so")


async def test_unsubscribe(registry: str, fresh: Fresh) -> None:
    topic, other, group = fresh("unsub"), fresh("unsub"), fresh("g")
    got: list[bytes] = []
    await send(registry, topic, b"1")
    async with PushConsumer(group, registry, listener=lambda m: got.append(m.body), start="first") as consumer:
        await consumer.subscribe(topic)
        await until(lambda: got == [b"1"])
        await consumer.unsubscribe(topic)
        await send(registry, topic, b"2")
        await send(registry, other, b"marker")
        await consumer.subscribe(other)
        await until(lambda: b"marker" in got)
    assert got == [b"1", b"marker"]


async def test_a_change_of_the_subscription_that_is_given_up_ends_no_reading(
    registry: str, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By `asyncio.timeout`, say: the queues are pulled as before."""
    topic = fresh("changed")
    got: list[bytes] = []
    await send(registry, topic, b"1")
    async with PushConsumer(fresh("g"), registry, listener=lambda m: got.append(m.body), start="first") as consumer:
        await consumer.subscribe(topic)
        await until(lambda: got == [b"1"])
        monkeypatch.setattr(consumer._group, "join", lambda topics: asyncio.Event().wait())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(consumer.subscribe(topic), 0.01)
        await send(registry, topic, b"2")
        await until(lambda: got == [b"1", b"2"], 20)


async def test_reset_moves_a_running_group(registry: str, fresh: Fresh) -> None:
    topic, group = fresh("reset"), fresh("g")
    got: list[int] = []
    await send(registry, topic, *numbered(12))
    async with PushConsumer(group, registry, listener=lambda m: got.append(int(m.body)), start="first") as consumer:
        await consumer.subscribe(topic)
        await until(lambda: len(got) == 12)
        async with Admin(registry) as admin:
            moved = await admin.reset_offset(group, topic, "first")
            assert set(moved.values()) == {0}
            await until(lambda: len(got) >= 24, 30)
    assert Counter(got) == dict.fromkeys(range(12), 2)


async def test_the_group_outlives_its_broker(own_cluster) -> None:  # type: ignore[no-untyped-def]
    got: list[int] = []
    await send(own_cluster.registry, "T", *numbered(5))
    async with PushConsumer(
        "G", own_cluster.registry, listener=lambda m: got.append(int(m.body)), start="first"
    ) as consumer:
        await consumer.subscribe("T")
        await until(lambda: len(got) >= 5)
        own_cluster.stop(signal.SIGKILL)
        await asyncio.to_thread(own_cluster.start)
        await send(own_cluster.registry, "T", *numbered(5, 5))
        await until(lambda: set(got) == set(range(10)), 30)


async def test_close_lets_listeners_finish(registry: str, fresh: Fresh) -> None:
    topic, group = fresh("finish"), fresh("g")
    started, finished, go_on = [], [], asyncio.Event()

    async def listener(message: ReceivedMessage) -> None:
        started.append(message.body)
        await go_on.wait()
        finished.append(message.body)

    await send(registry, topic, *numbered(4))
    async with PushConsumer(group, registry, listener=listener, start="first") as consumer:
        await consumer.subscribe(topic)
        await until(lambda: len(started) == 4)
        assert finished == []
        asyncio.get_running_loop().call_later(0.01, go_on.set)  # while it is being closed
    assert len(finished) == 4
    async with PushConsumer(group, registry, listener=listener, start="first") as consumer:
        await consumer.subscribe(topic)
        await send(registry, topic, *numbered(8, 4))  # behind the others, in every queue
        await until(lambda: len(finished) >= 12)
    assert sorted(map(int, started)) == list(range(12))


async def test_another_expression(registry: str, fresh: Fresh) -> None:
    topic, group = fresh("resub"), fresh("g")
    got: list[str | None] = []
    await send(registry, topic, b"1", tags="a")
    async with PushConsumer(group, registry, listener=lambda m: got.append(m.tags), start="first") as consumer:
        await consumer.subscribe(topic, "a")
        await until(lambda: got == ["a"])
        await consumer.subscribe(topic, "b")
        await send(registry, topic, b"2", tags="a")
        await send(registry, topic, b"3", tags="b")
        await until(lambda: got == ["a", "b"], 40)


async def test_an_undecodable_body_costs_one_message(registry: str, fresh: Fresh) -> None:
    topic, group = fresh("damage"), fresh("g")
    got: list[bytes] = []
    async with Producer(registry) as producer:
        queue = (await producer.queues(topic))[0]
        await producer.send(Message(topic, b"1"), queue=queue)
        await until_route(producer, topic)
        bad = send_request("P", Message(topic, b"not zlib"), queue, "X" * 32, 0)
        bad.ext["f"] = "1"
        address = await producer.attempts.address(queue)
        assert (await producer._cluster.call(address, bad)).code == 0
        await producer.send(Message(topic, b"3"), queue=queue)
    async with PushConsumer(group, registry, listener=lambda m: got.append(m.body), start="first") as consumer:
        await consumer.subscribe(topic)
        await until(lambda: got == [b"1", b"3"])


async def until_route(producer: Producer, topic: str) -> None:
    for _ in range(500):
        await producer._cluster.refresh(topic)
        if topic in producer._cluster.routes:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the topic was not registered")


async def test_whoever_closes_once_more_waits_for_the_first(registry: str, fresh: Fresh) -> None:
    """A listener that closes its consumer, say, while the program leaves its block."""
    topic, begun, go_on = fresh("twice"), asyncio.Event(), asyncio.Event()

    async def listener(message: ReceivedMessage) -> None:
        begun.set()
        await go_on.wait()

    await send(registry, topic, b"x")
    consumer = PushConsumer(fresh("g"), registry, listener=listener, start="first")
    await consumer.start()
    await consumer.subscribe(topic)
    await begun.wait()
    first, second = asyncio.create_task(consumer.close()), asyncio.create_task(consumer.close())
    await asyncio.sleep(0.02)
    assert not second.done()
    go_on.set()
    await second
    assert first.done()


async def test_whoever_does_not_wait_for_the_end_leaves_the_group_all_the_same(registry: str, fresh: Fresh) -> None:
    """By `asyncio.timeout`, say: else queues would be kept for a member that reads no more."""
    topic, group, begun = fresh("impatient"), fresh("g"), asyncio.Event()

    async def listener(message: ReceivedMessage) -> None:
        begun.set()
        await asyncio.Event().wait()

    await send(registry, topic, b"x")
    consumer = PushConsumer(group, registry, listener=listener, start="first")
    await consumer.start()
    await consumer.subscribe(topic)
    await begun.wait()
    async with Admin(registry) as admin:
        assert len(await admin.group_members(group, queues=False)) == 1
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(consumer.close(), 0.01)
        for _ in range(500):
            if not await admin.group_members(group, queues=False):
                break
            await asyncio.sleep(0.02)
        else:
            raise AssertionError("it is a member still")
    await consumer.close()


async def test_whoever_does_not_wait_for_it_has_unsubscribed_all_the_same(
    registry: str, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, go_on = fresh("impatient"), asyncio.Event()
    await send(registry, topic, *numbered(4))
    async with PushConsumer(fresh("g"), registry, start="first") as consumer:
        await consumer.subscribe(topic)
        await until(lambda: sum(queue.topic == topic for queue in consumer.assigned) == 4)

        async def slow(assigned: object) -> None:
            await go_on.wait()

        monkeypatch.setattr(consumer._logs, "_commit", slow)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(consumer.unsubscribe(topic), 0.02)
        left = [queue for queue in consumer.assigned if queue.topic == topic]
        go_on.set()
    assert not left


async def test_names_that_nobody_can_have_are_refused_when_a_topic_is_subscribed_to(registry: str) -> None:
    """It would read nothing, for ever, and say nothing."""
    for group, topic in (("a b", "T"), ("", "T"), ("g", "a b"), ("g", "")):
        consumer = PushConsumer(group, registry)
        with pytest.raises(ValueError, match="can be called"):
            await consumer.subscribe(topic)
        await consumer.close()


@pytest.mark.parametrize("orderly", [False, True])
async def test_a_coroutine_may_close_its_consumer(
    registry: str, fresh: Fresh, monkeypatch: pytest.MonkeyPatch, orderly: bool
) -> None:
    """It does not wait for itself; then everything is closed, and nothing is left running."""
    topic, closed = fresh("itself"), asyncio.Event()
    for module in (push, logconsumer):
        monkeypatch.setattr(module, "CLOSE_S", 600.0)

    async def listener(message: ReceivedMessage) -> None:
        await consumer.close()
        closed.set()

    await send(registry, topic, b"x")
    before = asyncio.all_tasks()
    consumer = PushConsumer(fresh("g"), registry, listener=listener, start="first", orderly=orderly)
    await consumer.start()
    await consumer.subscribe(topic)
    async with asyncio.timeout(60):
        await closed.wait()
        await consumer.close()
    await until(lambda: asyncio.all_tasks() == before)


async def test_one_that_is_started_twice_reads_once(registry: str, fresh: Fresh) -> None:
    """As in `with PushConsumer(…).start() as consumer`."""
    topic, group = fresh("twice"), fresh("g")
    await send(registry, topic, *numbered(20))
    got: list[int] = []
    consumer = await PushConsumer(group, registry, listener=lambda m: got.append(int(m.body)), start="first").start()
    name = consumer.client_id
    async with consumer:
        assert consumer.client_id == name
        await consumer.subscribe(topic)
        await until(lambda: len(got) >= 20)
        async with Admin(registry) as admin:
            assert len(await admin.group_members(group)) == 1
    assert sorted(got) == list(range(20))


async def test_one_that_is_closed_is_not_started_again(registry: str, fresh: Fresh) -> None:
    """It would be a member that gets its share of the queues, and reads nothing."""
    topic, group = fresh("again"), fresh("g")
    await send(registry, topic, *numbered(20))
    got: list[int] = []
    closed = await PushConsumer(group, registry, start="first").start()
    await closed.close()
    with pytest.raises(Closed, match="make a new one"):
        await closed.start()
    async with PushConsumer(group, registry, listener=lambda m: got.append(int(m.body)), start="first") as consumer:
        await consumer.subscribe(topic)
        await until(lambda: len(got) >= 20)


async def test_one_that_found_no_registry_may_be_started_again(own_cluster) -> None:  # type: ignore[no-untyped-def]
    await asyncio.to_thread(own_cluster.stop, signal.SIGTERM)
    consumer = PushConsumer("G", own_cluster.registry)
    with pytest.raises(ConnectionLost):
        await consumer.start()
    await asyncio.to_thread(own_cluster.start)
    async with consumer:
        assert consumer.client_id


async def test_a_subscription_waits_for_all_silent_name_servers_together(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "penstock.client")
    async with mute("a", "b") as (registry, _), PushConsumer("g", registry, timeout_s=0.6, listener=print) as consumer:
        caplog.clear()
        await consumer.subscribe("T")
        waited = re.search("no route of T yet: .* within (.*) s", caplog.text)
        assert waited is not None
        assert float(waited[1]) < 0.6
