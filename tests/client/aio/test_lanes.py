"""`client.aio.lanes` against a real broker: sends leave together, and each has an answer of its own."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import pytest

from client.aio.test_producer import read_all
from client.steps import ARRIVES_S, idle_time, peer
from penstock.aio import Producer
from penstock.client.aio import lanes
from penstock.client.aio.cluster import Cluster as ClientCluster
from penstock.client.aio.lanes import Lanes
from penstock.client.results import SendReceipt, SendStatus
from penstock.errors import BrokerRefused, BufferFull, Closed, ConnectionLost, PenstockError, TimedOut
from penstock.message import Message
from penstock.wire.codes import RequestCode
from penstock.wire.fastjson import dumps
from penstock.wire.remoting import RemotingCommand, encode

Fresh = Callable[[str], str]
SOME_S = 2  # of idle time
SINGLE, BATCH = RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE


class Sent:
    """Which send requests go to brokers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.codes: list[int] = []
        real = ClientCluster.call

        async def call(
            cluster: ClientCluster, address: str, command: RemotingCommand, timeout_s: float | None = None
        ) -> RemotingCommand:
            if command.code in (SINGLE, BATCH):
                self.codes.append(command.code)
            return await real(cluster, address, command, timeout_s)

        monkeypatch.setattr(ClientCluster, "call", call)


async def test_what_gathers_leaves_together(registry: str, fresh: Fresh, monkeypatch: pytest.MonkeyPatch) -> None:
    topic, sent = fresh("gather"), Sent(monkeypatch)
    async with Producer(registry, send_timeout_s=60.0) as producer:
        receipts = await asyncio.gather(*(producer.send(Message(topic, b"%d" % n, tags="t")) for n in range(300)))
    assert sent.codes == [SINGLE, BATCH]
    assert {receipt.status for receipt in receipts} == {SendStatus.SEND_OK}
    messages = {m.msg_id: m for m in await read_all(registry, topic, 300)}
    assert len(messages) == 300
    for number, receipt in enumerate(receipts):
        message = messages[receipt.msg_id]
        assert (message.body, message.queue_offset, message.queue_id, message.offset_msg_id) == (
            b"%d" % number, receipt.queue_offset, receipt.queue.queue_id, receipt.offset_msg_id,
        )  # fmt: skip


async def test_a_lone_send_is_no_batch(registry: str, fresh: Fresh, monkeypatch: pytest.MonkeyPatch) -> None:
    topic, sent = fresh("lone"), Sent(monkeypatch)
    async with Producer(registry, send_timeout_s=60.0) as producer:
        for _ in range(3):
            await producer.send(Message(topic, b""))
    assert sent.codes == [SINGLE] * 3


async def test_one_that_is_refused_costs_no_other(registry: str, fresh: Fresh) -> None:
    topic = fresh("refused")
    async with Producer(registry, send_timeout_s=60.0) as producer:
        bad = [Message(topic, b"", properties={"": "x"}), Message(topic, b"", properties={"a": "\x02"})]
        sends = [producer.send_nowait(message) for message in (Message(topic, b"1"), *bad, Message(topic, b"2"))]
        ended = await asyncio.gather(*sends, return_exceptions=True)
    assert [type(end) for end in ended] == [SendReceipt, ValueError, ValueError, SendReceipt]
    assert {m.body for m in await read_all(registry, topic, 2)} == {b"1", b"2"}


async def test_a_refusal_reaches_every_waiter(registry: str) -> None:
    async with Producer(registry, retries=0, send_timeout_s=60.0) as producer:
        sends = [producer.send_nowait(Message("SCHEDULE_TOPIC_XXXX", b"")) for _ in range(5)]
        ended = await asyncio.gather(*sends, return_exceptions=True)
    assert [type(end) for end in ended] == [BrokerRefused] * 5
    assert len({id(end) for end in ended}) == 5


async def test_order_is_kept(registry: str, fresh: Fresh) -> None:
    """Sends with one sharding key, delayed and long ones between them, from before the topic was known."""
    topic = fresh("order")
    async with Producer(registry, send_timeout_s=60.0) as producer:
        bodies = [b"%d" % n if n % 7 else b"%d" % n + bytes(5_000) for n in range(200)]
        sends = [producer.send_nowait(Message(topic, body, sharding_key="k")) for body in bodies[:100]]
        await sends[0]
        sends += [producer.send_nowait(Message(topic, body, sharding_key="k")) for body in bodies[100:]]
        receipts = await asyncio.gather(*sends)
    assert [receipt.queue_offset for receipt in receipts] == list(range(200))
    assert [m.body for m in await read_all(registry, topic, 200)] == bodies


async def test_delayed_messages_do_not_hold_up_the_others(registry: str, fresh: Fresh) -> None:
    topic = fresh("late")
    async with Producer(registry, send_timeout_s=60.0) as producer:
        sends = [producer.send_nowait(Message(topic, b"%d" % n, delay_level=n % 2)) for n in range(50)]
        await asyncio.gather(*sends)
    assert len({m.body for m in await read_all(registry, topic, 50)}) == 50


async def test_a_delay_that_is_a_property_is_obeyed(registry: str, fresh: Fresh) -> None:
    topic = fresh("property")
    async with Producer(registry, send_timeout_s=60.0) as producer:
        late = [producer.send_nowait(Message(topic, b"late", properties={"TIMER_DELAY_SEC": "1000"})) for _ in range(5)]
        soon = [producer.send_nowait(Message(topic, b"soon")) for _ in range(5)]
        await asyncio.gather(*late, *soon)
    assert [m.body for m in await read_all(registry, topic, 5)] == [b"soon"] * 5
    assert {m.body for m in await read_all(registry, topic, 6, timeout_s=1.0)} <= {b"soon"}


async def test_linger_waits_for_company(registry: str, fresh: Fresh, monkeypatch: pytest.MonkeyPatch) -> None:
    topic, sent = fresh("linger"), Sent(monkeypatch)
    async with Producer(registry, send_timeout_s=120, linger_ms=60_000, batch_bytes=2_000) as producer:
        await asyncio.gather(*(producer.send(Message(topic, bytes(400))) for _ in range(4)))  # full: it goes at once
        assert sent.codes == [BATCH]
        last = producer.send_nowait(Message(topic, b""))
        await asyncio.sleep(0)  # one whose lane lingers by now, and one whose lane is still to begin
        await asyncio.sleep(0)
        assert not last.done()
        other = producer.send_nowait(Message(fresh("linger"), b""))
        await producer.flush(30)  # nobody who flushes wants company
        assert [one.result().status for one in (last, other)] == [SendStatus.SEND_OK] * 2
        last = producer.send_nowait(Message(topic, b""))
    assert last.result().status is SendStatus.SEND_OK  # nor who closes


async def test_flush_and_close_wait_for_what_was_begun(registry: str, fresh: Fresh) -> None:
    topic = fresh("flush")
    producer = await Producer(registry).start()
    sends = [producer.send_nowait(Message(topic, b"%d" % n, delay_level=n % 3 == 0)) for n in range(100)]
    await producer.flush()
    assert all(send.done() for send in sends)
    sends = [producer.send_nowait(Message(topic, b"%d" % n)) for n in range(100)]
    await producer.close()
    assert all(send.result().status is SendStatus.SEND_OK for send in sends)
    with pytest.raises(Closed):
        await producer.send_nowait(Message(topic, b""))
    with pytest.raises(Closed):
        await producer.send(Message(topic, b""))


async def test_a_flush_looks_at_each_send_that_goes_alone_some_times_only(registry: str, fresh: Fresh) -> None:
    topic, lines = fresh("alone"), 0
    traced = lanes.__file__

    def count(frame: FrameType, event: str, _: object) -> Callable[..., object] | None:
        nonlocal lines
        if frame.f_code.co_filename != traced:
            return None
        lines += 1
        return count

    async def flushed(producer: Producer, sends: int) -> int:
        nonlocal lines
        lines, before = 0, sys.gettrace()
        sys.settrace(count)
        try:
            begun = [producer.send_nowait(Message(topic, b"", delay_level=18)) for _ in range(sends)]
            await producer.flush()
        finally:
            sys.settrace(before)
        assert all(one.done() for one in begun)
        return lines

    async with Producer(registry, send_timeout_s=60.0) as producer:
        await producer.send(Message(topic, b""))
        few, many = await flushed(producer, 100), await flushed(producer, 400)
    assert 0 < many < 6 * few


async def test_the_time_of_a_flush_is_a_number(registry: str, fresh: Fresh) -> None:
    topic = fresh("flush")
    async with Producer(registry, send_timeout_s=60.0) as producer:
        begun = [producer.send_nowait(Message(topic, b""))]
        for sends in ([], begun):
            with pytest.raises(ValueError, match="timeout_s is a number"):
                await producer.flush(float("nan"))
            await producer.flush()
            assert all(send.done() for send in sends)


@pytest.mark.parametrize("closed", [False, True])
async def test_flush_and_close_wait_for_requests_of_their_own(
    registry: str, fresh: Fresh, monkeypatch: pytest.MonkeyPatch, closed: bool
) -> None:
    """A batch, a long body, a time of its own: other tasks wait for these, and they stand in no row."""
    topic = fresh("flush")
    producer = await Producer(registry).start()
    await producer.send(Message(topic, b"its route is known"))
    real, arrived, free = ClientCluster.call, asyncio.Semaphore(0), asyncio.Event()

    async def call(cluster: ClientCluster, address: str, command: RemotingCommand, *more: Any) -> RemotingCommand:
        if command.code in (SINGLE, BATCH):
            arrived.release()
            await free.wait()
        return await real(cluster, address, command, *more)

    monkeypatch.setattr(ClientCluster, "call", call)
    sends = [
        asyncio.ensure_future(producer.send_batch([Message(topic, b"1"), Message(topic, b"2")])),
        asyncio.ensure_future(producer.send(Message(topic, bytes(5000)))),
        asyncio.ensure_future(producer.send(Message(topic, b"3"), timeout_s=60.0)),
    ]
    for _ in sends:
        await arrived.acquire()
    waiting = asyncio.ensure_future(producer.close() if closed else producer.flush())
    done, _ = await asyncio.wait([waiting, *sends], timeout=0.02)
    assert not done
    free.set()
    await waiting
    assert [send.result().status for send in sends if send.done()] == [SendStatus.SEND_OK] * 3
    await producer.close()


async def test_no_more_is_held_than_allowed(registry: str, fresh: Fresh) -> None:
    topic = fresh("full")
    async with Producer(registry, batch_bytes=10_000, buffer_bytes=20_000) as producer:
        sends = [producer.send_nowait(Message(topic, bytes(1_000))) for _ in range(19)]
        with pytest.raises(BufferFull):
            producer.send_nowait(Message(topic, b""))
        ended = await asyncio.gather(*(producer.send(Message(topic, bytes(1_000))) for _ in range(100)), *sends)
        assert len(ended) == 119
        lanes: Lanes = producer.lanes
        assert (lanes.under_way, lanes.full) == (0, False)
    async with Producer(registry, batch_bytes=100, buffer_bytes=100, when_full="raise") as producer:
        first = producer.send_nowait(Message(topic, bytes(1_000)))
        with pytest.raises(BufferFull):
            await producer.send(Message(topic, b""))
        await first


async def test_one_that_is_given_up_is_not_sent(registry: str, fresh: Fresh) -> None:
    topic = fresh("cancel")
    async with Producer(registry, send_timeout_s=60.0) as producer:
        sends = [producer.send_nowait(Message(topic, b"%d" % n)) for n in range(10)]
        sends[5].cancel()
        await asyncio.gather(*sends, return_exceptions=True)
        waiting = asyncio.create_task(producer.send(Message(topic, b"task")))
        behind = [asyncio.create_task(producer.send(Message(topic, b"behind%d" % n))) for n in range(3)]
        await asyncio.sleep(0)
        waiting.cancel()  # it was under way: those behind it must not wait for ever
        await asyncio.gather(*behind)
    assert b"5" not in {m.body for m in await read_all(registry, topic, 12)}


async def test_a_dead_broker_fails_each_in_time(own_cluster) -> None:  # type: ignore[no-untyped-def]
    async with Producer(own_cluster.registry, send_timeout_s=1.0) as producer:
        await producer.send(Message("T", b"before"), timeout_s=60.0)
        own_cluster.stop(signal.SIGKILL)
        sends = [producer.send_nowait(Message("T", b"%d" % n, sharding_key=str(n % 2))) for n in range(20)]
        ended = await asyncio.wait_for(asyncio.gather(*sends, return_exceptions=True), 120)
    assert all(isinstance(end, PenstockError) for end in ended)


async def test_a_broker_that_comes_back_gets_all(own_cluster) -> None:  # type: ignore[no-untyped-def]
    async with Producer(own_cluster.registry, send_timeout_s=60.0, retries=100) as producer:
        await producer.send(Message("T", b"before"))
        own_cluster.stop(signal.SIGKILL)
        sends = [producer.send_nowait(Message("T", b"%d" % n)) for n in range(500)]
        await asyncio.sleep(0)
        await asyncio.to_thread(own_cluster.start)
        assert {receipt.status for receipt in await asyncio.gather(*sends)} == {SendStatus.SEND_OK}
        found = {m.body for m in await read_all(own_cluster.registry, "T", 501)}
    assert found == {b"before", *(b"%d" % n for n in range(500))}


async def test_settings_that_cannot_be() -> None:
    for settings in ({"batch_bytes": 0}, {"batch_bytes": 3 << 20}, {"batch_bytes": 1000, "buffer_bytes": 10}):
        with pytest.raises(ValueError):
            Producer(**settings)  # type: ignore[arg-type]


def numbered_messages(topic: str, first: int, count: int, key: str | None = None) -> list[Message]:
    return [Message(topic, b"%d" % number, sharding_key=key) for number in range(first, first + count)]


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("way", ["queue", "selector", "key"])
async def test_a_batch_is_stored_behind_what_was_sent_to_its_queue_before(
    registry: str, fresh: Fresh, way: str, known: bool
) -> None:
    """Single sends gather while one is under way; a batch to their queue, and one send with a time of its own, wait too."""
    topic = fresh(f"behind-{way}")
    async with Producer(registry, send_timeout_s=60.0) as producer:
        if known:
            await producer.send(Message(topic, b"-1"))
        queue = (await producer.queues(topic))[2]
        key = "k" if way == "key" else None
        to: dict[str, Any] = {
            "queue": {"queue": queue},
            "selector": {"selector": lambda queues, message: queues[2]},
        }.get(way, {})
        sends = [asyncio.create_task(producer.send(one, **to)) for one in numbered_messages(topic, 0, 50, key)]
        sends.append(asyncio.create_task(producer.send_batch(numbered_messages(topic, 50, 10, key), **to)))
        sends += [asyncio.create_task(producer.send(one, **to)) for one in numbered_messages(topic, 60, 20, key)]
        sends.append(asyncio.create_task(producer.send(*numbered_messages(topic, 80, 1, key), timeout_s=30, **to)))
        sends.append(asyncio.create_task(producer.send_batch(numbered_messages(topic, 81, 5, key), timeout_s=30, **to)))
        receipts = await asyncio.gather(*sends)
    assert len({receipt.queue for receipt in receipts}) == 1
    stored = [message for message in await read_all(registry, topic, 86 + known) if message.body != b"-1"]
    in_order = sorted(stored, key=lambda message: message.queue_offset)
    assert [int(message.body) for message in in_order] == list(range(86))
    at = receipts[50].queue_offset
    assert [message.body for message in in_order if at <= message.queue_offset < at + 10] == [
        b"%d" % n for n in range(50, 60)
    ]


async def test_a_batch_that_is_refused_costs_no_send_of_its_lane(registry: str, fresh: Fresh) -> None:
    topic = fresh("bad-batch")
    async with Producer(registry, send_timeout_s=60.0) as producer:
        queue = (await producer.queues(topic))[0]
        bad = [Message(topic, b""), Message(topic, b"", properties={"": "x"})]
        work = [producer.send(Message(topic, b"1"), queue=queue), producer.send_batch(bad, queue=queue)]
        ended = await asyncio.gather(*work, producer.send(Message(topic, b"2"), queue=queue), return_exceptions=True)
    assert [type(one) for one in ended] == [SendReceipt, ValueError, SendReceipt]


async def test_a_time_of_its_own_ends_while_it_waits_behind_others(
    registry: str, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = fresh("own-time")
    async with Producer(registry, send_timeout_s=60.0) as producer:
        queue = (await producer.queues(topic))[0]
        real, answered = producer.attempts.send, asyncio.Event()

        async def slow(*what: Any) -> SendReceipt:
            await answered.wait()
            return await real(*what)

        monkeypatch.setattr(producer.attempts, "send", slow)
        first = asyncio.create_task(producer.send(Message(topic, b"0"), queue=queue))
        await asyncio.sleep(0)
        with pytest.raises(TimedOut):
            await producer.send_batch([Message(topic, b"1"), Message(topic, b"2")], queue=queue, timeout_s=0.01)
        assert producer.lanes.under_way  # until its turn comes, when it is passed over
        answered.set()
        assert (await first).queue_offset == 0
        assert (await producer.send(Message(topic, b"3"), queue=queue)).queue_offset == 1


def test_what_would_linger_for_longer_than_it_may_take_is_refused() -> None:
    """It would never be sent."""
    for linger_ms in (1_000, float("inf"), float("nan"), -1):
        with pytest.raises(ValueError, match="linger_ms"):
            Producer(send_timeout_s=1, linger_ms=linger_ms)
    with pytest.raises(TypeError):
        Producer(batch_bytes=1e6)  # type: ignore[arg-type]


async def test_what_goes_alone_does_not_linger(registry: str, fresh: Fresh) -> None:
    topic = fresh("alone")
    async with Producer(registry, send_timeout_s=120, linger_ms=119_000) as producer:
        queue = (await producer.queues(topic))[0]
        before = producer.send_nowait(Message(topic, b"lingers in the lane of its topic"))
        receipt = await producer.send(Message(topic, b"in time"), queue=queue, timeout_s=60)
        assert receipt.queue_offset == 0
        assert not before.done()


class Losing:
    """A registry and broker. The first send is answered by `answer_first`; of those after it the answer is lost, with the
    connection, as long as it is `losing`.
    """

    def __init__(self) -> None:
        self.stored: list[RemotingCommand] = []
        self.answer_first: Callable[[], object] = list
        self.losing = True

    async def answer(self, command: RemotingCommand, writer: asyncio.StreamWriter) -> None:
        reply = command.reply()
        if command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            host, port = writer.get_extra_info("sockname")
            queue = {"brokerName": "a", "perm": 6, "readQueueNums": 1, "topicSysFlag": 0, "writeQueueNums": 1}
            broker = {"brokerAddrs": {"0": f"{host}:{port}"}, "brokerName": "a", "cluster": "C"}
            reply = command.reply(body=dumps({"brokerDatas": [broker], "queueDatas": [queue], "filterServerTable": {}}))
        elif command.code in (SINGLE, BATCH):
            self.stored.append(command)
            reply = command.reply(0, {"queueId": "0", "queueOffset": "1", "msgId": f"{1:032X}"})
            if len(self.stored) == 1:
                self.answer_first = partial(writer.write, encode(reply))
                return
            if self.losing:
                writer.close()
                return
        if not command.oneway:
            writer.write(encode(reply))


@pytest.mark.parametrize("idempotent", [False, True])
async def test_a_batch_whose_answer_is_lost_comes_not_again_message_by_message(idempotent: bool) -> None:
    """The first of it has no time left, the second has: by itself, or under a number of its own, it would be there twice."""
    made = Losing()
    async with (
        peer(made.answer) as address,
        Producer(address, idempotent=idempotent, retries=0, send_timeout_s=10) as producer,
    ):
        await producer.queues("T")
        with idle_time():
            sends = [asyncio.create_task(producer.send(Message("T", b"0", sharding_key="k")))]
            for body in (b"1", b"2"):
                await asyncio.sleep(SOME_S)
                sends.append(asyncio.create_task(producer.send(Message("T", body, sharding_key="k"))))
            await asyncio.sleep(ARRIVES_S)
            made.answer_first()
            await asyncio.wait(sends[1:2])
            made.losing = False
            receipts = await asyncio.gather(*sends, return_exceptions=True)
    assert [type(one) for one in receipts] == [SendReceipt, ConnectionLost, ConnectionLost]
    assert [command.code for command in made.stored] == [SINGLE] + [BATCH] * (len(made.stored) - 1)
    assert len({command.body for command in made.stored[1:]}) == 1


@pytest.mark.parametrize("away", [False, True])
async def test_a_route_that_is_asked_for_anew_lets_nobody_overtake(away: bool) -> None:
    """One send is under way, another waits behind it, and the topic has a new route, or none: the next goes behind both."""
    made = Losing()
    made.losing = False
    async with peer(made.answer) as address, Producer(address, send_timeout_s=60) as producer:
        await producer.queues("T")
        with idle_time():
            sends = [
                asyncio.create_task(producer.send(Message("T", body, sharding_key="k"))) for body in (b"one", b"two")
            ]
            await asyncio.sleep(ARRIVES_S)
            assert len(made.stored) == 1
            if away:
                producer.attempts.cluster.routes.pop("T")
            else:
                await producer.attempts.cluster.refresh("T")
            sends.append(asyncio.create_task(producer.send(Message("T", b"three", sharding_key="k"))))
            await asyncio.sleep(ARRIVES_S)
            assert len(made.stored) == 1
            made.answer_first()
            await asyncio.gather(*sends)
    assert [command.code for command in made.stored] == [SINGLE, BATCH]
    assert made.stored[1].body.index(b"two") < made.stored[1].body.index(b"three")
