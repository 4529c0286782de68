"""`client.direct`: a thread that waits for each receipt uses a socket of its own, and the loop where that is not enough."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from penstock import Admin, Message, Producer
from penstock.client import direct
from penstock.client.line import Line
from penstock.client.portal import portal
from penstock.client.reader import LogReader
from penstock.client.results import SendReceipt, SendStatus
from penstock.errors import BrokerRefused, Closed, ConnectionLost, NoRoute, PenstockError, TimedOut
from penstock.wire.addresses import split_address
from polling import eventually

Fresh = Callable[[str], str]


class Lost(Line):
    """A line whose answers are lost; an error of another kind where one is given."""

    error: BaseException = ConnectionLost("the answer is lost")
    asked: list[str] = []  # the addresses of those that were used

    def __init__(self, address: str) -> None:
        super().__init__(split_address(address), 10, short=True)
        self.address = address

    def store(self, *words: object) -> SendReceipt:
        self.asked.append(self.address)
        raise self.error


class Broken(Line):
    """A line that does not know yet that it is broken."""

    def is_quiet(self) -> bool:
        return True


def lose(producer: Producer, count: int = 1) -> None:
    """The next sends' answers are lost."""
    Lost.asked.clear()
    for address, lines in producer._direct._lines.items():
        while lines:
            lines.pop().close()
        lines.extend(Lost(address) for _ in range(count))


@contextmanager
def asleep(cluster) -> Iterator[None]:  # type: ignore[no-untyped-def]
    """Its process takes nothing and says nothing meanwhile."""
    cluster.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        cluster.process.send_signal(signal.SIGCONT)


@pytest.mark.parametrize("kind", ["log", "queue"])
def test_only_the_first_send_to_a_topic_needs_the_loop(
    registry: str, fresh: Fresh, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    topic = fresh("own")
    looped: list[int] = []
    with Producer(registry, kind=kind) as producer:  # type: ignore[arg-type]
        by_itself = producer._lanes.by_itself
        monkeypatch.setattr(producer._lanes, "by_itself", lambda *words: looped.append(number) or by_itself(*words))
        for number in range(5):  # noqa: B007
            assert producer.send(Message(topic, b"x")).status is SendStatus.SEND_OK
        assert producer.send_batch([Message(topic, b"x")] * 3).status is SendStatus.SEND_OK
    assert looped == [0]


def test_a_line_for_each_thread_at_work(registry: str, fresh: Fresh) -> None:
    topic = fresh("lines")
    with Producer(registry, send_timeout_s=60.0) as producer:
        producer.send(Message(topic, b""))
        ids: set[str] = set()

        def work() -> None:
            for _ in range(50):
                ids.add(producer.send(Message(topic, b"")).msg_id)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(ids) == 200
        assert 1 <= sum(map(len, producer._direct._lines.values())) <= 4
    assert not any(producer._direct._lines.values())


def test_what_this_thread_sent_before_is_not_overtaken(registry: str, fresh: Fresh) -> None:
    topic = fresh("before")
    with Producer(registry, send_timeout_s=60.0) as producer:
        producer.send(Message(topic, b"", sharding_key="k"))
        first = producer.send(Message(topic, b"", sharding_key="k")).queue_offset
        sends = [producer.send_nowait(Message(topic, b"", sharding_key="k")) for _ in range(50)]
        last = producer.send(Message(topic, b"", sharding_key="k"))
        assert [send.result(60).queue_offset for send in sends] == list(range(first + 1, first + 51))
        assert last.queue_offset == first + 51


def test_refusals_and_bad_messages_are_raised(registry: str, fresh: Fresh) -> None:
    topic = fresh("bad")
    with Producer(registry, retries=0, send_timeout_s=60.0) as producer:
        for _ in range(2):
            producer.send(Message(topic, b""))
            with pytest.raises(ValueError):
                producer.send(Message(topic, bytes(4_194_305)))
            with pytest.raises(ValueError):
                producer.send(Message(topic, b"", properties={"": "x"}))
            with pytest.raises(BrokerRefused):
                producer.send(Message("SCHEDULE_TOPIC_XXXX", b""))


def test_sends_without_an_answer_need_no_loop_and_are_not_overtaken(
    registry: str, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = fresh("oneway")
    with Producer(registry, send_timeout_s=60.0) as producer:
        first = producer.send(Message(topic, b"", sharding_key="k"))
        looped = []
        monkeypatch.setattr(producer._inner, "send_oneway", lambda *words, **named: looped.append(words))
        ids = {producer.send_oneway(Message(topic, b"", sharding_key="k")) for _ in range(50)}
        assert len(ids) == 50
        assert all(ids)
        assert not looped
        assert producer.send(Message(topic, b"", sharding_key="k")).queue_offset == first.queue_offset + 51


def test_a_send_without_an_answer_over_a_line_that_has_broken_goes_by_the_loop(own_cluster) -> None:  # type: ignore[no-untyped-def]
    with Producer(own_cluster.registry, send_timeout_s=60.0) as producer:
        queue = producer.send(Message("T", b"x")).queue
        producer.send(Message("T", b"x"), queue=queue)
        [(address, [line])] = producer._direct._lines.items()
        line.close()
        broken = Broken(split_address(address), 10, short=True)
        broken._socket.shutdown(socket.SHUT_RDWR)  # else the end of its broker decides whether the first write fails
        producer._direct._lines[address] = deque([broken])
        own_cluster.stop(signal.SIGKILL)
        own_cluster.start()
        # Behind this one the loop has a connection to the new broker: what nobody answers is lost with an old one.
        before = portal().run(producer._inner.send(Message("T", b"x"), queue=queue)).queue_offset
        sent = 0
        while any(producer._direct._lines.values()) and sent < 20:
            # A guess that ends now, or a new route, leaves this send to the loop, and takes no line.
            producer.queues("T")
            assert producer.send_oneway(Message("T", b"x"), queue=queue)
            sent += 1
        assert not any(producer._direct._lines.values())
        assert producer.send(Message("T", b"x"), queue=queue).queue_offset == before + sent + 1


def test_a_broker_that_takes_nothing_is_waited_for_and_no_longer(own_cluster) -> None:  # type: ignore[no-untyped-def]
    with Producer(own_cluster.registry, send_timeout_s=0.5) as producer:
        for _ in range(2):
            producer.send(Message("T", b""), timeout_s=60.0)
        with asleep(own_cluster), pytest.raises(TimedOut):
            for _ in range(50):
                producer.send_oneway(Message("T", os.urandom(1 << 20)))
        assert producer.send(Message("T", b""), timeout_s=60.0).status is SendStatus.SEND_OK


def test_what_the_loop_sends_is_given_one_queue_and_the_next_the_next(registry: str, fresh: Fresh) -> None:
    """Each send took two turns, and every other queue got nothing."""
    topic = fresh("turns")
    with Producer(registry, trace=True) as producer:
        producer.send(Message(topic, b"x"))
        queues = producer.queues(topic)
        found = [producer.send(Message(topic, b"x")).queue for _ in queues]
    assert len(queues) > 1
    assert set(found) == set(queues)


def test_a_queue_topic_answers_every_send(registry: str, fresh: Fresh) -> None:
    """So its answers are read, by the loop."""
    topic = fresh("answers")
    with Producer(registry, kind="queue") as producer:
        producer.send(Message(topic, b"x"))
        for _ in range(20):
            assert producer.send_oneway(Message(topic, b"x")) == ""
            assert producer.send(Message(topic, b"x")).status is SendStatus.SEND_OK


@pytest.mark.parametrize("kind", ["log", "queue"])
def test_a_restarted_broker(own_cluster, kind: str) -> None:  # type: ignore[no-untyped-def]
    """The line broke while it was idle, or in the middle of a call: the loop tries again."""
    with Producer(own_cluster.registry, kind=kind, send_timeout_s=60.0, retries=50) as producer:  # type: ignore[arg-type]
        for _ in range(3):
            assert producer.send(Message("T", b"x")).status is SendStatus.SEND_OK
        own_cluster.stop(signal.SIGKILL)
        starting = threading.Timer(0.2, own_cluster.start)
        starting.start()
        assert producer.send(Message("T", b"x")).status is SendStatus.SEND_OK
        starting.join()
        assert producer.send(Message("T", b"x")).status is SendStatus.SEND_OK


@pytest.mark.parametrize("kind", ["log", "queue"])
def test_a_line_that_was_closed_while_idle_is_not_used(own_cluster, kind: str) -> None:  # type: ignore[no-untyped-def]
    """With no retries a lost answer is an error; a broker that came back before the send is none."""
    with Producer(own_cluster.registry, kind=kind, send_timeout_s=60.0, retries=0) as producer:  # type: ignore[arg-type]
        for _ in range(3):
            producer.send(Message("T", b"x"))
        own_cluster.stop(signal.SIGKILL)
        own_cluster.start()
        assert producer.send(Message("T", b"x")).status is SendStatus.SEND_OK


@pytest.mark.parametrize("retries", [0, 1])
def test_a_lost_answer_is_a_try(registry: str, fresh: Fresh, retries: int) -> None:
    topic = fresh("lost")
    with Producer(registry, retries=retries) as producer:
        for _ in range(2):
            producer.send(Message(topic, b""))

        lose(producer)
        if retries:
            assert producer.send(Message(topic, b"")).status is SendStatus.SEND_OK
        else:
            with pytest.raises(ConnectionLost):
                producer.send(Message(topic, b""))


def test_a_send_that_failed_at_one_broker_is_tried_at_another(own_cluster, second_broker) -> None:  # type: ignore[no-untyped-def]
    """The loop took the next queue in turn, which mostly is one of the broker where the line had just broken."""
    with Admin(own_cluster.registry) as admin:
        eventually(lambda: len(admin.brokers()) == 2)
        admin.create_topic("T", 8)
    with LogReader(own_cluster.registry) as reader:
        eventually(lambda: len({queue.broker for queue in reader.queues("T")}) == 2)  # each tells the registry
    with Producer(own_cluster.registry, retries=1) as producer:
        queues = producer.queues("T")
        assert len({queue.broker for queue in queues}) == 2
        for queue in queues[::8]:  # each broker has its line
            producer.send(Message("T", b""), queue=queue)
        route = producer._inner._cluster.routes["T"]
        lose(producer, len(queues))
        tried_at = [route.address(producer.send(Message("T", b"")).queue.broker) for _ in queues]
    assert len(Lost.asked) == len(tried_at)
    assert all(first != then for first, then in zip(Lost.asked, tried_at, strict=True))


def test_a_broker_that_does_not_answer(own_cluster) -> None:  # type: ignore[no-untyped-def]
    with Producer(own_cluster.registry, send_timeout_s=60.0) as producer:
        for _ in range(2):
            producer.send(Message("T", b""))
        with asleep(own_cluster), pytest.raises(TimedOut):
            producer.send(Message("T", b""), timeout_s=0.3)
        assert producer.send(Message("T", b"")).status is SendStatus.SEND_OK  # no late answer is taken for this one's


def test_a_dead_broker_ends_in_an_error(own_cluster) -> None:  # type: ignore[no-untyped-def]
    with Producer(own_cluster.registry, send_timeout_s=1.0) as producer:
        for _ in range(2):
            producer.send(Message("T", b""), timeout_s=60.0)
        own_cluster.stop(signal.SIGKILL)
        with pytest.raises((ConnectionLost, NoRoute, TimedOut)):
            producer.send(Message("T", b""))


def test_a_line_that_was_interrupted_is_not_used_again(
    registry: str, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = fresh("interrupt")
    with Producer(registry, send_timeout_s=60.0) as producer:
        for _ in range(2):
            producer.send(Message(topic, b""))

        lose(producer)
        monkeypatch.setattr(Lost, "error", KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            producer.send(Message(topic, b"interrupted"))
        assert not any(producer._direct._lines.values())
        assert producer.send(Message(topic, b"next")).queue_offset >= 0


def test_a_line_that_was_idle_for_long_is_made_anew(
    registry: str, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = fresh("idle")
    with Producer(registry, send_timeout_s=60.0) as producer:
        for _ in range(2):
            producer.send(Message(topic, b""))
        [[line]] = producer._direct._lines.values()
        monkeypatch.setattr(direct, "IDLE_S", -1.0)
        assert producer.send(Message(topic, b"")).status is SendStatus.SEND_OK
        [[another]] = producer._direct._lines.values()
        assert another is not line


def test_nothing_is_sent_after_the_end(registry: str, fresh: Fresh) -> None:
    topic = fresh("end")
    producer = Producer(registry)
    with pytest.raises(Closed):
        producer.send(Message(topic, b"too early"))
    with producer:
        for _ in range(2):
            producer.send(Message(topic, b""))
    with pytest.raises(Closed):
        producer.send(Message(topic, b"too late"))


def test_errors_are_ours(registry: str) -> None:
    assert issubclass(BrokerRefused, PenstockError)
    keyed = [Message("T", b"", sharding_key=key) for key in "ab"]
    with Producer(registry, send_timeout_s=60.0) as producer:
        for bad in ([], keyed):
            with pytest.raises(ValueError):
                producer.send_batch(bad)
