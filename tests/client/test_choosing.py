"""`client.choosing`: which queue a send goes to, and what is known of a topic without asking anybody."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from penstock.aio import Producer
from penstock.client.choosing import Choosing, Turn
from penstock.client.routes import MessageQueue, QueueData, Route
from penstock.message import Message

Fresh = Callable[[str], str]
ROUTE = Route(
    "T",
    {"a": {0: "1.1.1.1:1", 1: "2.2.2.2:1"}, "b": {1: "3.3.3.3:1"}},
    (QueueData("a", 4, 2, 6), QueueData("b", 4, 2, 6)),
)


def last(queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
    return queues[-1]


async def test_what_is_known_now(registry: str, fresh: Fresh) -> None:
    topic = fresh("known")
    async with Producer(registry) as producer:
        attempts, choosing = producer.attempts, producer.attempts.choosing
        assert choosing.queues(topic) is None
        queues = await producer.queues(topic)  # those it will have
        route = await attempts.route(topic)
        assert choosing.queues(topic) == queues
        assert choosing.choose(route, Message(topic, b""), queues[2], None) == queues[2]
        assert choosing.choose(route, Message(topic, b""), None, last) == queues[-1]
        assert choosing.choose(route, Message("other", b""), queues[2], None) is None
        assert choosing.choose(replace(route), Message(topic, b""), None, None) is None  # another one by now
        turns = [choosing.choose(route, Message(topic, b""), None, None) for _ in queues]
        assert sorted(turn for turn in turns if turn) == queues
        keyed = {choosing.choose(route, Message(topic, b"", sharding_key="k"), None, None) for _ in range(5)}
        assert keyed == {(await attempts.choose(Message(topic, b"", sharding_key="k"), None, None, None))[0]}


def test_addresses_are_those_of_masters_in_the_route() -> None:
    choosing = Choosing({})
    queues = choosing.queues_of(ROUTE)
    assert queues == [MessageQueue("T", "a", 0), MessageQueue("T", "a", 1)]  # the other broker has no master
    assert choosing.address(ROUTE, queues[0]) == "1.1.1.1:1"
    moved = replace(ROUTE, brokers={"a": {0: "4.4.4.4:1"}})
    assert choosing.address(moved, queues[0]) == "4.4.4.4:1"
    assert choosing.address(ROUTE, MessageQueue("T", "b", 0)) is None
    assert choosing.address(ROUTE, MessageQueue("other", "a", 0)) == "1.1.1.1:1"
    nsq = Route("Q", {}, (), nsq={"a": "5.5.5.5:1"})
    assert choosing.address(nsq, choosing.queues_of(nsq)[0]) == "5.5.5.5:1"


def test_a_guess_holds_until_it_is_forgotten() -> None:
    routes: dict[str, Route] = {}
    choosing = Choosing(routes)
    assert choosing.route("T") is None
    choosing.guess(ROUTE)
    routes["T"] = replace(ROUTE)
    assert choosing.route("T") is ROUTE
    choosing.forget_guess("T")
    assert choosing.route("T") is routes["T"]
    choosing.forget_guess("T")


def test_taking_turns_avoids_the_broker_that_failed() -> None:
    queues = [MessageQueue("T", broker, i) for broker in "ab" for i in range(2)]
    turn = Turn()
    assert [turn.pick(queues) for _ in range(5)] == [*queues, queues[0]]
    assert turn.pick(queues, avoid="a").broker == "b"
    assert turn.pick(queues[:2], avoid="a").broker == "a"
