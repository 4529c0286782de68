"""`client.handover`: sends from threads into the loop, and the futures they leave behind."""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable
from functools import partial

import pytest

from penstock import Message, Producer, PullConsumer
from penstock.client import handover
from penstock.client.aio.producer import report
from penstock.client.handover import Sending
from penstock.client.portal import Portal, portal
from penstock.client.reader import LogReader
from penstock.client.results import SendReceipt, SendStatus
from penstock.client.routes import MessageQueue
from penstock.errors import BufferFull, ClientError, Closed, PenstockError, TimedOut

Fresh = Callable[[str], str]
RECEIPT = SendReceipt(SendStatus.SEND_OK, MessageQueue("T", "a", 0), 3, ("i",), ("o",))


def test_a_receipt_that_nobody_waited_for() -> None:
    sending = Sending()
    assert not sending.done()
    sending.set_result(RECEIPT)
    assert sending.done()
    assert not sending.cancelled()
    assert sending.result(0) is RECEIPT
    assert sending.exception(0) is None
    told: list[object] = []
    sending.add_done_callback(told.append)
    assert told == [sending]
    with pytest.raises(concurrent.futures.InvalidStateError):
        sending.set_result(RECEIPT)
    assert not sending.cancel()


def test_a_receipt_that_a_thread_waits_for() -> None:
    sending, told = Sending(), []  # type: ignore[var-annotated]
    sending.add_done_callback(told.append)
    with pytest.raises(TimeoutError):
        sending.result(0.01)
    threading.Timer(0.05, sending.set_result, (RECEIPT,)).start()
    assert sending.result(60) is RECEIPT
    assert told == [sending]


def test_a_callback_needs_no_means_of_waiting() -> None:
    sending = Sending()
    told: list[object] = []
    sending.add_done_callback(partial(report, told.append))
    sending.add_done_callback(told.append)
    assert not told
    sending.set_result(RECEIPT)
    assert told == [RECEIPT, sending]
    assert sending._own is None


def test_others_go_on_while_means_of_waiting_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal handler that sent at this moment waited for its own thread for ever, and the loop for it."""
    sending, other, usual = Sending(), Sending(), threading.Condition
    told = threading.Event()

    def send() -> None:
        other.add_done_callback(lambda _: told.set())
        other.set_result(RECEIPT)

    def interrupted(*lock: threading.Lock) -> threading.Condition:
        if not lock:  # of an Event it has one
            threading.Thread(target=send, daemon=True).start()
            assert told.wait(60)
        return usual(*lock)

    monkeypatch.setattr(threading, "Condition", interrupted)
    with pytest.raises(TimeoutError):
        sending.result(0)


def test_callbacks_that_came_before_somebody_waits_are_called_once() -> None:
    for end in (lambda one: one.set_result(RECEIPT), lambda one: one.set_exception(TimedOut("late")), Sending.cancel):
        sending = Sending()
        told: list[object] = []
        sending.add_done_callback(told.append)
        assert sending.running() is False  # asks for the condition, as every other part of the usual future does
        sending.add_done_callback(told.append)
        end(sending)
        assert told == [sending, sending]
    broken = Sending()
    broken.add_done_callback(lambda one: 1 / 0)  # it is logged, and the next one is called
    broken.add_done_callback(told.append)
    broken.set_result(RECEIPT)
    assert told[-1] is broken


def test_an_error_and_a_send_given_up() -> None:
    failed, given_up = Sending(), Sending()
    failed.set_exception(TimedOut("late"))
    with pytest.raises(TimedOut):
        failed.result(0)
    assert failed.done()
    assert given_up.cancel()
    assert given_up.done()
    assert given_up.cancelled()
    with pytest.raises(concurrent.futures.InvalidStateError):
        given_up.set_result(RECEIPT)
    with pytest.raises(concurrent.futures.CancelledError):
        given_up.result(0)


def test_the_usual_ways_to_wait_for_many() -> None:
    sends = [Sending() for _ in range(3)]
    sends[0].set_result(RECEIPT)
    threading.Timer(0.05, sends[1].set_result, (RECEIPT,)).start()
    threading.Timer(0.05, sends[2].set_exception, (TimedOut("late"),)).start()
    done, late = concurrent.futures.wait(sends, 60)
    assert (done, late) == (set(sends), set())
    assert set(concurrent.futures.as_completed(sends, 60)) == set(sends)


def test_sends_of_many_threads(registry: str, fresh: Fresh) -> None:
    topic = fresh("threads")
    with Producer(registry, send_timeout_s=60.0) as producer:
        sends: list[concurrent.futures.Future[SendReceipt]] = []

        def work() -> None:
            sends.extend([producer.send_nowait(Message(topic, b"x")) for _ in range(500)])

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        producer.flush()
        assert len({send.result(0).msg_id for send in sends}) == 2_000
        assert producer._handover.empty


def test_a_thread_waits_for_room(registry: str, fresh: Fresh) -> None:
    topic = fresh("room")
    with Producer(registry, batch_bytes=5_000, buffer_bytes=10_000) as producer:
        sends = [producer.send_nowait(Message(topic, bytes(1_000))) for _ in range(200)]
        assert all(send.result(60).status is SendStatus.SEND_OK for send in sends)


def test_a_full_buffer_raises_where_that_is_asked_for(registry: str, fresh: Fresh) -> None:
    topic = fresh("raise")
    with Producer(registry, batch_bytes=100, buffer_bytes=2_000, when_full="raise") as producer:
        with pytest.raises(BufferFull) as caught:
            for _ in range(100):
                producer.send_nowait(Message(topic, bytes(1_000)))
        assert isinstance(caught.value, ClientError)
        assert caught.value.retryable
        producer.flush()
        assert producer.send_nowait(Message(topic, b"")).result(60).status is SendStatus.SEND_OK


def test_a_callback_may_send_but_not_wait(registry: str, fresh: Fresh) -> None:
    topic = fresh("callback")
    ended: list[object] = []
    over = threading.Event()
    with Producer(registry, batch_bytes=100, buffer_bytes=300) as producer:

        def again(receipt: SendReceipt | PenstockError) -> None:
            try:
                for _ in range(4):
                    ended.append(producer.send_nowait(Message(topic, bytes(50))))
            except BufferFull as error:
                ended.append(error)
            over.set()

        producer.send_nowait(Message(topic, b""), again)
        assert over.wait(60)
        assert [type(end) for end in ended] == [Sending, Sending, BufferFull]
        producer.flush()


def test_a_message_that_cannot_be_sent_costs_no_other(registry: str, fresh: Fresh) -> None:
    topic = fresh("bad")
    with Producer(registry, send_timeout_s=60.0) as producer:
        messages = [
            Message(topic, b"1"),
            Message(topic, b"", keys=("\ud800",)),
            Message(topic, b"", properties={"": "x"}),
            Message(topic, b"2"),
        ]
        sends = [producer.send_nowait(message) for message in messages * 3]
        for number, send in enumerate(sends):
            if number % 4 in (0, 3):
                assert send.result(60).status is SendStatus.SEND_OK
            else:
                assert send.exception(60) is not None
        assert producer._handover.empty


def test_a_send_that_is_given_up_in_the_list_costs_no_other(registry: str, fresh: Fresh) -> None:
    topic = fresh("cancel")
    with Producer(registry, send_timeout_s=60.0) as producer:
        sends = [producer.send_nowait(Message(topic, b"%d" % n, delay_level=n % 2)) for n in range(50)]
        for send in sends[::3]:
            send.cancel()
        producer.flush()
        for number, send in enumerate(sends):
            assert send.cancelled() or send.result(60).status is SendStatus.SEND_OK, number


def test_what_comes_after_the_end_fails(registry: str, fresh: Fresh) -> None:
    producer = Producer(registry).start()
    before = producer.send_nowait(Message(fresh("end"), b""))
    producer.close()
    assert before.result(0).status is SendStatus.SEND_OK
    with pytest.raises(Closed):
        producer.send_nowait(Message(fresh("end"), b"")).result(60)


def test_what_comes_after_the_end_costs_the_loop_nothing(registry: str, fresh: Fresh) -> None:
    """Threads that went on sending filled list after list, and the loop, which refused each message, did not come to close."""
    producer, held = Producer(registry).start(), threading.Event()
    producer.close()
    portal().soon(lambda: held.wait(60))
    try:
        with pytest.raises(Closed):
            producer.send_nowait(Message(fresh("end"), b"")).result(0)
    finally:
        held.set()


def test_a_batch_of_a_thread_is_stored_behind_its_sends(registry: str, fresh: Fresh) -> None:
    topic = fresh("behind")

    def keyed(number: int) -> Message:
        return Message(topic, b"%d" % number, sharding_key="k")

    with Producer(registry, send_timeout_s=60.0) as producer:
        producer.send(keyed(0))
        for begin in range(1, 1_001, 100):
            for number in range(begin, begin + 90):
                producer.send_nowait(keyed(number))
            producer.send_batch([keyed(number) for number in range(begin + 90, begin + 100)])
    with PullConsumer(registry) as consumer:
        consumer.assign(topic, start="first")
        found: list[int] = []
        while len(found) < 1_001:
            for messages in consumer.getmany(60.0).values():
                found += [int(message.body) for message in messages]
    assert found == list(range(1_001))


@pytest.mark.parametrize("interrupts", [1, 2])
def test_an_interrupt_leaves_no_send_behind(
    registry: str, fresh: Fresh, monkeypatch: pytest.MonkeyPatch, interrupts: int
) -> None:
    """Ctrl-C that met a send while it woke the loop: no later one was sent, and `flush` and `close` said nothing of it."""
    topic, left = fresh("interrupted"), [KeyboardInterrupt] * interrupts

    def interrupted() -> Portal:
        if left:
            raise left.pop()
        return portal()

    with Producer(registry, send_timeout_s=60.0) as producer:
        producer.send(Message(topic, b"0"))
        monkeypatch.setattr(handover, "portal", interrupted)
        with pytest.raises(KeyboardInterrupt):
            producer.send_nowait(Message(topic, b"1"))
        producer.send(Message(topic, b"2"))
        later = producer.send_nowait(Message(topic, b"3"))
        producer.flush()
        assert later.result(0).status is SendStatus.SEND_OK
    with LogReader(registry) as reader:
        assert sum(reader.offsets(queue, durable=False)[1] for queue in reader.queues(topic)) == 4
