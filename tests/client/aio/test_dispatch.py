"""Dispatcher: to a listener where there is one, else to the iteration."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from typing import Any

import msgspec
import pytest

from client.aio.hands import Hand
from client.scripted import message
from penstock.client.aio.delivery import Handed
from penstock.client.aio.dispatch import Acknowledged, Dispatcher
from penstock.client.aio.listening import Listeners
from penstock.client.results import Outcome, Retry
from penstock.errors import ConnectionLost
from penstock.message import ReceivedMessage


async def test_listeners_take_their_topics_and_the_iteration_the_rest() -> None:
    heard: list[bytes] = []

    async def listener(message: ReceivedMessage) -> None:
        heard.append(message.body)

    listeners = Listeners("G", None, threads=1, timeout_s=20)
    listeners.by_topic["T"] = listener
    dispatcher, hand = Dispatcher(listeners), Hand()
    worker = asyncio.create_task(dispatcher.work())
    dispatcher.offer([hand], [message(1)])
    other = message(2)
    listeners.by_topic.clear()
    dispatcher.offer([hand], [other])
    listeners.by_topic["T"] = listener
    iterated = []
    dispatcher.stop()
    async for delivery in dispatcher.iterate():
        iterated.append(delivery.body)
    await hand.wait_for(2)
    assert (heard, iterated, hand.outcomes) == ([b"m1"], [b"m2"], [None, None])
    worker.cancel()
    listeners.close()


async def test_a_broker_that_does_not_take_messages_back_keeps_no_worker_from_the_others() -> None:
    """A coroutine's worker waited for each of them, 10 s and more."""
    answers = asyncio.Event()

    class Silent(Hand):
        async def settle(self, message: ReceivedMessage, outcome: Outcome) -> None:
            await answers.wait()
            await super().settle(message, outcome)

    async def listener(message: ReceivedMessage) -> Retry | None:
        return None if message.queue_offset == 9 else Retry()

    listeners = Listeners("G", listener, threads=1, timeout_s=20)
    dispatcher, silent, other = Dispatcher(listeners), Silent(), Hand()
    worker = asyncio.create_task(dispatcher.work())
    dispatcher.offer([silent, silent, other], [message(1), message(2), message(9)])
    await other.wait_for(1)
    assert silent.outcomes == []
    answers.set()
    await silent.wait_for(2)
    worker.cancel()
    listeners.close()


async def test_what_is_gone_is_handed_to_nobody() -> None:
    dispatcher = Dispatcher(Listeners("G", None, threads=1, timeout_s=20))
    gone, there = Hand(), Hand()
    gone.gone = True
    dispatcher.offer([gone], [message(1)])
    dispatcher.offer([there], [message(2)])
    dispatcher.stop()
    assert [delivery.body async for delivery in dispatcher.iterate()] == [b"m2"]
    assert gone.outcomes == []
    assert [delivery async for delivery in dispatcher.iterate()] == []  # it stays stopped
    dispatcher.listeners.close()


async def test_a_message_in_order_waits_until_the_iteration_has_settled_it() -> None:
    dispatcher, hand = Dispatcher(Listeners("G", None, threads=1, timeout_s=20)), Hand()
    waiting = asyncio.create_task(dispatcher.in_order(hand, message()))
    iteration = dispatcher.iterate()
    delivery = await anext(iteration)
    assert not waiting.done()
    await delivery.ack()
    await asyncio.wait_for(waiting, 10)
    assert hand.outcomes == [None]
    dispatcher.listeners.close()


async def test_a_run_in_order_ends_where_one_fails_is_gone_or_it_is_late() -> None:
    heard: list[tuple[bytes, int]] = []
    hand = Hand()

    def listener(message: ReceivedMessage) -> None:
        heard.append((message.body, threading.get_ident()))
        if message.body == b"m3":
            raise Retry
        if message.body == b"m5":
            hand.gone = True

    dispatcher = Dispatcher(Listeners("G", listener, threads=1, timeout_s=20))
    done, outcome = await dispatcher.run_in_order(hand, [message(number) for number in (1, 2, 3, 4)], math.inf)
    assert (done, type(outcome)) == (2, Retry)
    assert hand.outcomes == [None, None]  # the loop knew of them before it knew of the end
    assert await dispatcher.run_in_order(hand, [message(4)], time.monotonic()) == (0, None)
    assert await dispatcher.run_in_order(hand, [message(4), message(5), message(6)], math.inf) == (2, None)
    assert await dispatcher.run_in_order(hand, [message(6)], math.inf) == (0, None)
    hand.gone = False
    dispatcher.stop()
    assert await dispatcher.run_in_order(hand, [message(6)], math.inf) == (0, None)
    assert [body for body, _ in heard] == [b"m1", b"m2", b"m3", b"m4", b"m5"]
    assert len({thread for _, thread in heard} | {threading.get_ident()}) == 2
    dispatcher.listeners.close()


async def test_a_long_run_in_order_lets_other_queues_have_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.client.aio.dispatch.RUN_S", 0.0)
    dispatcher = Dispatcher(Listeners("G", lambda message: None, threads=1, timeout_s=20))
    assert await dispatcher.run_in_order(Hand(), [message(1), message(2)], math.inf) == (1, None)
    dispatcher.listeners.close()


async def test_a_wait_that_is_given_up_is_not_the_end_of_the_iteration() -> None:
    dispatcher, hand = Dispatcher(Listeners("G", None, threads=1, timeout_s=20)), Hand()
    messages = dispatcher.iterate()
    for _ in range(2):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(messages), 0.01)
    dispatcher.offer([hand], [message(1)])
    assert (await anext(messages)).body == b"m1"
    assert hand.outcomes == []
    dispatcher.stop()
    with pytest.raises(StopAsyncIteration):
        await anext(messages)
    await hand.wait_for(1)
    assert hand.outcomes == [None]
    dispatcher.listeners.close()


class Deaf(Hand):
    """The connection of this one broke at the wrong moment."""

    def finish(self, done: list[Handed]) -> None:
        super().finish(done)
        raise ConnectionLost("gone")


async def test_plain_functions_work_in_threads_and_say_what_became_of_each() -> None:
    seen: list[tuple[bytes, bool]] = []
    here = threading.get_ident()

    def listener(message: ReceivedMessage) -> object:
        seen.append((message.body, threading.get_ident() == here))
        if message.body == b"m1":
            raise Retry(2)
        if message.body == b"m2":
            raise KeyError("a mistake")
        return message.body != b"m3"

    dispatcher, hand = Dispatcher(Listeners("G", listener, threads=2, timeout_s=20), 2), Hand()
    for number in range(5):
        dispatcher.offer([hand], [message(number)])
    await hand.wait_for(5)
    assert sorted(seen) == [(b"m%d" % number, False) for number in range(5)]
    assert sorted(type(outcome).__name__ for outcome in hand.outcomes) == [
        "NoneType",
        "NoneType",
        "Retry",
        "Retry",
        "Retry",
    ]
    await dispatcher.listeners.wait_done(20)
    dispatcher.listeners.close()


async def test_an_acknowledgement_that_fails_costs_no_other() -> None:
    dispatcher, deaf, hand = Dispatcher(Listeners("G", lambda message: None, threads=1, timeout_s=20)), Deaf(), Hand()
    for one in (hand, deaf, hand):
        dispatcher.offer([one], [message()])
    await hand.wait_for(2)
    assert (len(deaf.outcomes), len(hand.outcomes)) == (1, 2)
    dispatcher.listeners.close()


async def test_nothing_is_begun_after_the_stop() -> None:
    begun, go_on = threading.Event(), threading.Event()
    seen: list[bytes] = []

    def listener(message: ReceivedMessage) -> None:
        seen.append(message.body)
        begun.set()
        go_on.wait(60)

    dispatcher, hand = Dispatcher(Listeners("G", listener, threads=1, timeout_s=20)), Hand()
    for number in range(3):
        dispatcher.offer([hand], [message(number)])
    await asyncio.to_thread(begun.wait, 60)
    dispatcher.stop()
    waiting = asyncio.create_task(dispatcher.listeners.wait_done(20))
    await asyncio.sleep(0)
    assert not waiting.done()
    go_on.set()
    await waiting
    await hand.wait_for(1)
    assert (seen, hand.outcomes) == ([b"m0"], [None])
    dispatcher.listeners.close()


async def test_threads_take_from_the_row_by_themselves() -> None:
    """What they have taken is not begun for them, and not acknowledged."""
    dispatcher, hand = Dispatcher(Listeners("G", None, threads=1, timeout_s=20)), Hand()
    waiting = asyncio.create_task(dispatcher.some())
    await asyncio.sleep(0)
    dispatcher.offer([hand] * 5, [message(number) for number in range(5)])
    assert await waiting
    dispatcher.stop()
    assert await dispatcher.some()
    taken = [dispatcher.iterated.popleft() for _ in range(5)]
    assert [handed.body for handed in taken] == [b"m%d" % number for number in range(5)]
    assert not await dispatcher.some()
    assert hand.outcomes == []
    dispatcher.listeners.close()


async def test_topics_of_one_list_go_where_each_belongs() -> None:
    heard: list[bytes] = []
    listeners = Listeners("G", None, threads=1, timeout_s=20)
    listeners.by_topic["U"] = lambda message: heard.append(message.body)
    dispatcher, hand = Dispatcher(listeners), Hand()
    messages = [msgspec.structs.replace(message(number), topic="TUUTU"[number]) for number in range(5)]
    dispatcher.offer([hand] * 5, messages)
    await hand.wait_for(3)
    assert heard == [b"m1", b"m2", b"m4"]
    assert [handed.body for handed in dispatcher.iterated] == [b"m0", b"m3"]
    listeners.close()


async def test_acknowledgements_of_many_threads_all_arrive_once() -> None:
    """Without a lock: none is lost between the list that grows and the loop that takes it, none is told twice."""
    dispatcher, hand = Dispatcher(Listeners("G", None, threads=1, timeout_s=20)), Hand()
    dispatcher.offer([hand] * 4_000, [message(number) for number in range(4_000)])
    every = list(dispatcher.iterated)

    def work(part: list[Handed]) -> None:
        for handed in part:
            handed.acknowledge()
            handed.acknowledge()

    threads = [threading.Thread(target=work, args=(every[number::8],)) for number in range(8)]
    for thread in threads:
        thread.start()
    await hand.wait_for(4_000)
    for thread in threads:
        thread.join(60)
    await asyncio.sleep(0)
    assert hand.outcomes == [None] * 4_000
    dispatcher.listeners.close()


async def test_an_interrupt_leaves_no_acknowledgement_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C that met a thread while it woke the loop: nothing that was acknowledged later was told either."""
    loop, left, hand = asyncio.get_running_loop(), [KeyboardInterrupt], Hand()
    wake = loop.call_soon_threadsafe

    def interrupted(*given: Any) -> asyncio.Handle:
        if left:
            raise left.pop()
        return wake(*given)

    monkeypatch.setattr(loop, "call_soon_threadsafe", interrupted)
    acknowledged = Acknowledged()
    acknowledged.begin(loop)
    first, second = (Handed(hand, message(n), None, acknowledged) for n in range(2))
    with pytest.raises(KeyboardInterrupt):
        first.acknowledge()
    second.acknowledge()
    await hand.wait_for(2)
    assert first.settled
    assert second.settled
