"""Dispatcher: to a listener where there is one, else to the iteration."""

from __future__ import annotations

import asyncio

from client.aio.hands import Hand
from client.scripted import message
from penstock.client.aio.dispatch import Dispatcher
from penstock.client.aio.listening import Listeners
from penstock.message import ReceivedMessage


async def test_listeners_take_their_topics_and_the_iteration_the_rest() -> None:
    heard: list[bytes] = []

    async def listener(message: ReceivedMessage) -> None:
        heard.append(message.body)

    listeners = Listeners("G", None, threads=1, timeout_s=20)
    listeners.by_topic["T"] = listener
    dispatcher, hand = Dispatcher(listeners), Hand()
    worker = asyncio.create_task(dispatcher.work())
    dispatcher.offer(hand, message(1))
    other = message(2)
    listeners.by_topic.clear()
    dispatcher.offer(hand, other)
    listeners.by_topic["T"] = listener
    iterated = []
    dispatcher.stop()
    async for delivery in dispatcher.iterate():
        iterated.append(delivery.body)
    await hand.wait_for(2)
    assert (heard, iterated, hand.outcomes) == ([b"m1"], [b"m2"], [None, None])
    worker.cancel()
    listeners.close()


async def test_what_is_gone_is_handed_to_nobody() -> None:
    dispatcher = Dispatcher(Listeners("G", None, threads=1, timeout_s=20))
    gone, there = Hand(), Hand()
    gone.gone = True
    dispatcher.offer(gone, message(1))
    dispatcher.offer(there, message(2))
    dispatcher.stop()
    assert [delivery.body async for delivery in dispatcher.iterate()] == [b"m2"]
    assert gone.outcomes == []
    assert [delivery async for delivery in dispatcher.iterate()] == []  # it stays stopped
    dispatcher.listeners.close()


async def test_a_message_in_order_waits_until_the_iteration_has_settled_it() -> None:
    dispatcher, hand = Dispatcher(Listeners("G", None, threads=1, timeout_s=20)), Hand()
    waiting = asyncio.create_task(dispatcher.iterated(hand, message()))
    iteration = dispatcher.iterate()
    delivery = await anext(iteration)
    assert not waiting.done()
    await delivery.ack()
    await asyncio.wait_for(waiting, 10)
    assert hand.outcomes == [None]
    dispatcher.listeners.close()
