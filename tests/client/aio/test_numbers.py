"""A thousand lost replies and a few dead brokers: every message once."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from fronts.raw_peer import RawPeer
from penstock.client.aio.cluster import Cluster as ClientCluster
from penstock.client.aio.numbers import WINDOW, Numbers
from penstock.client.aio.producer import Producer
from penstock.client.reader import LogReader
from penstock.errors import ConnectionLost
from penstock.message import Message
from penstock.testing import Broker
from penstock.wire.record import BatchItem, encode_batch, iter_records

if TYPE_CHECKING:
    from client.conftest import Cluster
else:
    Cluster = object

SENDS = (10, 310, 320)
PRODUCER = "0123456789abcdef"


def bodies(registry: str, topic: str) -> Counter[bytes]:
    found: Counter[bytes] = Counter()
    with LogReader(registry) as reader:
        for queue in reader.queues(topic):
            at, end = reader.offsets(queue, durable=False)
            while at < end:
                got = reader.fetch(queue, at, durable=False)
                found.update(m.body for m in iter_records(got.records, check=True))
                at = got.next_offset
    return found


class Lossy:
    """Of each send the reply may be lost, when the broker has stored it, or the request itself."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
        self.chance = random.Random(11)
        self.most = most
        self.lost = 0  # replies of requests that were carried out
        self.sent: list[bytes] = []
        real = ClientCluster.call

        async def call(cluster: ClientCluster, address: str, command: Any, timeout_s: float | None = None) -> Any:
            if command.code not in SENDS:
                return await real(cluster, address, command, timeout_s)
            if self.chance.random() < 0.1:
                raise ConnectionLost("before the broker had it")
            answer = await real(cluster, address, command, timeout_s)
            if answer.code == 0 and self.chance.random() < 0.55 and self.lost < self.most:
                self.lost += 1
                raise ConnectionLost("the reply is lost")
            return answer

        monkeypatch.setattr(ClientCluster, "call", call)
        monkeypatch.setattr("penstock.client.aio.attempts.BUSY_WAIT_S", 0.001)

    async def send(self, producer: Producer, worker: int, batches: bool = True) -> None:
        for n in range(25):
            if batches and n % 5 == 4:
                batch = [Message("Once", b"%d/%d/%d" % (worker, n, part)) for part in range(3)]
                await producer.send_batch(batch)
                self.sent.extend(message.body for message in batch)
            else:
                self.sent.append(b"%d/%d" % (worker, n))
                await producer.send(Message("Once", self.sent[-1], keys=(f"{worker}",)))


@pytest.mark.once
async def test_a_thousand_lost_replies_and_restarts(own_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than a thousand sends whose reply was lost are sent again; the broker is killed three times meanwhile."""
    lossy = Lossy(monkeypatch, 1_200)

    async def restart() -> None:
        for want in (150, 400, 700):
            while lossy.lost < want:
                await asyncio.sleep(0.01)
            await asyncio.to_thread(own_cluster.stop, signal.SIGKILL)
            await asyncio.to_thread(own_cluster.start)

    async with Producer(own_cluster.registry, idempotent=True, send_timeout_s=90, batch_bytes=1) as producer:
        restarting = asyncio.create_task(restart())
        await asyncio.gather(*(lossy.send(producer, worker) for worker in range(40)))
        await restarting
    assert lossy.lost >= 1_000
    assert bodies(own_cluster.registry, "Once") == Counter(lossy.sent)


async def test_without_numbers_every_lost_reply_is_a_message_too_many(
    own_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the test above would find if brokers did not know a send when it comes again."""
    lossy = Lossy(monkeypatch, 100)
    async with Producer(own_cluster.registry, retries=1_000, send_timeout_s=90, batch_bytes=1) as producer:
        await asyncio.gather(*(lossy.send(producer, worker, batches=False) for worker in range(4)))
    found = bodies(own_cluster.registry, "Once")
    assert set(found) == set(lossy.sent)
    assert found.total() - len(lossy.sent) == lossy.lost > 50


def test_a_repeat_gets_the_first_answer_even_after_a_restart(tmp_path: Any) -> None:
    for restart in (False, True):
        with Broker(tmp_path / "data") as broker, RawPeer(broker.remoting) as peer:
            first = peer.send("Seq", b"one", {"PSEQ": f"{PRODUCER}.1.1", "KEYS": "k"}, e=1)
            assert (first.code, first.ext["queueOffset"]) == (0, "0")
            again = peer.send("Seq", b"one", {"PSEQ": f"{PRODUCER}.1.1", "KEYS": "k"}, e=1, serialize=1)
            assert again.ext == first.ext
            batch = encode_batch([BatchItem(b"a"), BatchItem(b"b", b"KEYS\x01x")])
            ext = {"a": "PG", "b": "Seq", "c": "TBW102", "d": 4, "e": 2, "f": 0, "g": 1, "h": 0, "m": "true"}
            answers = [peer.ask(320, ext | {"i": f"PSEQ\x01{PRODUCER}.2.2"}, batch) for _ in range(2)]
            assert answers[0].ext == answers[1].ext
            assert answers[0].ext["msgId"].count(",") == 1
            assert bodies(broker.registry, "Seq") == Counter([b"one", b"a", b"b"])
            assert broker.call(lambda server: server.broker.sequences.repeats) == (4 if restart else 2)
            bad = peer.send("Seq", b"x", {"PSEQ": "nonsense"})
            assert bad.code == 13
            wrong = peer.ask(320, ext | {"i": f"PSEQ\x01{PRODUCER}.3.5"}, batch)
            assert wrong.code == 13


def test_delayed_messages_are_once_too(tmp_path: Any) -> None:
    with Broker(tmp_path / "data") as broker, RawPeer(broker.remoting) as peer:
        for _ in range(3):
            properties = {"PSEQ": f"{PRODUCER}.1.1", "TIMER_DELIVER_MS": "99999999999999"}
            assert peer.send("Late", b"one", properties).code == 0
        assert broker.call(lambda server: len(server.broker.schedule)) == 1


async def test_numbers_never_run_further_ahead_than_a_broker_remembers() -> None:
    numbers = Numbers()
    got = [await numbers.begin() for _ in range(WINDOW)]
    assert got == list(range(1, WINDOW + 1))
    waiting = asyncio.create_task(numbers.begin())
    numbers.end(5)
    await asyncio.sleep(0)
    assert not waiting.done()
    numbers.end(1)
    assert await waiting == WINDOW + 1
