"""Delivery: the first thing said of a message settles it."""

from __future__ import annotations

import asyncio

import pytest

from client.scripted import message
from penstock.client.aio import delivery as delivery_module
from penstock.client.aio.delivery import Delivery, Handed, finish
from penstock.client.results import Outcome, Reject, Retry
from penstock.errors import ConnectionLost
from penstock.message import ReceivedMessage


class Hand:
    def __init__(self, error: Exception | None = None) -> None:
        self.gone = False
        self.said: list[object] = []
        self.error = error

    def begin(self, for_s: float | None) -> None:
        self.said.append(("begin", for_s))

    @property
    def owner(self) -> Hand:
        return self

    def finish(self, done: list[Handed]) -> None:
        self.said.append([handed.message.queue_offset for handed in done])
        if self.error is not None:
            raise self.error

    async def settle(self, message: ReceivedMessage, outcome: Outcome) -> None:
        self.said.append(outcome)
        if self.error is not None:
            raise self.error

    async def extend(self, message: ReceivedMessage) -> None:
        self.said.append("extend")


async def test_the_first_word_counts() -> None:
    hand = Hand()
    done = asyncio.Event()
    delivery = Delivery(hand, message(3), done)
    assert (delivery.body, delivery.topic, delivery.attempts, delivery.gone) == (b"m3", "T", 1, False)
    delivery.begin(5.0)
    await delivery.extend()
    await delivery.nack(2.5)
    await delivery.ack()
    await delivery.reject("late")
    await delivery.extend()
    begun, extended, retry = hand.said
    assert (begun, extended) == (("begin", 5.0), "extend")
    assert isinstance(retry, Retry)
    assert retry.delay == 2.5
    assert done.is_set()


async def test_a_rejection_says_why() -> None:
    hand = Hand()
    await Delivery(hand, message()).reject("no such customer")
    (outcome,) = hand.said
    assert isinstance(outcome, Reject)
    assert outcome.reason == "no such customer"


class Silent(Hand):
    """Its broker says nothing for a while."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__(error)
        self.answers = asyncio.Event()

    async def settle(self, message: ReceivedMessage, outcome: Outcome) -> None:
        await self.answers.wait()
        await super().settle(message, outcome)


async def test_a_broker_that_does_not_take_a_message_back_holds_the_iteration_up_for_a_while_only(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(delivery_module, "GIVE_BACK_S", 0.01)
    hand, done = Silent(), asyncio.Event()
    given = Delivery(hand, message(3), done)
    async with asyncio.timeout(60):
        await given.nack(1.0)
    assert given.settled
    assert not done.is_set()  # in order nothing else of its queue is handed out
    await given.ack()  # not heard: it is on its way back
    assert hand.said == []
    hand.answers.set()
    async with asyncio.timeout(60):
        await done.wait()
    (retry,) = hand.said
    assert isinstance(retry, Retry)
    failing = Silent(ConnectionLost("away"))
    async with asyncio.timeout(60):
        await Delivery(failing, message(4)).reject("no")
        failing.answers.set()
        while not caplog.records:
            await asyncio.sleep(0)
    assert "a message could not be given back" in caplog.text


async def test_a_broker_that_does_not_take_messages_back_is_not_waited_for_by_each_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Thirty messages of one that said nothing stood before those of the others for a minute and a half."""
    waited: list[float | None] = []
    wait = asyncio.wait

    async def waits(tasks: tuple[asyncio.Task[None]], timeout: float | None = None) -> object:
        waited.append(timeout)
        return await wait(tasks, timeout=min(timeout or 0, 0.01))

    monkeypatch.setattr(asyncio, "wait", waits)
    silent, others = Silent(), Hand()
    for number in range(3):
        await Delivery(silent, message(number)).nack()
    await Delivery(others, message(3, store_host="127.0.0.2:10911")).nack()
    long_s = delivery_module.GIVE_BACK_S
    assert waited == [long_s, 0, 0, long_s]
    silent.answers.set()
    while len(silent.said) < 3:
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    await Delivery(silent, message(4)).nack()  # it answers again
    assert waited[-1] == long_s


async def test_a_failure_that_is_known_in_time_is_raised() -> None:
    with pytest.raises(ConnectionLost):
        await Delivery(Hand(ConnectionLost("away")), message(3)).nack()


async def test_who_waits_for_its_end_goes_on_after_an_error() -> None:
    done = asyncio.Event()
    delivery = Delivery(Hand(ConnectionLost("gone")), message(), done)
    with pytest.raises(ConnectionLost):
        await delivery.ack()
    assert done.is_set()


async def test_what_has_one_owner_goes_together() -> None:
    one, other = Hand(), Hand()
    handed = [Handed(hand, message(number)) for number, hand in enumerate([one, one, other, one, one])]
    await handed[1].settle(None)
    finish([*handed, handed[0]])
    finish(handed)  # not heard again
    assert (one.said, other.said) == ([[1], [0], [3, 4]], [[2]])


async def test_who_waits_for_the_end_of_one_of_many_goes_on() -> None:
    done = [asyncio.Event(), asyncio.Event()]
    with pytest.raises(ConnectionLost):
        finish([Handed(Hand(ConnectionLost("gone")), message(), event) for event in done])
    assert done[0].is_set()
